"""What the tests are driven by: every method, every kind of gradients, every way to call the rule."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from wagmf.methods import METHODS
from wagmf.rule import Rule
from wagmf.weights import Custom, Equal, Exponential, Latest, Linear, Polynomial

WEIGHTS = {
    "equal": Equal(),
    "linear": Linear(),
    "quadratic": Polynomial(2),
    "root": Polynomial(0.5),
    "nostalgic": Polynomial(-0.1),
    "harmonic": Polynomial(-1),
    "exponential": Exponential(0.999),
    "short exponential": Exponential(0.5),
    "steady": Exponential(0.99, steady=True),
    "latest": Latest(),
    "custom": Custom(lambda t: t * (t + 3)),
}

RULES: dict[str, Rule] = {name: row.rule for name, row in METHODS.items()} | {
    "adam, paper": replace(METHODS["adam"].rule, debias=False),
    "amsgrad, torch": replace(METHODS["amsgrad"].rule, debias=True),
    "nadam, paper": replace(METHODS["nadam"].rule, debias=False),
    "wada, theory": Rule(decay=0.5, beta1_decay=0.99),
    "wada, all": Rule(p1=2.5, p2=3, debias=True, nesterov=True, monotone=True, decay=0.3, beta1_decay=0.99),
}

# What the front ends that have classes call a method.
NAMED = {
    "wada": "WADA", "wada_v3": "WADAv3", "wada_v4": "WADAv4", "adam": "Adam", "amsgrad": "AMSGrad", "adamnc": "AdamNC",
    "nosadam": "NosAdam", "padam": "Padam", "nadam": "NAdam", "adagrad": "AdaGrad", "sc_adagrad": "SCAdaGrad",
    "rmsprop": "RMSProp", "rmsprop_nc": "RMSPropNC", "sc_rmsprop": "SCRMSProp", "signsgd": "SignSGD",
    "momentum": "Momentum", "ogd": "OGD",
}  # fmt: skip

Gradients = Callable[[np.random.Generator, int, int], np.ndarray]

PROBLEMS: dict[str, Gradients] = {
    "noise": lambda random, T, d: random.normal(size=(T, d)),
    "tiny": lambda random, T, d: 1e-12 * random.normal(size=(T, d)),
    "huge": lambda random, T, d: 1e12 * random.normal(size=(T, d)),
    "mostly zero": lambda random, T, d: random.normal(size=(T, d)) * (random.random((T, d)) < 0.1),
    "zero": lambda random, T, d: np.zeros((T, d)),
    "shrinking": lambda random, T, d: random.normal(size=(T, d)) / np.arange(1, T + 1)[:, None] ** 2,
    "jumping": lambda random, T, d: np.where(random.random((T, d)) < 0.01, 1010.0, -10.0),
}


def gradients(problem: str, T: int = 50, d: int = 5, seed: int = 0) -> np.ndarray:
    return PROBLEMS[problem](np.random.default_rng(seed), T, d)
