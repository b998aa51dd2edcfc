"""How much the past counts: the weights γ_t, as the discount ρ_t and the window u_t.

The paper accumulates ``v_t = v_{t-1} + γ_t·|g|^p1`` and divides by ``Σγ``. The raw sum overflows, or stops growing,
in low precision, so only the ratios of the weights are ever used:

    ρ_t = γ_{t-1} / γ_t          the discount put on the past when gradient t arrives
    u_t = Σ_{i≤t} γ_i / γ_t      the window: how many of today's gradients all of them together are worth
    u_t = 1 + ρ_t·u_{t-1}        u_0 = 0

Only operators are used, so ``t`` may be a Python int, a NumPy, torch or jax scalar or array, or a traced value. The
answer has the precision of ``t / t``: a torch integer gives torch's default dtype; pass a float64 for a float64 answer.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

from wagmf.arguments import flag, integer, one_of, real, refuse

__all__ = ["Custom", "Equal", "Exponential", "Latest", "Linear", "Polynomial", "Weights"]


@dataclass(frozen=True)
class Weights:
    """What every weighting offers; choose one of its subclasses.

    >>> Weights.parse("polynomial:2") == Polynomial(2)
    True
    """

    kind: ClassVar[str] = "weights"
    exact: ClassVar[bool] = False  # whether window(t) loses nothing in low precision, so that nobody need carry u

    @property
    def start(self) -> float:
        """u_0: what the past is taken to be worth before the first gradient; 0 is "nothing"."""
        return 0.0

    def discount(self, t: Any) -> Any:
        """ρ_t = γ_{t-1} / γ_t. ρ_1 multiplies u_0, so all that is asked of it is to be finite."""
        raise NotImplementedError

    def window(self, t: Any) -> Any:
        """u_t; by its recursion where the weighting has no closed form, so that ``t`` must be a known integer there."""
        try:
            steps = integer("t", t, least=0)
        except Exception:  # a traced t raises its framework's own error when it is asked for a number
            refuse("t", t, f"{self} has no closed window; where t is not a known integer, carry u = 1 + discount(t)*u")
        u = self.start
        for s in range(1, steps + 1):
            u = 1 + self.discount(s) * u
        return u

    def to_dict(self) -> dict[str, Any]:
        """The weighting as plain values, for checkpoints and configuration files."""
        return {"kind": self.kind, **asdict(self)}

    @staticmethod
    def from_dict(values: dict[str, Any]) -> "Weights":
        """The weighting that :meth:`to_dict` described."""
        if not isinstance(values, dict):
            refuse("weights", values, 'weights must be a table such as {"kind": "linear"}')
        settings = dict(values)
        family = _FAMILIES[one_of("weights", settings.pop("kind", None), _FAMILIES)]
        try:
            return family(**settings)
        except TypeError:
            own = ", ".join(f.name for f in fields(family)) or "no settings"
            refuse("weights", values, f"{family.kind} weights take {own}")

    @property
    def text(self) -> str:
        """The weighting as :meth:`parse` reads it."""
        return ":".join([self.kind, *(f"{value:g}" for value in vars(self).values())])

    @staticmethod
    def parse(text: str) -> "Weights":
        """Read ``equal``, ``linear``, ``latest``, ``polynomial:ETA`` or ``exponential:BETA[:steady]``."""
        kind, _, setting = text.strip().lower().partition(":")
        family = _FAMILIES[one_of("weights", kind, _FAMILIES)]
        takes_a_number = family in (Polynomial, Exponential)
        if bool(setting) != takes_a_number:
            refuse("weights", text, f"write {kind}:NUMBER" if takes_a_number else f"write {kind} alone")
        if not takes_a_number:
            return family()
        try:
            if family is Exponential and setting.endswith(":steady"):
                return Exponential(float(setting.removesuffix(":steady")), steady=True)
            return family(float(setting))
        except ValueError as error:
            refuse("weights", text, str(error))


@dataclass(frozen=True)
class Equal(Weights):
    """γ_t = 1: every gradient counts the same (AdaGrad, AdamNC).

    >>> Equal().window(10)
    10
    """

    kind = "equal"
    exact = True

    def discount(self, t: Any) -> Any:
        return 1.0

    def window(self, t: Any) -> Any:
        return t


@dataclass(frozen=True)
class Linear(Weights):
    """γ_t = t: later gradients count more, and none is ever forgotten (WADA).

    >>> Linear().window(9)
    5.0
    """

    kind = "linear"
    exact = True

    def discount(self, t: Any) -> Any:
        return (t - 1) / t

    def window(self, t: Any) -> Any:
        return (t + 1) / 2


@dataclass(frozen=True)
class Polynomial(Weights):
    """γ_t = t^eta: Equal is eta = 0, Linear is eta = 1; eta < 0 favours the old (Nostalgic Adam).

    >>> Polynomial(2).discount(2)
    0.25
    """

    eta: float
    kind = "polynomial"

    def __post_init__(self) -> None:
        object.__setattr__(self, "eta", real("eta", self.eta))

    def discount(self, t: Any) -> Any:
        # At t = 1 there is no past: 0^eta would be infinite for eta < 0, and infinite times u_0 = 0 is NaN.
        return (_past(t) / t) ** self.eta


@dataclass(frozen=True)
class Exponential(Weights):
    """γ_t = beta^-t: the past is forgotten at a constant rate (Adam, RMSProp).

    Starting from u_0 = 0, dividing by the window *is* Adam's bias correction of v. ``steady=True`` holds the window at
    its limit 1/(1 - beta) from the first step on: the uncorrected average of RMSProp and of AMSGrad as published.

    >>> Exponential(0.5).window(2)
    1.5
    >>> Exponential(0.5, steady=True).window(2)
    2.0
    """

    beta: float
    steady: bool = False
    kind = "exponential"

    def __post_init__(self) -> None:
        object.__setattr__(self, "beta", real("beta", self.beta, above=0, below=1))
        flag("steady", self.steady)

    @property
    def text(self) -> str:
        return f"exponential:{self.beta:g}" + (":steady" if self.steady else "")

    @property
    def start(self) -> float:
        return 1 / (1 - self.beta) if self.steady else 0.0

    def discount(self, t: Any) -> Any:
        return self.beta

    def window(self, t: Any) -> Any:
        return 1 / (1 - self.beta) if self.steady else (1 - self.beta**t) / (1 - self.beta)


@dataclass(frozen=True)
class Latest(Weights):
    """γ_t = ∞·γ_{t-1}: only the newest gradient counts (signSGD).

    >>> Latest().window(1000)
    1.0
    """

    kind = "latest"
    exact = True

    def discount(self, t: Any) -> Any:
        return 0.0

    def window(self, t: Any) -> Any:
        return 1.0


@dataclass(frozen=True)
class Custom(Weights):
    """γ_t = gamma(t), any positive function of t of your own.

    ``gamma`` is called with t and t - 1, never with less than 1; written with operators, it takes traced values.

    >>> Custom(lambda t: t * t).discount(2)
    0.25
    """

    gamma: Callable[[Any], Any]
    kind = "custom"

    def __post_init__(self) -> None:
        if not callable(self.gamma):
            refuse("gamma", self.gamma, "gamma must be a function of t")
        self.discount(2)

    def discount(self, t: Any) -> Any:
        past, now = self.gamma(_past(t)), self.gamma(t)
        if isinstance(t, int | float):
            for at, weight in ((max(t - 1, 1), past), (t, now)):
                real(f"gamma({at})", weight, above=0)
        return past / now

    def to_dict(self) -> dict[str, Any]:
        refuse(
            "weights",
            self,
            "a Custom weighting is a function and cannot be written down; use one of the named families",
        )


def _past(t: Any) -> Any:
    """t - 1, but 1 for t = 1; by arithmetic alone, since not every framework adds a comparison to a number."""
    return max(t - 1, 1) if isinstance(t, int | float) else abs(t - 1.5) + 0.5


_FAMILIES: dict[str, type[Weights]] = {
    family.kind: family for family in (Equal, Linear, Polynomial, Exponential, Latest)
}
