"""One table of sets, one list of checks: what a projection in the norm of diag(V) must be, and what a set may be.

Each row states by its own means what its set is: who is in it, how to reach any of its points, and, for the sets one
multiplier rules, the path the projection takes, which a bisection in 60 digits follows to the answer.
"""

import copy
import decimal
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from wagmf.feasible import Ball, Box, Everything, Feasible, HalfSpace, Hyperplane, L1Ball, NonNegative, Simplex


@pytest.fixture(autouse=True, scope="module")
def float64_in_jax():
    with jax.enable_x64(True):
        yield


inf, nan = math.inf, math.nan
decimal_60 = decimal.Context(prec=60)

# Vectors of the rows below; a row in R^d takes the first d numbers of each.
LOWER = np.array([-1.0, 0.5, -2.0, -inf, 0.0, -3.0, 0.25, -1.0])
UPPER = np.array([1.0, 0.5, inf, 2.0, 4.0, -1.0, 0.75, 0.0])
CENTER = np.array([0.5, -1.0, 2.0, 0.0, -0.25, 1.5, -3.0, 1.0])
NORMAL = np.array([1.0, -2.0, 0.5, 3.0, -1.5, 0.75, 2.5, -0.5])


@dataclass(frozen=True, repr=False)
class Row:
    """A set in R^d, and the truth about it."""

    make: Callable[[int], Feasible]
    # How far outside x is, against the numbers that define the set and x itself; <= 0 inside.
    violation: Callable[[Any], float]
    # A point of the set for each u in [-1, 1]^d, its boundary and corners within reach.
    inside: Callable[[Any], Any]
    # x_i(λ), which falls or rises with the multiplier λ, what it exceeds the constraint by, and whether λ >= 0.
    path: Callable[[int, Decimal, Decimal, Decimal], Decimal]
    excess: Callable[[list[Decimal]], Decimal] = lambda x: Decimal(0)
    inequality: bool = True
    # Two points of R^d that lie a diameter apart.
    farthest: Callable[[int], tuple[Any, Any]] | None = None
    # The constraints as SLSQP wants them: (kind, function), the function >= 0 or = 0 inside.
    constraints: Callable[[int], list[tuple[str, Callable[[Any], Any]]]] = lambda d: []
    # y, V and the projections with V and without, worked by hand.
    example: tuple[list[float], list[float], list[float], list[float]] | None = None
    # Whether every linear loss has a least value on it.
    bounded: bool = True


def first(d: int) -> Any:
    return np.eye(d)[0]


def box_points(lower: Any, upper: Any, u: Any) -> Any:
    lower, upper = np.maximum(lower, -1e3), np.minimum(upper, 1e3)
    return np.clip(lower + (u + 1) / 2 * (upper - lower), lower, upper)


def simplex_point(total: float, u: Any) -> Any:
    u = np.abs(u) if np.any(u) else np.ones_like(u)
    return total * (u / np.sum(u))


def on_plane(u: Any, slack: float) -> Any:
    """u, with its first number changed so that NORMAL·x = 2 - slack; NORMAL starts with 1."""
    x = 10.0 * u
    x[0] = 2.0 - slack - NORMAL[1 : len(u)] @ x[1:]
    return x


def off_plane(x: Any) -> float:
    terms = [float(a * b) for a, b in zip(NORMAL, x, strict=False)]
    return (math.fsum(terms) - 2.0) / (2.0 + math.fsum(map(abs, terms)))


def away(u: Any) -> Any:
    return u / max(1.0, math.sqrt(math.fsum(u * u)))


def clamp(lower: float, y: Decimal, upper: float) -> Decimal:
    return sorted([Decimal(lower), y, Decimal(upper)])[1]


def soft(y: Decimal, cut: Decimal) -> Decimal:
    return max(abs(y) - cut, Decimal(0)).copy_sign(y)


ROWS = {
    "everything": Row(
        make=lambda d: Everything(),
        violation=lambda x: 0.0 if np.all(np.isfinite(x)) else inf,
        inside=lambda u: 1e3 * u,
        path=lambda i, y, V, lam: y,
        bounded=False,
    ),
    "box": Row(
        make=lambda d: Box(-1.5, 2),
        violation=lambda x: max(-1.5 - np.min(x), np.max(x) - 2),
        inside=lambda u: box_points(-1.5, 2.0, u),
        path=lambda i, y, V, lam: clamp(-1.5, y, 2),
        farthest=lambda d: (np.full(d, -1.5), np.full(d, 2.0)),
        constraints=lambda d: [("ineq", lambda x: x + 1.5), ("ineq", lambda x: 2 - x)],
    ),
    "box of arrays": Row(
        make=lambda d: Box(LOWER[:d], UPPER[:d]),
        violation=lambda x: max(np.max(LOWER[: len(x)] - x), np.max(x - UPPER[: len(x)])),
        inside=lambda u: box_points(LOWER[: len(u)], UPPER[: len(u)], u),
        path=lambda i, y, V, lam: clamp(LOWER[i], y, UPPER[i]),
        constraints=lambda d: [
            ("ineq", lambda x: (x - LOWER[:d])[np.isfinite(LOWER[:d])]),
            ("ineq", lambda x: (UPPER[:d] - x)[np.isfinite(UPPER[:d])]),
        ],
        bounded=False,
    ),
    "box, one side an array": Row(
        make=lambda d: Box(-4, np.arange(d)),
        violation=lambda x: max(-4 - np.min(x), np.max(x - np.arange(len(x)))),
        inside=lambda u: box_points(-4.0, np.arange(len(u)), u),
        path=lambda i, y, V, lam: clamp(-4, y, i),
        farthest=lambda d: (np.full(d, -4.0), np.arange(d)),
        constraints=lambda d: [("ineq", lambda x: x + 4), ("ineq", lambda x: np.arange(d) - x)],
    ),
    "nonnegative": Row(
        make=lambda d: NonNegative(),
        violation=lambda x: -np.min(x),
        inside=lambda u: 1e3 * np.abs(u),
        path=lambda i, y, V, lam: clamp(0, y, inf),
        constraints=lambda d: [("ineq", lambda x: x)],
        bounded=False,
    ),
    "ball": Row(
        make=lambda d: Ball(2),
        violation=lambda x: math.sqrt(math.fsum(x * x)) / 2 - 1,
        inside=lambda u: 2 * away(u),
        path=lambda i, y, V, lam: y * V / (V + lam),
        excess=lambda x: sum(a * a for a in x) - 4,
        farthest=lambda d: (2 * first(d), -2 * first(d)),
        constraints=lambda d: [("ineq", lambda x: 4 - x @ x)],
        # λ = 1: x = y/(1 + 1/V)
        example=([6.0, 8.0], [4 / 11, 3 / 17], [1.6, 1.2], [1.2, 1.6]),
    ),
    "ball off the origin": Row(
        make=lambda d: Ball(0.5, center=CENTER[:d]),
        violation=lambda x: (math.sqrt(math.fsum((x - CENTER[: len(x)]) ** 2)) - 0.5) / (0.5 + np.max(np.abs(x))),
        inside=lambda u: CENTER[: len(u)] + 0.5 * away(u),
        path=lambda i, y, V, lam: Decimal(CENTER[i]) + (y - Decimal(CENTER[i])) * V / (V + lam),
        excess=lambda x: sum((a - Decimal(c)) ** 2 for a, c in zip(x, CENTER, strict=False)) - Decimal("0.25"),
        farthest=lambda d: (CENTER[:d] + 0.5 * first(d), CENTER[:d] - 0.5 * first(d)),
        constraints=lambda d: [("ineq", lambda x: 0.25 - (x - CENTER[:d]) @ (x - CENTER[:d]))],
        example=([3.5, 3.0], [2 / 13, 3 / 37], [0.9, -0.7], [0.8, -0.6]),
    ),
    "l1 ball": Row(
        make=lambda d: L1Ball(1.5),
        violation=lambda x: math.fsum(np.abs(x)) / 1.5 - 1,
        inside=lambda u: 1.5 * u / max(1.0, math.fsum(np.abs(u))),
        path=lambda i, y, V, lam: soft(y, lam / V),
        excess=lambda x: sum(map(abs, x)) - Decimal("1.5"),
        farthest=lambda d: (1.5 * first(d), -1.5 * first(d)),
        constraints=lambda d: [
            ("ineq", lambda x: 1.5 - np.array(list(itertools.product([-1, 1], repeat=d))) @ x),
        ],
        example=([1.25, -1.25], [1, 3], [0.5, -1.0], [0.75, -0.75]),
    ),
    "simplex": Row(
        make=lambda d: Simplex(),
        violation=lambda x: max(-np.min(x), abs(math.fsum(x) - 1)),
        inside=lambda u: simplex_point(1.0, u),
        path=lambda i, y, V, lam: max(y - lam / V, Decimal(0)),
        excess=lambda x: sum(x) - 1,
        inequality=False,
        farthest=lambda d: (first(d), np.eye(d)[-1]),
        constraints=lambda d: [("ineq", lambda x: x), ("eq", lambda x: np.sum(x) - 1)],
        example=([1.0, 1.0], [1, 3], [0.25, 0.75], [0.5, 0.5]),
    ),
    "simplex of 40": Row(
        make=lambda d: Simplex(40),
        violation=lambda x: max(-np.min(x), abs(math.fsum(x) - 40)) / 40,
        inside=lambda u: simplex_point(40.0, u),
        path=lambda i, y, V, lam: max(y - lam / V, Decimal(0)),
        excess=lambda x: sum(x) - 40,
        inequality=False,
        farthest=lambda d: (40 * first(d), 40 * np.eye(d)[-1]),
        constraints=lambda d: [("ineq", lambda x: x), ("eq", lambda x: np.sum(x) - 40)],
        example=([0.0, 0.0], [1, 3], [30.0, 10.0], [20.0, 20.0]),
    ),
    "half-space": Row(
        make=lambda d: HalfSpace(NORMAL[:d], 2),
        violation=off_plane,
        inside=lambda u: on_plane(u, slack=10 * abs(u[0])),
        path=lambda i, y, V, lam: y - lam * Decimal(NORMAL[i]) / V,
        excess=lambda x: sum(Decimal(a) * b for a, b in zip(NORMAL, x, strict=False)) - 2,
        constraints=lambda d: [("ineq", lambda x: 2 - NORMAL[:d] @ x)],
        example=([3.0, -1.0], [1, 2], [2.0, 0.0], [2.4, 0.2]),
        bounded=False,
    ),
    "hyperplane": Row(
        make=lambda d: Hyperplane(NORMAL[:d], 2),
        violation=lambda x: abs(off_plane(x)),
        inside=lambda u: on_plane(u, slack=0.0),
        path=lambda i, y, V, lam: y - lam * Decimal(NORMAL[i]) / V,
        excess=lambda x: sum(Decimal(a) * b for a, b in zip(NORMAL, x, strict=False)) - 2,
        inequality=False,
        constraints=lambda d: [("eq", lambda x: NORMAL[:d] @ x - 2)],
        example=([-1.0, 0.0], [1, 2], [0.0, -1.0], [-0.4, -1.2]),
        bounded=False,
    ),
}
every_row = pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())


# Numbers over 27 decades, with zeros, ties and round ones among them; weights over twelve.
NEAR = [0.0, -1.0, 2.0, *(k / 7 for k in range(-28, 29))]
WIDE = [sign * 10.0 ** (k / 3) for k in range(-36, 46) for sign in (-1, 1)]
COORDINATE = st.sampled_from([*NEAR, *NEAR, *WIDE])
WEIGHT = st.sampled_from([10.0 ** (k / 6) for k in range(-36, 37)])
DIRECTION = st.sampled_from([k / 8 for k in range(-8, 9)])


@dataclass(frozen=True)
class Problem:
    """Points y and other, weights V, and u, which names a point of any set."""

    y: Any
    other: Any
    V: Any
    u: Any


problems = st.lists(st.tuples(COORDINATE, COORDINATE, WEIGHT, DIRECTION), min_size=1, max_size=8).map(
    lambda coordinates: Problem(*np.array(coordinates).T.copy())
)


def length(x: Any, V: Any) -> float:
    """‖x‖ in the norm of diag(V)."""
    return math.sqrt(math.fsum(V * x * x))


def towards(direction: Any) -> list[Any]:
    """The u whose points reach farthest along the direction, one kind for each shape of set, and every corner."""
    eye = np.eye(len(direction))
    return [direction / (np.max(np.abs(direction)) or 1.0), np.sign(direction), *eye, *-eye]


def bisect(row: Row, y: Any, V: Any) -> Any:
    """The projection in 60 digits: the multiplier, by bisection, then the point of the path it belongs to."""
    with decimal.localcontext(decimal_60):
        y, V = [Decimal(float(a)) for a in y], [Decimal(float(a)) for a in V]

        def point(lam: Decimal) -> list[Decimal]:
            return [row.path(i, a, v, lam) for i, (a, v) in enumerate(zip(y, V, strict=True))]

        if row.inequality and row.excess(point(Decimal(0))) <= 0:
            return np.array([float(a) for a in point(Decimal(0))])
        high = Decimal(1)
        while row.excess(point(high)) > 0:
            high *= 16
        low = Decimal(0) if row.inequality else Decimal(-1)
        while row.excess(point(low)) < 0:
            low *= 16
        for _ in range(230):
            middle = (low + high) / 2
            low, high = (middle, high) if row.excess(point(middle)) > 0 else (low, middle)
        return np.array([float(a) for a in point(low)])


def agree(x: Any, truth: Any, entered: Any, V: Any) -> None:
    """Equal in the norm of V to rounding; a coordinate alone to its root, which is how far it slides along a sphere."""
    size = np.abs(entered) + np.abs(truth) + 1
    assert length(x - truth, V) <= 1e-14 * length(size, V)
    np.testing.assert_allclose(x, truth, rtol=0, atol=1e-7 * np.max(size))


# The checks. Rounding is counted against the numbers that entered: x cannot be nearer the truth than y is to itself.


def is_feasible(row: Row, feasible: Feasible, problem: Problem) -> None:
    assert row.violation(feasible.project(problem.y, problem.V)) <= 1e-13


def is_idempotent(row: Row, feasible: Feasible, problem: Problem) -> None:
    x = feasible.project(problem.y, problem.V)
    agree(feasible.project(x, problem.V), x, x, problem.V)


def leaves_feasible_points_alone(row: Row, feasible: Feasible, problem: Problem) -> None:
    z = row.inside(problem.u)
    assert row.violation(z) <= 1e-14
    agree(feasible.project(z, problem.V), z, z, problem.V)


def is_non_expansive(row: Row, feasible: Feasible, problem: Problem) -> None:
    y, other, V = problem.y, problem.other, problem.V
    near, far = feasible.project(y, V), feasible.project(other, V)
    rounding = length(np.abs(y) + np.abs(other) + np.abs(near) + np.abs(far), V)
    assert length(near - far, V) <= length(y - other, V) + 1e-14 * rounding


def is_optimal(row: Row, feasible: Feasible, problem: Problem) -> None:
    """(V·(y - x))·(z - x) <= 0 for every z of the set: towards it, no step leads nearer to y."""
    y, V = problem.y, problem.V
    x = feasible.project(y, V)
    pull = V * (y - x)
    for z in map(row.inside, [*towards(pull), problem.u]):
        rounding = length(np.abs(y) + np.abs(x) + 1, V) * length(np.abs(y) + np.abs(x) + np.abs(z) + 1, V)
        assert math.fsum(pull * (z - x)) <= 1e-14 * rounding


def matches_the_bisection(row: Row, feasible: Feasible, problem: Problem) -> None:
    agree(feasible.project(problem.y, problem.V), bisect(row, problem.y, problem.V), problem.y, problem.V)


def is_contained(row: Row, feasible: Feasible, problem: Problem) -> None:
    assert feasible.contains(feasible.project(problem.y, problem.V))
    assert feasible.contains(row.inside(problem.u))
    near = np.clip(problem.y, -50, 50)
    if row.violation(near) > 1e-4:
        assert not feasible.contains(near)


def is_never_wider_than_its_diameter(row: Row, feasible: Feasible, problem: Problem) -> None:
    p, q = row.inside(problem.u), row.inside(-np.roll(problem.u, 1))
    assert np.max(np.abs(p - q)) <= feasible.diameter * (1 + 1e-14)


CHECKS = [
    is_feasible,
    is_idempotent,
    leaves_feasible_points_alone,
    is_non_expansive,
    is_optimal,
    matches_the_bisection,
    is_contained,
    is_never_wider_than_its_diameter,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@every_row
@settings(deadline=None, derandomize=True, max_examples=20)
@given(problem=problems)
def test_projection(row, check, problem):
    check(row, row.make(len(problem.y)), problem)


# Whether the weights count, and against a solver that knows nothing of projections.


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.example])
def test_the_weights_count(name):
    y, V, weighted, unweighted = map(np.array, ROWS[name].example)
    assert np.max(np.abs(weighted - unweighted)) > 0.09
    feasible = ROWS[name].make(2)
    np.testing.assert_allclose(feasible.project(y, V), weighted, rtol=0, atol=1e-14 * np.max(np.abs(y) + 40))
    np.testing.assert_allclose(feasible.project(y), unweighted, rtol=0, atol=1e-14 * np.max(np.abs(y) + 40))
    np.testing.assert_allclose(feasible.project(y, 7.0), unweighted, rtol=0, atol=1e-14 * np.max(np.abs(y) + 40))


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if not row.example])
@settings(deadline=None, derandomize=True, max_examples=20)
@given(problem=problems)
def test_a_box_does_not_depend_on_the_weights(name, problem):
    feasible = ROWS[name].make(len(problem.y))
    np.testing.assert_array_equal(feasible.project(problem.y, problem.V), feasible.project(problem.y))


@every_row
def test_a_general_solver_finds_the_same_point(row):
    """SLSQP on Σ V_i·(x_i - y_i)², in 1 to 4 dimensions, V within 0.1 to 10: it is good for five digits."""
    rng = np.random.default_rng(7)
    for d in (1, 2, 3, 4) * 3:
        y, V = 3 * rng.standard_normal(d), 10 ** rng.uniform(-1, 1, d)
        found = minimize(
            lambda x, y=y, V=V: (V * (x - y) @ (x - y), 2 * V * (x - y)),
            row.inside(np.zeros(d)),
            jac=True,
            method="SLSQP",
            constraints=[{"type": kind, "fun": function} for kind, function in row.constraints(d)],
            options={"ftol": 1e-14, "maxiter": 300},
        )
        np.testing.assert_allclose(row.make(d).project(y, V), found.x, rtol=0, atol=1e-5)


# Where rounding is most of what there is.


@pytest.mark.parametrize("decades", range(1, 9))
def test_a_ball_is_reached_however_unequal_the_weights(decades):
    """y's heavy coordinate is on the sphere already, so the light one must vanish: the slowest case for Newton."""
    y, V = np.array([1.0, 1.0]), np.array([10.0**-decades, 10.0**decades])
    unit = Row(
        make=lambda d: Ball(1),
        violation=lambda x: math.sqrt(math.fsum(x * x)) - 1,
        inside=away,
        path=lambda i, y, V, lam: y * V / (V + lam),
        excess=lambda x: sum(a * a for a in x) - 1,
    )
    x = unit.make(2).project(y, V)
    assert abs(unit.violation(x)) <= 1e-14
    np.testing.assert_allclose(x, bisect(unit, y, V), rtol=1e-4)


FAR = [
    (Simplex(), [1e8, 1e8, 1e8], [1 / 3, 1 / 3, 1 / 3]),
    (Simplex(), [1e17, 1e17], [0.5, 0.5]),
    (Simplex(), [-1e17, -1e17], [0.5, 0.5]),
    (Simplex(), [1e17, 3.0], [1.0, 0.0]),
    (Simplex(axis=1), [[1e17, 1e17], [0.25, 0.25]], [[0.5, 0.5], [0.5, 0.5]]),
    (L1Ball(1), [1e17, -3.0], [1.0, 0.0]),
    (L1Ball(1), [1e17, -1e17], [0.5, -0.5]),
    (HalfSpace([1, 1], 1), [1e17, 1e17], [0.5, 0.5]),
    (HalfSpace([1, 1], 1), [-1e17, -1e17], [-1e17, -1e17]),
    (Hyperplane([1, -1], 1), [1e17, -1e17], [0.5, -0.5]),
    (Ball(1), [3e17, 4e17], [0.6, 0.8]),
    # Squares that overflow, and squares that vanish.
    (Ball(1), [3e200, 4e200], [0.6, 0.8]),
    (Ball(1e-200), [3e-200, 4e-200], [0.6e-200, 0.8e-200]),
    (HalfSpace([1e-200, 0], -1e-200), [1.0, 1.0], [-1.0, 1.0]),
    (Hyperplane([1e200, 1e200], 1e200), [1.0, 1.0], [0.5, 0.5]),
]


@pytest.mark.parametrize(("feasible", "y", "x"), FAR, ids=[f"{feasible} {y}" for feasible, y, _ in FAR])
def test_far_away(feasible, y, x):
    np.testing.assert_allclose(feasible.project(np.array(y)), x, rtol=1e-14)


@pytest.mark.parametrize(
    ("feasible", "y", "x"),
    [
        (Simplex(), [1e3, 1e3, 1e3], [1 / 3, 1 / 3, 1 / 3]),
        (Simplex(), [1e9, 1e9], [0.5, 0.5]),
        (L1Ball(1), [1e9, -3.0], [1.0, 0.0]),
        (HalfSpace([1, 1], 1), [1e9, 1e9], [0.5, 0.5]),
        (Ball(1), [3e25, 4e25], [0.6, 0.8]),
    ],
    ids=str,
)
def test_far_away_in_float32(feasible, y, x):
    np.testing.assert_allclose(feasible.project(np.array(y, dtype=np.float32)), x, rtol=1e-6)


# Slices.

SLICED = {
    "ball": lambda axis, center: Ball(1.3, axis=axis),
    "ball off the origin": lambda axis, center: Ball(0.5, center=center, axis=axis),
    "l1 ball": lambda axis, center: L1Ball(1.3, axis=axis),
    "simplex": lambda axis, center: Simplex(2.0, axis=axis),
}


@pytest.mark.parametrize("name", SLICED)
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((4, 5), 0), ((4, 5), 1), ((4, 5), -1), ((4, 5), -2), ((3, 4, 5), 0), ((3, 4, 5), 1), ((3, 4, 5), -1), ((6,), 0)],
)
def test_an_axis_is_a_loop_over_slices(name, shape, axis):
    rng = np.random.default_rng(3)
    y, center, V = rng.standard_normal((3, *shape)) * 2
    V = 10**V
    y[(0,) * len(shape)] = 1e3
    expected = np.empty(shape)
    slices = [np.moveaxis(array, axis, -1) for array in (y, center, V, expected)]
    for at in np.ndindex(slices[0].shape[:-1]):
        part, middle, weight, out = (array[at] for array in slices)
        out[...] = SLICED[name](None, middle).project(part, weight)
    actual = SLICED[name](axis, center).project(y, V)
    assert actual.shape == shape
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-13)
    assert SLICED[name](axis, center).contains(actual)
    if len(shape) > 1:
        assert np.max(np.abs(SLICED[name](None, center).project(y, V) - expected)) > 0.1


@pytest.mark.parametrize("name", SLICED)
def test_an_array_is_taken_as_a_whole(name):
    rng = np.random.default_rng(4)
    y, V, center = rng.standard_normal((2, 3)) * 3, 10 ** rng.standard_normal((2, 3)), rng.standard_normal((2, 3))
    whole = SLICED[name](None, center).project(y, V)
    flat = SLICED[name](None, center.ravel()).project(y.ravel(), V.ravel())
    np.testing.assert_array_equal(whole, flat.reshape(2, 3))


# The same text in every framework.


def numpy_run(feasible: Feasible, dtype: str, *arguments: Any) -> Any:
    arguments = [np.array(a, dtype=dtype) if isinstance(a, np.ndarray) else a for a in arguments]
    before = copy.deepcopy(arguments)
    x = feasible.project(*arguments)
    assert all(np.array_equal(a, b) for a, b in zip(arguments, before, strict=True))
    assert x.dtype == dtype
    return x


def torch_run(feasible: Feasible, dtype: str, *arguments: Any) -> Any:
    kind = getattr(torch, dtype)
    arguments = [torch.tensor(a, dtype=kind) if isinstance(a, np.ndarray) else a for a in arguments]
    before = copy.deepcopy(arguments)
    x = feasible.project(*arguments, xp=torch)
    assert all(bool((a == b).all()) for a, b in zip(arguments, before, strict=True) if isinstance(a, torch.Tensor))
    assert isinstance(x, torch.Tensor)
    assert x.dtype == kind
    return x.numpy()


compiled = jax.jit(lambda feasible, *arguments: feasible.project(*arguments, xp=jnp), static_argnums=0)


def jax_run(feasible: Feasible, dtype: str, *arguments: Any) -> Any:
    arguments = [jnp.asarray(a, dtype=dtype) if isinstance(a, np.ndarray) else a for a in arguments]
    x = compiled(feasible, *arguments)
    assert isinstance(x, jax.Array)
    assert x.dtype == dtype
    return np.asarray(x)


RUNS = {"numpy": numpy_run, "torch": torch_run, "jax": jax_run}
every_framework = pytest.mark.parametrize("run", RUNS.values(), ids=RUNS.keys())

# Less the rows that differ from a neighbour by a number only, for compilers take their time.
PORTED = {
    name: (row.make(6), (6,))
    for name, row in ROWS.items()
    if name not in ("box, one side an array", "ball", "simplex of 40")
} | {f"{name} along an axis": (make(0, np.full(4, 0.5)), (3, 4)) for name, make in SLICED.items() if name != "ball"}


@pytest.mark.parametrize(
    ("run", "dtype"),
    [(numpy_run, "float32"), (torch_run, "float32"), (torch_run, "float64"), (jax_run, "float64")],
    ids=["numpy-float32", "torch-float32", "torch-float64", "jax-float64"],
)
@pytest.mark.parametrize("name", PORTED)
def test_frameworks_agree(name, run, dtype):
    """With numpy in float64: to 1e-12; in float32 to 2e-6 in the norm of V, a coordinate alone to the root of it."""
    feasible, shape = PORTED[name]
    rng = np.random.default_rng(5)
    points = [10 ** rng.uniform(-2, 2, shape) * rng.choice([-1, 1], shape) for _ in range(10)]
    for y in [*points, np.zeros(shape), np.ones(shape)]:
        y, V = (array.astype(dtype).astype(np.float64) for array in (y, 10 ** rng.uniform(-3, 3, shape)))
        x, truth, size = run(feasible, dtype, y, V), feasible.project(y, V), np.abs(y) + 1
        assert x.shape == shape
        in_norm, alone = (1e-12, 1e-12) if dtype == "float64" else (2e-6, 2e-3)
        assert length((x - truth).ravel(), V.ravel()) <= in_norm * length(size.ravel(), V.ravel())
        np.testing.assert_allclose(x, truth, rtol=0, atol=alone * np.max(size))


@every_framework
@pytest.mark.parametrize("feasible", [Box(-1, [1, 2]), L1Ball(1), Simplex(), HalfSpace([1, 2], 3)], ids=str)
def test_one_weight_serves_all(feasible, run):
    y = np.array([3.0, -0.5])
    expected = feasible.project(y, np.array([3.0, 3.0]))
    for arguments in ((y,), (y, 3.0), (y, np.array(3.0))):
        np.testing.assert_allclose(run(feasible, "float32", *arguments), expected, rtol=0, atol=1e-6)


@every_framework
@pytest.mark.parametrize("shape", [(0,), (2, 0)])
@pytest.mark.parametrize(
    "feasible",
    [
        Everything(),
        Box(-1, 1),
        NonNegative(),
        Ball(1, center=2),
        Ball(1, axis=-1),
        L1Ball(1),
        L1Ball(1, axis=-1),
    ],
    ids=str,
)
def test_empty_arrays(feasible, shape, run):
    assert run(feasible, "float32", np.zeros(shape), np.ones(shape)).shape == shape
    assert feasible.contains(np.zeros(shape))


@every_framework
@pytest.mark.parametrize(
    ("feasible", "x"),
    [
        (Everything(), -3.0),
        (Box(-1, 1), -1.0),
        (NonNegative(), 0.0),
        (Ball(2, center=1), -1.0),
        (L1Ball(2), -2.0),
        (Simplex(2), 2.0),
        (HalfSpace(-2, 4), -2.0),
        (Hyperplane(2, 4), 2.0),
    ],
    ids=str,
)
def test_a_single_number(feasible, x, run):
    actual = run(feasible, "float64", np.array(-3.0), np.array(7.0))
    assert actual.shape == ()
    assert actual == pytest.approx(x, abs=1e-15)


# Lowest points and diameters.


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.bounded])
@settings(deadline=None, derandomize=True, max_examples=20)
@given(problem=problems)
def test_lowest_is_no_higher_than_any_point(name, problem):
    row, direction = ROWS[name], problem.y
    x = row.make(len(direction)).lowest(direction)
    assert x.shape == direction.shape
    assert row.violation(x) <= 1e-14
    for z in map(row.inside, [*towards(-direction), problem.u]):
        rounding = 1e-14 * math.fsum(np.abs(direction) * (np.abs(x) + np.abs(z) + 1))
        assert math.fsum(direction * x) <= math.fsum(direction * z) + rounding


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if not row.bounded])
def test_lowest_is_refused_where_there_is_none(name):
    feasible = ROWS[name].make(4)
    with pytest.raises(ValueError, match="no least value") as refused:
        feasible.lowest(np.array([1.0, 1.0, -1.0, 1.0]))
    assert f"Invalid feasible: {feasible!r}" in str(refused.value)


@pytest.mark.parametrize("name", SLICED)
def test_lowest_is_refused_along_an_axis(name):
    with pytest.raises(ValueError, match="Invalid axis: 1 ") as refused:
        SLICED[name](1, 0.0).lowest(np.ones((2, 3)))
    assert "as a whole" in str(refused.value)


@pytest.mark.parametrize(
    ("feasible", "direction", "x"),
    [
        (Box(0, inf), [1.0, 2.0], [0.0, 0.0]),
        (Box(-inf, 0), [-1.0, -2.0], [0.0, 0.0]),
        (Box([0, 1], [inf, 2]), [[3, -1], [1, 1]], [[0.0, 2.0], [0.0, 1.0]]),
        (Ball(5), [[3, 0], [0, 4]], [[-3.0, 0.0], [0.0, -4.0]]),
        (Ball(5, center=[1, 2]), [0, 0], [1.0, 2.0]),
        (Ball(5), [3e200, 4e200], [-3.0, -4.0]),
        (Ball(5), [3e-200, 4e-200], [-3.0, -4.0]),
        (L1Ball(2), [[1, -3], [2, 0]], [[0.0, 2.0], [0.0, 0.0]]),
        (Simplex(2), [[1, -3], [2, 0]], [[0.0, 2.0], [0.0, 0.0]]),
        (Simplex(2), 5, 2.0),
    ],
    ids=str,
)
def test_lowest_points(feasible, direction, x):
    np.testing.assert_allclose(feasible.lowest(direction), x, rtol=1e-14)


@pytest.mark.parametrize(
    ("feasible", "direction", "least"),
    [
        (Box(0, inf), [1.0, 0.0], 0.0),
        (Box(-inf, 3), [0.0, -2.0], -6.0),
        (Box(-inf, inf), [0.0, 0.0], 0.0),
        (Box([1, -inf], [2, -5]), [1.0, 0.0], 1.0),
    ],
    ids=str,
)
def test_an_open_side_no_loss_falls_along_is_no_hindrance(feasible, direction, least):
    x = feasible.lowest(direction)
    assert feasible.contains(x)
    assert np.dot(direction, x) == least


@every_row
def test_diameter(row):
    """Attained by two points of the set, or infinite."""
    if not row.bounded:
        assert row.make(4).diameter == inf
        return
    for d in range(2, 9):
        p, q = row.farthest(d)
        assert max(row.violation(p), row.violation(q)) <= 0
        assert row.make(d).diameter == np.max(np.abs(p - q))


# Membership.


@every_row
@pytest.mark.parametrize("bad", [nan, inf, -inf])
def test_nothing_contains_what_is_not_a_number(row, bad):
    x = row.inside(np.full(4, 0.25))
    feasible = row.make(4)
    assert feasible.contains(x)
    x[2] = bad
    assert not feasible.contains(x)


def test_contains_allows_for_rounding_only():
    assert Box(-1, 1).contains([1 + 0.9e-9])
    assert not Box(-1, 1).contains([1 + 1.1e-9])
    assert Box(-1, 1).contains([1.4], tolerance=0.5)
    assert Box(0, 1e6).contains([1e6 + 0.9e-3])
    assert not Box(0, 1e6).contains([1e6 + 1.1e-3])
    assert Simplex(axis=1).contains([[0.5, 0.5], [1.0, 0.0]])
    assert not Simplex().contains([[0.5, 0.5], [1.0, 0.0]])
    assert isinstance(Ball(1).contains(np.zeros(2)), bool)


# What a set may be made of.

BAD = [
    (lambda: Box(1, -1), "lower, upper", (1, -1)),
    (lambda: Box([0, 2], [1, 1]), "lower, upper", ([0, 2], [1, 1])),
    (lambda: Box([0, 0], [1, 1, 1]), "lower, upper", ((2,), (3,))),
    (lambda: Box(inf, inf), "lower, upper", (inf, inf)),
    (lambda: Box(-inf, -inf), "lower, upper", (-inf, -inf)),
    (lambda: Box([0, inf], inf), "lower, upper", ([0, inf], inf)),
    (lambda: Box(nan, 1), "lower", nan),
    (lambda: Box(0, nan), "upper", nan),
    (lambda: Box([0, nan], 1), "lower", [0, nan]),
    (lambda: Box(0, [nan]), "upper", [nan]),
    (lambda: Box("0", 1), "lower", "0"),
    (lambda: Box(0, "wide"), "upper", "wide"),
    (lambda: Box(["0"], 1), "lower", ["0"]),
    (lambda: Box(0, ["wide"]), "upper", ["wide"]),
    (lambda: Box(True, 2), "lower", True),
    (lambda: Box([True], 2), "lower", [True]),
    (lambda: Box(None, 1), "lower", None),
    (lambda: Box(0, [None]), "upper", [None]),
    (lambda: Box(0, [[1], [1, 2]]), "upper", [[1], [1, 2]]),
    (lambda: Box(0, [1j]), "upper", [1j]),
    (lambda: Box(0, np.array([1j])), "upper", np.array([1j])),
    (lambda: Box(0, 10**400), "upper", 10**400),
    (lambda: Box([-(10**400)], 0), "lower", [-(10**400)]),
    (lambda: Ball(0), "radius", 0),
    (lambda: Ball(-1), "radius", -1),
    (lambda: Ball(inf), "radius", inf),
    (lambda: Ball(nan), "radius", nan),
    (lambda: Ball("1"), "radius", "1"),
    (lambda: Ball(True), "radius", True),
    (lambda: Ball(None), "radius", None),
    (lambda: Ball([1, 2]), "radius", [1, 2]),
    (lambda: Ball(10**400), "radius", 10**400),
    (lambda: Ball(1, center=nan), "center", nan),
    (lambda: Ball(1, center=-inf), "center", -inf),
    (lambda: Ball(1, center=[0, nan]), "center", [0, nan]),
    (lambda: Ball(1, center=[0, inf]), "center", [0, inf]),
    (lambda: Ball(1, center="origin"), "center", "origin"),
    (lambda: Ball(1, center=["0"]), "center", ["0"]),
    (lambda: Ball(1, axis=1.5), "axis", 1.5),
    (lambda: Ball(1, axis=True), "axis", True),
    (lambda: Ball(1, axis="0"), "axis", "0"),
    (lambda: Ball(1, axis=(0, 1)), "axis", (0, 1)),
    (lambda: L1Ball(0), "radius", 0),
    (lambda: L1Ball(-0.5), "radius", -0.5),
    (lambda: L1Ball(inf), "radius", inf),
    (lambda: L1Ball(nan), "radius", nan),
    (lambda: L1Ball("1"), "radius", "1"),
    (lambda: L1Ball(1, axis=1.5), "axis", 1.5),
    (lambda: L1Ball(1, axis=False), "axis", False),
    (lambda: Simplex(0), "total", 0),
    (lambda: Simplex(-1), "total", -1),
    (lambda: Simplex(inf), "total", inf),
    (lambda: Simplex(nan), "total", nan),
    (lambda: Simplex("one"), "total", "one"),
    (lambda: Simplex(axis=1.0), "axis", 1.0),
    (lambda: Simplex(axis=True), "axis", True),
    *(
        case
        for plane in (HalfSpace, Hyperplane)
        for case in (
            (lambda plane=plane: plane([0, 0], 1), "a", [0, 0]),
            (lambda plane=plane: plane(0, 1), "a", 0),
            (lambda plane=plane: plane([], 1), "a", []),
            (lambda plane=plane: plane([1, inf], 1), "a", [1, inf]),
            (lambda plane=plane: plane([1, nan], 1), "a", [1, nan]),
            (lambda plane=plane: plane(nan, 1), "a", nan),
            (lambda plane=plane: plane("up", 1), "a", "up"),
            (lambda plane=plane: plane(["1"], 1), "a", ["1"]),
            (lambda plane=plane: plane([10**400], 1), "a", [10**400]),
            (lambda plane=plane: plane([1], nan), "b", nan),
            (lambda plane=plane: plane([1], inf), "b", inf),
            (lambda plane=plane: plane([1], "1"), "b", "1"),
            (lambda plane=plane: plane([1], [1, 2]), "b", [1, 2]),
            (lambda plane=plane: plane([1], True), "b", True),
        )
    ),
]


@pytest.mark.parametrize(("make", "name", "value"), BAD, ids=[f"{name}={value!r:.20}" for _, name, value in BAD])
def test_bad_values_are_refused_by_name(make, name, value):
    with pytest.raises(ValueError, match=r"^Invalid ") as refused:
        make()
    assert str(refused.value).startswith(f"Invalid {name}: {value!r} (")


@pytest.mark.parametrize(
    "feasible",
    [Box([0, 0, 0], 1), Ball(1, center=[0, 0, 0]), HalfSpace([1, 1, 1], 1), Hyperplane([1, 1, 1], 1)],
    ids=str,
)
def test_a_set_does_not_widen_what_it_projects(feasible):
    with pytest.raises(ValueError, match=r"Invalid shape of x: \(1,\) \(the set is of shape \(3,\)"):
        feasible.project(np.zeros(1))


def test_a_set_keeps_its_own_copy_of_what_it_is_made_of():
    lower, upper, center, a = np.zeros(2), np.ones(2), np.zeros(2), np.ones(2)
    sets = [Box(lower, upper), Ball(1, center=center), HalfSpace(a, 1), Hyperplane(a, 1)]
    y = np.array([3.0, 4.0])
    before = [feasible.project(y) for feasible in sets]
    for array in (lower, upper, center, a):
        array += 5
    for feasible, x in zip(sets, before, strict=True):
        np.testing.assert_array_equal(feasible.project(y), x)
