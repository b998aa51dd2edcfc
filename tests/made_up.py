"""Believable made-up records, in the shape that statistics, figures and report are functions of."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from wagmf.methods import PAPER_METHODS

LRS = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
NAMES = ("mlp on digits", "cnn on patterns", "logistic on digits")
HOSTILE = (
    "<script>window.hit=1</script>",
    "</script><img src=x onerror=window.hit=2>",
    "${window.hit=3} {{7*7}} {% raw %} %{x} $x^2$ \"'><b onclick='window.hit=4'>&amp;",
)
COLUMNS = ["experiment", "method", "lr", "seed", "key", "diverged", "step_ms", "way", "dataset", "model", "epochs",
           "batch", "loss"]  # fmt: skip
METRICS = ("train_loss", "train_accuracy", "test_loss", "test_accuracy")


@dataclass
class MadeUp:
    curves: pd.DataFrame
    runs: pd.DataFrame
    experiments: dict
    environment: dict


def made_up(names=NAMES, methods=PAPER_METHODS, lrs=LRS, seeds=5, epochs=30, seed=0, diverging=True, loss="running"):
    """Every method has its best step size and its speed; seeds shift all methods alike; large step sizes diverge."""
    random = np.random.default_rng(seed)
    curves, runs = [], []
    for k, name in enumerate(names):
        shared = random.normal(0, 0.08, seeds)  # what a seed does to all methods: runs are paired
        for j, method in enumerate(methods):
            best = np.log10(lrs[min(len(lrs) - 1, (j + k) % 4 + (j > 2))])
            speed, floor = 0.35 - 0.015 * j + 0.02 * random.normal(), 0.02 * (1 + 0.25 * j + k)
            for lr in lrs:
                away = np.log10(lr) - best
                too_far = diverging and away > 1.2
                for s in range(seeds):
                    noise = random.normal(0, 0.05, epochs)
                    values = _curve(epochs, speed * np.exp(-(away**2)), floor * (1 + away**2), shared[s], noise)
                    lost = (
                        int(random.integers(2, epochs, endpoint=True))
                        if too_far and random.random() < 0.5 + away / 8
                        else None
                    )
                    if lost is not None:
                        values[:, lost - 1 :] = np.nan
                    curves.append((name, method, lr, s, values))
                    runs.append(
                        (name, method, lr, s, f"{random.integers(16**12):012x}", lost, 0.8 + 0.05 * j
                         + 0.02 * random.random(), f"stacked, {len(lrs) * seeds} replicas", *_parts(name), epochs,
                         128, loss)
                    )  # fmt: skip
    return MadeUp(
        _frame(curves, epochs),
        _runs(runs),
        {
            name: {"dataset": _parts(name)[0], "model": _parts(name)[1], "epochs": epochs, "batch": 128}
            for name in names
        },
        {"python": "3.11.2", "torch": "2.11.0", "device": "made up"},
    )


def _parts(name):
    """The data set and the model, as the name has them."""
    model, _, dataset = name.partition(" on ")
    return dataset or "digits", model


def _curve(epochs, speed, floor, shift, noise):
    """The four metrics of a run, a row each."""
    t = np.arange(1, epochs + 1)
    loss = (floor + 2.0 * np.exp(-speed * t)) * np.exp(shift + noise * t / epochs)
    test = loss + 0.05 + 0.02 * np.abs(noise)
    return np.array([loss, np.exp(-loss), test, np.exp(-0.6 * test)])


def _frame(curves, epochs):
    n = len(curves)
    columns = list(zip(*(row[:4] for row in curves), strict=True))
    frame = pd.DataFrame(
        {key: np.repeat(np.array(column), epochs) for key, column in zip(COLUMNS[:4], columns, strict=True)}
    )
    frame["epoch"] = np.tile(np.arange(1, epochs + 1), n)
    for k, metric in enumerate(METRICS):
        frame[metric] = np.concatenate([row[4][k] for row in curves])
    keys = ["experiment", "method", "lr", "seed", "epoch"]
    return frame.sort_values(keys, kind="stable", ignore_index=True)


def _runs(rows):
    runs = pd.DataFrame(rows, columns=COLUMNS)
    runs["diverged"] = runs["diverged"].astype("Int64")
    return runs.sort_values(["experiment", "method", "lr", "seed"], kind="stable", ignore_index=True)
