"""WAGMF: every method of the table as a Keras 3 optimizer, on whichever back end Keras runs."""

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Self, TypeAlias, TypedDict, TypeVar, Unpack, cast

import keras
import numpy as np
from keras import ops

from wagmf.arguments import one_of, real, refuse
from wagmf.rule import Rule, as_rule, update
from wagmf.weights import Custom, Equal

__all__ = ["WAGMF", "Options", "check_names", "register"]

C = TypeVar("C", bound=type)
StepSize: TypeAlias = float | keras.optimizers.schedules.LearningRateSchedule | Callable[..., Any]

_XP = SimpleNamespace(sqrt=ops.sqrt, maximum=ops.maximum, where=ops.where)


def register(cls: C) -> C:
    """Let saved models name the class.

    >>> keras.saving.get_registered_name(WAGMF)
    'wagmf>WAGMF'
    """
    keras.saving.register_keras_serializable(package="wagmf")(cls)
    return cls


class Options(TypedDict, total=False):
    """What every optimizer takes besides its own parameters; see :class:`WAGMF`.

    >>> "weight_decay" in Options.__annotations__
    True
    """

    eps: float
    decay: float | None
    weight_decay: float | None
    clipnorm: float | None
    clipvalue: float | None
    global_clipnorm: float | None
    use_ema: bool
    ema_momentum: float
    ema_overwrite_frequency: int | None
    loss_scale_factor: float | None
    gradient_accumulation_steps: int | None
    name: str | None


@register
class WAGMF(keras.optimizers.Optimizer):
    """The weighted adaptive gradient method that ``rule`` describes.

        m ← β1_t·m + (1 - β1_t)·g
        u ← 1 + ρ_t·u
        v ← v + (|g|^p1 - v)/u
        x ← x - α_t·m / V                         V = v^(1/p2) + eps,  α_t = learning_rate·t^-decay

    t is Keras's count of updates, one for all variables. m and v are at least float32, also for half-precision
    variables.

    Args:
        learning_rate: the step size α, a schedule, or a function that gives it.
        rule: the method; ``wagmf.method(name).rule`` gives a named one, the default is WADA.
        options: ``eps``, added to V; ``decay`` in α_t = learning_rate·t^-decay, by default the rule's own;
            ``weight_decay`` (decoupled: x ← x - learning_rate·λ·x), ``clipnorm``, ``use_ema``,
            ``gradient_accumulation_steps`` and all others that Keras's optimizers have, with Keras's meaning.

    >>> x = keras.Variable([1.0, 1.0])
    >>> optimizer = WAGMF(0.5, rule=Rule(beta1=0.0))
    >>> optimizer.apply([ops.ones(2)], [x])
    >>> ops.convert_to_numpy(x).round(3)
    array([0.5, 0.5], dtype=float32)
    """

    def __init__(
        self,
        learning_rate: StepSize = 0.001,
        *,
        rule: Rule | dict[str, Any] | None = None,
        **options: Unpack[Options],
    ) -> None:
        given = cast(dict[str, Any], dict(options))
        check_names(type(self), given)
        eps, decay = given.pop("eps", 1e-7), given.pop("decay", None)
        if given.get("weight_decay") is not None:
            given["weight_decay"] = real("weight_decay", given["weight_decay"], least=0)
        rule = as_rule(Rule.from_dict(rule) if isinstance(rule, dict) else rule, decay)
        super().__init__(learning_rate=_step_size(learning_rate), **given)
        self.eps = real("eps", eps, least=0)
        self.rule = rule

    def build(self, variables: list[Any]) -> None:
        """Make m, v, the running maximum and u, as far as the rule keeps them."""
        if self.built:
            return
        for variable in variables:
            if "float" not in keras.backend.standardize_dtype(variable.dtype):
                right = f"only floating-point variables can be trained by Keras on {keras.backend.backend()}"
                refuse("variable", f"{variable.name} of dtype {variable.dtype}", right)
        super().build(variables)
        self._kept = {name: self._zeros(name, variables) for name, keep in self.rule.keeps.items() if keep}
        self._window = None
        if self.rule.carries_window:
            # As precise as the most precise variable needs.
            dtype = "float64" if any("64" in str(variable.dtype) for variable in variables) else "float32"
            start: Any = keras.initializers.Constant(self.rule.start)
            self._window = self.add_variable(
                (), initializer=start, dtype=dtype, aggregation="only_first_replica", name="window"
            )

    def _zeros(self, name: str, variables: list[Any]) -> list[Any]:
        """A variable like each of these, but at least float32."""

        def zeros(like: Any) -> Any:
            if getattr(like, "overwrite_with_gradient", False):  # as scales of float8 are; it takes no step
                return None
            dtype = keras.backend.standardize_dtype(like.dtype)
            if _exact(dtype) == dtype:
                return self.add_variable_from_reference(like, name)
            path = getattr(like, "path", like.name).replace("/", "_").replace(":", "_")
            layout = getattr(like, "_layout", None)
            placed = {} if layout is None else {"layout": layout}
            return self.add_variable(like.shape, dtype=_exact(dtype), name=f"{path}_{name}", **placed)

        return [zeros(variable) for variable in variables]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Step one variable: the rule's own text, in Keras operations."""
        dtype = keras.backend.standardize_dtype(variable.dtype)
        exact = _exact(dtype)
        place = self._get_variable_index(variable)
        kept = {name: row[place] for name, row in self._kept.items()}
        t, u = self._clock(exact)
        g = ops.cast(_dense(gradient, variable.shape), exact)
        # Their values: Keras would take adding to a variable for adding a bias.
        m, v, peak = (kept[name].value if name in kept else None for name in self.rule.keeps)
        lr = ops.cast(learning_rate, exact)
        new = update(self.rule, t, u, g, m, v, peak, lr=lr, eps=self.eps, xp=_XP)
        for name, old in kept.items():
            self.assign(old, getattr(new, name))
        if exact == dtype:
            self.assign_sub(variable, new.step)
        else:
            self.assign(variable, ops.cast(ops.cast(variable, exact) - new.step, dtype))

    def _clock(self, dtype: str) -> tuple[Any, Any]:
        """t, and u as it was before."""
        t: Any = ops.cast(cast(Any, self.iterations) + 1, dtype)
        window = None if self._window is None else ops.cast(self._window, dtype)
        return t, self.rule.window_before(t, window) if self.rule.adapts else 0.0

    def _backend_update_step(self, grads: Any, trainable_variables: Any, learning_rate: Any) -> None:
        """Step all variables, and then u, which is theirs together."""
        if keras.backend.backend() == "torch":
            from wagmf.keras.torch import step_torch

            if step_torch(self, grads, trainable_variables, learning_rate):
                return
        super()._backend_update_step(grads, trainable_variables, learning_rate)
        if self._window is not None:
            t, u = self._clock(self._window.dtype)
            self._window.assign(1 + self.rule.weights.discount(t) * u)

    def save_own_variables(self, store: Any) -> None:
        """Save the variables, and the rule beside them."""
        super().save_own_variables(store)
        store["rule"] = np.frombuffer(json.dumps(_written(self.rule)).encode(), np.uint8)

    def load_own_variables(self, store: Any) -> None:
        """Load what was saved of an optimizer with the same rule."""
        keys = set(store.keys())
        if "rule" not in keys:
            refuse("checkpoint", f"one with {sorted(keys)}", "that of a wagmf optimizer; this has no rule")
        theirs, ours = json.loads(bytes(np.array(store["rule"]))), _written(self.rule)
        changed = [name for name in ours if theirs.get(name) != ours[name]]
        if changed:
            told = ", ".join(f"{name} {theirs.get(name)} there, {ours[name]} here" for name in changed)
            refuse("checkpoint", told, "it must be of an optimizer with this rule")
        super().load_own_variables({key: store[key] for key in keys - {"rule"}})

    def get_config(self) -> dict[str, Any]:
        """Everything that makes an optimizer like this one, in plain values."""
        return {**super().get_config(), "rule": self.rule.to_dict(), "eps": self.eps}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Self:
        """The optimizer that :meth:`get_config` described."""
        return super().from_config(dict(config), custom_objects)


def check_names(cls: type, given: Mapping[str, Any]) -> None:
    """Refuse arguments that the class does not have, with the one that may have been meant.

    >>> check_names(WAGMF, {"epsilon": 1e-7})
    Traceback (most recent call last):
    wagmf.arguments.Refused: Invalid argument: 'epsilon' (did you mean 'eps'? choose from learning_rate, rule, eps, ...)
    """
    own = [name for name in inspect.signature(cls.__init__).parameters if name not in ("self", "options")]
    for key in given:
        one_of("argument", key, [*own, *Options.__annotations__])


def _written(rule: Rule) -> dict[str, Any]:
    """The rule as a checkpoint holds it; of weights that are a function, only that they are."""
    if isinstance(rule.weights, Custom):
        return {**replace(rule, weights=Equal()).to_dict(), "weights": {"kind": Custom.kind}}
    return rule.to_dict()


def _step_size(learning_rate: Any) -> Any:
    return learning_rate if callable(learning_rate) else real("lr", learning_rate, least=0, what="learning rate")


def _dense(gradient: Any, shape: Any) -> Any:
    """A gradient that names rows, as that of an embedding on TensorFlow does, as one of every row."""
    if hasattr(gradient, "dense_shape"):
        return ops.scatter(ops.expand_dims(gradient.indices, -1), gradient.values, tuple(shape))
    return ops.convert_to_tensor(gradient, sparse=False)


def _exact(dtype: str) -> str:
    """The dtype of the arithmetic: at least float32, since |g|^p1 of a half-precision gradient overflows."""
    return "float64" if dtype == "float64" else "float32"
