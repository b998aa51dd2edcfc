"""Steps per second of the synthetic simulator, on one core, beside a plain NumPy loop over the same rule.

A step is one update of one iterate. The simulator averages the gradients once for all step sizes, so both counts are
given: with a single step size, and with the eight of ``wagmf online``. The loop calls ``OnlineLearner``, eight
iterates at a time in the second count. Every number is the best of three runs; results are checked equal first.
"""

import os
import platform
import time

import numba
import numpy as np

from wagmf.feasible import Box
from wagmf.methods import PAPER_METHODS, method
from wagmf.online import SETTINGS, OnlineLearner, simulate

LRS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
T, T_LOOP = 10_000_000, 20_000


def loop(rule, lrs, T):
    """The plain NumPy loop: all step sizes as one vector."""
    large = SETTINGS["stochastic"](0)(np.arange(1, T + 1))
    learner = OnlineLearner(rule, np.zeros(len(lrs)), lr=np.array(lrs), feasible=Box(-1, 1))
    x = learner.predict()
    for is_large in large:
        x = learner.predict()
        learner.update(np.full(len(lrs), 1010.0 if is_large else -10.0))
    return x


def best_time(function):
    times = []
    for _ in range(3):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def main():
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, one used; Python", end=" ")
    print(f"{platform.python_version()}, NumPy {np.__version__}, Numba {numba.__version__}")
    print(f"{T:,} steps simulated, {T_LOOP:,} looped; millions of steps per second")
    print(f"{'method':10s} {'lrs':>4s} {'simulator':>10s} {'NumPy loop':>11s} {'ratio':>8s}")
    for name in PAPER_METHODS:
        rule = method(name).rule.with_decay(0.5)
        for lrs in (LRS[4:5], LRS):
            walk = simulate(rule, T=T_LOOP, lrs=lrs)
            np.testing.assert_allclose(walk.x[:, -1], loop(rule, lrs, T_LOOP), rtol=1e-9, atol=1e-9)
            ours = T * len(lrs) / best_time(lambda rule=rule, lrs=lrs: simulate(rule, T=T, lrs=lrs))
            theirs = T_LOOP * len(lrs) / best_time(lambda rule=rule, lrs=lrs: loop(rule, lrs, T_LOOP))
            print(f"{name:10s} {len(lrs):4d} {ours / 1e6:10.1f} {theirs / 1e6:11.3f} {ours / theirs:7.0f}x", flush=True)


if __name__ == "__main__":
    main()
