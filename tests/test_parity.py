"""All front ends walk the same path: torch by each of its paths, optax, and Keras on each of its back ends.

Every method takes 200 steps along noise, tiny, huge, zero, mostly zero, shrinking and jumping gradients. The difference
from the float64 oracle is taken relative to how far the coordinate ever gets from where it starts.
"""

import back_ends
import front_ends
import numpy as np
import pytest

from wagmf.methods import METHODS
from wagmf.online import OnlineLearner

TOLERANCE = {"float64": 1e-12, "float32": 1e-5}
FRONT_ENDS = {f"torch {path}": pytest.mark.xdist_group("torch") for path in front_ends.TORCH_PATHS}
FRONT_ENDS |= {"optax": pytest.mark.xdist_group("optax")}
FRONT_ENDS |= {f"keras {back_end}": back_ends.mark(back_end) for back_end in back_ends.BACK_ENDS}
CASES = [
    pytest.param(front_end, dtype, id=f"{front_end}-{dtype}", marks=group)
    for front_end, group in FRONT_ENDS.items()
    for dtype in front_ends.DTYPES
]


@pytest.fixture(scope="session")
def walks(back_end):
    """What a front end has found, which walks when it is first asked for."""
    found = {}

    def of(front_end):
        if front_end not in found:
            kind, _, which = front_end.partition(" ")
            found[front_end] = back_end(which).walks if kind == "keras" else front_ends.walks(front_end)
        return found[front_end]

    return of


@pytest.fixture(scope="session")
def oracle():
    found = {}

    def of(method, dtype):
        if (method, dtype) not in found:
            g, x0 = front_ends.problems(dtype)
            learner = OnlineLearner(METHODS[method].rule, x0.astype(np.float64), lr=front_ends.LR)
            rows = []
            for g_t in g.astype(np.float64):
                learner.update(g_t)
                rows.append(np.array(learner.predict()))
            found[method, dtype] = np.stack(rows)
        return found[method, dtype]

    return of


def difference(walk, true):
    assert walk.shape == true.shape
    still = np.all(true == 0, axis=0)
    if np.any(walk[:, still]):
        return np.inf
    return float(np.max(np.abs(walk - true)[:, ~still] / np.abs(true).max(axis=0)[~still]))


@pytest.mark.parametrize(("front_end", "dtype"), CASES)
@pytest.mark.parametrize("method", METHODS)
def test_every_front_end_walks_as_the_oracle(front_end, dtype, method, walks, oracle, record_property):
    walk = walks(front_end)[f"{dtype}/{method}"]
    assert walk.dtype == dtype
    worst = difference(walk, oracle(method, dtype))
    record_property("difference", (dtype, front_end, method, worst))
    assert worst <= TOLERANCE[dtype]


@pytest.mark.parametrize("method", METHODS)
def test_another_method_would_be_seen(method, oracle):
    """No two methods are within the tolerance of each other, so a front end that mixed them up would fail."""
    for other in METHODS:
        if other != method:
            assert difference(oracle(method, "float64"), oracle(other, "float64")) > 1e-2


def test_standing_still_would_be_seen(oracle):
    """In every kind of gradients but zero, and a step where there is no gradient as well."""
    for method in METHODS:
        true = oracle(method, "float64")
        moves = np.any(true != 0, axis=0)
        assert moves.sum() >= 6 * 5
        for column in np.flatnonzero(moves):
            frozen = true.copy()
            frozen[:, column] = 0
            assert difference(frozen, true) == 1
        shifted = true.copy()
        shifted[-1, ~moves] = 1e-30
        assert difference(shifted, true) == np.inf
