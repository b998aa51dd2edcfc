"""The methods of the table as classes, each with the parameters that are its own.

All take the :class:`~wagmf.torch.optimizer.Options` of :class:`~wagmf.torch.WAGMF` as well.
"""

from typing import Any, Unpack

from torch import Tensor
from torch.optim.optimizer import ParamsT

from wagmf.methods import method
from wagmf.rule import Rule, fold
from wagmf.torch.optimizer import WAGMF, Options

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


def _rule(name: str, **own: Any) -> Rule:
    """The table's rule with this optimizer's own parameters."""
    return fold(method(name).rule, own)


class WADA(WAGMF):
    """Linearly growing weights on squared gradients, fourth root.

        steps along   Σ (1-β1)·β1^(t-i)·g_i
        divided by    (Σ i·g_i² / Σ i)^(1/4)

    Args:
        params: parameters, named parameters, or parameter groups.
        lr: the step size α.
        beta1: momentum.
        options: see :class:`WAGMF`.

    >>> import torch
    >>> optimizer = WADA(torch.nn.Linear(3, 1).parameters(), lr=0.1)

    Reference: Zhong et al. 2019, arXiv:2101.00238
    """

    def __init__(
        self, params: ParamsT, lr: float | Tensor = 1e-3, *, beta1: float = 0.9, **options: Unpack[Options]
    ) -> None:
        super().__init__(params, lr, rule=_rule("wada", beta1=beta1), **options)


class WADAv3(WAGMF):
    """WADA with the third power of gradients.

        steps along   Σ (1-β1)·β1^(t-i)·g_i
        divided by    (Σ i·|g_i|³ / Σ i)^(1/4)

    Args:
        params: parameters, named parameters, or parameter groups.
        lr: the step size α.
        beta1: momentum.
        options: see :class:`WAGMF`.

    >>> import torch
    >>> optimizer = WADAv3(torch.nn.Linear(3, 1).parameters(), lr=0.1)

    Reference: Zhong et al. 2019, arXiv:2101.00238
    """

    def __init__(
        self, params: ParamsT, lr: float | Tensor = 1e-3, *, beta1: float = 0.9, **options: Unpack[Options]
    ) -> None:
        super().__init__(params, lr, rule=_rule("wada_v3", beta1=beta1), **options)


class WADAv4(WAGMF):
    """WADA with the fourth power: V scales as the gradients do.

        steps along   Σ (1-β1)·β1^(t-i)·g_i
        divided by    (Σ i·g_i⁴ / Σ i)^(1/4)

    Args:
        params: parameters, named parameters, or parameter groups.
        lr: the step size α.
        beta1: momentum.
        options: see :class:`WAGMF`.

    >>> import torch
    >>> optimizer = WADAv4(torch.nn.Linear(3, 1).parameters(), lr=0.1)

    Reference: Zhong et al. 2019, arXiv:2101.00238
    """

    def __init__(
        self, params: ParamsT, lr: float | Tensor = 1e-3, *, beta1: float = 0.9, **options: Unpack[Options]
    ) -> None:
        super().__init__(params, lr, rule=_rule("wada_v4", beta1=beta1), **options)


class Adam(WAGMF):
    """Exponentially growing weights, bias-corrected; equals torch.optim.Adam.

        steps along   Σ (1-β1)·β1^(t-i)·g_i / (1-β1^t)
        divided by    (Σ β2^(t-i)·g_i² / Σ β2^(t-i))^(1/2)

    Args:
        params: parameters, named parameters, or parameter groups.
        lr: the step size α.
        beta1: momentum.
        beta2: how much of the past average of |g|^p1 is kept.
        debias: correct the averages for having started from zero.
        options: see :class:`WAGMF`.

    >>> import torch
    >>> optimizer = Adam(torch.nn.Linear(3, 1).parameters(), lr=0.1)

    Reference: Kingma, Ba 2015, arXiv:1412.6980
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        *,
        beta1: float = 0.9,
        beta2: float = 0.999,
        debias: bool = True,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(params, lr, rule=_rule("adam", beta1=beta1, beta2=beta2, debias=debias), **options)


class AMSGrad(WAGMF):
    """Adam with the running maximum of v; debias=True equals torch.optim.Adam(amsgrad=True).

        steps along   Σ (1-β1)·β1^(t-i)·g_i
        divided by    max_{s≤t} (Σ_{i≤s} (1-β2)·β2^(s-i)·g_i²)^(1/2)

    Args:
        params: parameters, named parameters, or parameter groups.
        lr: the step size α.
        beta1: momentum.
        beta2: how much of the past average of |g|^p1 is kept.
        debias: correct the averages for having started from zero.
        options: see :class:`WAGMF`.

    >>> import torch
    >>> optimizer = AMSGrad(torch.nn.Linear(3, 1).parameters(), lr=0.1)

    Reference: Reddi, Kale, Kumar 2018, arXiv:1904.09237
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        *,
        beta1: float = 0.9,
        beta2: float = 0.999,
        debias: bool = False,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(params, lr, rule=_rule("amsgrad", beta1=beta1, beta2=beta2, debias=debias), **options)


class AdamNC(WAGMF):
    """Equal weights: AdaGrad with momentum.

        steps along   Σ (1-β1)·β1^(t-i)·g_i
        divided by    (Σ g_i² / t)^(1/2)

    Args:
        params: parameters, named parameters, or parameter groups.
        lr: the step size α.
        beta1: momentum.
        options: see :class:`WAGMF`.

    >>> import torch
    >>> optimizer = AdamNC(torch.nn.Linear(3, 1).parameters(), lr=0.1)

    Reference: Reddi, Kale, Kumar 2018, arXiv:1904.09237
    """

    def __init__(
        self, params: ParamsT, lr: float | Tensor = 1e-3, *, beta1: float = 0.9, **options: Unpack[Options]
    ) -> None:
        super().__init__(params, lr, rule=_rule("adamnc", beta1=beta1), **options)


class NosAdam(WAGMF):
    """Slowly shrinking weights: the past counts more than the present.

        steps along   Σ (1-β1)·β1^(t-i)·g_i
        divided by    (Σ i^-0.1·g_i² / Σ i^-0.1)^(1/2)

    Args:
        params: parameters, named parameters, or parameter groups.
        lr: the step size α.
        beta1: momentum.
        eta: the weights are t^eta.
        options: see :class:`WAGMF`.

    >>> import torch
    >>> optimizer = NosAdam(torch.nn.Linear(3, 1).parameters(), lr=0.1)

    Reference: Huang, Wang, Dong 2019, arXiv:1805.07557
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        *,
        beta1: float = 0.9,
        eta: float = -0.1,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(params, lr, rule=_rule("nosadam", beta1=beta1, eta=eta), **options)


class Padam(WAGMF):
    """AMSGrad with a partial power p = 1/p2 = 1/8 between Adam and SGD.

        steps along   Σ (1-β1)·β1^(t-i)·g_i
        divided by    max_{s≤t} (Σ_{i≤s} (1-β2)·β2^(s-i)·g_i²)^(1/8)

    Args:
        params: parameters, named parameters, or parameter groups.
        lr: the step size α.
        beta1: momentum.
        beta2: how much of the past average of |g|^p1 is kept.
        p2: the root: 2 is AMSGrad, inf is momentum.
        debias: correct the averages for having started from zero.
        options: see :class:`WAGMF`.

    >>> import torch
    >>> optimizer = Padam(torch.nn.Linear(3, 1).parameters(), lr=0.1)

    Reference: Chen et al. 2020, arXiv:1806.06763
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        *,
        beta1: float = 0.9,
        beta2: float = 0.999,
        p2: float = 8.0,
        debias: bool = False,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(params, lr, rule=_rule("padam", beta1=beta1, beta2=beta2, p2=p2, debias=debias), **options)


class NAdam(WAGMF):
    """Adam that looks one step ahead; optax.nadam's form, torch.optim.NAdam without its warm-up of β1.

        steps along   β1·m_t/(1-β1^(t+1)) + (1-β1)·g_t/(1-β1^t)
        divided by    (Σ β2^(t-i)·g_i² / Σ β2^(t-i))^(1/2)

    Args:
        params: parameters, named parameters, or parameter groups.
        lr: the step size α.
        beta1: momentum.
        beta2: how much of the past average of |g|^p1 is kept.
        debias: correct the averages for having started from zero.
        options: see :class:`WAGMF`.

    >>> import torch
    >>> optimizer = NAdam(torch.nn.Linear(3, 1).parameters(), lr=0.1)

    Reference: Dozat 2016, ICLR workshop
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        *,
        beta1: float = 0.9,
        beta2: float = 0.999,
        debias: bool = True,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(params, lr, rule=_rule("nadam", beta1=beta1, beta2=beta2, debias=debias), **options)


class AdaGrad(WAGMF):
    """Equal weights, no momentum; eps counts √t times what it counts in torch.optim.Adagrad.

        steps along   g_t
        divided by    (Σ g_i² / t)^(1/2), α_t = α/√t

    Args:
        params: parameters, named parameters, or parameter groups.
        lr: the step size α.
        options: see :class:`WAGMF`.

    >>> import torch
    >>> optimizer = AdaGrad(torch.nn.Linear(3, 1).parameters(), lr=0.1)

    Reference: Duchi, Hazan, Singer 2011, JMLR 12
    """

    def __init__(self, params: ParamsT, lr: float | Tensor = 1e-3, **options: Unpack[Options]) -> None:
        super().__init__(params, lr, rule=_rule("adagrad"), **options)


class SCAdaGrad(WAGMF):
    """AdaGrad for strongly convex losses: no root, step sizes 1/t.

        steps along   g_t
        divided by    Σ g_i² / t, α_t = α/t

    Args:
        params: parameters, named parameters, or parameter groups.
        lr: the step size α.
        options: see :class:`WAGMF`.

    >>> import torch
    >>> optimizer = SCAdaGrad(torch.nn.Linear(3, 1).parameters(), lr=0.1)

    Reference: Mukkamala, Hein 2017, arXiv:1706.05507
    """

    def __init__(self, params: ParamsT, lr: float | Tensor = 1e-3, **options: Unpack[Options]) -> None:
        super().__init__(params, lr, rule=_rule("sc_adagrad"), **options)


class RMSProp(WAGMF):
    """Exponentially growing weights, no momentum, uncorrected; equals torch.optim.RMSprop.

        steps along   g_t
        divided by    (Σ (1-β2)·β2^(t-i)·g_i²)^(1/2)

    Args:
        params: parameters, named parameters, or parameter groups.
        lr: the step size α.
        beta2: how much of the past average of |g|^p1 is kept.
        debias: correct the averages for having started from zero.
        options: see :class:`WAGMF`.

    >>> import torch
    >>> optimizer = RMSProp(torch.nn.Linear(3, 1).parameters(), lr=0.1)

    Reference: Tieleman, Hinton 2012, lecture 6.5
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        *,
        beta2: float = 0.99,
        debias: bool = False,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(params, lr, rule=_rule("rmsprop", beta2=beta2, debias=debias), **options)


class RMSPropNC(WAGMF):
    """RMSProp with β2_t = 1 - 1/t, which is equal weights.

        steps along   g_t
        divided by    (Σ g_i² / t)^(1/2)

    Args:
        params: parameters, named parameters, or parameter groups.
        lr: the step size α.
        options: see :class:`WAGMF`.

    >>> import torch
    >>> optimizer = RMSPropNC(torch.nn.Linear(3, 1).parameters(), lr=0.1)

    Reference: Mukkamala, Hein 2017, arXiv:1706.05507
    """

    def __init__(self, params: ParamsT, lr: float | Tensor = 1e-3, **options: Unpack[Options]) -> None:
        super().__init__(params, lr, rule=_rule("rmsprop_nc"), **options)


class SCRMSProp(WAGMF):
    """RMSProp for strongly convex losses: β2_t = 1 - 0.9/t as the weights t^-0.1 it amounts to.

        steps along   g_t
        divided by    Σ i^-0.1·g_i² / Σ i^-0.1, α_t = α/t

    Args:
        params: parameters, named parameters, or parameter groups.
        lr: the step size α.
        eta: the weights are t^eta.
        options: see :class:`WAGMF`.

    >>> import torch
    >>> optimizer = SCRMSProp(torch.nn.Linear(3, 1).parameters(), lr=0.1)

    Reference: Mukkamala, Hein 2017, arXiv:1706.05507
    """

    def __init__(
        self, params: ParamsT, lr: float | Tensor = 1e-3, *, eta: float = -0.1, **options: Unpack[Options]
    ) -> None:
        super().__init__(params, lr, rule=_rule("sc_rmsprop", eta=eta), **options)


class SignSGD(WAGMF):
    """Only the newest gradient counts: every coordinate moves by the step size.

        steps along   g_t
        divided by    |g_t|

    Args:
        params: parameters, named parameters, or parameter groups.
        lr: the step size α.
        beta1: momentum.
        options: see :class:`WAGMF`.

    >>> import torch
    >>> optimizer = SignSGD(torch.nn.Linear(3, 1).parameters(), lr=0.1)

    Reference: Bernstein et al. 2018, arXiv:1802.04434
    """

    def __init__(
        self, params: ParamsT, lr: float | Tensor = 1e-3, *, beta1: float = 0.0, **options: Unpack[Options]
    ) -> None:
        super().__init__(params, lr, rule=_rule("signsgd", beta1=beta1), **options)


class Momentum(WAGMF):
    """Heavy ball; lr/(1-β1) here is lr of torch.optim.SGD(momentum=β1).

        steps along   Σ (1-β1)·β1^(t-i)·g_i
        divided by    I

    Args:
        params: parameters, named parameters, or parameter groups.
        lr: the step size α.
        beta1: momentum.
        nesterov: look one step ahead.
        options: see :class:`WAGMF`.

    >>> import torch
    >>> optimizer = Momentum(torch.nn.Linear(3, 1).parameters(), lr=0.1)

    Reference: Polyak 1964
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        *,
        beta1: float = 0.9,
        nesterov: bool = False,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(params, lr, rule=_rule("momentum", beta1=beta1, nesterov=nesterov), **options)


class OGD(WAGMF):
    """Online gradient descent, which is SGD.

        steps along   g_t
        divided by    I

    Args:
        params: parameters, named parameters, or parameter groups.
        lr: the step size α.
        options: see :class:`WAGMF`.

    >>> import torch
    >>> optimizer = OGD(torch.nn.Linear(3, 1).parameters(), lr=0.1)

    Reference: Zinkevich 2003, ICML
    """

    def __init__(self, params: ParamsT, lr: float | Tensor = 1e-3, **options: Unpack[Options]) -> None:
        super().__init__(params, lr, rule=_rule("ogd"), **options)
