"""All front ends walk the same path: torch by each of its paths, optax, and Keras on each of its back ends.

Every method takes 200 steps along noise, tiny, huge, zero, mostly zero, shrinking and jumping gradients. The difference
from the float64 oracle is taken relative to how far the coordinate ever gets from where it starts.
"""

import os
import subprocess
import sys
from pathlib import Path

import front_ends
import numpy as np
import pytest

from wagmf.methods import METHODS
from wagmf.online import OnlineLearner

TOLERANCE = {"float64": 1e-12, "float32": 1e-5}
SCRIPT = Path(front_ends.__file__)
CASES = [
    pytest.param(process, front_end, dtype, id=f"{front_end}-{dtype}", marks=pytest.mark.xdist_group(process))
    for process, those in front_ends.FRONT_ENDS.items()
    for front_end in those
    for dtype in front_ends.DTYPES
]


@pytest.fixture(scope="session")
def walks(tmp_path_factory):
    """What a front end's process has found, run when it is first asked for."""
    found = {}

    def of(process):
        if process not in found:
            file = tmp_path_factory.mktemp("walks") / f"{process}.npz"
            command = [sys.executable, SCRIPT, process, file]
            environment = {**os.environ, "KERAS_HOME": str(file.parent), "TF_CPP_MIN_LOG_LEVEL": "2"}
            result = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
            assert result.returncode == 0, result.stderr[-5000:]
            found[process] = np.load(file)
        return found[process]

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


@pytest.mark.parametrize(("process", "front_end", "dtype"), CASES)
@pytest.mark.parametrize("method", METHODS)
def test_every_front_end_walks_as_the_oracle(process, front_end, dtype, method, walks, oracle, record_property):
    walk = walks(process)[f"{dtype}/{front_end}/{method}"]
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
