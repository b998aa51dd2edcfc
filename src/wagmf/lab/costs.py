"""What a step costs: one network trained alone, by each method in turn."""

import statistics
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from wagmf.lab.claims import MODELS
from wagmf.lab.data import Dataset
from wagmf.lab.engine import Stack
from wagmf.lab.environment import default_device, environment
from wagmf.lab.models import zoo
from wagmf.lab.records import write_csv
from wagmf.lab.spec import Arm, Problem
from wagmf.methods import PAPER_METHODS

__all__ = ["measure"]

_MADE = ("device", "torch", "commit")  # what is said of where it was measured
_ROUNDS = 9
_STEPS = 20  # in a round: on a GPU enough to be timed well


def measure(path: Path, device: str | None = None, *, quick: bool = False) -> Path:
    """Time a step of every network of the paper with every method, and write it as CSV; ``quick`` takes small images.

    Methods take turns, round by round, so that what else the machine does hits all of them alike; the median counts.

    >>> import tempfile
    >>> path = measure(Path(tempfile.mkdtemp()) / "costs.csv", "cpu", quick=True)
    >>> len(pd.read_csv(path)) == len(MODELS) * len(PAPER_METHODS)
    True
    """
    device = device or default_device()
    steps, rounds, size = (1, 1, 8) if quick else (_STEPS if device != "cpu" else 2, _ROUNDS, 32)
    rows, made = [], environment(device)
    for model in MODELS:
        stacks = {name: _alone(model, name, device, steps, size) for name in PAPER_METHODS}
        for _ in range(1 + rounds):  # the first also compiles
            for stack in stacks.values():
                stack.train()
        for name, stack in stacks.items():
            ms = 1e3 * statistics.median(stack.seconds[1:]) / stack.batches.steps
            rows.append((model, name, ms, *(made[key] for key in _MADE)))
        torch.compiler.reset()  # every stack compiles its own functions; torch would stop after some of them
    table = pd.DataFrame(rows, columns=["model", "method", "ms", *_MADE])
    return write_csv(table, path)


def _alone(model: str, method: str, device: str, steps: int, size: int) -> Stack:
    """One replica on images of which only the size matters."""
    some = np.random.default_rng(0)
    x, y = some.integers(0, 256, (128 * steps, 3, size, size), np.uint8), np.arange(128 * steps) % 10
    data = Dataset("noise", x, y, x[:10], y[:10])
    options = {"amsgrad": (("debias", True),)}.get(method, ())
    problem = Problem("noise", model, decay=0.0, shift=0.1, flip=True)
    return Stack(problem, zoo(model, data.shape, 10), data, [Arm(method, 1e-4, options)], [0], device)
