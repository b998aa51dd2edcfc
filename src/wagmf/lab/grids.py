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

from wagmf.arguments import refuse
from wagmf.lab.stats import better_is_lower, mean_finals

__all__ = ["TUNED", "Row", "Slacks", "beyond_the_grid", "grid_slack", "grid_slacks", "losses_by_rate", "widened"]

TUNED: str = "train_loss"
"""By what step sizes are chosen, unless an experiment says otherwise."""

Row: TypeAlias = dict[str, Any]
"""A row of :func:`wagmf.lab.stats.significance`."""

Slacks: TypeAlias = Mapping[tuple[str, str, str], float]
"""By experiment, metric and method, how much better it might be at a step size between those that were tried."""


def grid_slack(losses: Mapping[float, float], chosen: float) -> float:
    """How much lower a loss might be between the step sizes of a grid than at the one that was chosen.

    The loss is taken to be a parabola of the logarithm of the step size, as curved as it is between the chosen one and
    its neighbours. Where it is the least of the three, the bottom is at worst half a step away; where it is not, since
    something else chose, it counts how far the parabola falls in half a step, and how much lower the loss was at any
    step size that was tried. Infinite if there is no neighbour, or if it diverged.

    >>> round(grid_slack({0.1: 1.2, 0.2: 1.0, 0.4: 1.4}, chosen=0.2), 9)
    0.075
    >>> grid_slack({0.1: 1.2, 0.2: 1.0}, chosen=0.2)
    inf
    """
    if chosen not in losses:
        refuse(
            "chosen", chosen, f"one of the step sizes that were tried: {', '.join(f'{lr:g}' for lr in sorted(losses))}"
        )
    rates = sorted(losses)
    place = rates.index(chosen)
    if place in (0, len(rates) - 1):
        return math.inf
    around = rates[place - 1 : place + 2]
    (before, here, after), (left, right) = (losses[lr] for lr in around), np.diff(np.log(around))
    if not math.isfinite(before + here + after):
        return math.inf
    curved = ((before - here) / left + (after - here) / right) / (left + right)
    half = max(left, right) / 2
    slope = abs((after - here) / right - curved * right)  # at the chosen one
    return float(max(curved * half**2, slope * half - curved * half**2, here - min(losses.values())))


def grid_slacks(curves: pd.DataFrame, chosen: Mapping[str, float], metric: str = TUNED) -> dict[str, float]:
    """The same of every method, given the curves of the last stage of a search for step sizes; by any metric.

    >>> rows = [("e, fine", "wada", lr, 0, 1, loss) for lr, loss in ((0.1, 1.2), (0.2, 1.0), (0.4, 1.4))]
    >>> curves = pd.DataFrame(rows, columns=["experiment", "method", "lr", "seed", "epoch", "train_loss"])
    >>> sorted(grid_slacks(curves, {"wada": 0.2}))
    ['wada']
    """
    losses = {} if curves.empty else losses_by_rate(curves, metric)
    return {method: grid_slack(losses[method], lr) for method, lr in chosen.items() if lr in losses.get(method, ())}


def losses_by_rate(curves: pd.DataFrame, metric: str) -> dict[str, dict[float, float]]:
    """By method and step size the mean over seeds at the last epoch, the better the lower; infinite if one diverged.

    >>> rows = [("e, fine", "wada", lr, 0, 1, share) for lr, share in ((0.1, 0.8), (0.2, 0.9))]
    >>> curves = pd.DataFrame(rows, columns=["experiment", "method", "lr", "seed", "epoch", "test_accuracy"])
    >>> losses_by_rate(curves, "test_accuracy")
    {'wada': {0.1: -0.8, 0.2: -0.9}}
    """
    found: dict[str, dict[float, float]] = {}
    for (method, lr), mean in mean_finals(curves, metric).items():
        found.setdefault(method, {})[lr] = math.inf if math.isnan(mean) else mean if better_is_lower(metric) else -mean
    return found


def widened(row: Row, slack_a: float, slack_b: float, *, lower: bool = True) -> Row:
    """A row by a loss, or by what is better if it is not ``lower``, with what finer grids might change.

    Either method may come to be better by its slack: the interval is so much wider, and a difference that the one
    behind might make good is not ``better``.

    >>> row = {"difference": -0.02, "low": -0.03, "high": -0.01, "better": "a", "diverged_a": 0, "diverged_b": 0}
    >>> widened(row, 0.0, 0.01)["better"], widened(row, 0.0, 0.02)["better"]
    ('a', '')
    """
    down, up = (slack_a, slack_b) if lower else (slack_b, slack_a)
    wide = {**row, "low": row["low"] - down, "high": row["high"] + up}
    behind = {"a": slack_b, "b": slack_a}.get(row["better"], 0.0)
    # Who diverged more often is behind whatever its step size may gain.
    if row["diverged_a"] == row["diverged_b"] and abs(row["difference"]) <= behind:
        wide["better"] = ""
    return wide


def beyond_the_grid(row: Row, metric: str, slacks: Slacks) -> Row:
    """A row by any metric, with what finer grids might change where ``slacks`` know it.

    >>> row = {"experiment": "e", "a": "wada", "b": "adam", "better": "a", "difference": -0.02, "low": -0.03,
    ...        "high": -0.01, "diverged_a": 0, "diverged_b": 0}
    >>> beyond_the_grid(row, "train_loss", {("e", "train_loss", "adam"): 0.025})["better"]
    ''
    """
    slack_a, slack_b = (slacks.get((row["experiment"], metric, row[one]), 0.0) for one in ("a", "b"))
    return widened(row, slack_a, slack_b, lower=better_is_lower(metric))
