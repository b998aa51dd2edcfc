"""The weights: discount, window, and every kind of t they must take."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from tables import WEIGHTS

from wagmf.weights import Custom, Equal, Exponential, Latest, Linear, Polynomial, Weights


@pytest.fixture(autouse=True, scope="module")
def float64_in_jax():
    with jax.enable_x64(True):
        yield


# γ_t as the paper writes it, to compare ratios of raw weights with.
GAMMA = {
    "equal": lambda t: 1.0,
    "linear": lambda t: float(t),
    "quadratic": lambda t: t**2.0,
    "root": lambda t: t**0.5,
    "nostalgic": lambda t: t**-0.1,
    "harmonic": lambda t: 1 / t,
    "exponential": lambda t: 0.999**-t,
    "short exponential": lambda t: 0.5**-t,
    "custom": lambda t: t * (t + 3.0),
}


@pytest.mark.parametrize("name", GAMMA)
def test_discount_and_window_are_ratios_of_the_raw_weights(name):
    weights, gamma, total = WEIGHTS[name], GAMMA[name], 0.0
    for t in range(1, 201):
        total += gamma(t)
        assert weights.window(t) == pytest.approx(total / gamma(t), rel=1e-12)
        if t > 1:
            assert weights.discount(t) == pytest.approx(gamma(t - 1) / gamma(t), rel=1e-12)


@pytest.mark.parametrize("name", WEIGHTS)
def test_window_follows_its_recursion(name):
    weights = WEIGHTS[name]
    u = weights.start
    for t in range(1, 1001):
        u = 1 + weights.discount(t) * u
        assert weights.window(t) == pytest.approx(u, rel=1e-11) if t <= 20 or t % 100 == 0 else math.isfinite(u)


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize(
    "of",
    [np.int64, np.float64, lambda t: torch.tensor(t, dtype=torch.float64), jnp.array],
    ids=["numpy int", "numpy float", "torch", "jax"],
)
def test_t_may_be_a_scalar_of_any_framework(name, of):
    weights = WEIGHTS[name]
    for t in (1, 2, 7, 1000):
        assert float(weights.discount(of(t))) == pytest.approx(float(weights.discount(t)), rel=1e-14)
        if t <= 7 and type(weights).window is not Weights.window:
            assert float(weights.window(of(t))) == pytest.approx(float(weights.window(t)), rel=1e-14)


@pytest.mark.parametrize("name", WEIGHTS)
def test_t_may_be_traced_and_the_first_step_is_finite(name):
    weights = WEIGHTS[name]

    @jax.jit
    def windows(steps):
        return jax.lax.scan(lambda u, t: (1 + weights.discount(t) * u,) * 2, weights.start, steps)[1]

    expected = [weights.window(t) for t in range(1, 51)]
    np.testing.assert_allclose(windows(jnp.arange(1, 51)), expected, rtol=1e-12)
    compiled = torch.compile(lambda t: weights.discount(t) * 1.0, backend="eager")
    one = torch.tensor(1.0, dtype=torch.float64)
    assert math.isfinite(float(compiled(one)))


def test_arrays_of_t_give_arrays():
    t = np.arange(1, 6)
    np.testing.assert_allclose(Linear().discount(t), [0, 1 / 2, 2 / 3, 3 / 4, 4 / 5], rtol=1e-15)
    assert np.all(np.isfinite(Polynomial(-3).discount(t)))


def test_weights_are_frozen_hashable_and_printable():
    assert {Equal(), Equal(), Linear(), Polynomial(1), Polynomial(1.0), Latest()} == {
        Equal(), Linear(), Polynomial(1), Latest(),
    }  # fmt: skip
    assert str(Exponential(0.9)) == "Exponential(beta=0.9, steady=False)"
    with pytest.raises(AttributeError):
        Polynomial(1).eta = 2


@pytest.mark.parametrize("name", [name for name in WEIGHTS if name != "custom"])
def test_weights_survive_being_written_down(name):
    assert Weights.from_dict(WEIGHTS[name].to_dict()) == WEIGHTS[name]


@pytest.mark.parametrize(
    ("text", "weights"),
    [
        ("equal", Equal()), ("Linear", Linear()), ("latest", Latest()), ("polynomial:-0.5", Polynomial(-0.5)),
        ("exponential:0.99", Exponential(0.99)), ("exponential:0.9:steady", Exponential(0.9, steady=True)),
    ],
)  # fmt: skip
def test_weights_can_be_typed(text, weights):
    assert Weights.parse(text) == weights


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Polynomial(math.nan), ["eta", "nan"]),
        (lambda: Polynomial("2"), ["eta", "'2'"]),
        (lambda: Polynomial(None), ["eta", "None"]),
        (lambda: Exponential(1.0), ["beta", "1.0", "< 1"]),
        (lambda: Exponential(0.0), ["beta", "0.0", "> 0"]),
        (lambda: Exponential(0.9, steady=1), ["steady", "1"]),
        (lambda: Custom(3), ["gamma", "3"]),
        (lambda: Custom(lambda t: t - 1), ["gamma(1)", "0"]),
        (lambda: Custom(lambda t: "a"), ["gamma(1)", "'a'"]),
        (lambda: Custom(lambda t: 1.0 if t < 3 else math.nan).discount(3), ["gamma(3)", "nan"]),
        (lambda: Custom(lambda t: 0.5**t).window(2000), ["gamma(1075)", "0.0"]),
        (lambda: Custom(lambda t: t).to_dict(), ["Custom", "named families"]),
        (lambda: Weights.from_dict({"kind": "linaer"}), ["linaer", "did you mean 'linear'"]),
        (lambda: Weights.from_dict({}), ["weights", "None"]),
        (lambda: Weights.parse("polynomial"), ["polynomial", "polynomial:NUMBER"]),
        (lambda: Weights.parse("linear:2"), ["linear:2", "linear alone"]),
        (lambda: Weights.parse("exponential:2"), ["exponential:2", "< 1"]),
        (lambda: Weights.parse("polynomial:x"), ["polynomial:x", "x"]),
        (lambda: Polynomial(1).window(-1), ["t", "-1"]),
        (lambda: Polynomial(1).window(1.5), ["t", "1.5"]),
    ],
)
def test_bad_values_are_refused_by_name_and_value(make, named):
    with pytest.raises(ValueError, match="Invalid") as refusal:
        make()
    assert all(word in str(refusal.value) for word in named), refusal.value


def test_a_traced_t_needs_a_closed_window():
    with pytest.raises(ValueError, match="carry u"):
        jax.jit(Polynomial(2).window)(3)
    assert float(jax.jit(Linear().window)(3)) == 2


@pytest.mark.parametrize("name", [name for name in WEIGHTS if name != "custom"])
def test_weights_can_be_written_as_they_are_typed(name):
    assert Weights.parse(WEIGHTS[name].text) == WEIGHTS[name]


def test_a_custom_weight_may_be_a_numpy_number():
    assert Custom(lambda t: np.float32(t)).discount(2) == 0.5
