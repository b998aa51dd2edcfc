"""The oracle, and the compiled simulator held to it."""

import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import PROBLEMS, RULES, gradients

from wagmf import online
from wagmf.feasible import Ball, Box, Everything, L1Ball, NonNegative, Simplex
from wagmf.methods import METHODS, PAPER_METHODS, method
from wagmf.online import OnlineLearner, Task, log_spaced, simulate, simulate_all
from wagmf.rule import Rule, update
from wagmf.weights import Custom, Equal


def play(learner, g):
    xs = []
    for g_t in g:
        xs.append(learner.predict())
        learner.update(g_t)
    return np.array([*xs, learner.predict()])


# ------------------------------------------------------------------ the learner


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("name", RULES)
def test_the_learner_takes_the_rules_steps(name, problem):
    rule, g = RULES[name], gradients(problem)
    x, u, m, v, peak = np.zeros(5), rule.start, *np.zeros((3, 5))
    learner = OnlineLearner(rule, np.zeros(5), lr=0.1)
    for t, g_t in enumerate(g, start=1):
        step, _, u, m, v, peak = update(rule, t, u, g_t, m, v, peak, lr=0.1)
        x = x - step
        learner.update(g_t)
        np.testing.assert_array_equal(learner.predict(), x)
    assert learner.t == len(g)
    assert np.all(np.isfinite(x))


@pytest.mark.parametrize("feasible", [Box(-0.5, 0.5), NonNegative(), Ball(0.7), L1Ball(1.0), Simplex(1.0)], ids=str)
def test_the_learner_stays_feasible_and_projects_in_the_norm_of_v(feasible):
    g = gradients("noise", T=40, d=4, seed=3) * np.array([1.0, 10.0, 0.1, 3.0])
    learner = OnlineLearner(Rule(), feasible.project(np.full(4, 0.1)), lr=0.5, feasible=feasible)
    for g_t in g:
        x, before = learner.predict(), (learner.u, learner.m, learner.v)
        step, V, *_ = update(learner.rule, learner.t + 1, *before[:1], g_t, *before[1:], lr=0.5)
        learner.update(g_t)
        assert feasible.contains(learner.predict())
        np.testing.assert_array_equal(learner.predict(), feasible.project(x - step, V))


def test_the_norm_of_the_projection_matters():
    """V = (1, 10): the missing 0.011 goes to the coordinates as 10 to 1."""
    learner = OnlineLearner(Rule(beta1=0.0), [0.5, 0.5], lr=0.001, feasible=Simplex(), eps=0.0)
    learner.update([1.0, 100.0])
    np.testing.assert_allclose(learner.predict(), [0.499 + 0.010, 0.490 + 0.001], rtol=1e-14)


@given(st.integers(0, 2**32 - 1), st.sampled_from(sorted(RULES)))
@settings(deadline=None, derandomize=True, max_examples=50)
def test_maximising_is_minimising_the_negated_gradient(seed, name):
    g = gradients("noise", T=20, d=3, seed=seed)
    up = OnlineLearner(RULES[name], np.zeros(3), lr=0.3, feasible=Box(-1, 1), maximize=True)
    down = OnlineLearner(RULES[name], np.zeros(3), lr=0.3, feasible=Box(-1, 1))
    np.testing.assert_array_equal(play(up, g), play(down, -g))


def test_a_learner_resumes_bit_for_bit():
    g = gradients("noise", T=100, d=3)
    for name in METHODS:
        whole = OnlineLearner(RULES[name], np.zeros(3), lr=0.1)
        half = OnlineLearner(RULES[name], np.zeros(3), lr=0.1)
        play(half, g[:50])
        resumed = pickle.loads(pickle.dumps(half))
        play(resumed, g[50:])
        play(whole, g)
        np.testing.assert_array_equal(resumed.predict(), whole.predict())


def test_any_shape_and_a_step_size_each():
    learner = OnlineLearner(method("ogd").rule, np.zeros((2, 3)), lr=np.array([[1.0], [2.0]]))
    learner.update(np.ones((2, 3)))
    np.testing.assert_array_equal(learner.predict(), [[-1.0] * 3, [-2.0] * 3])
    scalar = OnlineLearner(method("ogd").rule, 1.0, lr=0.5)
    scalar.update(1.0)
    assert scalar.predict() == 0.5


def test_predict_gives_a_copy_and_x0_is_copied():
    x0 = np.zeros(2)
    learner = OnlineLearner(Rule(), x0, lr=0.1)
    learner.predict()[:] = 7
    x0[:] = 7
    np.testing.assert_array_equal(learner.predict(), [0, 0])


def test_a_refused_gradient_leaves_the_learner_as_it_was():
    learner = OnlineLearner(Rule(), np.zeros(2), lr=0.1)
    learner.update([1.0, 2.0])
    before = pickle.dumps(vars(learner))
    for bad in ([math.nan, 1.0], [math.inf, 1.0], [1.0], [[1.0, 2.0]], [1e200, 1.0]):
        with pytest.raises(ValueError, match="Invalid gradient"):
            learner.update(bad)
    assert pickle.dumps(vars(learner)) == before


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: OnlineLearner("wada", [0.0], lr=0.1), ["rule", "'wada'"]),
        (lambda: OnlineLearner(Rule(), [0.0], lr=-1.0), ["learning rate", "-1.0", "lr"]),
        (lambda: OnlineLearner(Rule(), [0.0], lr=math.nan), ["learning rate", "nan"]),
        (lambda: OnlineLearner(Rule(), [0.0], lr=math.inf), ["learning rate", "inf"]),
        (lambda: OnlineLearner(Rule(), [0.0], lr=[0.1, -2.0]), ["learning rate", "-2.0"]),
        (lambda: OnlineLearner(Rule(), [math.nan], lr=0.1), ["x0", "nan"]),
        (lambda: OnlineLearner(Rule(), [2.0], lr=0.1, feasible=Box(-1, 1)), ["x0", "2.0", "Box", "[1.]"]),
        (lambda: OnlineLearner(Rule(), [0.0], lr=0.1, eps=-1), ["eps", "-1"]),
        (lambda: OnlineLearner(Rule(), [0.0], lr=0.1, eps=math.nan), ["eps", "nan"]),
        (lambda: OnlineLearner(Rule(), [0.0], lr=0.1, feasible=(-1, 1)), ["feasible", "(-1, 1)"]),
        (lambda: simulate(Rule(), T=0, lrs=[1]), ["T", "0"]),
        (lambda: simulate(Rule(), T=1.5, lrs=[1]), ["T", "1.5"]),
        (lambda: simulate(Rule(), T=10, lrs=[]), ["learning rate", "[]"]),
        (lambda: simulate(Rule(), T=10, lrs=0.1), ["lrs", "0.1"]),
        (lambda: simulate("wada", T=10, lrs=[1]), ["rule", "'wada'"]),
        (lambda: simulate(Rule(), T=1e30, lrs=[1]), ["T", "1e+30"]),
        (lambda: log_spaced(0), ["T", "0"]),
        (lambda: log_spaced(10, 10**9), ["points", "1000000000"]),
        (lambda: OnlineLearner(Rule(), [0.0], lr="0.1"), ["learning rate", "'0.1'"]),
        (lambda: OnlineLearner(Rule(), [0.0], lr=True), ["learning rate", "True"]),
        (lambda: OnlineLearner(Rule(), [0.0], lr=[]), ["learning rate", "[]"]),
        (lambda: OnlineLearner(Rule(), [0.0, 0.0], lr=np.ones((3, 2))), ["learning rate", "(3, 2)", "(2,)"]),
        (lambda: OnlineLearner(Rule(), ["1"], lr=0.1), ["x0", "'1'"]),
        (lambda: OnlineLearner(Rule(), [1j], lr=0.1), ["x0", "1j"]),
        (lambda: OnlineLearner(Rule(), [0.0], lr=0.1, maximize="no"), ["maximize", "'no'"]),
        (lambda: OnlineLearner(Rule(), [], lr=0.1, feasible=Simplex()), ["shape of x", "(0,)"]),
        (lambda: OnlineLearner(Rule(), [0.0], lr=0.1).update(["1"]), ["gradient", "'1'"]),
        (lambda: simulate(Rule(), T=10, lrs=[-1]), ["learning rate", "-1"]),
        (lambda: simulate(Rule(), T=10, lrs=[1], seed=-1), ["seed", "-1"]),
        (lambda: simulate(Rule(), T=10, lrs=[1], setting="offline"), ["setting", "offline", "did you mean 'online'"]),
        (lambda: simulate(Rule(), T=10, lrs=[1], points=1), ["points", "1"]),
        (lambda: simulate(Rule(), T=10, lrs=[1], x0=2), ["x0", "2"]),
        (lambda: simulate(Rule(), T=10, lrs=[1], eps=-1), ["eps", "-1"]),
        (lambda: list(simulate_all([Task(Rule(), 10, (1.0,))], jobs=0)), ["jobs", "0"]),
    ],
)
def test_bad_values_are_refused_by_name_and_value(make, named):
    with pytest.raises(ValueError, match="Invalid") as refusal:
        make()
    assert all(word in str(refusal.value) for word in named), refusal.value


def test_the_learner_keeps_its_own_step_sizes():
    lr = np.array([0.1])
    learner = OnlineLearner(method("ogd").rule, [0.0], lr=lr)
    lr[:] = 7
    learner.update([1.0])
    assert learner.predict() == -0.1


def test_everything_is_the_default():
    assert isinstance(OnlineLearner(Rule(), [0.0], lr=0.1).feasible, Everything)


# ------------------------------------------------------------------ the simulator


def replay(rule, setting, T, lr, seed, log_t):
    """The same walk by the oracle."""
    large = online.SETTINGS[setting](seed)(np.arange(1, T + 1))
    learner = OnlineLearner(rule, [0.0], lr=lr, feasible=Box(-1, 1))
    x, total, logged_x, logged = [], 0.0, [], []
    for t in range(1, T + 1):
        g, x = 1010.0 if large[t - 1] else -10.0, learner.predict()[0]
        total += g * (x + 1)
        if t in log_t:
            logged_x.append(x)
            logged.append(total / t)
        learner.update([g])
    return np.array(logged_x), np.array(logged)


@pytest.mark.parametrize("setting", online.SETTINGS)
@pytest.mark.parametrize("name", RULES)
def test_the_simulator_walks_as_the_oracle(name, setting, monkeypatch):
    monkeypatch.setattr(online, "_CHUNK", 700)  # so that 2,000 steps cross two borders
    walk = simulate(RULES[name], T=2000, lrs=[0.01, 0.5], seed=3, setting=setting)
    for k, lr in enumerate((0.01, 0.5)):
        x, regret = replay(RULES[name], setting, 2000, lr, 3, set(walk.t))
        np.testing.assert_allclose(walk.x[k], x, rtol=1e-9, atol=1e-11)
        np.testing.assert_allclose(walk.regret[k], regret, rtol=1e-9, atol=1e-9)


def test_custom_weights_are_simulated_too():
    as_equal = simulate(Rule(Custom(lambda t: 1.0 + 0 * t)), T=1000, lrs=[0.1])
    np.testing.assert_array_equal(as_equal.x, simulate(Rule(Equal()), T=1000, lrs=[0.1]).x)


def test_compiled_and_interpreted_loops_agree(monkeypatch):
    compiled = simulate(method("amsgrad").rule, T=3000, lrs=[0.1, 1.0])
    monkeypatch.setattr(online, "_compiled", lambda: (online._average, online._walk))
    interpreted = simulate(method("amsgrad").rule, T=3000, lrs=[0.1, 1.0])
    np.testing.assert_allclose(compiled.x, interpreted.x, rtol=1e-12, atol=1e-13)
    signs = simulate(method("signsgd").rule, T=300, lrs=[0.1])
    assert np.any(signs.x != 0)


@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_chunks_do_not_show(chunk, monkeypatch):
    whole = simulate(method("adam").rule, T=1000, lrs=[0.3])
    monkeypatch.setattr(online, "_CHUNK", chunk)
    pieces = simulate(method("adam").rule, T=1000, lrs=[0.3])
    np.testing.assert_array_equal(pieces.x, whole.x)
    np.testing.assert_array_equal(pieces.regret, whole.regret)


def test_the_large_gradients_come_when_the_paper_says():
    t = np.arange(1, 1000)
    assert t[online.SETTINGS["online"](0)(t)].tolist() == list(range(1, 1000, 101))
    share = online.SETTINGS["stochastic"](0)(np.arange(1, 10**6)).mean()
    assert abs(share - 0.01) < 5 * math.sqrt(0.01 * 0.99 / 10**6)
    first = simulate(method("ogd").rule, T=3, lrs=[1e-4], points=3, setting="online")
    np.testing.assert_allclose(first.x[0], [0, -0.101, -0.1], rtol=1e-12)


def test_seeds_differ_repeat_and_are_shared_by_methods():
    def first_large(seed):
        return np.flatnonzero(online.SETTINGS["stochastic"](seed)(np.arange(1, 10_001)))

    assert not np.array_equal(first_large(0), first_large(1))
    np.testing.assert_array_equal(first_large(5), first_large(5))
    assert abs(first_large(0).size - 100) < 40
    a, b = (simulate(Rule(), T=1000, lrs=[1.0], seed=s) for s in (0, 1))
    assert not np.array_equal(a.x, b.x)
    online_a, online_b = (simulate(Rule(), T=1000, lrs=[1.0], seed=s, setting="online") for s in (0, 1))
    np.testing.assert_array_equal(online_a.x, online_b.x)


def test_a_step_size_does_not_depend_on_its_neighbours():
    alone = simulate(Rule(), T=1000, lrs=[0.3])
    among = simulate(Rule(), T=1000, lrs=[1e9, 0.3, *[0.1] * 9])
    np.testing.assert_array_equal(alone.x[0], among.x[1])
    assert among.x.shape[0] == 11


def test_log_spaced():
    t = log_spaced(10**7, 100)
    assert (t[0], t[-1]) == (1, 10**7)
    assert np.all(np.diff(t) > 0)
    assert log_spaced(1, 5).tolist() == [1]


def test_stopping_ends_a_run_and_progress_counts_it():
    told = []
    with pytest.raises(KeyboardInterrupt):
        simulate(Rule(), T=10**6, lrs=[1.0], stopped=lambda: len(told) == 2, progress=told.append)
    assert told == [online._CHUNK] * 2


def test_closing_the_iterator_stops_the_rest():
    tasks = [Task(Rule(decay=0.5), T, (1.0,), seed) for seed, T in enumerate([1000] + [10**9] * 5)]
    finished = simulate_all(tasks, jobs=2)
    task, _ = next(finished)
    assert task.seed == 0
    finished.close()  # returns at once, though 10^9 steps would take half a minute each


def test_adam_fails_where_the_paper_says_and_the_others_do_not():
    lrs = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
    tasks = {
        Task(method(name).rule.with_decay(0.5), 10**7, lrs, seed, setting): name
        for name in PAPER_METHODS
        for setting in online.SETTINGS
        for seed in range(3 if setting == "stochastic" else 1)
    }
    walks = {}
    for task, walk in simulate_all(tasks):
        walks.setdefault((task.setting, tasks[task]), []).append(walk)
    for (setting, name), same in walks.items():
        last_x = np.median([walk.x[:, -1] for walk in same], axis=0)
        average = np.median([walk.regret[:, -1] for walk in same], axis=0)
        if name == "adam":
            assert last_x.max() > 0.9, setting
            assert last_x.min() > -0.5, setting
            assert average.min() > 0.09, setting
        else:
            best = np.argmin(average)
            assert last_x[best] < -0.8, (setting, name)
            assert average[best] < 0.04, (setting, name)
