"""wagmf: weighted adaptive gradient methods, one update rule for all of them.

>>> import wagmf
>>> print(wagmf.certify(wagmf.method("wada").rule))
With α_t = α/√t the convergence condition holds (for every t). Weights t^1 need p2·decay >= 2;
here it is 2, exactly enough.
"""

from wagmf.feasible import Ball, Box, Everything, HalfSpace, Hyperplane, L1Ball, NonNegative, Simplex
from wagmf.methods import METHODS, Method, method
from wagmf.online import OnlineLearner, simulate
from wagmf.rule import Rule, update
from wagmf.theory import bound, certify, regret
from wagmf.weights import Custom, Equal, Exponential, Latest, Linear, Polynomial

__version__ = "0.1.0"

__all__ = [
    "METHODS", "Ball", "Box", "Custom", "Equal", "Everything", "Exponential", "HalfSpace", "Hyperplane", "L1Ball",
    "Latest", "Linear", "Method", "NonNegative", "OnlineLearner", "Polynomial", "Rule", "Simplex", "bound", "certify",
    "method", "regret", "simulate", "update",
]  # fmt: skip
