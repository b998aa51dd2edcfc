"""The torch optimizers, path by path, against the oracle, torch.optim and themselves."""

import copy
import io
import itertools
import math
import pickle

import forks
import numpy as np
import pytest
import torch
from forks import untraced
from tables import NAMED, PROBLEMS, RULES, gradients

import wagmf.torch
from wagmf.feasible import Ball, Box, NonNegative, Simplex
from wagmf.methods import METHODS
from wagmf.online import OnlineLearner
from wagmf.rule import Rule, fold
from wagmf.torch import WADA, WAGMF, Adam, Momentum
from wagmf.torch.batch import store
from wagmf.weights import Custom

PATHS = {"plain": {"foreach": False, "fused": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}


def make_params(dtype=torch.float64):
    """One of every kind: a matrix, a scalar, a transposed view, channels_last, empty, complex."""
    random = torch.Generator().manual_seed(0)

    def normal(*shape, dtype=dtype):
        return torch.randn(shape, generator=random, dtype=dtype)

    made = [
        normal(3, 4),
        normal(),
        normal(4, 3).t(),
        normal(2, 3, 2, 2).to(memory_format=torch.channels_last),
        normal(0, 3),
        normal(5, dtype=torch.complex128 if dtype == torch.float64 else torch.complex64),
    ]
    return [x.requires_grad_() for x in made]


def make_grads(params, T, problem="noise"):
    """T rounds of gradients; some are None, some zero."""
    flat = gradients(problem, T=T, d=64, seed=1)
    rounds = []
    for t in range(T):
        at, grads = 0, []
        for i, p in enumerate(params):
            pair = 2 if p.is_complex() else 1
            part = torch.from_numpy(flat[t, at : at + pair * p.numel()].copy())
            at += pair * p.numel()
            g = torch.view_as_complex(part.view(-1, 2)) if p.is_complex() else part
            missing = (t + i) % 7 == 3
            grads.append(None if missing else g.to(p.dtype).reshape(p.shape) * (0 if (t * i) % 11 == 5 else 1))
        rounds.append(grads)
    return rounds


def train(optimizer, params, rounds):
    """Step along the gradients; the kernel takes only those that lie in memory as their parameters do."""
    fused = optimizer.param_groups[0].get("fused")
    for grads in rounds:
        for p, g in zip(params, grads, strict=True):
            p.grad = None if g is None else torch.empty_like(p).copy_(g) if fused else g.clone()
        optimizer.step()
    return params


def flat(params):
    parts = [torch.view_as_real(p) if p.is_complex() else p for p in params]
    return torch.cat([p.detach().double().reshape(-1) for p in parts]).numpy()


def close(a, b, rel=1e-12):
    np.testing.assert_allclose(flat(a), flat(b), rtol=rel, atol=rel * max(1.0, np.abs(flat(b)).max(initial=0)))


# ------------------------------------------------------------------ the mathematics


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("name", RULES)
def test_every_path_walks_as_the_oracle(name, problem, path):
    params = make_params()
    rounds = make_grads(params, 12, problem)
    learners = [OnlineLearner(RULES[name], flat([p]), lr=0.1) for p in params]
    for grads in rounds:
        for learner, g in zip(learners, grads, strict=True):
            if g is not None:
                learner.update(flat([g]))
    train(WAGMF(params, lr=0.1, rule=RULES[name], **PATHS[path]), params, rounds)
    expected = np.concatenate([learner.predict() for learner in learners])
    np.testing.assert_allclose(flat(params), expected, rtol=1e-12, atol=1e-12 * np.abs(expected).max())


OPTIONS = {
    "weight decay": {"weight_decay": 0.1},
    "decoupled": {"weight_decay": 0.1, "decoupled_weight_decay": True},
    "maximize": {"maximize": True, "weight_decay": 0.1},
    "no eps": {"eps": 0.0},
    "lr tensor": {"lr": torch.tensor(0.05, dtype=torch.float64)},
    "float32 lr tensor": {"lr": torch.tensor(0.05)},
    "float32 lr tensor, decoupled": {"lr": torch.tensor(0.05), "weight_decay": 0.1, "decoupled_weight_decay": True},
}


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("name", RULES)
def test_every_path_is_plain_with_every_option(name, option):
    settings = {"lr": 0.1, **OPTIONS[option]}
    runs = []
    for path in PATHS.values():
        params = make_params()
        runs.append(train(WAGMF(params, rule=RULES[name], **settings, **path), params, make_grads(params, 12)))
    for run in runs[1:]:
        close(run, runs[0])


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (lambda p, **o: Adam(p, 0.1, eps=1e-8, **o), lambda p: torch.optim.Adam(p, 0.1)),
        (
            lambda p, **o: Adam(p, 0.1, eps=1e-8, weight_decay=0.1, maximize=True, **o),
            lambda p: torch.optim.Adam(p, 0.1, weight_decay=0.1, maximize=True),
        ),
        (
            lambda p, **o: Adam(p, 0.1, eps=1e-8, weight_decay=0.1, decoupled_weight_decay=True, **o),
            lambda p: torch.optim.AdamW(p, 0.1, weight_decay=0.1),
        ),
        (
            lambda p, **o: wagmf.torch.AMSGrad(p, 0.1, eps=1e-8, debias=True, **o),
            lambda p: torch.optim.Adam(p, 0.1, amsgrad=True),
        ),
        (lambda p, **o: wagmf.torch.RMSProp(p, 0.1, eps=1e-8, **o), lambda p: torch.optim.RMSprop(p, 0.1)),
        (lambda p, **o: wagmf.torch.OGD(p, 0.1, **o), lambda p: torch.optim.SGD(p, 0.1)),
        (lambda p, **o: Momentum(p, 1.0, **o), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)),
    ],
    ids=["adam", "adam options", "adamw", "amsgrad", "rmsprop", "sgd", "momentum"],
)  # fmt: skip
def test_equals_torch_optim(ours, theirs, path):
    runs = []
    for make in (lambda p: ours(p, **PATHS[path]), theirs):
        params = make_params()
        runs.append(train(make(params), params, make_grads(params, 40)))
    close(runs[0], runs[1])


@pytest.mark.parametrize("name", NAMED)
def test_named_classes_are_rows_of_the_table(name):
    cls = getattr(wagmf.torch, NAMED[name])
    (group,) = cls([torch.zeros(1)]).param_groups
    assert group["rule"] == METHODS[name].rule
    assert METHODS[name].summary in cls.__doc__
    assert METHODS[name].reference in cls.__doc__
    assert all(line in cls.__doc__ for line in (METHODS[name].phi, METHODS[name].psi))


def test_the_methods_own_parameters_reach_the_rule():
    rule = wagmf.torch.Padam([torch.zeros(1)], beta1=0.5, beta2=0.9, p2=4, debias=True, decay=0.5).param_groups[0][
        "rule"
    ]
    assert (rule.beta1, rule.weights.beta, rule.p2, rule.debias, rule.decay) == (0.5, 0.9, 4, True, 0.5)
    assert wagmf.torch.NosAdam([torch.zeros(1)], eta=-0.3).param_groups[0]["rule"].weights.eta == -0.3


@pytest.mark.parametrize("feasible", [Box(-0.5, 0.5), NonNegative(), Ball(1.0), Simplex()], ids=str)
def test_feasible_sets_are_projected_onto_in_the_norm_of_v(feasible):
    x = torch.full((4,), 0.25, dtype=torch.float64, requires_grad=True)
    learner = OnlineLearner(Rule(), x.detach().numpy(), lr=0.3, feasible=feasible)
    g = gradients("noise", T=20, d=4)
    for g_t in g:
        learner.update(g_t)
    train(WADA([x], 0.3, feasible=feasible), [x], [[torch.from_numpy(g_t)] for g_t in g])
    np.testing.assert_allclose(x.detach().numpy(), learner.predict(), rtol=1e-12, atol=1e-13)


def test_complex_parameters_and_sets_along_an_axis_are_refused():
    """The parts of a number would be an axis of their own."""
    with pytest.raises(ValueError, match="for complex parameters only sets that hold for the whole, axis=None"):
        WADA([torch.zeros(2, 3, dtype=torch.complex64)], feasible=Ball(1.0, axis=1))


# ------------------------------------------------------------------ what people count on


def test_a_missing_gradient_advances_nothing():
    a, b = torch.zeros(2, requires_grad=True), torch.zeros(2, requires_grad=True)
    optimizer = WADA([a, b])
    train(optimizer, [a, b], [[torch.ones(2), None]] * 3 + [[torch.ones(2), torch.ones(2)]])
    assert [optimizer.state[p]["step"].item() for p in (a, b)] == [4, 1]
    assert [optimizer.state[p]["window"].item() for p in (a, b)] == [2.5, 1]


def test_groups_override_every_option_and_the_rule():
    a, b = (torch.ones(2, dtype=torch.float64, requires_grad=True) for _ in range(2))
    own = {
        "params": [b],
        "lr": 0.5,
        "eps": 0.1,
        "weight_decay": 0.3,
        "maximize": True,
        "beta1": 0.0,
        "p1": 3.0,
        "decay": 0.5,
    }
    together = WADA([{"params": [a]}, own], lr=0.1)
    ones = torch.ones(2, dtype=torch.float64)
    train(together, [a, b], [[ones, ones]] * 5)
    alone = torch.ones(2, dtype=torch.float64, requires_grad=True)
    rule = Rule(p1=3, beta1=0, decay=0.5)
    train(WAGMF([alone], 0.5, rule=rule, eps=0.1, weight_decay=0.3, maximize=True), [alone], [[ones]] * 5)
    close([b], [alone])
    assert together.param_groups[0]["rule"] == Rule()
    assert together.param_groups[1]["rule"] == rule


def test_a_rule_can_be_changed_between_steps():
    a = torch.zeros(1, requires_grad=True)
    optimizer = Adam([a])
    optimizer.param_groups[0]["beta2"] = 0.9
    train(optimizer, [a], [[torch.ones(1)]])
    assert optimizer.param_groups[0]["rule"].weights.beta == 0.9


def test_named_parameters_and_added_groups():
    model = torch.nn.Linear(2, 2)
    optimizer = WADA([("weight", model.weight)])
    optimizer.add_param_group({"params": [("bias", model.bias)], "lr": 1.0})
    assert [group["param_names"] for group in optimizer.param_groups] == [["weight"], ["bias"]]
    assert optimizer.state_dict()["param_groups"][1]["param_names"] == ["bias"]
    assert optimizer.param_groups[1]["lr"] == 1.0


@pytest.mark.parametrize("path", ["plain", "fused"])
@pytest.mark.parametrize("name", ["wada", "adam", "amsgrad"])
def test_a_step_size_for_each_replica(name, path):
    lrs = torch.tensor([0.01, 0.1, 1.0], dtype=torch.float64)
    stacked = [torch.ones(3, 4, 2, dtype=torch.float64, requires_grad=True), torch.ones(3, dtype=torch.float64)]
    rounds = [[torch.randn(3, 4, 2, dtype=torch.float64), torch.randn(3, dtype=torch.float64)] for _ in range(10)]
    settings = {"rule": RULES[name], "weight_decay": 0.1, "decoupled_weight_decay": True, **PATHS[path]}
    train(WAGMF(stacked, lrs, **settings), stacked, rounds)
    for r, lr in enumerate(lrs.tolist()):
        single = [torch.ones(4, 2, dtype=torch.float64), torch.ones((), dtype=torch.float64)]
        train(WAGMF(single, lr, **settings), single, [[g[r] for g in grads] for grads in rounds])
        close([p[r] for p in stacked], single)


def test_closures_and_hooks():
    x = torch.ones(2, requires_grad=True)
    optimizer, seen = WADA([x], 0.1), []
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))

    def closure():
        optimizer.zero_grad()
        loss = (x**2).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 2.0
    assert optimizer.step(closure).item() < 2.0
    assert seen == ["before", "after"] * 2


@pytest.mark.parametrize(
    "schedule",
    [
        lambda o: torch.optim.lr_scheduler.StepLR(o, 2, 0.5),
        lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 5),
        lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=10, cycle_momentum=False),
        lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
    ],
    ids=["step", "cosine", "one cycle", "lambda"],
)
@pytest.mark.parametrize("tensor", [False, True])
def test_lr_schedulers(schedule, tensor):
    x = torch.zeros(1, requires_grad=True)
    optimizer = wagmf.torch.OGD([x], torch.tensor(0.1) if tensor else 0.1)
    scheduler, moved = schedule(optimizer), 0.0
    for _ in range(6):
        moved -= float(optimizer.param_groups[0]["lr"])
        train(optimizer, [x], [[torch.ones(1)]])
        scheduler.step()
    assert x.item() == pytest.approx(moved, rel=1e-5)
    assert float(optimizer.param_groups[0]["lr"]) != pytest.approx(0.1)


def test_averaged_models_follow():
    model = torch.nn.Linear(2, 1)
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.5))
    optimizer = WADA(model.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(4, 2)).sum().backward()
        optimizer.step()
        average.update_parameters(model)
    assert not torch.equal(average.module.weight, model.weight)


@pytest.mark.parametrize("fused", [None, False, True])
def test_grad_scaler_skips_a_step_with_infinities(fused):
    x = torch.ones(2, dtype=torch.float64, requires_grad=True)
    plain = x.detach().clone().requires_grad_()
    optimizer, scaler = WADA([x], 0.1, fused=fused), torch.amp.GradScaler("cpu", init_scale=1024.0)
    reference = WADA([plain], 0.1, fused=fused)
    for factor in (1.0, math.inf, 2.0):
        optimizer.zero_grad()
        scaler.scale((factor * x).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        if math.isfinite(factor):
            train(reference, [plain], [[torch.full((2,), factor, dtype=torch.float64)]])
    assert optimizer.state[x]["step"].item() == 2
    close([x], [plain])


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", ["wada", "adam", "ogd"])
@untraced()
def test_compiled_steps_do_not_recompile_under_a_schedule(name, backend):
    import torch._dynamo

    torch._dynamo.reset()
    params = [
        torch.ones(3, dtype=torch.float64, requires_grad=True),
        torch.ones((), dtype=torch.float64, requires_grad=True),
    ]
    eager = [p.detach().clone().requires_grad_() for p in params]
    optimizer = WAGMF(params, torch.tensor(0.1, dtype=torch.float64), rule=RULES[name])
    reference = WAGMF(eager, 0.1, rule=RULES[name], foreach=False)
    rounds = [[torch.randn_like(p) for p in params] for _ in range(8)]
    train(optimizer, params, rounds[:1])  # the first step makes the state
    train(reference, eager, rounds[:1])
    compiled = torch.compile(optimizer.step, backend=backend)
    for number, grads in enumerate(rounds[1:]):
        for p, g in zip(params, grads, strict=True):
            p.grad = g.clone()
        with torch._dynamo.config.patch(error_on_recompile=number > 0):
            compiled()
        train(reference, eager, [grads])
        lr = 0.1 * 0.9 ** (number + 1)
        optimizer.param_groups[0]["lr"].fill_(lr)
        reference.param_groups[0]["lr"] = lr
    close(params, eager)
    train(optimizer, params, rounds[:1])  # and on without it
    train(reference, eager, rounds[:1])
    close(params, eager)
    assert [optimizer.state[p]["step"].item() for p in params] == [9, 9]


@pytest.mark.parametrize("option", [*OPTIONS, "scaled", "from the first step on"])
@untraced()
def test_compiled_steps_take_every_option(option):
    """From the second step on, but for one that compiles also how the state is made."""
    import torch._dynamo

    torch._dynamo.reset()
    settings = {"lr": 0.1, "eps": 0.5, "fused": False, **OPTIONS.get(option, {})}
    runs = []
    for compiled in (False, True):
        params = [p for p in make_params() if p.is_complex() or p.ndim == 2]
        optimizer = WADA(params, **settings)
        step = torch.compile(optimizer.step, backend="aot_eager") if compiled else optimizer.step
        for t in range(3):
            for p in params:
                p.grad = torch.sin((p.detach() + 1) * (t + 1))
            if option == "scaled":
                optimizer.grad_scale = torch.tensor(4.0, dtype=torch.float64)
            (step if t or option == "from the first step on" else optimizer.step)()
        runs.append(params)
    close(*runs)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # from within torch
@untraced()
def test_compiled_from_the_first_step_on_it_recompiles_no_more_than_torch():
    import torch._dynamo
    from torch._dynamo.testing import CompileCounter

    counts = []
    for make in (WADA, lambda p, lr: torch.optim.Adam(p, lr, foreach=False)):
        torch._dynamo.reset()
        x = torch.ones(3, requires_grad=True)
        optimizer, counter = make([x], torch.tensor(0.1)), CompileCounter()
        step = torch.compile(optimizer.step, backend=counter)
        for _ in range(6):
            x.grad = torch.ones(3)
            step()
        counts.append(counter.frame_count)
    assert counts[0] <= 3
    assert counts[0] <= counts[1] + 2  # what makes the state, and what finds it made, are programs of their own


def test_a_step_can_be_differentiated():
    lr = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    weight = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)

    def loss_after(lr):
        x = weight.clone()
        optimizer = WADA([x], lr, differentiable=True)
        for _ in range(3):
            x.grad = 2 * x
            optimizer.step()
        return (x**2).sum()

    assert torch.autograd.gradcheck(loss_after, (lr,))


def test_sparse_gradients_are_refused_by_name():
    x = torch.zeros(4, requires_grad=True)
    x.grad = torch.sparse_coo_tensor([[1]], [1.0], (4,), check_invariants=True)
    with pytest.raises(RuntimeError, match=r"WADA does not take sparse gradients; .*\(4,\)"):
        WADA([x]).step()


def test_mixed_dtypes_in_one_optimizer():
    dtypes = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
    params = [torch.ones(3, dtype=dtype, requires_grad=True) for dtype in dtypes]
    optimizer = WADA(params, 0.01)
    train(optimizer, params, [[torch.ones(3, dtype=p.dtype) for p in params]] * 5)
    assert [optimizer.state[p]["v"].dtype for p in params] == [torch.float64] + [torch.float32] * 3
    for p in params[1:]:
        torch.testing.assert_close(p.double(), params[0], rtol=1e-2, atol=0)


def test_the_square_of_a_half_precision_gradient_does_not_overflow():
    x = torch.zeros(1, dtype=torch.float16, requires_grad=True)
    train(Adam([x], 0.125), [x], [[torch.full((1,), 1000.0, dtype=torch.float16)]])
    assert x.item() == -0.125


# ------------------------------------------------------------------ the path, and what it remembers


def test_the_kernel_is_chosen_wherever_it_fits_and_the_optimizer_says_so():
    params = make_params()
    optimizer = WADA(params, 0.1)
    assert optimizer.paths == []
    train(optimizer, params, [[torch.empty_like(p).copy_(g) for p, g in zip(params, params, strict=True)]])
    assert {line.split(" by ")[1] for line in optimizer.paths} == {"fused"}
    optimizer.param_groups[0]["feasible"] = Ball(1)
    optimizer.step()
    assert all("plain, not fused because of feasible=Ball" in line for line in optimizer.paths)


def test_a_gradient_laid_out_otherwise_sends_only_itself_another_way():
    params = [torch.zeros(3, 4), torch.zeros(5), torch.zeros(4, 3)]
    optimizer = WADA(params, 0.1)
    for odd in (False, True, False):
        for x in params:
            x.grad = torch.ones_like(x)
        if odd:
            params[0].grad = torch.ones(4, 3).t()
        optimizer.step()
        assert ("plain" in " ".join(optimizer.paths)) == odd
    for x in params:
        assert torch.all(x == params[1][0])


def test_without_a_compiler_it_says_so_and_steps_all_the_same(monkeypatch):
    monkeypatch.setattr("wagmf.torch.cpu.missing", lambda: "no Numba (for a test)")
    (x,) = one()
    with pytest.warns(RuntimeWarning, match="without its fused kernel: no Numba"):
        train(WADA([x], 1.0), [x], [[torch.ones(2)]])
    assert torch.all(x < 0)
    with pytest.raises(ValueError, match=r"Invalid fused: True.*no Numba"):
        train(WADA([x], fused=True), [x], [[torch.ones(2)]])


def new_state(optimizer, x):
    optimizer.state[x] = {name: value.clone() for name, value in optimizer.state[x].items()}


def new_entries(optimizer, x):
    for name, value in optimizer.state[x].items():
        optimizer.state[x][name] = value.clone()


def new_data(optimizer, x):
    x.data = x.data.clone()
    for name in ("m", "v"):
        optimizer.state[x][name].data = optimizer.state[x][name].data.clone()


def new_numbers(optimizer, x):
    """A warm restart by hand: everything at once, in place."""
    for value in optimizer.state[x].values():
        value.fill_(3.0)


def new_clock(optimizer, x):
    optimizer.state[x]["step"] = torch.tensor(7.0)
    optimizer.state[x]["window"] = torch.tensor(4.0)


def swapped(optimizer, x):
    """With another parameter of the same shape, whatever the clocks of the two are."""
    x, y = optimizer.param_groups[0]["params"][:2]
    optimizer.state[y]["step"].fill_(9.0)
    optimizer.state[y]["window"].fill_(5.0)
    optimizer.state[x], optimizer.state[y] = optimizer.state[y], optimizer.state[x]


def swapped_clocks(optimizer, x):
    x, y = optimizer.param_groups[0]["params"][:2]
    optimizer.state[y]["step"].fill_(9.0)
    optimizer.state[x]["step"], optimizer.state[y]["step"] = optimizer.state[y]["step"], optimizer.state[x]["step"]


def not_fused(optimizer, x):
    optimizer.param_groups[0]["fused"] = False


def no_momentum(optimizer, x):
    optimizer.param_groups[0]["beta1"] = 0.0


def with_maximum(optimizer, x):
    optimizer.param_groups[0]["monotone"] = True


def no_state(optimizer, x):
    del optimizer.state[x]


def no_entries(optimizer, x):
    optimizer.state[x].clear()


def loaded(optimizer, x):
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


def regrouped(optimizer, x):
    optimizer.param_groups[0]["params"].reverse()


def other_dtype(optimizer, x):
    for name in ("m", "v"):
        optimizer.state[x][name] = optimizer.state[x][name].float()


def regridded(optimizer, x):
    x.data = x.data.t().contiguous().t()
    x.grad = torch.empty_like(x)
    for name in ("m", "v"):
        optimizer.state[x][name] = optimizer.state[x][name].t().contiguous().t()


def forget(optimizer, *_):
    """Give every clock its own memory again, and start afresh."""
    optimizer._rosters.clear()
    for state in optimizer.state.values():
        state.update({name: state[name].clone() for name in ("step", "window") if name in state})
    optimizer._states = list(optimizer.state.values())


BETWEEN_STEPS = [new_state, new_entries, new_data, new_numbers, new_clock, no_state, no_entries, loaded, regrouped,
                 other_dtype, regridded, swapped, swapped_clocks, not_fused, no_momentum, with_maximum]  # fmt: skip


@pytest.mark.parametrize("change", BETWEEN_STEPS)
@pytest.mark.parametrize("which", ["one", "all"])
def test_nothing_remembered_is_stale(change, which):
    """Whatever is done to an optimizer between steps, it goes on from what is there, as one that remembers nothing."""
    runs = []
    for path in (PATHS["plain"], {}):
        params = [torch.ones(shape, dtype=torch.float64, requires_grad=True) for shape in ((3, 4), (3, 4), (4, 2))]
        optimizer = WADA(params, 0.1, **path)
        if path:
            optimizer.register_step_pre_hook(forget)
        rounds = make_grads(params, 9)
        rounds = [[torch.ones_like(p) if g is None else g for p, g in zip(params, r, strict=True)] for r in rounds]
        train(optimizer, params, rounds[:3])
        for x in params[: None if which == "all" else 1]:
            change(optimizer, x)
        train(optimizer, params, rounds[3:])
        clocks = [optimizer.state[p][name].item() for p in params for name in ("step", "window")]
        runs.append((params, clocks, [optimizer.state[p]["v"] for p in params]))
        wanted = "plain" if path or change is not_fused else "fused"
        assert all(f"by {wanted}" in line for line in optimizer.paths) or change in (other_dtype, regridded)
    close(runs[1][0], runs[0][0], 1e-6 if change is other_dtype else 1e-12)
    close(runs[1][2], runs[0][2], 1e-6 if change is other_dtype else 1e-12)
    assert runs[1][1] == runs[0][1]


def test_a_parameter_put_in_the_place_of_another_is_the_one_that_steps():
    old, new = (torch.zeros(2, requires_grad=True) for _ in range(2))
    optimizer = WADA([old], 1.0)
    old.grad, new.grad = torch.ones(2), torch.ones(2)
    optimizer.step()
    optimizer.param_groups[0]["params"][0] = new
    before = old.detach().clone()
    optimizer.step()
    assert torch.equal(old, before)
    assert torch.all(new < 0)
    assert optimizer.state[new]["step"].item() == 1


@pytest.mark.parametrize("path", PATHS)
def test_an_eps_that_rounds_to_zero_is_none(path):
    x = torch.ones(4, requires_grad=True)
    train(Adam([x], 0.5, eps=1e-50, **PATHS[path]), [x], [[torch.tensor([0.0, 1.0, 2.0, 0.0])]])
    torch.testing.assert_close(x.detach(), torch.tensor([1.0, 0.5, 0.5, 1.0]))


def test_a_state_that_takes_the_place_of_one_that_is_gone_is_looked_at():
    """Where the old one was, but not what it was."""
    from wagmf.torch.batch import Batch, Look

    x, g, m = torch.zeros(4), torch.zeros(4), torch.zeros(4)
    look = Look(Batch(Rule(), 1, 0.0, [x], [g], [m], [], []))
    other = m.view(torch.int32)
    assert other.data_ptr() == m.data_ptr()
    assert look.same(Batch(Rule(), 1, 0.0, [x], [g], [m], [], []))
    del m
    assert not look.same(Batch(Rule(), 1, 0.0, [x], [g], [other], [], []))


def test_a_dict_of_options_can_be_given_to_optimizers_of_several_kinds():
    (x,) = one()
    groups = [{"params": [x], "beta1": 0.5}]
    WADA(groups, lr=0.1)
    (group,) = Adam(groups, lr=0.2).param_groups
    assert groups == [{"params": [x], "beta1": 0.5}]
    assert group["rule"] == fold(METHODS["adam"].rule, {"beta1": 0.5})
    assert group["lr"] == 0.2


def test_betas_are_those_of_torch():
    runs = []
    for make in (lambda p: Adam([{"params": p, "betas": (0.5, 0.9)}], 0.1, eps=1e-8),
                 lambda p: torch.optim.Adam([{"params": p, "betas": (0.5, 0.9)}], 0.1)):  # fmt: skip
        params = make_params()
        runs.append(train(make(params), params, make_grads(params, 8)))
    close(*runs)


def test_schedulers_that_cycle_momentum():
    (x,) = one()
    optimizer = WADA([x], 0.1)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10)
    seen = []
    for _ in range(8):
        train(optimizer, [x], [[torch.ones(2)]])
        seen.append(optimizer.param_groups[0]["rule"].beta1)
        scheduler.step()
    assert seen[0] == pytest.approx(0.95)
    assert min(seen) == pytest.approx(0.85)
    coming = optimizer.param_groups[0]["momentum"]  # as the scheduler has set it for the next step
    assert coming != optimizer.param_groups[0]["rule"].beta1
    optimizer.load_state_dict(optimizer.state_dict())
    assert optimizer.param_groups[0]["momentum"] == coming


def test_hooks_see_and_change_checkpoints():
    """As torch's own recipe that loads by name, for parameters in another order."""
    a, b = torch.zeros(2, requires_grad=True), torch.zeros(2, requires_grad=True)
    first, second = Adam([a, b]), Adam([b, a])
    train(first, [a, b], [[torch.ones(2), 2 * torch.ones(2)]])
    first.register_state_dict_post_hook(lambda _, saved: {**saved, "rules": [g["rule"] for g in saved["param_groups"]]})
    saved = first.state_dict()
    assert saved["rules"] == [METHODS["adam"].rule.to_dict()]
    second.register_load_state_dict_pre_hook(lambda _, s: {**s, "state": {0: s["state"][1], 1: s["state"][0]}})
    second.load_state_dict(saved)
    assert all(torch.equal(second.state[p]["m"], first.state[p]["m"]) for p in (a, b))
    second.register_load_state_dict_post_hook(lambda optimizer: optimizer.state[a]["m"].zero_())
    second.load_state_dict(saved)
    assert second.state[a]["m"].count_nonzero() == 0
    assert first.state[a]["m"].count_nonzero() == 2


def test_old_state_goes_when_new_is_loaded():
    import weakref

    (x,) = one()
    optimizer = WADA([x])
    train(optimizer, [x], [[torch.ones(2)]] * 2)
    saved = copy.deepcopy(optimizer.state_dict())
    old = weakref.ref(optimizer.state[x]["m"])
    optimizer.load_state_dict(saved)
    assert old() is None
    before = saved["state"][0]["v"].clone()
    train(optimizer, [x], [[5 * torch.ones(2)]])
    assert torch.equal(saved["state"][0]["v"], before)


def test_numbers_of_numpy_make_no_checkpoint_that_cannot_be_loaded():
    (x,) = one()
    optimizer = WADA([x], np.float64(0.1), eps=np.float32(0.5), weight_decay=np.float64(0.1))
    buffer = io.BytesIO()
    torch.save(optimizer.state_dict(), buffer)
    buffer.seek(0)
    assert torch.load(buffer, weights_only=True)["param_groups"][0]["lr"] == 0.1


def test_parameters_can_be_swapped_for_others():
    """As Module.to does where torch is told to swap tensors."""
    model = torch.nn.Linear(3, 2)
    optimizer = Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        model.to(torch.float64)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    assert model.weight.dtype == torch.float64


def test_a_model_laid_out_anew_stays_with_the_kernel():
    model = torch.nn.Conv2d(3, 4, 3).double()
    twin = copy.deepcopy(model)
    optimizer, reference = WADA(model.parameters(), 0.1), WADA(twin.parameters(), 0.1, **PATHS["plain"])
    for t in range(4):
        if t == 2:
            model.to(memory_format=torch.channels_last)
        for net, one_of_them in ((model, optimizer), (twin, reference)):
            one_of_them.zero_grad()
            net(torch.ones(1, 3, 5, 5, dtype=torch.float64) * t).square().sum().backward()
            one_of_them.step()
    close(list(model.parameters()), list(twin.parameters()))
    assert all(line.endswith("by fused") for line in optimizer.paths)


@pytest.mark.parametrize("path", PATHS)
def test_a_sparse_gradient_after_dense_ones_is_refused_too(path):
    x = torch.zeros(4, requires_grad=True)
    optimizer = wagmf.torch.OGD([x], **PATHS[path])
    train(optimizer, [x], [[torch.ones(4)]])
    x.grad = torch.sparse_coo_tensor([[1]], [1.0], (4,), check_invariants=True)
    with pytest.raises(RuntimeError, match="does not take sparse gradients"):
        optimizer.step()


def test_an_lr_that_comes_to_have_a_wrong_shape_is_refused():
    (x,) = one()
    optimizer = WADA([x], torch.tensor([0.1, 0.2]))
    train(optimizer, [x], [[torch.ones(2)]])
    for wrong in (torch.ones(3), torch.ones(2, 1)):
        optimizer.param_groups[0]["lr"] = wrong
        with pytest.raises(ValueError, match="learning rate"):
            optimizer.step()


def test_a_group_that_is_refused_is_not_added():
    optimizer = WADA([torch.zeros(2, 3)], torch.ones(2))
    with pytest.raises(ValueError, match="learning rate"):
        optimizer.add_param_group({"params": [torch.zeros(5)]})
    assert len(optimizer.param_groups) == 1


def test_steps_where_tensors_are_only_imagined():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        x = torch.zeros(3, requires_grad=True)
        train(WADA([x]), [x], [[torch.ones(3)]])
    (x,) = one()
    with torch.device("meta"):
        train(WADA([x], 1.0), [x], [[torch.ones(2, device="cpu")]])
    assert torch.all(x < 0)


def test_foreach_looks_at_what_it_is_given():
    x = torch.zeros(2, requires_grad=True)
    optimizer = WADA([x], foreach=True)
    train(optimizer, [x], [[torch.ones(2)]])
    optimizer.state[x]["m"] = optimizer.state[x]["m"].bfloat16()
    with pytest.raises(ValueError, match="foreach"):
        optimizer.step()


def test_clocks_are_seen_and_pickled_one_by_one():
    params = [torch.zeros(2, requires_grad=True) for _ in range(300)]
    optimizer = WADA(params)
    train(optimizer, params, [[torch.ones(2)] * 300] * 2)
    assert optimizer.state[params[7]]["step"].item() == 2
    for state in (optimizer.state_dict()["state"], pickle.loads(pickle.dumps(optimizer)).state):
        sizes = {
            clock.untyped_storage().nbytes() for each in state.values() for clock in (each["step"], each["window"])
        }
        assert sizes == {8}


def test_what_no_longer_steps_is_not_held():
    import weakref

    x = torch.zeros(1000, requires_grad=True)
    optimizer = WADA([x])
    train(optimizer, [x], [[torch.ones(1000)]] * 2)
    seen = [weakref.ref(x.grad), weakref.ref(optimizer.state[x]["m"])]
    optimizer.zero_grad()
    optimizer.state[x]["m"] = torch.zeros(1000)
    assert [each() for each in seen] == [None, None]


def test_every_way_in_which_gradients_may_be_missing():
    params = [torch.zeros(2, dtype=torch.float64, requires_grad=True) for _ in range(6)]
    twins = [p.detach().clone().requires_grad_() for p in params]
    random = np.random.default_rng(0)
    rounds = [
        [torch.tensor(random.normal(size=2)) if random.random() < 0.5 else None for _ in params] for _ in range(120)
    ]
    train(WADA(params, 0.1), params, rounds)
    train(WADA(twins, 0.1, **PATHS["plain"]), twins, rounds)
    close(params, twins)


def test_hooks_of_a_subclass_are_called_once():
    class Mine(WADA):
        def step(self, closure=None):
            return super().step(closure)

    (x,) = one()
    optimizer, seen = Mine([x]), []
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))
    train(optimizer, [x], [[torch.ones(2)]])
    assert seen == ["before", "after"]


def test_the_profiler_and_global_hooks_see_the_step():
    from torch.optim.optimizer import register_optimizer_step_post_hook

    (x,) = one()
    optimizer, seen = WADA([x]), []
    handle = register_optimizer_step_post_hook(lambda *_: seen.append("after"))
    train(optimizer, [x], [[torch.ones(2)]])
    handle.remove()
    assert seen == ["after"]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        train(optimizer, [x], [[torch.ones(2)]])
    assert seen == ["after"]
    assert any(event.key == "Optimizer.step#WADA.step" for event in profile.key_averages())


@pytest.mark.parametrize("differentiable", [False, True])
def test_the_grad_mode_is_as_before_even_after_a_refusal(differentiable):
    (x,) = one()
    optimizer = WADA([x], fused=None if differentiable else True, feasible=Ball(1), differentiable=differentiable)
    x = x if not differentiable else None
    for mode in (True, False):
        with torch.set_grad_enabled(mode):
            if x is None:
                optimizer.step()
            else:
                x.grad = torch.ones(2)
                with pytest.raises(ValueError, match="fused"):
                    optimizer.step()
            assert torch.is_grad_enabled() == mode


def test_capturable_keeps_its_clocks_on_the_device_and_walks_the_same():
    runs = []
    for capturable in (False, True):
        params = make_params()
        optimizer = WADA(params, 0.1, capturable=capturable, decay=0.5)
        runs.append(train(optimizer, params, make_grads(params, 12)))
    close(*runs)


# ------------------------------------------------------------------ state


def run_in_two_halves(optimizer_of, handover):
    params = make_params()
    rounds = make_grads(params, 30)
    whole = train(optimizer_of(params), params, rounds)
    again = make_params()
    first = optimizer_of(again)
    train(first, again, rounds[:15])
    again, second = handover(first, again, optimizer_of)
    return whole, train(second, again, rounds[15:])


def through_a_file(first, params, optimizer_of):
    buffer = io.BytesIO()
    torch.save({"params": [p.detach() for p in params], "optimizer": first.state_dict()}, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=True)
    params = [p.requires_grad_() for p in loaded["params"]]
    second = optimizer_of(params)
    second.load_state_dict(loaded["optimizer"])
    return params, second


def through_pickle(first, params, optimizer_of):
    second = pickle.loads(pickle.dumps(first))
    return second.param_groups[0]["params"], second


def through_deepcopy(first, params, optimizer_of):
    second = copy.deepcopy(first)
    return second.param_groups[0]["params"], second


@pytest.mark.parametrize("handover", [through_a_file, through_pickle, through_deepcopy])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", ["wada", "amsgrad", "nadam", "ogd"])  # all others in a new process, below
def test_resuming_is_bit_exact(name, path, handover):
    whole, halves = run_in_two_halves(
        lambda params: WAGMF(params, 0.1, rule=METHODS[name].rule, **PATHS[path]), handover
    )
    np.testing.assert_array_equal(flat(whole), flat(halves))


def every_method_by_every_path(first, last, saved=None):
    """What the steps from ``first`` to ``last`` end with, after those that ended with what was ``saved``."""
    ended = {}
    for name, path in itertools.product(METHODS, PATHS):
        key = f"{name} {path}"
        x = torch.randn(20, generator=torch.Generator().manual_seed(0)).requires_grad_()
        optimizer = WAGMF([x], 0.1, rule=METHODS[name].rule, **PATHS[path])
        if saved is not None:
            x.data.copy_(saved[key]["x"])
            optimizer.load_state_dict(saved[key]["optimizer"])
        for t in range(first, last):
            x.grad = torch.sin(x.detach() * t)
            optimizer.step()
        ended[key] = {"x": x.detach(), "optimizer": optimizer.state_dict()}
    return ended


def test_resuming_in_a_new_process_is_bit_exact(tmp_path):
    """Every method by every path: 50 steps, and 50 more in another process, are 100."""
    half, halves = tmp_path / "half", tmp_path / "halves"
    torch.save(every_method_by_every_path(0, 50), half)
    script = f"""
import torch
from test_torch import every_method_by_every_path
torch.save(every_method_by_every_path(50, 100, torch.load({str(half)!r}, weights_only=True)), {str(halves)!r})
"""
    result = forks.run(forks.program, script)
    assert result.code == 0, result.said[-4000:]
    whole, halves = every_method_by_every_path(0, 100), torch.load(halves, weights_only=True)
    assert len(whole) == 3 * len(METHODS)
    for key, ended in whole.items():
        assert torch.equal(ended["x"], halves[key]["x"]), key
        for name, value in ended["optimizer"]["state"][0].items():
            assert torch.equal(value, halves[key]["optimizer"]["state"][0][name]), (key, name)


@pytest.mark.parametrize("there", PATHS)
@pytest.mark.parametrize("here", PATHS)
def test_state_moves_between_paths(here, there):
    params = make_params()
    rounds = make_grads(params, 20)
    whole = train(WADA(params, 0.1, **PATHS["plain"]), params, rounds)
    moved = make_params()
    first, second = WADA(moved, 0.1, **PATHS[here]), WADA(moved, 0.1)
    train(first, moved, rounds[:10])
    second.load_state_dict(first.state_dict())
    second.param_groups[0].update({"foreach": None, "fused": None, **PATHS[there]})
    close(train(second, moved, rounds[10:]), whole)
    assert {line.split(" by ")[1].split(",")[0] for line in second.paths} == {there}


def test_half_precision_state_is_not_rounded_by_loading():
    x = torch.ones(100, dtype=torch.bfloat16, requires_grad=True)
    first = WADA([x])
    train(first, [x], [[torch.randn(100, dtype=torch.bfloat16)] for _ in range(3)])
    second = WADA([x])
    second.load_state_dict(first.state_dict())
    assert second.state[x]["v"].dtype == torch.float32
    assert torch.equal(second.state[x]["v"], first.state[x]["v"])


def test_a_checkpoint_of_another_rule_is_refused_unless_told():
    x = torch.ones(2, requires_grad=True)
    wada, v3 = WADA([x]), wagmf.torch.WADAv3([x])
    train(wada, [x], [[torch.ones(2)]])
    with pytest.raises(ValueError, match=r"group 0: p1 2.0 there, 3.0 here.*saved"):
        v3.load_state_dict(wada.state_dict())
    assert v3.param_groups[0]["rule"].p1 == 3
    v3.load_state_dict(wada.state_dict(), rule="current")
    assert v3.param_groups[0]["rule"].p1 == 3
    v3.load_state_dict(wada.state_dict(), rule="saved")
    assert v3.param_groups[0]["rule"] == Rule()
    with pytest.raises(ValueError, match="did you mean 'saved'"):
        v3.load_state_dict(wada.state_dict(), rule="save")


def test_a_saved_state_does_not_change_with_later_steps_and_keeps_the_set():
    x = torch.ones(2, requires_grad=True)
    optimizer = WADA([x], feasible=Box(-1, 1))
    train(optimizer, [x], [[torch.ones(2)]])
    saved = optimizer.state_dict()
    train(optimizer, [x], [[torch.ones(2)]])
    assert saved["state"][0]["step"].item() == 1
    optimizer.load_state_dict(saved)
    assert isinstance(optimizer.param_groups[0]["feasible"], Box)


def test_custom_weights_train_but_cannot_be_saved():
    x = torch.ones(2, requires_grad=True)
    optimizer = WAGMF([x], rule=Rule(Custom(lambda t: t * 1.0)))
    train(optimizer, [x], [[torch.ones(2)]] * 2)
    with pytest.raises(ValueError, match="Custom"):
        optimizer.state_dict()


# ------------------------------------------------------------------ precision


def test_stochastic_rounding_is_right_on_average():
    torch.manual_seed(0)
    value = torch.tensor(1 + 0.3 * 2**-7).expand(200_000).clone()
    target = torch.empty(200_000, dtype=torch.bfloat16)
    store(target, value, stochastic=True)
    share = (target.double() > 1).double().mean().item()
    assert abs(share - 0.3) < 5 * math.sqrt(0.3 * 0.7 / 200_000)
    store(target, -value.double(), stochastic=True)
    share = (target.double() < -1).double().mean().item()
    assert abs(share - 0.3) < 5 * math.sqrt(0.3 * 0.7 / 200_000)
    store(target, value, stochastic=False)
    assert torch.all(target == 1)


def test_stochastic_rounding_keeps_what_is_not_finite_and_what_is_exact():
    value = torch.tensor([math.inf, -math.inf, math.nan, 1.0, -2.5, 0.0])
    target = torch.empty(6, dtype=torch.bfloat16)
    store(target, value, stochastic=True)
    assert torch.equal(target.isnan(), value.isnan())
    assert torch.equal(target[[0, 1, 3, 4, 5]].float(), value[[0, 1, 3, 4, 5]])


@pytest.mark.parametrize(("stochastic", "moves"), [(False, False), (True, True)])
def test_small_steps_stall_with_nearest_rounding_and_move_without(stochastic, moves):
    torch.manual_seed(0)
    x = torch.full((1000,), 256.0, dtype=torch.bfloat16, requires_grad=True)
    optimizer = wagmf.torch.OGD([x], 0.01, stochastic_rounding=stochastic)
    train(optimizer, [x], [[torch.ones(1000, dtype=torch.bfloat16)]] * 50)
    moved = 256 - x.float().mean().item()
    assert moved == pytest.approx(0.5, rel=0.2) if moves else moved == 0


def test_bfloat16_state():
    x = torch.ones(1000, dtype=torch.bfloat16, requires_grad=True)
    optimizer = Adam([x], 1e-2, state_dtype=torch.bfloat16, stochastic_rounding=True)
    train(optimizer, [x], [[torch.ones(1000, dtype=torch.bfloat16)]] * 20)
    assert {optimizer.state[x][name].dtype for name in ("m", "v")} == {torch.bfloat16}
    assert x.float().mean().item() == pytest.approx(1 - 20 * 1e-2, rel=0.02)


# ------------------------------------------------------------------ what is refused


def one():
    return [torch.zeros(2, requires_grad=True)]


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: WADA(one(), -1.0), ["learning rate", "-1.0", "lr"]),
        (lambda: WADA(one(), math.nan), ["learning rate", "nan"]),
        (lambda: WADA(one(), "0.1"), ["learning rate", "'0.1'"]),
        (lambda: WADA(one(), torch.ones(2, 2)), ["learning rate", "one entry per replica"]),
        (lambda: WADA(one(), torch.tensor(1)), ["learning rate", "floating-point"]),
        (lambda: WADA(one(), torch.ones(3)), ["learning rate", "(3,)", "(2,)"]),
        (lambda: WADA(one(), eps=-1e-8), ["eps", "-1e-08"]),
        (lambda: WADA(one(), weight_decay=-0.1), ["weight_decay", "-0.1"]),
        (lambda: WADA(one(), weight_decay=math.nan), ["weight_decay", "nan"]),
        (lambda: WADA(one(), decay=-1), ["decay", "-1"]),
        (lambda: WADA(one(), beta1=1.0), ["beta1", "1.0"]),
        (lambda: WADA(one(), beta1=-0.1), ["beta1", "-0.1"]),
        (lambda: Adam(one(), beta2=1.0), ["beta2", "1.0"]),
        (lambda: Adam(one(), beta2=0.0), ["beta2", "0.0"]),
        (lambda: Adam([{"params": one(), "betas": 0.9}]), ["betas", "0.9"]),
        (lambda: Adam([{"params": one(), "betas": (0.9, 2.0)}]), ["beta2", "2.0"]),
        (lambda: Adam([{"params": one(), "amsgrad": True}]), ["amsgrad", "True"]),
        (lambda: WADA(one() * 2), ["params", "(2,)", "twice"]),
        (lambda: WADA(one(), torch.tensor(-1.0)), ["learning rate", "-1."]),
        (lambda: WADA(one(), torch.tensor(math.nan)), ["learning rate", "nan"]),
        (lambda: WADA(one(), torch.ones(2), feasible=Ball(1)), ["feasible", "Ball", "replica"]),
        (lambda: WADA(one(), fused=1), ["fused", "1"]),
        (lambda: WADA(one(), fused=torch.tensor(True)), ["fused", "tensor"]),
        (lambda: WADA([{"params": one(), "differentiable": True}]), ["differentiable", "True", "all groups"]),
        (lambda: WADA(one()).load_state_dict({}), ["checkpoint", "rule"]),
        (lambda: Adam(one()).load_state_dict(torch.optim.AdamW(one()).state_dict()), ["checkpoint", "betas", "rule"]),
        (lambda: Adam(one(), debias=1), ["debias", "1"]),
        (lambda: wagmf.torch.Padam(one(), p2=0), ["p2", "0"]),
        (lambda: wagmf.torch.NosAdam(one(), eta=math.nan), ["eta", "nan"]),
        (lambda: WAGMF(one(), rule="wada"), ["rule", "'wada'"]),
        (lambda: WADA(one(), feasible=(-1, 1)), ["feasible", "(-1, 1)"]),
        (lambda: WADA(one(), maximize=1), ["maximize", "1"]),
        (lambda: WADA(one(), decoupled_weight_decay="yes"), ["decoupled_weight_decay", "'yes'"]),
        (lambda: WADA(one(), capturable=None), ["capturable", "None"]),
        (lambda: WADA(one(), foreach="on"), ["foreach", "'on'"]),
        (lambda: WADA(one(), foreach=True, fused=True), ["foreach, fused", "at most one"]),
        (lambda: WADA(one(), foreach=True, differentiable=True), ["differentiable", "True"]),
        (lambda: WADA(one(), state_dtype=torch.int32), ["state_dtype", "torch.int32"]),
        (lambda: WADA(one(), state_dtype="bf16"), ["state_dtype", "'bf16'"]),
        (lambda: WADA([{"params": one(), "beta1": 2.0}]), ["beta1", "2.0"]),
        (lambda: WADA([{"params": one(), "beta2": 0.9}]), ["beta2", "0.9", "Linear()"]),
        (lambda: WADA([{"params": one(), "eta": 0.9}]), ["eta", "0.9", "Linear()"]),
        (lambda: WADA([{"params": one(), "lr": -2.0}]), ["learning rate", "-2.0"]),
        (lambda: train(WADA(p := one(), foreach=True, feasible=Ball(1)), p, [[torch.ones(2)]]), ["foreach", "Ball"]),
        (lambda: train(WADA(p := one(), fused=True, feasible=Ball(1)), p, [[torch.ones(2)]]), ["fused", "Ball"]),
    ],
)
def test_bad_calls_are_refused_by_name_and_value(call, named):
    with pytest.raises(ValueError, match="Invalid") as refusal:
        call()
    assert all(word in str(refusal.value) for word in named), refusal.value


def test_a_refused_step_leaves_the_state_as_it_was():
    (x,) = one()
    optimizer = WADA([x], foreach=True)
    train(optimizer, [x], [[torch.ones(2)]])
    optimizer.param_groups[0]["feasible"] = Ball(1)
    with pytest.raises(ValueError, match="Invalid foreach"):
        optimizer.step()
    assert (optimizer.state[x]["step"].item(), optimizer.state[x]["window"].item()) == (1, 1)


def test_what_torch_refuses_is_refused_in_its_words():
    with pytest.raises(ValueError, match="empty parameter list"):
        WADA([])
    with pytest.raises(TypeError, match="can only optimize Tensors"):
        WADA([1.0])
    with pytest.raises(TypeError, match="param_group must be a dict"):
        WADA(one()).add_param_group(3)
    with pytest.raises(TypeError):
        WADA(one(), momentum=0.9)
