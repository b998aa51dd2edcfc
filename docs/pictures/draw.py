"""The pictures of docs/choosing.md, from the package's own weights and its own rule; make table runs this."""

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from wagmf.lab.looks import Line, Panel
from wagmf.lab.plots import panel_picture
from wagmf.methods import method
from wagmf.rule import Rule, update
from wagmf.weights import Polynomial, Weights

HERE = Path(__file__).parent
SQUARED = "weights t²"
# One method for each way of weighting; the other WADAs weigh as WADA does, AdaGrad as AdamNC.
FAMILIES = ["wada", "adam", "adamnc", "nosadam", SQUARED]


def weights_of(name: str) -> Weights:
    return Polynomial(2) if name == SQUARED else method(name).rule.weights


def shares(weights: Weights, t: int) -> np.ndarray:
    """The part of v_t that gradient i has, for i = 1 … t, by the recursion of the window."""
    kept, u = np.zeros(t), weights.start
    for s in range(1, t + 1):
        u = 1 + weights.discount(s) * u
        kept[: s - 1] *= 1 - 1 / u
        kept[s - 1] = 1 / u
    return kept


def spread(t: int, points: int = 200) -> np.ndarray:
    """Steps up to t, about evenly spaced in their logarithm."""
    return np.unique(np.geomspace(1, t, points).round().astype(int))


def weights_panel(t: int, limits: tuple[float, float]) -> Panel:
    at = np.unique(np.linspace(1, t, 200).round().astype(int))
    lines = [Line(name, at, t * shares(weights_of(name), t)[at - 1]) for name in FAMILIES]
    title = f"After {t:,} steps"
    return Panel(title, "gradient i", "weight, 1 = that of a plain mean", tuple(lines), (), limits, log_y=True)


def windows(name: str, steps: Iterable[int]) -> np.ndarray:
    return np.array([weights_of(name).window(int(t)) for t in steps])


def window_panel(names: list[str], t: int) -> Panel:
    at = spread(t, 60)
    lines = tuple(Line(name, at, windows(name, at)) for name in names)
    up = "window u: 1/u of v is the newest gradient"
    return Panel("", "step t", up, lines, (), (0.8, 1.3 * t), log_x=True, log_y=True)


def denominators(name: str, gradients: np.ndarray) -> np.ndarray:
    """√v after each gradient: the same power and root for all, so that the weights alone make the difference."""
    rule = Rule(weights_of(name), p1=2, p2=2, beta1=0.0, debias=True)
    u: Any = rule.start
    v, found = np.zeros(1), []
    for t, g in enumerate(gradients, 1):
        step = update(rule, t, u, np.array([g]), None, v, lr=1.0, eps=0.0)
        u, v = step.u, step.v
        found.append(float(step.V[0]))
    return np.array(found)


def response_panel(title: str, gradients: np.ndarray, shown: slice, limits: tuple[float, float]) -> Panel:
    at = np.arange(1, gradients.size + 1)[shown]
    lines = tuple(Line(name, at, denominators(name, gradients)[shown]) for name in FAMILIES)
    return Panel(title, "step t", "√v", lines, (), limits, log_y=True)


def draw(folder: Path) -> list[Path]:
    """All of them, into ``folder``."""
    shrinking = np.where(np.arange(10_000) < 2000, 1.0, 0.1)
    rare = np.where(np.arange(20_000) % 2000 == 1999, 2000**0.5, 0.0)
    watched = ["wada", "adam", "amsgrad", "adamnc", "nosadam", "rmsprop", "signsgd"]
    responses = [
        response_panel("Gradients of size 1, from step 2,000 on 0.1", shrinking, slice(99, None, 50), (0.08, 1.2)),
        response_panel("One gradient in 2,000 is √2,000, all others 0", rare, slice(1999, None, 50), (0.5, 2)),
    ]
    weights = [weights_panel(100, (0.01, 20)), weights_panel(10_000, (0.01, 20))]
    return [
        panel_picture(weights, folder / "weights.svg", title="What each gradient counts in v", methods=FAMILIES),
        panel_picture(
            [window_panel(watched, 100_000)],
            folder / "windows.svg",
            title="How much of the past counts",
            methods=watched,
        ),
        panel_picture(responses, folder / "responses.svg", title="What a method divides by", methods=FAMILIES),
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=HERE)
    print(*draw(parser.parse_args().folder), sep="\n")
