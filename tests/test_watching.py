"""A watched optimizer walks as before, and what is told of it is what the rule did."""

import math
import statistics

import numpy as np
import pytest
import torch
from forks import untraced
from tables import RULES, gradients
from torch.utils._python_dispatch import TorchDispatchMode

from wagmf.feasible import Box
from wagmf.rule import update
from wagmf.torch import OGD, WADA, WAGMF, watch, watching

PATHS = {"plain": {"foreach": False, "fused": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}


class Told(dict):
    """What was told, by step and by the end of the tag."""

    def add_scalar(self, tag, value, step):
        assert isinstance(value, float)
        self.setdefault(step, {})[tag.removeprefix("optimizer/")] = value


def walk(optimizer, params, rounds):
    for grads in rounds:
        for x, g in zip(params, grads, strict=True):
            x.grad = None if g is None else torch.empty_like(x).copy_(g)
        optimizer.step()


def some_params(path):
    """A matrix, a transposed one, nothing, complex numbers, and half precision where the path takes it."""
    random = torch.Generator().manual_seed(0)
    made = [torch.randn(3, 4, generator=random), torch.randn(4, 3, generator=random).t(), torch.zeros(0, 2)]
    made.append(torch.randn(5, generator=random, dtype=torch.complex64))
    if path != "foreach":
        made.append(torch.randn(6, generator=random).bfloat16())
    return [x.requires_grad_() for x in made]


def some_grads(params, T):
    random = torch.Generator().manual_seed(1)
    rounds = [[torch.randn(x.shape, generator=random, dtype=x.dtype) for x in params] for _ in range(T)]
    return [[None if (t + i) % 5 == 4 else g for i, g in enumerate(grads)] for t, grads in enumerate(rounds)]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", ["wada", "adam", "amsgrad", "ogd"])
def test_watching_changes_nothing(name, path):
    ends = []
    for every in (None, 1, 3):
        params, told = some_params(path), Told()
        optimizer = WAGMF(params, 0.1, rule=RULES[name], weight_decay=0.01, **PATHS[path])
        if every:
            watch(optimizer, told, every)
        walk(optimizer, params, some_grads(params, 10))
        assert list(told) == (list(range(every, 9, every)) if every else [])  # every parameter misses two of ten
        ends.append([*params, *(kept for x in params for kept in optimizer.state[x].values())])
    for other in ends[1:]:
        assert all(torch.equal(a, b) for a, b in zip(ends[0], other, strict=True))


def by_the_oracle(rule, x, grads, lr):
    """What should be told after each step, from the rule in NumPy."""
    u, m, v, peak, rows = rule.start, *np.zeros((3, x.size)), []
    for t, g in enumerate(grads, 1):
        new = update(rule, t, u, g, m, v, peak, lr=lr)
        u, m, v, peak = new[2:]
        row = {"lr": lr}
        if rule.adapts:
            row |= {"window": u, "V/min": new.V.min(), "V/max": new.V.max()}
            row["V/median"] = statistics.median_low(new.V)
        size = np.linalg.norm(new.step)
        row |= {"update/norm": size, "update/rms": np.sqrt(np.mean(new.step**2))}
        rows.append(row | {"update/ratio": size / np.linalg.norm(x)})
        x = x - new.step
    return rows


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", RULES)
def test_what_is_told_is_what_the_rule_did(name, path):
    start, grads = np.linspace(1.0, 2.0, 7), gradients("noise", T=6, d=7)
    params = [torch.tensor(start[:4]).requires_grad_(), torch.tensor(start[4:]).requires_grad_()]
    optimizer, told = WAGMF(params, 0.1, rule=RULES[name], **PATHS[path]), Told()
    watch(optimizer, told, every=2)
    walk(optimizer, params, [[torch.from_numpy(g[:4].copy()), torch.from_numpy(g[4:].copy())] for g in grads])
    rows = by_the_oracle(RULES[name], start, grads, 0.1)
    assert list(told) == [2, 4, 6]
    for step, said in told.items():
        assert said == pytest.approx({f"group0/{k}": value for k, value in rows[step - 1].items()}, rel=1e-9)


def test_the_step_that_was_taken_is_told_with_decay_and_projection():
    x, told = torch.full((4,), 3.0, requires_grad=True), Told()
    optimizer = OGD([x], 0.5, weight_decay=0.5, decoupled_weight_decay=True, feasible=Box(2.0, 9.0))
    watch(optimizer, told, 1)
    walk(optimizer, [x], [[torch.tensor([0.0, 0.0, 0.0, 4.0])]])  # to 2.25, and to 0.25, which is moved to 2
    said = told[1]
    assert said["group0/update/norm"] == pytest.approx(math.sqrt(3 * 0.75**2 + 1))
    assert said["group0/update/ratio"] == pytest.approx(said["group0/update/norm"] / 6)
    assert "group0/window" not in said
    assert "group0/V/min" not in said


def test_each_group_tells_of_what_stepped_in_it():
    x, y, z, still = (torch.ones(2, requires_grad=True) for _ in range(4))
    groups = [{"params": [x, still]}, {"params": [y], "lr": 0.25}, {"params": [z], "lr": torch.tensor([0.1, 0.3])}]
    optimizer, told = WADA(groups, lr=0.5, beta1=0.0), Told()
    watch(optimizer, told, 1)
    g = torch.ones(2)
    walk(optimizer, [x, y, z], [[g, g, g], [g, None, g]])
    assert told[1]["group0/update/rms"] == pytest.approx(0.5)  # not of those that stayed, too
    assert told[1]["group1/update/rms"] == pytest.approx(0.25)
    assert told[1]["group2/lr/max"] == pytest.approx(0.3)
    assert told[1]["group2/update/norm"] == pytest.approx(math.hypot(0.1, 0.3))
    assert {tag for tag in told[2] if tag.startswith("group1")} == {"group1/lr"}
    assert told[2]["group0/window"] == 1.5


def test_parameters_that_are_zero_have_no_ratio():
    x, told = torch.zeros(2, requires_grad=True), Told()
    optimizer = WADA([x])
    watch(optimizer, told, 1)
    walk(optimizer, [x], [[torch.ones(2)]])
    assert "group0/update/rms" in told[1]
    assert "group0/update/ratio" not in told[1]


def test_the_middle_of_many_is_that_of_a_sample(monkeypatch):
    monkeypatch.setattr(watching, "_SAMPLE", 10)
    g, told = torch.arange(1.0, 102.0), Told()
    x = torch.ones(101, requires_grad=True)
    optimizer = WAGMF([x], rule=RULES["adam"], eps=0.0)  # whose V at first is |g|
    watch(optimizer, told, 1)
    walk(optimizer, [x], [[g]])
    said = [told[1][f"group0/V/{which}"] for which in ("min", "median", "max")]
    assert said == pytest.approx([1.0, statistics.median_low(range(1, 102, 11)), 101.0])


class Operations(TorchDispatchMode):
    """The names of all that torch is asked to do."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_a_step_that_is_not_told_of_costs_what_any_hook_does():
    asked = []
    for every in (None, 4, 3):
        x = torch.ones(3, requires_grad=True)
        optimizer = WADA([x], fused=False)
        if every:
            watch(optimizer, Told(), every)
        else:
            optimizer.register_step_post_hook(lambda *_: None)
        walk(optimizer, [x], [[torch.ones(3)]] * 2)
        x.grad = torch.ones(3)
        with Operations() as done:
            optimizer.step()
        asked.append(done.names)
    assert asked[0] == asked[1]
    assert len(asked[2]) > len(asked[0])


def test_a_watch_ends():
    x, told = torch.ones(2, requires_grad=True), Told()
    optimizer = WADA([x])
    with watch(optimizer, told, 1):
        walk(optimizer, [x], [[torch.ones(2)]])
    handle = watch(optimizer, told, 1, name="again")
    walk(optimizer, [x], [[torch.ones(2)]])
    handle.remove()
    walk(optimizer, [x], [[torch.ones(2)]])
    optimizer.load_state_dict(optimizer.state_dict())
    assert list(told) == [1, 2]
    assert "again/group0/lr" in told[2]
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    assert not optimizer._optimizer_load_state_dict_post_hooks


def test_steps_are_counted_on_from_a_checkpoint_and_from_when_the_watch_begins():
    x, told = torch.ones(2, requires_grad=True), Told()
    first, second = WADA([x]), WADA([x])
    walk(first, [x], [[torch.ones(2)]] * 7)
    watch(first, told, 5)
    walk(first, [x], [[torch.ones(2)]] * 3)
    watch(second, told, 4)
    walk(second, [x], [[torch.ones(2)]])
    second.load_state_dict(first.state_dict())
    walk(second, [x], [[torch.ones(2)]] * 6)
    assert list(told) == [10, 12, 16]


def scaled_walk(optimizer, x, factors):
    """Steps under a scaler, which skips those whose factor is infinite."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for factor in factors:
        optimizer.zero_grad()
        scaler.scale((factor * x).sum()).backward()
        scaler.step(optimizer)
        scaler.update()


SKIPS = {
    "at first": [math.inf] * 4 + [1.0] * 16,
    "where told of": [1.0] * 4 + [math.inf] * 2 + [1.0] * 12,
    "between": [1.0, math.inf, 1.0, 1.0, math.inf, 1.0, 1.0, math.inf] + [1.0] * 12,
    "more than told of": [1.0] + [math.inf] * 11 + [1.0] * 15,
}


@pytest.mark.parametrize("fused", [None, False, True])
@pytest.mark.parametrize("which", SKIPS)
def test_steps_that_a_scaler_skips_are_neither_told_of_nor_counted(which, fused):
    x, told = torch.ones(2, requires_grad=True), Told()
    optimizer = WADA([x], 0.1, fused=fused)
    watch(optimizer, told, 5)
    scaled_walk(optimizer, x, SKIPS[which])
    assert optimizer.state[x]["step"] in range(15, 20)
    assert {step: said["group0/window"] for step, said in told.items()} == {5: 3.0, 10: 5.5, 15: 8.0}
    assert all(said["group0/update/norm"] > 0 for said in told.values())


@pytest.mark.parametrize("fused", [None, True])
def test_a_step_that_is_skipped_is_not_told_of_though_every_one_is(fused):
    x, told = torch.ones(2, requires_grad=True), []
    optimizer, writer = WADA([x], 0.1, fused=fused), Told()
    writer.add_scalar = lambda tag, value, step: told.append(step)
    watch(optimizer, writer, 1)
    scaled_walk(optimizer, x, [1.0, math.inf, 1.0, math.inf, math.inf, 1.0])
    assert told == [step for step in (1, 2, 3) for _ in range(8)]


def test_the_clock_is_read_where_a_step_is_told_of_and_once_for_what_was_skipped(monkeypatch):
    """On a GPU the host would wait for it."""
    x, read, copied, clocks = torch.ones(2, requires_grad=True), [], [], watching._clocks
    optimizer = WADA([x], 0.1, fused=True)
    scaled_walk(optimizer, x, [1.0])
    watch(optimizer, Told(), 5)
    for call, factor in enumerate([math.inf, math.inf] + [1.0] * 9, 2):
        monkeypatch.setattr(watching, "_clocks", lambda asked, call=call: read.append(call) or clocks(asked))
        with Operations() as done:
            scaled_walk(optimizer, x, [factor])
        copied += [call] * ("aten.clone.default" in done.names)
    assert read == [2, 5, 7, 7, 12, 12]  # first for where to count from; at 5 two are found to have been skipped
    assert copied == [7, 12]


@pytest.mark.parametrize(("every", "steps"), [(1, [1, 1, 2, 2, 3, 3, 4]), (2, [2, 4]), (3, [3])])
def test_a_step_of_what_lags_behind_has_the_number_of_the_clock(every, steps):
    x, y, told = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True), []
    optimizer, writer = WADA([x, y]), Told()
    writer.add_scalar = lambda tag, value, step: told.append(step) if tag.endswith("lr") else None
    watch(optimizer, writer, every)
    walk(optimizer, [x, y], [[torch.ones(2), None], [None, torch.ones(2)]] * 3 + [[torch.ones(2), None]])
    assert told == steps


def test_gradients_from_a_closure_are_seen():
    x, told = torch.ones(2, requires_grad=True), Told()
    optimizer = WADA([x], 0.5, beta1=0.0)
    watch(optimizer, told, 1)

    def closure():
        optimizer.zero_grad()
        loss = x.sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 2.0
    assert told[1]["group0/update/rms"] == pytest.approx(0.5)


@untraced()
def test_a_compiled_step_goes_on_and_is_not_told_of():
    import torch._dynamo

    ends = []
    for watched in (False, True):
        torch._dynamo.reset()
        x, told = torch.ones(3, dtype=torch.float64, requires_grad=True), Told()
        optimizer = WADA([x], torch.tensor(0.1, dtype=torch.float64))
        if watched:
            watch(optimizer, told, 1)
        step = torch.compile(optimizer.step, backend="aot_eager")
        for t in range(3):
            x.grad = torch.sin(x.detach() + t)
            step()
        assert not told
        ends.append(x)
    assert torch.equal(*ends)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda x: watch(torch.optim.AdamW([x]), Told()), r"optimizer: 'AdamW' \(an optimizer of wagmf\.torch itself"),
        (lambda x: watch(WADA([x]), print), r"writer: <built-in function print> \(anything with add_scalar"),
        (lambda x: watch(WADA([x]), Told(), 0), r"every: 0 \(every must be an integer >= 1\)"),
        (lambda x: watch(WADA([x]), Told(), 2.5), r"every: 2\.5 \(every must be an integer >= 1\)"),
    ],
)
def test_bad_calls_are_refused_by_name_and_value(call, named):
    with pytest.raises(ValueError, match=named):
        call(torch.ones(2, requires_grad=True))
