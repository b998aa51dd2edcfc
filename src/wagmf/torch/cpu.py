"""The fused path on the CPU: the whole batch in one compiled call that reads and writes every number once.

Numba compiles the loop when it is first needed, for the kind of rule and not for its numbers, and keeps it on disk.
The threads are those of torch's own OpenMP pool: a second pool would fight the first one for the cores.
"""

import ctypes
import functools
import importlib
import itertools
import math
import os
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from wagmf.feasible import Box, Everything, Feasible, NonNegative
from wagmf.rule import Rule
from wagmf.torch.batch import Batch, Look, Unfit
from wagmf.weights import Latest

__all__ = ["missing", "step_cpu", "unfit"]

_CHUNK = 1 << 15  # most numbers a thread takes at a time: enough to stream through memory, few enough to share out


def unfit(batch: Batch, cache: dict[str, Any] | None = None) -> str | None:
    """Why this path cannot take the batch, or None; with a ``cache``, tensors known to fit are not examined again.

    >>> from wagmf import Rule
    >>> unfit(Batch(Rule(), 1, 0.0, [], [], [], [], [], stochastic_rounding=True))
    'stochastic_rounding=True'
    """
    try:
        _look(batch, {} if cache is None else cache)
    except Unfit as reason:
        return str(reason)
    return None


def step_cpu(batch: Batch, cache: dict[str, Any]) -> float:
    """Take the step for every parameter in place, and return the new window u; restates :func:`wagmf.rule.update`.

    The caller keeps ``cache`` with the parameters of the batch. It holds how their numbers are dealt out to threads and
    what the tensors looked like, which every call compares; addresses are read anew in every call. Raises
    :class:`~wagmf.torch.batch.Unfit`, with nothing changed, where :func:`unfit` has an answer.

    >>> from wagmf import Rule
    >>> x, v = torch.zeros(1), torch.zeros(1)
    >>> step_cpu(Batch(Rule(beta1=0.0), 1, 0.0, [x], [torch.ones(1)], [], [v], [], lr=0.5), {})
    1.0
    >>> x
    tensor([-0.5000])
    """
    plan, table = _look(batch, cache)
    rule = batch.rule
    u = 1 + rule.weights.discount(batch.t) * batch.u if rule.adapts else batch.u
    kernel = _kernel(plan.precision, _kind(rule, l2=bool(batch.weight_decay) and not batch.decoupled))
    _run(kernel, _job(batch, u, plan, table), min(torch.get_num_threads(), plan.most_threads), batch)
    increment_version(batch.params)  # torch has not seen the writing; autograd must learn that what it saved is gone
    return u


# ---------------------------------------------------------------- which tensors, and how they are dealt out to threads


@dataclass
class _Plan:
    """How the numbers of a batch are dealt out, and what the tensors were when that was settled."""

    precision: str
    chunks: bytes  # four integers a chunk: its tensor, its first number, how many they are, their replica
    chunk_count: int
    replicas: int
    most_threads: int
    look: Look
    addresses: list[int]  # of the parameters and the state, when they were last found to share no memory;
    written: bytes  # and the same as the compiled loop reads them


def _look(batch: Batch, cache: dict[str, Any]) -> tuple[_Plan, bytes]:
    """The plan for the batch, and the table of its addresses."""
    _examine_options(batch)
    rows = batch.rows()
    plan: _Plan | None = cache.get("plan")
    if plan is None or not plan.look.same(batch):
        _examine_tensors(rows, batch.replicas)
        plan = cache["plan"] = _new_plan(batch, rows)
    if plan.addresses is not plan.look.addresses:
        _examine_places(rows, plan.look.addresses)
        plan.addresses = plan.look.addresses
        plan.written = struct.pack(f"{len(plan.addresses)}q", *plan.addresses)
    return plan, plan.written + struct.pack(f"{len(batch.grads)}q", *map(Tensor.data_ptr, batch.grads))


def _examine_options(batch: Batch) -> None:
    rule, n, feasible = batch.rule, len(batch.params), batch.feasible
    if batch.differentiable:
        raise Unfit("differentiable=True")
    if batch.stochastic_rounding:
        raise Unfit("stochastic_rounding=True")
    if isinstance(batch.t, Tensor) or isinstance(batch.u, Tensor):
        raise Unfit("t and u as tensors (capturable=True, or torch.compile)")
    if feasible is not None and type(feasible) not in (Box, NonNegative, Everything):
        raise Unfit(f"feasible={feasible}")
    if isinstance(feasible, Box) and isinstance(feasible.lower, np.ndarray):
        raise Unfit("a Box whose sides are arrays")
    found = (len(batch.grads), len(batch.m), len(batch.v), len(batch.peak))
    if found != (n, n * rule.has_momentum, n * rule.adapts, n * rule.monotone):
        raise Unfit("state that is not what the rule keeps")
    reason = missing()
    if reason:
        raise Unfit(reason)


def _examine_tensors(rows: list[list[Tensor]], replicas: int) -> None:
    for x in itertools.chain(*rows):
        if type(x) not in (Tensor, torch.nn.Parameter):
            raise Unfit(f"a {type(x).__name__}")
        if x.device.type != "cpu" or x.layout != torch.strided or x.is_neg():
            raise Unfit(f"a tensor that is not plain numbers on the CPU ({x.device}, {x.layout})")
    _precision(rows)
    for x, *others in zip(*rows, strict=True):
        if not _dense(x):
            raise Unfit(f"a parameter of strides {x.stride()}, with gaps or overlaps in memory")
        if any(other.shape != x.shape or _strides(other) != _strides(x) for other in others):
            raise Unfit(f"a parameter of shape {tuple(x.shape)} whose gradient or state has other axes or strides")
        if replicas > 1 and (x.ndim == 0 or x.shape[0] != replicas or x.stride(0) * replicas < x.numel()):
            raise Unfit(f"a lr of {replicas} entries for a parameter of shape {tuple(x.shape)}, strides {x.stride()}")


def _precision(rows: list[list[Tensor]]) -> str:
    """What numbers the compiled loop is to read and write."""
    outer = {x.dtype for x in itertools.chain(rows[0], rows[-1])}
    state = {x.dtype for x in itertools.chain(*rows[1:-1])}
    if outer <= {torch.float32} and state <= {torch.float32}:
        return "float32"
    if outer == {torch.float64} and state <= {torch.float64}:
        return "float64"
    if outer == {torch.bfloat16} and state <= {torch.float32}:
        return "bfloat16"
    raise Unfit(f"dtypes {sorted(map(str, outer))} with state in {sorted(map(str, state))}")


def _strides(x: Tensor) -> list[int]:
    """The strides that matter: an axis of length one may have any."""
    return [stride for stride, size in zip(x.stride(), x.shape, strict=True) if size != 1]


def _dense(x: Tensor) -> bool:
    """Whether the numbers fill a stretch of memory, each in a place of its own, whatever the order of the axes."""
    room = 1
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size != 1 and stride != room:
            return x.numel() == 0
        room *= size
    return True


def _examine_places(rows: list[list[Tensor]], addresses: list[int]) -> None:
    """Threads would race for memory that two of the tensors they write share."""
    starts = np.array(addresses, np.int64)
    ends = starts + np.array([x.numel() * x.element_size() for x in itertools.chain(*rows[:-1])], np.int64)
    starts, ends = starts[starts < ends], ends[starts < ends]  # an empty tensor shares nothing, wherever it lies
    order = np.argsort(starts)
    if np.any(starts[order][1:] < ends[order][:-1]):
        raise Unfit("parameters or state that share memory")


def _new_plan(batch: Batch, rows: list[list[Tensor]]) -> _Plan:
    """Cut every tensor into chunks that each lie within one replica."""
    replicas = batch.replicas
    chunks = [
        (k, first, min(length, start + part - first), replica)
        for k, part in enumerate(x.numel() // replicas for x in rows[0])
        for length in [_length(part)]
        for replica, start in enumerate(range(0, part * replicas, part or 1))
        for first in range(start, start + part, length)
    ]
    numbers = sum(x.numel() for x in rows[0])
    return _Plan(
        precision=_precision(rows),
        chunks=np.array(chunks, np.int64).tobytes(),
        chunk_count=len(chunks),
        replicas=replicas,
        most_threads=max(1, 2 * numbers // _CHUNK),  # with less to do, waking a thread costs more than it saves
        look=Look(batch),
        addresses=[],
        written=b"",
    )


def _length(numbers: int) -> int:
    """How long the chunks of a tensor are: about equally, and whole cache lines."""
    even = math.ceil(numbers / max(1, math.ceil(numbers / _CHUNK)))
    return max(1, math.ceil(even / 64)) * 64


# ---------------------------------------------------------------- what the compiled loop is told

_PLACES = ("chunks", "table", "rates")
_COUNTS = ("chunk_count", "tensor_count", "replicas")
_NUMBERS = ("sign", "l2", "beta1", "fresh", "a", "b", "u", "p1", "root", "eps", "floor", "lower", "upper")


class _Job(ctypes.Structure):
    """A step. All threads write ``next``, the chunk to take next; it comes first, in a cache line of its own."""

    _fields_ = (
        ("next", ctypes.c_int64 * 8),
        *((name, ctypes.c_char_p) for name in _PLACES),  # bytes, which the structure keeps alive
        *((name, ctypes.c_int64) for name in _COUNTS),
        *((name, ctypes.c_double) for name in _NUMBERS),
    )


# The same for Numba, to which an address is an integer.
_JOB = np.dtype(
    [("next", "i8", 8), *((name, "i8") for name in _PLACES + _COUNTS), *((name, "f8") for name in _NUMBERS)]
)


def _job(batch: Batch, u: float, plan: _Plan, table: bytes) -> _Job:
    rule, t = batch.rule, batch.t
    beta1, (a, b) = rule.beta1_at(t), rule.lookahead_at(t)
    sign = (-1.0 if batch.maximize else 1.0) / (1.0 if batch.grad_scale is None else batch.grad_scale.item())
    places = (plan.chunks, table, _rates(batch))
    counts = (plan.chunk_count, len(batch.params), plan.replicas)
    root = _roots(rule.p2)[1]
    seen = batch.eps if plan.precision == "float64" else np.float32(batch.eps)
    floor = batch.eps if seen > 0 else 1.0  # what is added to V where it is 0: 0/0 is to be no step, not NaN
    return _Job(
        _Job().next, *places, *counts, sign, batch.weight_decay, beta1, 1 - beta1, a, b, u, rule.p1, root,
        batch.eps, floor, *_sides(batch.feasible),
    )  # fmt: skip


def _rates(batch: Batch) -> bytes:
    """α_t of every replica, and the factor its parameters shrink by."""
    lrs = batch.lr.reshape(-1).tolist() if isinstance(batch.lr, Tensor) else [batch.lr]
    rate, shrink = batch.rule.rate_at(batch.t), batch.weight_decay if batch.decoupled else 0.0
    pairs = [(lr * rate, 1 - lr * rate * shrink) for lr in lrs]
    return struct.pack(f"{2 * len(pairs)}d", *itertools.chain(*pairs))


def _sides(feasible: Feasible | None) -> tuple[float, float]:
    if isinstance(feasible, Box):
        return feasible.lower, feasible.upper
    return (0.0 if isinstance(feasible, NonNegative) else -math.inf), math.inf


class _Kind(NamedTuple):
    """What the loop is compiled for. Numbers it is only told, the exponent of a general power among them."""

    whole: int  # p1 where products give that power, else 0
    roots: int  # how often the square root is taken,
    rest: bool  # and whether a power is left to take then
    momentum: bool
    adapts: bool
    latest: bool
    monotone: bool
    nesterov: bool
    l2: bool


@functools.lru_cache
def _kind(rule: Rule, l2: bool) -> _Kind:
    adapts, p1 = rule.adapts, rule.p1
    whole = int(p1) if adapts and p1 <= 8 and p1 == int(p1) else 0
    roots, left = _roots(rule.p2)
    latest = adapts and isinstance(rule.weights, Latest)
    return _Kind(whole, roots, left != 1, rule.has_momentum, adapts, latest, rule.monotone, rule.nesterov, l2)


@functools.lru_cache
def _roots(p2: float) -> tuple[int, float]:
    """How often :func:`wagmf.rule.root` takes the square root, and the power it takes then."""
    roots = 0
    while p2 >= 2 and p2 % 2 == 0:
        roots, p2 = roots + 1, p2 / 2
    return roots, 1.0 if p2 == math.inf else 1 / p2


# ---------------------------------------------------------------- the loop; what is marked "no cover" is compiled

# Numba's carray, "this integer is an address", and "take the next number": set when Numba is imported. They are global
# because Numba hashes what a function closes over to find it on disk again, and these hash differently every time.
_carray: Any = None
_pointer: Any = None
_take: Any = None


def _power(x: Any, whole: int, p: Any) -> Any:  # pragma: no cover
    """x^p, by the products of :func:`wagmf.rule.power` where ``whole`` is not 0."""
    if whole == 0:
        return x**p
    square = x * x
    fourth = square * square
    power = fourth * fourth if whole == 8 else fourth if whole >= 4 else square if whole >= 2 else x
    if whole == 6 or whole == 7:
        power = power * square
    if whole >= 3 and whole % 2 == 1:
        power = power * x
    return power


def _larger(x: Any, y: Any) -> Any:  # pragma: no cover
    """The maximum; NaN if either is."""
    larger = y if y > x else x
    return y if y != y else larger


def _from_bfloat16(bits: Any) -> Any:  # pragma: no cover
    """A bfloat16 number is the upper half of a float32."""
    return np.uint32(np.uint32(bits) << np.uint32(16)).view(np.float32)


def _to_bfloat16(x: Any) -> Any:  # pragma: no cover
    """The nearest bfloat16, ties to even."""
    bits = np.float32(x).view(np.uint32)
    odd = np.uint32(bits >> np.uint32(16)) & np.uint32(1)
    nearest = np.uint16(np.uint32(bits + np.uint32(0x7FFF) + odd) >> np.uint32(16))
    return np.uint16(0x7FC0) if x != x else nearest


def _loop(precision: str, kind: _Kind) -> Any:
    """The loop for one kind of rule. All threads run it at once on the same job, each taking chunk after chunk."""
    whole, roots, rest, momentum, adapts, latest, monotone, nesterov, l2 = kind
    half, real = precision == "bfloat16", np.float64 if precision == "float64" else np.float32
    stored = np.uint16 if half else real
    width, stored_width = np.dtype(real).itemsize, np.dtype(stored).itemsize
    at_m, at_v, at_peak = int(momentum), (1 + momentum) * adapts, (2 + momentum) * monotone  # 0, x, where there is none
    at_g = 1 + momentum + adapts + monotone

    def loop(data):  # pragma: no cover
        job = _carray(data, (1,), _JOB)[0]
        chunks = _carray(_pointer(job.chunks), (job.chunk_count, 4), np.int64)
        table = _carray(_pointer(job.table), (at_g + 1, job.tensor_count), np.int64)
        rates = _carray(_pointer(job.rates), (job.replicas, 2), np.float64)
        sign, penalty, beta1, fresh, u = real(job.sign), real(job.l2), real(job.beta1), real(job.fresh), real(job.u)
        one_over_u, p1, root = real(1 / job.u), real(job.p1), real(job.root)
        eps, floor, lower, upper, zero = real(job.eps), real(job.floor), real(job.lower), real(job.upper), real(0)
        while True:
            chunk = _take(data)
            if chunk >= job.chunk_count:
                break
            k, start, count, replica = chunks[chunk]
            alpha, keep = rates[replica, 0], real(rates[replica, 1])
            a, b = real(alpha * job.a), real(alpha * job.b)
            xs = _carray(_pointer(table[0, k] + start * stored_width), (count,), stored)
            gs = _carray(_pointer(table[at_g, k] + start * stored_width), (count,), stored)
            ms = _carray(_pointer(table[at_m, k] + start * width), (count,), real)
            vs = _carray(_pointer(table[at_v, k] + start * width), (count,), real)
            peaks = _carray(_pointer(table[at_peak, k] + start * width), (count,), real)
            for i in range(count):
                x, g = (_from_bfloat16(xs[i]), _from_bfloat16(gs[i])) if half else (xs[i], gs[i])
                g = sign * g
                if l2:
                    g = g + penalty * x
                m = g
                if momentum:
                    m = beta1 * ms[i] + fresh * g
                    ms[i] = m
                step = a * m + b * g if nesterov else a * m
                if adapts:
                    now = _power(abs(g), whole, p1)
                    v = now if latest else vs[i] + (now - vs[i]) * one_over_u
                    vs[i] = v
                    if monotone:
                        peak = _larger(peaks[i], u * v)
                        peaks[i] = peak
                        v = peak * one_over_u
                    for _ in range(roots):
                        v = np.sqrt(v)
                    if rest:
                        v = v**root
                    V = v + (eps if v > zero else floor)
                    step = step / V
                x = keep * x - step
                x = lower if x < lower else x  # a comparison with NaN is false, so that NaN stays
                x = upper if x > upper else x
                xs[i] = _to_bfloat16(x) if half else x

    return loop


# ---------------------------------------------------------------- compiling it, and running it on several threads


class _Kernel(NamedTuple):
    address: int
    call: Any  # the same function, for Python
    compiled: Any  # what owns it


def missing() -> str | None:
    """Why nothing can be compiled, or None; imports Numba when it is first asked for, and teaches it what it needs.

    >>> missing() is None
    True
    """
    if _carray is not None:
        return None
    try:
        numba: Any = importlib.import_module("numba")
    except ImportError as error:
        return f"no Numba ({error})"
    if numba.config.DISABLE_JIT:
        return "NUMBA_DISABLE_JIT=1"
    with _lock:
        if _carray is None:
            _teach(numba)
    return None


def _teach(numba: Any) -> None:
    global _carray, _pointer, _take
    from llvmlite import ir
    from numba.extending import intrinsic, register_jitable

    @intrinsic
    def pointer(typing: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return numba.types.voidptr(numba.types.int64), generate

    @intrinsic
    def take(typing: Any, counter: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            integer = ir.IntType(64)
            where = builder.bitcast(arguments[0], integer.as_pointer())
            return builder.atomic_rmw("add", where, ir.Constant(integer, 1), "monotonic")

        return numba.types.int64(numba.types.voidptr), generate

    for function in (_power, _larger, _from_bfloat16, _to_bfloat16):
        register_jitable(function)
    _pointer, _take, _carray = pointer, take, numba.carray


@functools.cache
def _kernel(precision: str, kind: _Kind) -> _Kernel:
    """The compiled loop for a kind of rule."""
    numba: Any = importlib.import_module("numba")
    loop, signature = _loop(precision, kind), numba.types.void(numba.types.voidptr)
    try:
        compiled = numba.cfunc(signature, cache=True, error_model="numpy")(loop)
    except (RuntimeError, OSError):  # there is no place to keep it
        compiled = numba.cfunc(signature, error_model="numpy")(loop)
    return _Kernel(compiled.address, ctypes.CFUNCTYPE(None, ctypes.c_void_p)(compiled.address), compiled)


def _run(kernel: _Kernel, job: _Job, threads: int, batch: Batch) -> None:
    """Run the loop on this thread and ``threads - 1`` others."""
    where = ctypes.addressof(job)
    if threads == 1:
        kernel.call(where)
        return
    parallel = _openmp()
    if parallel is not None:
        parallel(kernel.address, where, threads, 0)
        return
    others = [_pool().submit(_help, kernel, job, batch) for _ in range(threads - 1)]
    kernel.call(where)
    for other in others:
        other.result()


def _help(kernel: _Kernel, job: _Job, batch: Batch) -> None:
    """``batch`` is unused but must outlive the work, also where its owner was interrupted while waiting for it."""
    kernel.call(ctypes.addressof(job))


_lock = threading.Lock()
_forked = False


@functools.cache
def _openmp() -> Any:
    """What runs a function on the threads of torch's OpenMP pool; None where that is missing, or lost in a fork."""
    if _forked:
        return None
    try:  # a name is looked up in the library and in those it was linked with, so this is the very one torch calls
        parallel = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so")).GOMP_parallel
    except (OSError, AttributeError):  # macOS and Windows have other libraries
        return None
    parallel.argtypes, parallel.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint], None
    return parallel


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(thread_name_prefix="wagmf")


def _after_fork() -> None:
    """The child has neither the threads of OpenMP nor those of our own pool, but it believes it has."""
    global _forked
    _forked = True
    _openmp.cache_clear()
    _pool.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
