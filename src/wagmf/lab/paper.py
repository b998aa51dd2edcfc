"""What the paper prints: its comparisons, its panels with their p-values, and what it claims (arXiv:2101.00238).

A p-value is that of Student's test, baseline against one of the paper's own methods, by "8 samples" of each. 134 of the
153 are below 0.05, the paper's threshold, and should be printed black, the other 19 grey. One is printed in the wrong
colour: AdamNC against WADA-v3 in Figure 3b is 0.158, and black.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

__all__ = ["BASELINES", "CLAIMS", "OURS", "PAIRS", "PANELS", "Printed"]

BASELINES: tuple[str, ...] = ("adam", "amsgrad", "adamnc")
"""What the paper's own methods are compared with."""

OURS: tuple[str, ...] = ("wada", "wada_v3", "wada_v4")
"""The paper's own methods."""

PAIRS: tuple[tuple[str, str], ...] = tuple((ours, baseline) for baseline in BASELINES for ours in OURS)
"""The columns of the paper's table, in its order: one of its own methods, and the baseline it is compared with."""


@dataclass(frozen=True)
class Printed:
    """A panel of Figures 2 to 6: what it shows of which experiment, and the p-values printed for it, one for each pair.

    >>> panel = next(panel for panel in PANELS if panel.name == "3b")
    >>> panel.experiment, panel.metric, dict(zip(PAIRS, panel.p))["wada_v3", "adamnc"]
    ('mlp on cifar10', 'train_loss', 0.158)
    """

    figure: int
    letter: str
    experiment: str
    metric: str
    p: tuple[float, ...]

    @property
    def name(self) -> str:
        """The panel as it is cited: figure and letter."""
        return f"{self.figure}{self.letter}"


_LOSS, _ACCURACY = "train_loss", "test_accuracy"

_SHOWN = {
    "2a": ("softmax on mnist", _LOSS),
    "2b": ("softmax on cifar10", _LOSS),
    "2c": ("softmax on cifar100", _LOSS),
    "3a": ("mlp on mnist", _LOSS),
    "3b": ("mlp on cifar10", _LOSS),
    "3c": ("mlp on cifar100", _LOSS),
    "4a": ("mlp on mnist", _ACCURACY),
    "4b": ("mlp on cifar10", _ACCURACY),
    "4c": ("mlp on cifar100", _ACCURACY),
    "5a": ("cnn on cifar10", _LOSS),
    "5b": ("cnn on cifar10", _ACCURACY),
    "5c": ("cnn on cifar100", _LOSS),
    "5d": ("cnn on cifar100", _ACCURACY),
    "6a": ("resnet20 on cifar10", _LOSS),
    "6b": ("resnet20 on cifar10", _ACCURACY),
    "6c": ("resnet20 on cifar100", _LOSS),
    "6d": ("resnet20 on cifar100", _ACCURACY),
}

_P = {
    "2a": (6.79e-08, 3.81e-01, 5.28e-07, 1.55e-07, 1.37e-01, 4.46e-06, 7.02e-11, 2.93e-01, 6.97e-09),
    "2b": (5.61e-09, 1.11e-13, 1.17e-08, 9.56e-02, 2.05e-12, 7.01e-05, 4.51e-03, 1.66e-10, 2.30e-05),
    "2c": (1.49e-12, 2.68e-11, 1.19e-11, 1.23e-09, 1.00e-07, 2.60e-08, 2.32e-06, 2.86e-04, 5.26e-05),
    "3a": (7.72e-01, 1.21e-02, 1.07e-01, 7.83e-01, 1.21e-02, 1.04e-02, 8.24e-01, 1.47e-02, 1.43e-02),
    "3b": (3.61e-07, 2.72e-01, 8.19e-02, 1.85e-01, 4.01e-04, 1.56e-03, 3.89e-06, 1.58e-01, 5.86e-02),
    "3c": (3.02e-12, 8.41e-06, 2.08e-01, 2.64e-09, 2.14e-04, 3.63e-10, 9.69e-15, 3.42e-10, 1.92e-08),
    "4a": (6.61e-11, 4.01e-02, 1.37e-09, 0.00e00, 2.34e-06, 0.00e00, 1.25e-19, 3.73e-14, 2.34e-06),
    "4b": (9.57e-24, 2.78e-18, 5.64e-16, 1.34e-18, 4.01e-14, 2.65e-17, 5.13e-20, 8.16e-14, 2.71e-10),
    "4c": (8.09e-29, 2.40e-26, 1.77e-21, 3.26e-19, 2.99e-17, 3.09e-17, 3.06e-28, 1.48e-25, 4.55e-19),
    "5a": (8.60e-04, 8.41e-06, 1.85e-08, 4.65e-08, 7.34e-09, 1.86e-03, 8.64e-05, 1.24e-06, 1.45e-09),
    "5b": (1.85e-15, 1.97e-16, 3.58e-15, 1.51e-16, 3.70e-17, 2.91e-16, 4.68e-15, 3.56e-16, 8.96e-15),
    "5c": (3.72e-10, 1.09e-11, 5.54e-07, 1.63e-09, 9.11e-11, 7.57e-06, 9.65e-01, 6.46e-01, 1.93e-08),
    "5d": (2.11e-19, 1.48e-21, 1.78e-09, 5.46e-15, 1.14e-17, 7.34e-11, 3.42e-01, 2.31e-14, 4.70e-20),
    "6a": (3.68e-09, 2.36e-08, 2.71e-10, 6.18e-15, 9.44e-16, 9.69e-02, 7.13e-13, 7.10e-13, 2.56e-03),
    "6b": (4.49e-13, 6.79e-11, 4.22e-12, 3.30e-17, 4.50e-17, 2.47e-07, 4.27e-14, 8.77e-13, 1.37e-01),
    "6c": (1.81e-18, 2.21e-17, 3.01e-17, 5.88e-19, 1.23e-17, 2.18e-17, 3.73e-16, 1.71e-14, 1.90e-14),
    "6d": (1.29e-19, 2.41e-15, 2.48e-18, 9.62e-16, 1.88e-05, 9.93e-15, 6.07e-19, 3.33e-11, 3.98e-17),
}

PANELS: tuple[Printed, ...] = tuple(
    Printed(int(name[0]), name[1], experiment, metric, _P[name]) for name, (experiment, metric) in _SHOWN.items()
)
"""The rows of the paper's table, in its order."""

CLAIMS: Mapping[str, str] = MappingProxyType(
    {
        "C1": "On the synthetic problem Adam's average regret does not go to 0, while AMSGrad's and WADA's do.",
        "C2": "On the synthetic problem the iterates of WADA and AMSGrad go to -1, the best point.",
        "C3": "Softmax regression on MNIST: WADA and WADA-v4 end at a lower training loss than every baseline, and "
        "WADA-v3 at the baselines' own.",
        "C4": "Softmax regression on CIFAR-10 and CIFAR-100: all three WADAs end at a lower training loss than every "
        "baseline.",
        "C5": "MLP on MNIST: all methods do equally well.",
        "C6": "MLP on CIFAR-10 and CIFAR-100: WADA is better than every baseline, in training loss and in test "
        "accuracy.",
        "C7": "CNN on CIFAR-10: WADA and WADA-v3 are better than every baseline in both metrics, WADA-v4 in test "
        "accuracy but not in training loss.",
        "C8": "CNN on CIFAR-100: WADA, WADA-v3 and AdamNC are better than Adam, AMSGrad and WADA-v4.",
        "C9": "ResNet-20 on CIFAR-10: WADA and WADA-v3 are the best, in training loss and in test accuracy.",
        "C10": "ResNet-20 on CIFAR-100: all three WADAs end at a lower training loss than every baseline; WADA and "
        "WADA-v4 have the best test accuracy.",
        "C11": "A batch takes almost the same time with every method.",
        "C12": "Most of the 17 × 9 comparisons of the paper's methods with the baselines have p < 0.05.",
        "C13": "WADA's regret stays below its bound (as corrected), and the bound is below AdaGrad's when gradients "
        "shrink quickly.",
    }
)
"""What the paper claims, in our words: a sentence for each of C1 to C13."""
