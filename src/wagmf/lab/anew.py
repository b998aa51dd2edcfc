"""Searches for step sizes that are done again: what they have found, as long as what they will replace is shown."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from wagmf.lab.evidence import STAGES, Evidence, curves_of
from wagmf.lab.paper import BASELINES, OURS
from wagmf.lab.records import Run, problem_of
from wagmf.lab.tuning import same_rate

__all__ = ["Again", "Best", "bests", "longest", "searched_again"]

_METHODS = (*OURS, *BASELINES)


@dataclass(frozen=True)
class Best:
    """What a method has come to in a search, by the mean over its seeds: where it trains best, where it tests best.

    >>> Best(0.1, 0.25, 0.9, 0.2, 0.3, 0.92, 8).top
    0.92
    """

    lr: float
    loss: float
    accuracy: float
    top_lr: float
    top_loss: float
    top: float
    rates: int  # step sizes that it is the best of


@dataclass(frozen=True)
class Again:
    """A search that is done again: the runs of its second stage, and ``own``, the others at what it has chosen.

    Whole runs by the seeds that choose which were made before count as tried, too, since the search uses them again.

    >>> none = {"runs": (), "own": (), "tried": (), "best": {}, "ends": {}}
    >>> Again(over=False, epochs=200, seeds=1, known=0, every=8, **none).told
    {}
    """

    over: bool  # whether it has chosen
    runs: tuple[Run, ...]
    own: tuple[Run, ...]
    tried: tuple[Run, ...]
    epochs: int
    seeds: int
    best: Mapping[str, Best]
    ends: Mapping[str, tuple[float, float]]  # means of loss and accuracy at what it has chosen …
    known: int  # … over as many seeds as every method has by now
    every: int  # of so many

    @property
    def told(self) -> dict[str, Best]:
        """The best of every method; before it is over, of those that were searched: of others nothing new is known."""
        searched = {run.config["method"] for run in self.runs}
        return {method: one for method, one in self.best.items() if self.over or method in searched}

    def moved(self, rates: Mapping[str, float]) -> bool:
        """Whether a method's best step size is another one than in ``rates``."""
        return any(not same_rate(one.lr, rates[method]) for method, one in self.told.items() if method in rates)

    @property
    def means(self) -> dict[str, dict[float, tuple[float, float]]]:
        """The training loss and the test accuracy of every method at every step size that was tried, over its seeds."""
        return _means(self.tried, self.seeds)

    def as_good(self, method: str, within: float) -> tuple[float, float, float] | None:
        """Of step sizes that train as well, but for so much, the one that tests best: with its loss and its accuracy.

        Nothing if it is the one that trains best; ``within`` may be NaN, where nobody knows how much seeds differ by.
        """
        best, means = self.best[method], self.means[method]
        level = [lr for lr, (loss, _) in means.items() if lr == best.lr or loss <= best.loss + within]
        lr = max(level, key=lambda lr: means[lr][1])
        return None if lr == best.lr else (lr, *means[lr])

    @property
    def curves(self) -> Any:
        """Of all that was tried."""
        return curves_of(list(self.tried))


def searched_again(evidence: Evidence) -> dict[str, Again]:
    """The searches that are done again, by their experiments; those of which there is no run of the second stage wait.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from wagmf.lab.evidence import gather
    >>> searched_again(gather(Path(tempfile.mkdtemp())))
    {}
    """
    found = {name: _again(evidence, name) for name in evidence.chosen}
    return {name: again for name, again in found.items() if again is not None}


def _again(evidence: Evidence, name: str) -> Again | None:
    fine = _named(evidence, evidence.anew, f"{name}, {STAGES[1]}")
    if not fine:
        return None
    problem, before = _most(fine), evidence.trained_for(name)
    runs = [run for run in fine if problem_of(run) == problem]
    seeds = {run.config["seed"] for run in runs}
    tried = [run for run in (*runs, *before) if problem_of(run) == problem and run.config["seed"] in seeds]
    tried = _distinct(tried)
    best = bests(tried, len(seeds))
    chosen = _named(evidence, evidence.anew, name, f"{name}, unfinished")
    count, ends = _ends([*chosen, *fine, *before], best, _most(chosen)) if chosen else (0, {})
    searched = {run.key for run in fine}
    own = [run for run in chosen if run.key not in searched]
    every = evidence.of(name)["seed"].nunique()
    return Again(
        over=bool(chosen),
        runs=tuple(runs),
        own=tuple(own),
        tried=tuple(tried),
        epochs=runs[0].config["epochs"],
        seeds=len(seeds),
        best=best,
        ends=ends,
        known=count,
        every=every,
    )


def _named(evidence: Evidence, runs: Iterable[Run], *names: str) -> list[Run]:
    """Those that have one of these names; what was searched in between, and was given up, has none."""
    return [run for run in runs if not set(names).isdisjoint(evidence.names.get(run.key, ()))]


def _most(runs: list[Run]) -> dict[str, Any]:
    """The problem of most of them."""
    problems = [problem_of(run) for run in runs]
    return max(problems, key=problems.count)


def longest(evidence: Evidence, name: str) -> tuple[int, int, dict[str, Best]]:
    """Of the longest runs that an experiment was searched with by all methods: epochs, seeds, and the best.

    They are those of a search that is done again, if it has come so far, and else of the one that is shown.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from wagmf.lab.evidence import gather
    >>> longest(gather(Path(tempfile.mkdtemp())), "mlp on mnist")
    (0, 0, {})
    """
    again = _again(evidence, name)
    if again is not None and again.told.keys() >= set(_METHODS):
        return again.epochs, again.seeds, again.told
    fine = _named(evidence, evidence.runs, f"{name}, {STAGES[1]}")
    epochs = max((run.config["epochs"] for run in fine), default=0)
    seeds = {run.config["seed"] for run in fine}
    return epochs, len(seeds), bests(_distinct(fine), len(seeds))


def bests(tried: Iterable[Run], seeds: int) -> dict[str, Best]:
    """What every method has come to, at step sizes that all seeds have and at which none has diverged.

    >>> told = {"method": "wada", "lr": 0.1, "seed": 0}
    >>> bests([Run("k", "mine", told, None, {"train_loss": [0.5], "test_accuracy": [0.9]})], 1)["wada"].top
    0.9
    """
    return {method: _best(means) for method, means in _means(tried, seeds).items()}


def _means(tried: Iterable[Run], seeds: int) -> dict[str, dict[float, tuple[float, float]]]:
    ends: dict[str, dict[float, list[tuple[float, float]]]] = {}
    for run in tried:
        if not run.diverged:
            rates = ends.setdefault(run.config["method"], {})
            rates.setdefault(run.config["lr"], []).append((run.end("train_loss"), run.end("test_accuracy")))
    found = {
        method: {lr: _mean(each) for lr, each in sorted(ends[method].items()) if len(each) == seeds}
        for method in _METHODS
        if method in ends
    }
    return {method: means for method, means in found.items() if means}


def _mean(ends: list[tuple[float, float]]) -> tuple[float, float]:
    loss, share = np.mean(ends, axis=0)
    return float(loss), float(share)


def _best(means: Mapping[float, tuple[float, float]]) -> Best:
    lr, top = min(means, key=lambda lr: means[lr][0]), max(means, key=lambda lr: means[lr][1])
    (loss, accuracy), (top_loss, most) = means[lr], means[top]
    return Best(lr, loss, accuracy, top, top_loss, most, len(means))


def _ends(
    runs: Iterable[Run], best: Mapping[str, Best], problem: Mapping[str, Any]
) -> tuple[int, dict[str, tuple[float, float]]]:
    """How many seeds every method was run with at its best step size, and the means over these.

    Of a method whose best is where it was before, all seeds are there, and none is run again.
    """
    ends: dict[str, dict[int, tuple[float, float]]] = {method: {} for method in _METHODS}
    for run in runs:
        method, lr = run.config["method"], run.config["lr"]
        if method in best and best[method].lr == lr and problem_of(run) == problem and not run.diverged:
            ends[method][run.config["seed"]] = run.end("train_loss"), run.end("test_accuracy")
    common = set.intersection(*map(set, ends.values()))
    if not common:
        return 0, {}
    return len(common), {method: _mean([each[seed] for seed in common]) for method, each in ends.items()}


def _distinct(runs: Iterable[Run]) -> list[Run]:
    """Without those at step sizes that only rounding tells from others of their method, which stand before them."""
    kept: list[Run] = []
    for run in runs:
        method, lr = run.config["method"], run.config["lr"]
        others = [other.config["lr"] for other in kept if other.config["method"] == method]
        if all(other == lr or not same_rate(other, lr) for other in others):
            kept.append(run)
    return kept
