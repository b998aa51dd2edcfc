"""What the numbers say, in words: which method was best, by how much, whether that is shown, and what to be wary of."""

import math
from dataclasses import dataclass
from typing import Any

from wagmf.lab.figures import best, rows
from wagmf.lab.looks import QUANTITIES, label, styles
from wagmf.lab.stats import better_is_lower

__all__ = ["ALPHA", "Answer", "answer", "difference", "number", "overall", "p_value"]

ALPHA: float = 0.05
"""The level at which a difference counts as shown."""


Row = dict[str, Any]
_NBSP = "\N{NO-BREAK SPACE}"


@dataclass(frozen=True)
class Answer:
    """The answer of one experiment for one metric.

    ``winner`` is a method only where one is shown to be better than every other.

    >>> Answer("wada", "WADA is better than every other method.", "", ()).winner
    'wada'
    """

    winner: str
    verdict: str
    evidence: str
    alarms: tuple[str, ...]


def number(value: float, metric: str = "") -> str:
    """A number as the report prints it: four digits, and an accuracy in percent.

    >>> number(-0.00123456), number(0.98765, "test_accuracy"), number(float("nan"))
    ('−0.001235', '98.77\\xa0%', '–')
    """
    if not math.isfinite(value):
        return "–"
    text = f"{100 * value:.2f}{_NBSP}%" if _percent(metric) else f"{value:#.4g}".rstrip(".")
    return text.replace("-", "−")


def difference(value: float, metric: str) -> str:
    """A difference of two numbers; of accuracies, in percentage points.

    >>> difference(0.0125, "test_accuracy"), difference(-0.5, "train_loss")
    ('+1.25\\xa0pp', '−0.500')
    """
    if not math.isfinite(value):
        return "–"
    text = f"{100 * value:+.2f}{_NBSP}pp" if _percent(metric) else f"{value:+#.3g}".rstrip(".")
    return text.replace("-", "−")


def p_value(p: float) -> str:
    """A p-value with its sign of relation.

    >>> p_value(0.0123), p_value(1e-9), p_value(1.0)
    ('= 0.012', '< 0.001', '= 1')
    """
    if not math.isfinite(p):
        return "–"
    return "< 0.001" if p < 0.001 else "= 1" if p == 1 else f"= {p:.3f}"


def answer(ranks: Any, tests: Any, rates: Any, metric: str, *, family: int = 0, known: bool = True) -> Answer:
    """Say what one experiment's rows of ``stats.ranking``, ``significance`` and ``best_rates`` mean.

    ``family`` is the number of comparisons for which p-values are adjusted; ``known`` is whether the metric was
    measured at all: one that was not looks like one of which every run diverged.

    >>> import pandas as pd
    >>> ranks = pd.DataFrame({"method": "wada", "n": [3], "diverged": 0, "mean": 0.5, "low": 0.4, "high": 0.6})
    >>> rates = pd.DataFrame({"method": "wada", "lr": [0.1], "n": 3, "edge": "", "diverged": 0})
    >>> answer(ranks, pd.DataFrame(), rates, "train_loss").verdict
    'Only WADA was run: there is nothing to compare it with.'
    """
    if not known:
        return Answer("", f"The {QUANTITIES[metric]} was not measured: there is nothing to compare.", "", ())
    order, tried, pairs = best(ranks, metric), rows(rates), rows(tests)
    alarms = (*_seeds(pairs, family), *_edges(tried), *_lost(tried))
    found = {row["method"]: row for row in rows(ranks)}
    if not order:
        verdict = "Every run diverged, even at the best step sizes: there is nothing to compare."
        return Answer("", verdict, "", alarms)
    first = label(order[0])
    if len(tried) == 1:
        words = f"Its {_words(found[order[0]], metric)}."
        return Answer("", f"Only {first} was run: there is nothing to compare it with.", words, alarms)
    if len(order) == 1:
        words = f"Its {_words(found[order[0]], metric)}; no other method has a run to compare it with."
        return Answer("", f"Every method but {first} diverged with every seed.", words, alarms)
    one, two = found[order[0]], found[order[1]]
    evidence = f"{_lead(one, two, metric)}: {_evidence(_pair(pairs, order[0], order[1]), order[0], metric)}"
    beaten = [other for other in order[1:] if _shown(_pair(pairs, order[0], other), order[0])]
    if len(beaten) == len(tried) - 1:
        others = label(beaten[0]) if len(beaten) == 1 else "every other method"
        return Answer(order[0], f"{first} is better than {others}.", evidence, alarms)
    if beaten:
        names = _listed([label(name) for name in beaten])
        verdict = f"No method is shown to be best; {first} is shown to be better than {names}."
        return Answer("", verdict, evidence, alarms)
    return Answer("", "No method is shown to be better.", evidence, alarms)


def overall(answers: list[Answer]) -> str:
    """All answers in one sentence.

    >>> overall([Answer("wada", "", "", ()), Answer("", "", "", ())])
    'WADA is shown to be best in 1 of 2 experiments; in 1 of 2 no method is.'
    """
    total, winners = len(answers), [one.winner for one in answers if one.winner]
    wins = {name: winners.count(name) for name in styles(winners)}
    parts = [f"{label(name)} is shown to be best in {count} of {total} experiments" for name, count in wins.items()]
    if not parts:
        return "In no experiment is a method shown to be best." if total > 1 else ""
    if total == 1:
        return ""
    left = total - len(winners)
    return "; ".join(parts + ([f"in {left} of {total} no method is"] if left else [])) + "."


def _words(row: Row, metric: str) -> str:
    text = f"final {QUANTITIES[metric]} is {number(row['mean'], metric)}"
    if row["n"] < 2:
        return f"{text} (one seed)"
    between = f"{number(row['low'], metric)} to {number(row['high'], metric)}"
    return f"{text} (mean of {row['n']} seeds, 95{_NBSP}% interval {between})"


def _lead(one: Row, two: Row, metric: str) -> str:
    """Who is first, and by how much."""
    mine, theirs, name = one["mean"], two["mean"], label(two["method"])
    head = f"{label(one['method'])}’s final {QUANTITIES[metric]} is"
    if two["diverged"] > one["diverged"]:
        lost = f"{two['diverged']} of {two['n'] + two['diverged']} seeds"
        return f"{head} {number(mine, metric)}; {name}, the next best, diverged with {lost}"
    if mine == theirs:
        return f"{head} {number(mine, metric)}, the same as {name}’s"
    if _percent(metric):
        gap = f"{100 * (mine - theirs):.3g} percentage points above"
    elif theirs > 0:
        gap = f"{100 * (1 - mine / theirs):.3g}{_NBSP}% below"
    else:
        gap = f"{theirs - mine:.3g} below"
    kind = "lowest" if better_is_lower(metric) else "highest"
    return f"{head} the {kind}, {number(mine, metric)}, {gap} {name}’s {number(theirs, metric)}"


def _evidence(pair: Row | None, first: str, metric: str) -> str:
    if pair is None or not pair["n"]:
        return "the two have no seed in common at which both finished, so they cannot be tested against each other."
    if pair["n"] < 2:
        return "with one seed each, no test can say whether that is chance."
    low, high = (pair["low"], pair["high"]) if pair["a"] == first else (-pair["high"], -pair["low"])
    text = (
        f"difference {difference(low, metric)} to {difference(high, metric)} (95{_NBSP}% interval), "
        f"n{_NBSP}={_NBSP}{pair['n']} paired seeds, Hedges’{_NBSP}g{_NBSP}={_NBSP}{number(abs(pair['hedges_g']))}, "
        f"paired t-test p{_NBSP}{_p(pair['paired_holm'])} after Holm’s adjustment "
        f"(permutation test p{_NBSP}{_p(pair['permutation_holm'])})."
    )
    if pair["better"] or not pair["detectable"] > 0:  # nothing varies, or nothing is known
        return text
    size = difference(pair["detectable"], metric).lstrip("+")
    return f"{text} With n{_NBSP}={_NBSP}{pair['n']}, a true difference of less than {size} would often go unseen."


def _seeds(pairs: list[Row], family: int) -> list[str]:
    """Whether there are seeds enough for both tests to show anything at all."""
    tested = [pair for pair in pairs if pair["n"] > 0]
    if not tested:
        return []
    n, least = max(pair["n"] for pair in tested), min(pair["permutation_least"] for pair in tested)
    if n < 2:
        return ["One seed only: nothing can be shown. Run more seeds."]
    if least < ALPHA:
        return []
    # n differences have 2^n signs, two of which are as extreme as the most extreme; more than 2^12 are not all tried.
    enough = next((more for more in range(n + 1, 14) if 2.0 ** (1 - more) * family < ALPHA), None)
    cure = f"{enough} seeds would be enough." if enough else "Compare fewer methods or experiments at a time."
    return [
        f"What is shown rests on differences between runs being about normal: the permutation test, which needs no "
        f"such assumption, cannot have a p below {least:.4g} with {n} seeds and {family} comparison"
        f"{'s' if family > 1 else ''}. {cure}"
    ]


def _edges(rates: list[Row]) -> list[str]:
    """Step sizes that may not be the best there are."""
    words = {
        "low": "the smallest that was tried: a smaller one may be better.",
        "high": "the largest that was tried: a larger one may be better.",
        "only": "the only one that was tried.",
    }
    found = []
    for edge, text in words.items():
        names = [f"{label(row['method'])} ({row['lr']:g})" for row in rates if row["edge"] == edge]
        if names:
            found.append(f"The best step size of {_listed(names)} is {text}")
    return found


def _lost(rates: list[Row]) -> list[str]:
    names = [f"{label(row['method'])} ({row['diverged']} of {row['n']})" for row in rates if row["diverged"]]
    return [f"Seeds diverged even at the best step size: {_listed(names)}."] if names else []


def _pair(pairs: list[Row], one: str, other: str) -> Row | None:
    return next((pair for pair in pairs if {pair["a"], pair["b"]} == {one, other}), None)


def _shown(pair: Row | None, one: str) -> bool:
    return pair is not None and pair["better"] != "" and pair[pair["better"]] == one


def _p(p: float) -> str:
    return p_value(p).replace(" ", _NBSP)


def _percent(metric: str) -> bool:
    return metric.endswith("accuracy")


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
