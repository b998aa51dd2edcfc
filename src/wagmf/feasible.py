"""The feasible sets F, each with its projection in the norm of diag(V).

    project(y, V) = argmin over x in F of Σ V_i·(x_i - y_i)²

Every projection is exact (closed form, sorting, or a Newton root carried to machine precision) and is written with
operators and an injected namespace ``xp`` (numpy, torch or jax.numpy), without branching on values, so the front ends
call the same text and may trace it. A set holds for an array as a whole; Ball, L1Ball and Simplex take an ``axis`` to
hold for each slice along it (``Simplex(axis=1)``: every row of a matrix sums to 1).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from wagmf.arguments import array, real, refuse

__all__ = ["Ball", "Box", "Everything", "Feasible", "HalfSpace", "Hyperplane", "L1Ball", "NonNegative", "Simplex"]

_Namespace = ModuleType | Any

# For Ball's root: halvings of log λ, after which 16 decades of V leave 4 % of doubt, then Newton steps, which double
# the digits. Newton alone would need up to 30 where a heavy coordinate already lies on the sphere. (Beyond 16 decades a
# light coordinate below 1e-8 of the radius no longer shows in ‖x‖, and is known to that only.)
_HALVINGS, _NEWTON_STEPS = 10, 6


class Feasible:
    """What every set offers; choose one of its subclasses.

    >>> Box(-1, 1).contains(np.array([0.5, -1.0]))
    True
    """

    @property
    def diameter(self) -> float:
        """D = max ‖x - y‖∞ over the set, which the regret bounds need."""
        return math.inf

    def project(self, y: Any, V: Any = 1.0, xp: _Namespace = np) -> Any:
        """The point of the set nearest to ``y`` in the norm of diag(V), V > 0."""
        raise NotImplementedError

    def lowest(self, direction: Any) -> Any:
        """The point x of the set where direction·x is least: the best fixed decision against linear losses."""
        refuse("feasible", self, "a linear loss has no least value on this set; name the comparator yourself")

    def contains(self, x: Any, tolerance: float = 1e-9) -> bool:
        """Whether ``x`` is in the set, up to a rounding tolerance relative to max(1, ‖x‖∞)."""
        x = np.asarray(x, dtype=np.float64)
        scale = max(1.0, float(np.max(np.abs(x), initial=0.0)))
        return math.isfinite(scale) and bool(np.all(np.abs(self.project(x) - x) <= tolerance * scale))


@dataclass(frozen=True, eq=False)
class Everything(Feasible):
    """All of R^d: no constraint.

    >>> Everything().project(np.array([3.0]))
    array([3.])
    """

    def project(self, y: Any, V: Any = 1.0, xp: _Namespace = np) -> Any:
        return y


@dataclass(frozen=True, eq=False)
class Box(Feasible):
    """lower ≤ x ≤ upper, numbers or arrays. The weighted projection clips, whatever V is.

    >>> Box(-1, 1).project(np.array([-3.0, 0.5]))
    array([-1. ,  0.5])
    """

    lower: Any
    upper: Any

    def __post_init__(self) -> None:
        lower, upper = _numbers("lower", self.lower, infinite=True), _numbers("upper", self.upper, infinite=True)
        if isinstance(lower, np.ndarray) or isinstance(upper, np.ndarray):
            try:
                lower, upper = (side.copy() for side in np.broadcast_arrays(lower, upper))
            except ValueError:
                refuse("lower, upper", (np.shape(lower), np.shape(upper)), "their shapes must broadcast")
        if not (
            np.all(np.less_equal(lower, upper)) and np.all(np.less(lower, math.inf) & np.greater(upper, -math.inf))
        ):
            refuse(
                "lower, upper",
                (self.lower, self.upper),
                "an empty box: lower must be <= upper, lower < inf, upper > -inf",
            )
        object.__setattr__(self, "lower", lower)
        object.__setattr__(self, "upper", upper)

    @property
    def diameter(self) -> float:
        return float(np.max(np.subtract(self.upper, self.lower)))

    def project(self, y: Any, V: Any = 1.0, xp: _Namespace = np) -> Any:
        return xp.clip(y, _like(self.lower, y, xp), _like(self.upper, y, xp))

    def lowest(self, direction: Any) -> Any:
        direction = np.asarray(direction)
        x = np.where(
            direction > 0, self.lower, np.where(direction < 0, self.upper, np.clip(0.0, self.lower, self.upper))
        )
        return x if np.all(np.isfinite(x)) else super().lowest(direction)


@dataclass(frozen=True, eq=False)
class NonNegative(Feasible):
    """x ≥ 0.

    >>> NonNegative().project(np.array([-3.0, 0.5]))
    array([0. , 0.5])
    """

    def project(self, y: Any, V: Any = 1.0, xp: _Namespace = np) -> Any:
        return xp.clip(y, 0.0, None)


@dataclass(frozen=True, eq=False)
class Ball(Feasible):
    """‖x - center‖₂ ≤ radius.

    >>> Ball(1.0).project(np.array([3.0, 4.0])).round(12)
    array([0.6, 0.8])
    """

    radius: float
    center: Any = 0.0
    axis: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "radius", real("radius", self.radius, above=0))
        object.__setattr__(self, "center", _numbers("center", self.center))
        _check_axis(self.axis)

    @property
    def diameter(self) -> float:
        return 2 * self.radius

    def project(self, y: Any, V: Any = 1.0, xp: _Namespace = np) -> Any:
        """x = c + z/(1 + λ/V) with z = y - c and λ ≥ 0 the root of ‖x(λ) - c‖ = radius.

        1/‖x(λ) - c‖ is concave in λ, so from below the root Newton's method on it never passes it.
        """
        center = _like(self.center, y, xp)

        def shrink(z: Any, V: Any) -> Any:
            scale = _largest(xp.abs(z), xp)
            scale = scale + (scale == 0)  # squares of z/scale neither overflow nor vanish
            z, radius = z / scale, self.radius / scale
            excess = xp.clip(_norm(z, xp) / radius - 1, 0.0, None)
            low, high = excess * -_largest(-V, xp), excess * _largest(V, xp)
            for _ in range(_HALVINGS):
                middle = xp.sqrt(low) * xp.sqrt(high)
                outside = _norm(z / (1 + middle / V), xp) > radius
                low, high = xp.where(outside, middle, low), xp.where(outside, high, middle)
            for _ in range(_NEWTON_STEPS):
                x = z / (1 + low / V)
                size, slope = _norm(x, xp), xp.sum(x * x / (V + low), -1, keepdims=True)
                step = (size / radius - 1) * size**2 / (slope + (slope == 0))
                low = xp.minimum(low + xp.clip(step, 0.0, None), high)
            x = z / (1 + low / V)
            return scale * x * xp.clip(radius / xp.maximum(_norm(x, xp), radius), None, 1.0)

        return center + _slicewise(shrink, y - center, V, self.axis, xp)

    def lowest(self, direction: Any) -> Any:
        g = _whole(direction, self)
        g = g / (np.max(np.abs(g), initial=0.0) or 1.0)
        return self.center - self.radius * g / (np.linalg.norm(g) or 1.0)


@dataclass(frozen=True, eq=False)
class L1Ball(Feasible):
    """Σ|x_i| ≤ radius.

    >>> L1Ball(1.0).project(np.array([3.0, 0.5]))
    array([1., 0.])
    """

    radius: float
    axis: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "radius", real("radius", self.radius, above=0))
        _check_axis(self.axis)

    @property
    def diameter(self) -> float:
        return 2 * self.radius

    def project(self, y: Any, V: Any = 1.0, xp: _Namespace = np) -> Any:
        def shrink(y: Any, V: Any) -> Any:
            size = xp.abs(y)
            inside = xp.sum(size, -1, keepdims=True) <= self.radius
            return xp.where(inside, y, xp.sign(y) * _onto_simplex(size, V, self.radius, xp))

        return _slicewise(shrink, y, V, self.axis, xp)

    def lowest(self, direction: Any) -> Any:
        g = _whole(direction, self)
        x = np.zeros_like(g)
        largest = np.unravel_index(np.argmax(np.abs(g)), g.shape)
        x[largest] = -self.radius * np.sign(g[largest])
        return x


@dataclass(frozen=True, eq=False)
class Simplex(Feasible):
    """x ≥ 0 and Σx_i = total: the probability distributions, for total = 1.

    >>> Simplex().project(np.array([2.0, 1.5, -1.0]))
    array([0.75, 0.25, 0.  ])
    """

    total: float = 1.0
    axis: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "total", real("total", self.total, above=0))
        _check_axis(self.axis)

    @property
    def diameter(self) -> float:
        return self.total

    def project(self, y: Any, V: Any = 1.0, xp: _Namespace = np) -> Any:
        if 0 in y.shape:
            refuse("shape of x", tuple(y.shape), f"no numbers cannot sum to {self.total:g}")
        return _slicewise(lambda y, V: _onto_simplex(y, V, self.total, xp), y, V, self.axis, xp)

    def lowest(self, direction: Any) -> Any:
        g = _whole(direction, self)
        x = np.zeros_like(g)
        x[np.unravel_index(np.argmin(g), g.shape)] = self.total
        return x


@dataclass(frozen=True, eq=False)
class _Plane(Feasible):
    a: Any
    b: float

    def __post_init__(self) -> None:
        a = _numbers("a", self.a)
        if not np.any(a):
            refuse("a", self.a, "a must not be zero everywhere")
        object.__setattr__(self, "a", a)
        object.__setattr__(self, "b", real("b", self.b))

    def _beyond(self, y: Any, xp: _Namespace) -> tuple[Any, Any]:
        """a and a·y - b, both over max|a|: squares then neither overflow nor vanish."""
        scale = float(np.max(np.abs(self.a)))
        a = _like(self.a / scale, y, xp) * xp.ones_like(y)
        return a, xp.sum(a * y) - self.b / scale

    def _onto_plane(self, y: Any, V: Any, xp: _Namespace) -> Any:
        """Along a/V to the plane a·x = b; the second time takes back the rounding of a first step from far away."""
        for _ in range(2):
            a, beyond = self._beyond(y, xp)
            y = y - beyond / xp.sum(a * a / V) * (a / V)
        return y


@dataclass(frozen=True, eq=False)
class HalfSpace(_Plane):
    """a·x ≤ b.

    >>> HalfSpace([1.0, 1.0], 1.0).project(np.array([1.0, 1.0]))
    array([0.5, 0.5])
    """

    def project(self, y: Any, V: Any = 1.0, xp: _Namespace = np) -> Any:
        return xp.where(self._beyond(y, xp)[1] <= 0, y, self._onto_plane(y, V, xp))


@dataclass(frozen=True, eq=False)
class Hyperplane(_Plane):
    """a·x = b.

    >>> Hyperplane([1.0, 1.0], 1.0).project(np.array([0.0, 0.0]))
    array([0.5, 0.5])
    """

    def project(self, y: Any, V: Any = 1.0, xp: _Namespace = np) -> Any:
        return self._onto_plane(y, V, xp)


def _onto_simplex(y: Any, V: Any, total: float, xp: _Namespace) -> Any:
    """x = max(y - θ/V, 0) with θ such that Σx = total, along the last axis.

    Σ max(y_i - θ/V_i, 0) is the largest, over subsets K, of Σ_K (y_i - θ/V_i): a maximum of falling lines in θ, whose
    root is the largest of their roots (Σ_K y_i - total)/Σ_K 1/V_i. A K of the largest V_i·y_i takes it, hence the sort.
    """
    take = getattr(xp, "take_along_dim", None) or xp.take_along_axis  # torch's name for it, and the others'
    for _ in range(2):  # moving y along 1/V changes nothing but θ: the second time takes back the rounding of the first
        order = xp.argsort(-(V * y))
        sums, room = xp.cumsum(take(y, order, -1), -1), xp.cumsum(take(1 / V, order, -1), -1)
        y = y - _largest((sums - total) / room, xp) / V
    return xp.clip(y, 0.0, None)


def _slicewise(function: Callable[[Any, Any], Any], y: Any, V: Any, axis: int | None, xp: _Namespace) -> Any:
    """``function(y, V)``, written for the last axis, on the whole of ``y`` or on each slice along ``axis``."""
    V = V * xp.ones_like(y)
    if axis is None:
        return function(y.reshape(-1), V.reshape(-1)).reshape(y.shape)
    return xp.moveaxis(function(xp.moveaxis(y, axis, -1), xp.moveaxis(V, axis, -1)), -1, axis)


def _norm(x: Any, xp: _Namespace) -> Any:
    return xp.sqrt(xp.sum(x * x, -1, keepdims=True))


def _largest(x: Any, xp: _Namespace) -> Any:
    return xp.amax(x, -1, keepdims=True) if x.shape[-1] else xp.sum(x, -1, keepdims=True)


def _like(value: Any, y: Any, xp: _Namespace) -> Any:
    """A number as it is; an array as one of ``y``'s framework, precision and device."""
    if isinstance(value, float):
        return value
    try:
        fits = np.broadcast_shapes(value.shape, tuple(y.shape)) == tuple(y.shape)
    except ValueError:
        fits = False
    if not fits:
        refuse("shape of x", tuple(y.shape), f"the set is of shape {value.shape}, which must broadcast to it")
    place = {"device": y.device} if xp.__name__ == "torch" else {}
    return xp.asarray(value, dtype=y.dtype, **place)


def _numbers(name: str, value: Any, infinite: bool = False) -> Any:
    """A float, or a float64 array of our own."""
    numbers = array(name, value, infinite=infinite)
    return numbers if numbers.ndim else float(numbers)


def _check_axis(axis: Any) -> None:
    if axis is not None and (isinstance(axis, bool) or not hasattr(axis, "__index__")):
        refuse("axis", axis, "axis must be an integer, or None for the array as a whole")


def _whole(direction: Any, feasible: "Ball | L1Ball | Simplex") -> Any:
    if feasible.axis is not None:
        refuse("axis", feasible.axis, "only a set that holds for the array as a whole has a single lowest point")
    return np.asarray(direction, dtype=np.float64)
