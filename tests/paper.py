"""The paper's algorithms, transcribed literally: raw sums, in 50 digits, sharing nothing with the library.

The gradients are given in advance, so a run is a function of them. One coordinate at a time, all lists start at t = 1.
"""

from collections.abc import Callable, Sequence

import mpmath
from mpmath import mpf

mpmath.mp.dps = 50
EPS = mpf("1e-7")

# γ_t of Section 4.3; ∞·γ_{t-1} is a factor no sum in 50 digits can tell from infinity.
GAMMA: dict[str, Callable[[int], mpf]] = {
    "1": lambda t: mpf(1),
    "t": lambda t: mpf(t),
    "t^-0.1": lambda t: mpf(t) ** mpf(-0.1),
    "0.999^-t": lambda t: mpf(0.999) ** -t,
    "0.99^-t": lambda t: mpf(0.99) ** -t,
    "inf^t": lambda t: mpf(10) ** (120 * t),
}


def algorithm2(
    g: Sequence[float],
    *,
    gamma: str,
    p1: float,
    p2: float,
    beta1: float = 0.9,
    decay: float = 0,
    lr: float = 0.1,
    uncorrected: float | None = None,
    running_maximum: bool = False,
    bias_correction: bool = False,
    lookahead: bool = False,
) -> tuple[list[mpf], list[mpf]]:
    """Algorithm 2 from x_1 = 0 without constraint: the lists of x_{t+1} and V_t, with |g|^p1 for g^p1, and ε on V.

    ``uncorrected`` = β2 takes Table 1's (1-β2)·Σ β2^(t-i)·g_i² for v_t·b_t. ``running_maximum`` is Table 1's AMSGrad.
    ``bias_correction`` divides m_t by 1 - β1^t as Kingma and Ba do; ``lookahead`` is Dozat's m in NAdam.
    """
    m, v, total, largest, x = mpf(0), mpf(0), mpf(0), mpf(0), mpf(0)
    xs, Vs = [], []
    b1 = mpf(beta1)
    for t, g_t in enumerate(map(mpf, map(float, g)), start=1):
        m = b1 * m + (1 - b1) * g_t
        v = v + GAMMA[gamma](t) * abs(g_t) ** mpf(p1)
        total = total + GAMMA[gamma](t)
        b = 1 / total if uncorrected is None else (1 - mpf(uncorrected)) * mpf(uncorrected) ** t
        largest = max(largest, v * b)
        V = mpf(1)
        if p2 != float("inf"):
            V = (largest if running_maximum else v * b) ** (1 / mpf(p2)) + EPS
        seen, soon = (1 - b1**t, 1 - b1 ** (t + 1)) if bias_correction else (1, 1)
        phi = b1 * m / soon + (1 - b1) * g_t / seen if lookahead else m / seen
        x = x - mpf(lr) / mpf(t) ** mpf(decay) * phi / V
        xs.append(x)
        Vs.append(V)
    return xs, Vs


def algorithm3(g: Sequence[float], lr: float = 0.1, beta1: float = 0.9) -> list[mpf]:
    """Algorithm 3, WADA: v_t = v_{t-1} + t·g², V_t = (2·v_t/(t(t+1)))^(1/4)."""
    m, v, x, xs = mpf(0), mpf(0), mpf(0), []
    for t, g_t in enumerate(map(mpf, map(float, g)), start=1):
        m = mpf(beta1) * m + (1 - mpf(beta1)) * g_t
        v = v + t * g_t**2
        x = x - mpf(lr) * m / ((2 * v / (t * (t + 1))) ** mpf(0.25) + EPS)
        xs.append(x)
    return xs


def algorithm4(g: Sequence[float], p: int, lr: float = 0.1, beta1: float = 0.9) -> list[mpf]:
    """Algorithm 4, the stable form of WADA (p = 2), WADA-v3 (3) and WADA-v4 (4)."""
    m, v, x, xs = mpf(0), mpf(0), mpf(0), []
    for t, g_t in enumerate(map(mpf, map(float, g)), start=1):
        m = mpf(beta1) * m + (1 - mpf(beta1)) * g_t
        v = (1 - mpf(2) / (t + 1)) * v + mpf(2) / (t + 1) * abs(g_t) ** p
        x = x - mpf(lr) * m / (v ** mpf(0.25) + EPS)
        xs.append(x)
    return xs


# Every method of the table, as the paper (or, where it is silent, the method's own paper) writes it.
AS_WRITTEN: dict[str, dict] = {
    "wada": {"gamma": "t", "p1": 2, "p2": 4},
    "wada_v3": {"gamma": "t", "p1": 3, "p2": 4},
    "wada_v4": {"gamma": "t", "p1": 4, "p2": 4},
    "adam": {"gamma": "0.999^-t", "p1": 2, "p2": 2, "bias_correction": True},
    "adam, paper": {"gamma": "0.999^-t", "p1": 2, "p2": 2},
    "amsgrad": {"gamma": "0.999^-t", "p1": 2, "p2": 2, "uncorrected": 0.999, "running_maximum": True},
    "adamnc": {"gamma": "1", "p1": 2, "p2": 2},
    "nosadam": {"gamma": "t^-0.1", "p1": 2, "p2": 2},
    "padam": {"gamma": "0.999^-t", "p1": 2, "p2": 8, "uncorrected": 0.999, "running_maximum": True},
    "nadam": {"gamma": "0.999^-t", "p1": 2, "p2": 2, "bias_correction": True, "lookahead": True},
    "nadam, paper": {"gamma": "0.999^-t", "p1": 2, "p2": 2, "lookahead": True},
    "adagrad": {"gamma": "1", "p1": 2, "p2": 2, "beta1": 0, "decay": 0.5},
    "sc_adagrad": {"gamma": "1", "p1": 2, "p2": 1, "beta1": 0, "decay": 1},
    "rmsprop": {"gamma": "0.99^-t", "p1": 2, "p2": 2, "beta1": 0, "uncorrected": 0.99},
    "rmsprop_nc": {"gamma": "1", "p1": 2, "p2": 2, "beta1": 0},
    "sc_rmsprop": {"gamma": "t^-0.1", "p1": 2, "p2": 1, "beta1": 0, "decay": 1},
    "signsgd": {"gamma": "inf^t", "p1": 1, "p2": 1, "beta1": 0},
    "momentum": {"gamma": "1", "p1": 2, "p2": float("inf")},
    "ogd": {"gamma": "1", "p1": 2, "p2": float("inf"), "beta1": 0},
}
