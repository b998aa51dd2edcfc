"""The methods of the table as classes, each with the parameters that are its own.

All take the :class:`~wagmf.keras.optimizer.Options` of :class:`~wagmf.keras.WAGMF` as well.
"""

from typing import Any, ClassVar, Unpack

from wagmf.keras.optimizer import WAGMF, Options, StepSize, check_names, register
from wagmf.methods import method
from wagmf.rule import fold

__all__ = [
    "OGD",
    "WADA",
    "AMSGrad",
    "AdaGrad",
    "Adam",
    "AdamNC",
    "Momentum",
    "NAdam",
    "NosAdam",
    "Padam",
    "RMSProp",
    "RMSPropNC",
    "SCAdaGrad",
    "SCRMSProp",
    "SignSGD",
    "WADAv3",
    "WADAv4",
]


class _Named(WAGMF):
    """A row of the table; its configuration holds its own parameters in place of the rule they make."""

    method: ClassVar[str]

    def __init__(self, learning_rate: StepSize, own: dict[str, Any], options: Options) -> None:
        check_names(type(self), options)
        decay, name = options.get("decay"), options.get("name") or self.method
        super().__init__(learning_rate, rule=fold(method(self.method).rule, own), **{**options, "name": name})
        self._own = {**own, "decay": decay}

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        del config["rule"]
        return {**config, **self._own}


@register
class WADA(_Named):
    """Linearly growing weights on squared gradients, fourth root.

        steps along   Σ (1-β1)·β1^(t-i)·g_i
        divided by    (Σ i·g_i² / Σ i)^(1/4)

    Args:
        learning_rate: the step size α, or a schedule of it.
        beta1: momentum.
        options: see :class:`WAGMF`.

    >>> optimizer = WADA(0.1)

    Reference: Zhong et al. 2019, arXiv:2101.00238
    """

    method = "wada"

    def __init__(self, learning_rate: StepSize = 0.001, *, beta1: float = 0.9, **options: Unpack[Options]) -> None:
        super().__init__(learning_rate, {"beta1": beta1}, options)


@register
class WADAv3(_Named):
    """WADA with the third power of gradients.

        steps along   Σ (1-β1)·β1^(t-i)·g_i
        divided by    (Σ i·|g_i|³ / Σ i)^(1/4)

    Args:
        learning_rate: the step size α, or a schedule of it.
        beta1: momentum.
        options: see :class:`WAGMF`.

    >>> optimizer = WADAv3(0.1)

    Reference: Zhong et al. 2019, arXiv:2101.00238
    """

    method = "wada_v3"

    def __init__(self, learning_rate: StepSize = 0.001, *, beta1: float = 0.9, **options: Unpack[Options]) -> None:
        super().__init__(learning_rate, {"beta1": beta1}, options)


@register
class WADAv4(_Named):
    """WADA with the fourth power: V scales as the gradients do.

        steps along   Σ (1-β1)·β1^(t-i)·g_i
        divided by    (Σ i·g_i⁴ / Σ i)^(1/4)

    Args:
        learning_rate: the step size α, or a schedule of it.
        beta1: momentum.
        options: see :class:`WAGMF`.

    >>> optimizer = WADAv4(0.1)

    Reference: Zhong et al. 2019, arXiv:2101.00238
    """

    method = "wada_v4"

    def __init__(self, learning_rate: StepSize = 0.001, *, beta1: float = 0.9, **options: Unpack[Options]) -> None:
        super().__init__(learning_rate, {"beta1": beta1}, options)


@register
class Adam(_Named):
    """Exponentially growing weights, bias-corrected; equals torch.optim.Adam.

        steps along   Σ (1-β1)·β1^(t-i)·g_i / (1-β1^t)
        divided by    (Σ β2^(t-i)·g_i² / Σ β2^(t-i))^(1/2)

    Args:
        learning_rate: the step size α, or a schedule of it.
        beta1: momentum.
        beta2: how much of the past average of |g|^p1 is kept.
        debias: correct the averages for having started from zero.
        options: see :class:`WAGMF`.

    >>> optimizer = Adam(0.1)

    Reference: Kingma, Ba 2015, arXiv:1412.6980
    """

    method = "adam"

    def __init__(
        self,
        learning_rate: StepSize = 0.001,
        *,
        beta1: float = 0.9,
        beta2: float = 0.999,
        debias: bool = True,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(learning_rate, {"beta1": beta1, "beta2": beta2, "debias": debias}, options)


@register
class AMSGrad(_Named):
    """Adam with the running maximum of v; debias=True equals torch.optim.Adam(amsgrad=True).

        steps along   Σ (1-β1)·β1^(t-i)·g_i
        divided by    max_{s≤t} (Σ_{i≤s} (1-β2)·β2^(s-i)·g_i²)^(1/2)

    Args:
        learning_rate: the step size α, or a schedule of it.
        beta1: momentum.
        beta2: how much of the past average of |g|^p1 is kept.
        debias: correct the averages for having started from zero.
        options: see :class:`WAGMF`.

    >>> optimizer = AMSGrad(0.1)

    Reference: Reddi, Kale, Kumar 2018, arXiv:1904.09237
    """

    method = "amsgrad"

    def __init__(
        self,
        learning_rate: StepSize = 0.001,
        *,
        beta1: float = 0.9,
        beta2: float = 0.999,
        debias: bool = False,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(learning_rate, {"beta1": beta1, "beta2": beta2, "debias": debias}, options)


@register
class AdamNC(_Named):
    """Equal weights: AdaGrad with momentum.

        steps along   Σ (1-β1)·β1^(t-i)·g_i
        divided by    (Σ g_i² / t)^(1/2)

    Args:
        learning_rate: the step size α, or a schedule of it.
        beta1: momentum.
        options: see :class:`WAGMF`.

    >>> optimizer = AdamNC(0.1)

    Reference: Reddi, Kale, Kumar 2018, arXiv:1904.09237
    """

    method = "adamnc"

    def __init__(self, learning_rate: StepSize = 0.001, *, beta1: float = 0.9, **options: Unpack[Options]) -> None:
        super().__init__(learning_rate, {"beta1": beta1}, options)


@register
class NosAdam(_Named):
    """Slowly shrinking weights: the past counts more than the present.

        steps along   Σ (1-β1)·β1^(t-i)·g_i
        divided by    (Σ i^-0.1·g_i² / Σ i^-0.1)^(1/2)

    Args:
        learning_rate: the step size α, or a schedule of it.
        beta1: momentum.
        eta: the weights are t^eta.
        options: see :class:`WAGMF`.

    >>> optimizer = NosAdam(0.1)

    Reference: Huang, Wang, Dong 2019, arXiv:1805.07557
    """

    method = "nosadam"

    def __init__(
        self, learning_rate: StepSize = 0.001, *, beta1: float = 0.9, eta: float = -0.1, **options: Unpack[Options]
    ) -> None:
        super().__init__(learning_rate, {"beta1": beta1, "eta": eta}, options)


@register
class Padam(_Named):
    """AMSGrad with a partial power p = 1/p2 = 1/8 between Adam and SGD.

        steps along   Σ (1-β1)·β1^(t-i)·g_i
        divided by    max_{s≤t} (Σ_{i≤s} (1-β2)·β2^(s-i)·g_i²)^(1/8)

    Args:
        learning_rate: the step size α, or a schedule of it.
        beta1: momentum.
        beta2: how much of the past average of |g|^p1 is kept.
        p2: the root: 2 is AMSGrad, inf is momentum.
        debias: correct the averages for having started from zero.
        options: see :class:`WAGMF`.

    >>> optimizer = Padam(0.1)

    Reference: Chen et al. 2020, arXiv:1806.06763
    """

    method = "padam"

    def __init__(
        self,
        learning_rate: StepSize = 0.001,
        *,
        beta1: float = 0.9,
        beta2: float = 0.999,
        p2: float = 8.0,
        debias: bool = False,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(learning_rate, {"beta1": beta1, "beta2": beta2, "p2": p2, "debias": debias}, options)


@register
class NAdam(_Named):
    """Adam that looks one step ahead; optax.nadam's form, torch.optim.NAdam without its warm-up of β1.

        steps along   β1·m_t/(1-β1^(t+1)) + (1-β1)·g_t/(1-β1^t)
        divided by    (Σ β2^(t-i)·g_i² / Σ β2^(t-i))^(1/2)

    Args:
        learning_rate: the step size α, or a schedule of it.
        beta1: momentum.
        beta2: how much of the past average of |g|^p1 is kept.
        debias: correct the averages for having started from zero.
        options: see :class:`WAGMF`.

    >>> optimizer = NAdam(0.1)

    Reference: Dozat 2016, ICLR workshop
    """

    method = "nadam"

    def __init__(
        self,
        learning_rate: StepSize = 0.001,
        *,
        beta1: float = 0.9,
        beta2: float = 0.999,
        debias: bool = True,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(learning_rate, {"beta1": beta1, "beta2": beta2, "debias": debias}, options)


@register
class AdaGrad(_Named):
    """Equal weights, no momentum; eps counts √t times what it counts in torch.optim.Adagrad.

        steps along   g_t
        divided by    (Σ g_i² / t)^(1/2), α_t = α/√t

    Args:
        learning_rate: the step size α, or a schedule of it.
        options: see :class:`WAGMF`.

    >>> optimizer = AdaGrad(0.1)

    Reference: Duchi, Hazan, Singer 2011, JMLR 12
    """

    method = "adagrad"

    def __init__(self, learning_rate: StepSize = 0.001, **options: Unpack[Options]) -> None:
        super().__init__(learning_rate, {}, options)


@register
class SCAdaGrad(_Named):
    """AdaGrad for strongly convex losses: no root, step sizes 1/t.

        steps along   g_t
        divided by    Σ g_i² / t, α_t = α/t

    Args:
        learning_rate: the step size α, or a schedule of it.
        options: see :class:`WAGMF`.

    >>> optimizer = SCAdaGrad(0.1)

    Reference: Mukkamala, Hein 2017, arXiv:1706.05507
    """

    method = "sc_adagrad"

    def __init__(self, learning_rate: StepSize = 0.001, **options: Unpack[Options]) -> None:
        super().__init__(learning_rate, {}, options)


@register
class RMSProp(_Named):
    """Exponentially growing weights, no momentum, uncorrected; equals torch.optim.RMSprop.

        steps along   g_t
        divided by    (Σ (1-β2)·β2^(t-i)·g_i²)^(1/2)

    Args:
        learning_rate: the step size α, or a schedule of it.
        beta2: how much of the past average of |g|^p1 is kept.
        debias: correct the averages for having started from zero.
        options: see :class:`WAGMF`.

    >>> optimizer = RMSProp(0.1)

    Reference: Tieleman, Hinton 2012, lecture 6.5
    """

    method = "rmsprop"

    def __init__(
        self, learning_rate: StepSize = 0.001, *, beta2: float = 0.99, debias: bool = False, **options: Unpack[Options]
    ) -> None:
        super().__init__(learning_rate, {"beta2": beta2, "debias": debias}, options)


@register
class RMSPropNC(_Named):
    """RMSProp with β2_t = 1 - 1/t, which is equal weights.

        steps along   g_t
        divided by    (Σ g_i² / t)^(1/2)

    Args:
        learning_rate: the step size α, or a schedule of it.
        options: see :class:`WAGMF`.

    >>> optimizer = RMSPropNC(0.1)

    Reference: Mukkamala, Hein 2017, arXiv:1706.05507
    """

    method = "rmsprop_nc"

    def __init__(self, learning_rate: StepSize = 0.001, **options: Unpack[Options]) -> None:
        super().__init__(learning_rate, {}, options)


@register
class SCRMSProp(_Named):
    """RMSProp for strongly convex losses: β2_t = 1 - 0.9/t as the weights t^-0.1 it amounts to.

        steps along   g_t
        divided by    Σ i^-0.1·g_i² / Σ i^-0.1, α_t = α/t

    Args:
        learning_rate: the step size α, or a schedule of it.
        eta: the weights are t^eta.
        options: see :class:`WAGMF`.

    >>> optimizer = SCRMSProp(0.1)

    Reference: Mukkamala, Hein 2017, arXiv:1706.05507
    """

    method = "sc_rmsprop"

    def __init__(self, learning_rate: StepSize = 0.001, *, eta: float = -0.1, **options: Unpack[Options]) -> None:
        super().__init__(learning_rate, {"eta": eta}, options)


@register
class SignSGD(_Named):
    """Only the newest gradient counts: every coordinate moves by the step size.

        steps along   g_t
        divided by    |g_t|

    Args:
        learning_rate: the step size α, or a schedule of it.
        beta1: momentum.
        options: see :class:`WAGMF`.

    >>> optimizer = SignSGD(0.1)

    Reference: Bernstein et al. 2018, arXiv:1802.04434
    """

    method = "signsgd"

    def __init__(self, learning_rate: StepSize = 0.001, *, beta1: float = 0.0, **options: Unpack[Options]) -> None:
        super().__init__(learning_rate, {"beta1": beta1}, options)


@register
class Momentum(_Named):
    """Heavy ball; lr/(1-β1) here is lr of torch.optim.SGD(momentum=β1).

        steps along   Σ (1-β1)·β1^(t-i)·g_i
        divided by    I

    Args:
        learning_rate: the step size α, or a schedule of it.
        beta1: momentum.
        nesterov: look one step ahead.
        options: see :class:`WAGMF`.

    >>> optimizer = Momentum(0.1)

    Reference: Polyak 1964
    """

    method = "momentum"

    def __init__(
        self, learning_rate: StepSize = 0.001, *, beta1: float = 0.9, nesterov: bool = False, **options: Unpack[Options]
    ) -> None:
        super().__init__(learning_rate, {"beta1": beta1, "nesterov": nesterov}, options)


@register
class OGD(_Named):
    """Online gradient descent, which is SGD.

        steps along   g_t
        divided by    I

    Args:
        learning_rate: the step size α, or a schedule of it.
        options: see :class:`WAGMF`.

    >>> optimizer = OGD(0.1)

    Reference: Zinkevich 2003, ICML
    """

    method = "ogd"

    def __init__(self, learning_rate: StepSize = 0.001, **options: Unpack[Options]) -> None:
        super().__init__(learning_rate, {}, options)
