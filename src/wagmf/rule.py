"""The rule: one update for every weighted adaptive gradient method, written once.

    m ← β1_t·m + (1 - β1_t)·g                 β1_t = beta1·beta1_decay^(t-1)
    u ← 1 + ρ_t·u                             ρ_t from the weights
    v ← v + (|g|^p1 - v)/u                    the weighted mean of |g|^p1, never the raw sum
    V = v^(1/p2) + eps                        p2 = inf: V = I
    x ← P_F^V(x - α_t·m/V)                    α_t = lr·t^-decay

Readings where the paper is silent: odd powers take |g| (g^3 can be negative, and has then no fourth root); eps is added
to V after the root and is part of V, in the step and in the norm of the projection alike; bias correction is an option.
"""

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from wagmf.arguments import flag, one_of, real, refuse
from wagmf.weights import Exponential, Latest, Linear, Polynomial, Weights

__all__ = ["Rule", "Update", "as_rule", "averages", "fold", "power", "root", "scale", "unchecked", "update"]


@dataclass(frozen=True)
class Rule:
    """A method, as the parameters of the one update; the defaults are WADA.

    Args:
        weights: how much past gradients count.
        p1: the power of the gradients in v.
        p2: the root taken of v; ``inf`` gives V = I, a method that does not adapt.
        beta1: momentum, the share of m that is kept.
        beta1_decay: λ in β1_t = beta1·λ^(t-1); the regret bounds need λ < 1, practice uses 1.
        debias: correct every average for having started from zero: m is divided by the weight it has seen, and a
            ``steady`` exponential window counts only the gradients seen. With it Adam is Kingma's (and torch's) Adam.
        nesterov: step along β1·m + (1 - β1)·g, what m would be if the same gradient came again (NAdam).
        monotone: in place of v use the largest u·v so far, over u (AMSGrad).
        decay: α_t = lr·t^-decay.

    >>> Rule()
    Rule(weights=Linear(), p1=2.0, p2=4.0, beta1=0.9, beta1_decay=1.0, debias=False, nesterov=False, monotone=False,
    decay=0.0)
    >>> Rule.from_dict(Rule(p1=3).to_dict()) == Rule(p1=3)
    True
    """

    weights: Weights = field(default_factory=Linear)
    p1: float = 2.0
    p2: float = 4.0
    beta1: float = 0.9
    beta1_decay: float = 1.0
    debias: bool = False
    nesterov: bool = False
    monotone: bool = False
    decay: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.weights, Weights) or type(self.weights) is Weights:
            refuse("weights", self.weights, "weights must be one of wagmf.weights, such as Linear()")
        checked = {
            "p1": real("p1", self.p1, above=0),
            "p2": real("p2", self.p2, above=0, infinite=True),
            "beta1": real("beta1", self.beta1, least=0, below=1),
            "beta1_decay": real("beta1_decay", self.beta1_decay, above=0, most=1),
            "decay": real("decay", self.decay, least=0),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        for name in ("debias", "nesterov", "monotone"):
            flag(name, getattr(self, name))
        if self.monotone and not self.adapts:
            refuse("monotone", True, "with p2 = inf there is no v to take the maximum of")

    @property
    def has_momentum(self) -> bool:
        """Whether m must be kept. A beta1 that is known only when a compiled program runs counts as one above 0."""
        return not (isinstance(self.beta1, float) and self.beta1 == 0)

    @property
    def adapts(self) -> bool:
        """Whether V depends on the gradients, so that v (and u) must be kept."""
        return self.p2 != math.inf

    @property
    def keeps(self) -> dict[str, bool]:
        """Which averages must be kept from step to step."""
        return {"m": self.has_momentum, "v": self.adapts, "peak": self.monotone}

    @property
    def start(self) -> float:
        """u_0, the window before the first gradient."""
        return 0.0 if self.debias else self.weights.start

    @property
    def carries_window(self) -> bool:
        """Whether u must be kept from step to step, since t alone does not give it exactly in low precision."""
        return self.adapts and not self.weights.exact

    def window_before(self, t: Any, carried: Any) -> Any:
        """u_{t-1} in the precision of t: what was carried, or else what the weights know."""
        return carried if self.carries_window else self.weights.window(t - 1)

    def beta1_at(self, t: Any) -> Any:
        """β1_t = beta1·beta1_decay^(t-1)."""
        return self.beta1 if self.beta1_decay == 1 else self.beta1 * self.beta1_decay ** (t - 1)

    def rate_at(self, t: Any) -> Any:
        """α_t / lr = t^-decay."""
        return 1.0 if self.decay == 0 else 1 / t**self.decay

    def unseen_at(self, t: Any) -> Any:
        """Π_{s≤t} β1_s: the share of m_t that still is the zero it started from."""
        return self.beta1**t * (1.0 if self.beta1_decay == 1 else self.beta1_decay ** (t * (t - 1) / 2))

    def lookahead_at(self, t: Any) -> tuple[Any, Any]:
        """The pair (a, b) such that the method steps along a·m + b·g."""
        seen = (1 - self.unseen_at(t)) if self.debias else 1.0
        if not self.nesterov:
            return 1 / seen, 0.0
        soon = (1 - self.unseen_at(t + 1)) if self.debias else 1.0
        return self.beta1_at(t + 1) / soon, (1 - self.beta1_at(t)) / seen

    def with_decay(self, decay: float) -> "Rule":
        """The same rule with α_t = lr·t^-decay."""
        return unchecked(self, decay=real("decay", decay, least=0))

    def to_dict(self) -> dict[str, Any]:
        """The rule as plain values, for JSON, TOML and weights-only checkpoints; ``inf`` is written ``"inf"``."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        values["weights"] = self.weights.to_dict()
        values["p2"] = self.p2 if self.adapts else "inf"
        return values

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Rule":
        """The rule that :meth:`to_dict` described."""
        if not isinstance(values, dict):
            refuse("rule", values, "a rule is written as a table of its fields")
        settings = dict(values)
        for name in settings:
            one_of("key of a rule", name, [f.name for f in fields(cls)])
        if not isinstance(settings.get("weights", Linear()), Weights):
            settings["weights"] = Weights.from_dict(settings["weights"])
        if settings.get("p2") == "inf":
            settings["p2"] = math.inf
        return cls(**settings)


def unchecked(frozen: Any, **fields: Any) -> Any:
    """A copy with other fields, which are not looked at: their values may be known only when a program runs.

    >>> unchecked(Rule(), beta1=0.5) == Rule(beta1=0.5)
    True
    """
    new = copy.copy(frozen)
    for name, value in fields.items():
        object.__setattr__(new, name, value)
    return new


def as_rule(rule: Any, decay: float | None = None) -> Rule:
    """The rule that an optimizer was given, WADA where it was given none, with another decay where one is named.

    >>> as_rule(None, decay=0.5) == Rule(decay=0.5)
    True
    """
    rule = Rule() if rule is None else rule
    if not isinstance(rule, Rule):
        refuse("rule", rule, "rule must be a wagmf.Rule; wagmf.method(name).rule gives a named one")
    return rule if decay is None else rule.with_decay(decay)


def fold(rule: Rule, said: Mapping[str, Any]) -> Rule:
    """The rule with the fields that ``said`` names changed; ``beta2`` and ``eta`` are those of its weights.

    ``betas`` is the pair of beta1 and beta2. What is None stays as it is.

    >>> fold(Rule(Exponential(0.9)), {"beta2": 0.99, "beta1": 0.5}).weights
    Exponential(beta=0.99, steady=False)
    """
    changed = {key: value for key, value in said.items() if value is not None}
    if "betas" in changed:
        betas = changed.pop("betas")
        if not isinstance(betas, tuple | list) or len(betas) != 2:
            refuse("betas", betas, "betas must be the pair of beta1 and beta2")
        changed = {"beta1": betas[0], "beta2": betas[1], **changed}
    if "beta2" in changed:
        real("beta2", changed["beta2"], above=0, below=1)
    for key, family, field_of_weights in (("beta2", Exponential, "beta"), ("eta", Polynomial, "eta")):
        if key in changed:
            if not isinstance(rule.weights, family):
                refuse(key, changed[key], f"{rule.weights} has no {key}; only {family.__name__} weights have")
            changed["weights"] = replace(rule.weights, **{field_of_weights: changed.pop(key)})
    return replace(rule, **changed)


class Update(NamedTuple):
    """What one update gives: the step to subtract from x, the V to project with, and the new state.

    >>> update(Rule(), 1, 0.0, np.ones(1), np.zeros(1), np.zeros(1), lr=0.1)._fields
    ('step', 'V', 'u', 'm', 'v', 'peak')
    """

    step: Any
    V: Any
    u: Any
    m: Any
    v: Any
    peak: Any


def power(x: Any, p: float) -> Any:
    """x^p for x ≥ 0; whole powers by multiplication, which rounds alike in every framework.

    >>> power(3.0, 4)
    81.0
    """
    if p == 1:
        return x
    if p != int(p) or not 1 <= p <= 8:
        return x**p
    half = power(x * x, p // 2)
    return half * x if p % 2 else half


def root(x: Any, p: float, xp: ModuleType | Any = np) -> Any:
    """x^(1/p) for x ≥ 0; roots of even order begin with square roots, which are fast and correctly rounded.

    >>> float(root(81.0, 4))
    3.0
    """
    while p >= 2 and p % 2 == 0:
        x, p = xp.sqrt(x), p / 2
    return x if p == 1 else x ** (1 / p)


def update(
    rule: Rule,
    t: Any,
    u: Any,
    g: Any,
    m: Any,
    v: Any,
    peak: Any = None,
    *,
    lr: Any,
    eps: float = 1e-7,
    xp: ModuleType | Any = np,
) -> Update:
    """One step of any method: the whole mathematics, on NumPy, torch and jax arrays alike. Nothing is changed in place.

    Args:
        rule: the method.
        t: the number of this step, from 1.
        u: the window after step t - 1 (``rule.start`` before the first).
        g: the gradient, in the precision of the state: |g|^p1 of a half-precision gradient may overflow.
        m: the momentum, zeros at first; not read where beta1 = 0.
        v: the weighted mean, zeros at first; not read where p2 = inf.
        peak: the largest u·v, zeros at first; not read unless monotone.
        lr: the step size, a number or anything that broadcasts against x.
        eps: added to V. With 0, a coordinate that has had no gradient yet takes V = 1, and stays.
        xp: where ``sqrt``, ``maximum`` and ``where`` come from: ``numpy``, ``torch``, ``jax.numpy`` or ``keras.ops``.

    >>> g = np.array([1.0, 16.0])
    >>> first = update(Rule(beta1=0.0), 1, 0.0, g, None, np.zeros(2), lr=0.5, eps=0.0)
    >>> first.step, first.V
    (array([0.5, 2. ]), array([1., 4.]))
    """
    u, m, v, peak = averages(rule, t, u, g, m, v, peak, xp=xp)
    step, V = scale(rule, t, u, g, m, v, peak, lr=lr, eps=eps, xp=xp)
    return Update(step, V, u, m, v, peak)


def averages(
    rule: Rule, t: Any, u: Any, g: Any, m: Any, v: Any, peak: Any = None, *, xp: ModuleType | Any = np
) -> tuple[Any, Any, Any, Any]:
    """The half of :func:`update` that remembers: the new u, m, v and peak.

    >>> averages(Rule(beta1=0.5), 1, 0.0, 3.0, 0.0, 0.0)
    (1.0, 1.5, 9.0, None)
    """
    beta1 = rule.beta1_at(t)
    # This form, not m + (1 - β1)·(g - m): the difference would lose g where the old m is far larger and β1 is near 0.
    m = beta1 * m + (1 - beta1) * g if rule.has_momentum else g
    if rule.adapts:
        u = 1 + rule.weights.discount(t) * u
        now = power(g if rule.p1 % 2 == 0 else abs(g), rule.p1)
        # This form, not (1 - 1/u)·v + now/u: there the rounding of 1 - 1/u would bias a float32 mean of many.
        v = now if isinstance(rule.weights, Latest) else v + (now - v) / u
    if rule.monotone:
        peak = xp.maximum(peak, u * v)
    return u, m, v, peak


def scale(
    rule: Rule,
    t: Any,
    u: Any,
    g: Any,
    m: Any,
    v: Any,
    peak: Any = None,
    *,
    lr: Any,
    eps: float,
    xp: ModuleType | Any = np,
) -> tuple[Any, Any]:
    """The half of :func:`update` that acts: the step α_t·(a·m + b·g)/V, and V.

    >>> scale(Rule(), 1, 1.0, 16.0, 16.0, 256.0, lr=1.0, eps=0.0)
    (np.float64(4.0), array(4.))
    """
    a, b = rule.lookahead_at(t)
    direction = a * m + b * g if rule.nesterov else a * m
    V: Any = 1.0
    if rule.adapts:
        V = root(peak / u if rule.monotone else v, rule.p2, xp) + eps
        V = xp.where(V == 0, 1.0, V)  # where nothing has come yet and eps is 0 or rounds to it, 0/0 is no step, not NaN
    return lr * rule.rate_at(t) * direction / V, V
