"""Which method is better, by how much, and how sure that is: functions of the curves of finished runs.

A run is one seed. Runs of one experiment with the same seed share initial weights and the order of the data, so methods
are compared seed by seed. What is no number at the last epoch has diverged, and counts as follows:

- choosing a step size: one diverged seed makes a step size worse than every one at which fewer seeds have diverged;
- means, intervals, tests and effect sizes: of the seeds at which both runs are finite; ``n`` says how many these are,
  ``diverged_a`` and ``diverged_b`` how many diverged, and the method that diverged more often is never called better;
- ranks and the probability of improvement: a diverged run is worse than every finite one and level with other diverged.

docs/statistics.md says which number answers which question.
"""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats

from wagmf.arguments import array, integer, one_of, real, refuse
from wagmf.lab.spec import METRICS
from wagmf.methods import METHODS

__all__ = [
    "ADJUSTED",
    "CRITERIA",
    "Pair",
    "at_best",
    "best_rates",
    "better_is_lower",
    "compare_pair",
    "detectable_effect",
    "finals",
    "holm",
    "mean_finals",
    "paper_significance",
    "ranking",
    "significance",
    "time_to_target",
]

CRITERIA: tuple[str, ...] = ("train_loss", "test_accuracy")
"""By what step sizes are chosen: the last epoch's training loss, or the best epoch's test accuracy."""

ADJUSTED: tuple[str, ...] = ("permutation_holm", "permutation_joint", "paired_holm", "welch_holm", "student_holm")
"""The p-values that are adjusted for all rows of a table; one of them decides which method is better."""

Floats = NDArray[np.float64]

_RATE = ["experiment", "method", "lr"]
_RUN = [*_RATE, "seed"]
_ORDER = {name: place for place, name in enumerate(METHODS)}
_EXACT = 12  # up to so many seeds every choice of signs is tried: 2^12
_RESAMPLES = 9_999
_ALPHA, _POWER = 0.05, 0.8
_ROUNDING = 16 * np.finfo(np.float64).eps  # of the largest value: what varies less does not vary


def better_is_lower(metric: str) -> bool:
    """Whether less of ``metric`` is better: of a loss it is, of an accuracy it is not.

    >>> better_is_lower("train_loss"), better_is_lower("test_accuracy")
    (True, False)
    """
    return one_of("metric", metric, METRICS).endswith("loss")


# ------------------------------------------------------------------ one value per run


def finals(curves: pd.DataFrame, metric: str) -> pd.DataFrame:
    """The value of every run at the last epoch of its experiment; NaN if the run has diverged.

    >>> curves = pd.DataFrame({"experiment": "e", "method": "wada", "lr": 0.1, "seed": 0, "epoch": [1, 2],
    ...                        "train_loss": [0.7, 0.4]})
    >>> finals(curves, "train_loss")["value"].tolist()
    [0.4]
    """
    one_of("metric", metric, METRICS)
    frame = _check(curves, [*_RUN, "epoch", metric])
    last = frame["epoch"] == frame.groupby("experiment")["epoch"].transform("max")
    rows = frame.loc[last, [*_RUN, metric]].rename(columns={metric: "value"}).reset_index(drop=True)
    short = _first_missing(frame[_RUN].drop_duplicates(), rows, _RUN)
    if short:
        refuse("curves", short, "every run must have a row for the last epoch of its experiment, diverged or not")
    return rows


def mean_finals(curves: pd.DataFrame, metric: str) -> dict[tuple[str, float], float]:
    """What each method comes to at each step size, in the mean of seeds; NaN if one of them has diverged.

    >>> curves = pd.DataFrame({"experiment": "e", "method": "wada", "lr": 0.1, "seed": [0, 1], "epoch": 1,
    ...                        "train_loss": [0.75, 0.25]})
    >>> mean_finals(curves, "train_loss")
    {('wada', 0.1): 0.5}
    """
    ends: Any = finals(curves, metric)
    return {key: float(each.mean(skipna=False)) for key, each in ends.groupby(["method", "lr"])["value"]}


def _check(frame: pd.DataFrame, columns: list[str], name: str = "curves") -> Any:
    """The frame, if it has these columns and no row twice; as Any, since to pandas frame[...] may be anything."""
    missing = [column for column in columns if column not in frame.columns]
    if missing:
        refuse(name, list(frame.columns), f"{name} must have the columns {', '.join(missing)}")
    unique = [column for column in columns if column in (*_RUN, "epoch")]
    twice = frame.duplicated(unique)
    if twice.any():
        first = np.asarray(frame.loc[twice, unique])[0].tolist()
        refuse(name, first, f"{name} must have one row for each {', '.join(unique)}")
    return frame


def _first_missing(wanted: Any, there: Any, columns: list[str]) -> list[Any]:
    """The first of the rows ``wanted`` that is not among those ``there``; empty if all are."""
    marked = wanted[columns].merge(there[columns].drop_duplicates(), on=columns, how="left", indicator="from")
    return marked.loc[marked["from"] != "both", columns].head(1).to_numpy().ravel().tolist()


def _in_order(frame: Any, then: list[str]) -> Any:
    """By experiment, methods in the order of the table of methods and unknown ones last, then as said."""
    place = frame["method"].map(_ORDER).fillna(len(_ORDER))
    return frame.assign(_place=place).sort_values(["experiment", "_place", "method", *then], kind="stable")


# ------------------------------------------------------------------ the step size of a method


def best_rates(curves: pd.DataFrame, criterion: str = "train_loss") -> pd.DataFrame:
    """The best step size of each method in each experiment, one row each.

    By ``"train_loss"`` that is the step size with the least training loss at the last epoch, in the mean over seeds; by
    ``"test_accuracy"`` the one whose mean over seeds has the best test accuracy at any epoch. A step size at which a
    seed diverged comes after all at which fewer did, and has an infinitely bad ``value``; ``diverged`` of its ``n``
    seeds did. Of equally good ones the smallest is taken.

    ``edge`` is an alarm: ``"low"`` or ``"high"`` if the best is the smallest or largest that was tried, so that a
    better one may lie beyond; ``"only"`` if there was no other. A larger one at which runs diverge counts as tried.

    >>> curves = pd.DataFrame({"experiment": "e", "method": "wada", "lr": [0.1, 0.2, 0.4], "seed": 0, "epoch": 1,
    ...                        "train_loss": [0.7, 0.4, float("nan")]})
    >>> best_rates(curves)[["lr", "value", "n", "diverged", "edge"]].values.tolist()
    [[0.2, 0.4, 1, 0, '']]
    """
    one_of("criterion", criterion, CRITERIA)
    sign = 1.0 if better_is_lower(criterion) else -1.0
    runs = _check(finals(curves, criterion), _RUN)
    runs["lost"] = ~np.isfinite(runs["value"].to_numpy(dtype=float))
    grid = runs.groupby(_RATE, as_index=False).agg(n=("seed", "size"), diverged=("lost", "sum"))

    alive = _check(curves, [*_RUN, "epoch"]).merge(runs.loc[~runs["lost"], _RUN], on=_RUN)
    if criterion == "train_loss":
        alive = alive[alive["epoch"] == alive.groupby("experiment")["epoch"].transform("max")]
    means = alive.groupby([*_RATE, "epoch"], as_index=False)[criterion].mean()
    bad = means.assign(bad=sign * means[criterion]).groupby(_RATE, as_index=False)["bad"].min()

    grid = grid.merge(bad, on=_RATE, how="left").fillna({"bad": np.inf})
    lrs = grid.groupby(["experiment", "method"])["lr"]
    low, high = grid["lr"] == lrs.transform("min"), grid["lr"] == lrs.transform("max")
    grid["edge"] = np.select([low & high, low, high], ["only", "low", "high"], "")
    grid["value"] = sign * grid["bad"].where(grid["diverged"] == 0, np.inf)
    best = _in_order(grid, ["diverged", "bad", "lr"]).drop_duplicates(["experiment", "method"])
    return best[[*_RATE, "value", "n", "diverged", "edge"]].reset_index(drop=True)


def at_best(curves: pd.DataFrame, rates: pd.DataFrame) -> pd.DataFrame:
    """The curves of each method at the step size that ``rates`` (columns experiment, method, lr) has for it.

    Methods and experiments that are in one of the two only are left out; a step size that was not run is refused.

    >>> curves = pd.DataFrame({"experiment": "e", "method": "wada", "lr": [0.1, 0.2], "seed": 0, "epoch": 1,
    ...                        "train_loss": [0.7, 0.4]})
    >>> at_best(curves, best_rates(curves))["lr"].tolist()
    [0.2]
    """
    frame, asked = _check(curves, [*_RUN, "epoch"]), _check(rates, _RATE, "rates")
    twice = asked.duplicated(["experiment", "method"])
    if twice.any():
        first = asked.loc[twice, _RATE].to_numpy()[0].tolist()
        refuse("rates", first, "rates must have one step size for each method of an experiment")
    wanted = asked[_RATE].merge(frame[["experiment", "method"]].drop_duplicates(), on=["experiment", "method"])
    absent = _first_missing(wanted, frame, _RATE)
    if absent:
        refuse("rates", absent, "a step size must be one of those that were run")
    return frame.merge(wanted, on=_RATE)


def _chosen(curves: pd.DataFrame, rates: pd.DataFrame | None, criterion: str = "train_loss") -> Any:
    one_of("criterion", criterion, CRITERIA)
    return at_best(curves, best_rates(curves, criterion) if rates is None else rates)


# ------------------------------------------------------------------ two methods


@dataclass(frozen=True)
class Pair:
    """Two methods a and b on the same ``n`` seeds; p-values are two-sided, and NaN where there is nothing to say.

    ``low`` and ``high`` are the 95 % bootstrap interval of ``difference`` = mean_a - mean_b. ``student`` (the paper's)
    and ``welch`` are the t-tests of two independent samples, ``paired`` is the t-test of the differences, and
    ``permutation`` flips their signs. ``hedges_g`` is the difference in standard deviations of a run. A difference of
    ``detectable`` would be found, with the right sign, in 80 % of repetitions by ``paired`` at 0.05, if differences
    spread as these do.

    >>> compare_pair([1.0, 2.0, 4.0], [2.0, 3.0, 4.0]).difference
    -0.6666666666666666
    """

    n: int
    mean_a: float
    mean_b: float
    difference: float
    low: float
    high: float
    student: float
    welch: float
    paired: float
    permutation: float
    hedges_g: float
    detectable: float


def compare_pair(a: ArrayLike, b: ArrayLike, *, seed: int = 0) -> Pair:
    """Compare the values ``a`` and ``b`` of two methods at the same seeds, in the same order.

    Seeds at which one of them is not finite are left out. The permutation test tries all signs of up to 12 differences,
    and 9,999 random choices of signs of more; these and the bootstrap are drawn from ``seed``.

    With one seed only the means and their difference are known: the permutation test has p = 1, all else is NaN. Where
    nothing varies, the t-tests have p = 1 and ``hedges_g`` 0 if a and b are equal, and NaN if not.

    >>> pair = compare_pair([0.31, 0.29, 0.33, 0.30], [0.35, 0.36, 0.38, 0.33])
    >>> f"{pair.difference:.4f} [{pair.low:.4f}, {pair.high:.4f}], p = {pair.permutation}"
    '-0.0475 [-0.0700, -0.0300], p = 0.125'
    """
    one, two = array("a", a, finite=False), array("b", b, finite=False)
    if one.ndim != 1 or one.shape != two.shape:
        refuse("a and b", (one.shape, two.shape), "a and b must be two lists of equal length, a value for each seed")
    found = _compare(one[None], two[None], integer("seed", seed, least=0))
    return Pair(**{name: column[0].item() for name, column in found.items()})


def _compare(a: Floats, b: Floats, seed: int) -> dict[str, NDArray[Any]]:
    """The fields of :class:`Pair`, each for all rows of ``a`` and ``b``; one column is one seed."""
    both = np.isfinite(a) & np.isfinite(b)
    counts = both.sum(axis=1)
    found: dict[str, NDArray[Any]] = {field.name: np.full(len(a), np.nan) for field in fields(Pair)}
    found["n"] = counts
    for n in np.unique(counts[counts > 0]).tolist():
        rows = np.flatnonzero(counts == n)
        one, two = (x[rows][both[rows]].reshape(-1, n) for x in (a, b))
        one, two, scale = _scaled(one, two)
        with np.errstate(all="ignore"):  # what is divided by a spread of 0 is replaced
            for name, column in _compare_finite(one, two, seed).items():
                measured = name in ("mean_a", "mean_b", "difference", "low", "high", "detectable")
                found[name][rows] = np.ldexp(column, scale) if measured else column
    return found


def _scaled(a: Floats, b: Floats) -> tuple[Floats, Floats, NDArray[np.int32]]:
    """Rows divided by powers of two, which is exact, to at most 1: squares of even the largest losses are finite."""
    _, scale = np.frexp(np.maximum(np.abs(a), np.abs(b)).max(axis=1))
    return np.ldexp(a, -scale[:, None]), np.ldexp(b, -scale[:, None]), scale


def _compare_finite(a: Floats, b: Floats, seed: int) -> dict[str, Floats]:
    n, d = a.shape[1], a - b
    difference = d.mean(axis=1)
    found = {"mean_a": a.mean(axis=1), "mean_b": b.mean(axis=1), "difference": difference}
    found["permutation"] = _flipped(d, seed)
    if n > 1:
        found["low"], found["high"] = _interval(d, seed)
        found["student"], found["welch"] = _unpaired(a, b)
        deviation = _deviation(d)
        paired = 2 * special.stdtr(n - 1, -np.abs(difference) / (deviation / np.sqrt(n)))
        found["paired"] = _settled(paired, deviation, difference, 1.0)
        pooled = np.hypot(_deviation(a), _deviation(b)) / np.sqrt(2)
        found["hedges_g"] = _settled(_small_sample(2 * n - 2) * difference / pooled, pooled, difference, 0.0)
        found["detectable"] = deviation * detectable_effect(n)
    return found


def _deviation(x: Floats) -> Floats:
    """The standard deviation of every row; 0 if that is rounding only, of values scaled to at most 1."""
    deviation = x.std(axis=1, ddof=1)
    return np.where(deviation <= _ROUNDING, 0.0, deviation)


def _settled(value: Floats, deviation: Floats, difference: Floats, same: float) -> Floats:
    """Where nothing varies, ``same`` for equal means; for others no test can say how unlikely they are."""
    return np.where(deviation > 0, value, np.where(np.abs(difference) <= _ROUNDING, same, np.nan))


def _unpaired(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """The p-values of Student's and of Welch's test of every row."""
    n, difference = a.shape[1], a.mean(axis=1) - b.mean(axis=1)
    one, two = _deviation(a), _deviation(b)
    student, welch = (
        stats.ttest_ind_from_stats(difference, one, n, np.zeros(len(a)), two, n, equal_var=equal).pvalue
        for equal in (True, False)
    )
    spread = np.hypot(one, two)
    return _settled(student, spread, difference, 1.0), _settled(welch, spread, difference, 1.0)


def _small_sample(df: int) -> float:
    """Hedges' correction, exactly: a difference divided by an estimated deviation is too large in the mean."""
    return float(np.exp(special.gammaln(df / 2) - special.gammaln((df - 1) / 2)) / np.sqrt(df / 2))


def detectable_effect(n: int, *, power: float = _POWER, alpha: float = _ALPHA) -> float:
    """The smallest true mean difference of ``n`` pairs, in standard deviations of the differences, that is found.

    Found means: a paired t-test gives p < ``alpha`` and the right sign, with probability ``power``. For a whole table
    divide ``alpha`` by its number of rows.

    >>> f"{detectable_effect(8):.3f}, in a table of 15 rows {detectable_effect(8, alpha=0.05 / 15):.3f}"
    '1.156, in a table of 15 rows 1.935'
    """
    df = integer("n", n, least=2) - 1
    alpha, power = real("alpha", alpha, above=0, below=1), real("power", power, above=0, below=1)
    if power <= alpha / 2:
        refuse("power", power, "power must be more than alpha / 2, which a difference of 0 has")
    return float(special.nctdtrinc(df, 1 - power, stats.t.isf(alpha / 2, df)) / np.sqrt(n))


# ------------------------------------------------------------------ resampling


@lru_cache(maxsize=16)
def _signs(n: int, seed: int) -> Floats:
    """Choices of n signs, a row each, all + first; every one but for its negative if n is small."""
    if n <= _EXACT:
        rest = (np.arange(2 ** (n - 1))[:, None] >> np.arange(n - 1)) & 1
        return 1.0 - 2.0 * np.column_stack([np.zeros(len(rest)), rest])
    rng = np.random.default_rng(seed)
    return np.vstack([np.ones(n), rng.choice([-1.0, 1.0], (_RESAMPLES, n))])


@lru_cache(maxsize=16)
def _weights(n: int, seed: int) -> Floats:
    """Bootstrap samples of n seeds, a row each, as the weights that seeds have in a mean."""
    return np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), _RESAMPLES) / n


def _flipped(d: Floats, seed: int) -> Floats:
    """The p-value of every row's mean among those that other signs of the differences would give."""
    means = np.abs(d @ _signs(d.shape[1], seed).T)
    slack = 1e-12 * np.abs(d).sum(axis=1)  # sums of the same numbers in another order are equal
    return (means >= (np.abs(d.sum(axis=1)) - slack)[:, None]).mean(axis=1)


@lru_cache(maxsize=16)
def _levels(n: int) -> tuple[float, float]:
    """Percentiles of the bootstrap that make up for its spread being too small by n/(n-1), and for few n.

    Those at which an interval of normal draws is as wide as Student's (Hesterberg 2015, arXiv:1411.5279).
    """
    low = float(special.ndtr(np.sqrt(n / (n - 1)) * stats.t.ppf(_ALPHA / 2, n - 1)))
    return low, 1 - low


def _interval(x: Floats, seed: int) -> Floats:
    """The lower and the upper ends of the 95 % bootstrap intervals of the rows' means."""
    n, means = x.shape[1], x.mean(axis=1, keepdims=True)
    weights, levels = _weights(n, seed).T, _levels(n)
    # A row at a time: all draws of a large table at once would need gigabytes, and take no less time.
    return means.T + np.transpose([np.quantile(row @ weights, levels) for row in x - means])


def _joint(d: Floats, seed: int) -> Floats:
    """Westfall and Young's step-down adjusted p-values: signs are flipped in all rows at once, a seed at a time.

    A row's statistic is the p-value of its paired t-test, which rows of different n can share; the adjusted p-value is
    the share of sign choices in which the least of this row and all less significant ones is as small.
    """
    if not d.size:
        return np.full(len(d), np.nan)
    n = np.isfinite(d).sum(axis=1)
    known = np.where(np.isfinite(d), d, 0.0)
    known, _, _ = _scaled(known, known)
    with np.errstate(all="ignore"):
        length = np.sqrt(n * (known**2).sum(axis=1))[:, None]
        cosine = np.minimum(np.abs(known @ _signs(d.shape[1], seed).T) / length, 1.0)
        p = 2 * special.stdtr((n - 1)[:, None], -cosine * np.sqrt((n - 1)[:, None] / (1 - cosine**2)))
    p[(n < 2) | ~known.any(axis=1)] = 1.0
    order = np.argsort(p[:, 0], kind="stable")
    least = np.minimum.accumulate(p[order][::-1], axis=0)[::-1]
    adjusted = np.empty(len(d))
    adjusted[order] = np.maximum.accumulate((least <= p[order, :1] * (1 + 1e-6)).mean(axis=1))
    return np.where(n > 0, adjusted, np.nan)


# ------------------------------------------------------------------ many pairs


def holm(p: ArrayLike) -> Floats:
    """Holm's adjusted p-values: the chance that any true null hypothesis has one below α is at most α.

    NaN stays NaN, and is not counted.

    >>> holm([0.01, 0.04, 0.03]).tolist()
    [0.03, 0.06, 0.06]
    """
    values = array("p", p, finite=False)
    known = np.flatnonzero(~np.isnan(values))
    if ((values.flat[known] < 0) | (values.flat[known] > 1)).any():
        refuse("p", p, "p-values must lie between 0 and 1, or be NaN")
    order = known[np.argsort(values.flat[known], kind="stable")]
    adjusted = np.full(values.shape, np.nan)
    adjusted.flat[order] = np.minimum(np.maximum.accumulate(values.flat[order] * np.arange(len(order), 0, -1)), 1.0)
    return adjusted


def significance(
    curves: pd.DataFrame,
    metric: str = "train_loss",
    *,
    rates: pd.DataFrame | None = None,
    criterion: str = "train_loss",
    pairs: Iterable[tuple[str, str]] | None = None,
    alpha: float = 0.05,
    by: str = "paired_holm",
) -> pd.DataFrame:
    """Compare methods at their best step sizes by the last epoch's ``metric``: a row per experiment and pair.

    ``rates`` fixes the step sizes, else ``criterion`` chooses them (:func:`best_rates`). Without ``pairs`` every method
    is compared with every other of its experiment; a pair applies to the experiments that have both.

    Besides the fields of :class:`Pair` a row has the p-values adjusted for all rows of the table: by Holm
    (``student_holm`` and so on), and ``permutation_joint`` by the joint distribution of all rows under flipped signs
    (Westfall and Young). ``better`` is ``"a"`` or ``"b"`` if the column ``by`` is below ``alpha`` and this method
    diverged at no more seeds than the other.

    ``permutation_least`` is the least that ``permutation_holm`` can be, however large the differences: n seeds have 2^n
    signs. Where it is not below ``alpha``, only tests that take differences to be normal can show anything.

    >>> curves = pd.DataFrame([("e", method, 0.1, seed, 1, loss + seed % 3 / 100)
    ...                        for method, loss in (("adam", 0.5), ("wada", 0.4)) for seed in range(8)],
    ...                       columns=["experiment", "method", "lr", "seed", "epoch", "train_loss"])
    >>> curves["train_loss"] **= 2
    >>> significance(curves)[["a", "b", "n", "difference", "permutation_holm", "better"]].round(4).values.tolist()
    [['wada', 'adam', 8, -0.0917, 0.0078, 'a']]
    """
    sign = 1.0 if better_is_lower(metric) else -1.0
    alpha = real("alpha", alpha, above=0, below=1)
    one_of("by", by, ADJUSTED)
    values = _by_seed(_chosen(curves, rates, criterion), metric)
    table, one, two = _pairs(values.index, pairs)
    matrix = values.to_numpy(dtype=float)
    a, b = matrix[one], matrix[two]

    lrs = values.index.get_level_values("lr").to_numpy()
    table = table.assign(metric=metric, lr_a=lrs[one], lr_b=lrs[two])
    table = table[["experiment", "metric", "a", "b", "lr_a", "lr_b"]].assign(**_compare(a, b, 0))
    ran = ~np.isnan(a) & ~np.isnan(b)
    table["diverged_a"], table["diverged_b"] = ((ran & np.isinf(x)).sum(axis=1) for x in (a, b))
    for test in ("student", "welch", "paired", "permutation"):
        table[f"{test}_holm"] = holm(table[test].to_numpy(dtype=float))
    with np.errstate(invalid="ignore"):  # two diverged runs
        table["permutation_joint"] = _joint(a - b, 0)
    table["permutation_least"] = holm([_least(n) for n in table["n"].tolist()])

    found = (table[by] < alpha).to_numpy(dtype=bool)
    ahead = -sign * table["difference"].to_numpy(dtype=float)
    more = (table["diverged_a"] - table["diverged_b"]).to_numpy()
    table["better"] = np.select([found & (ahead > 0) & (more <= 0), found & (ahead < 0) & (more >= 0)], ["a", "b"], "")
    return table


def _least(n: int) -> float:
    """The least p-value of the permutation test of n differences."""
    return 1 / len(_signs(n, 0)) if n else np.nan


def _by_seed(curves: pd.DataFrame, metric: str) -> Any:
    """A row per experiment, method and step size, a column per seed: infinitely bad if diverged, NaN if not run."""
    runs = _check(finals(curves, metric), _RUN)
    worst = np.inf if better_is_lower(metric) else -np.inf
    runs["value"] = runs["value"].where(np.isfinite(runs["value"].to_numpy(dtype=float)), worst)
    runs = _in_order(runs, ["lr", "seed"])
    return runs.pivot_table(index=_RATE, columns="seed", values="value", aggfunc="first", sort=False)


def _pairs(index: Any, pairs: Iterable[tuple[str, str]] | None) -> tuple[Any, NDArray[np.intp], NDArray[np.intp]]:
    """The experiments and pairs of a table, and at which places of ``index`` their two methods are."""
    places: dict[str, dict[str, int]] = {}
    for place, (experiment, method, _) in enumerate(index):
        places.setdefault(experiment, {})[method] = place
    known = {method for methods in places.values() for method in methods}
    asked = None if pairs is None else [_known_pair(pair, known) for pair in pairs]
    rows = [
        (experiment, a, b, methods[a], methods[b])
        for experiment, methods in places.items()
        for a, b in (itertools.combinations(methods, 2) if asked is None else asked)
        if a in methods and b in methods
    ]
    table = pd.DataFrame([row[:3] for row in rows], columns=["experiment", "a", "b"])
    one, two = (np.array([row[end] for row in rows], dtype=np.intp) for end in (3, 4))
    return table, one, two


def _known_pair(pair: Any, known: set[str]) -> tuple[str, str]:
    if not isinstance(pair, tuple | list) or len(pair) != 2 or pair[0] == pair[1]:
        refuse("pair", pair, "a pair must be the names of two different methods")
    return one_of("method", pair[0], sorted(known)), one_of("method", pair[1], sorted(known))


def paper_significance(
    curves: pd.DataFrame,
    metric: str = "train_loss",
    *,
    rates: pd.DataFrame | None = None,
    last: int = 8,
    seed: int | None = None,
    pairs: Iterable[tuple[str, str]] | None = None,
) -> pd.DataFrame:
    """What the paper's p-values look like: Student's t-test on the last 8 epochs of one run of each method.

    For contrast only. Epochs of one run are not independent samples: they share their initial weights and go on where
    the epoch before has ended, so that two runs of the *same* method differ significantly, too, and p-values of 1e-20
    mean nothing. The run is that of ``seed``, or of the lowest seed of the experiment; ``n`` says how many epochs there
    were; p is NaN if one of the runs is missing or has diverged.

    >>> curves = pd.DataFrame([("e", f"twin {seed}", 0.1, 0, epoch, 0.5 + seed / 100 + epoch % 2 / 1000)
    ...                        for seed in range(2) for epoch in range(1, 9)],
    ...                       columns=["experiment", "method", "lr", "seed", "epoch", "train_loss"])
    >>> f"{paper_significance(curves)['p'].item():.0e}"
    '2e-15'
    """
    better_is_lower(metric)
    last = integer("last", last, least=2)
    chosen = _chosen(curves, rates)
    table = _pairs(_by_seed(chosen, metric).index, pairs)[0]
    groups = chosen.groupby("experiment")
    run = groups["seed"].transform("min") if seed is None else integer("seed", seed, least=0)
    late = chosen[(chosen["seed"] == run) & (chosen["epoch"] > groups["epoch"].transform("max") - last)]
    tails = {key: tail.to_numpy(dtype=float) for key, tail in late.groupby(["experiment", "method"])[metric]}
    none = np.empty(0)
    ends = [
        (tails.get((experiment, a), none), tails.get((experiment, b), none))
        for experiment, a, b in table.itertuples(index=False)
    ]
    table = table.assign(metric=metric, n=[min(map(len, end)) for end in ends], p=[_paper_p(*end) for end in ends])
    return table[["experiment", "metric", "a", "b", "n", "p"]]


def _paper_p(a: Floats, b: Floats) -> float:
    if len(a) != len(b) or len(a) < 2 or not np.isfinite([a, b]).all():
        return np.nan
    if np.ptp(a) == np.ptp(b) == 0 and a[0] != b[0]:  # late accuracies may stay what they are: the paper prints 0, too
        return 0.0
    with np.errstate(all="ignore"):
        return float(_unpaired(*_scaled(a[None], b[None])[:2])[0][0])


# ------------------------------------------------------------------ all methods


def ranking(curves: pd.DataFrame, metric: str = "train_loss", *, rates: pd.DataFrame | None = None) -> pd.DataFrame:
    """The methods of each experiment at their best step sizes, the best first, by the last epoch's ``metric``.

    Only seeds that all methods of the experiment ran are looked at. ``mean``, with its 95 % bootstrap interval from
    ``low`` to ``high``, is that of the ``n`` runs that did not diverge. ``rank_mean`` is the mean over seeds of the
    rank among the methods; 1 is best. ``improves`` is the probability that a random run of this method beats a random
    run of another one, ties half, averaged over the others; its interval resamples seeds, for all methods the same.
    Rows are sorted by ``improves``.

    >>> curves = pd.DataFrame([("e", method, 0.1, seed, 1, loss + seed / 8)
    ...                        for method, loss in (("adam", 0.625), ("wada", 0.5)) for seed in range(3)],
    ...                       columns=["experiment", "method", "lr", "seed", "epoch", "train_loss"])
    >>> ranking(curves)[["method", "n", "mean", "rank_mean", "improves"]].round(3).values.tolist()
    [['wada', 3, 0.625, 1.0, 0.778], ['adam', 3, 0.75, 2.0, 0.222]]
    """
    sign = 1.0 if better_is_lower(metric) else -1.0
    values = _by_seed(_chosen(curves, rates), metric)
    rows = []
    for _, block in values.groupby("experiment", sort=False):
        matrix = block.to_numpy(dtype=float)
        matrix = matrix[:, ~np.isnan(matrix).any(axis=0)]
        placed = _placed(sign * matrix)
        for (experiment, method, lr), runs, place in zip(block.index, matrix, placed, strict=True):
            finite = runs[np.isfinite(runs)]
            mean = finite.mean() if len(finite) else np.nan
            low, high = _interval(finite[None], 0).ravel() if len(finite) > 1 else (np.nan, np.nan)
            rows.append((experiment, method, lr, len(finite), len(runs) - len(finite), mean, low, high, *place))
    columns = [*_RATE, "n", "diverged", "mean", "low", "high", "rank_mean", "improves", "improves_low", "improves_high"]
    table = pd.DataFrame(rows, columns=columns)
    return table.sort_values(["experiment", "improves"], ascending=[True, False], kind="stable", ignore_index=True)


def _placed(loss: Floats) -> Floats:
    """For every method, a row of losses, its mean rank and its probability of improvement with the interval."""
    methods, n = loss.shape
    found = np.full((methods, 4), np.nan)
    if not n:
        return found
    found[:, 0] = stats.rankdata(loss, axis=0).mean(axis=1)
    if methods < 2:
        return found
    for method, own in enumerate(loss):
        others = np.delete(loss, method, axis=0)[:, None, :]
        wins = ((own[:, None] < others) + (own[:, None] == others) / 2).mean(axis=0)  # of run i over another's run j
        found[method, 1] = wins.mean()
        if n > 1:
            weights = _weights(n, 0)
            found[method, 2:] = np.quantile(np.vecdot(weights @ wins, weights), _levels(n))
    return found


def time_to_target(
    curves: pd.DataFrame, metric: str, target: float, *, runs: pd.DataFrame | None = None
) -> pd.DataFrame:
    """The first epoch at which each run reaches ``target``: at most so much loss, or at least so much accuracy.

    ``epoch`` is NaN if it never does; a run that diverges later has reached it. With ``runs``, ``step_ms`` is the time
    of a step and ``steps_ms`` is epoch · step_ms, which times the batches of an epoch is the time to the target.

    >>> curves = pd.DataFrame({"experiment": "e", "method": "wada", "lr": 0.1, "seed": 0, "epoch": [1, 2, 3],
    ...                        "test_accuracy": [0.5, 0.8, 0.9]})
    >>> time_to_target(curves, "test_accuracy", 0.8)["epoch"].tolist()
    [2.0]
    """
    lower = better_is_lower(metric)
    target = real("target", target)
    frame = _check(curves, [*_RUN, "epoch", metric])
    reached = frame[metric] <= target if lower else frame[metric] >= target
    first = frame[reached].groupby(_RUN, as_index=False)["epoch"].min()
    table = frame[_RUN].drop_duplicates().merge(first, on=_RUN, how="left").astype({"epoch": float})
    if runs is not None:
        timed = _check(runs, [*_RUN, "step_ms"], "runs")
        table = table.merge(timed[[*_RUN, "step_ms"]], on=_RUN, how="left")
        table["steps_ms"] = table["epoch"] * table["step_ms"]
    return table
