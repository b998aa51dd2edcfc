"""Online convex optimisation: the float64 oracle, and a compiled simulator of the paper's synthetic problem (Figure 1).

The problem: f_t(x) = 1010·x on some steps and -10·x on the others, for x in [-1, 1]. The large gradient comes with
probability 0.01 ("stochastic") or whenever t mod 101 = 1 ("online"); either way the best fixed point is x = -1.
"""

import functools
import os
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wagmf.arguments import Refused, array, flag, integer, one_of, real, refuse
from wagmf.feasible import Everything, Feasible
from wagmf.rule import Rule, power, scale, update
from wagmf.weights import Latest

__all__ = ["SETTINGS", "OnlineLearner", "Task", "Walk", "log_spaced", "simulate", "simulate_all"]

_Array = NDArray[np.float64]


class OnlineLearner:
    """Play x_t, receive a gradient, move: the rule in float64, the reference every fast path is held to.

    Args:
        rule: the method.
        x0: the first point, of any shape; it must be feasible.
        lr: α, a number or an array that broadcasts against x.
        feasible: the set x is kept in.
        eps: added to V.
        maximize: the gradients are of rewards, not losses.

    >>> from wagmf import Box, Rule
    >>> learner = OnlineLearner(Rule(), [0.0], lr=0.5, feasible=Box(-1, 1))
    >>> for _ in range(100):
    ...     learner.update([1.0])
    >>> learner.predict()
    array([-1.])
    """

    def __init__(
        self,
        rule: Rule,
        x0: ArrayLike,
        *,
        lr: ArrayLike,
        feasible: Feasible | None = None,
        eps: float = 1e-7,
        maximize: bool = False,
    ) -> None:
        if not isinstance(rule, Rule):
            refuse("rule", rule, "rule must be a wagmf.Rule; wagmf.method(name).rule gives a named one")
        feasible = Everything() if feasible is None else feasible
        if not isinstance(feasible, Feasible):
            refuse("feasible", feasible, "feasible must be one of wagmf.feasible, such as Box(-1, 1)")
        x, rates = array("x0", x0), _rates(lr)
        if not _fits(rates, x.shape):
            refuse("learning rate", rates.shape, f"lr must be a number or broadcast to the shape of x, {x.shape}")
        if not feasible.contains(x):
            refuse("x0", x0, f"x0 must lie in {feasible}; the nearest point there is {feasible.project(x)}")
        self.rule, self.lr, self.feasible = rule, rates, feasible
        self.eps, self.sign = real("eps", eps, least=0), -1.0 if flag("maximize", maximize) else 1.0
        self.t, self.u, self.V = 0, rule.start, np.ones_like(x)
        self._x, self.m, self.v, self.peak = x, np.zeros_like(x), np.zeros_like(x), np.zeros_like(x)

    def predict(self) -> _Array:
        """x_t, the point to play now."""
        return self._x.copy()

    def update(self, gradient: ArrayLike) -> None:
        """Take the gradient of the loss at :meth:`predict`'s point, and move."""
        g = array("gradient", gradient)
        if g.shape != self._x.shape:
            refuse("gradient", g.shape, f"the gradient must have the shape of x, {self._x.shape}")
        with np.errstate(over="ignore", invalid="ignore"):
            new = update(
                self.rule, self.t + 1, self.u, self.sign * g, self.m, self.v, self.peak, lr=self.lr, eps=self.eps
            )
            x = self.feasible.project(self._x - new.step, new.V)
        if not all(np.all(np.isfinite(value)) for value in (x, new.V, new.v)):
            refuse("gradient", gradient, f"too large: step {self.t + 1} overflows float64, and was not taken")
        self.t, self._x = self.t + 1, x
        _, self.V, self.u, self.m, self.v, self.peak = new


def _rates(lr: Any) -> _Array:
    """The step sizes, as an array of our own."""
    try:
        rates = array("lr", lr)
    except Refused:
        rates = np.array(-1.0)
    if rates.size == 0 or np.any(rates < 0):
        refuse("learning rate", lr, "lr must be a finite number >= 0, or an array of them")
    return rates


def _fits(rates: _Array, shape: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(rates.shape, shape) == shape
    except ValueError:
        return False


# ---------------------------------------------------------------- the synthetic problem

_LARGE, _SMALL, _LOWER, _UPPER, _BEST = 1010.0, -10.0, -1.0, 1.0, -1.0
_CHUNK = (
    1 << 16
)  # steps taken between two looks at the stop sign; fewer, and threads spend their time handing over the GIL
_MOST_STEPS, _MOST_POINTS = 10**12, 10**5
_LANES = 8  # step sizes are walked in multiples of this, so that the loop over them is all vector instructions


def _stochastic(seed: int) -> Callable[[NDArray[np.int64]], NDArray[np.bool_]]:
    random = np.random.default_rng(seed)
    return lambda t: random.random(t.size) < 0.01


def _online(seed: int) -> Callable[[NDArray[np.int64]], NDArray[np.bool_]]:
    return lambda t: t % 101 == 1


SETTINGS: Mapping[str, Callable[[int], Callable[[NDArray[np.int64]], NDArray[np.bool_]]]] = MappingProxyType(
    {"stochastic": _stochastic, "online": _online}
)
"""When the large gradient comes: for a seed, a function that tells it for successive stretches of t."""


@dataclass(frozen=True)
class Walk:
    """What one rule did on one sequence of gradients, for every step size: x_t and R(t)/t at the logged t.

    >>> walk = simulate(Rule(decay=0.5), T=1000, lrs=[0.1, 1.0])
    >>> walk.x.shape == walk.regret.shape == (2, walk.t.size)
    True
    """

    t: NDArray[np.int64]
    x: _Array
    regret: _Array


@dataclass(frozen=True)
class Task:
    """One walk to be simulated; see :func:`simulate` for what the fields mean.

    >>> Task(Rule(decay=0.5), T=1000, lrs=(0.1, 1.0)).setting
    'stochastic'
    """

    rule: Rule
    T: int
    lrs: tuple[float, ...]
    seed: int = 0
    setting: str = "stochastic"
    points: int = 100
    x0: float = 0.0
    eps: float = 1e-7


def log_spaced(T: int, points: int = 100) -> NDArray[np.int64]:
    """At most ``points`` different t from 1 to T, evenly spaced in log t.

    >>> log_spaced(100, 5)
    array([  1,   3,  10,  32, 100])
    """
    T, points = integer("T", T, least=1, most=_MOST_STEPS), integer("points", points, least=2, most=_MOST_POINTS)
    return np.unique(np.rint(np.geomspace(1, T, points)).astype(np.int64))


def simulate(
    rule: Rule,
    *,
    T: int,
    lrs: Sequence[float],
    seed: int = 0,
    setting: str = "stochastic",
    points: int = 100,
    x0: float = 0.0,
    eps: float = 1e-7,
    stopped: Callable[[], bool] = lambda: False,
    progress: Callable[[int], None] = lambda steps: None,
) -> Walk:
    """Run ``rule`` on the synthetic problem for T steps, for all step sizes at once.

    The gradients do not depend on x, so m and V are averaged once and every step size walks along the same directions.
    The same seed gives every rule the same gradients.

    Args:
        rule: the method; the paper uses decay = 1/2 here.
        T: the number of steps.
        lrs: the step sizes α.
        seed: of the stochastic setting; the online setting has no randomness.
        setting: ``stochastic`` or ``online``.
        points: about how many t to log, log-spaced.
        x0: the first point.
        eps: added to V.
        stopped: asked between chunks of steps; true ends the run with KeyboardInterrupt.
        progress: told the number of steps of every chunk done.

    >>> walk = simulate(Rule(decay=0.5), T=100_000, lrs=[1.0], setting="online")
    >>> bool(walk.x[0, -1] < -0.8)
    True
    """
    if not isinstance(rule, Rule):
        refuse("rule", rule, "rule must be a wagmf.Rule; wagmf.method(name).rule gives a named one")
    T = integer("T", T, least=1, most=_MOST_STEPS)
    rates = _rates(lrs)
    if rates.ndim != 1:
        refuse("lrs", lrs, "lrs must be a list of step sizes")
    large = SETTINGS[one_of("setting", setting, SETTINGS)](integer("seed", seed, least=0))
    eps = real("eps", eps, least=0)
    if not _LOWER <= real("x0", x0) <= _UPPER:
        refuse("x0", x0, f"x0 must lie in [{_LOWER:g}, {_UPPER:g}]")

    average, walk = _compiled()
    log_t = log_spaced(T, points)
    lanes = np.pad(rates, (0, -rates.size % _LANES))
    x, total = np.full(lanes.size, float(x0)), np.zeros(lanes.size)
    logged_x, logged_total = np.empty((2, log_t.size, lanes.size))
    memory = np.array([rule.start, 0.0, 0.0, 0.0])  # u, m, v, peak
    for done in range(0, T, _CHUNK):
        if stopped():
            raise KeyboardInterrupt
        t = np.arange(done + 1, min(done + _CHUNK, T) + 1)
        g = np.where(large(t), _LARGE, _SMALL)
        steps = _steps(rule, t, g, memory, average, eps)
        here = slice(*np.searchsorted(log_t, (t[0], t[-1] + 1)))
        walk(g, steps, lanes, x, total, log_t[here] - t[0], logged_x[here], logged_total[here])
        progress(t.size)
    return Walk(log_t, logged_x.T[: rates.size].copy(), logged_total.T[: rates.size] / log_t)


def _steps(rule: Rule, t: NDArray[np.int64], g: _Array, memory: _Array, average: Any, eps: float) -> _Array:
    """The steps of a stretch of time for lr = 1: compiled running averages, then the rule's own :func:`scale`."""
    time = t.astype(np.float64)
    u, m, v, peak = np.empty((4, t.size))
    beta1 = np.broadcast_to(np.asarray(rule.beta1_at(time), dtype=np.float64), t.shape)
    rho = np.broadcast_to(np.asarray(rule.weights.discount(time), dtype=np.float64), t.shape)
    latest = isinstance(rule.weights, Latest)
    average(g, power(np.abs(g), rule.p1), beta1, rho, latest, memory, u, m, v, peak)
    if 1 - rule.unseen_at(int(t[0])) == 1:
        # From here on the correction of m multiplies by exactly 1: spare a power a step. (u_0 was settled before.)
        rule = replace(rule, debias=False)
    return scale(rule, time, u, g, m, v, peak, lr=1.0, eps=eps)[0]


def _average(
    g: _Array, now: _Array, beta1: _Array, rho: _Array, latest: bool, memory: _Array,
    u: _Array, m: _Array, v: _Array, peak: _Array,
) -> None:  # fmt: skip
    """Restates :func:`wagmf.rule.averages` as a scan over time; ``memory`` carries (u, m, v, peak) along."""
    u_t, m_t, v_t, peak_t = memory
    for i in range(g.size):
        m_t = beta1[i] * m_t + (1 - beta1[i]) * g[i]
        u_t = 1 + rho[i] * u_t
        v_t = now[i] if latest else v_t + (now[i] - v_t) * (1 / u_t)  # 1/u is off the chain of v: divisions overlap
        peak_t = max(peak_t, u_t * v_t)
        u[i], m[i], v[i], peak[i] = u_t, m_t, v_t, peak_t
    memory[:] = u_t, m_t, v_t, peak_t


def _walk(
    g: _Array, steps: _Array, lrs: _Array, x: _Array, total: _Array,
    log_at: NDArray[np.int64], logged_x: _Array, logged_total: _Array,
) -> None:  # fmt: skip
    """Play the stretch for every step size; in one dimension the weighted projection onto [-1, 1] is clipping."""
    logged = 0
    for i in range(g.size):
        for k in range(lrs.size):
            total[k] += g[i] * (x[k] - _BEST)
        if logged < log_at.size and log_at[logged] == i:
            logged_x[logged] = x
            logged_total[logged] = total
            logged += 1
        for k in range(lrs.size):
            x[k] = min(max(x[k] - lrs[k] * steps[i], _LOWER), _UPPER)


@functools.cache
def _compiled() -> tuple[Any, Any]:
    """The two loops above through Numba, imported and compiled when first needed, then kept on disk."""
    import numba

    compile_ = numba.njit(cache=True, nogil=True, error_model="numpy")
    return compile_(_average), compile_(_walk)


def _cores() -> int:
    """The cores this process may use, where the system tells; else all of them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def simulate_all(
    tasks: Iterable[Task], *, jobs: int | None = None, progress: Callable[[int], None] = lambda steps: None
) -> Generator[tuple[Task, Walk]]:
    """Simulate many tasks on several threads and yield each as it finishes; closing the iterator stops the rest.

    >>> tasks = [Task(Rule(decay=0.5), 1000, (0.1, 1.0), seed) for seed in range(3)]
    >>> sorted(task.seed for task, walk in simulate_all(tasks))
    [0, 1, 2]
    """
    jobs = _cores() if jobs is None else integer("jobs", jobs, least=1, most=1024)
    stop = threading.Event()
    pool = ThreadPoolExecutor(jobs)

    def run(task: Task) -> Walk:
        return simulate(**vars(task), stopped=stop.is_set, progress=progress)

    try:
        futures = {pool.submit(run, task): task for task in tasks}
        for future in as_completed(futures):
            yield futures[future], future.result()
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)
