"""What can be proved: certificates against raw sums, bounds against adversaries, docs/theory.md against its numbers.

Run as a script, this file rewrites the generated blocks of docs/theory.md.
"""

import doctest
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tables import WEIGHTS

from wagmf.feasible import Ball, Box, Everything, Simplex
from wagmf.methods import METHODS, method
from wagmf.online import OnlineLearner
from wagmf.rule import Rule
from wagmf.theory import Certificate, bound, certify, regret
from wagmf.weights import Custom, Equal, Exponential, Latest, Polynomial

PAGE = Path(__file__).parents[1] / "docs" / "theory.md"

# The same examples every time: a failure is the code's doing, never the day's.
property_test = settings(deadline=None, derandomize=True, max_examples=100)

# ------------------------------------------------------------------ the certificate

# The first t at which V_t/α_t can shrink, with the rule's own decay or else α/√t. RMSProp: the first t > 1/(1 - 0.99).
FIRST_VIOLATION = dict.fromkeys(METHODS) | {"adam": 2, "nadam": 2, "rmsprop": 101, "signsgd": 2}

# The same for a constant step size: only a V that cannot shrink at all passes.
NEVER_SHRINK = {"amsgrad", "padam", "ogd", "momentum"}


@pytest.mark.parametrize("name", METHODS)
def test_certificates_of_the_table(name):
    certificate = certify(method(name).rule)
    assert certificate.proved
    assert certificate.first_violation == FIRST_VIOLATION[name]
    assert certificate.holds == bool(certificate) == (FIRST_VIOLATION[name] is None)
    assert certificate.decay == (1 if name.startswith("sc_") else 0.5)


@pytest.mark.parametrize("name", METHODS)
def test_a_constant_step_size_needs_a_v_that_never_shrinks(name):
    certificate = certify(method(name).rule, decay=0)
    assert certificate.proved
    assert (certificate.holds, certificate.first_violation) == ((True, None) if name in NEVER_SHRINK else (False, 2))


def test_an_explicit_decay_wins_over_the_rule_s_own():
    sc_adagrad = method("sc_adagrad").rule
    assert certify(sc_adagrad)
    assert not certify(sc_adagrad, decay=0.5)
    assert certify(sc_adagrad, decay=0.5).decay == 0.5
    assert certify(Rule(decay=0.5))
    assert not certify(Rule(decay=0.5), decay=0.49)
    assert not certify(Rule(decay=0.4))


# log γ_t, written apart from the weights themselves; in logarithms, since β^-t overflows.
LOG_GAMMA: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "equal": lambda t: 0 * t,
    "linear": np.log,
    "quadratic": lambda t: 2 * np.log(t),
    "root": lambda t: 0.5 * np.log(t),
    "nostalgic": lambda t: -0.1 * np.log(t),
    "harmonic": lambda t: -np.log(t),
    "exponential": lambda t: -t * math.log(0.999),
    "short exponential": lambda t: -t * math.log(0.5),
    "steady": lambda t: -t * math.log(0.99),
    "latest": lambda t: 1000.0 * t,  # e^1000 is infinity to any sum of doubles
    "custom": lambda t: np.log(t * (t + 3)),
}
LOG_PAST = {"steady": -math.log(1 - 0.99)}  # Σ_{i≤0} 0.99^-i: what the steady window takes to have come before


def first_fall(log_gamma, p2, decay, T, *, log_past=-math.inf, monotone=False):
    """The first t ≤ T at which V_t/α_t falls after the gradients 1, 0, 0, …, from the raw sums Σγ of the paper.

    There V_t = (γ_1·b_t)^(1/p2), so this is b_t^(1/p2)/α_t; with the running maximum V_t is the largest
    γ_1/γ_s so far, over the window Σγ/γ_t.
    """
    t = np.arange(1.0, T + 1)
    weight = log_gamma(t)
    total = np.logaddexp.accumulate(np.concatenate([[log_past], weight]))[1:]
    sizes = weight - np.minimum.accumulate(weight) - total if monotone else -total  # p2·log V_t
    falls = np.diff(sizes + p2 * decay * np.log(t)) < -1e-12 * np.maximum(1, np.abs(sizes[1:]))
    return int(np.argmax(falls)) + 2 if falls.any() else None


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("p2", [1, 2, 3, 4, 6, 8])
@pytest.mark.parametrize("decay", [0, 0.25, 0.5, 1])
def test_certificates_agree_with_raw_sums(name, p2, decay):
    T = 10_000
    certificate = certify(Rule(WEIGHTS[name], p2=p2), decay=decay, horizon=T)
    expected = first_fall(LOG_GAMMA[name], p2, decay, T, log_past=LOG_PAST.get(name, -math.inf))
    assert certificate.first_violation == expected
    assert certificate.holds == (expected is None)
    assert certificate.proved == (name != "custom" or decay == 0)


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("p2", [1, 2, 4])
@pytest.mark.parametrize("decay", [0, 0.25, 0.5, 1])
def test_certificates_of_the_running_maximum_agree_with_raw_sums(name, p2, decay):
    T = 3000
    certificate = certify(Rule(WEIGHTS[name], p2=p2, monotone=True), decay=decay, horizon=T)
    expected = first_fall(LOG_GAMMA[name], p2, decay, T, log_past=LOG_PAST.get(name, -math.inf), monotone=True)
    assert certificate.first_violation == expected
    assert certificate.holds == (expected is None)


def test_the_running_maximum_always_works_with_a_constant_window_and_from_p2_decay_1_with_a_growing_one():
    for decay in (0, 0.1, 0.5):
        assert certify(Rule(Exponential(0.9, steady=True), p2=2, monotone=True), decay=decay).proved
        assert certify(Rule(Exponential(0.9, steady=True), p2=2, monotone=True), decay=decay)
        assert certify(Rule(Latest(), p2=1, monotone=True), decay=decay)
    growing = Rule(Exponential(0.9, steady=True), p2=2, monotone=True, debias=True)
    assert certify(growing, decay=0.5)
    assert certify(growing, decay=0.5).proved
    assert certify(growing, decay=0).first_violation == 2
    assert not certify(growing, decay=0).proved
    assert certify(Rule(Equal(), p2=2, monotone=True), decay=0.49).first_violation == 2
    assert not certify(Rule(Polynomial(2), p2=4, monotone=True), decay=0.5, horizon=100).proved


@property_test
@given(eta=st.floats(0, 4), gap=st.just(0.0) | st.floats(0.02, 2) | st.floats(-1.9, -0.02))
@example(eta=0.0, gap=0.0)
@example(eta=1.0, gap=0.0)
@example(eta=1.0, gap=-0.02)
def test_growing_powers_hold_exactly_from_p2_equal_to_2_eta_plus_2(eta, gap):
    p2 = 2 * (eta + 1) + gap
    certificate = certify(Rule(Polynomial(eta), p2=p2), horizon=1000)
    assert certificate.proved
    assert certificate.holds == (gap >= 0)
    assert certificate.first_violation == first_fall(lambda t: eta * np.log(t), p2, 0.5, 1000)


@property_test
@given(eta=st.floats(-8, -1e-3), factor=st.just(1.0) | st.floats(1.001, 2) | st.floats(0.01, 0.999))
@example(eta=-1.0, factor=1.0)
def test_shrinking_powers_hold_exactly_from_what_the_second_step_needs(eta, factor):
    p2 = 2 * math.log2(1 + 2**eta) * factor
    certificate = certify(Rule(Polynomial(eta), p2=p2), horizon=1000)
    assert certificate.proved
    assert certificate.holds == (factor >= 1)
    assert certificate.first_violation == (None if factor >= 1 else 2)
    assert certificate.first_violation == first_fall(lambda t: eta * np.log(t), p2, 0.5, 1000)


@property_test
@given(beta=st.floats(0.01, 0.99), p2=st.floats(0.5, 20), decay=st.sampled_from([0.25, 0.5, 1]), steady=st.booleans())
def test_exponential_weights_never_hold(beta, p2, decay, steady):
    T = 3000
    certificate = certify(Rule(Exponential(beta, steady=steady), p2=p2), decay=decay, horizon=T)
    past = -math.log(1 - beta) if steady else -math.inf
    assert certificate.proved
    assert not certificate
    assert certificate.first_violation == first_fall(lambda t: -t * math.log(beta), p2, decay, T, log_past=past)


@pytest.mark.parametrize("p2", [4, 5.5, 5.9, 6, 7])
def test_custom_weights_are_answered_step_by_step(p2):
    custom = certify(Rule(Custom(lambda t: t * t), p2=p2), horizon=5000)
    known = certify(Rule(Polynomial(2), p2=p2), horizon=5000)
    assert (custom.holds, custom.first_violation) == (known.holds, known.first_violation)
    assert (custom.proved, known.proved) == (False, True)
    assert custom.holds == (p2 >= 6)


@pytest.mark.parametrize("p2", [2, 4, 20])
def test_a_custom_exponential_breaks_where_the_family_does(p2):
    custom = certify(Rule(Custom(lambda t: 1.01**t), p2=p2), horizon=5000)
    assert not custom
    assert custom.first_violation == certify(Rule(Exponential(1 / 1.01), p2=p2), horizon=5000).first_violation


@pytest.mark.parametrize("gap", [1e-9, 1e-12])
@pytest.mark.parametrize("eta", [0.0, 1.0, 2.0])
def test_the_edge_is_sharp(eta, gap):
    edge = 2 * (eta + 1)
    assert certify(Rule(Polynomial(eta), p2=edge))
    assert certify(Rule(Polynomial(eta), p2=edge * (1 + gap)))
    assert not certify(Rule(Polynomial(eta), p2=edge * (1 - gap)), horizon=10)


def test_weights_that_stop_being_weights_are_refused():
    with pytest.raises(ValueError, match=r"Invalid gamma\(3\): nan"):
        certify(Rule(Custom(lambda t: 1.0 if t < 3 else math.nan)))


@pytest.mark.parametrize(
    ("rule", "decay", "caveat"),
    [
        (Rule(), None, "momentum that fades"),
        (Rule(beta1_decay=0.99), None, ""),
        (Rule(beta1=0), None, ""),
        (Rule(beta1=0), 1, "of the order of T"),
        (Rule(p2=math.inf, beta1=0), 0, "of the order of T"),
        (Rule(Exponential(0.9), p2=2), None, ""),
    ],
)
def test_a_certificate_says_what_else_the_bound_needs(rule, decay, caveat):
    said = certify(rule, decay=decay).caveat
    assert caveat in said
    assert bool(caveat) == bool(said)


def test_the_bound_grows_as_the_caveat_says():
    g = {T: np.ones((T, 1)) for T in (100, 1000)}
    average = {
        lam: [bound(Rule(beta1_decay=lam, decay=0.5), g[T], lr=0.1, diameter=2) / T for T in g] for lam in (1.0, 0.9)
    }
    assert average[1.0][1] > average[1.0][0]
    assert average[0.9][1] < average[0.9][0]


def test_a_numeric_answer_reaches_only_to_its_horizon():
    late = Rule(Custom(lambda t: t * t), p2=5.98)
    assert certify(late, horizon=100)
    assert 100 < certify(late, horizon=10_000).first_violation < 200


@pytest.mark.parametrize(
    ("certificate", "text"),
    [
        (
            certify(Rule(), horizon=10),
            "With α_t = α/√t the convergence condition holds (for every t). "
            "Weights t^1 need p2·decay >= 2; here it is 2, exactly enough.",
        ),
        (
            certify(Rule(p2=2), decay=0.75, horizon=10_000),
            "With α_t = α·t^-0.75 the convergence condition does not hold (first broken at t = 2). "
            "Weights t^1 need p2·decay >= 2; here it is 1.5, too little.",
        ),
        (
            certify(Rule(Custom(lambda t: t), p2=4), decay=1, horizon=5000),
            "With α_t = α/t the convergence condition holds (for t up to 5,000). Checked numerically, step by step.",
        ),
        (
            certify(Rule(p2=3.9999), horizon=5000),
            "With α_t = α/√t the convergence condition does not hold (broken after t = 5,000). "
            "Weights t^1 need p2·decay >= 2; here it is 1.99995, too little.",
        ),
        (
            certify(method("ogd").rule, decay=0),
            "With a constant step size the convergence condition holds (for every t). "
            "V is the identity, and step sizes do not increase.",
        ),
    ],
)
def test_certificates_read_as_sentences(certificate: Certificate, text):
    assert str(certificate) == text


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"decay": -0.5}, ["decay", "-0.5", ">= 0"]),
        ({"decay": math.nan}, ["decay", "nan"]),
        ({"decay": "half"}, ["decay", "'half'"]),
        ({"horizon": 1}, ["horizon", "1", ">= 2"]),
        ({"horizon": 2.5}, ["horizon", "2.5", "integer"]),
    ],
)
def test_certify_refuses_by_name_and_value(asked, named):
    with pytest.raises(ValueError, match="Invalid") as refusal:
        certify(Rule(), **asked)
    assert all(word in str(refusal.value) for word in named), refusal.value


# ------------------------------------------------------------------ games on the box

BOX = Box(-1, 1)
D = BOX.diameter


def steady(x):
    """The plainest problem: f_t(x) = Σx_i, from the corner where it is largest."""
    return np.ones_like(x)


def adversary(seed, d, G):
    """Linear losses that react to x: they draw it towards one corner, and strike with up to G once it has come near."""
    random = np.random.default_rng(seed)
    corner = random.choice([-1.0, 1.0], d)
    patience, calm = random.uniform(0, 2), random.uniform(0.02, 1)
    started = False

    def gradient(x):
        nonlocal started
        near = np.abs(x - corner) < patience
        strike = near & (random.random(d) < calm / 2)
        g = np.where(strike, corner, -calm * corner) * G * random.random(d) ** random.uniform(0, 3)
        # With eps = 0 a coordinate must have had a gradient before it can have a zero one.
        quiet = (random.random(d) < 0.2) & started
        started = True
        return np.where(quiet, 0.0, g)

    return gradient


def play(rule, gradient, *, T, d, lr, eps=0.0, feasible=BOX):
    """T steps from the point furthest along (1, …, 1): the gradients, and R(T) against the best fixed point."""
    learner = OnlineLearner(rule, feasible.lowest(-np.ones(d)), lr=lr, feasible=feasible, eps=eps)
    g, x = np.empty((2, T, d))
    for t in range(T):
        x[t] = learner.predict()
        g[t] = gradient(x[t])
        learner.update(g[t])
    return g, float(regret(g, x, feasible=feasible)[-1])


games = {
    "seed": st.integers(0, 10**6),
    "d": st.integers(1, 4),
    "T": st.integers(1, 80),
    "log_lr": st.floats(-3, 1),
    "log_G": st.floats(-2, 2),
    "beta1": st.just(0.0) | st.floats(0, 0.95),
    "lam": st.floats(0.05, 0.99),
    "eps": st.just(0.0) | st.floats(1e-8, 1),
}


def held(regret, guarantee):
    return regret <= guarantee * (1 + 1e-12)


@settings(property_test, max_examples=150)
@given(**games)
def test_theorem_3_holds_for_wada(seed, d, T, log_lr, log_G, beta1, lam, eps):
    rule, lr = Rule(beta1=beta1, beta1_decay=lam, decay=0.5), 10**log_lr
    g, R = play(rule, adversary(seed, d, 10**log_G), T=T, d=d, lr=lr, eps=eps)
    first = bound(rule, g, lr=lr, diameter=D, eps=eps)
    assert held(R, first)
    assert held(first, bound(rule, g, lr=lr, diameter=D, theorem=3, eps=eps))


@settings(property_test, max_examples=150)
@given(**games, p=st.sampled_from([2, 4, 8]) | st.floats(2, 10))
def test_theorem_2_holds_for_equal_weights_and_every_real_p(seed, d, T, log_lr, log_G, beta1, lam, eps, p):
    rule, lr = Rule(Equal(), p1=p, p2=p, beta1=beta1, beta1_decay=lam, decay=0.5), 10**log_lr
    g, R = play(rule, adversary(seed, d, 10**log_G), T=T, d=d, lr=lr, eps=eps)
    first = bound(rule, g, lr=lr, diameter=D, eps=eps)
    assert held(R, first)
    assert held(first, bound(rule, g, lr=lr, diameter=D, theorem=2, eps=eps))


# Every rule with a certificate, under the step sizes it has it for; AMSGrad and Padam have it for constant ones too.
THEOREM_1 = [
    replace(method(name).rule, decay=0.5)
    for name in ("wada", "wada_v3", "wada_v4", "adamnc", "nosadam", "amsgrad", "padam", "ogd", "momentum")
] + [
    replace(method("amsgrad").rule, decay=0),
    replace(method("padam").rule, decay=0.25),
    Rule(Polynomial(2), p2=6, decay=0.5),
]


@settings(property_test, max_examples=300)
@given(rule=st.sampled_from(THEOREM_1), feasible=st.sampled_from([BOX, Ball(1.0), Simplex(2.0)]), **games)
def test_theorem_1_holds_for_every_certified_rule(rule, feasible, seed, d, T, log_lr, log_G, beta1, lam, eps):
    rule, lr = replace(rule, beta1=beta1, beta1_decay=lam), 10**log_lr
    g, R = play(rule, adversary(seed, d, 10**log_G), T=T, d=d, lr=lr, eps=eps, feasible=feasible)
    assert held(R, bound(rule, g, lr=lr, diameter=feasible.diameter, eps=eps))


@property_test
@given(**games | {"lam": st.just(1.0)})
def test_theorem_1_needs_no_fading_momentum(seed, d, T, log_lr, log_G, beta1, lam, eps):
    rule, lr = Rule(beta1=beta1, beta1_decay=lam, decay=0.5), 10**log_lr
    g, R = play(rule, adversary(seed, d, 10**log_G), T=T, d=d, lr=lr, eps=eps)
    assert held(R, bound(rule, g, lr=lr, diameter=D, eps=eps))


def test_the_bounds_are_felt():
    """A bound that no game comes near would pass every test above: these come within a factor of three."""
    for rule, theorem in ((Rule(beta1=0, decay=0.5), 3), (Rule(Equal(), p2=2, beta1=0, decay=0.5), 2)):
        g, R = play(rule, steady, T=100, d=1, lr=0.1)
        assert R / bound(rule, g, lr=0.1, diameter=D, theorem=theorem) > 0.35
        assert R / bound(rule, g, lr=0.1, diameter=D) > 0.35


# ------------------------------------------------------------------ the bounds, term by term


def theorem_1(rule, gamma, g, lr, D, eps):
    """Theorem 1 from the paper's raw sums: the three terms."""
    t = np.arange(1.0, len(g) + 1)
    alpha, beta1 = lr * t**-rule.decay, rule.beta1 * rule.beta1_decay ** (t - 1)
    weight = gamma(t)[:, None]
    V = (np.cumsum(weight * np.abs(g) ** rule.p1, axis=0) / np.cumsum(weight, axis=0)) ** (1 / rule.p2) + eps
    m = np.zeros_like(g)
    for k in range(len(g)):
        m[k] = beta1[k] * m[k - 1] + (1 - beta1[k]) * g[k]  # m[-1] is still zero at k = 0
    past = np.sum(beta1[1:] / (1 - beta1[1:]) / alpha[1:] * V[:-1].sum(axis=1))
    return (
        D**2 / (2 * alpha[-1] * (1 - rule.beta1)) * V[-1].sum(),
        D**2 / 2 * past,
        np.sum(alpha[:, None] * m**2 / V) / (1 - rule.beta1),
    )


def theorem_2(rule, g, lr, D, eps, *, power=3):
    (T, d), G, p, kept = g.shape, np.abs(g).max(), rule.p1, 1 - rule.beta1
    norms = np.sum(np.abs(g) ** p, axis=0) ** (1 / p)
    return (
        D**2 / (2 * lr * kept) * (T ** (1 / 2 - 1 / p) * norms.sum() + d * eps * T**0.5),
        d * rule.beta1 * D**2 * (G + eps) / (2 * lr * kept * (1 - rule.beta1_decay) ** 2),
        2 * lr / kept**power * np.sqrt(np.sum(g**2, axis=0)).sum(),
    )


def weighted_sum(g):
    """S = Σ_i (Σ_j j·g²_{j,i})^(1/4)."""
    return float(np.sum(np.sum(np.arange(1, len(g) + 1)[:, None] * g**2, axis=0) ** 0.25))


def theorem_3(rule, g, lr, D, eps, *, power=3):
    (T, d), G, S, kept = g.shape, np.abs(g).max(), weighted_sum(g), 1 - rule.beta1
    return (
        D**2 / (2 * lr * kept) * (2**0.25 * S + d * eps * T**0.5),
        d * rule.beta1 * D**2 * (G**0.5 + eps) / (2 * lr * kept * (1 - rule.beta1_decay) ** 2),
        4 * lr * G / kept**power * S,
    )


def some_gradients(seed, T, d, G):
    """Noise that grows, shrinks or stays as it is, up to G and, in every coordinate, never zero at first."""
    random = np.random.default_rng(seed)
    t = np.arange(1, T + 1)[:, None]
    g = random.uniform(0.01, 1, (T, d)) * t ** random.uniform(-2, 1, d) * (random.random((T, d)) < random.random())
    g[0] = random.uniform(0.01, 1, d)
    return G * g / g.max()


@property_test
@given(**games)
def test_the_bounds_of_wada_are_their_formulas(seed, d, T, log_lr, log_G, beta1, lam, eps):
    rule, g, lr = Rule(beta1=beta1, beta1_decay=lam, decay=0.5), some_gradients(seed, T, d, 10**log_G), 10**log_lr
    first = theorem_1(rule, lambda t: t, g, lr, 3.0, eps)
    third = theorem_3(rule, g, lr, 3.0, eps)
    assert bound(rule, g, lr=lr, diameter=3.0, eps=eps) == pytest.approx(sum(first), rel=1e-11)
    assert bound(rule, g, lr=lr, diameter=3.0, eps=eps, theorem=3) == pytest.approx(sum(third), rel=1e-12)
    # Each term of Theorem 3 covers the term of Theorem 1 it comes from; the last does so with (1-β1)² already.
    sharper = theorem_3(rule, g, lr, 3.0, eps, power=2)
    assert all(held(a, b) for a, b in zip(first, sharper, strict=True)), (first, sharper)


@property_test
@given(**games, p=st.sampled_from([2, 4, 8]) | st.floats(2, 10))
def test_the_bounds_of_equal_weights_are_their_formulas(seed, d, T, log_lr, log_G, beta1, lam, eps, p):
    rule = Rule(Equal(), p1=p, p2=p, beta1=beta1, beta1_decay=lam, decay=0.5)
    g, lr = some_gradients(seed, T, d, 10**log_G), 10**log_lr
    first = theorem_1(rule, np.ones_like, g, lr, 3.0, eps)
    second = theorem_2(rule, g, lr, 3.0, eps)
    assert bound(rule, g, lr=lr, diameter=3.0, eps=eps) == pytest.approx(sum(first), rel=1e-11)
    assert bound(rule, g, lr=lr, diameter=3.0, eps=eps, theorem=2) == pytest.approx(sum(second), rel=1e-12)
    sharper = theorem_2(rule, g, lr, 3.0, eps, power=2)
    assert all(held(a, b) for a, b in zip(first, sharper, strict=True)), (first, sharper)


def test_a_coordinate_without_gradients_adds_nothing_to_theorem_1():
    g = np.random.default_rng(0).normal(size=(20, 1))
    idle = np.hstack([g, np.zeros_like(g)])
    late = np.hstack([g, np.where(np.arange(20) < 10, 0.0, g.T).T])
    alone, beside, joined = (bound(Rule(decay=0.5), rows, lr=0.1, diameter=2) for rows in (g, idle, late))
    assert beside == alone < joined


def test_constant_momentum_leaves_theorems_2_and_3_without_a_bound():
    g = np.ones((10, 2))
    assert bound(Rule(decay=0.5), g, lr=0.1, diameter=2, theorem=3) == math.inf
    assert bound(Rule(Equal(), p2=2, decay=0.5), g, lr=0.1, diameter=2, theorem=2) == math.inf
    assert math.isfinite(bound(Rule(decay=0.5), g, lr=0.1, diameter=2))
    assert math.isfinite(bound(Rule(beta1=0, decay=0.5), g, lr=0.1, diameter=2, theorem=3))


def lowest(terms):
    """The least over α of a bound, from its terms at α = 1: the first two go as 1/α, the last as α."""
    return 2 * math.sqrt((terms[0] + terms[1]) * terms[2])


@property_test
@given(
    seed=games["seed"],
    d=games["d"],
    T=st.integers(1, 300),
    log_G=games["log_G"],
    beta1=games["beta1"],
    lam=games["lam"],
)
@example(seed=0, d=1, T=300, log_G=0.0, beta1=0.0, lam=0.5)
def test_at_their_best_step_sizes_the_bound_of_wada_is_never_below_that_of_adagrad(seed, d, T, log_G, beta1, lam):
    g = some_gradients(seed, T, d, 10**log_G)
    assert 2**0.25 * 10 ** (log_G / 2) * weighted_sum(g) >= np.sqrt(np.sum(g**2, axis=0)).sum() * (1 - 1e-12)
    wada = Rule(beta1=beta1, beta1_decay=lam, decay=0.5)
    adamnc = replace(wada, weights=Equal(), p2=2)
    ours, theirs = lowest(theorem_3(wada, g, 1.0, D, 0.0)), lowest(theorem_2(adamnc, g, 1.0, D, 0.0))
    assert ours >= 2 ** (3 / 8) * theirs * (1 - 1e-12)


def test_the_two_bounds_come_closest_for_gradients_that_stop():
    g = np.repeat([1.0, 0.0], 10_000)[:, None]
    wada = Rule(beta1=0, beta1_decay=0.5, decay=0.5)
    adagrad = replace(wada, weights=Equal(), p2=2)
    ours, theirs = lowest(theorem_3(wada, g, 1.0, D, 0.0)), lowest(theorem_2(adagrad, g, 1.0, D, 0.0))
    assert ours / theirs == pytest.approx(2 ** (3 / 8), rel=1e-4)


# ------------------------------------------------------------------ Lemma 3


def lemma_3(x):
    """Both sides without their constant, M = 1: Σ x_i/(Σ_{j≤i} j·x_j)^(1/4) and (Σ i·x_i)^(1/4)."""
    S = np.cumsum(np.arange(1, len(x) + 1) * x)
    return float(np.sum(np.divide(x, S**0.25, out=np.zeros_like(x), where=S > 0))), float(S[-1] ** 0.25)


@property_test
@given(st.lists(st.just(0.0) | st.just(1.0) | st.floats(1e-12, 1), min_size=1, max_size=60), st.floats(-6, 6))
def test_lemma_3_holds_with_constant_4(x, log_M):
    M = 10**log_M
    left, right = lemma_3(M**2 * np.array(x))
    assert left <= 4 * M * right * (1 + 1e-12)


def test_lemma_3_fails_with_constant_1():
    left, right = lemma_3(np.ones(2))
    assert (round(left, 2), round(right, 2)) == (1.76, 1.32)


def test_lemma_3_for_equal_values_tends_to_2_root_2():
    ratios = [left / right for left, right in (lemma_3(np.ones(10**k)) for k in range(7))]
    assert ratios == sorted(ratios)
    assert 2.82 < ratios[-1] < 2 * math.sqrt(2) < 4


# ------------------------------------------------------------------ what was printed

# (problem, d, T, lr, β1, λ); the problem is "g ≡ 1" or the seed of an adversary with G = 2.
PLAIN = [
    ("g ≡ 1", 1, 25, 0.1, 0.0, 0.5),
    ("g ≡ 1", 1, 100, 0.01, 0.0, 0.5),
    ("g ≡ 1", 1, 400, 0.001, 0.0, 0.5),
]
RECORDED = {
    2: [*PLAIN, (61, 2, 200, 0.01, 0.5, 0.5), (211, 2, 100, 0.1, 0.5, 0.5)],
    3: [*PLAIN, (36, 2, 200, 0.01, 0.5, 0.5), (142, 2, 100, 0.1, 0.5, 0.5)],
}


def recorded_run(theorem, problem, d, T, lr, beta1, lam):
    """R(T), the printed bound, the corrected bound."""
    wada = Rule(beta1=beta1, beta1_decay=lam, decay=0.5)
    rule = wada if theorem == 3 else replace(wada, weights=Equal(), p2=2)
    g, R = play(rule, steady if problem == "g ≡ 1" else adversary(problem, d, G=2.0), T=T, d=d, lr=lr)
    printed, corrected = (
        bound(rule, g, lr=lr, diameter=D, theorem=theorem, as_printed=as_printed) for as_printed in (True, False)
    )
    return R, printed, corrected


@pytest.mark.parametrize(("theorem", "run"), [(theorem, run) for theorem in RECORDED for run in RECORDED[theorem]])
def test_the_printed_bounds_fail_on_recorded_problems_and_the_corrected_ones_do_not(theorem, run):
    R, printed, corrected = recorded_run(theorem, *run)
    assert R / printed > 1.3
    assert held(R, corrected)


@pytest.mark.parametrize("theorem", [2, 3])
def test_the_printed_bounds_fail_by_any_factor(theorem):
    """With α → 0 the learner stays where it is and R(T) = 2T, while the printed bounds stay at about 2√T."""
    for T in (100, 400, 1600):
        R, printed, corrected = recorded_run(theorem, "g ≡ 1", 1, T, 1e-6, 0.0, 0.5)
        assert R / printed > 0.99 * math.sqrt(T)
        assert held(R, corrected)


def test_the_printed_bounds_are_their_formulas():
    g = np.array([[1.0, -2.0], [3.0, 0.5]])
    wada = Rule(beta1=0.5, beta1_decay=0.8, decay=0.5)
    S = (1 + 2 * 9) ** 0.25 + (4 + 2 * 0.25) ** 0.25
    momentum = 0.5 * 4 / (2 * 0.5 * 0.04)
    printed = 4 / (2 * 0.5) * S + momentum * math.sqrt(3) + 0.1 * 2 * 3 / 0.25 * S
    assert bound(wada, g, lr=0.1, diameter=2, theorem=3, as_printed=True) == pytest.approx(printed, rel=1e-13)
    norms = math.sqrt(10) + math.sqrt(4.25)
    fourth = 82**0.25 + 16.0625**0.25
    for p, first in ((2, norms), (4, 2**0.25 * fourth)):
        equal = Rule(Equal(), p1=p, p2=p, beta1=0.5, beta1_decay=0.8, decay=0.5)
        printed = 4 / (2 * 0.5) * first + momentum * 3 + 2 * 0.1 / 0.125 * norms
        assert bound(equal, g, lr=0.1, diameter=2, theorem=2, as_printed=True) == pytest.approx(printed, rel=1e-13)


def test_the_printed_condition_is_true_of_every_weighting():
    for name, log_gamma in LOG_GAMMA.items():
        t = np.arange(1.0, 2001)
        total = np.logaddexp.accumulate(log_gamma(t))
        assert np.all(np.diff(4 * total + 0.5 * np.log(t)) > 0), name  # log of b_t^(-p2)/α_t with p2 = 4


# ------------------------------------------------------------------ what is refused

WADA = Rule(beta1_decay=0.9, decay=0.5)
ADAMNC = Rule(Equal(), p2=2, beta1_decay=0.9, decay=0.5)
ONES = np.ones((5, 2))


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"lr": 0}, ["lr", "0", "> 0"]),
        ({"lr": math.inf}, ["lr", "inf", "finite"]),
        ({"diameter": -1.0}, ["diameter", "-1.0", "> 0"]),
        ({"diameter": Everything().diameter}, ["diameter", "inf", "finite"]),
        ({"eps": -1e-8}, ["eps", "-1e-08", ">= 0"]),
        ({"theorem": 4}, ["theorem", "4", "1, 2 or 3"]),
        ({"theorem": "2"}, ["theorem", "'2'", "1, 2 or 3"]),
        ({"theorem": 1, "as_printed": True}, ["as_printed", "True", "Theorem 1"]),
        ({"theorem": True}, ["theorem", "True"]),
        ({"as_printed": "no", "theorem": 3}, ["as_printed", "'no'"]),
        ({"rule": "wada"}, ["rule", "'wada'"]),
        ({"gradients": ["a"]}, ["gradients", "'a'"]),
        ({"gradients": [[1.0], [1.0, 2.0]]}, ["gradients", "numbers"]),
        ({"gradients": []}, ["gradients", "(0, 1)", "at least one"]),
        ({"gradients": np.ones((2, 2, 2))}, ["gradients", "(2, 2, 2)"]),
        ({"gradients": [[1.0], [math.nan]]}, ["gradients", "nan", "row 1"]),
        ({"rule": replace(WADA, debias=True)}, ["rule", "debias=True", "debias and nesterov"]),
        ({"rule": replace(WADA, nesterov=True)}, ["rule", "nesterov=True", "debias and nesterov"]),
        ({"rule": replace(WADA, decay=0.0)}, ["rule", "decay=0.0", "broken at t = 2"]),
        ({"rule": Rule(Exponential(0.999), p2=2, decay=0.5)}, ["rule", "Exponential", "broken at t = 2"]),
        ({"rule": replace(WADA, decay=0.4), "theorem": 3}, ["decay", "0.4", "0.5"]),
        ({"rule": replace(ADAMNC, decay=1), "theorem": 2}, ["decay", "1.0", "0.5"]),
        ({"rule": ADAMNC, "theorem": 3}, ["rule", "Equal()", "WADA"]),
        ({"rule": replace(WADA, p1=3), "theorem": 3}, ["rule", "p1=3.0", "p1 = 2, p2 = 4"]),
        ({"rule": replace(WADA, monotone=True), "theorem": 3}, ["rule", "monotone=True", "WADA"]),
        ({"rule": WADA, "theorem": 2}, ["rule", "Linear()", "equal weights"]),
        ({"rule": replace(ADAMNC, p1=1.5, p2=1.5), "theorem": 2}, ["rule", "p2=1.5", "p1 = p2 >= 2"]),
        ({"rule": replace(ADAMNC, p1=3), "theorem": 2}, ["rule", "p1=3.0", "p1 = p2"]),
    ],
)
def test_bound_refuses_by_name_and_value(asked, named):
    settings = {"rule": WADA, "gradients": ONES, "lr": 0.1, "diameter": 2.0} | asked
    with pytest.raises(ValueError, match="Invalid") as refusal:
        bound(settings.pop("rule"), settings.pop("gradients"), **settings)
    assert all(word in str(refusal.value) for word in named), refusal.value


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"points": np.ones((4, 2))}, ["points", "(4, 2)", "(5, 2)"]),
        ({"points": [[math.inf, 0.0]] * 5}, ["points", "inf", "row 0"]),
        ({"gradients": np.empty((0, 2))}, ["gradients", "(0, 2)", "at least one"]),
        ({"feasible": None}, ["best, feasible", "None", "exactly one"]),
        ({"best": [0.0, 0.0]}, ["best, feasible", "[0.0, 0.0]", "exactly one"]),
        ({"feasible": None, "best": [math.nan, 0.0]}, ["best", "nan", "finite"]),
        ({"feasible": None, "best": np.zeros((5, 2))}, ["best", "2 coordinates"]),
        ({"feasible": None, "best": [0.0]}, ["best", "[0.0]", "2 coordinates"]),
        ({"feasible": (-1, 1)}, ["feasible", "(-1, 1)"]),
        ({"feasible": Everything()}, ["feasible", "Everything()", "comparator"]),
        ({"feasible": Ball(1.0, axis=0)}, ["axis", "0", "lowest"]),
    ],
)
def test_regret_refuses_by_name_and_value(asked, named):
    settings = {"gradients": ONES, "points": ONES, "feasible": BOX} | asked
    with pytest.raises(ValueError, match="Invalid") as refusal:
        regret(settings.pop("gradients"), settings.pop("points"), **settings)
    assert all(word in str(refusal.value) for word in named), refusal.value


# ------------------------------------------------------------------ the regret


def test_regret_of_known_games():
    g, x = [[1.0, 0.0], [-3.0, 2.0]], [[0.5, 1.0], [0.0, 0.0]]
    # Σg = (-2, 2), so the best corner is (1, -1): 1·(0.5 - 1), then -3·(0 - 1) + 2·(0 + 1) more.
    np.testing.assert_allclose(regret(g, x, feasible=BOX), [-0.5, 4.5])
    np.testing.assert_allclose(regret(g, x, best=[0.0, 0.0]), [0.5, 0.5])
    np.testing.assert_allclose(regret(g, x, feasible=Ball(1.0))[-1], 0.5 + math.sqrt(8))
    np.testing.assert_allclose(regret([1.0, 1.0], [0.0, -1.0], best=-1.0), [1.0, 1.0])


@property_test
@given(seed=games["seed"], T=games["T"], d=games["d"])
def test_no_fixed_point_does_better_than_the_best_in_hindsight(seed, T, d):
    random = np.random.default_rng(seed)
    g, x, other = random.normal(size=(T, d)), random.uniform(-1, 1, (T, d)), random.uniform(-1, 1, d)
    R = regret(g, x, feasible=BOX)
    assert R.shape == (T,)
    assert R[-1] >= regret(g, x, best=other)[-1]
    assert R[-1] == pytest.approx(sum(g[t] @ x[t] for t in range(T)) + np.abs(g.sum(axis=0)).sum(), abs=1e-9)


# ------------------------------------------------------------------ the page


def table(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def certificates():
    rows = []
    for name, row in METHODS.items():
        answer = certify(row.rule)
        schedule = {0.5: "α/√t", 1: "α/t"}[answer.decay]
        rows.append((f"`{name}`", schedule, "yes" if answer else f"no, t = {answer.first_violation}", answer.reason))
    return table(("method", "α_t", "condition", "why"), rows)


def printed_condition():
    """Both conditions for the weights of Adam and of WADA, each quantity relative to its value at t = 1."""
    rows = []
    for t in (1, 2, 10, 100, 1000, 10_000):
        adam, wada = sum(0.999 ** (1 - i) for i in range(1, t + 1)), t * (t + 1) / 2
        values = adam**2 * t**0.5, adam ** (-1 / 2) * t**0.5, wada ** (-1 / 4) * t**0.5
        rows.append((f"{t:,}", *(f"{value:.4g}" for value in values)))
    head = ("t", "Adam: b_t^(-p2)/α_t, as printed", "Adam: b_t^(1/p2)/α_t", "WADA: b_t^(1/p2)/α_t")
    return table(head, rows)


def lemma():
    rows = []
    for n in (1, 2, 10, 100, 10_000, 1_000_000):
        left, right = lemma_3(np.ones(n))
        rows.append((f"{n:,}", *(f"{value:,.3f}" for value in (left, right, left / right, 4 * right))))
    return table(("n", "left side", "right side, constant 1", "ratio", "right side, constant 4"), rows)


def violations(theorem):
    rows = []
    for run in RECORDED[theorem]:
        problem, d, T, lr, beta1, lam = run
        R, printed, corrected = recorded_run(theorem, *run)
        name = problem if isinstance(problem, str) else f"seed {problem}"
        momentum = f"{beta1:g}" if beta1 == 0 else f"{beta1:g}, λ = {lam:g}"
        values = f"{R:,.1f}", f"{printed:,.1f}", f"{R / printed:.2f}", f"{corrected:,.1f}", f"{R / corrected:.3f}"
        rows.append((name, d, T, f"{lr:g}", momentum, *values))
    head = ("problem", "d", "T", "α", "β1", "R(T)", "printed bound", "R/printed", "corrected bound", "R/corrected")
    return table(head, rows)


BLOCKS: dict[str, Callable[[], str]] = {
    "certificates": certificates,
    "printed condition": printed_condition,
    "lemma 3": lemma,
    "theorem 2": lambda: violations(2),
    "theorem 3": lambda: violations(3),
}


def block_of(name):
    return re.compile(rf"(?<=<!-- generated: {re.escape(name)} -->\n).*?(?=<!-- end -->)", re.DOTALL)


@pytest.mark.parametrize("name", BLOCKS)
def test_the_page_shows_what_the_code_says(name):
    found = block_of(name).findall(PAGE.read_text(encoding="utf-8"))
    assert found == [BLOCKS[name]() + "\n"], "run python tests/test_theory.py"


def test_the_page_has_no_other_generated_blocks():
    assert sorted(re.findall("<!-- generated: (.*) -->", PAGE.read_text(encoding="utf-8"))) == sorted(BLOCKS)


def test_the_examples_of_the_page_run():
    assert doctest.testfile(str(PAGE), module_relative=False, encoding="utf-8") == (0, 6)


if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    for name, make in BLOCKS.items():
        page = block_of(name).sub(make() + "\n", page, count=1)
    PAGE.write_text(page, encoding="utf-8")
