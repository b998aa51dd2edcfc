"""Every method of the table as an optax gradient transformation.

    optimizer = wada(1e-3)                       # where optax.adam(1e-3) was

They are optax's own kind of part, so what optax has for schedules, masks, weight decay, clipping, accumulation and
injected hyperparameters works with them. t and u are one pair for all parameters: optax has no gradient that is missing
at one step and there at the next. A complex number is taken as a pair of real ones, each adapted by itself.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, TypedDict

import jax
import jax.numpy as jnp
import optax
from jax.core import Tracer

from wagmf.arguments import real, refuse
from wagmf.feasible import Feasible
from wagmf.rule import Rule, as_rule, scale, update

__all__ = ["Options", "WAGMFState", "known", "project_in", "projected", "scale_by_wagmf", "wagmf"]

Number: TypeAlias = float | jax.Array
StepSize: TypeAlias = float | jax.Array | Callable[[Any], Any]
Optimizer: TypeAlias = optax.GradientTransformationExtraArgs


class Options(TypedDict, total=False):
    """What every optimizer takes besides its own parameters; see :func:`wagmf`.

    >>> "weight_decay" in Options.__annotations__
    True
    """

    eps: Number
    decay: float | None
    weight_decay: StepSize
    mask: Any
    feasible: Any
    state_dtype: Any


class WAGMFState(NamedTuple):
    """t, u, m, v and the running maximum, as :func:`scale_by_wagmf` keeps them; None what the rule needs not.

    >>> import wagmf
    >>> scale_by_wagmf(wagmf.method("ogd").rule).init(jnp.zeros(2))
    WAGMFState(count=Array(0, dtype=int32), window=None, m=None, v=None, peak=None)
    """

    count: Any
    window: Any
    m: Any
    v: Any
    peak: Any


def scale_by_wagmf(
    rule: Rule | None = None, eps: Number = 1e-7, *, state_dtype: Any = None
) -> optax.GradientTransformation:
    """Turn gradients into the steps of a rule, for lr = 1 and before the sign is turned.

        m ← β1_t·m + (1 - β1_t)·g
        u ← 1 + ρ_t·u
        v ← v + (|g|^p1 - v)/u
        g ← t^-decay·m / V                        V = v^(1/p2) + eps

    Args:
        rule: the method; ``wagmf.method(name).rule`` gives a named one, the default is WADA.
        eps: added to V.
        state_dtype: of m; v and the maximum have it only if it is no less precise than float32, since in bfloat16 an
            average of many would stall. By default all have that of the parameter, but at least float32.

    >>> import wagmf
    >>> steps = scale_by_wagmf(wagmf.method("signsgd").rule, eps=0.0)
    >>> steps.update(jnp.array([3.0, -0.5]), steps.init(jnp.zeros(2)))[0]
    Array([ 1., -1.], dtype=float32)
    """
    rule, eps, state_dtype = as_rule(rule), _number("eps", eps, least=0), _dtype(state_dtype)

    def init(params: Any) -> WAGMFState:
        window = jnp.asarray(rule.start, dtype=float) if rule.carries_window else None
        # Only m may be less precise: an average over many steps would stall in bfloat16.
        dtypes = {"m": state_dtype, "v": _at_least_float32(state_dtype), "peak": _at_least_float32(state_dtype)}
        kept = (_zeros(params, dtypes[name]) if keep else None for name, keep in rule.keeps.items())
        return WAGMFState(jnp.zeros((), jnp.int32), window, *kept)

    def step(updates: Any, state: Any, params: Any = None) -> tuple[Any, WAGMFState]:
        del params
        count = jnp.asarray(optax.safe_increment(state.count))
        leaves, tree = jax.tree.flatten(updates, is_leaf=_is_none)
        rows = [[None] * len(leaves) if row is None else tree.flatten_up_to(row) for row in state[2:]]
        new = [_step(rule, eps, count, state.window, *each) for each in zip(leaves, *rows, strict=True)]
        updates, *kept = (tree.unflatten([leaf[place] for leaf in new]) for place in range(4))
        kept = [now if old is not None else None for now, old in zip(kept, state[2:], strict=True)]
        return updates, WAGMFState(count, _window(rule, count, state.window), *kept)

    return optax.GradientTransformation(init, step)


def wagmf(
    learning_rate: StepSize,
    rule: Rule | None = None,
    *,
    eps: Number = 1e-7,
    decay: float | None = None,
    weight_decay: StepSize = 0.0,
    mask: Any = None,
    feasible: Any = None,
    state_dtype: Any = None,
) -> Optimizer:
    """The weighted adaptive gradient method that ``rule`` describes.

    Args:
        learning_rate: the step size α, or a schedule of it.
        rule: the method; the default is WADA.
        eps: added to V.
        decay: α_t = learning_rate·t^-decay; by default the rule's own.
        weight_decay: λ of decoupled decay, x ← (1 - α_t·λ)·x - ..., as in AdamW, or a schedule of it. For an L2 penalty
            put ``optax.add_decayed_weights`` before the optimizer.
        mask: which parameters decay, as ``optax.add_decayed_weights`` takes it.
        feasible: the set every parameter is projected onto in the norm of its V, see :func:`project_in`.
        state_dtype: see :func:`scale_by_wagmf`.

    >>> optimizer = wagmf(0.5, Rule(beta1=0.0), eps=0.0)
    >>> x = jnp.ones(2)
    >>> updates, state = optimizer.update(jnp.ones(2), optimizer.init(x), x)
    >>> optax.apply_updates(x, updates)
    Array([0.5, 0.5], dtype=float32)
    """
    rule = as_rule(rule, known("decay", decay))
    parts = [scale_by_wagmf(rule.with_decay(0.0), eps, state_dtype=state_dtype), _decoupled(weight_decay, mask)]
    if rule.decay:  # of both parts of the step
        parts.append(optax.scale_by_schedule(lambda count: rule.rate_at(count + 1.0)))
    parts.append(optax.scale_by_learning_rate(_or_schedule("lr", learning_rate, "learning rate")))
    optimizer = optax.chain(*parts)
    return optimizer if feasible is None else project_in(feasible, optimizer, rule, eps)


def project_in(feasible: Any, optimizer: optax.GradientTransformation, rule: Rule, eps: Number = 1e-7) -> Optimizer:
    """Let every step of ``optimizer`` end in a feasible set: the nearest point in the norm of diag(V).

        x ← P_F^V( x + update )

    Args:
        feasible: one of ``wagmf.feasible`` for every parameter, or a tree of them that is a prefix of the parameters'
            (None: all of R^d).
        optimizer: what has :func:`scale_by_wagmf` in it,
        rule: with this rule,
        eps: and this eps, of which V is.

    The updates lead to the set up to rounding; :func:`projected` takes that back.

    >>> from wagmf import Box
    >>> optimizer = project_in(Box(-1, 1), optax.chain(scale_by_wagmf(Rule()), optax.scale(-50.0)), Rule())
    >>> x = jnp.zeros(2)
    >>> optimizer.update(jnp.array([1.0, 0.0]), optimizer.init(x), x)[0]
    Array([-1.,  0.], dtype=float32)
    """
    rule, eps, inner = as_rule(rule), _number("eps", eps, least=0), optax.with_extra_args_support(optimizer)
    _check_sets(feasible)

    def step(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        if params is None:
            refuse("params", None, "to project takes the parameters: update(grads, state, params)")
        updates, state = inner.update(updates, state, params, **extra)
        leaves, tree = jax.tree.flatten(updates, is_leaf=_is_none)
        V = _norms(rule, eps, state, tree)
        rows = zip(leaves, tree.flatten_up_to(params), _spread(feasible, params, tree), V, strict=True)
        return tree.unflatten([_projected_update(*each) for each in rows]), state

    return optax.GradientTransformationExtraArgs(inner.init, step)


def projected(params: Any, feasible: Any) -> Any:
    """The parameters, each moved to the nearest point of its set: to start from, or after ``optax.apply_updates``.

    >>> from wagmf import Box
    >>> projected({"w": jnp.array([3.0, 0.5])}, Box(-1, 1))
    {'w': Array([1. , 0.5], dtype=float32)}
    """
    _check_sets(feasible)
    params = jax.tree.map(jnp.asarray, params)
    leaves, tree = jax.tree.flatten(params, is_leaf=_is_none)
    sets = _spread(feasible, params, tree)
    return tree.unflatten([x if x is None else _project(*each) for x, *each in zip(leaves, leaves, sets, strict=True)])


@jax.custom_jvp
def _sqrt(x: Any) -> Any:
    return jnp.sqrt(x)


@_sqrt.defjvp
def _(primals: Any, tangents: Any) -> Any:
    """At 0, where no gradient has come yet, the slope is 0 and not infinite: meta-gradients stay finite."""
    (x,), (dx,) = primals, tangents
    y = _sqrt(x)
    return y, jnp.where(x > 0, dx / jnp.where(x > 0, 2 * y, 1), 0)


class _Namespace:
    """jax.numpy with that square root."""

    __name__ = "jax.numpy"
    sqrt = staticmethod(_sqrt)

    def __getattr__(self, name: str) -> Any:
        return getattr(jnp, name)


_XP = _Namespace()


def _step(rule: Rule, eps: Any, count: Any, window: Any, g: Any, *state: Any) -> tuple[Any, ...]:
    """The step for one parameter, and its new m, v and peak, each in its own precision."""
    if g is None:
        return (None, *state)
    g = jnp.asarray(g)
    if jnp.iscomplexobj(g):
        parts = ([None if x is None else part(x) for x in (g, *state)] for part in (jnp.real, jnp.imag))
        pairs = zip(*(_step(rule, eps, count, window, *each) for each in parts), strict=True)
        return tuple(None if a is None else jax.lax.complex(a, b) for a, b in pairs)
    # At least float32, since |g|^p1 of a half-precision gradient overflows.
    dtypes = [x.dtype for x in (g, *state) if x is not None and jnp.issubdtype(x.dtype, jnp.floating)]
    exact = functools.reduce(jnp.promote_types, dtypes, jnp.dtype("float32"))
    t, u = _clock(rule, count, window, exact)
    m, v, peak = (None if x is None else x.astype(exact) for x in state)
    new = update(rule, t, u, g.astype(exact), m, v, peak, lr=1.0, eps=eps, xp=_XP)
    kept = zip(state, (new.m, new.v, new.peak), strict=True)
    step = new.step.astype(g.dtype) if jnp.issubdtype(g.dtype, jnp.floating) else new.step
    return (step, *(None if old is None else now.astype(old.dtype) for old, now in kept))


def _clock(rule: Rule, count: Any, window: Any, dtype: Any) -> tuple[Any, Any]:
    """t, and u as it was before."""
    t = count.astype(dtype)
    return t, rule.window_before(t, None if window is None else window.astype(dtype)) if rule.adapts else 0.0


def _window(rule: Rule, count: Any, window: Any) -> Any:
    """u, where it is carried."""
    if window is None:
        return None
    return (1 + rule.weights.discount(count.astype(window.dtype)) * window).astype(window.dtype)


def _norms(rule: Rule, eps: Any, state: Any, tree: Any) -> list[Any]:
    """V of every parameter, from the state after its step."""
    found = [x for x in jax.tree.leaves(state, is_leaf=_is_ours) if _is_ours(x)]
    if len(found) != 1:
        right = "project_in takes V from one; of several optimizers, as in multi_transform, project each by itself"
        refuse("optimizer", f"one with {len(found)} states of scale_by_wagmf", right)
    ours = found[0]
    if [row is not None for row in ours[1:]] != [rule.carries_window, *rule.keeps.values()]:
        refuse("rule", rule, "it must be the rule of the optimizer, whose state is of another kind")
    if not rule.adapts:
        return [1.0] * tree.num_leaves

    def V(v: Any, peak: Any) -> Any:
        if v is None or isinstance(v, optax.MaskedNode):
            return None
        if jnp.iscomplexobj(v):
            v, peak = (None if x is None else _as_pairs(x) for x in (v, peak))
        exact = jnp.promote_types(v.dtype, jnp.float32)
        t = ours.count.astype(exact)
        u = rule.weights.window(t) if ours.window is None else ours.window.astype(exact)
        peak = None if peak is None else peak.astype(exact)
        return scale(rule, t, u, 0.0, 0.0, v.astype(exact), peak, lr=0.0, eps=eps, xp=_XP)[1]

    peaks = [None] * tree.num_leaves if ours.peak is None else tree.flatten_up_to(ours.peak)
    return [V(*each) for each in zip(tree.flatten_up_to(ours.v), peaks, strict=True)]


def _projected_update(update: Any, x: Any, feasible: Any, V: Any) -> Any:
    if update is None or feasible is None or V is None:
        return update
    x, update = jnp.asarray(x), jnp.asarray(update)
    exact = jnp.promote_types(x.dtype, jnp.float32)
    x = x.astype(exact)
    return (_project(x + update.astype(exact), feasible, V) - x).astype(update.dtype)


def _project(y: Any, feasible: Feasible | None, V: Any = 1.0) -> Any:
    if feasible is None:
        return y
    if jnp.iscomplexobj(y):
        if getattr(feasible, "axis", None) is not None:
            refuse("feasible", feasible, "for complex parameters only sets that hold for the whole, axis=None")
        pairs = feasible.project(_as_pairs(y), V, _XP)
        return jax.lax.complex(pairs[..., 0], pairs[..., 1])
    exact = jnp.promote_types(y.dtype, jnp.float32)
    return feasible.project(y.astype(exact), V, _XP).astype(y.dtype)


def _as_pairs(x: Any) -> Any:
    return jnp.stack([x.real, x.imag], axis=-1)


def _spread(feasible: Any, params: Any, tree: Any) -> list[Any]:
    """The set of every parameter."""
    spread = jax.tree.map(lambda one, part: jax.tree.map(lambda _: one, part), feasible, params, is_leaf=_is_none)
    return tree.flatten_up_to(spread)


def _check_sets(feasible: Any) -> None:
    for one in jax.tree.leaves(feasible, is_leaf=_is_none):
        if one is not None and not isinstance(one, Feasible):
            refuse("feasible", one, "feasible must be one of wagmf.feasible, such as Box(-1, 1), or a tree of them")


def _at_least_float32(dtype: Any) -> Any:
    return None if dtype is None else jnp.promote_types(dtype, jnp.float32)


def _zeros(params: Any, state_dtype: Any) -> Any:
    def zeros(x: Any) -> Any:
        own = jnp.result_type(x)
        dtype = state_dtype or jnp.promote_types(own if jnp.issubdtype(own, jnp.inexact) else jnp.float32, jnp.float32)
        if jnp.iscomplexobj(x) and not jnp.issubdtype(dtype, jnp.complexfloating):
            dtype = jnp.promote_types(dtype, jnp.complex64)
        return jnp.zeros_like(x, dtype=dtype)

    return jax.tree.map(zeros, params)


def _is_none(x: Any) -> bool:
    return x is None


def _is_ours(x: Any) -> bool:
    return isinstance(x, WAGMFState)


def _decoupled(weight_decay: Any, mask: Any) -> optax.GradientTransformation:
    weight_decay = _or_schedule("weight_decay", weight_decay)
    unused = isinstance(weight_decay, float) and weight_decay == 0
    return optax.identity() if unused else optax.add_decayed_weights(weight_decay, mask)


def known(name: str, value: Any) -> Any:
    """The value, or a refusal where it is known only when the compiled program runs.

    >>> known("p2", 4.0)
    4.0
    """
    if isinstance(value, Tracer):
        right = f'{name} shapes the program, so it must be a number; with inject_hyperparams name it in "static_args"'
        refuse(name, value, right)
    return value


def _number(name: str, value: Any, *, what: str | None = None, least: float | None = None) -> Any:
    """A float, or an array with one number in it, which is not looked at where it is not known yet."""
    if isinstance(value, Tracer):
        return value
    if isinstance(value, jax.Array) and not jnp.issubdtype(value.dtype, jnp.floating):
        refuse(what or name, value, f"an array for {name} must be floating-point")
    number = real(name, value, least=least, what=what)
    return value if isinstance(value, jax.Array) else number


def _or_schedule(name: str, value: Any, what: str | None = None) -> Any:
    return value if callable(value) else _number(name, value, what=what, least=0)


def _dtype(dtype: Any) -> Any:
    if dtype is None:
        return None
    known = ("bfloat16", "float32", "float64")
    try:
        found = jnp.dtype(dtype)
    except TypeError:
        found = None
    if found is None or found.name not in known:
        refuse("state_dtype", dtype, "state_dtype must be bfloat16, float32, float64 or None")
    return jax.dtypes.canonicalize_dtype(found)
