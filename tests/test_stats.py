"""The statistics, held to scipy and statsmodels, and to simulated data of which the truth is known."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.meta_analysis import effectsize_smd
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower

from wagmf.lab import stats as lab
from wagmf.lab.stats import (
    ADJUSTED,
    METRICS,
    Pair,
    at_best,
    best_rates,
    better_is_lower,
    compare_pair,
    detectable_effect,
    finals,
    holm,
    paper_significance,
    ranking,
    significance,
    time_to_target,
)

COLUMNS = ["experiment", "method", "lr", "seed", "epoch"]
TESTS = ["student", "welch", "paired", "permutation"]


def table(values, methods=("wada", "adam"), metric="train_loss", lr=0.1):
    """Curves of one epoch: values[experiment, method, seed]."""
    names = [f"e{number:05}" for number in range(len(values))]
    places = [names, methods, [lr], range(values.shape[2]), [1]]
    frame = pd.MultiIndex.from_product(places, names=COLUMNS).to_frame(index=False)
    return frame.assign(**{metric: values.ravel()})


def curves(runs, metric="train_loss"):
    """Curves from {(experiment, method, lr, seed): the values of the epochs}."""
    rows = [(*run, epoch, value) for run, values in runs.items() for epoch, value in enumerate(values, start=1)]
    return pd.DataFrame(rows, columns=[*COLUMNS, metric])


def near(share, expected, trials, sure=0.999):
    """Whether so many of the trials are what a probability of ``expected`` gives, in all but 0.1 % of cases."""
    low, high = stats.binom.interval(sure, trials, expected)
    return low / trials <= share <= high / trials


# ------------------------------------------------------------------ references


@pytest.mark.parametrize("n", [2, 3, 8, 12, 30])
def test_a_pair_is_what_scipy_says(n):
    rng = np.random.default_rng(n)
    a, b = rng.normal(0.3, 0.1, n), rng.normal(0.35, 0.2, n)
    pair = compare_pair(a, b)
    assert pair.n == n
    np.testing.assert_allclose([pair.mean_a, pair.mean_b], [a.mean(), b.mean()], rtol=1e-14)
    np.testing.assert_allclose(pair.difference, a.mean() - b.mean(), rtol=1e-12)
    np.testing.assert_allclose(pair.student, stats.ttest_ind(a, b).pvalue, rtol=1e-10)
    np.testing.assert_allclose(pair.welch, stats.ttest_ind(a, b, equal_var=False).pvalue, rtol=1e-10)
    np.testing.assert_allclose(pair.paired, stats.ttest_rel(a, b).pvalue, rtol=1e-10)
    np.testing.assert_allclose(
        pair.detectable, TTestPower().solve_power(nobs=n, alpha=0.05, power=0.8) * np.std(a - b, ddof=1), rtol=1e-5
    )


@pytest.mark.parametrize("n", [2, 5, 8, 12])
@pytest.mark.parametrize("ties", [False, True])
def test_the_permutation_test_is_scipys_exact_one(n, ties):
    rng = np.random.default_rng(n)
    a, b = rng.integers(0, 4, (2, n)) / 10 if ties else rng.normal([[0.5], [0.0]], size=(2, n))
    exact = stats.permutation_test(
        (a, b),
        lambda x, y, axis: np.round(np.mean(x - y, axis=axis), 12),
        permutation_type="samples",
        n_resamples=np.inf,
        vectorized=True,
    )
    assert compare_pair(a, b).permutation == pytest.approx(exact.pvalue, rel=1e-12)


def test_more_seeds_are_permuted_at_random_but_repeatably():
    rng = np.random.default_rng(0)
    d = rng.normal(0.5, 1, 13)
    signs = np.array(list(itertools.product([-1, 1], repeat=13)))
    exact = (abs(signs @ d) >= abs(d.sum()) - 1e-12).mean()
    found = compare_pair(d, np.zeros(13))
    assert near(found.permutation, exact, 10_000)
    assert found == compare_pair(d, np.zeros(13))
    other = compare_pair(d, np.zeros(13), seed=1)
    assert other.permutation != found.permutation
    assert other.low != found.low
    assert compare_pair(np.arange(30.0) + 100, np.arange(30.0)).permutation == pytest.approx(1e-4)  # never 0


@pytest.mark.parametrize("n", [2, 3, 8, 20])
def test_hedges_g_has_the_exact_correction(n):
    rng = np.random.default_rng(n)
    a, b = rng.normal(size=(2, n))
    pooled = math.sqrt((a.var(ddof=1) + b.var(ddof=1)) / 2)
    exact = math.gamma(n - 1) / (math.sqrt(n - 1) * math.gamma(n - 1.5))
    found = compare_pair(a, b).hedges_g
    assert found == pytest.approx(exact * (a.mean() - b.mean()) / pooled, rel=1e-12)
    approximate = effectsize_smd(a.mean(), a.std(ddof=1), n, b.mean(), b.std(ddof=1), n)[0]
    assert found == pytest.approx(approximate, rel=0.02)


@pytest.mark.parametrize("n", [5, 8, 20])
def test_the_interval_is_scipys_percentile_bootstrap_at_wider_levels(n):
    d = np.random.default_rng(n).exponential(size=n)
    level = stats.norm.cdf(math.sqrt(n / (n - 1)) * stats.t.ppf(0.025, n - 1))
    reference = stats.bootstrap(
        (d,), np.mean, confidence_level=1 - 2 * level, method="percentile", rng=np.random.default_rng(1)
    )
    pair = compare_pair(d, np.zeros(n))
    np.testing.assert_allclose([pair.low, pair.high], reference.confidence_interval, atol=0.1 * d.std() / math.sqrt(n))


@pytest.mark.parametrize("alpha", [0.05, 0.01])
@pytest.mark.parametrize("n", [2, 3, 8, 30, 200])
def test_the_detectable_effect_has_the_power_it_promises(n, alpha):
    effect = detectable_effect(n, alpha=alpha, power=0.8)
    noncentral = stats.nct(n - 1, effect * math.sqrt(n))
    assert noncentral.sf(stats.t.isf(alpha / 2, n - 1)) == pytest.approx(0.8, abs=1e-5)
    assert detectable_effect(n, alpha=alpha, power=0.9) > effect > detectable_effect(n + 1, alpha=alpha)


def test_holm_is_that_of_statsmodels():
    rng = np.random.default_rng(0)
    for size in (1, 2, 15, 153):
        p = rng.choice(rng.uniform(size=size) ** 3, size)  # with ties
        np.testing.assert_allclose(holm(p), multipletests(p, method="holm")[1], rtol=1e-12)
        holes = np.insert(p, [0, size // 2], math.nan)
        np.testing.assert_array_equal(holm(holes)[~np.isnan(holes)], holm(p))
        assert np.isnan(holm(holes)).sum() == 2
    assert holm([]).shape == (0,)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
@settings(deadline=None, derandomize=True, max_examples=50)
def test_holm_keeps_the_order_and_never_lowers(p):
    p = np.array(p)
    adjusted = holm(p)
    assert (adjusted >= p).all()
    assert (adjusted <= 1).all()
    assert (np.diff(adjusted[np.argsort(p, kind="stable")]) >= 0).all()


def naive_joint(d):
    """Westfall and Young's step-down procedure, as in their book: loops over signs, and over rows."""
    signs = np.array(list(itertools.product([1, -1], repeat=d.shape[1])))
    p = np.array([stats.ttest_1samp(d * row, 0, axis=1).pvalue for row in signs])
    order = np.argsort(p[0])
    adjusted, so_far = np.empty(len(d)), 0.0
    for place, row in enumerate(order):
        so_far = max(so_far, (p[:, order[place:]].min(axis=1) <= p[0, row] * (1 + 1e-6)).mean())
        adjusted[row] = so_far
    return adjusted


def test_joint_p_values_are_westfall_and_youngs():
    values = np.random.default_rng(5).normal(size=(2, 3, 7)) + np.array([0, 0.4, 2.0])[:, None]
    found = significance(table(values, ("wada", "adam", "ogd")))
    d = np.array([block[i] - block[j] for block in values for i, j in ((0, 1), (0, 2), (1, 2))])
    np.testing.assert_allclose(found["permutation_joint"], naive_joint(d), rtol=1e-12)
    assert 2 / 128 <= found["permutation_joint"].min() < 0.05  # where Holm cannot
    assert found["permutation_holm"].min() > 0.05


# ------------------------------------------------------------------ properties


VALUES = st.integers(2, 9).flatmap(
    lambda n: st.tuples(*[st.lists(st.integers(-1000, 1000), min_size=n, max_size=n) for _ in "ab"])
)
SAME = ["n", *TESTS, "detectable"]


@given(VALUES)
@settings(deadline=None, derandomize=True, max_examples=40)
def test_a_and_b_swap(values):
    a, b = np.array(values) / 128
    one, two = compare_pair(a, b), compare_pair(b, a)
    np.testing.assert_allclose([getattr(one, name) for name in SAME], [getattr(two, name) for name in SAME], rtol=1e-9)
    np.testing.assert_allclose(
        [one.mean_a, one.difference, one.low, one.high, one.hedges_g],
        [two.mean_b, -two.difference, -two.high, -two.low, -two.hedges_g],
        rtol=1e-9,
        atol=1e-12,
    )
    assert one.low - 1e-12 <= one.difference <= one.high + 1e-12


@given(VALUES, st.integers(-50, 50), st.sampled_from([1e-6, 0.5, 3.0, 1e200]))
@settings(deadline=None, derandomize=True, max_examples=40)
def test_p_values_know_neither_origin_nor_unit(values, shift, unit):
    a, b = np.array(values) / 128
    assume(np.ptp(a - b) > 0)
    one, two = compare_pair(a, b), compare_pair((a + shift) * unit, (b + shift) * unit)
    invariant = [*TESTS, "hedges_g"]
    np.testing.assert_allclose(
        [getattr(one, name) for name in invariant], [getattr(two, name) for name in invariant], rtol=1e-6, atol=1e-9
    )
    for name in ("difference", "low", "high", "detectable"):
        assert getattr(two, name) / unit == pytest.approx(getattr(one, name), rel=1e-6, abs=1e-9)


# ------------------------------------------------------------------ nothing to say


def test_one_seed_says_only_the_difference():
    pair = compare_pair([0.5], [0.25])
    assert (pair.n, pair.mean_a, pair.mean_b, pair.difference, pair.permutation) == (1, 0.5, 0.25, 0.25, 1.0)
    rest = ["low", "high", "student", "welch", "paired", "hedges_g", "detectable"]
    assert all(math.isnan(getattr(pair, name)) for name in rest)


@pytest.mark.parametrize("n", [2, 8, 13])
@pytest.mark.parametrize("value", [0.0, 0.1, -3e-9, 1e300])
def test_equal_values_do_not_differ(n, value):
    pair = compare_pair([value] * n, [value] * n)
    assert [getattr(pair, name) for name in TESTS] == [1.0] * 4
    assert (pair.difference, pair.hedges_g, pair.detectable) == (0, 0, 0)
    assert pair.low == pytest.approx(0, abs=1e-15 * abs(value))


def test_equal_runs_that_vary_do_not_differ():
    a = np.random.default_rng(0).normal(size=8)
    pair = compare_pair(a, a)
    assert [getattr(pair, name) for name in TESTS] == [1.0] * 4
    assert (pair.low, pair.high, pair.hedges_g) == (0, 0, 0)


def test_without_variation_only_the_permutation_test_can_tell():
    pair = compare_pair([0.1] * 8, [0.3] * 8)
    assert all(math.isnan(getattr(pair, name)) for name in ("student", "welch", "paired", "hedges_g"))
    assert pair.permutation == 2 / 256
    assert pair.low == pytest.approx(-0.2) == pair.high
    shifted = np.random.default_rng(0).normal(size=8)
    pair = compare_pair(shifted, shifted + 0.1)  # differences are equal but for rounding
    assert math.isnan(pair.paired)
    assert pair.detectable == 0
    assert pair.student == pytest.approx(stats.ttest_ind(shifted, shifted + 0.1).pvalue)


def test_no_seed_in_common_is_all_nan():
    pair = compare_pair([math.nan, 1.0], [1.0, math.inf])
    assert pair.n == 0
    assert all(math.isnan(value) for name, value in vars(pair).items() if name != "n")
    assert compare_pair([], []).n == 0


def test_seeds_that_diverged_are_left_out_in_pairs():
    whole = compare_pair([1.0, 2.0, 4.0], [1.5, 2.0, 3.0])
    assert compare_pair([1.0, math.nan, 2.0, 4.0, 9.0], [1.5, 7.0, 2.0, 3.0, math.inf]) == whole


# ------------------------------------------------------------------ simulated data, of which the truth is known

NULL = 2000


@pytest.fixture(scope="module")
def under_the_null():
    """8 seeds of two methods that are equally good, 2,000 times; no pair shares anything."""
    return significance(table(np.random.default_rng(11).normal(size=(NULL, 2, 8))))


@pytest.mark.parametrize("test", TESTS)
def test_false_positives_are_as_many_as_promised(under_the_null, test):
    # The permutation test has p-values of k/128 only: at most 6/128 = 4.7 % are below 0.05.
    promised = {"permutation": 6 / 128, "welch": 0.048}.get(test, 0.05)
    assert near((under_the_null[test] < 0.05).mean(), promised, NULL)


@pytest.mark.parametrize("test", TESTS)
def test_p_values_are_uniform_under_the_null(under_the_null, test):
    for level in (0.25, 0.5, 0.75):
        assert near((under_the_null[test] <= level).mean(), level, NULL)


def test_intervals_cover_the_truth(under_the_null):
    covered = (under_the_null["low"] <= 0) & (under_the_null["high"] >= 0)
    assert 0.93 <= covered.mean() <= 0.96  # plain percentiles: 0.89


def test_skewed_differences_are_covered_less_but_not_much():
    values = np.random.default_rng(12).exponential(size=(600, 2, 8)) * [[[1.0], [0.1]]]
    found = significance(table(values))
    assert 0.87 <= ((found["low"] <= 0.9) & (found["high"] >= 0.9)).mean() <= 0.95


def test_power_is_that_of_the_noncentral_t():
    rng, n, trials = np.random.default_rng(13), 8, 2000
    effect = detectable_effect(n)  # of a difference's deviation; of a run's, √2 as much
    values = rng.normal(size=(trials, 2, n)) + np.array([0, effect * math.sqrt(2)])[:, None]
    found = significance(table(values))
    assert near((found["paired"] < 0.05).mean(), 0.8, trials)
    away = effect * math.sqrt(2) * math.sqrt(n / 2)
    student = stats.nct.sf(stats.t.isf(0.025, 2 * n - 2), 2 * n - 2, away)
    assert near((found["student"] < 0.05).mean(), student, trials)
    assert (found["detectable"].mean() / math.sqrt(2)) == pytest.approx(effect, rel=0.05)
    assert found["hedges_g"].mean() == pytest.approx(-effect * math.sqrt(2), abs=0.05)  # without correction 5 % more


def test_shared_seeds_make_pairs_powerful_and_unpaired_tests_timid():
    rng = np.random.default_rng(14)
    values = rng.normal(size=(500, 1, 8)) + 0.3 * rng.normal(size=(500, 2, 8))
    null, real = significance(table(values)), significance(table(values + np.array([0.0, 0.6])[:, None]))
    assert (null["student"] < 0.05).mean() < 0.01
    assert near((null["paired"] < 0.05).mean(), 0.05, 500)
    assert (real["paired"] < 0.05).mean() > 0.8 > 0.2 > (real["student"] < 0.05).mean()


def test_a_table_of_15_pairs_under_the_null_is_seldom_wrong_at_all():
    rng, tables = np.random.default_rng(15), 250
    values = rng.normal(size=(tables, 6, 8))
    found = significance(table(values, ["wada", "wada_v3", "wada_v4", "adam", "amsgrad", "adamnc"]))
    highest = stats.binom.isf(0.001, tables, 0.05) / tables
    for test in ("student", "welch", "paired"):
        groups = found.groupby("experiment")[test]
        wrong = groups.apply(lambda p: holm(p).min() < 0.05).mean()
        assert 0.005 <= wrong <= highest, test
        assert (groups.min() < 0.05).mean() > 0.3, test  # what Holm is for


def test_joint_p_values_under_the_null_are_seldom_wrong_at_all():
    rng, tables = np.random.default_rng(16), 400
    pairs = np.array(list(itertools.combinations(range(6), 2)))
    wrong = 0
    for values in rng.normal(size=(tables, 6, 8)):
        wrong += lab._joint(values[pairs[:, 0]] - values[pairs[:, 1]], 0).min() < 0.05
    assert near(wrong / tables, 0.05, tables)  # not less either: it is no more timid than it must be


def walks(rng, experiments, epochs, memory):
    """Loss curves of two equally good methods: the same decay, and noise of which a share ``memory`` stays an epoch."""
    noise = rng.normal(size=(experiments, 2, epochs))
    for epoch in range(1, epochs):
        noise[..., epoch] = memory * noise[..., epoch - 1] + math.sqrt(1 - memory**2) * noise[..., epoch]
    loss = 0.5 + 0.01 * noise + np.exp(-np.arange(epochs))
    return curves(
        {
            (f"e{experiment:04}", method, 0.1, 0): loss[experiment, place]
            for experiment in range(experiments)
            for place, method in enumerate(("wada", "adam"))
        }
    )


def test_the_papers_test_finds_differences_where_there_are_none():
    rng = np.random.default_rng(17)
    found = paper_significance(walks(rng, 300, 40, memory=0.9))
    assert (found["n"] == 8).all()
    assert (found["p"] < 0.05).mean() > 0.2  # promised: 0.05
    assert (found["p"] < 0.05).mean() > 0.5  # seen: two of three
    forgetful = paper_significance(walks(rng, 300, 40, memory=0.0))
    assert near((forgetful["p"] < 0.05).mean(), 0.05, 300)  # it is the memory


# ------------------------------------------------------------------ step sizes


def test_the_best_rate_is_that_of_the_least_final_loss():
    frame = curves(
        {
            ("e", "wada", 0.1, 0): [0.1, 0.5],
            ("e", "wada", 0.1, 1): [0.1, 0.7],
            ("e", "wada", 0.3, 0): [9.0, 0.3],
            ("e", "wada", 0.3, 1): [9.0, 0.7],
            ("e", "wada", 1.0, 0): [0.2, 0.9],
            ("e", "wada", 1.0, 1): [0.2, 0.2],
        }
    )
    best = best_rates(frame)
    assert best.values.tolist() == [["e", "wada", 0.3, 0.5, 2, 0, ""]]
    assert list(best.columns) == ["experiment", "method", "lr", "value", "n", "diverged", "edge"]
    assert at_best(frame, best)["train_loss"].tolist() == [9.0, 0.3, 9.0, 0.7]


def test_the_best_accuracy_is_that_of_the_mean_at_any_epoch():
    frame = curves(
        {
            ("e", "wada", 0.1, 0): [0.9, 0.1, 0.6],
            ("e", "wada", 0.1, 1): [0.1, 0.9, 0.6],  # 0.6 in the mean; each has 0.9 once
            ("e", "wada", 0.3, 0): [0.5, 0.7, 0.1],
            ("e", "wada", 0.3, 1): [0.5, 0.7, 0.1],
        },
        "test_accuracy",
    )
    best = best_rates(frame, "test_accuracy").iloc[0]
    assert (best["lr"], best["value"], best["edge"]) == (0.3, 0.7, "high")


@pytest.mark.parametrize(
    ("losses", "lr", "edge"),
    [
        ({0.1: 1.0, 0.2: 2.0, 0.4: 3.0}, 0.1, "low"),
        ({0.1: 3.0, 0.2: 2.0, 0.4: 1.0}, 0.4, "high"),
        ({0.1: 3.0, 0.2: 1.0, 0.4: 2.0}, 0.2, ""),
        ({0.1: 3.0, 0.2: 1.0, 0.4: math.nan}, 0.2, ""),
        ({0.1: 3.0, 0.2: math.inf, 0.4: 4.0}, 0.1, "low"),
        ({0.1: 1.0}, 0.1, "only"),
        ({0.1: 1.0, 0.2: 1.0}, 0.1, "low"),
    ],
)
def test_the_edge_of_the_grid_raises_an_alarm(losses, lr, edge):
    best = best_rates(curves({("e", "wada", rate, 0): [5.0, loss] for rate, loss in losses.items()}))
    assert best[["lr", "edge"]].values.tolist() == [[lr, edge]]


def test_a_diverged_seed_outweighs_any_loss_and_is_counted():
    nan = math.nan
    runs = {("e", "wada", 0.1, seed): [2.0, 2.0] for seed in range(3)}
    runs |= {("e", "wada", 0.2, seed): [1.0, nan if seed == 0 else 0.1] for seed in range(3)}
    runs |= {("e", "wada", 0.4, seed): [1.0, nan if seed < 2 else 0.0] for seed in range(3)}
    assert best_rates(curves(runs))[["lr", "value", "diverged"]].values.tolist() == [[0.1, 2.0, 0]]
    rest = {run: values for run, values in runs.items() if run[2] > 0.1}
    best = best_rates(curves(rest))
    assert best[["lr", "value", "n", "diverged", "edge"]].values.tolist() == [[0.2, math.inf, 3, 1, "low"]]
    accuracy = best_rates(curves(rest, "test_accuracy"), "test_accuracy")
    assert accuracy[["lr", "value", "diverged"]].values.tolist() == [[0.2, -math.inf, 1]]
    lost = best_rates(curves({("e", "wada", lr, 0): [1.0, nan] for lr in (0.1, 0.2)}))
    assert lost[["lr", "value", "n", "diverged", "edge"]].values.tolist() == [[0.1, math.inf, 1, 1, "low"]]


def test_methods_come_in_the_order_of_their_table_and_others_last():
    names = ["torch.optim.AdamW", "adam", "<b>odd</b>", "wada"]
    frame = curves({("e", name, 0.1, seed): [float(seed)] for name in names for seed in range(2)})
    assert best_rates(frame)["method"].tolist() == ["wada", "adam", "<b>odd</b>", "torch.optim.AdamW"]
    found = significance(frame)[["a", "b"]].values.tolist()
    assert found == [list(pair) for pair in itertools.combinations(best_rates(frame)["method"], 2)]


# ------------------------------------------------------------------ tables


def test_the_last_epoch_counts_which_may_differ_between_experiments():
    runs = {("long", name, 0.1, seed): [9.0, 9.0, seed + shift] for name, shift in TWO for seed in range(3)}
    runs |= {("short", name, 0.1, seed): [seed - shift, seed + shift] for name, shift in TWO for seed in range(3)}
    values = finals(curves(runs), "train_loss")
    assert list(values.columns) == ["experiment", "method", "lr", "seed", "value"]
    assert values["value"].tolist() == [0.0, 1.0, 2.0, 0.5, 1.5, 2.5] * 2
    assert significance(curves(runs))["difference"].tolist() == [-0.5, -0.5]
    assert ranking(curves(runs))["mean"].tolist() == [1.0, 1.5] * 2


TWO = [("wada", 0.0), ("adam", 0.5)]


def test_the_table_pairs_seeds_and_holm_covers_all_of_it():
    rng = np.random.default_rng(3)
    values = rng.normal(size=(2, 3, 8)) + np.array([0.0, 1.0, 3.0])[:, None]
    found = significance(table(values, ("wada", "adam", "ogd")).sample(frac=1, random_state=0))
    assert list(found["experiment"]) == ["e00000"] * 3 + ["e00001"] * 3
    for row, (experiment, (i, j)) in zip(
        found.to_dict("records"), itertools.product(range(2), [(0, 1), (0, 2), (1, 2)]), strict=True
    ):
        pair = compare_pair(values[experiment, i], values[experiment, j])
        assert Pair(**{name: row[name] for name in vars(pair)}) == pair
        assert (row["lr_a"], row["lr_b"], row["metric"]) == (0.1, 0.1, "train_loss")
    for test in TESTS:
        expected = multipletests(found[test], method="holm")[1]
        np.testing.assert_allclose(found[f"{test}_holm"], expected, rtol=1e-12)


@pytest.mark.parametrize(("metric", "better"), [("train_loss", "a"), ("test_accuracy", "b")])
def test_better_is_less_loss_and_more_accuracy(metric, better):
    values = np.arange(8.0) % 3 / 100 + np.array([[[0.2], [0.5]]])
    values[0, 0] += np.arange(8.0) ** 2 / 300  # differences that vary: their p is neither 0 nor unknown
    frame = table(values, metric=metric)
    rates = pd.DataFrame({"experiment": "e00000", "method": ["wada", "adam"], "lr": 0.1})
    assert significance(frame, metric, rates=rates)["better"].tolist() == [better]
    swapped = significance(frame, metric, rates=rates, pairs=[("adam", "wada")])
    assert swapped["better"].tolist() == [{"a": "b", "b": "a"}[better]]
    assert significance(frame, metric, rates=rates, alpha=1e-9)["better"].tolist() == [""]


def test_a_table_too_large_for_the_permutation_test_says_so_and_can_be_decided_otherwise():
    values = np.random.default_rng(0).normal(size=(1, 6, 8)) / 100 + np.arange(6.0)[:, None]
    frame = table(values, ["wada", "wada_v3", "wada_v4", "adam", "amsgrad", "adamnc"])
    found = significance(frame)
    assert (found["permutation"] == 2 / 256).all()
    np.testing.assert_allclose(found["permutation_least"], 15 * 2 / 256)
    assert (found["permutation_holm"] >= found["permutation_least"]).all()
    assert (significance(frame, by="permutation_holm")["better"] == "").all()
    for by in set(ADJUSTED) - {"permutation_holm"}:
        assert (significance(frame, by=by)["better"] == "a").all()
    fewer = significance(frame, pairs=[("wada", "adam"), ("adamnc", "wada")], by="permutation_holm")
    np.testing.assert_allclose(fewer["permutation_least"], 2 * 2 / 256)
    assert fewer["better"].tolist() == ["a", "b"]


def test_diverged_seeds_are_left_out_and_counted_and_never_make_a_method_better():
    values = np.random.default_rng(0).normal(size=(1, 2, 9)) / 100 + np.array([0.0, 1.0])[:, None]
    values[0, 0, 3] = math.nan
    frame = table(values)
    found = significance(frame).iloc[0]
    assert (found["n"], found["diverged_a"], found["diverged_b"]) == (8, 1, 0)
    assert found["permutation_holm"] < 0.05
    assert found["better"] == ""
    swapped = significance(frame, pairs=[("adam", "wada")]).iloc[0]
    assert (swapped["diverged_b"], swapped["better"]) == (1, "")
    values[0, 1, :4] = math.nan
    found = significance(table(values)).iloc[0]
    assert (found["n"], found["diverged_a"], found["diverged_b"]) == (5, 1, 4)
    assert significance(table(values), by="paired_holm").iloc[0]["better"] == "a"
    values[:] = math.nan
    found = significance(table(values)).iloc[0]
    assert (found["n"], found["diverged_a"], found["better"]) == (0, 9, "")
    assert np.isnan(found[["difference", *TESTS, *ADJUSTED, "permutation_least"]].astype(float)).all()


def test_only_seeds_that_both_ran_are_compared():
    runs = {("e", "wada", 0.1, seed): [seed / 4] for seed in range(5)}
    runs |= {("e", "adam", 0.1, seed): [seed / 4 + 1.0 + seed % 2] for seed in range(2, 9)}
    found = significance(curves(runs)).iloc[0]
    assert (found["n"], found["diverged_a"], found["diverged_b"]) == (3, 0, 0)
    assert found["difference"] == pytest.approx(-4 / 3)


@pytest.mark.parametrize("seeds", [1, 2, 14])
def test_tables_of_any_number_of_seeds(seeds):
    values = np.random.default_rng(0).normal(size=(2, 3, seeds))
    values[1] = 0.25  # nothing varies, nothing differs
    frame = table(values, ("wada", "adam", "ogd"))
    found = significance(frame)
    assert (found["n"] == seeds).all()
    assert (found.loc[3:, [*TESTS, *ADJUSTED][3:]].fillna(1) == 1).all(axis=None)
    assert found["permutation_joint"].between(0, 1).all()
    assert (ranking(frame)["n"] == seeds).all()


def test_no_curves_give_empty_tables():
    none = curves({("e", "wada", 0.1, 0): [1.0]}).iloc[:0]
    for make in (best_rates, significance, paper_significance, ranking):
        full = make(curves({("e", name, 0.1, seed): [1.0, 2.0] for name in ("wada", "adam") for seed in range(2)}))
        assert len(make(none)) == 0
        assert list(make(none).columns) == list(full.columns)
    assert len(time_to_target(none, "train_loss", 0.1)) == 0


def test_the_papers_test_takes_the_last_epochs_of_one_run():
    rng = np.random.default_rng(0)
    loss = {(name, seed): rng.normal(size=12) for name in ("wada", "adam") for seed in (3, 5)}
    frame = curves({("e", name, 0.1, seed): values for (name, seed), values in loss.items()})
    for seed, run in ((None, 3), (5, 5)):
        for last in (2, 8, 20):
            found = paper_significance(frame, last=last, seed=seed)
            expected = stats.ttest_ind(loss["wada", run][-last:], loss["adam", run][-last:]).pvalue
            assert found.values.tolist() == [
                ["e", "train_loss", "wada", "adam", min(last, 12), pytest.approx(expected, rel=1e-9)]
            ]
    assert paper_significance(frame, seed=7)["p"].isna().all()
    frame.loc[(frame["method"] == "wada") & (frame["epoch"] == 12), "train_loss"] = math.nan
    assert paper_significance(frame)["p"].isna().all()


# ------------------------------------------------------------------ ranks and targets


@pytest.mark.parametrize("metric", METRICS)
def test_the_ranking_counts_wins(metric):
    rng = np.random.default_rng(1)
    names = ["wada", "adam", "ogd"]
    values = rng.integers(0, 5, (1, 3, 6)) / 8
    rates = pd.DataFrame({"experiment": "e00000", "method": names, "lr": 0.1})
    found = ranking(table(values, names, metric), metric, rates=rates)
    loss = values[0] if better_is_lower(metric) else -values[0]
    ranks = dict(zip(names, stats.rankdata(loss, axis=0).mean(axis=1), strict=True))
    for row in found.to_dict("records"):
        own = names.index(row["method"])
        wins = [
            1.0 if x < y else 0.5 if x == y else 0.0
            for other in range(3)
            if other != own
            for x, y in itertools.product(loss[own], loss[other])
        ]
        assert row["improves"] == pytest.approx(np.mean(wins))
        assert 0 <= row["improves_low"] <= row["improves"] <= row["improves_high"] <= 1
        assert row["mean"] == pytest.approx(values[0, own].mean())
        assert row["low"] <= row["mean"] <= row["high"]
        assert row["rank_mean"] == pytest.approx(ranks[row["method"]])
    assert found["improves"].is_monotonic_decreasing
    assert found["improves"].mean() == pytest.approx(0.5)


def test_the_ranking_puts_diverged_runs_last():
    values = np.array([[[0.1, math.nan, math.nan, 0.1], [0.5, 0.6, math.nan, 0.7]]])
    found = ranking(table(values)).set_index("method")
    assert found.loc["wada", ["n", "diverged", "mean"]].tolist() == [2, 2, pytest.approx(0.1)]
    assert found.loc["adam", ["n", "diverged"]].tolist() == [3, 1]
    # wada's two runs beat all four of adam's; its diverged ones tie with adam's.
    assert found.loc["wada", "improves"] == pytest.approx((4 + 0.5 + 0.5 + 4) / 16)
    assert found.loc["wada", "rank_mean"] == pytest.approx((1 + 2 + 1.5 + 1) / 4)
    assert math.isnan(ranking(table(values[:, :1], ["wada"]))["improves"].item())


def test_the_interval_of_improvement_covers_the_truth():
    values = np.random.default_rng(2).normal(size=(60, 2, 10)) + np.array([0.0, 1.0])[:, None]
    found = ranking(table(values)).query("method == 'wada'")
    truth = stats.norm.cdf(1 / math.sqrt(2))
    assert ((found["improves_low"] <= truth) & (truth <= found["improves_high"])).mean() > 0.88


def test_time_to_target():
    frame = curves(
        {
            ("e", "wada", 0.1, 0): [0.9, 0.5, 0.7, 0.1],
            ("e", "wada", 0.1, 1): [0.9, 0.8, 0.7, 0.6],
            ("e", "adam", 0.1, 0): [0.2, math.nan, math.nan, math.nan],
        }
    )
    found = time_to_target(frame, "train_loss", 0.5)
    assert found["epoch"].tolist() == [2.0, pytest.approx(math.nan, nan_ok=True), 1.0]
    upward = time_to_target(frame.rename(columns={"train_loss": "test_accuracy"}), "test_accuracy", 0.9)
    assert upward["epoch"].fillna(-1).tolist() == [1.0, 1.0, -1.0]
    runs = frame[COLUMNS[:4]].drop_duplicates().assign(step_ms=[2.0, 3.0, 5.0])
    timed = time_to_target(frame, "train_loss", 0.5, runs=runs)
    assert timed["step_ms"].tolist() == [2.0, 3.0, 5.0]
    assert timed["steps_ms"].fillna(-1).tolist() == [4.0, -1.0, 5.0]


# ------------------------------------------------------------------ refusals

ONE = curves({("e", "wada", 0.1, 0): [1.0, 2.0], ("e", "adam", 0.1, 0): [1.0, 2.0]})


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: better_is_lower("loss"), ["metric", "'loss'"]),
        (lambda: finals(ONE, "accuracy"), ["metric", "'accuracy'"]),
        (lambda: finals(ONE, "test_loss"), ["curves", "test_loss"]),
        (lambda: finals(ONE.drop(columns="seed"), "train_loss"), ["curves", "seed"]),
        (lambda: finals(pd.concat([ONE, ONE]), "train_loss"), ["curves", "['e', 'wada', 0.1, 0, 1]", "one row"]),
        (lambda: finals(ONE.iloc[:-1], "train_loss"), ["curves", "['e', 'adam', 0.1, 0]", "last epoch"]),
        (lambda: best_rates(ONE, "test_loss"), ["criterion", "'test_loss'"]),
        (lambda: at_best(ONE, best_rates(ONE).assign(lr=0.3)), ["rates", "['e', 'wada', 0.3]", "run"]),
        (
            lambda: at_best(ONE, pd.concat([best_rates(ONE), best_rates(ONE).assign(lr=1.0)])),
            ["rates", "one step size"],
        ),
        (lambda: compare_pair([1.0], [1.0, 2.0]), ["a and b", "((1,), (2,))"]),
        (lambda: compare_pair(["x"], [1.0]), ["a", "'x'"]),
        (lambda: compare_pair([1.0], [1.0], seed=-1), ["seed", "-1"]),
        (lambda: holm([0.5, 1.5]), ["p", "1.5"]),
        (lambda: holm([-0.1]), ["p", "-0.1"]),
        (lambda: detectable_effect(1), ["n", "1"]),
        (lambda: detectable_effect(8, power=1.0), ["power", "1.0"]),
        (lambda: detectable_effect(8, power=0.02), ["power", "0.02", "alpha / 2"]),
        (lambda: detectable_effect(8, alpha=0), ["alpha", "0"]),
        (lambda: significance(ONE, alpha=1.5), ["alpha", "1.5"]),
        (lambda: significance(ONE, by="student"), ["by", "'student'"]),
        (lambda: significance(ONE, criterion="loss", rates=best_rates(ONE)), ["criterion", "'loss'"]),
        (lambda: significance(ONE, pairs=[("wada", "wadda")]), ["method", "'wadda'", "'wada'"]),
        (lambda: significance(ONE, pairs=[("wada", "wada")]), ["pair", "('wada', 'wada')"]),
        (lambda: significance(ONE, pairs=["ab"]), ["pair", "'ab'"]),
        (lambda: paper_significance(ONE, last=1), ["last", "1"]),
        (lambda: time_to_target(ONE, "train_loss", math.nan), ["target", "nan"]),
        (lambda: time_to_target(ONE, "train_loss", 1.0, runs=ONE), ["runs", "step_ms"]),
    ],
)
def test_bad_values_are_refused_by_name(make, named):
    with pytest.raises(ValueError, match=r"^Invalid ") as refused:
        make()
    for word in named:
        assert word in str(refused.value)
