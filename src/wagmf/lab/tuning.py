"""Step sizes by search: a coarse grid that is extended while losses fall towards its edge, then a finer one.

Neighbours on a coarse grid often differ more than methods do, so that a coarse grid alone ranks methods by luck. Losses
may have two valleys: one of step sizes that fit the data closely, one of larger ones. The search is a function of the
records: what it wants next follows from what is recorded, however often it was stopped.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from wagmf.arguments import refuse
from wagmf.lab.planning import Prepared
from wagmf.lab.records import Records, Run
from wagmf.lab.spec import RATES, Arm, Experiment, Tuning, address
from wagmf.lab.stats import better_is_lower
from wagmf.lab.sweep import Engine, Watch, sweep

__all__ = ["COARSE", "FINE", "Searched", "carry_out", "next_rates", "recorded", "same_rate", "search", "tune"]

COARSE: float = math.sqrt(10)
"""The factor between neighbours beyond the grid that an experiment names."""

FINE: float = 1.5
"""The factor between neighbours of the second stage."""

_MOST = 5  # times that a stage goes on beyond each of its edges


def next_rates(tried: Mapping[float, float], first: Iterable[float], factor: float) -> tuple[float, ...]:
    """Which step sizes to try next, given the losses of those that were tried; none if the best is found.

    First all of ``first``; then one beyond each edge towards which losses fall, even if the best is elsewhere: there
    may be a second valley. It must be worth it: the edge is among the better half of what was tried. A run that
    diverged has an infinite loss.

    >>> next_rates({0.1: 0.5, 1.0: 0.2}, [0.1, 1.0], factor=10), next_rates({0.1: 0.5, 1.0: 0.2, 10.0: 0.3}, [1.0], 10)
    ((10.0,), ())
    """
    missing = tuple(lr for lr in first if lr not in tried)
    if missing:
        return missing
    rates, started = sorted(tried), sorted(first)
    lost = all(math.isinf(loss) for loss in tried.values())  # then a smaller one is wanted
    wanted = []
    if (lost or _falls(tried, rates)) and sum(lr < started[0] for lr in tried) < _MOST:
        wanted.append(_rounded(rates[0] / factor))
    if not lost and _falls(tried, rates[::-1]) and sum(lr > started[-1] for lr in tried) < _MOST:
        wanted.append(_rounded(rates[-1] * factor))
    return tuple(filter(_possible, wanted))


def _possible(lr: float) -> bool:
    """Whether there may be such a step size: where there may not, a grid ends."""
    return RATES[0] <= lr <= RATES[1]


def _falls(tried: Mapping[float, float], rates: list[float]) -> bool:
    """Whether losses fall towards the first of these step sizes, to where more than noise may be found beyond."""
    edge = tried[rates[0]]
    return rates[0] == _best(tried) or (edge < tried[rates[1]] and edge <= statistics.median(tried.values()))


def _best(tried: Mapping[float, float]) -> float:
    """Of equals, as accuracies may be, the one farthest from the edges; the smallest where all diverge."""
    rates, least = sorted(tried), min(tried.values())
    middle = 0.0 if math.isinf(least) else (len(rates) - 1) / 2
    return min((lr for lr in rates if tried[lr] == least), key=lambda lr: abs(rates.index(lr) - middle))


def _rounded(lr: float) -> float:
    """To three digits: step sizes are written, read and found again. What is nearly 10^(k/2) is meant to be that."""
    near = 10 ** (round(2 * math.log10(lr)) / 2)
    return float(f"{near if same_rate(lr, near) else lr:.3g}")


def _snapped(lr: float, tried: Iterable[float]) -> float:
    """The step size, or the one that was tried and differs from it by what rounding does."""
    near = min(tried, key=lambda one: abs(one / lr - 1), default=lr)
    return near if same_rate(near, lr) else lr


def same_rate(one: float, other: float) -> bool:
    """Whether two step sizes are meant to be one, and only rounding tells them apart.

    >>> same_rate(0.00933, 0.00936), same_rate(0.01, 0.015)
    (True, False)
    """
    return abs(one / other - 1) < 0.01


@dataclass(frozen=True)
class Searched:
    """What the search has found for one experiment: ``missing`` is what it wants next, if anything.

    ``stages`` are the two as experiments without arms; ``coarse`` and ``fine`` have the losses of all step sizes that
    were tried in them, by method; ``chosen`` is the experiment itself at the best, once nothing is missing; ``edges``
    are the methods whose best is still at an edge. Where step sizes are chosen by an accuracy, a loss is what it lacks
    to 1.

    >>> from wagmf.lab.spec import experiment
    >>> from wagmf.lab.planning import prepare
    >>> table = {"dataset": "digits", "model": "softmax", "methods": ["wada"], "lrs": [0.1, 0.316], "tuning": {}}
    >>> search(prepare([experiment(table)])[0], lambda prepared, arm: None).missing.experiment.name
    'softmax on digits, coarse'
    """

    stages: tuple[Prepared, Prepared]
    coarse: Mapping[str, Mapping[float, float]]
    fine: Mapping[str, Mapping[float, float]]
    missing: Prepared | None = None
    chosen: Prepared | None = None
    edges: tuple[str, ...] = ()


Loss = Callable[[Prepared, Arm], float | None]


def search(prepared: Prepared, loss: Loss) -> Searched:
    """How far the search of an experiment has come, given the final loss of any arm in any of its stages.

    >>> from wagmf.lab.spec import experiment
    >>> from wagmf.lab.planning import prepare
    >>> table = {"dataset": "digits", "model": "softmax", "methods": ["wada"], "lrs": [0.1, 0.316], "tuning": {}}
    >>> found = search(prepare([experiment(table)])[0], lambda prepared, arm: abs(math.log(arm.lr / 0.2)))
    >>> found.chosen.experiment.arms[0].lr
    0.211
    """
    of, tuning = prepared.experiment, prepared.experiment.tuning
    if tuning is None:
        refuse("tuning", None, f"{of.name} does not say how its step sizes are searched for")
    grids = {label: [arm.lr for arm in of.arms if arm.label == label] for label in {arm.label: 0 for arm in of.arms}}
    stages = _staged(prepared, "coarse", tuning), _staged(prepared, "fine", tuning)
    coarse, missing = _stage(stages[0], of.arms, grids, {}, COARSE, loss)
    if missing:
        return Searched(stages, coarse, {}, missing)
    steps = range(-tuning.below, tuning.above + 1)
    around = {
        label: [lr for k in steps if _possible(lr := _rounded(_best(tried) * FINE**k))]
        for label, tried in coarse.items()
    }
    # Where both stages are of one length, what the first has tried counts in the second.
    known = coarse if tuning.fine_epochs == tuning.epochs else {}
    around = {label: [_snapped(lr, known.get(label, {})) for lr in lrs] for label, lrs in around.items()}
    fine, missing = _stage(stages[1], of.arms, around, known, FINE, loss)
    if missing:
        return Searched(stages, coarse, fine, missing)
    firsts = {arm.label: arm for arm in reversed(of.arms)}
    arms = tuple(replace(firsts[label], lr=_best(tried)) for label, tried in fine.items())
    edges = tuple(label for label, tried in fine.items() if _best(tried) in (min(tried), max(tried)))
    chosen = replace(prepared, experiment=replace(of, arms=arms, tuning=None))
    return Searched(stages, coarse, fine, None, chosen, edges)


def _staged(prepared: Prepared, stage: str, tuning: Tuning) -> Prepared:
    """A stage as an experiment of its own, without arms."""
    of = prepared.experiment
    problem = of.problem.lasting(tuning.epochs if stage == "coarse" else tuning.fine_epochs)
    return replace(prepared, experiment=Experiment(f"{of.name}, {stage}", problem, (), tuning.seeds, tuning))


def _stage(
    here: Prepared,
    arms: tuple[Arm, ...],
    firsts: Mapping[str, list[float]],
    known: Mapping[str, Mapping[float, float]],
    factor: float,
    loss: Loss,
) -> tuple[dict[str, dict[float, float]], Prepared | None]:
    """The losses of a stage, by method and step size, and the experiment that is missing for it to go on."""
    found: dict[str, dict[float, float]] = {}
    missing: list[Arm] = []
    for arm in {arm.label: arm for arm in reversed(arms)}.values():
        tried = found[arm.label] = dict(known.get(arm.label, {}))
        while wanted := next_rates(tried, firsts[arm.label], factor):
            losses = {lr: loss(here, replace(arm, lr=lr)) for lr in wanted}
            tried |= {lr: value for lr, value in losses.items() if value is not None}
            if None in losses.values():
                missing += [replace(arm, lr=lr) for lr, value in losses.items() if value is None]
                break
    order = {arm.label: place for place, arm in enumerate(arms)}
    found = {label: found[label] for label in sorted(found, key=order.__getitem__)}
    missing.sort(key=lambda arm: order[arm.label])
    return found, replace(here, experiment=replace(here.experiment, arms=tuple(missing))) if missing else None


def recorded(records: Records) -> Loss:
    """The final loss of arms as records have it: the mean over the seeds, infinite if one diverged.

    It is the training loss, or by what the experiment is tuned; of an accuracy it is what that lacks to 1.

    >>> import tempfile
    >>> from wagmf.lab.spec import experiment
    >>> from wagmf.lab.planning import prepare
    >>> one = experiment({"dataset": "digits", "model": "softmax", "methods": ["wada"], "lrs": [0.1]})
    >>> recorded(Records(Path(tempfile.mkdtemp()) / "runs.db"))(prepare([one])[0], Arm("wada", 0.1)) is None
    True
    """
    runs = {run.key: run for run in records.runs()}

    def loss(prepared: Prepared, arm: Arm) -> float | None:
        of, digest = prepared.experiment, prepared.data.digest
        by = of.tuning.by if of.tuning else "train_loss"
        keys = [address(of.problem, digest, arm, seed)[0] for seed in of.seeds]
        known = [_final(runs[key], by) for key in keys if key in runs]
        return sum(known) / len(known) if len(known) == len(keys) else None

    return loss


def _final(run: Run, by: str) -> float:
    """What is to be least."""
    end = None if run.diverged else run.curves[by][-1]
    return math.inf if end is None else end if better_is_lower(by) else 1 - end


def tune(
    prepared: list[Prepared],
    path: str | Path,
    *,
    every: int = 5,
    watch: Watch | None = None,
    engine: Engine | None = None,
) -> list[tuple[Prepared, Searched | None]]:
    """Search the step sizes of every experiment that asks for it, and return all as they are to be run, in order.

    >>> import tempfile
    >>> from wagmf.lab.spec import experiment
    >>> from wagmf.lab.planning import prepare
    >>> table = {"dataset": "digits", "model": "softmax", "methods": ["wada"], "lrs": [0.1, 0.316], "epochs": 1}
    >>> one = experiment(table | {"seeds": 3, "tuning": {}})
    >>> [(ready, found)] = tune(prepare([one]), Path(tempfile.mkdtemp()) / "runs.db")
    >>> len(found.coarse["wada"]) > 2, ready.experiment.seeds
    (True, (0, 1, 2))
    """
    records = Records(path)
    while True:
        loss = recorded(records)
        found = [None if each.experiment.tuning is None else search(each, loss) for each in prepared]
        missing = [each.missing for each in found if each is not None and each.missing is not None]
        if not missing:
            break
        sweep(missing, path, every=every, watch=watch, engine=engine)
    return [
        (each if one is None or one.chosen is None else one.chosen, one)
        for each, one in zip(prepared, found, strict=True)
    ]


def carry_out(
    prepared: list[Prepared],
    path: str | Path,
    *,
    every: int = 5,
    watch: Watch | None = None,
    engine: Engine | None = None,
) -> list[Prepared]:
    """Search step sizes where that is asked for, then train what is missing; returns the experiments as they were run.

    >>> import tempfile
    >>> from wagmf.lab.spec import experiment
    >>> from wagmf.lab.planning import prepare
    >>> table = {"dataset": "digits", "model": "softmax", "methods": ["wada"], "lrs": [0.1, 0.316], "epochs": 1}
    >>> path = Path(tempfile.mkdtemp()) / "runs.db"
    >>> len(carry_out(prepare([experiment(table | {"tuning": {}})]), path)[0].experiment.arms)
    1
    """
    found = [ready for ready, _ in tune(prepared, path, every=every, watch=watch, engine=engine)]
    sweep(found, path, every=every, watch=watch, engine=engine)
    return found
