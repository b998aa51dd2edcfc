"""What the page of the reproduction says of searches for step sizes that are done again."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from wagmf.lab.anew import Again, Best
from wagmf.lab.claims import ACCURACY_MARGIN
from wagmf.lab.evidence import Evidence, experiment_of
from wagmf.lab.looks import label, title_of
from wagmf.lab.paper import BASELINES

__all__ = ["counted", "retold", "so_far", "told_nowhere"]


def so_far(evidence: Evidence, anew: Mapping[str, Again]) -> list[str]:
    """How WADA stands to baselines by searches that are done again: where each trains best, where each tests best.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from wagmf.lab.evidence import gather
    >>> so_far(gather(Path(tempfile.mkdtemp())), {})
    []
    """
    found = []
    for name, again in anew.items():
        words = f"{title_of(name)}: a search with runs of {again.epochs} epochs "
        if not again.told.keys() >= {"wada", *BASELINES}:
            found.append(f"{words}is not over, and has not come to all methods yet.")
            continue
        has = "has chosen others" if again.moved(evidence.chosen[name]) else "has chosen the same"
        chance = _by_chance(evidence, name, again)
        parts = [f"{words}{has if again.over else 'is not over'}.", _trained(again), *chance, _tested(again)]
        found.append(" ".join(parts))
    return found


def _trained(again: Again) -> str:
    best = again.told
    ends = again.ends or {method: (one.loss, one.accuracy) for method, one in best.items()}
    (loss, accuracy), first = ends["wada"], min(BASELINES, key=lambda method: ends[method][0])
    most = max(ends[method][1] for method in BASELINES)
    said = f"by {again.known} of {again.every} seeds" if again.ends else f"by {counted(again.seeds)}"
    return (
        f"Where each trains best, {said}, WADA's training loss is {loss:.4f} beside {label(first)}'s "
        f"{ends[first][0]:.4f}, and its test accuracy {100 * accuracy:.2f} % beside baselines' {100 * most:.2f} % at "
        "most."
    )


def _tested(again: Again) -> str:
    best, seeds = again.told, counted(again.seeds)
    top = max(BASELINES, key=lambda method: best[method].top)
    return (
        f"Where each tests best, {seeds} and the test images themselves choosing among {best['wada'].rates} step sizes "
        f"of WADA's and {best[top].rates} of {label(top)}'s, it is {100 * best['wada'].top:.2f} % beside "
        f"{100 * best[top].top:.2f} %."
    )


def _by_chance(evidence: Evidence, name: str, again: Again) -> list[str]:
    """Where a method's loss is the least but for what seeds differ by, and its accuracy is better by what matters."""
    told = []
    for method, one in again.told.items():
        there = again.as_good(method, evidence.between_seeds(name, method))
        if there is not None and there[2] > one.accuracy + ACCURACY_MARGIN:
            lr, loss, accuracy = there
            told.append(
                f"To within what seeds differ by, {label(method)} trains as well at {lr:g} ({loss:.4f}, "
                f"{counted(again.seeds)}), and tests at {100 * accuracy:.2f} % there."
            )
    return told


def retold(evidence: Evidence, anew: Mapping[str, Again]) -> dict[str, dict[str, Any]]:
    """What is said of searches that are done again: what they have found, and what came of that so far.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from wagmf.lab.evidence import gather
    >>> retold(gather(Path(tempfile.mkdtemp())), {})
    {}
    """
    return {
        name: {
            "runs": len(again.runs),
            "over": again.over,
            "diverged": sum(bool(run.diverged) for run in again.runs),
            "own_diverged": sum(bool(run.diverged) for run in again.own),
            "epochs": again.epochs,
            "seeds": counted(again.seeds),
            "moved": again.over and again.moved(evidence.chosen[name]),
            "told": [_best_told(method, one, evidence.chosen[name][method]) for method, one in again.told.items()],
            "chance": _by_chance(evidence, name, again),
            "known": f"{again.known} of {again.every} seeds",
            "ends": [
                f"{label(method)} {loss:.4f} and {100 * share:.2f} %" for method, (loss, share) in again.ends.items()
            ],
        }
        for name, again in anew.items()
    }


def told_nowhere(evidence: Evidence, anew: Mapping[str, Again]) -> list[str]:
    """Runs that are kept apart and of which nothing is told, such as those of a search that has hardly begun.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from wagmf.lab.evidence import gather
    >>> told_nowhere(gather(Path(tempfile.mkdtemp())), {})
    []
    """
    told = {run.key for again in anew.values() for run in (*again.runs, *again.own)}
    counts = Counter(experiment_of(run.experiment) for run in evidence.anew if run.key not in told)
    return [f"{count} of {name}" for name, count in sorted(counts.items())]


def counted(seeds: int) -> str:
    """How many there are, in words.

    >>> counted(1), counted(2)
    ('one seed', '2 seeds')
    """
    return "one seed" if seeds == 1 else f"{seeds} seeds"


def _best_told(method: str, one: Best, chosen: float) -> str:
    best = f"; at most {100 * one.top:.2f} %, at {one.top_lr:g}" if one.top_lr != one.lr else ""
    told = f"{one.loss:.4f} and {100 * one.accuracy:.2f} %{best}; shown here is {chosen:g}"
    return f"{label(method)} {one.lr:g} ({told})"
