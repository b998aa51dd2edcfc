"""The fused kernel takes the plain path's steps; here on the CPU, in Triton's interpreter.

Triton must be told to interpret before it is imported, and then does so for good. So the checks, whose names begin with
``check``, run in a process of their own, which the first test below starts.
"""

import functools
import importlib.util
import os
import subprocess
import sys
import types
import weakref
from pathlib import Path

import forks
import interpreter
import numpy as np
import pytest
import torch
from tables import RULES, gradients
from torch.testing import assert_close

import wagmf.torch.triton
from wagmf.feasible import Ball, Box, Everything, NonNegative
from wagmf.online import OnlineLearner
from wagmf.rule import Rule
from wagmf.torch import WAGMF, paths, teams
from wagmf.torch.batch import Batch, Unfit
from wagmf.torch.plain import step_plain
from wagmf.weights import Custom, Equal

SOURCE = Path(wagmf.torch.triton.__file__)
F64, F32, BF16, F16 = torch.float64, torch.float32, torch.bfloat16, torch.float16
BLOCK = 64
SHAPES = [(3,), (), (0,), (7, 5), (2 * BLOCK,), (2 * BLOCK + 5,), (1, 1)]
FEW = [(7, 5), (BLOCK + 5,)]
ALL = RULES["wada, all"]


# make test installs Triton on Linux; there is none for macOS and Windows.
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
needs_compiler = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="TRITON_INTERPRET is set")


@needs_triton
@pytest.mark.parametrize("part", ["not planted", "planted"])
def test_the_kernel_in_the_interpreter(part):
    """In two processes, which may run at once; planted errors are in copies, of which no coverage is measured."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-o",
               "python_functions=check_*", __file__, "-k", part]  # fmt: skip
    environment = {**(forks.unmeasured() if part == "planted" else os.environ), "TRITON_INTERPRET": "1"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stdout[-5000:] + result.stderr[-2000:]
    assert " passed" in result.stdout


@needs_triton
@needs_compiler
def test_without_the_interpreter_a_cpu_is_refused():
    assert wagmf.torch.triton.unfit(start(ALL).batch(1, ALL.start)) == "tensors on cpu"


def source_for(rule, dtype=F32, state=None, found=(), on_device=0, **options):
    """The kernel as Triton is to compile it for such a batch."""
    from triton.compiler import ASTSource

    kernel = wagmf.torch.triton
    batch = start(rule, dtype=dtype, state=state, shapes=[(4,)], **options).batch(1, rule.start)
    step = kernel._kernel()
    tables = types.SimpleNamespace(terms=(), constants=())
    constants = (on_device, *kernel._constants(batch, tables), True, 1, *kernel._types(kernel._kinds(batch)), 512)
    values = dict(zip([name for name in step.arg_names if name.isupper()], constants, strict=True))
    pointers = {"table": "*i64", "chunks": "*i32", "clock": "*fp64", "lr": "*fp32", "scale": "*fp32", "found": "*fp32",
                "seed": "*i64"}  # fmt: skip
    values |= dict.fromkeys(set(pointers) - {"table", "chunks", *found})
    kinds = {name: "constexpr" if name in values else pointers.get(name, "fp64") for name in step.arg_names}
    return ASTSource(fn=step, signature=kinds, constexprs=values)


COMPILED = {
    "wada": {"rule": Rule()},
    "everything": {"rule": ALL, "feasible": Box(-1, 1), "weight_decay": 0.1, "decoupled": True, "maximize": True,
                   "on_device": 0b1111111, "found": ("clock", "lr", "scale", "found")},
    "no eps, float64, L2": {"rule": RULES["padam"], "dtype": F64, "eps": 0.0, "weight_decay": 0.1},
    "half precision": {"rule": RULES["amsgrad"], "dtype": F16},
    "stochastic rounding": {"rule": RULES["adam"], "dtype": BF16, "state": BF16, "found": ("seed",)},
    "no state": {"rule": RULES["ogd"]},
}  # fmt: skip


@needs_triton
@needs_compiler
@pytest.mark.parametrize("name", COMPILED)
def test_the_kernel_compiles_for_a_gpu(name, tmp_path, monkeypatch):
    """The interpreter runs much that the compiler refuses; for that, no GPU is needed."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import compile

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    options = {"num_warps": wagmf.torch.triton._WARPS, "enable_fp_fusion": True}
    compiled = compile(source_for(**COMPILED[name]), target=GPUTarget("cuda", 90, 32), options=options)
    assert ".visible .entry _step" in compiled.asm["ptx"]


def test_what_has_not_been_tried_is_not_relied_on(monkeypatch):
    """Another Triton than those it was run with launches kernels otherwise; none at all launches none."""
    for found, said in (
        ({"__version__": "3.2.0"}, "Triton 3.2.0 is older than 3.6"),
        (None, "Triton is not installed"),
    ):
        module = types.SimpleNamespace(**found) if found else None
        monkeypatch.setitem(sys.modules, "triton", module)
        wagmf.torch.triton.missing.cache_clear()
        assert said in wagmf.torch.triton.unfit(start(ALL).batch(1, ALL.start))
    wagmf.torch.triton.missing.cache_clear()


def test_triton_is_imported_at_the_first_step():
    program = "import sys, wagmf.torch, wagmf.torch.triton; sys.exit('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def load(path=SOURCE, name="wagmf.torch.triton"):
    """The path, or a changed copy of it, with blocks so small that small tensors have several."""
    interpreter.mend()
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    module._BLOCK = BLOCK
    return module


@pytest.fixture(scope="module")
def kernel():
    assert os.environ.get("TRITON_INTERPRET") == "1"
    return load()


class Run:
    """Parameters, their state, and gradients to come; all drawn from the seed."""

    def __init__(self, rule, params, grads, state):
        self.rule, self.params, self.grads, self.options = rule, params, grads, {}
        kept = {"m": rule.beta1 > 0, "v": rule.adapts, "peak": rule.monotone}
        self.state = {n: [torch.zeros_like(x, dtype=state) for x in params] if k else [] for n, k in kept.items()}

    def batch(self, t, u, rule=None, **options):
        grads = [g.clone() for g in self.grads[int(t) - 1]]  # anew at every step, as zero_grad has it
        return Batch(rule or self.rule, t, u, self.params, grads, **self.state, **self.options, **options)

    @property
    def tensors(self):
        return [*self.params, *self.state["m"], *self.state["v"], *self.state["peak"]]


def start(rule, dtype=F64, grad=None, state=None, shapes=SHAPES, steps=3, problem=None, arrange=lambda x: x, **options):
    random = torch.Generator().manual_seed(0)
    grad, state = grad or dtype, state or torch.promote_types(dtype, F32)

    def draw(dtype):
        return [arrange(torch.randn(shape, generator=random).to(dtype)) for shape in shapes]

    run = Run(rule, draw(dtype), [draw(grad) for _ in range(steps)], state)
    if problem is not None:
        values = iter(gradients(problem, steps, sum(x.numel() for x in run.params)))
        for grads in run.grads:
            for g, part in zip(grads, np.split(next(values), np.cumsum([g.numel() for g in grads])[:-1]), strict=True):
                g.copy_(torch.from_numpy(part).reshape(g.shape))
    run.options = {"lr": 0.01, **options}
    return run


def walk(run, step, clock=float, steps=3):
    """Take the steps; ``clock`` makes t and u what they are to be."""
    u = clock(run.rule.start)
    for t in range(1, steps + 1):
        u = clock(step(run.batch(clock(t) if clock is not float else t, u)))
    return u


def agree(kernel, rule, rtol=1e-12, atol=1e-12, clock=float, **settings):
    """Both paths from the same start to the same end."""
    ours, plain, cache = start(rule, **settings), start(rule, **settings), {}
    u = walk(ours, functools.partial(kernel.step_triton, cache=cache), clock)
    assert float(u) == pytest.approx(float(walk(plain, step_plain)), rel=1e-15)
    for mine, right in zip(ours.tensors, plain.tensors, strict=True):
        assert_close(mine, right, rtol=rtol, atol=atol, equal_nan=True)
    return ours


@pytest.mark.parametrize("name", RULES)
def check_every_rule_in_float64(kernel, name):
    agree(kernel, RULES[name])


@pytest.mark.parametrize("name", RULES)
def check_every_rule_in_float32(kernel, name):
    agree(kernel, RULES[name], dtype=F32, shapes=FEW, rtol=2e-5, atol=2e-7)


@pytest.mark.parametrize("p", [1, 2, 3, 4, 5, 6, 7, 8, 9, 0.5, 1.5])
def check_powers_and_roots(kernel, p):
    agree(kernel, Rule(p1=p, p2=p), shapes=[(9,)])
    agree(kernel, Rule(Custom(lambda t: t * (t + 3)), p1=p, p2=2 * p), shapes=[(9,)])


OPTIONS = {
    "L2": {"weight_decay": 0.1},
    "decoupled": {"weight_decay": 0.1, "decoupled": True},
    "maximize": {"maximize": True, "weight_decay": 0.1},
    "box": {"feasible": Box(-0.5, 0.25)},
    "half-open box": {"feasible": Box(-np.inf, 0.25)},
    "non-negative": {"feasible": NonNegative()},
    "everything": {"feasible": Everything()},
    "eps": {"eps": 0.1},
    "no eps": {"eps": 0.0},
    "grad_scale": {"grad_scale": torch.tensor(1024.0)},
    "lr tensor": {"lr": torch.tensor(0.01, dtype=F64)},
    "lr tensor, decoupled": {"lr": torch.tensor(0.01, dtype=F64), "weight_decay": 0.1, "decoupled": True},
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("rule", ["wada, all", "ogd"])
def check_every_option(kernel, name, rule):
    agree(kernel, RULES[rule], shapes=FEW, **OPTIONS[name])


def check_one_lr_per_replica(kernel):
    lr = torch.tensor([0.1, 0.01, 0.0], dtype=F64)
    shapes = [(3,), (3, 0), (3, 2, 5), (3, BLOCK + 1)]
    agree(kernel, ALL, shapes=shapes, lr=lr, weight_decay=0.1, decoupled=True)
    agree(kernel, ALL, shapes=[(3, 2, 4, 5)], lr=lr, arrange=lambda x: x.to(memory_format=torch.channels_last))


@pytest.mark.parametrize("problem", ["tiny", "huge", "mostly zero", "zero"])
@pytest.mark.parametrize("eps", [1e-7, 0.0])
def check_every_kind_of_gradient(kernel, problem, eps):
    for dtype, tolerance in ((F64, 1e-12), (F32, 2e-5)):
        agree(kernel, Rule(), dtype=dtype, shapes=SHAPES[:5], problem=problem, eps=eps, rtol=tolerance)


@pytest.mark.parametrize("name", RULES)
def check_time_on_the_device(kernel, name):
    """Nothing of what the device computes is asked for by the host."""

    def clock(value):
        return torch.as_tensor(value, dtype=F64)

    with pytest.MonkeyPatch.context() as patch:
        for asking in ("item", "__bool__"):
            patch.setattr(torch.Tensor, asking, lambda x: pytest.fail("the host waits for the device"))
        ours, cache = start(RULES[name], shapes=FEW), {}
        u = walk(ours, functools.partial(kernel.step_triton, cache=cache), clock)
    plain = start(RULES[name], shapes=FEW)
    assert u.tolist() == pytest.approx([walk(plain, step_plain)] * len(FEW), rel=1e-15)
    for mine, right in zip(ours.tensors, plain.tensors, strict=True):
        assert_close(mine, right, rtol=1e-12, atol=1e-12)


ORDERS = {
    "transposed": lambda x: x.t().clone(memory_format=torch.preserve_format) if x.ndim == 2 else x,
    "channels last": lambda x: x.to(memory_format=torch.channels_last) if x.ndim == 4 else x,
    "permuted": lambda x: x.permute(2, 0, 3, 1).clone(memory_format=torch.preserve_format) if x.ndim == 4 else x,
    "a step into its memory": lambda x: torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape),
}


@pytest.mark.parametrize("name", ORDERS)
def check_any_order_in_memory(kernel, name):
    ours = agree(kernel, ALL, shapes=[(7, 5), (2, 3, 4, 5)], arrange=ORDERS[name])
    assert name == "a step into its memory" or not all(x.is_contiguous() for x in ours.params)


LOW = {
    "bf16": (BF16, BF16, F32),
    "fp16": (F16, F16, F32),
    "bf16 gradients": (F32, BF16, F32),
    "bf16 state": (F32, F32, BF16),
    "all bf16": (BF16, BF16, BF16),
}


@pytest.mark.parametrize("name", LOW)
@pytest.mark.parametrize("rule", ["adam", "wada, all"])
def check_low_precision(kernel, name, rule):
    """The arithmetic is in float32, so the results differ from the plain path's by one rounding, and rarely."""
    dtype, grad, state = LOW[name]
    one = 2.0**-10 if F16 in LOW[name] else 2.0**-7 if BF16 in (dtype, state) else 2e-5
    ours = agree(kernel, RULES[rule], dtype=dtype, grad=grad, state=state, shapes=[(300,)], rtol=one, atol=1e-6)
    plain = start(RULES[rule], dtype=dtype, grad=grad, state=state, shapes=[(300,)])
    walk(plain, step_plain)
    for mine, right in zip(ours.tensors, plain.tensors, strict=True):
        assert right.dtype == F32 or (mine == right).float().mean() > 0.97


def check_large_half_precision_gradients_do_not_overflow(kernel):
    ours = agree(kernel, RULES["wada"], dtype=F16, shapes=[(9,)], rtol=2**-10, grad_scale=torch.tensor(1e-4))
    assert all(x.isfinite().all() for x in ours.tensors)


def check_not_a_number_stays(kernel):
    """Neither the box nor the maximum hides that training has gone wrong."""
    for problem in (float("nan"), float("inf")):
        ours, plain, cache = start(ALL, feasible=Box(-1, 1)), start(ALL, feasible=Box(-1, 1)), {}
        for run, step in ((ours, functools.partial(kernel.step_triton, cache=cache)), (plain, step_plain)):
            run.grads[1][3][0, 0] = problem
            with np.errstate(all="ignore"):
                walk(run, step)
        for mine, right in zip(ours.tensors, plain.tensors, strict=True):
            assert_close(mine, right, rtol=1e-12, atol=1e-12, equal_nan=True)
        assert ours.params[3].isnan().any()


@pytest.mark.parametrize("clock", [float, lambda value: torch.as_tensor(value, dtype=F64)])
def check_nothing_is_written_where_infinities_were_found(kernel, clock):
    run, cache = start(ALL), {}
    before = [x.clone() for x in run.tensors]
    kernel.step_triton(run.batch(clock(1), clock(0.0), found_inf=torch.ones(1)), cache)
    for now, was in zip(run.tensors, before, strict=True):
        assert torch.equal(now, was)
    kernel.step_triton(run.batch(clock(1), clock(0.0), found_inf=torch.zeros(1)), cache)
    plain = start(ALL)
    step_plain(plain.batch(1, 0.0))
    for mine, right in zip(run.tensors, plain.tensors, strict=True):
        assert_close(mine, right, rtol=1e-12, atol=1e-12)


@pytest.fixture
def on_the_device(kernel, monkeypatch):
    """An optimizer as on a GPU: its clocks stay on the device, and the kernel is Triton's."""
    init = teams.Clocks.__init__

    def without_numbers(self, count, device):
        init(self, count, device)
        self.numbers = None

    monkeypatch.setattr(teams.Clocks, "__init__", without_numbers)
    monkeypatch.setitem(paths._KERNELS, "cpu", (kernel.step_triton, kernel.unfit, kernel.missing))
    monkeypatch.setattr(WAGMF, "_is_captured", lambda self: True)


@pytest.mark.parametrize("name", ["wada", "adam", "wada, all", "ogd"])
def check_the_optimizer_on_a_device(on_the_device, name):
    """Gradients are missing now and then, and infinities are found in some; the clocks go on only where steps do."""
    rule, shapes = RULES[name], [(3,), (BLOCK + 5,), (7, 5)]
    params = [x.requires_grad_() for x in start(rule, shapes=shapes).params]
    optimizer = WAGMF(params, 0.01, rule=rule, fused=True, capturable=True)
    learners = [OnlineLearner(rule, x.detach().numpy().ravel(), lr=0.01) for x in params]
    rounds = start(rule, shapes=shapes, steps=9).grads
    for t, grads in enumerate(rounds):
        optimizer.grad_scale, optimizer.found_inf = torch.tensor(2.0, dtype=F64), torch.tensor([float(t in (2, 5))])
        for i, (x, g) in enumerate(zip(params, grads, strict=True)):
            x.grad = None if (t + i) % 4 == 1 else 2 * g
            if x.grad is not None and not optimizer.found_inf.item():
                learners[i].update(g.numpy().ravel())
        optimizer.step()
    for x, learner in zip(params, learners, strict=True):
        np.testing.assert_allclose(x.detach().numpy().ravel(), learner.predict(), rtol=1e-12, atol=1e-12)
        assert optimizer.state[x]["step"].item() == learner.t
    assert {path.split(" by ")[1] for path in optimizer.paths} == {"fused"}


def check_an_optimizer_that_no_kernel_takes_on_a_device(on_the_device, monkeypatch):
    monkeypatch.setitem(paths._KERNELS, "cpu", (None, lambda batch: "a test", lambda: None))
    params = start(ALL, shapes=FEW).params
    optimizer = WAGMF(params, 0.01, rule=ALL, capturable=True)
    plain = start(ALL, shapes=FEW)
    for t, grads in enumerate(plain.grads, 1):
        for x, g in zip(params, grads, strict=True):
            x.grad = g
        optimizer.step()
        step_plain(plain.batch(t, ALL.weights.window(t - 1)))
    for mine, right in zip(params, plain.params, strict=True):
        assert_close(mine, right, rtol=1e-12, atol=1e-12)


def check_nothing_beyond_a_tensor_is_touched(kernel):
    run = start(ALL, shapes=[(1,), (BLOCK - 1,), (BLOCK,), (BLOCK + 1,)])
    room = []
    for tensors in (run.params, run.grads[0], *run.state.values()):
        for place, x in enumerate(tensors):
            room.append(torch.full((x.numel() + 2 * BLOCK,), 7.0, dtype=F64))
            tensors[place] = room[-1][BLOCK:-BLOCK].copy_(x)
    kernel.step_triton(run.batch(1, 0.0), {})
    for each in room:
        assert (each[:BLOCK] == 7).all()
        assert (each[-BLOCK:] == 7).all()


def autograd_knows(kernel):
    x = torch.ones(3, requires_grad=True)
    loss = (x * x).sum()
    with torch.no_grad():
        kernel.step_triton(Batch(RULES["ogd"], 1, 0.0, [x], [torch.ones(3)], [], [], []), {})
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    return x


def check_autograd_knows_that_the_parameters_have_changed(kernel):
    autograd_knows(kernel)


def check_the_gradients_are_left_alone(kernel):
    run = start(ALL, maximize=True, weight_decay=0.1, grad_scale=torch.tensor(8.0))
    batch = run.batch(1, 0.0)
    kernel.step_triton(batch, {})
    for now, was in zip(batch.grads, run.grads[0], strict=True):
        assert torch.equal(now, was)


# What may happen to a set of parameters between two steps, all of it with one cache.


def _new_data(run):
    run.params[3].data = run.params[3].data.clone()


def _new_state(run):
    run.state["m"] = [x.clone() for x in run.state["m"]]


def _new_data_of_state(run):
    run.state["v"][3].data = run.state["v"][3].data.clone()


def _state_converted(run):
    for x in run.state["m"]:
        x.data = x.data.double()


def _shrunk(run):
    """Where it was, but shorter."""
    for kind in filter(None, (run.params, *run.state.values(), *run.grads)):
        kind[4] = kind[4][:5]


def _shrunk_in_place(run):
    for kind in filter(None, (run.params, *run.state.values())):
        kind[4].data = kind[4].data[:5]
    for grads in run.grads:
        grads[4] = grads[4][:5]


def _dtype_where_it_was(run):
    """float32 in the memory of the float64."""
    for kind in (run.params, *run.state.values()):
        for place, x in enumerate(kind):
            if x.numel():
                kind[place] = x.flatten().view(F32)[: x.numel()].view(x.shape)
                kind[place].copy_(torch.linspace(1, 2, x.numel()).view(x.shape))
    for grads in run.grads:
        grads[:] = [g.float() for g in grads]
    run.params[2], run.state = run.params[2].float(), {n: [x.float() if not x.numel() else x for x in k] for n, k in
                                                       run.state.items()}  # fmt: skip


def _other_order_where_it_was(run):
    for kind in filter(None, (run.params, *run.state.values())):
        kind[3].data = kind[3].data.as_strided((7, 5), (1, 7))
    for grads in run.grads:
        grads[3] = torch.empty_like(run.params[3]).copy_(grads[3])


def _fewer(run):
    for kind in (run.params, *run.state.values(), *run.grads):
        kind and kind.pop(0)


def _swapped(run):
    for kind in (run.params, *run.state.values(), *run.grads):
        kind[4:5], kind[5:6] = kind[5:6], kind[4:5]


def _other_rule(run):
    """As many lists of state as before, and of the same shapes, but not the same ones."""
    run.rule = Rule(Equal(), monotone=True, beta1=0.0)
    run.state = {"m": [], "v": run.state["m"], "peak": run.state["v"]}


CHANGES = {
    "nothing": lambda run: None,
    "parameter replaced": _new_data,
    "state replaced": _new_state,
    "state moved": _new_data_of_state,
    "state converted": _state_converted,
    "shrunk": _shrunk,
    "shrunk in place": _shrunk_in_place,
    "other dtype where it was": _dtype_where_it_was,
    "other order where it was": _other_order_where_it_was,
    "fewer": _fewer,
    "swapped": _swapped,
    "other rule": _other_rule,
}


def noticed(kernel, change, state=F64):
    rule = Rule()
    runs, cache = [start(rule, state=state), start(rule, state=state)], {}
    for run, step in zip(runs, (functools.partial(kernel.step_triton, cache=cache), step_plain), strict=True):
        u = step(run.batch(1, rule.start))
        CHANGES[change](run)
        u = step(run.batch(2, u))
        step(run.batch(3, u))
    rough = any(x.dtype == F32 for x in runs[1].tensors)
    for mine, right in zip(runs[0].tensors, runs[1].tensors, strict=True):
        assert_close(mine, right, rtol=1e-5 if rough else 1e-12, atol=1e-7 if rough else 0.0)


@pytest.mark.parametrize("change", CHANGES)
def check_every_change_is_noticed(kernel, change):
    noticed(kernel, change, state=F32 if change == "state converted" else F64)


def check_state_of_another_dtype_is_noticed(kernel):
    """Where the old state was."""
    run, cache = start(Rule(), shapes=[(BLOCK,)]), {}
    kernel.step_triton(run.batch(1, 0.0), cache)
    run.state["m"][0] = run.state["m"][0].view(F32)[:BLOCK].fill_(1.0)
    kernel.step_triton(run.batch(2, 1.0), cache)
    right = 0.9 + 0.1 * run.grads[1][0]
    assert_close(run.state["m"][0].double(), right, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["params", "m", "v", "grads"])
def check_what_moves_alone_is_noticed(kernel, kind):
    """All else stays where it is, the gradients too."""
    results = []
    for step in (functools.partial(kernel.step_triton, cache={}), step_plain):
        batch = start(Rule()).batch(1, 0.0)
        batch.u, batch.t = step(batch), 2
        left = getattr(batch, kind)[3].data  # held, so that a step by stale tables does no harm to others
        getattr(batch, kind)[3].data = left * 2
        step(batch)
        del left
        results.append([*batch.params, *batch.m, *batch.v])
    for mine, right in zip(*results, strict=True):
        assert_close(mine, right, rtol=1e-12, atol=1e-12)


def check_no_tensor_is_held(kernel):
    run, cache = start(ALL), {}
    kernel.step_triton(run.batch(1, 0.0), cache)
    tensors = [weakref.ref(x) for x in run.tensors]
    del run
    assert not any(x() is not None for x in tensors)


def beyond_the_new_end(kernel):
    """What no longer belongs to a tensor is left alone."""
    run, cache = start(Rule(), shapes=[(BLOCK,)]), {}
    kernel.step_triton(run.batch(1, 0.0), cache)
    whole = [x.detach().view(-1) for x in run.tensors]
    for x in run.tensors:
        x.data = x.data[:5]
    run.grads[1][0] = run.grads[1][0][:5]
    before = [x.clone() for x in whole]
    kernel.step_triton(run.batch(2, 1.0), cache)
    for now, was in zip(whole, before, strict=True):
        assert torch.equal(now[5:], was[5:])
        assert not torch.equal(now[:5], was[:5])


def check_nothing_beyond_the_end_of_a_shrunk_tensor_is_touched(kernel):
    beyond_the_new_end(kernel)


def check_gradients_of_another_order_are_refused(kernel):
    run, cache = start(Rule(), shapes=[(4, 4)]), {}
    kernel.step_triton(run.batch(1, 0.0), cache)
    batch = run.batch(2, 1.0)
    assert kernel.unfit(batch) is None
    batch.grads[0] = batch.grads[0].clone().t()
    wrong = "grads that lie in memory in another order than their parameters"
    assert kernel.unfit(batch) == wrong
    with pytest.raises(Unfit, match=wrong):
        kernel.step_triton(batch, cache)


def _at(run, t, u):
    batch = run.batch(1, u)
    batch.t = t
    return batch


def check_clocks_of_their_own_for_the_parameters(kernel):
    """As after steps for which some had no gradient, which the host need not know."""
    for name in ("adam", "wada, all", "adagrad"):
        ours, plain, rule = start(RULES[name], shapes=FEW), start(RULES[name], shapes=FEW), RULES[name]
        t, u = (torch.tensor(x, dtype=F64) for x in ([3.0, 1.0], [2.0, rule.start]))
        u_next = kernel.step_triton(_at(ours, t, u), {})
        for place in range(2):
            batch = plain.batch(1, 0.0)
            one = {n: [row[place]] if row else [] for n, row in {**plain.state, "params": plain.params}.items()}
            right = step_plain(
                Batch(rule, t[place].item(), u[place].item(), grads=[batch.grads[place]], **one, lr=0.01)
            )
            assert float(u_next[place]) == right
        for mine, right in zip(ours.tensors, plain.tensors, strict=True):
            assert_close(mine, right, rtol=1e-12, atol=1e-12)


def check_tables_are_sent_only_when_something_has_moved(kernel):
    run, cache, sent = start(Rule()), {}, []
    with pytest.MonkeyPatch.context() as patch:
        send = kernel._Ring.send
        patch.setattr(kernel._Ring, "send", lambda *given: sent.append(1) or send(*given))
        batch = run.batch(1, 0.0)
        for _ in range(3):
            kernel.step_triton(batch, cache)
        assert len(sent) == 1
        kernel.step_triton(run.batch(2, 1.0), cache)
        assert len(sent) == 2


class Event:
    """A CUDA event of a device that gets to it when told to."""

    def __init__(self):
        self.done, self.waited = True, False

    def record(self):
        self.done = False

    def query(self):
        return self.done

    def synchronize(self):
        if not self.done:
            self.waited = self.done = True


class Table(torch.Tensor):
    """A table that is said to lie on a GPU, and reads what is sent only when told to."""

    device = torch.device("cuda:0")

    def copy_(self, host, non_blocking=False):
        self.sent = [*getattr(self, "sent", []), host]
        return self


def never_overwritten(kernel):
    """Tables on their way keep what they were sent with, however slow the device is."""
    ring, table = kernel._Ring(), torch.zeros(1, dtype=torch.int64).as_subclass(Table)
    empty = torch.empty
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "Event", Event)
        patch.setattr(torch, "empty", lambda *shape, pin_memory, **kind: empty(*shape, **kind))
        for number in range(kernel._SLOTS):
            ring.send(np.full(1, number), table)
        assert [host.item() for host in table.sent] == list(range(kernel._SLOTS))
        ring.slots[0][1].done = ring.slots[1][1].done = True
        ring.send(np.full(1, 1000), table)  # in the place of number 0, which has been read
        assert len(ring.slots) == kernel._SLOTS
        assert [host.item() for host in table.sent[2:]] == [*range(2, kernel._SLOTS), 1000]
        ring.send(np.full(1, 1001), table)
        oldest = ring.slots[0][1]
        ring.send(np.full(1, 1002), table)  # all are on their way, and there are enough of them: wait for the oldest
        assert oldest.waited
        assert [host.item() for host in table.sent[3:]] == [*range(3, kernel._SLOTS), 1000, 1001, 1002]


def check_tables_on_their_way_are_not_overwritten(kernel):
    never_overwritten(kernel)


def rounded(kernel, seed, n=8 * BLOCK, value=2.0**-9, steps=1):
    """Ones, moved once by a quarter of the way to the next bfloat16 number; m is moved so as well."""
    torch.manual_seed(seed)
    ones, m = torch.ones(n, dtype=BF16), torch.ones(n, dtype=BF16)
    grads = torch.full((n,), -value, dtype=F32)
    rule, cache = Rule(p2=float("inf"), beta1=0.5), {}
    for t in range(1, steps + 1):
        m.fill_(1.0)
        batch = Batch(rule, t, 0.0, [ones], [grads], [m], [], [], lr=-value / 0.5, stochastic_rounding=True)
        kernel.step_triton(batch, cache)
    return ones, m


def unbiased(kernel):
    """x = 1 + 2^-9 + 2^-19 and m = 1/2 - 2^-10, in 4096 places: 4 standard deviations is 0.027."""
    n = 64 * BLOCK
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "_BLOCK", 1024)
        x, m = rounded(kernel, 0, n=n)
    assert set(x.tolist()) == {1.0, 1 + 2.0**-7}
    assert (x > 1).float().mean().item() == pytest.approx(0.25, abs=0.027)
    assert set(m.tolist()) == {0.5, 0.5 - 2.0**-9}
    up = (m == 0.5).float()
    assert up.mean().item() == pytest.approx(0.5, abs=0.031)
    both = torch.corrcoef(torch.stack([(x > 1).float(), up]))[0, 1]
    assert abs(both.item()) < 4 / n**0.5


def check_stochastic_rounding_is_unbiased(kernel):
    unbiased(kernel)


def no_repetition(kernel):
    x, m = rounded(kernel, 0)
    blocks = x.view(-1, BLOCK)
    assert len({tuple(block.tolist()) for block in blocks}) == len(blocks)
    assert not torch.equal(x, rounded(kernel, 1)[0])
    assert torch.equal(x, rounded(kernel, 0)[0])
    assert not torch.equal(m, rounded(kernel, 0, steps=2)[1])


def check_rounding_differs_by_block_and_step_and_follows_the_seed(kernel):
    no_repetition(kernel)


def infinity_kept(kernel):
    """NaN as the hardware writes it has all bits set, and noise would carry it over into a number."""
    inf, nan = float("inf"), float("nan")
    x = torch.tensor([inf, -inf, nan, 1.0, 1.0] * 13, dtype=BF16)
    g = torch.tensor([0, 0, 0, 0x7FFFFFFF, -1] * 13, dtype=torch.int32).view(F32)
    kernel.step_triton(Batch(RULES["ogd"], 1, 0.0, [x], [g], [], [], [], stochastic_rounding=True), {})
    assert_close(x.float(), torch.tensor([inf, -inf, nan, nan, nan] * 13), equal_nan=True)


def check_rounding_keeps_infinity_and_not_a_number(kernel):
    infinity_kept(kernel)


def _changed(**options):
    return lambda: start(ALL, **options).batch(1, 0.0)


def _with(change):
    def batch():
        made = start(ALL).batch(1, 0.0)
        change(made)
        return made

    return batch


def _set(kind, place, value):
    return _with(lambda batch: operator_set(getattr(batch, kind), place, value))


def operator_set(tensors, place, value):
    tensors[place] = value


UNFIT = {
    "differentiable=True": _changed(differentiable=True),
    "feasible=Ball": _changed(feasible=Ball(1.0)),
    "a Box whose sides are arrays": _changed(feasible=Box(np.zeros(3), 1.0)),
    "params of dtype torch.int32": lambda: Batch(Rule(), 1, 0.0, *[[torch.zeros(1, dtype=torch.int32)]] * 4, []),
    "m of dtype torch.float16": _changed(dtype=F32, state=F16),
    "grads of several dtypes": _set("grads", 1, torch.zeros((), dtype=F32)),
    "m that lie in memory in another order": _set("m", 3, torch.zeros(5, 7, dtype=F64).t()),
    "a parameter with gaps or overlaps": lambda: Batch(Rule(), 1, 0.0, *[[torch.zeros(4, 4)[:, ::2]]] * 4, []),
    "v that lie": _set("v", 4, torch.zeros(3, dtype=F64)),
    "7 params with 6 peak": _with(lambda batch: batch.peak.pop()),
    "7 params with 0 m": _with(lambda batch: batch.m.clear()),
    "no parameters": lambda: Batch(Rule(), 1, 0.0, [], [], [], [], []),
    "grads that are not plain dense tensors": _set("grads", 4, torch.zeros(2 * BLOCK, dtype=F64).to_sparse()),
    "a lr with one entry per replica": _changed(lr=torch.ones(2)),
}


@pytest.mark.parametrize("reason", UNFIT)
def check_what_is_unfit(kernel, reason):
    batch = UNFIT[reason]()
    assert kernel.unfit(batch).startswith(reason)
    with pytest.raises(Unfit, match=reason):
        kernel.step_triton(batch, {})


def check_overlaps_are_unfit(kernel):
    x = torch.zeros(1).expand(3)
    assert (
        kernel.unfit(Batch(RULES["ogd"], 1, 0.0, [x], [x], [], [], [])) == "a parameter with gaps or overlaps in memory"
    )


def check_a_lazily_negated_gradient_is_unfit(kernel):
    x, lazy = torch.zeros(1), torch.ones(1, dtype=torch.complex64).conj().imag
    assert lazy.is_neg()
    cache, wrong = {}, "grads that are not plain dense tensors"
    kernel.step_triton(Batch(RULES["ogd"], 1, 0.0, [x], [torch.zeros(1)], [], [], []), cache)
    with pytest.raises(Unfit, match=wrong):
        kernel.step_triton(Batch(RULES["ogd"], 2, 0.0, [x], [lazy], [], [], []), cache)


def options(*names):
    def check(kernel):
        for name in names:
            agree(kernel, ALL, shapes=FEW, **OPTIONS[name])

    return check


def rule(name, **settings):
    return lambda kernel: agree(kernel, RULES[name], shapes=FEW, **settings)


MUTANTS = {
    "sign of the step": ("x = x - step", "x = x + step", rule("ogd")),
    "momentum swapped": ("beta1 * m + new * g", "new * m + beta1 * g", rule("wada")),
    "momentum lost": ("_store(m_at, m, inside", "_store(m_at, g, inside", rule("wada")),
    "no absolute value": ("_power(tl.abs(g), P1)", "_power(g, P1)", rule("wada_v3")),
    "raw sum, not mean": ("v + (now - v) * inverse", "v + now", rule("wada")),
    "window of the step before": ("u, 1 / u if", "u, 1 / max(batch.u, 1) if", rule("wada")),
    "maximum dropped": ("tl.maximum(peak, u * v, propagate_nan=tl.PropagateNan.ALL)", "u * v", rule("amsgrad")),
    "maximum of v, not of u·v": ("tl.maximum(peak, u * v", "tl.maximum(peak, v", rule("amsgrad, torch")),
    "maximum hides NaN": (", propagate_nan=tl.PropagateNan.ALL", "", check_not_a_number_stays),
    "lookahead dropped": ("a * m + b * g if", "a * m if", rule("nadam")),
    "eps forgotten": ("X_TYPE) + eps", "X_TYPE)", options("eps")),
    "0/0": ("if not FLOOR", "if False", lambda kernel: check_every_kind_of_gradient(kernel, "zero", 0.0)),
    "one root too few": ("halvings, rest = 0, p2", "halvings, rest = 0, p2 / 2", rule("wada")),
    "rate forgotten": ("_scalar(rate, clocks, 6, CLOCK, EXACT_TYPE) * ", "", rule("adagrad")),
    "decay of the wrong sign": ("g + weight_decay * x", "g - weight_decay * x", options("L2")),
    "decay not by the rate": ("x - alpha * weight_decay * x", "x - weight_decay * x", options("decoupled")),
    "maximize ignored": ("g = -g", "g = g", options("maximize")),
    "box without a floor": ("tl.where(x < lower, ", "tl.where(x < -1e9, ", options("box")),
    "box without a ceiling": ("tl.where(x > upper, ", "tl.where(x > 1e9, ", options("half-open box")),
    "scaled, not unscaled": ("(1.0 / tl.load(scale)", "(tl.load(scale)", options("grad_scale")),
    "infinities ignored": ("tl.load(found) != 0", "tl.load(found) == 7", lambda kernel:
                           check_nothing_is_written_where_infinities_were_found(kernel, float)),
    "lr of the first replica": ("lr + piece % REPLICAS", "lr", check_one_lr_per_replica),
    "one element too many": ("start + place < n", "start + place <= n", check_nothing_beyond_a_tensor_is_touched),
    "end of a tensor forgotten": ("start + BLOCK > n", "start > n", rule("wada")),
    "first block again": (".to(tl.int64) * BLOCK", ".to(tl.int64) * 0", rule("wada")),
    "wrong scalar of the clock": ("_scalar(inverse, clocks, 3,", "_scalar(inverse, clocks, 2,", lambda kernel:
                                  check_time_on_the_device(kernel, "wada")),
    "stale gradients": ("if addresses != self.addresses_of_grads", "if not self.addresses_of_grads",
                        rule("wada")),
    "stale state": ("if self.addresses is not self.look.addresses", "if not self.addresses",
                    lambda kernel: check_what_moves_alone_is_noticed(kernel, "m")),
    "stale looks": ("not tables.look.same(batch)", "False", beyond_the_new_end),
    "clock of the first parameter": ("7 * (piece // REPLICAS)", "0", check_clocks_of_their_own_for_the_parameters),
    "table not sent again": ("        self.sent = False\n", "", rule("wada")),
    "table overwritten on its way": ("self.slots[0][1].query()", "True", never_overwritten),
    "no waiting": ("            read.synchronize()\n", "", never_overwritten),
    "autograd kept in the dark": ("        increment_version(batch.params)", "        pass", autograd_knows),
    "biased rounding": ("SHIFT) & 0xFFFF", "SHIFT) & 0x7FFF", unbiased),
    "noise shared by x and m": ("inside, noise[0], 16, M", "inside, noise[0], 0, M", unbiased),
    "noise shared by blocks": ("(place * 0 + program)", "(place * 0)", no_repetition),
    "noise shared by steps": ("torch.randint(2**32, (2,), device=device)", "torch.zeros(2, dtype=torch.int64)",
                              no_repetition),
    "NaN rounded": ("tl.where(x == x, first, 0)", "first", infinity_kept),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def check_a_planted_error_is_caught(name, tmp_path):
    old, new, check = MUTANTS[name]
    source = SOURCE.read_text()
    assert source.count(old) >= 1, "the text to change is no longer there: bring the mutant up to date"
    path = tmp_path / "mutant.py"
    path.write_text(source.replace(old, new, 1))
    with np.errstate(all="ignore"), pytest.raises((AssertionError, pytest.fail.Exception)):
        check(load(path, "mutant"))
