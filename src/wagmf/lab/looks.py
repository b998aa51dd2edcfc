"""What figures are made of, and how each method looks in all of them."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from numpy.typing import NDArray

from wagmf.methods import METHODS

__all__ = [
    "MODEL_TITLES",
    "QUANTITIES",
    "Cell",
    "Dots",
    "Leads",
    "Line",
    "Mark",
    "Matrix",
    "Panel",
    "Shown",
    "Style",
    "label",
    "round_numbers",
    "styles",
    "title_of",
]

MODEL_TITLES: Mapping[str, str] = MappingProxyType(
    {"softmax": "softmax regression", "mlp": "MLP", "cnn": "CNN", "resnet20": "ResNet-20"}
)
"""What readers call the models of the zoo."""

QUANTITIES: Mapping[str, str] = MappingProxyType(
    {
        "train_loss": "training loss",
        "train_accuracy": "training accuracy",
        "test_loss": "test loss",
        "test_accuracy": "test accuracy",
    }
)
"""What metrics are called in words."""

_DATA = {"mnist": "MNIST", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}


@dataclass(frozen=True)
class Style:
    """How a method looks in every figure: its colour on light and on dark ground, its dashes, its marker.

    ``dash`` holds the lengths of strokes and gaps, and is empty for a solid line; ``marker`` is plotly's name.

    >>> styles(["wada", "adam"])["wada"].dash
    ()
    """

    colour: str
    dark: str
    dash: tuple[float, ...]
    marker: str


# Okabe and Ito's colours, which colour-blind readers can tell apart; dashes and markers say the same without colour.
_PAPER = {
    "adam": Style("#D55E00", "#E8792B", (7, 3), "square"),
    "amsgrad": Style("#E69F00", "#E69F00", (2, 2), "diamond"),
    "adamnc": Style("#CC79A7", "#CC79A7", (7, 3, 2, 3), "triangle-up"),
    "wada": Style("#0072B2", "#2F8FCB", (), "circle"),
    "wada_v3": Style("#56B4E9", "#8FD3FF", (12, 3), "triangle-down"),
    "wada_v4": Style("#009E73", "#19B48A", (12, 3, 2, 3), "star"),
}
_COLOURS = (
    ("#333333", "#D8D8D8"), ("#808080", "#9A9A9A"), ("#7F5F00", "#C9A227"), ("#5B2A86", "#B08AD9"),
    ("#2A6F3B", "#7FBF7B"), ("#A0522D", "#D98F6A"),
)  # fmt: skip
_DASHES = ((), (5, 2), (1.5, 1.5), (9, 2, 1.5, 2), (4, 2, 1.5, 2, 1.5, 2))
_MARKERS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "star", "pentagon")


@dataclass(frozen=True)
class Line:
    """A method's mean over seeds, and the 95 % interval of that mean where there are seeds enough for one.

    >>> import numpy as np
    >>> Line("wada", np.array([1, 2]), np.array([0.5, 0.25])).low is None
    True
    """

    method: str
    x: NDArray[Any]
    y: NDArray[Any]
    low: NDArray[Any] | None = None
    high: NDArray[Any] | None = None


@dataclass(frozen=True)
class Mark:
    """A point that means something: ``kind`` is "chosen" (a step size), "diverged" or "ended" (where a line stops).

    >>> Mark("adam", 0.1, 2.0, "diverged", "3 of 5 seeds diverged").kind
    'diverged'
    """

    method: str
    x: float
    y: float
    kind: str
    text: str


@dataclass(frozen=True)
class Panel:
    """Lines over epochs, or over step sizes; what is marked above ``ceiling`` has no value, it has diverged.

    What lies beyond ``zoom`` is drawn once more in a picture, larger: lines that end close together.

    >>> Panel("Training loss", "epoch", "training loss", (), ()).log_y
    False
    """

    title: str
    across: str
    up: str
    lines: tuple[Line, ...]
    marks: tuple[Mark, ...]
    limits: tuple[float, float] = (0.0, 1.0)
    log_x: bool = False
    log_y: bool = False
    ceiling: float | None = None
    zoom: float | None = None

    @property
    def percent(self) -> bool:
        """Whether the values are shares of 1."""
        return "accuracy" in self.up

    @property
    def few(self) -> bool:
        """Whether there are so few points that each gets a marker."""
        return max((line.x.size for line in self.lines), default=0) <= 10

    @property
    def rates(self) -> list[float]:
        """Every step size, or epoch, that is shown."""
        return sorted({float(x) for line in self.lines for x in line.x} | {mark.x for mark in self.marks})

    @property
    def across_ticks(self) -> list[float]:
        """Where to write step sizes: at each, or if that would be too many, at round numbers."""
        rates = self.rates
        return rates if len(rates) <= 10 else round_numbers(rates[0], rates[-1])

    @property
    def ticks(self) -> list[float]:
        """Round numbers for a logarithmic axis, no fewer than four if there are so many."""
        return round_numbers(self.limits[0], min(self.limits[1], self.ceiling or math.inf))


def round_numbers(low: float, high: float) -> list[float]:
    """Four or more round numbers between two positive ones, about evenly spaced in their logarithm.

    >>> round_numbers(0.1, 70), round_numbers(1.3, 1.47)
    ([0.1, 0.3, 1.0, 3.0, 10.0, 30.0], [1.3, 1.35, 1.4, 1.45])
    """
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found: list[float] = []
    finer = ([f"{d / per:g}" for d in range(per, 10 * per, step)] for per in (10, 100) for step in (5, 2, 1))
    for digits in ("1", "13", "125", "12357", "123456789", *finer):
        every = 1 + max(len(decades) - 2, 0) // 8 if digits == "1" else 1
        found = [float(f"{digit}e{k}") for k in decades if k % every == 0 for digit in digits]
        found = [number for number in found if low <= number <= high]
        if len(found) >= 4:
            break
    return found or [low, high]


@dataclass(frozen=True)
class Dots:
    """One value and its interval for every method, the best first.

    >>> import numpy as np
    >>> Dots("Ranking", "probability", ("wada",), np.array([0.9]), np.array([0.8]), np.array([1.0]), 0.5).guide
    0.5
    """

    title: str
    across: str
    methods: tuple[str, ...]
    values: NDArray[Any]
    low: NDArray[Any]
    high: NDArray[Any]
    guide: float


@dataclass(frozen=True)
class Leads:
    """By how much one is ahead of another, in several places: with intervals, and what matters at least.

    ``shown`` is +1 where it is shown to be ahead, -1 behind, and 0 where neither is.

    >>> import numpy as np
    >>> Leads("points", ("here",), np.array([0.9]), np.array([0.8]), np.array([1.0]), (1,), 0.5).shown
    (1,)
    """

    across: str
    names: tuple[str, ...]
    values: NDArray[Any]
    low: NDArray[Any]
    high: NDArray[Any]
    shown: tuple[int, ...]
    margin: float


@dataclass(frozen=True)
class Shown:
    """Panels that a report shows beside its experiments: of each a view for every one of ``choices``.

    >>> Shown("Figure 1", "Made up.", ("best",), ()).choices
    ('best',)
    """

    title: str
    words: str
    choices: tuple[str, ...]
    panels: tuple[tuple[Panel, ...], ...]


@dataclass(frozen=True)
class Cell:
    """A comparison as the row's method sees it: ``effect`` > 0 where the row did better, ``shown`` +1, -1 or 0.

    >>> Cell(2.5, 0.01, 1).shown
    1
    """

    effect: float
    p: float
    shown: int


@dataclass(frozen=True)
class Matrix:
    """Who is shown to be better than whom; ``cells[row][column]`` is None where nothing could be compared.

    >>> Matrix("Training loss", ("wada",), ((None,),)).methods
    ('wada',)
    """

    title: str
    methods: tuple[str, ...]
    cells: tuple[tuple[Cell | None, ...], ...]


def label(method: str) -> str:
    """What a reader calls the method: the table's title, or the name it was given.

    >>> label("wada_v3"), label("torch.optim.AdamW")
    ('WADA-v3', 'torch.optim.AdamW')
    """
    return METHODS[method].title if method in METHODS else method


def title_of(experiment: str) -> str:
    """What a reader calls an experiment that is named after its model and its data.

    >>> title_of("mlp on cifar10"), title_of("mine on digits")
    ('MLP on CIFAR-10', 'mine on digits')
    """
    model, _, data = experiment.partition(" on ")
    return f"{MODEL_TITLES.get(model, model)} on {_DATA.get(data, data)}" if data else experiment


def styles(methods: Iterable[str]) -> dict[str, Style]:
    """The looks of these methods, in the table's order; those of the table look the same in every report.

    >>> found = styles(["torch.optim.SGD", "adam", "ogd"])
    >>> list(found), found["adam"].colour
    (['adam', 'ogd', 'torch.optim.SGD'], '#D55E00')
    >>> len({(style.colour, style.dash) for style in styles(METHODS).values()}) == len(METHODS)
    True
    """
    names = set(methods)
    strangers = sorted(names - set(METHODS))
    others = [name for name in METHODS if name not in _PAPER] + strangers
    ordered = [name for name in METHODS if name in names] + strangers
    return {name: _PAPER.get(name) or _other(others.index(name)) for name in ordered}


def _other(place: int) -> Style:
    light, dark = _COLOURS[place % len(_COLOURS)]
    dash = _DASHES[(place // len(_COLOURS) + place) % len(_DASHES)]
    return Style(light, dark, dash, _MARKERS[place % len(_MARKERS)])
