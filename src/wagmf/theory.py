"""What can be proved of a rule: its certificate, its regret bounds (as corrected, see docs/theory.md), its regret.

Throughout, ‖x - y‖∞ ≤ D on the feasible set, |g_i| ≤ G, and α_t and β1_t do not increase.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wagmf.arguments import array, flag, integer, real, refuse
from wagmf.feasible import Feasible
from wagmf.rule import Rule, update
from wagmf.weights import Equal, Exponential, Latest, Linear, Polynomial

__all__ = ["Certificate", "bound", "certify", "regret"]

_ROUNDING = 1e-12


@dataclass(frozen=True)
class Certificate:
    """The answer of :func:`certify`; true when the condition holds, and readable when printed.

    ``first_violation`` is the first t at which V_t/α_t can shrink; None when there is none, or none up to ``horizon``.
    ``proved`` tells an analytic answer, valid for every t, from a numeric one, valid up to ``horizon``. The condition
    is not the whole of Theorem 1: ``caveat`` says what else keeps its bound from showing that R(T)/T goes to 0.

    >>> bool(certify(Rule()))
    True
    """

    holds: bool
    decay: float
    proved: bool
    horizon: int
    first_violation: int | None
    reason: str
    caveat: str = ""

    def __bool__(self) -> bool:
        return self.holds

    def __str__(self) -> str:
        schedule = {0.0: "a constant step size", 0.5: "α_t = α/√t", 1.0: "α_t = α/t"}.get(
            self.decay, f"α_t = α·t^-{self.decay:g}"
        )
        verdict = "holds" if self.holds else "does not hold"
        if self.first_violation is not None:
            extent = f"first broken at t = {self.first_violation:,}"
        elif not self.holds:
            extent = f"broken after t = {self.horizon:,}"
        else:
            extent = "for every t" if self.proved else f"for t up to {self.horizon:,}"
        return f"With {schedule} the convergence condition {verdict} ({extent}). {self.reason}"


def certify(rule: Rule, *, decay: float | None = None, horizon: int = 1_000_000) -> Certificate:
    """Say whether b_t^(1/p2)/α_t never decreases, on which Theorem 1 rests: no coordinate's step may ever grow.

    In terms of the window: 1 - 1/u_t ≥ ((t-1)/t)^(p2·decay) for all t ≥ 2; with the running maximum
    u_{t-1}/u_t ≥ ((t-1)/t)^(p2·decay). The condition is about V and α alone, whatever momentum the rule has.

    Args:
        rule: the method.
        decay: ask about α_t = α·t^-decay; by default the rule's own decay, or the theory's 1/2 where that is 0.
        horizon: how far to look numerically.

    >>> print(certify(Rule()))
    With α_t = α/√t the convergence condition holds (for every t). Weights t^1 need p2·decay >= 2;
    here it is 2, exactly enough.
    >>> certify(Rule(Exponential(0.999), p2=2)).first_violation
    2
    """
    _check_rule(rule)
    horizon = integer("horizon", horizon, least=2, most=10**12)
    decay = (rule.decay or 0.5) if decay is None else real("decay", decay, least=0)
    asked = rule.with_decay(decay)
    answer = _analytic(asked)
    violation = None if answer and answer[0] else _first_violation(asked, horizon)
    if answer:
        holds, reason = answer
    else:
        holds, reason = violation is None, "Checked numerically, step by step."
    return Certificate(holds, decay, answer is not None, horizon, violation, reason, _caveat(asked) if holds else "")


def _caveat(rule: Rule) -> str:
    """Why Theorem 1's bound does not go to 0 when divided by T, though the condition holds."""
    if not 0 < rule.decay < 1:
        return (
            "Theorem 1's bound is of the order of T with this schedule: it takes 0 < decay < 1 for R(T)/T to go to 0."
        )
    if rule.beta1 and rule.beta1_decay == 1:
        return "Theorem 1's bound also needs momentum that fades (beta1_decay < 1), or none, for R(T)/T to go to 0."
    return ""


def _check_rule(rule: Any) -> None:
    if not isinstance(rule, Rule):
        refuse("rule", rule, "rule must be a wagmf.Rule; wagmf.method(name).rule gives a named one")


def _analytic(rule: Rule) -> tuple[bool, str] | None:
    """The answer for the families where it is known, with the reason in words."""
    weights, q = rule.weights, rule.p2 * rule.decay if rule.adapts else math.inf
    if not rule.adapts:
        return True, "V is the identity, and step sizes do not increase."
    if rule.monotone and (rule.start > 0 or isinstance(weights, Latest)):
        return True, "The running maximum never lets V shrink."
    if rule.monotone and q >= 1 and isinstance(weights, Equal | Linear | Exponential):
        # u_t/t does not grow for these, so V ≥ (maximum/u)^(1/p2) falls no faster than t^(-1/p2).
        return True, "The running maximum lets V shrink only as fast as the window grows, and step sizes fall faster."
    if rule.monotone:
        return None
    if rule.decay == 0:
        return False, "With a constant step size V itself must not shrink, and any weighted mean can."
    if isinstance(weights, Exponential | Latest):
        return False, (
            "Such weights forget: after a large gradient V shrinks by a constant factor a step, faster than any power "
            "of t, and steps grow again."
        )
    if isinstance(weights, Equal | Linear | Polynomial):
        eta = {Equal: 0.0, Linear: 1.0}.get(type(weights), getattr(weights, "eta", 0.0))
        # Σ_{i≤t} i^η / Σ_{i<t} i^η ≤ (t/(t-1))^q is hardest as t → ∞ for η ≥ 0, and at t = 2 for η < 0.
        need = eta + 1 if eta >= 0 else math.log2(1 + 2**eta)
        on_the_edge = math.isclose(q, need, rel_tol=1e-15)  # but for the rounding of p2·decay and eta + 1 themselves
        compare = "exactly enough" if on_the_edge else ("enough" if q > need else "too little")
        return q > need or on_the_edge, (
            f"Weights t^{eta:g} need p2·decay >= {need:.6g}; here it is {q:.6g}, {compare}."
        )
    return None


def _first_violation(rule: Rule, horizon: int) -> int | None:
    """The first t ≤ horizon at which V_t/α_t can shrink."""
    if not rule.adapts:
        return None
    q = rule.p2 * rule.decay
    if q == 0 and not rule.monotone:
        return 2  # any mean can shrink, if only by less than rounding shows
    before, below_peak = 1 + rule.weights.discount(1) * rule.start, 1.0
    for t in range(2, horizon + 1):
        rho = rule.weights.discount(t)
        u = 1 + rho * before
        kept = 1 - 1 / u
        if rule.monotone:
            # Without new gradients u·v is discounted by ρ, and the maximum rises only where that lifts it above itself.
            kept = max(1.0, rho * below_peak) * before / u
            below_peak = min(1.0, rho * below_peak)
        if not kept >= (1 - 1 / t) ** q * (1 - _ROUNDING):
            return t
        before = u
    return None


def bound(
    rule: Rule,
    gradients: ArrayLike,
    *,
    lr: float,
    diameter: float,
    theorem: int = 1,
    eps: float = 0.0,
    as_printed: bool = False,
) -> float:
    """The regret bound after these gradients, by one of the paper's theorems as corrected.

    Theorem 1 holds for any rule whose certificate holds, Theorem 2 for equal weights with p1 = p2 >= 2, Theorem 3 for
    WADA; all for momentum without ``debias`` or ``nesterov``, and 2 and 3 for α_t = α/√t. The bound is infinite where
    the theorem says nothing (beta1 > 0 with beta1_decay = 1 in Theorems 2 and 3).

    Args:
        rule: the method; its ``decay`` is the one of the run.
        gradients: one row per step, as the learner received them.
        lr: α.
        diameter: D, largest distance in one coordinate between two feasible points (``feasible.diameter``).
        theorem: 1, 2 or 3.
        eps: what the run added to V. With 0, and a set that ties coordinates together, Theorem 1 is silent on the steps
            before a coordinate's first gradient.
        as_printed: the paper's own formula for Theorem 2 or 3, to see by how much it fails; never a guarantee.

    >>> wada = Rule(beta1_decay=0.9, decay=0.5)
    >>> round(bound(wada, np.ones((100, 1)), lr=0.5, diameter=2.0, theorem=3), 1)
    20860.8
    """
    lr, diameter, eps = real("lr", lr, above=0), real("diameter", diameter, above=0), real("eps", eps, least=0)
    _check_rule(rule)
    flag("as_printed", as_printed)
    g = _rows("gradients", gradients)
    if isinstance(theorem, bool) or theorem not in (1, 2, 3):
        refuse("theorem", theorem, "theorem must be 1, 2 or 3")
    if rule.debias or rule.nesterov:
        refuse("rule", rule, "the theorems are about plain momentum: debias and nesterov must be False")
    if theorem == 1:
        if as_printed:
            refuse("as_printed", True, "Theorem 1 is right as printed, but for its condition; see certify")
        return float(_theorem1(rule, g, lr, diameter, eps))
    if rule.decay != 0.5:
        refuse("decay", rule.decay, f"Theorem {theorem} is about α_t = α/√t: decay must be 0.5")
    return float((_theorem2 if theorem == 2 else _theorem3)(rule, g, lr, diameter, eps, as_printed))


def _theorem1(rule: Rule, g: NDArray[np.float64], lr: float, D: float, eps: float) -> float:
    broken = _first_violation(rule, len(g))
    if broken:
        refuse("rule", rule, f"Theorem 1 needs the convergence condition, broken at t = {broken}; see certify")
    u, m, v, peak = rule.start, *np.zeros((3, g.shape[1]))
    V, alpha, past, steps = np.zeros(g.shape[1]), lr, 0.0, 0.0
    for t, g_t in enumerate(g, start=1):
        beta1, alpha = rule.beta1_at(t), lr * rule.rate_at(t)
        past += beta1 * V.sum() / ((1 - beta1) * alpha)
        _, V, u, m, v, peak = update(rule, t, u, g_t, m, v, peak, lr=lr, eps=eps)
        steps += alpha * np.sum(m * m / V)
        # Where no gradient has come yet update() divides by a V of 1 to make no step; the theorem's V is eps there.
        V = np.where(v > 0, V, eps) if rule.adapts else V * np.ones_like(g_t)
    return D**2 / 2 * (V.sum() / (alpha * (1 - rule.beta1)) + past) + steps / (1 - rule.beta1)


def _theorem2(rule: Rule, g: NDArray[np.float64], lr: float, D: float, eps: float, as_printed: bool) -> float:
    if not (isinstance(rule.weights, Equal) and rule.p1 == rule.p2 >= 2) or rule.monotone:
        refuse("rule", rule, "Theorem 2 is about equal weights with p1 = p2 >= 2")
    (T, d), G, p = g.shape, np.max(np.abs(g)), rule.p1
    lost = 1.0 if as_printed else lr
    dimensions = 1 if as_printed else d
    V = T ** (0.5 - 1 / p) * np.sum(_norms(g, p)) + d * eps * math.sqrt(T)
    return (
        D**2 / (2 * lost * (1 - rule.beta1)) * V
        + _momentum_term(rule, D, G + eps) * dimensions / lost
        + 2 * lr / (1 - rule.beta1) ** 3 * np.sum(_norms(g, 2))
    )


def _theorem3(rule: Rule, g: NDArray[np.float64], lr: float, D: float, eps: float, as_printed: bool) -> float:
    if not (isinstance(rule.weights, Linear) and (rule.p1, rule.p2) == (2, 4)) or rule.monotone:
        refuse("rule", rule, "Theorem 3 is about WADA: linear weights, p1 = 2, p2 = 4")
    (T, d), G = g.shape, np.max(np.abs(g))
    S = np.sum(np.sum(np.arange(1, T + 1)[:, None] * g**2, axis=0) ** 0.25)
    kept = 1 - rule.beta1
    if as_printed:
        return D**2 / (2 * kept) * S + _momentum_term(rule, D, math.sqrt(G)) + lr * d * G / kept**2 * S
    V = 2**0.25 * S + d * eps * math.sqrt(T)
    return D**2 / (2 * lr * kept) * V + _momentum_term(rule, D, math.sqrt(G) + eps) * d / lr + 4 * lr * G / kept**3 * S


def _momentum_term(rule: Rule, D: float, largest_V: float) -> float:
    """β1·D²·max V/(2(1-β1)(1-λ)²): what the fading momentum adds, but for 1/α and d."""
    if rule.beta1 == 0:
        return 0.0
    if rule.beta1_decay == 1:
        return math.inf
    return rule.beta1 * D**2 * largest_V / (2 * (1 - rule.beta1) * (1 - rule.beta1_decay) ** 2)


def _norms(g: NDArray[np.float64], p: float) -> NDArray[np.float64]:
    """‖g_{1:T,i}‖_p of every coordinate."""
    return np.sum(np.abs(g) ** p, axis=0) ** (1 / p)


def regret(
    gradients: ArrayLike, points: ArrayLike, *, best: ArrayLike | None = None, feasible: Feasible | None = None
) -> NDArray[np.float64]:
    """R(t) = Σ_{s≤t} g_s·(x_s - x*) for t = 1…T: the regret of linear losses, a bound on that of convex ones.

    Args:
        gradients: one row per step.
        points: the x_t at which they were taken, one row per step.
        best: the fixed x* to compare with; by default the best one in hindsight over ``feasible``.
        feasible: the set x* is sought in.

    >>> from wagmf.feasible import Box
    >>> regret([[1.0], [1.0]], [[0.0], [-1.0]], feasible=Box(-1, 1))
    array([1., 1.])
    """
    g, x = _rows("gradients", gradients), _rows("points", points)
    if g.shape != x.shape:
        refuse("points", x.shape, f"there must be one point per gradient: shape {g.shape}")
    if (best is None) == (feasible is None):
        refuse("best, feasible", (best, feasible), "give exactly one of them")
    if feasible is not None and not isinstance(feasible, Feasible):
        refuse("feasible", feasible, "feasible must be one of wagmf.feasible, such as Box(-1, 1)")
    comparator = feasible.lowest(g.sum(axis=0)) if feasible is not None else np.atleast_1d(array("best", best))
    if comparator.shape != g.shape[1:]:
        refuse("best", best, f"best must be one finite point of {g.shape[1]} coordinates")
    return np.cumsum(np.sum(g * (x - comparator), axis=1))


def _rows(name: str, values: Any) -> NDArray[np.float64]:
    rows = array(name, values, finite=False)
    if rows.ndim == 1:
        rows = rows[:, None]
    if rows.ndim != 2 or rows.size == 0:
        refuse(name, rows.shape, f"{name} must have one row per step, at least one")
    if not np.all(np.isfinite(rows)):
        row = int(np.argmin(np.all(np.isfinite(rows), axis=1)))
        refuse(name, rows[row], f"{name} must be finite; row {row} is not")
    return rows
