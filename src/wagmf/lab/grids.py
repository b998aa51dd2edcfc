"""What a grid of step sizes leaves open: seeds do not tell it, and small differences between methods may be due to it.

Every method is compared at the best step size of a grid. Where the best of all step sizes lies is chance, and on a
smooth problem with many seeds p-values are so small that this chance is most of what they find. So a difference counts
as shown only if the method behind could not make it good at a step size between those that were tried.
"""

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from wagmf.lab.stats import finals

__all__ = ["TUNED", "Row", "Slacks", "beyond_the_grid", "grid_slack", "grid_slacks", "widened"]

TUNED: str = "train_loss"
"""By what step sizes are chosen: what they leave open is known for this alone."""

Row: TypeAlias = dict[str, Any]
"""A row of :func:`wagmf.lab.stats.significance`."""

Slacks: TypeAlias = Mapping[tuple[str, str], float]
"""By experiment and method, how much lower a loss might be at a step size between those that were tried."""


def grid_slack(losses: Mapping[float, float], chosen: float) -> float:
    """How much lower a loss might be between the step sizes of a grid than at its best, which was chosen.

    The loss is taken to be a parabola of the logarithm of the step size, as curved as it is between the chosen one and
    its neighbours; at worst its bottom is half a step away. Infinite if there is no neighbour, or if it diverged.

    >>> round(grid_slack({0.1: 1.2, 0.2: 1.0, 0.4: 1.4}, chosen=0.2), 9)
    0.075
    >>> grid_slack({0.1: 1.2, 0.2: 1.0}, chosen=0.2)
    inf
    """
    rates = sorted(losses)
    place = rates.index(chosen)
    if place in (0, len(rates) - 1):
        return math.inf
    around = rates[place - 1 : place + 2]
    (before, least, after), (left, right) = (losses[lr] for lr in around), np.diff(np.log(around))
    curved = ((before - least) / left + (after - least) / right) / (left + right)
    slack = float(curved * (max(left, right) / 2) ** 2)
    return slack if math.isfinite(slack) else math.inf


def grid_slacks(curves: pd.DataFrame, chosen: Mapping[str, float]) -> dict[str, float]:
    """The same of every method, given the curves of the last stage of a search for step sizes.

    >>> rows = [("e, fine", "wada", lr, 0, 1, loss) for lr, loss in ((0.1, 1.2), (0.2, 1.0), (0.4, 1.4))]
    >>> curves = pd.DataFrame(rows, columns=["experiment", "method", "lr", "seed", "epoch", "train_loss"])
    >>> sorted(grid_slacks(curves, {"wada": 0.2}))
    ['wada']
    """
    if curves.empty:
        return {}
    ends: Any = finals(curves, TUNED)
    tried: dict[str, dict[float, float]] = {}
    for (method, lr), rows in ends.groupby(["method", "lr"]):
        tried.setdefault(method, {})[lr] = rows["value"].mean(skipna=False)
    return {method: grid_slack(tried[method], lr) for method, lr in chosen.items() if lr in tried.get(method, ())}


def widened(row: Row, slack_a: float, slack_b: float) -> Row:
    """A row by a loss, with what finer grids might change.

    Either method may come to be better by its slack: the interval is so much wider, and a difference that the one
    behind might make good is not ``better``.

    >>> row = {"difference": -0.02, "low": -0.03, "high": -0.01, "better": "a", "diverged_a": 0, "diverged_b": 0}
    >>> widened(row, 0.0, 0.01)["better"], widened(row, 0.0, 0.02)["better"]
    ('a', '')
    """
    wide = {**row, "low": row["low"] - slack_a, "high": row["high"] + slack_b}
    behind = {"a": slack_b, "b": slack_a}.get(row["better"], 0.0)
    # Who diverged more often is behind whatever its step size may gain.
    if row["diverged_a"] == row["diverged_b"] and abs(row["difference"]) <= behind:
        wide["better"] = ""
    return wide


def beyond_the_grid(row: Row, metric: str, slacks: Slacks) -> Row:
    """A row by any metric, with what finer grids might change where that is known.

    >>> row = {"experiment": "e", "a": "wada", "b": "adam", "better": "a", "difference": -0.02, "low": -0.03,
    ...        "high": -0.01, "diverged_a": 0, "diverged_b": 0}
    >>> beyond_the_grid(row, "train_loss", {("e", "adam"): 0.025})["better"]
    ''
    """
    if metric != TUNED:
        return row
    return widened(row, *(slacks.get((row["experiment"], row[one]), 0.0) for one in ("a", "b")))
