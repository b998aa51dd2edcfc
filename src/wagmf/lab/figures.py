"""Every figure once, as data: lines, bands, dots and matrices, computed from the records' frames; nothing is drawn.

All frames are those of one experiment. A run that diverged counts as infinitely bad: no mean is ever taken over the
seeds that happened to survive.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import stdtrit

from wagmf.lab.looks import QUANTITIES, Cell, Dots, Line, Mark, Matrix, Panel, styles
from wagmf.lab.stats import better_is_lower

__all__ = ["best", "improvement", "matrix", "measured", "rows", "sensitivity", "training"]


def rows(table: Any) -> list[dict[str, Any]]:
    """The rows of a frame, as dictionaries.

    >>> rows(pd.DataFrame({"method": ["wada"], "lr": [0.1]}))
    [{'method': 'wada', 'lr': 0.1}]
    """
    return table.to_dict("records")


def measured(curves: pd.DataFrame, metric: str) -> bool:
    """Whether any run has a value of ``metric``.

    >>> measured(pd.DataFrame({"test_accuracy": [np.nan]}), "test_accuracy")
    False
    """
    return bool(np.isfinite(curves[metric].to_numpy(float)).any())


def training(curves: pd.DataFrame, metric: str, lrs: Mapping[str, float]) -> Panel:
    """A metric over the epochs, each method at its step size in ``lrs``; a line ends where the first seed diverges.

    >>> frame = pd.DataFrame({"method": "wada", "lr": 0.1, "seed": [0, 0, 1, 1], "epoch": [1, 2, 1, 2],
    ...                       "train_loss": [1.0, 0.5, 3.0, np.nan]})
    >>> panel = training(frame, "train_loss", {"wada": 0.1})
    >>> panel.lines[0].y, panel.marks[0].text
    (array([2.]), '1 of 2 seeds diverged, the first in epoch 2')
    """
    lines, marks = [], []
    for (method, lr), (epochs, values) in _runs(curves, metric).items():
        if lrs.get(method) != lr:
            continue
        whole = np.isfinite(values).all(axis=0)
        upto = int(whole.argmin()) if not whole.all() else whole.size
        lines.append(_mean(method, epochs[:upto], values[:, :upto]))
        if upto < whole.size:
            lost = int((~np.isfinite(values[:, -1])).sum())
            text = f"{lost} of {len(values)} seeds diverged, the first in epoch {int(epochs[upto])}"
            last = max(upto - 1, 0)
            height = float(lines[-1].y[-1]) if upto else np.nan
            marks.append(Mark(method, float(epochs[last]), height, "ended", text))
    lines, log = _ordered(lines), _logarithmic(metric, lines)
    limits = _limits(metric, lines, log)
    marks = [mark if np.isfinite(mark.y) else Mark(*_top(mark, limits, log)) for mark in marks]
    clipped = tuple(_clipped(line, limits) for line in lines)
    name = QUANTITIES[metric]
    return Panel(name.capitalize(), "epoch", name, clipped, tuple(marks), limits, log_y=log)


def sensitivity(curves: pd.DataFrame, metric: str, lrs: Mapping[str, float]) -> Panel:
    """The final value by step size; the step sizes in ``lrs`` are marked as chosen, those with diverged runs as such.

    >>> frame = pd.DataFrame({"method": "wada", "lr": [0.1, 1.0], "seed": 0, "epoch": 1, "train_loss": [0.5, np.nan]})
    >>> [(mark.kind, mark.x) for mark in sensitivity(frame, "train_loss", {"wada": 0.1}).marks]
    [('chosen', 0.1), ('diverged', 1.0)]
    """
    ends: dict[str, list[tuple[float, NDArray[Any]]]] = {}
    for (method, lr), (_, values) in _runs(curves, metric).items():
        ends.setdefault(method, []).append((lr, values[:, -1]))
    lines = []
    for method, pairs in ends.items():
        kept = [(lr, last) for lr, last in pairs if np.isfinite(last).all()]
        means = [_mean(method, np.array([lr]), last[:, None]) for lr, last in kept]
        lines.append(_joined(method, means))
    lines, log = _ordered(lines), _logarithmic(metric, lines)
    low, high = _limits(metric, lines, log)
    lost = [
        (method, lr, int((~np.isfinite(last)).sum()), last.size)
        for method in styles(ends)
        for lr, last in ends[method]
        if not np.isfinite(last).all()
    ]
    levels, limits = _room_above((low, high), len({row[0] for row in lost}), log)
    level = dict(zip(dict.fromkeys(row[0] for row in lost), levels, strict=True))
    chosen = [
        Mark(line.method, float(x), float(y), "chosen", f"chosen: {x:g}")
        for line in lines
        for x, y in zip(line.x, line.y, strict=True)
        if lrs.get(line.method) == x
    ]
    crosses = [
        Mark(method, lr, level[method], "diverged", f"{count} of {n} seeds diverged at {lr:g}")
        for method, lr, count, n in lost
    ]
    clipped = tuple(_clipped(line, limits) for line in lines)
    up = f"final {QUANTITIES[metric]}"
    return Panel(
        "Step-size sensitivity",
        "step size",
        up,
        clipped,
        (*chosen, *crosses),
        limits,
        True,
        log,
        high if crosses else None,
    )


def improvement(ranks: pd.DataFrame) -> Dots:
    """How probably a run of each method beats a run of another one, from a table of :func:`wagmf.lab.stats.ranking`.

    >>> ranks = pd.DataFrame({"method": ["adam", "wada"], "improves": [0.2, 0.8], "improves_low": [0.1, 0.7],
    ...                       "improves_high": [0.3, 0.9]})
    >>> improvement(ranks).methods
    ('wada', 'adam')
    """
    known = [row for row in rows(ranks) if np.isfinite(row["improves"])]
    known.sort(key=lambda row: (-row["improves"], row["method"]))
    values = (np.array([row[name] for row in known]) for name in ("improves", "improves_low", "improves_high"))
    return Dots(
        "Probability of improvement",
        "probability of improvement",
        tuple(row["method"] for row in known),
        *values,
        guide=0.5,
    )


def matrix(table: pd.DataFrame, metric: str) -> Matrix:
    """Effect sizes and adjusted p-values of every pair, from a table of :func:`wagmf.lab.stats.significance`.

    >>> table = pd.DataFrame({"a": ["adam"], "b": ["wada"], "hedges_g": [2.0], "paired_holm": [0.01],
    ...                       "better": ["b"]})
    >>> matrix(table, "train_loss").cells[1][0]
    Cell(effect=..., p=0.01, shown=-1)
    """
    names = tuple(styles([*table["a"], *table["b"]]))
    sign = -1.0 if better_is_lower(metric) else 1.0
    cells: dict[tuple[str, str], Cell] = {}
    for row in rows(table):
        effect, p = sign * float(row["hedges_g"]), float(row["paired_holm"])
        if np.isfinite(p):
            shown = {"a": 1, "b": -1}.get(row["better"], 0)
            cells[row["a"], row["b"]] = Cell(effect, p, shown)
            cells[row["b"], row["a"]] = Cell(-effect, p, -shown)
    found = tuple(tuple(cells.get((one, other)) for other in names) for one in names)
    return Matrix(QUANTITIES[metric].capitalize(), names, found)


def best(ranks: pd.DataFrame, metric: str) -> list[str]:
    """The methods from best to worst: by how many seeds diverged, then by the mean; without those that have none.

    >>> ranks = pd.DataFrame({"method": ["adam", "wada", "ogd"], "diverged": [0, 0, 2], "mean": [0.3, 0.1, 0.01]})
    >>> best(ranks, "train_loss")
    ['wada', 'adam', 'ogd']
    """
    sign = 1 if better_is_lower(metric) else -1
    known = [row for row in rows(ranks) if np.isfinite(row["mean"])]
    return [row["method"] for row in sorted(known, key=lambda row: (row["diverged"], sign * row["mean"]))]


def _runs(curves: pd.DataFrame, metric: str) -> dict[tuple[str, float], tuple[NDArray[Any], NDArray[Any]]]:
    """By method and step size: the epochs, and the values with a row for every seed."""
    found = {}
    ordered = curves.sort_values(["method", "lr", "seed", "epoch"], kind="stable")
    for key, group in ordered.groupby(["method", "lr"], sort=False):
        method, lr = key if isinstance(key, tuple) else (key, np.nan)
        epochs = np.unique(group["epoch"].to_numpy(int))
        values = group[metric].to_numpy(float).reshape(-1, epochs.size)
        found[str(method), float(lr)] = epochs, values
    return found


def _mean(method: str, at: NDArray[Any], values: NDArray[Any]) -> Line:
    """Student's interval of the mean: for so few seeds the bootstrap's is too narrow."""
    n, mean = len(values), values.mean(axis=0)
    if n < 2:
        return Line(method, at, mean)
    half = float(stdtrit(n - 1, 0.975)) * values.std(axis=0, ddof=1) / np.sqrt(n)
    return Line(method, at, mean, mean - half, mean + half)


def _joined(method: str, parts: list[Line]) -> Line:
    """Points made into a line; without an interval where one of them has none."""
    x = np.array([float(part.x[0]) for part in parts])
    y = np.array([float(part.y[0]) for part in parts])
    lows = [part.low for part in parts if part.low is not None]
    highs = [part.high for part in parts if part.high is not None]
    if not parts or len(lows) < len(parts):
        return Line(method, x, y)
    return Line(method, x, y, np.concatenate(lows), np.concatenate(highs))


def _ordered(lines: list[Line]) -> list[Line]:
    order = list(styles(line.method for line in lines))
    return sorted(lines, key=lambda line: order.index(line.method))


def _logarithmic(metric: str, lines: list[Line]) -> bool:
    """Losses are drawn on a logarithmic axis, unless one of them is not positive."""
    values = _all(lines)
    return better_is_lower(metric) and values.size > 0 and bool((values > 0).all())


def _all(lines: list[Line]) -> NDArray[Any]:
    return np.concatenate([line.y for line in lines]) if lines else np.zeros(0)


def _limits(metric: str, lines: list[Line], log: bool) -> tuple[float, float]:
    """The range of the means with some room; intervals may run out of it, but not push the lines together."""
    values = _all(lines)
    if not values.size:
        return (0.1, 1.0) if log else (0.0, 1.0)
    if log:
        values = np.log10(values)
    low, high = float(values.min()), float(values.max())
    room = 0.08 * (high - low) or 0.1 * (abs(high) or 1.0)
    low, high = low - room, high + room
    if not log and metric.endswith("accuracy"):
        low, high = max(low, -0.01), min(high, 1.01)
    return (10.0**low, 10.0**high) if log else (low, high)


def _room_above(limits: tuple[float, float], count: int, log: bool) -> tuple[list[float], tuple[float, float]]:
    """Levels for the crosses of diverged runs, one for each method that has some, above everything else."""
    low, high = np.log10(limits) if log else limits
    step = 0.055 * (high - low)
    levels = [high + step * (k + 1) for k in range(count)]
    top = levels[-1] + step if levels else high
    if log:
        return [10.0**level for level in levels], (limits[0], float(10.0**top))
    return levels, (limits[0], float(top))


def _top(mark: Mark, limits: tuple[float, float], log: bool) -> tuple[str, float, float, str, str]:
    """A mark just under the upper edge, for a line that has no point at all."""
    low, high = np.log10(limits) if log else limits
    height = high - 0.04 * (high - low)
    return mark.method, mark.x, float(10.0**height if log else height), mark.kind, mark.text


def _clipped(line: Line, limits: tuple[float, float]) -> Line:
    """Intervals drawn as far as the panel reaches: a logarithmic axis has no place for what is below zero."""
    if line.low is None or line.high is None:
        return line
    return Line(line.method, line.x, line.y, np.clip(line.low, *limits), np.clip(line.high, *limits))
