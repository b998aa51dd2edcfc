"""The fused path: the rule's lines as one Triton kernel, which takes a whole batch of tensors in one launch.

Two tables tell the kernel where to work: one row per tensor with its addresses, and one row per program with the tensor
and the block of it that the program steps. They outlive the step; what has moved since is noticed at every call.
Triton is imported at the first step: CPU builds of torch come without it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
from collections import deque
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.nn import Parameter

from wagmf.feasible import Box, Everything, NonNegative
from wagmf.torch.batch import Batch, Look, Unfit
from wagmf.weights import Latest

__all__ = ["missing", "step_triton", "unfit"]

tl: Any = None  # triton.language, from the first step on
constexpr: TypeAlias = Any  # the names by which Triton knows an argument that is constant when the kernel is compiled,
fp64: TypeAlias = Any  # and a number in double precision

_NUMBERS = {
    torch.float64: "float64",
    torch.float32: "float32",
    torch.bfloat16: "bfloat16",
    torch.float16: "float16",
}
_SETS = (Box, NonNegative, Everything, type(None))  # those that are projected onto number by number
_STATE = (torch.float32, torch.bfloat16, torch.float64)
_X, _G, _M, _V, _PEAK, _NUMEL, _COLUMNS = range(7)  # what a row of the table of tensors holds, and how much
_BLOCK, _WARPS = 512, 2  # elements and warps of a program, which are fastest on an H200 for all dtypes
_OLDEST = (3, 6)  # Triton with which the kernel has been run on a GPU; it comes with torch 2.10
_SLOTS = 64  # how many tables may be on their way to the device at once
_torch: Any = torch._C


def unfit(batch: Batch) -> str | None:
    """Why this path cannot take the batch, or None.

    >>> from wagmf import Rule
    >>> unfit(Batch(Rule(), 1, 0.0, [], [], [], [], [], differentiable=True))
    'differentiable=True'
    """
    return _unwilling(batch) or _unlike(batch)


def step_triton(batch: Batch, cache: dict[str, Any]) -> float | Tensor:
    """Take the step for every parameter in place, and return the new window u; restates :func:`wagmf.rule.update`.

    ``cache`` is kept by the caller, one for each set of parameters that step together, empty at first. If the batch has
    a ``found_inf`` that is not 0, nothing is written: the u that is returned then is for the caller to forget. Raises
    :class:`~wagmf.torch.batch.Unfit`, with nothing changed, where :func:`unfit` has an answer.

    >>> from wagmf import Rule
    >>> step_triton(Batch(Rule(), 1, 0.0, [], [], [], [], [], differentiable=True), {})
    Traceback (most recent call last):
    wagmf.torch.batch.Unfit: differentiable=True
    """
    reason = _unwilling(batch)
    if reason is not None:
        raise Unfit(reason)
    tables = _tables(batch, cache)
    t, u = (_clock(x, len(batch.params)) for x in (batch.t, batch.u))
    if batch.rule.adapts:
        u = 1 + batch.rule.weights.discount(t) * u
    if tables.programs:
        with _current(tables.device):
            _launch(batch, tables, tables.on_device(cache), t, u)
        increment_version(batch.params)  # the kernel writes behind autograd's back
    return u


def _launch(batch: Batch, tables: _Tables, table: Tensor, t: Any, u: Any) -> None:
    rule, device = batch.rule, tables.device
    lr = batch.lr
    if isinstance(lr, Tensor) and not lr.ndim and lr.device.type == "cpu" != device.type:
        lr = lr.item()  # for which nobody need wait
    beta1, (a, b) = rule.beta1_at(t), rule.lookahead_at(t)
    scalars = (beta1, 1 - beta1, u, 1 / u if rule.adapts else 0.0, a, b, rule.rate_at(t))
    clock, on_device = _clocks(scalars) if isinstance(t, Tensor) else (None, 0)
    tensors = (
        clock,
        _on(device, lr) if isinstance(lr, Tensor) else None,
        _on(device, batch.grad_scale),
        _on(device, batch.found_inf),
        torch.randint(2**32, (2,), device=device) if batch.stochastic_rounding and tables.rounds else None,
    )
    numbers = (
        *([0.0 if isinstance(each, Tensor) else each for each in scalars] if on_device else scalars),
        1.0 if isinstance(lr, Tensor) else lr,
        batch.weight_decay,
        batch.eps,
        *_sides(batch.feasible),
    )
    tables.launch(table, tensors, numbers, (on_device, *_constants(batch, tables)))


def _clock(x: Any, count: int) -> Any:
    """t or u: a number, or a tensor of one for every parameter."""
    return x.expand(count) if isinstance(x, Tensor) and not x.ndim else x


def _clocks(scalars: tuple[Any, ...]) -> tuple[Tensor, int]:
    """The scalars that the device computes, a row for each parameter, and a bit for each to say which they are."""
    bits = sum(isinstance(each, Tensor) << place for place, each in enumerate(scalars))
    some = next(each for each in scalars if isinstance(each, Tensor))
    return torch.stack([each if isinstance(each, Tensor) else some for each in scalars], dim=1), bits


def _constants(batch: Batch, tables: _Tables) -> tuple[Any, ...]:
    """What is constant when the kernel is compiled."""
    terms = (batch.rule, batch.eps, bool(batch.weight_decay), batch.decoupled, batch.maximize, batch.feasible)
    if tables.terms != terms:
        rule, decay = batch.rule, ("decoupled" if batch.decoupled else "L2") if batch.weight_decay else ""
        kind = (rule.has_momentum, rule.nesterov, rule.adapts, isinstance(rule.weights, Latest), rule.monotone)
        box, floor = isinstance(batch.feasible, Box | NonNegative), bool(np.float32(batch.eps) > 0)  # as it is rounded
        tables.terms, tables.constants = terms, (*_powers(rule.p1, rule.p2), *kind, floor, decay, batch.maximize, box)
    return tables.constants


def _powers(p1: float, p2: float) -> tuple[float, int, float]:
    """How to raise to p1 and take the root of order p2, as rule.power and rule.root do: p1, square roots, a power."""
    halvings, rest = 0, p2
    while 2 <= rest < np.inf and rest % 2 == 0:
        halvings, rest = halvings + 1, rest / 2
    return int(p1) if p1 == int(p1) else p1, halvings, 1 / rest


def _sides(feasible: Any) -> tuple[float, float]:
    return (feasible.lower, feasible.upper) if isinstance(feasible, Box) else (0.0, np.inf)


def _on(device: torch.device, x: Tensor | None) -> Tensor | None:
    return x if x is None else x.to(device, non_blocking=True)


class _Tables:
    """Where the tensors of a batch lie, and which program steps which block of them, as the kernel reads it.

    With one lr per replica a row of the table of tensors is one replica of one tensor. No tensor of the batch is held
    on to: whoever moves parameters or state off the device gets the memory.
    """

    def __init__(self, batch: Batch) -> None:
        kinds = _kinds(batch)
        self.device = batch.params[0].device
        self.stream = _stream(self.device)
        self.look = Look(batch)
        self.columns = [place for place, kind in enumerate(kinds.values()) if kind and place != _G]
        dtypes = [kind[0].dtype for kind in kinds.values() if kind]
        self.rounds = torch.bfloat16 in dtypes
        self.types = _types(kinds)
        self.compiled: dict[Any, Any] = {}
        self.terms: tuple[Any, ...] = ()
        self.constants: tuple[Any, ...] = ()
        self.replicas = batch.replicas
        numel = np.array([x.numel() // self.replicas for x in batch.params], dtype=np.int64)
        self.numel = np.repeat(numel, self.replicas)
        # Where a replica begins, in elements after the tensor does, and how long those are in each column.
        self.begin = (numel[:, None] * np.arange(self.replicas)).ravel()
        self.sizes = np.array([kind[0].dtype.itemsize if kind else 0 for kind in kinds.values()])
        chunks = _chunks(self.numel, _BLOCK)
        self.programs = len(chunks)
        self.chunks = _pinned(chunks, self.device).to(self.device, non_blocking=True)
        self.rows = np.zeros((len(self.numel), _COLUMNS), dtype=np.int64)
        self.rows[:, _NUMEL] = self.numel
        self.table = torch.zeros(self.rows.shape, dtype=torch.int64, device=self.device)
        self.addresses: list[int] = []
        self.addresses_of_grads: list[int] = []
        self.odd = [0, 0]  # what of the addresses, without the gradients' and of those, is no multiple of 16
        self.aligned = self.sent = False
        self.ring = _Ring()
        self.spare: Tensor | None = None

    def locate(self, batch: Batch) -> None:
        """Enter where the tensors are now."""
        if self.addresses is not self.look.addresses:
            self.addresses = self.look.addresses
            self._put(self.columns, self.addresses)
        addresses = list(map(Tensor.data_ptr, batch.grads))
        if addresses != self.addresses_of_grads:
            self.addresses_of_grads = addresses
            self._put([_G], addresses)

    def on_device(self, cache: dict[str, Any]) -> Tensor:
        """The table of tensors, sent to the device only where it has changed."""
        if _is_capturing(self.device):
            return self._freeze(cache.setdefault("captured", []))
        if not self.sent:
            self.ring.send(self.rows, self.table)
            self.sent = True
        if self.spare is None:
            self.spare = _pinned(np.zeros_like(self.rows), self.device)
        if _stream(self.device) != self.stream:
            for tensor in (self.table, self.chunks):  # not to be freed to the stream of their making while in use here
                tensor.record_stream(torch.cuda.current_stream(self.device))
        return self.table

    def _put(self, columns: list[int], addresses: list[int]) -> None:
        begin = np.array(addresses, dtype=np.int64).reshape(len(columns), -1)
        if self.replicas > 1:
            begin = np.repeat(begin, self.replicas, axis=1) + self.begin * self.sizes[columns, None]
        self.rows[:, columns] = begin.T
        self.odd[columns == [_G]] = int(np.bitwise_or.reduce(begin, axis=None)) & 15
        self.aligned = not any(self.odd)
        self.sent = False

    def _freeze(self, captured: list[tuple[Tensor, Tensor]]) -> Tensor:
        """The table for a CUDA graph, which copies it to the device at every replay: outside it there are others.

        What it copies from is the graph's for good. Torch before 2.10 has no pinned memory to give during a capture,
        so that of one table is kept in reserve.
        """
        host = next((host for host, _ in captured if np.array_equal(host.numpy(), self.rows)), None)
        if host is None:
            host, self.spare = _pinned(self.rows, self.device) if self.spare is None else self.spare, None
            host.copy_(torch.from_numpy(self.rows))
        captured.append((host, self.chunks))
        return host.to(self.device, non_blocking=True)

    def launch(
        self,
        table: Tensor,
        tensors: tuple[Tensor | None, ...],
        numbers: tuple[float, ...],
        constants: tuple[Any, ...],
    ) -> None:
        """Launch the kernel; from the second time on the compiled one, without Triton's looking up it or addresses."""
        key = (*constants, self.aligned, *[None if x is None else x.dtype for x in tensors])
        known = self.compiled.get(key)
        if known is not None:
            launch, constants, chunks = known
            launch(table.data_ptr(), chunks, *tensors, *numbers, *constants, stream=_stream(self.device))
            return
        constants = (*constants, self.aligned, self.replicas, *self.types, _BLOCK)
        start = _kernel()[(self.programs,)]
        compiled = start(table, self.chunks, *tensors, *numbers, *constants, num_warps=_WARPS, enable_fp_fusion=True)
        if compiled is not None:  # the interpreter compiles nothing
            self.compiled[key] = compiled[(self.programs, 1, 1)], constants, self.chunks.data_ptr()


class _Ring:
    """Pinned memory by way of which tables are sent; it is not written again before the device has read it."""

    def __init__(self) -> None:
        self.slots: deque[tuple[Tensor, Any]] = deque()

    def send(self, rows: np.ndarray, table: Tensor) -> None:
        if table.device.type != "cuda":
            table.copy_(torch.from_numpy(rows))
            return
        if self.slots and self.slots[0][1].query():
            host, read = self.slots.popleft()
        elif len(self.slots) == _SLOTS:
            host, read = self.slots.popleft()
            read.synchronize()
        else:
            host, read = torch.empty(rows.shape, dtype=torch.int64, pin_memory=True), torch.cuda.Event()
        host.numpy()[...] = rows
        table.copy_(host, non_blocking=True)
        read.record()
        self.slots.append((host, read))


def _pinned(rows: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(rows).pin_memory() if device.type == "cuda" else torch.from_numpy(rows)


def _tables(batch: Batch, cache: dict[str, Any]) -> _Tables:
    """The tables of the batch, from the cache where they still hold."""
    tables: _Tables | None = cache.get("tables")
    if tables is None or not tables.look.same(batch):
        reason = _unlike(batch)
        if reason is not None:
            raise Unfit(reason)
        if _is_capturing(batch.params[0].device):
            raise RuntimeError("take a step before you capture one in a CUDA graph, which must find its tables made")
        tables = cache["tables"] = _Tables(batch)
    tables.locate(batch)
    return tables


def _chunks(numel: np.ndarray, block: int) -> np.ndarray:
    """A row per program: which row of the table of tensors it works on, and which block of that.

    >>> _chunks(np.array([3, 0, 9]), 4).tolist()
    [[0, 0], [2, 0], [2, 1], [2, 2]]
    """
    count = -(-numel // block)
    which = np.repeat(np.arange(len(count)), count)
    first = np.repeat(np.cumsum(count) - count, count)
    return np.stack([which, np.arange(len(which)) - first], axis=1).astype(np.int32)


def _kinds(batch: Batch) -> dict[str, list[Tensor]]:
    return {"params": batch.params, "grads": batch.grads, "m": batch.m, "v": batch.v, "peak": batch.peak}


def _types(kinds: dict[str, list[Tensor]]) -> list[Any]:
    """The dtypes as Triton has them, and that of the arithmetic."""
    _kernel()
    exact = torch.promote_types(kinds["params"][0].dtype, torch.float32)
    return [getattr(tl, _NUMBERS[dtype]) for dtype in (*(k[0].dtype if k else exact for k in kinds.values()), exact)]


def _stream(device: torch.device) -> int:
    """The current stream's number; asked for as Triton does, since the public way makes an object of it."""
    return _torch._cuda_getCurrentRawStream(device.index) if device.type == "cuda" else 0


def _current(device: torch.device) -> Any:
    """Where Triton launches."""
    here = device.type != "cuda" or device.index == _torch._cuda_getDevice()
    return contextlib.nullcontext() if here else torch.cuda.device(device)


def _is_capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _unwilling(batch: Batch) -> str | None:
    """Why this path cannot do what the batch asks, or None."""
    if batch.differentiable:
        return "differentiable=True"
    if not isinstance(batch.feasible, _SETS):
        return f"feasible={batch.feasible}"
    if isinstance(batch.feasible, Box) and not isinstance(batch.feasible.lower, float):
        return "a Box whose sides are arrays"
    if torch.compiler.is_compiling():
        return "torch.compile, which traces the other paths"
    return missing()


def _unlike(batch: Batch) -> str | None:
    """Why the tensors cannot be stepped by going through their memory side by side, or None."""
    rule, kinds = batch.rule, _kinds(batch)
    if not batch.params:
        return "no parameters"
    needed = {"grads": True, "m": rule.has_momentum, "v": rule.adapts, "peak": rule.monotone}
    for name, need in needed.items():
        if len(kinds[name]) != len(batch.params) and (need or kinds[name]):
            return f"{len(batch.params)} params with {len(kinds[name])} {name}"
    device = batch.params[0].device
    if device.type != "cuda" and not _interpreted():
        return f"tensors on {device}"
    for name, kind in kinds.items():
        if kind and kind[0].dtype not in (_NUMBERS if name in ("params", "grads") else _STATE):
            return f"{name} of dtype {kind[0].dtype}"
        for x, like in zip(kind, batch.params, strict=bool(kind)):
            if type(x) not in (Tensor, Parameter) or x.layout != torch.strided or x.is_neg():
                return f"{name} that are not plain dense tensors"
            if x.device != device:
                return "tensors of several devices"
            if x.dtype != kind[0].dtype:
                return f"{name} of several dtypes"
            if x.shape != like.shape or _order(x) != _order(like):
                return f"{name} that lie in memory in another order than their parameters"
    if not all(map(torch.ops.aten.is_non_overlapping_and_dense, batch.params)):
        return "a parameter with gaps or overlaps in memory"
    if batch.replicas > 1 and not all(_is_stacked(x, batch.replicas) for x in batch.params):
        return "a lr with one entry per replica, where the replicas do not lie one after the other"
    return None


def _order(x: Tensor) -> list[int]:
    return [stride for stride, size in zip(x.stride(), x.shape, strict=True) if size != 1] if x.numel() else []


def _is_stacked(x: Tensor, replicas: int) -> bool:
    """Whether the leading axis counts the replicas, and is the outermost in memory."""
    return x.ndim > 0 and x.shape[0] == replicas and (x.numel() == 0 or x.stride(0) * replicas == x.numel())


def _interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"


@functools.cache
def missing() -> str | None:
    """Why nothing can be compiled, or None; imports Triton when it is first asked for.

    >>> missing() is None or "Triton" in missing()
    True
    """
    try:
        version = importlib.import_module("triton").__version__
    except ImportError:
        return "any batch: Triton is not installed"
    if tuple(map(int, version.split(".")[:2])) < _OLDEST:
        return f"any batch: Triton {version} is older than {_OLDEST[0]}.{_OLDEST[1]}, the oldest that was tried"
    return None


@functools.cache
def _kernel() -> Any:
    """The kernel, compiled for each combination of its constants when a batch first needs it."""
    global tl
    triton, tl = importlib.import_module("triton"), importlib.import_module("triton.language")
    globals().update(constexpr=tl.constexpr, fp64=tl.float64)
    for helper in (_scalar, _address, _load, _power, _general_power, _root, _quotient, _noise, _store):
        globals()[helper.__name__] = triton.jit(helper)
    # An address of these may be divisible by 16 today and not tomorrow.
    return triton.jit(_step, do_not_specialize=["clock", "lr", "scale", "found", "seed"])


# From here on the text is compiled by Triton for the device.


def _step(
    table, chunks, clock, lr, scale, found, seed,
    beta1: fp64, new: fp64, u: fp64, inverse: fp64, a: fp64, b: fp64, rate: fp64,
    alpha: fp64, weight_decay: fp64, eps: fp64, lower: fp64, upper: fp64,
    CLOCK: constexpr, P1: constexpr, HALVINGS: constexpr, REST: constexpr, MOMENTUM: constexpr, NESTEROV: constexpr,
    ADAPTS: constexpr, LATEST: constexpr, MONOTONE: constexpr, FLOOR: constexpr, DECAY: constexpr,
    MAXIMIZE: constexpr, BOX: constexpr, ALIGNED: constexpr, REPLICAS: constexpr, X_TYPE: constexpr, G_TYPE: constexpr,
    M_TYPE: constexpr, V_TYPE: constexpr, PEAK_TYPE: constexpr, EXACT_TYPE: constexpr, BLOCK: constexpr,
):  # fmt: skip
    """Step one block of one tensor. What there is not of clock, lr, scale, found and seed is None."""
    program = tl.program_id(0)
    piece = tl.load(chunks + 2 * program).to(tl.int64)
    start = tl.load(chunks + 2 * program + 1).to(tl.int64) * BLOCK
    row = table + 6 * piece
    n = tl.load(row + 5)
    if found is not None:
        n = tl.where(tl.load(found) != 0, 0, n)

    clocks = clock
    if clock is not None:
        clocks = clock + 7 * (piece // REPLICAS)
    beta1 = _scalar(beta1, clocks, 0, CLOCK, EXACT_TYPE)
    new = _scalar(new, clocks, 1, CLOCK, EXACT_TYPE)
    u = _scalar(u, clocks, 2, CLOCK, EXACT_TYPE)
    inverse = _scalar(inverse, clocks, 3, CLOCK, EXACT_TYPE)
    a = _scalar(a, clocks, 4, CLOCK, EXACT_TYPE)
    b = _scalar(b, clocks, 5, CLOCK, EXACT_TYPE)
    alpha = _scalar(rate, clocks, 6, CLOCK, EXACT_TYPE) * tl.full((), alpha, EXACT_TYPE)
    if lr is not None:
        alpha = alpha * tl.load(lr + piece % REPLICAS).to(EXACT_TYPE)
    weight_decay = tl.full((), weight_decay, EXACT_TYPE)
    eps = tl.full((), eps, EXACT_TYPE)

    # The same lines twice: a mask would keep loads and stores from being wide, so only the end of a tensor has one.
    for WHOLE in tl.static_range(2):
        place = tl.arange(0, BLOCK)
        if WHOLE:
            inside = None
            here = start + BLOCK <= n
        else:
            inside = start + place < n
            here = start + BLOCK > n
        if here:
            # Everything is read before anything is written: for all the compiler knows, m and v may overlap.
            x_at = _address(row, start, X_TYPE, ALIGNED) + place
            g_at = _address(row + 1, start, G_TYPE, ALIGNED) + place
            m_at = _address(row + 2, start, M_TYPE, ALIGNED) + place
            v_at = _address(row + 3, start, V_TYPE, ALIGNED) + place
            peak_at = _address(row + 4, start, PEAK_TYPE, ALIGNED) + place
            x = _load(x_at, inside, EXACT_TYPE)
            g = _load(g_at, inside, EXACT_TYPE)
            m = _load(m_at, inside, EXACT_TYPE) if MOMENTUM else g
            v = _load(v_at, inside, EXACT_TYPE) if ADAPTS and not LATEST else g
            peak = _load(peak_at, inside, EXACT_TYPE) if MONOTONE else g

            if scale is not None:
                g = g * (1.0 / tl.load(scale).to(EXACT_TYPE))
            if MAXIMIZE:
                g = -g
            if DECAY == "L2":
                g = g + weight_decay * x
            if DECAY == "decoupled":
                x = x - alpha * weight_decay * x  # 1 - α·λ would lose the digits of a small λ
            m = beta1 * m + new * g if MOMENTUM else g
            direction = a * m + b * g if NESTEROV else a * m
            step = alpha * direction
            if ADAPTS:
                now = _power(tl.abs(g), P1)
                v = now if LATEST else v + (now - v) * inverse
                mean = v
                if MONOTONE:
                    peak = tl.maximum(peak, u * v, propagate_nan=tl.PropagateNan.ALL)
                    mean = peak * inverse
                V = _root(mean, HALVINGS, REST, X_TYPE) + eps
                if not FLOOR:
                    V = tl.where(V == 0, 1.0, V)  # eps = 0 and no gradient yet: no step, not NaN
                step = _quotient(step, V, X_TYPE)
            x = x - step
            if BOX:
                x = tl.where(x < lower, tl.full((), lower, EXACT_TYPE), x)  # a maximum would lose NaN
                x = tl.where(x > upper, tl.full((), upper, EXACT_TYPE), x)

            noise = (None, None)
            if seed is not None:
                noise = _noise(seed, program, place, x)
            _store(x_at, x, inside, noise[0], 0, X_TYPE)
            if MOMENTUM:
                _store(m_at, m, inside, noise[0], 16, M_TYPE)
            if ADAPTS:
                _store(v_at, v, inside, noise[1], 0, V_TYPE)
            if MONOTONE:
                _store(peak_at, peak, inside, noise[1], 16, PEAK_TYPE)


def _scalar(value, clock, PLACE, CLOCK, TYPE):
    """The number given, or in its place the one that the device has computed."""
    if (CLOCK >> PLACE) & 1:
        return tl.load(clock + PLACE).to(TYPE)
    return tl.full((), value, TYPE)


def _address(cell, start, TYPE, ALIGNED):
    address = tl.load(cell).to(tl.pointer_type(TYPE))
    if ALIGNED:
        address = tl.multiple_of(address, 16)
    return address + start


def _load(address, inside, TYPE):
    return tl.load(address, mask=inside).to(TYPE)


def _power(x, P):
    """x^P, the products in the order of rule.power."""
    if int(P) != P or P > 8:
        return _general_power(x, P)
    y = x
    if P >= 2:
        y = y * y
    if P >= 4:
        y = y * y
    if P >= 8:
        y = y * y
    if P == 6 or P == 7:
        y = y * (x * x)
    if P == 3 or P == 5 or P == 7:
        y = y * x
    return y


def _general_power(x, P):
    return tl.where(x > 0, tl.exp2(P * tl.log2(tl.where(x > 0, x, 1.0))), x)  # 0 and NaN stay


def _root(x, HALVINGS, REST, TYPE):
    for _ in tl.static_range(HALVINGS):
        x = tl.sqrt_rn(x) if tl.float32 == TYPE else tl.sqrt(x)
    return _power(x, REST)


def _quotient(x, y, TYPE):
    """Rounded as IEEE says; the last bit of a float32 is lost anyway where the result is kept in half precision."""
    if tl.float32 == TYPE:
        return tl.div_rn(x, y)
    if tl.float64 == TYPE:
        return x / y
    root = tl.rsqrt(y)
    return x * root * root


def _noise(seed, program, place, x):
    """Two words of random bits for every number: Philox-2x32 of its place and program, which Triton has only as 4x32.

    There are none for x where it is not a number: they could carry its bits over into one. Nobody will ask there what
    m and v were; elsewhere these are numbers, too.
    """
    first = place.to(tl.uint32) ^ tl.load(seed).to(tl.uint32)
    second = (place * 0 + program).to(tl.uint32)
    key = tl.load(seed + 1).to(tl.uint32)
    for _ in tl.static_range(7):  # Salmon et al., 2011: the fewest rounds that pass every test
        product = first.to(tl.uint64) * 0xD256D193
        first = (product >> 32).to(tl.uint32) ^ key ^ second
        second = product.to(tl.uint32)
        key += 0x9E3779B9
    return tl.where(x == x, first, 0), second


def _store(address, value, inside, noise, SHIFT, TYPE):
    """Write, rounding to bfloat16 up or down at random in proportion where there is noise: 16 bits of it."""
    if noise is not None and tl.bfloat16 == TYPE:
        bits = value.to(tl.float32).to(tl.int32, bitcast=True) + ((noise >> SHIFT) & 0xFFFF).to(tl.int32)
        value = (bits >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)
    tl.store(address, value.to(TYPE), mask=inside)
