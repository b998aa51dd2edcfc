"""The rule against the paper's own algorithms, against torch.optim, in every framework and in low precision."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import paper
import pytest
import torch
from tables import PROBLEMS, RULES, gradients

from wagmf.methods import METHODS
from wagmf.rule import Rule, power, root, update
from wagmf.weights import Custom, Exponential, Latest, Linear, Polynomial, Weights


@pytest.fixture(autouse=True, scope="module")
def float64_in_jax():
    with jax.enable_x64(True):
        yield


def run(rule, g, lr=0.1, eps=1e-7):
    """x_{t+1} and V_t after every gradient, from x = 0 without constraint."""
    x, u, m, v, peak = np.zeros(g.shape[1]), rule.start, *np.zeros((3, g.shape[1]))
    xs, Vs = [], []
    for t, g_t in enumerate(g, start=1):
        step, V, u, m, v, peak = update(rule, t, u, g_t, m, v, peak, lr=lr, eps=eps)
        x = x - step
        xs.append(x)
        Vs.append(V * np.ones_like(x))
    return np.array(xs), np.array(Vs)


def assert_same(ours, theirs, rel=1e-12):
    """Relative to the largest value of the trajectory: an iterate may pass through zero, its rounding does not."""
    theirs = np.asarray(theirs, dtype=np.float64)
    np.testing.assert_allclose(ours, theirs, rtol=rel, atol=rel * np.abs(theirs).max())


# ------------------------------------------------------------------ against the paper


@pytest.mark.parametrize("name", paper.AS_WRITTEN)
def test_update_is_algorithm_2_with_raw_sums(name):
    g = gradients("noise", T=1000, d=2, seed=1)
    g[:, 1] *= np.where(np.arange(1000) % 7 == 0, 100, 0.01)
    xs, Vs = run(RULES[name], g)
    for i in range(2):
        x, V = paper.algorithm2(g[:, i], **paper.AS_WRITTEN[name])
        np.testing.assert_allclose(Vs[:, i], np.array(V, dtype=float), rtol=1e-12)
        assert_same(xs[:, i], x)


def test_every_method_is_transcribed():
    assert set(METHODS) <= set(paper.AS_WRITTEN)


def test_wada_is_algorithm_3():
    g = gradients("noise", T=1000, d=1, seed=2)
    assert_same(run(RULES["wada"], g)[0][:, 0], paper.algorithm3(g[:, 0]))


@pytest.mark.parametrize(("name", "p"), [("wada", 2), ("wada_v3", 3), ("wada_v4", 4)])
def test_wadas_are_algorithm_4(name, p):
    g = gradients("noise", T=1000, d=1, seed=3)
    assert_same(run(RULES[name], g)[0][:, 0], paper.algorithm4(g[:, 0], p))


# ------------------------------------------------------------------ against torch.optim


@pytest.fixture(autouse=True)
def _float64_scalars():
    """torch.optim keeps its own scalars, such as NAdam's product of momenta, in the default dtype."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def torch_run(make, g):
    x = torch.zeros(g.shape[1], dtype=torch.float64, requires_grad=True)
    optimizer, xs = make([x]), []
    for g_t in torch.from_numpy(g):
        x.grad = g_t.clone()
        optimizer.step()
        xs.append(x.detach().numpy().copy())
    return np.array(xs)


TORCH = {
    "adam": (lambda p: torch.optim.Adam(p, lr=0.1, eps=1e-7), {}),
    "amsgrad, torch": (lambda p: torch.optim.Adam(p, lr=0.1, eps=1e-7, amsgrad=True), {}),
    # A momentum_decay this large ends torch's warm-up of β1 before the first step; what is left is Dozat's method.
    "nadam": (lambda p: torch.optim.NAdam(p, lr=0.1, eps=1e-7, momentum_decay=1e6), {}),
    "rmsprop": (lambda p: torch.optim.RMSprop(p, lr=0.1, eps=1e-7), {}),
    "adagrad": (lambda p: torch.optim.Adagrad(p, lr=0.1, eps=0), {"eps": 0.0}),
    "momentum": (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), {"lr": 1.0}),
    "ogd": (lambda p: torch.optim.SGD(p, lr=0.1), {}),
}


@pytest.mark.parametrize("name", TORCH)
def test_update_equals_torch_optim(name):
    g = gradients("noise", T=1000, d=4, seed=4) + 0.1
    make, changed = TORCH[name]
    assert_same(run(RULES[name], g, **changed)[0], torch_run(make, g))


def test_signsgd_is_sgd_on_signs():
    g = gradients("jumping", T=1000, d=4, seed=5)
    sgd = torch_run(lambda p: torch.optim.SGD(p, lr=0.1), np.sign(g))
    assert_same(run(RULES["signsgd"], g, eps=0.0)[0], sgd)


def test_torch_nadam_differs_only_by_its_warm_up():
    g = gradients("noise", T=200, d=4, seed=4) + 0.1
    theirs = torch_run(lambda p: torch.optim.NAdam(p, lr=0.1, eps=1e-7), g)
    ours, _ = run(RULES["nadam"], g)
    assert 1e-4 < np.abs(ours - theirs).max() < 1


# ------------------------------------------------------------------ one text, every framework


def torch_walk(rule):
    def walk(g):
        x, u, (m, v, peak) = (
            torch.zeros(g.shape[1], dtype=torch.float64),
            rule.start,
            torch.zeros(3, g.shape[1], dtype=torch.float64),
        )
        for t, g_t in enumerate(torch.from_numpy(g), start=1):
            now = torch.tensor(float(t), dtype=torch.float64)
            step, _, u, m, v, peak = update(rule, now, u, g_t, m, v, peak, lr=0.1, xp=torch)
            x = x - step
        return x.numpy()

    return walk


def jax_walk(rule):
    @jax.jit
    def walk(g):
        def body(state, row):
            t, g_t = row
            x, u, m, v, peak = state
            step, _, u, m, v, peak = update(rule, t, u, g_t, m, v, peak, lr=0.1, xp=jnp)
            return (x - step, u, m, v, peak), None

        zero = jnp.zeros(g.shape[1])
        steps = jnp.arange(1, g.shape[0] + 1)
        return jax.lax.scan(body, (zero, rule.start, zero, zero, zero), (steps, g))[0][0]

    return walk


@pytest.mark.parametrize("framework", [torch_walk, jax_walk])
@pytest.mark.parametrize("name", RULES)
def test_the_same_text_runs_on_torch_and_traced_jax(name, framework):
    walk = framework(RULES[name])  # which jax compiles once
    for problem in PROBLEMS:
        g = gradients(problem)
        assert_same(np.asarray(walk(g)), run(RULES[name], g)[0][-1], rel=1e-12)


@pytest.mark.parametrize("name", RULES)
def test_update_changes_nothing_in_place(name):
    g, m, v, peak = (np.array([1.0, -2.0]) for _ in range(4))
    v, peak = abs(v), abs(peak)
    before = [array.copy() for array in (g, m, v, peak)]
    update(RULES[name], 3, 2.0, g, m, v, peak, lr=0.1)
    for array, old in zip((g, m, v, peak), before, strict=True):
        np.testing.assert_array_equal(array, old)


@pytest.mark.parametrize("name", RULES)
def test_negated_gradients_negate_the_steps(name):
    g = gradients("noise", seed=6)
    np.testing.assert_array_equal(run(RULES[name], g)[0], -run(RULES[name], -g)[0])


@pytest.mark.parametrize("name", RULES)
def test_without_eps_a_coordinate_waits_for_its_first_gradient(name):
    g = gradients("noise", T=10, d=2, seed=8)
    g[:5, 1] = 0
    xs, _ = run(RULES[name], g, eps=0.0)
    assert np.all(np.isfinite(xs))
    assert np.all(xs[:5, 1] == 0)
    assert xs[5, 1] != 0


def test_state_that_is_not_needed_is_not_read():
    assert update(RULES["ogd"], 1, 0.0, np.ones(1), None, None, lr=0.5).step == 0.5
    assert update(RULES["adagrad"], 1, 0.0, np.ones(1), None, np.zeros(1), lr=0.5, eps=0).step == 0.5


def test_a_latest_gradient_far_below_the_last_is_not_lost():
    first = update(RULES["signsgd"], 1, 0.0, np.array([1e10]), None, np.zeros(1), lr=1.0, eps=0.0)
    second = update(RULES["signsgd"], 2, first.u, np.array([1e-10]), None, first.v, lr=1.0, eps=0.0)
    assert second.step == 1.0


def test_wada_scales_with_the_root_of_the_gradients_and_v4_does_not():
    g = gradients("noise", seed=7)
    wada, v4 = run(RULES["wada"], g, eps=0)[0], run(RULES["wada_v4"], g, eps=0)[0]
    assert_same(run(RULES["wada"], 16 * g, eps=0)[0], 4 * wada)
    assert_same(run(RULES["wada_v4"], 16 * g, eps=0)[0], v4)


def test_a_running_maximum_never_lets_v_fall():
    g = gradients("shrinking", T=300)
    for name in ("amsgrad", "padam"):
        assert np.all(np.diff(run(RULES[name], g)[1], axis=0) >= 0)
    assert np.any(np.diff(run(RULES["rmsprop"], g)[1], axis=0) < 0)


@pytest.mark.parametrize("p", [1, 2, 3, 4, 5, 7, 8, 2.5, 9, 0.5, 0.25])
def test_powers_and_roots(p):
    x = np.array([0.0, 1e-30, 0.3, 1.0, 7.0, 1e20])
    np.testing.assert_allclose(power(x, p), x**p, rtol=1e-14)
    np.testing.assert_allclose(root(x, p), x ** (1 / p), rtol=1e-14)


# ------------------------------------------------------------------ low precision


@pytest.mark.parametrize("name", METHODS)
def test_float32_state_keeps_v_right_over_20000_half_precision_gradients(name):
    rule = METHODS[name].rule

    @jax.jit
    def last_V(g):
        def body(i, state):
            u, m, v, peak, _ = state
            t = (i + 1).astype(jnp.float32)
            _, V, u, m, v, peak = update(rule, t, u, g.astype(m.dtype), m, v, peak, lr=jnp.float32(0.1), xp=jnp)
            return jnp.float32(u), m, v, peak, jnp.float32(V) * jnp.ones_like(m)

        zero = jnp.zeros(1, jnp.float32)
        return jax.lax.fori_loop(0, 20_000, body, (jnp.float32(rule.start), zero, zero, zero, zero))[-1]

    for dtype in (jnp.bfloat16, jnp.float16):
        V = last_V(jnp.ones(1, dtype))
        assert V.dtype == jnp.float32
        assert abs(float(V[0]) - 1) < 0.01


def test_the_raw_sum_it_replaces_would_be_wrong():
    """Algorithm 3's v in bfloat16 first stalls at step 507, and after 20,000 V comes out as 0.45 instead of 1."""
    v, t = jnp.bfloat16(0), 1
    while v + jnp.bfloat16(t) != v:
        v, t = v + jnp.bfloat16(t), t + 1
    assert t == 507
    v = jax.lax.fori_loop(1, 20_001, lambda t, v: v + t.astype(v.dtype), jnp.bfloat16(0))
    assert (2 * float(v) / (20_000 * 20_001)) ** 0.25 == pytest.approx(0.45, abs=0.01)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("eps", [1e-7, 1e-8, 0.0])
@pytest.mark.parametrize("name", RULES)
def test_zero_gradients_give_no_nan(name, eps, dtype):
    rule = RULES[name]
    for first in (0.0, 1.0, 1e-4):
        u, m, v, peak = rule.start, *torch.zeros(3, 4, dtype=dtype)
        for t in range(1, 12):
            g = torch.full((4,), first if t == 1 else 0.0, dtype=dtype)
            step, _, u, m, v, peak = update(rule, t, u, g, m, v, peak, lr=0.1, eps=eps, xp=torch)
            assert torch.all(torch.isfinite(step)), (first, t)
            assert step.dtype == dtype
            assert first or torch.all(step == 0)


# ------------------------------------------------------------------ the rule as a value


@pytest.mark.parametrize("name", RULES)
def test_rules_survive_being_written_down(name):
    import json

    rule = RULES[name]
    assert Rule.from_dict(rule.to_dict()) == rule
    assert Rule.from_dict(json.loads(json.dumps(rule.to_dict(), allow_nan=False))) == rule
    assert hash(Rule.from_dict(rule.to_dict())) == hash(rule)


def test_numbers_of_any_kind_make_the_same_rule():
    assert Rule(p1=np.int64(2), p2=np.float32(4)) == Rule()
    assert repr(Rule(p1=np.int64(2))) == repr(Rule())


def test_the_schedules_are_the_papers():
    rule = Rule(beta1=0.9, beta1_decay=0.5, decay=0.5, debias=True)
    assert rule.beta1_at(3) == pytest.approx(0.9 * 0.25)
    assert rule.rate_at(4) == 0.5
    assert rule.unseen_at(3) == pytest.approx(0.9 * 0.45 * 0.225)
    a, b = rule.lookahead_at(3)
    assert (a, b) == (pytest.approx(1 / (1 - 0.9 * 0.45 * 0.225)), 0.0)


def test_looking_ahead_uses_the_next_momentum():
    rule = Rule(beta1=0.8, beta1_decay=0.5, nesterov=True)
    assert rule.lookahead_at(2) == (pytest.approx(0.8 * 0.25), pytest.approx(1 - 0.8 * 0.5))
    corrected = replace(rule, debias=True)
    seen, soon = 1 - 0.8 * 0.4, 1 - 0.8 * 0.4 * 0.2
    assert corrected.lookahead_at(2) == (pytest.approx(0.2 / soon), pytest.approx(0.6 / seen))


def test_a_debiased_m_of_constant_gradients_is_that_gradient():
    rule = Rule(beta1=0.9, beta1_decay=0.9, debias=True, p2=math.inf)
    xs, _ = run(rule, np.ones((20, 1)), lr=1.0)
    np.testing.assert_allclose(np.diff(xs[:, 0]), -1, rtol=1e-13)


def test_debias_starts_a_steady_window_from_nothing():
    steady = Rule(Exponential(0.9, steady=True))
    assert (steady.start, replace(steady, debias=True).start) == (pytest.approx(10), 0.0)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Rule(weights="linear"), ["weights", "'linear'"]),
        (lambda: Rule(weights=Linear), ["weights", "Linear"]),
        (lambda: Rule(p1=0), ["p1", "0"]),
        (lambda: Rule(p1=-2), ["p1", "-2"]),
        (lambda: Rule(p1=math.inf), ["p1", "inf"]),
        (lambda: Rule(p1=math.nan), ["p1", "nan"]),
        (lambda: Rule(p2=0), ["p2", "0"]),
        (lambda: Rule(p2=-4), ["p2", "-4"]),
        (lambda: Rule(p2=math.nan), ["p2", "nan"]),
        (lambda: Rule(p2="4"), ["p2", "'4'"]),
        (lambda: Rule(beta1=1.0), ["beta1", "1.0"]),
        (lambda: Rule(beta1=-0.1), ["beta1", "-0.1"]),
        (lambda: Rule(beta1=True), ["beta1", "True"]),
        (lambda: Rule(p1=np.True_), ["p1", "True"]),
        (lambda: Rule(Weights()), ["weights", "Weights()"]),
        (lambda: Rule.from_dict(None), ["rule", "None"]),
        (lambda: Rule.from_dict({"weights": None}), ["weights", "None"]),
        (lambda: Rule.from_dict({"weights": {"kind": "polynomial"}}), ["weights", "polynomial", "eta"]),
        (lambda: Rule.from_dict({"weights": {"kind": "linear", "eta": 2}}), ["weights", "linear", "no settings"]),
        (lambda: Rule(beta1_decay=0), ["beta1_decay", "0"]),
        (lambda: Rule(beta1_decay=1.01), ["beta1_decay", "1.01"]),
        (lambda: Rule(decay=-0.5), ["decay", "-0.5"]),
        (lambda: Rule(decay=math.nan), ["decay", "nan"]),
        (lambda: Rule(debias=1), ["debias", "1"]),
        (lambda: Rule(nesterov="yes"), ["nesterov", "'yes'"]),
        (lambda: Rule(monotone=None), ["monotone", "None"]),
        (lambda: Rule(p2=math.inf, monotone=True), ["monotone", "True", "p2 = inf"]),
        (lambda: Rule.from_dict({"beta_1": 1}), ["beta_1", "did you mean 'beta1'"]),
        (lambda: Rule.from_dict({"weights": {"kind": "cubic"}}), ["weights", "cubic"]),
        (lambda: Rule.from_dict({"p2": "big"}), ["p2", "big"]),
        (lambda: Rule(Custom(lambda t: t)).to_dict(), ["weights", "Custom", "named families"]),
        (lambda: Rule(Polynomial(math.inf)), ["eta", "inf"]),
    ],
)
def test_bad_values_are_refused_by_name_and_value(make, named):
    with pytest.raises(ValueError, match="Invalid") as refusal:
        make()
    assert all(word in str(refusal.value) for word in named), refusal.value


def test_latest_is_what_signsgd_uses():
    assert isinstance(RULES["signsgd"].weights, Latest)
