"""What the records of the reproduction say: runs, walks and costs as frames, the table of p-values, what it took."""

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from wagmf.arguments import Refused
from wagmf.lab import stats
from wagmf.lab.answers import ALPHA
from wagmf.lab.claims import stated
from wagmf.lab.grids import TUNED, Row, beyond_the_grid, grid_slacks
from wagmf.lab.paper import BASELINES, OURS, PAIRS, PANELS, Printed
from wagmf.lab.records import Run, Tables, configuration, differs, problem_of, restore, tables
from wagmf.lab.walks import Record, unpack_walks, walks_commits

__all__ = [
    "STAGES",
    "TRIED",
    "Evidence",
    "StackOfRuns",
    "anew_archives",
    "curves_of",
    "experiment_of",
    "gather",
    "minutes",
    "shares",
    "significance_table",
    "stack_of",
    "tried_rates",
    "without_seeds",
]

STAGES: tuple[str, ...] = ("coarse", "fine")
"""What the stages of a search are called, after the name of their experiment."""

TRIED: tuple[str, ...] = ("experiment", "stage", "epochs", "method", "lr", "train_loss", "test_accuracy", "chosen")
"""What is told of a step size that a search has tried."""

StackOfRuns: TypeAlias = tuple[str, str, float, str]
"""What runs that were trained together have in common: experiment, end, seconds, device."""

_COSTS = ["model", "method", "ms", "device"]
_PAPER = {panel.experiment for panel in PANELS}
_DATA = {name.partition(" on ")[2] for name in _PAPER}  # they may lie in a file; digits stand in for all of them
_WALKS = "walks.jsonl.gz"


@dataclass(frozen=True)
class Evidence:
    """All records of a folder. Methods have their plain names: options, such as AMSGrad's correction, are dropped.

    >>> import tempfile
    >>> gather(Path(tempfile.mkdtemp())).panels
    []
    """

    runs: list[Run]
    names: dict[str, list[str]]
    walks: list[Record]
    costs: pd.DataFrame
    walks_commits: tuple[str, ...] = ()
    anew: tuple[Run, ...] = ()  # of searches that take the place of those among the runs, and are not over

    @cached_property
    def all(self) -> Tables:
        """Every run, of searches too."""
        return _plainly_named(tables(self.runs, self.names))

    @cached_property
    def finals(self) -> Any:
        """The curves of the experiments themselves: every method at the step size that was chosen, all seeds."""
        curves: Any = self.all.curves
        return curves[curves["experiment"].isin(_PAPER)].reset_index(drop=True)

    @cached_property
    def panels(self) -> list[Printed]:
        """The panels of the paper for which every method was run."""
        there = self.finals.groupby("experiment")["method"].agg(set) if len(self.finals) else {}
        return [panel for panel in PANELS if there.get(panel.experiment, set()) >= {*OURS, *BASELINES}]

    def of(self, experiment: str) -> Any:
        """The curves of an experiment, or of a stage of its search."""
        curves: Any = self.all.curves
        return curves[curves["experiment"] == experiment].reset_index(drop=True)

    def between_seeds(self, experiment: str, method: str) -> float:
        """The standard deviation over seeds of the training loss that a method ends at; NaN if fewer than two did."""
        ends: Any = stats.finals(self.of(experiment), "train_loss")
        return float(ends.loc[ends["method"] == method, "value"].std())

    def trained_for(self, experiment: str) -> list[Run]:
        """All runs that are shown of an experiment, or of its searches, or were before others replaced them."""
        return [
            run for run in self.runs if experiment in map(experiment_of, self.names.get(run.key) or [run.experiment])
        ]

    def unnamed(self, experiment: str) -> list[Run]:
        """Runs that are kept of a search of the experiment which another has replaced, and of what it had chosen."""
        return [run for run in self.runs if not self.names.get(run.key) and experiment_of(run.experiment) == experiment]

    @cached_property
    def chosen(self) -> dict[str, dict[str, float]]:
        """The step sizes that the experiments were run with, by experiment and method."""
        found: dict[str, dict[str, float]] = {}
        for name, method, lr in self.finals[["experiment", "method", "lr"]].drop_duplicates().itertuples(index=False):
            found.setdefault(name, {})[method] = lr
        return {name: found[name] for name in _in_order(found)}

    @cached_property
    def slacks(self) -> dict[tuple[str, str, str], float]:
        """How much lower a training loss might be between the step sizes that were tried, as Slacks."""
        fine = {name: self.of(f"{name}, {STAGES[1]}") for name in self.chosen}
        return {
            (name, TUNED, method): slack
            for name, rates in self.chosen.items()
            for method, slack in grid_slacks(fine[name], rates).items()
        }

    @cached_property
    def tried(self) -> Any:
        """Every step size that was tried in the searches, what it came to, and whether it was taken."""
        rows = [row for name, rates in self.chosen.items() for row in tried_rates(self.of, name, rates)]
        return pd.DataFrame(rows, columns=TRIED)


def _plainly_named(found: Tables) -> Tables:
    for frame in (found.curves, found.runs):
        frame["method"] = [name.partition("(")[0] for name in frame["method"]]
    return found


def curves_of(runs: list[Run]) -> Any:
    """The curves of some runs, of whatever experiments; methods have their plain names.

    >>> curves_of([]).empty
    True
    """
    return _plainly_named(tables(runs)).curves


def tried_rates(of: Callable[[str], Any], name: str, chosen: Mapping[str, float]) -> list[dict[str, Any]]:
    """Every step size that the search of an experiment has tried; ``of`` has the curves of its stages, by their names.

    >>> rows = [("e, fine", "wada", lr, 0, 1, lr, 0.9) for lr in (0.1, 0.2)]
    >>> columns = ["experiment", "method", "lr", "seed", "epoch", "train_loss", "test_accuracy"]
    >>> curves = pd.DataFrame(rows, columns=columns)
    >>> found = tried_rates(lambda name: curves[curves["experiment"] == name], "e", {"wada": 0.2})
    >>> [(row["stage"], row["lr"], row["chosen"]) for row in found]
    [('fine', 0.1, False), ('fine', 0.2, True)]
    """
    rows = []
    for stage in STAGES:
        curves = of(f"{name}, {stage}")
        if len(curves):
            losses, accuracies = (stats.mean_finals(curves, metric) for metric in ("train_loss", "test_accuracy"))
            common = name, stage, int(curves["epoch"].max())
            rows += [
                (*common, method, lr, loss, accuracies[method, lr], chosen.get(method) == lr)
                for (method, lr), loss in losses.items()
            ]
    return [dict(zip(TRIED, row, strict=True)) for row in rows]


def gather(folder: Path) -> Evidence:
    """Read the records of a folder; what is not there yet is empty. Archives in its folder ``anew`` are kept apart.

    >>> import tempfile
    >>> len(gather(Path(tempfile.mkdtemp())).runs)
    0
    """
    walks, costs = folder / "records" / _WALKS, folder / "records" / "costs.csv"
    kept = _Kept()
    for path in _archives(folder / "records"):
        if path != walks:
            kept.add(path)
    kept.check_problems()
    there, called = dict(kept.runs), dict(kept.names)
    for path in anew_archives(folder):
        kept.add(path)
    # A run without a name, of a search that was given up, may be of the one that is done again: there it has its name.
    names = {key: called.get(key) or several for key, several in kept.names.items()}
    runs = {key: run for key, run in there.items() if called[key] or not names[key]}
    return Evidence(
        list(runs.values()),
        names,
        unpack_walks(walks) if walks.exists() else [],
        _costs_of(costs) if costs.exists() else pd.DataFrame(columns=_COSTS),
        walks_commits(walks) if walks.exists() else (),
        tuple(run for key, run in kept.runs.items() if key not in runs),
    )


def anew_archives(folder: Path) -> list[Path]:
    """The archives of searches that are done again and are not over.

    >>> anew_archives(Path("nowhere"))
    []
    """
    found = _archives(folder / "records" / "anew")
    for path in found:
        if path.name == _WALKS:
            raise Refused(f"{path}: only runs are kept here (walks belong into {folder / 'records'})")
    return found


def _archives(folder: Path) -> list[Path]:
    if folder.exists() and not folder.is_dir():
        raise Refused(f"{folder}: it must be a folder of archives")
    return sorted(folder.glob("*.jsonl.gz"))


class _Kept:
    """Runs of several archives with their names, and where each is from; archives that contradict are refused."""

    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}
        self.names: dict[str, list[str]] = {}
        self._from: dict[str, Path] = {}
        self._of: dict[str, str] = {}  # the run of every configuration

    def add(self, path: Path) -> None:
        found, called = restore(path)
        for run in found:
            there = self.runs.setdefault(run.key, run)
            if apart := differs(run, there):
                raise Refused(f"{path}: run {run.key} has other {apart} in {self._from[run.key]} (remove one of them)")
            self._from.setdefault(run.key, path)
            self._check_that_it_is_one(run, path)
            self.names[run.key] = sorted({*self.names.get(run.key, []), *called[run.key]})
            for name in called[run.key]:
                _check_place(run, name, path)

    def _check_that_it_is_one(self, run: Run, path: Path) -> None:
        """Refuse a run that is there under another key: it would count twice."""
        other = self._of.setdefault(configuration(run), run.key)
        if other != run.key:
            where = self._from[other]
            raise Refused(f"{path}: run {run.key} has the configuration of run {other} in {where} (remove one of them)")

    def check_problems(self) -> None:
        """Refuse runs of two problems under one name, which :func:`tables` would number, and nobody would look for."""
        firsts: dict[str, Run] = {}
        for key, run in self.runs.items():
            for name in self.names[key]:
                first = firsts.setdefault(name, run)
                if what := _difference(run, first):
                    one, other = (f"{each.config.get(what)!r} (run {each.key})" for each in (run, first))
                    raise Refused(
                        f"{self._from[key]}: {name} is of two problems: {what} is {one}, and in "
                        f"{self._from[first.key]} {other} (all runs of a name must be of one problem)"
                    )


def _difference(run: Run, other: Run) -> str:
    """The first thing in which their problems differ."""
    one, two = problem_of(run), problem_of(other)
    return next((name for name in sorted({*one, *two}) if one.get(name) != two.get(name)), "")


def _check_place(run: Run, name: str, path: Path) -> None:
    """Refuse a run under the name of one of the paper's experiments that it cannot be of."""
    experiment = experiment_of(name)
    if experiment not in _PAPER:
        return
    model, _, data = experiment.partition(" on ")
    for what, known in (("model", (model,)), ("dataset", (data,)), ("method", (*OURS, *BASELINES))):
        if run.config.get(what, known[0]) not in known and (what != "dataset" or run.config[what] in _DATA):
            told = f"{run.config[what]!r} ({what} must be {' or '.join(known)})"
            raise Refused(f"{path}: run {run.key} of {name}: Invalid {what}: {told}")


def _costs_of(path: Path) -> pd.DataFrame:
    try:
        found = pd.read_csv(path, dtype=str, keep_default_na=False, index_col=False)
    except (OSError, ValueError) as error:
        raise Refused(f"{path}: cannot be read: {error}") from error
    missing = [name for name in _COSTS if name not in found.columns]
    if missing:
        raise Refused(f"{path}: there must be columns {', '.join(_COSTS)}; {missing[0]} is missing")
    timed: dict[tuple[str, ...], int] = {}
    for place, (*of, ms) in enumerate(found[["model", "method", "ms"]].itertuples(index=False, name=None), 2):
        if not _is_time(ms):
            raise Refused(f"{path}: line {place}: Invalid ms: {ms!r} (ms must be a finite number > 0)")
        before = timed.setdefault(tuple(of), place)
        if before != place:
            raise Refused(f"{path}: line {place}: {', '.join(of)} is in line {before}, too (it must be there once)")
    return found.assign(ms=found["ms"].astype(float))


def _is_time(text: str) -> bool:
    try:
        return 0 < float(text) < math.inf
    except ValueError:
        return False


def without_seeds(curves: Any, seeds: Mapping[str, Collection[int]]) -> Any:
    """Curves of other seeds than those that are named, by experiment: of those that had a part in choosing step sizes.

    >>> curves = pd.DataFrame({"experiment": ["mine", "mine", "yours"], "seed": [0, 1, 0]})
    >>> len(without_seeds(curves, {"mine": (0,)}))
    2
    """
    pairs = zip(curves["experiment"], curves["seed"], strict=True)
    kept = np.array([seed not in seeds.get(name, ()) for name, seed in pairs], dtype=bool)
    return curves[kept].reset_index(drop=True)


# ------------------------------------------------------------------ the table of p-values


def significance_table(evidence: Evidence) -> pd.DataFrame:
    """The paper's table, a row for each cell whose panel was run: its p-value and ours, by every test.

    ``agrees`` is whether Student's p is on the same side of 0.05 as the printed one; ``stated``, what the paper's text
    says of the two, if anything; ``ahead``, which of them is better in the mean, "ours" or "baseline"; ``shown``, the
    same if the paired test, adjusted by Holm for all cells of this metric, has p < 0.05, else empty; ``last_epochs`` is
    Student's p of the last 8 epochs of one run: the paper's seem to be such.

    >>> import tempfile
    >>> significance_table(gather(Path(tempfile.mkdtemp()))).empty
    True
    """
    parts = []
    for metric in ("train_loss", "test_accuracy"):
        panels = [panel for panel in evidence.panels if panel.metric == metric]
        if not panels:
            continue
        curves = evidence.finals[evidence.finals["experiment"].isin([panel.experiment for panel in panels])]
        found = stats.significance(curves, metric, pairs=PAIRS)
        late = stats.paper_significance(curves, metric, pairs=PAIRS).set_index(["experiment", "a", "b"])["p"]
        rows = {(row["experiment"], row["a"], row["b"]): row for row in found.to_dict("records")}
        for panel in panels:
            for k, pair in enumerate(PAIRS):
                row = rows[panel.experiment, *pair]
                parts.append(_cell(panel, k, row, beyond_the_grid(row, metric, evidence.slacks), late))
    order = {panel.name: place for place, panel in enumerate(PANELS)}
    table = pd.DataFrame(parts)
    return (
        table.sort_values("panel", key=lambda names: names.map(order), kind="stable", ignore_index=True)
        if parts
        else table
    )


def _cell(panel: Printed, k: int, row: Row, wide: Row, late: Any) -> dict[str, Any]:
    """``wide`` has what finer grids of step sizes might change."""
    (ours, baseline), printed = PAIRS[k], panel.p[k]
    sign = -1 if stats.better_is_lower(panel.metric) else 1
    shown = {"a": "ours", "b": "baseline"}.get(wide["better"], "")
    tests = ("student", "welch", "paired", "permutation")
    return {
        "panel": panel.name, "experiment": panel.experiment, "metric": panel.metric, "ours": ours,
        "baseline": baseline, "n": row["n"], "mean_ours": row["mean_a"], "mean_baseline": row["mean_b"],
        "difference": row["difference"], "low": row["low"], "high": row["high"], "hedges_g": row["hedges_g"],
        "slack_ours": row["low"] - wide["low"], "slack_baseline": wide["high"] - row["high"],
        "printed": printed, **{name: row[name] for name in tests},
        **{f"{name}_holm": row[f"{name}_holm"] for name in tests},
        "last_epochs": late[panel.experiment, ours, baseline],
        "stated": stated().get((panel.name, ours, baseline), ""), "ahead": _ahead(row, sign), "shown": shown,
        "agrees": bool((row["student"] < ALPHA) == (printed < ALPHA)),
    }  # fmt: skip


def _ahead(row: Any, sign: int) -> str:
    """Who is better in the mean: whoever diverged less often, and among equals by the seeds that both finished."""
    if row["diverged_a"] != row["diverged_b"]:
        return "ours" if row["diverged_a"] < row["diverged_b"] else "baseline"
    return ("ours" if sign * row["difference"] > 0 else "baseline") if np.isfinite(row["difference"]) else ""


# ------------------------------------------------------------------ what it cost


def minutes(runs: Iterable[Run]) -> dict[str, float]:
    """The minutes that experiments, with their searches, took: where stacks were trained at once, each has its share.

    >>> stack = {"config": {}, "diverged": None, "curves": {}, "seconds": 60.0, "ended": "2026-01-01T00:01:00+00:00"}
    >>> minutes([Run("k", "mlp on mnist, fine", **stack), Run("l", "cnn on cifar10", **stack)])
    {'mlp on mnist': 0.5, 'cnn on cifar10': 0.5}
    """
    spent: dict[str, float] = {}
    for (name, *_), seconds in shares(runs).items():
        spent[experiment_of(name)] = spent.get(experiment_of(name), 0.0) + seconds / 60
    return {name: spent[name] for name in _in_order(spent)}


def shares(runs: Iterable[Run]) -> dict[StackOfRuns, float]:
    """The seconds of every stack, less those that it shared with others of its device: of them it has its part.

    Parts are as how busy stacks were in all: what their steps take at the pace of a median epoch, over what they took.
    One that often waited for others was slow in few epochs, and is not what kept the device busy.

    >>> stack = {"diverged": None, "curves": {}, "step_ms": 1.0, "ended": "2026-01-01T00:01:00+00:00"}
    >>> one = Run("k", "mlp on mnist", {"epochs": 9}, seconds=60.0, **stack)
    >>> two = Run("l", "cnn on cifar10", {"epochs": 9}, seconds=20.0, **stack)
    >>> list(shares([one, two]).values())
    [15.0, 45.0]
    """
    busy: dict[StackOfRuns, float] = {}
    for run in runs:
        if run.ended:
            steps = (run.step_ms or 1.0) * run.config.get("epochs", 1)
            busy[stack_of(run)] = busy.get(stack_of(run), 0.0) + steps / (run.seconds or 1.0)
    spans = []
    for stack in sorted(busy):
        end = datetime.fromisoformat(stack[1])
        spans.append((stack, end - timedelta(seconds=stack[2]), end))
    moments = sorted({moment for _, *span in spans for moment in span})
    spent = dict.fromkeys((stack for stack, *_ in spans), 0.0)
    for start, end in itertools.pairwise(moments):
        active = [stack for stack, begun, over in spans if begun <= start and over >= end]
        at: dict[str, float] = {}
        for stack in active:
            at[stack[3]] = at.get(stack[3], 0.0) + busy[stack]
        for stack in active:
            spent[stack] += (end - start).total_seconds() * busy[stack] / at[stack[3]]
    return spent


def stack_of(run: Run) -> StackOfRuns:
    """The stack that a run was trained in.

    >>> stack_of(Run("k", "mlp on mnist", {}, None, {}, seconds=60.0, ended="2026-01-01T00:01:00+00:00"))
    ('mlp on mnist', '2026-01-01T00:01:00+00:00', 60.0, '')
    """
    return run.experiment, run.ended, run.seconds, run.environment.get("device", "")


def _in_order(names: Iterable[str]) -> list[str]:
    """Experiments as the paper has them, others after these."""
    order = list(dict.fromkeys(panel.experiment for panel in PANELS))
    return sorted(names, key=lambda name: (order.index(name) if name in order else len(order), name))


def experiment_of(name: str) -> str:
    """The experiment that a stage of a search belongs to.

    >>> experiment_of("mlp on mnist, fine"), experiment_of("mlp on mnist")
    ('mlp on mnist', 'mlp on mnist')
    """
    head, _, stage = name.rpartition(", ")
    return head if stage in STAGES else name
