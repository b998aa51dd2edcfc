"""The fused CPU path takes the step of the plain path: every rule, option, layout and number of threads."""

import copy
import importlib.util
import itertools
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import pytest
import torch
from forks import untraced
from tables import RULES, gradients
from torch.utils._python_dispatch import TorchDispatchMode

from wagmf.feasible import Ball, Box, Everything, NonNegative
from wagmf.rule import Rule
from wagmf.torch import batch as batches
from wagmf.torch import cpu
from wagmf.torch.batch import Batch, Unfit
from wagmf.torch.cpu import step_cpu, unfit
from wagmf.torch.plain import step_plain
from wagmf.weights import Latest

F32, F64, BF16 = torch.float32, torch.float64, torch.bfloat16
SHAPES = [(7, 3), (), (0, 4), (1,), (37,), (2, 3, 5, 4)]
MANY = [(70_001,), (3, 3), (33_000,), *[(99,)] * 20, (50_000,)]  # some of them longer than a chunk


@pytest.fixture(autouse=True)
def threads():
    """One thread unless the test sets more: on a busy machine every parallel operation of torch may wait for a core."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield torch.set_num_threads
    torch.set_num_threads(before)


def numbers(*shape, dtype=F64, seed=0):
    return torch.randn(shape, dtype=F64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def start(rule, params):
    """Parameters, and the state an optimizer would give them."""
    kept = {"m": rule.beta1 > 0, "v": rule.adapts, "peak": rule.monotone}
    like = [torch.zeros_like(x, dtype=torch.promote_types(x.dtype, F32)) for x in params]
    return {"params": params, **{name: [x.clone() for x in like] if keep else [] for name, keep in kept.items()}}


def both_walk(rule, params, grads_at, T=10, cache=None, lr=0.1, **options):
    """Walk T steps on both paths, the gradients newly made for every step; return where each has arrived."""
    ours, plain = start(rule, params), start(rule, copy.deepcopy(params))
    cache, u_ours, u_plain = {} if cache is None else cache, rule.start, rule.start
    for t in range(1, T + 1):
        u_ours = step_cpu(Batch(rule, t, u_ours, grads=grads_at(t), lr=lr, **ours, **options), cache)
        u_plain = step_plain(Batch(rule, t, u_plain, grads=grads_at(t), lr=lr, **plain, **options))
        assert u_ours == u_plain
    return ours, plain


def assert_alike(ours, plain, relative, part_of_largest=None):
    """Equal within ``relative`` of each number and a part of the largest of its tensor, in whatever they hold."""
    for name, expected in plain.items():
        for x, y in zip(ours[name], expected, strict=True):
            finite = y[y.isfinite()].abs()
            scale = finite.max().item() if finite.numel() else 0.0
            absolute = (relative if part_of_largest is None else part_of_largest) * scale
            torch.testing.assert_close(
                x, y, rtol=relative, atol=absolute, equal_nan=True, msg=lambda m, name=name: f"{name}: {m}"
            )


def noise(shapes, dtype=F64):
    return lambda t: [numbers(*shape, dtype=dtype, seed=100 * t + k) for k, shape in enumerate(shapes)]


def params_of(shapes, dtype=F64):
    return [numbers(*shape, dtype=dtype, seed=k) for k, shape in enumerate(shapes)]


# ---------------------------------------------------------------- the same step


PROBLEMS = ("noise", "tiny", "huge", "mostly zero", "zero", "jumping")


@pytest.mark.parametrize("name", RULES)
def test_every_rule_equals_plain_in_float64(name):
    for problem in PROBLEMS:
        g = torch.from_numpy(gradients(problem, T=12, d=37))
        ours, plain = both_walk(RULES[name], [numbers(37)], lambda t, g=g: [g[t - 1].clone()], T=12)
        assert_alike(ours, plain, 1e-12)


@pytest.mark.parametrize("name", RULES)
def test_every_rule_equals_plain_in_float32(name):
    """Both round every operation, in another order: a few units of the last of 24 bits, after 12 steps 1e-5."""
    for problem in PROBLEMS:
        g = torch.from_numpy(gradients(problem, T=12, d=37)).to(F32)
        ours, plain = both_walk(RULES[name], [numbers(37, dtype=F32)], lambda t, g=g: [g[t - 1].clone()], T=12)
        assert_alike(ours, plain, 1e-5, part_of_largest=1e-6)


OPTIONS = {
    "L2": {"weight_decay": 0.1},
    "decoupled": {"weight_decay": 0.1, "decoupled": True},
    "ascent": {"maximize": True},
    "ascent with L2": {"maximize": True, "weight_decay": 0.1},
    "no eps": {"eps": 0.0},
    "large eps": {"eps": 1.0},
    "box": {"feasible": Box(-0.5, 0.75)},
    "half box": {"feasible": Box(-0.5, float("inf"))},
    "nonnegative": {"feasible": NonNegative()},
    "everything": {"feasible": Everything()},
    "scaled": {"grad_scale": torch.tensor(1024.0)},
    "scaled ascent": {"grad_scale": torch.tensor(3.0), "maximize": True},
    "lr in a tensor": {"lr": torch.tensor(0.2, dtype=F64)},
    "all": {"weight_decay": 0.1, "decoupled": True, "maximize": True, "feasible": Box(-1, 1), "eps": 0.0},
}


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("name", ["wada", "amsgrad", "ogd"])
def test_options_equal_plain(name, option):
    ours, plain = both_walk(RULES[name], params_of(SHAPES), noise(SHAPES), **OPTIONS[option])
    assert_alike(ours, plain, 1e-12)


def test_many_tensors_of_many_chunks_equal_plain():
    ours, plain = both_walk(RULES["amsgrad"], params_of(MANY), noise(MANY), T=3)
    assert_alike(ours, plain, 1e-12)


@pytest.mark.parametrize("eps", [0.0, 1e-7])
@pytest.mark.parametrize("name", ["wada", "padam", "sc_adagrad", "signsgd", "wada, all"])
def test_zero_gradients_leave_everything_where_it_is(name, eps):
    params = params_of([(37,)])
    before = copy.deepcopy(params)
    ours, plain = both_walk(RULES[name], params, lambda t: [torch.zeros(37, dtype=F64)], eps=eps)
    assert_alike(ours, plain, 1e-12)
    torch.testing.assert_close(ours["params"], before, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["wada", "amsgrad", "adagrad", "signsgd", "momentum"])
@pytest.mark.parametrize("feasible", [None, Box(-2, 2), NonNegative()])
def test_infinities_and_nan_end_up_where_they_do_in_plain(name, feasible):
    odd = torch.tensor([float("inf"), -float("inf"), float("nan"), 0.0, 1.0, -1.0], dtype=F64)
    pairs = torch.cartesian_prod(odd, odd)

    def grads(t):
        return [pairs[:, 0].clone() if t == 2 else numbers(36, seed=t)]

    ours, plain = both_walk(RULES[name], [pairs[:, 1].clone()], grads, T=4, feasible=feasible)
    assert ours["params"][0].isnan().any()
    assert_alike(ours, plain, 1e-12)


@pytest.mark.parametrize(("p1", "p2"), [(0.5, 0.5), (9, 3), (1, 1), (5, 16), (6, 6), (7, 1), (8, 2)])
def test_powers_and_roots_equal_plain(p1, p2):
    ours, plain = both_walk(Rule(p1=p1, p2=p2), params_of([(37,)]), noise([(37,)]), T=3)
    assert_alike(ours, plain, 1e-12)


def test_only_the_latest_gradient_counts_however_large_the_one_before():
    rule = Rule(Latest(), p1=2, p2=2, beta1=0.0)
    ours, plain = both_walk(rule, [torch.zeros(5, dtype=F32)], lambda t: [torch.full((5,), 1e18 if t == 1 else 1e-9)])
    assert (ours["v"][0] > 0).all()
    assert_alike(ours, plain, 1e-6)


# ---------------------------------------------------------------- layouts


LAYOUTS = {
    "channels last": lambda: numbers(4, 3, 5, 6).to(memory_format=torch.channels_last),
    "transposed": lambda: numbers(30, 17).t(),
    "permuted": lambda: numbers(5, 6, 7).permute(2, 0, 1),
    "an axis of length one": lambda: numbers(6, 4).as_strided((6, 1, 4), (4, 99, 1)),
    "a slice of rows": lambda: numbers(9, 4)[3:7],
    "no numbers": lambda: numbers(0, 3),
    "a single number": lambda: numbers(),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["wada", "amsgrad"])
def test_dense_memory_in_any_order(name, layout):
    x = LAYOUTS[layout]()

    def grads(t):
        g = torch.empty_strided(x.shape, x.stride(), dtype=F64)
        return [g.copy_(numbers(*x.shape, seed=t))]

    ours, plain = both_walk(RULES[name], [x], grads)
    assert_alike(ours, plain, 1e-12)


@pytest.mark.parametrize("dtype", [F32, F64])
def test_parameters_that_lack_a_gradient_are_left_alone(dtype):
    """Other subsets with the same cache, so that neither the number of tensors nor their shapes stay the same."""
    rule, shapes = RULES["amsgrad"], [(3, 4), (5,), (3, 4), (40_001,)]
    ours, plain = start(rule, params_of(shapes, dtype)), start(rule, params_of(shapes, dtype))
    cache = {}
    subsets = [[0, 1, 2, 3], [1, 3], [0, 2], [2, 0], [3], [], [0, 1, 2, 3], [2, 3], [1], [0, 1, 3]]
    for t, subset in enumerate(subsets, start=1):
        for state, step in ((ours, lambda batch: step_cpu(batch, cache)), (plain, step_plain)):
            grads = noise(shapes, dtype)(t)
            part = {name: [row[k] for k in subset] for name, row in {**state, "grads": grads}.items()}
            step(Batch(rule, t, rule.weights.window(t - 1), **part, lr=0.1))
    assert_alike(ours, plain, 1e-12 if dtype == F64 else 1e-5)


@pytest.mark.parametrize("decoupled", [False, True])
@pytest.mark.parametrize("name", ["wada", "wada, all", "momentum"])
def test_a_step_size_per_replica(name, decoupled):
    shapes = [(3, 200), (3,), (3, 1), (3, 2, 5), (3, 0), (3, 33_000)]
    lr = torch.tensor([0.01, 0.1, 1.0], dtype=F64)
    options = {"weight_decay": 0.1, "decoupled": decoupled, "lr": lr}
    ours, plain = both_walk(RULES[name], params_of(shapes), noise(shapes), **options)
    assert_alike(ours, plain, 1e-12)


def test_a_step_size_per_replica_needs_the_replicas_apart_in_memory():
    x = numbers(4, 3)
    assert "lr of 3 entries" in str(unfit(batch_of(x.t(), lr=torch.ones(3))))
    assert unfit(batch_of(x, lr=torch.ones(4))) is None
    assert "lr of 3 entries" in str(unfit(batch_of(x, lr=torch.ones(3))))


def test_bfloat16_parameters_with_float32_state():
    """The same float32 arithmetic, and one rounding: where that falls on the other side, one bit in eight differs."""
    ours, plain = both_walk(RULES["wada"], params_of(MANY, BF16), noise(MANY, BF16), T=3)
    assert all(x.dtype == F32 for x in ours["m"])
    assert_alike(ours, plain, 2**-7)
    same = torch.cat([(x == y).flatten() for x, y in zip(ours["params"], plain["params"], strict=True)])
    assert same.double().mean() > 0.99


def test_bfloat16_is_rounded_to_nearest_even():
    """One step along g is one product: every mantissa, ties, infinities and NaN come out bit for bit."""
    g = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16).view(BF16)
    for lr in (1.0, 1 + 2**-8, 1.5, 3.3):
        x, y = torch.zeros_like(g), torch.zeros_like(g)
        step_cpu(Batch(RULES["ogd"], 1, 0.0, [x], [g], [], [], [], lr=lr), {})
        step_plain(Batch(RULES["ogd"], 1, 0.0, [y], [g], [], [], [], lr=lr))
        torch.testing.assert_close(x, y, rtol=0, atol=0, equal_nan=True)


# ---------------------------------------------------------------- what it refuses


def batch_of(*params, rule=None, grads=None, **options):
    rule = Rule() if rule is None else rule
    grads = [torch.ones_like(x) for x in params] if grads is None else grads
    return Batch(rule, 1, rule.start, grads=grads, **{**start(rule, list(params)), **options})


REFUSED = {
    "differentiable": lambda: batch_of(numbers(3), differentiable=True),
    "stochastic_rounding": lambda: batch_of(numbers(3), stochastic_rounding=True),
    "feasible": lambda: batch_of(numbers(3), feasible=Ball(1.0)),
    "sides are arrays": lambda: batch_of(numbers(3), feasible=Box([-1, -1, -1], 1)),
    "capturable": lambda: Batch(**{**vars(batch_of(numbers(3))), "t": torch.tensor(1.0)}),
    "meta": lambda: batch_of(torch.zeros(3, device="meta")),
    "float16": lambda: batch_of(numbers(3, dtype=torch.float16)),
    "float64": lambda: batch_of(numbers(3, dtype=F32), m=[numbers(3)]),
    "bfloat16": lambda: batch_of(numbers(3, dtype=BF16), m=[numbers(3, dtype=BF16)]),
    "gaps": lambda: batch_of(numbers(6)[::2]),
    "overlaps": lambda: batch_of(numbers(3, 1).expand(3, 2)),
    "other axes or strides": lambda: batch_of(numbers(3, 4), grads=[numbers(4, 3).t()]),
    "has other axes": lambda: batch_of(numbers(3, 4), m=[numbers(4, 3)]),
    "a Mine": lambda: batch_of(numbers(3).as_subclass(type("Mine", (torch.Tensor,), {}))),
    "sparse": lambda: batch_of(numbers(3), grads=[numbers(3).to_sparse()]),
    "plain numbers": lambda: batch_of(numbers(3), grads=[numbers(3)._neg_view()]),
    "what the rule keeps": lambda: batch_of(numbers(3), v=[]),
    "share memory": lambda: (lambda x: batch_of(x, x.view(3)))(numbers(3)),
    "memory": lambda: (lambda x: batch_of(x[:5], x[3:]))(numbers(8)),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_it_refuses_with_a_reason_and_changes_nothing(reason):
    batch = REFUSED[reason]()
    tensors = [*batch.params, *batch.m, *batch.v]
    before = [x.clone() for x in tensors]
    assert reason in str(unfit(batch))
    with pytest.raises(Unfit, match=reason):
        step_cpu(batch, {})
    for x, y in zip(tensors, before, strict=True):
        assert x.is_meta or torch.equal(x, y)


def test_a_flat_buffer_cut_into_parameters_is_taken():
    flat = numbers(10)
    assert unfit(batch_of(flat[:4], flat[4:].view(2, 3), flat[2:2])) is None


def test_without_numba_it_says_so(monkeypatch):
    monkeypatch.setattr(cpu, "_carray", None)
    monkeypatch.setitem(sys.modules, "numba", None)
    assert "no Numba" in str(unfit(batch_of(numbers(3))))


def test_with_numba_switched_off_it_says_so(monkeypatch):
    monkeypatch.setattr(cpu, "_carray", None)
    monkeypatch.setattr("numba.config.DISABLE_JIT", True)
    assert unfit(batch_of(numbers(3))) == "NUMBA_DISABLE_JIT=1"


def test_without_a_place_on_disk_it_compiles_all_the_same(monkeypatch):
    """As in a read-only container."""

    def no_place(*arguments):
        raise RuntimeError("cannot cache function: no locator available")

    assert unfit(batch_of(numbers(3))) is None
    monkeypatch.setattr("numba.core.caching.CacheImpl.__init__", no_place)
    cpu._kernel.cache_clear()
    ours, plain = both_walk(RULES["wada"], params_of(SHAPES), noise(SHAPES), T=2)
    assert_alike(ours, plain, 1e-12)


# ---------------------------------------------------------------- threads and processes


def walked(rule, shapes, T=3, dtype=F32, lr=0.1):
    """Where the kernel arrives, as bytes."""
    state, cache, u = start(rule, params_of(shapes, dtype)), {}, rule.start
    for t in range(1, T + 1):
        u = step_cpu(Batch(rule, t, u, grads=noise(shapes, dtype)(t), lr=lr, **state), cache)
    return [x.numpy().tobytes() for row in state.values() for x in row]


@pytest.mark.parametrize("name", ["wada", "wada, all"])
def test_the_number_of_threads_changes_no_bit(name, threads, monkeypatch):
    alone = walked(RULES[name], MANY)
    for n in (2, 3, 5):
        threads(n)
        assert walked(RULES[name], MANY) == alone
    monkeypatch.setattr(cpu, "_openmp", lambda: None)  # as where torch has no such pool
    assert walked(RULES[name], MANY) == alone


def test_as_many_threads_as_torch_uses_where_there_is_work_for_them(threads, monkeypatch):
    seen = []
    real = cpu._run
    monkeypatch.setattr(cpu, "_run", lambda kernel, job, n, batch: (seen.append(n), real(kernel, job, n, batch)))
    for n in (1, 2, 3):
        threads(n)
        step_cpu(batch_of(numbers(500_000, dtype=F32)), {})
        step_cpu(batch_of(numbers(50, dtype=F32)), {})
    assert seen == [1, 1, 2, 1, 3, 1]


def test_several_python_threads_step_at_once(threads):
    threads(2)
    names = ["wada", "adam", "wada", "amsgrad"]
    expected = [walked(RULES[name], MANY, T=5) for name in names]
    found: dict[int, list[bytes]] = {}

    def walk(k):
        found[k] = walked(RULES[names[k]], MANY, T=5)

    workers = [threading.Thread(target=walk, args=(k,)) for k in range(len(names))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [found[k] for k in range(len(names))] == expected


# A process of its own: what a child inherits must not depend on what pytest has done before.
FORK = """
import os, sys
import wagmf.torch.cpu as cpu
assert "numba" not in sys.modules, "imported too early"
sys.path.insert(0, "tests")
import torch
from test_torch_cpu import MANY, RULES, walked

torch.set_num_threads(2)
expected = walked(RULES["wada"], MANY)
assert cpu._openmp() is not None or sys.platform != "linux"
print("hits", cpu._kernel("float32", cpu._kind(RULES["wada"], l2=False)).compiled.cache_hits)

child = os.fork()
if child == 0:
    torch.set_num_threads(1)  # torch itself hangs in a child with more; our kernel must not
    noise = walked(RULES["wada"], MANY)
    cpu.torch.get_num_threads = lambda: 2
    os._exit(0 if noise == walked(RULES["wada"], MANY) == expected else 1)
assert os.waitpid(child, 0)[1] == 0

class Steps(torch.utils.data.Dataset):
    def __len__(self): return 2
    def __getitem__(self, k): return walked(RULES["wada"], MANY) == expected

assert all(torch.utils.data.DataLoader(Steps(), num_workers=2, multiprocessing_context="fork"))
assert walked(RULES["wada"], MANY) == expected
print("well")
"""


def test_after_a_fork_in_data_loaders_and_from_disk():
    """The child of this process finds on disk what was compiled here."""
    walked(RULES["wada"], MANY, T=1)
    command, root = [sys.executable, "-W", "error", "-c", FORK], Path(__file__).parent.parent
    result = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120)
    assert result.stdout.split() == ["hits", "1", "well"], result.stderr


# ---------------------------------------------------------------- nothing stale, nothing hidden


def change_data(x):
    x.data = x.data.clone() + 1


def change_strides_only(x):
    x.data = x.data.clone().as_strided((12, 5), (1, 12))


def change_shape(x):
    x.data = x.data[:3].clone()


def change_dtype(x):
    x.data = x.data.to(F32)


def change_in_place(x):
    x.t_()


CHANGES = {"data": change_data, "strides": change_strides_only, "shape": change_shape, "t_": change_in_place}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", ["amsgrad", "wada"])
def test_all_tensors_may_change_between_steps(name, change):
    """Parameter, state and gradient change alike; the plain path does not care, and the table must not either."""
    rule, cache, u = RULES[name], {}, RULES[name].start
    ours, plain = start(rule, params_of([(12, 5), (7,)])), start(rule, params_of([(12, 5), (7,)]))
    for t in range(1, 6):
        for state in (ours, plain):
            if t == 3:
                for row in state.values():
                    for x in row[:1]:
                        CHANGES[change](x)
        grads = [torch.zeros_like(x).copy_(numbers(*x.shape, seed=t)) for x in ours["params"]]
        after = step_cpu(Batch(rule, t, u, grads=grads, lr=0.1, **ours), cache)
        u = step_plain(Batch(rule, t, u, grads=copy.deepcopy(grads), lr=0.1, **plain))
        assert u == after
    assert_alike(ours, plain, 1e-12)


@pytest.mark.parametrize("change", [*CHANGES.values(), change_dtype])
@pytest.mark.parametrize("which", ["params", "m", "v", "peak", "grads"])
def test_one_tensor_that_changes_alone_is_seen(which, change):
    """But for one that becomes another view of its own memory without its gradient doing so."""
    if change is change_in_place and which != "grads":
        return
    rule, cache = RULES["amsgrad"], {}
    state = {**start(rule, params_of([(12, 5), (7,)])), "grads": params_of([(12, 5), (7,)])}
    step_cpu(Batch(rule, 1, rule.start, lr=0.1, **state), cache)
    old = state[which][0].detach().clone()
    change(state[which][0])
    if change is change_data:  # a new place is fine, and is where the step is taken
        before = state[which][0].clone()
        step_cpu(Batch(rule, 2, rule.start, lr=0.1, **state), cache)
        assert torch.equal(before, old + 1)
        assert torch.equal(state[which][0], before) == (which == "grads")
    else:
        everything = copy.deepcopy(state)
        with pytest.raises(Unfit):
            step_cpu(Batch(rule, 2, rule.start, lr=0.1, **state), cache)
        assert all(map(torch.equal, itertools.chain(*state.values()), itertools.chain(*everything.values())))


def test_memory_that_comes_to_be_shared_is_seen():
    """Two tensors in one place still look as they did."""
    cache, batch = {}, batch_of(numbers(5), numbers(5, seed=1))
    step_cpu(batch, cache)
    batch.params[1].data = batch.params[0].data
    with pytest.raises(Unfit, match="share memory"):
        step_cpu(batch, cache)


def test_replaced_state_is_the_state_that_is_stepped():
    rule, cache = Rule(), {}
    state = start(rule, params_of([(50,)]))
    for t in range(1, 4):
        step_cpu(Batch(rule, t, rule.weights.window(t - 1), grads=[numbers(50, seed=t)], lr=0.1, **state), cache)
        old = state["m"][0], state["m"][0].clone()
        state["m"] = [torch.zeros(50, dtype=F64)]
        step_cpu(Batch(rule, t, rule.weights.window(t - 1), grads=[numbers(50, seed=t)], lr=0.1, **state), cache)
        assert torch.equal(*old)
        assert state["m"][0].count_nonzero() == 50


@pytest.mark.parametrize("guards", [True, False])
def test_tensors_that_fit_are_not_examined_again(guards, monkeypatch):
    """Without the guards of torch they are compared one by one."""
    if not guards:
        monkeypatch.setattr(batches, "_TensorGuards", None)
    examined = []
    real = cpu._examine_tensors
    monkeypatch.setattr(cpu, "_examine_tensors", lambda rows, replicas: (examined.append(1), real(rows, replicas)))
    cache, batch = {}, batch_of(*params_of(SHAPES))
    for _ in range(5):
        batch.grads = [torch.ones_like(x) for x in batch.params]
        assert unfit(batch, cache) is None
        step_cpu(batch, cache)
    assert len(examined) == 1


def test_the_cache_may_serve_another_rule():
    cache, state = {}, start(Rule(), params_of(SHAPES))
    other = start(Rule(), params_of(SHAPES))
    for t in range(1, 11):
        rule = RULES[["wada", "wada_v3", "adam", "nadam"][t % 4]]
        step_cpu(Batch(rule, t, 3.0, grads=noise(SHAPES)(t), lr=0.1, **state), cache)
        step_plain(Batch(rule, t, 3.0, grads=noise(SHAPES)(t), lr=0.1, **other))
    assert_alike(state, other, 1e-12)


def test_the_cache_may_serve_tensors_in_other_roles():
    """Three rows of four where there were four of three: as many tensors, and the first nine in the same places."""
    wada, adagrad, x, cache = RULES["wada"], RULES["adagrad"], params_of([(5,)] * 12), {}
    step_cpu(Batch(wada, 1, 0.0, params=x[:3], m=x[3:6], v=[y.abs_() for y in x[6:9]], peak=[], grads=x[9:]), cache)
    y = copy.deepcopy(x)
    roles = [{"params": z[:4], "m": [], "v": [v.abs_() for v in z[4:8]], "peak": [], "grads": z[8:]} for z in (x, y)]
    step_cpu(Batch(adagrad, 2, 1.0, **roles[0], lr=0.1), cache)
    step_plain(Batch(adagrad, 2, 1.0, **roles[1], lr=0.1))
    assert_alike(*roles, 1e-12)


def test_a_batch_of_nothing_still_tells_the_window():
    assert step_cpu(Batch(Rule(), 3, 1.5, [], [], [], [], []), {}) == 2.0


def test_autograd_learns_that_parameters_have_changed():
    x = numbers(3).requires_grad_()
    loss = (x * x).sum()
    with torch.no_grad():
        step_cpu(batch_of(x), {})
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_no_torch_operation_and_so_no_temporary():
    called = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            called.append(func)
            return func(*args, **(kwargs or {}))

    batch, cache = batch_of(numbers(50_000), weight_decay=0.1, feasible=Box(-1, 1)), {}
    with Watch():
        step_cpu(batch, cache)
        step_cpu(batch, cache)
        assert called == []
        batch.params[0].add_(1)
        assert len(called) == 1, "the watch sees what there is to see"


def test_the_cache_keeps_no_tensor_alive():
    cache, batch = {}, batch_of(numbers(50))
    step_cpu(batch, cache)
    seen = [weakref.ref(x) for x in (*batch.params, *batch.grads, *batch.m)]
    del batch
    assert [x() for x in seen] == [None, None, None]


def test_gradients_are_only_read():
    g = numbers(50)
    before = g.clone()
    step_cpu(batch_of(numbers(50), grads=[g], maximize=True, weight_decay=0.1, grad_scale=torch.tensor(2.0)), {})
    assert torch.equal(g, before)


# ---------------------------------------------------------------- the checks can fail


def rule_check():
    test_every_rule_equals_plain_in_float64("amsgrad")


def chunk_check():
    test_many_tensors_of_many_chunks_equal_plain()


def alone_check():
    for change in CHANGES.values():
        test_one_tensor_that_changes_alone_is_seen("m", change)
        test_one_tensor_that_changes_alone_is_seen("grads", change)


def stride_check():
    test_one_tensor_that_changes_alone_is_seen("grads", change_strides_only)


# Old addresses lead into memory that was given back: for the mutant, keep it, so that the error is seen as one.
PLACES = "if plan.addresses is not plan.look.addresses:\n"
KEPT = (
    'kept = cache.setdefault("kept", [])\n    kept += [x.detach() for x in itertools.chain(*rows)]\n'
    "    if not plan.addresses:\n"
)
MUTANTS = {
    "momentum swapped": ("beta1 * ms[i] + fresh * g", "fresh * ms[i] + beta1 * g", rule_check),
    "maximum dropped": ("peak = _larger(peaks[i], u * v)", "peak = u * v", rule_check),
    "wrong exponent": ("now = _power(abs(g), whole, p1)", "now = _power(abs(g), 1, p1)", rule_check),
    "eps forgotten": ("V = v + (eps if v > zero else floor)", "V = v + (zero if v > zero else floor)",
                      lambda: test_options_equal_plain("wada", "large eps")),
    "box without a floor": ("x = lower if x < lower else x", "x = x", lambda: test_options_equal_plain("wada", "box")),
    "box without a ceiling": ("x = upper if x > upper else x", "x = x",
                              lambda: test_options_equal_plain("wada", "box")),
    "no decay": ("x = keep * x - step", "x = x - step", lambda: test_options_equal_plain("wada", "decoupled")),
    "penalty of the wrong sign": ("g = g + penalty * x", "g = g - penalty * x",
                                  lambda: test_options_equal_plain("wada", "L2")),
    "bfloat16 cut off": ("np.uint32(bits + np.uint32(0x7FFF) + odd)", "np.uint32(bits)",
                         lambda: test_bfloat16_is_rounded_to_nearest_even()),
    "lr of the first replica": ("alpha, keep = rates[replica, 0]", "alpha, keep = rates[0, 0]",
                                lambda: test_a_step_size_per_replica("wada", True)),
    "last number of a chunk forgotten": ("for i in range(count):", "for i in range(count - 1):", chunk_check),
    "a chunk too many": ("if chunk >= job.chunk_count:", "if chunk >= job.chunk_count - 1:", chunk_check),
    "tensors not compared": ("not plan.look.same(batch)", "False", lambda: stride_check()),
    "addresses kept": (PLACES, KEPT, alone_check),
    "places not examined": (
        "        _examine_places(rows, plan.look.addresses)\n",
        "",
        lambda: test_memory_that_comes_to_be_shared_is_seen(),
    ),
    "autograd not told": (
        "    increment_version(",
        "    len(",
        lambda: test_autograd_learns_that_parameters_have_changed(),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
@untraced()
def test_a_planted_error_is_caught(name, tmp_path, monkeypatch):
    """The module with one piece of text replaced, under its own name in a folder of its own, takes the real tests."""
    old, new, check = MUTANTS[name]
    source = Path(cpu.__file__).read_text()
    assert source.count(old) == 1, "the text to change is no longer there: bring the mutant up to date"
    (tmp_path / "mutant.py").write_text(source.replace(old, new))
    spec = importlib.util.spec_from_file_location("mutant", tmp_path / "mutant.py")
    mutant = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(mutant)
    for here in ("step_cpu", "unfit"):
        monkeypatch.setitem(globals(), here, getattr(mutant, here))
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        check()


@pytest.mark.parametrize("check", [rule_check, chunk_check, alone_check])
def test_without_an_error_they_pass(check):
    check()
