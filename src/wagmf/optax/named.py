"""The methods of the table as functions, each with the parameters that are its own.

All take the :class:`~wagmf.optax.transform.Options` of :func:`~wagmf.optax.wagmf` as well.
"""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar, Unpack, cast

import jax
from jax.core import Tracer

from wagmf.methods import method
from wagmf.optax.transform import Number, Optimizer, Options, StepSize, known, wagmf
from wagmf.rule import Rule, fold, unchecked

__all__ = [
    "adagrad",
    "adam",
    "adamnc",
    "amsgrad",
    "momentum",
    "nadam",
    "nosadam",
    "ogd",
    "padam",
    "rmsprop",
    "rmsprop_nc",
    "sc_adagrad",
    "sc_rmsprop",
    "signsgd",
    "wada",
    "wada_v3",
    "wada_v4",
]

F = TypeVar("F", bound=Callable[..., Any])


def _spelled_out(function: F) -> F:
    """Name the options one by one to whoever asks for the signature, as optax.inject_hyperparams does."""
    own = [each for each in inspect.signature(function).parameters.values() if each.name != "options"]
    shared = [each for each in inspect.signature(wagmf).parameters.values() if each.name in Options.__annotations__]
    cast(Any, function).__signature__ = inspect.Signature([*own, *shared], return_annotation=Optimizer)
    return function


def _named(name: str, **own: Any) -> Rule:
    """The table's rule with this optimizer's own parameters, of which some may be known only when the program runs."""
    rule = fold(method(name).rule, {key: known(key, value) for key, value in own.items() if not _is_late(key, value)})
    for key, value in own.items():
        if _is_late(key, value):
            if not isinstance(value, Tracer):
                fold(rule, {key: value})  # refuses what is wrong
            if key == "beta1":
                rule = unchecked(rule, beta1=value)
            else:
                rule = unchecked(rule, weights=unchecked(rule.weights, **{"beta" if key == "beta2" else key: value}))
    return rule


def _is_late(key: str, value: Any) -> bool:
    return key in ("beta1", "beta2", "eta") and isinstance(value, jax.Array)


@_spelled_out
def wada(learning_rate: StepSize, *, beta1: Number = 0.9, **options: Unpack[Options]) -> Optimizer:
    """Linearly growing weights on squared gradients, fourth root.

        steps along   Σ (1-β1)·β1^(t-i)·g_i
        divided by    (Σ i·g_i² / Σ i)^(1/4)

    Args:
        learning_rate: the step size α, or a schedule of it.
        beta1: momentum.
        options: see :func:`wagmf`.

    >>> optimizer = wada(0.1)

    Reference: Zhong et al. 2019, arXiv:2101.00238
    """
    return wagmf(learning_rate, _named("wada", beta1=beta1), **options)


@_spelled_out
def wada_v3(learning_rate: StepSize, *, beta1: Number = 0.9, **options: Unpack[Options]) -> Optimizer:
    """WADA with the third power of gradients.

        steps along   Σ (1-β1)·β1^(t-i)·g_i
        divided by    (Σ i·|g_i|³ / Σ i)^(1/4)

    Args:
        learning_rate: the step size α, or a schedule of it.
        beta1: momentum.
        options: see :func:`wagmf`.

    >>> optimizer = wada_v3(0.1)

    Reference: Zhong et al. 2019, arXiv:2101.00238
    """
    return wagmf(learning_rate, _named("wada_v3", beta1=beta1), **options)


@_spelled_out
def wada_v4(learning_rate: StepSize, *, beta1: Number = 0.9, **options: Unpack[Options]) -> Optimizer:
    """WADA with the fourth power: V scales as the gradients do.

        steps along   Σ (1-β1)·β1^(t-i)·g_i
        divided by    (Σ i·g_i⁴ / Σ i)^(1/4)

    Args:
        learning_rate: the step size α, or a schedule of it.
        beta1: momentum.
        options: see :func:`wagmf`.

    >>> optimizer = wada_v4(0.1)

    Reference: Zhong et al. 2019, arXiv:2101.00238
    """
    return wagmf(learning_rate, _named("wada_v4", beta1=beta1), **options)


@_spelled_out
def adam(
    learning_rate: StepSize,
    *,
    beta1: Number = 0.9,
    beta2: Number = 0.999,
    debias: bool = True,
    **options: Unpack[Options],
) -> Optimizer:
    """Exponentially growing weights, bias-corrected; equals torch.optim.Adam.

        steps along   Σ (1-β1)·β1^(t-i)·g_i / (1-β1^t)
        divided by    (Σ β2^(t-i)·g_i² / Σ β2^(t-i))^(1/2)

    Args:
        learning_rate: the step size α, or a schedule of it.
        beta1: momentum.
        beta2: how much of the past average of |g|^p1 is kept.
        debias: correct the averages for having started from zero.
        options: see :func:`wagmf`.

    >>> optimizer = adam(0.1)

    Reference: Kingma, Ba 2015, arXiv:1412.6980
    """
    return wagmf(learning_rate, _named("adam", beta1=beta1, beta2=beta2, debias=debias), **options)


@_spelled_out
def amsgrad(
    learning_rate: StepSize,
    *,
    beta1: Number = 0.9,
    beta2: Number = 0.999,
    debias: bool = False,
    **options: Unpack[Options],
) -> Optimizer:
    """Adam with the running maximum of v; debias=True equals torch.optim.Adam(amsgrad=True).

        steps along   Σ (1-β1)·β1^(t-i)·g_i
        divided by    max_{s≤t} (Σ_{i≤s} (1-β2)·β2^(s-i)·g_i²)^(1/2)

    Args:
        learning_rate: the step size α, or a schedule of it.
        beta1: momentum.
        beta2: how much of the past average of |g|^p1 is kept.
        debias: correct the averages for having started from zero.
        options: see :func:`wagmf`.

    >>> optimizer = amsgrad(0.1)

    Reference: Reddi, Kale, Kumar 2018, arXiv:1904.09237
    """
    return wagmf(learning_rate, _named("amsgrad", beta1=beta1, beta2=beta2, debias=debias), **options)


@_spelled_out
def adamnc(learning_rate: StepSize, *, beta1: Number = 0.9, **options: Unpack[Options]) -> Optimizer:
    """Equal weights: AdaGrad with momentum.

        steps along   Σ (1-β1)·β1^(t-i)·g_i
        divided by    (Σ g_i² / t)^(1/2)

    Args:
        learning_rate: the step size α, or a schedule of it.
        beta1: momentum.
        options: see :func:`wagmf`.

    >>> optimizer = adamnc(0.1)

    Reference: Reddi, Kale, Kumar 2018, arXiv:1904.09237
    """
    return wagmf(learning_rate, _named("adamnc", beta1=beta1), **options)


@_spelled_out
def nosadam(
    learning_rate: StepSize, *, beta1: Number = 0.9, eta: Number = -0.1, **options: Unpack[Options]
) -> Optimizer:
    """Slowly shrinking weights: the past counts more than the present.

        steps along   Σ (1-β1)·β1^(t-i)·g_i
        divided by    (Σ i^-0.1·g_i² / Σ i^-0.1)^(1/2)

    Args:
        learning_rate: the step size α, or a schedule of it.
        beta1: momentum.
        eta: the weights are t^eta.
        options: see :func:`wagmf`.

    >>> optimizer = nosadam(0.1)

    Reference: Huang, Wang, Dong 2019, arXiv:1805.07557
    """
    return wagmf(learning_rate, _named("nosadam", beta1=beta1, eta=eta), **options)


@_spelled_out
def padam(
    learning_rate: StepSize,
    *,
    beta1: Number = 0.9,
    beta2: Number = 0.999,
    p2: float = 8.0,
    debias: bool = False,
    **options: Unpack[Options],
) -> Optimizer:
    """AMSGrad with a partial power p = 1/p2 = 1/8 between Adam and SGD.

        steps along   Σ (1-β1)·β1^(t-i)·g_i
        divided by    max_{s≤t} (Σ_{i≤s} (1-β2)·β2^(s-i)·g_i²)^(1/8)

    Args:
        learning_rate: the step size α, or a schedule of it.
        beta1: momentum.
        beta2: how much of the past average of |g|^p1 is kept.
        p2: the root: 2 is AMSGrad, inf is momentum.
        debias: correct the averages for having started from zero.
        options: see :func:`wagmf`.

    >>> optimizer = padam(0.1)

    Reference: Chen et al. 2020, arXiv:1806.06763
    """
    return wagmf(learning_rate, _named("padam", beta1=beta1, beta2=beta2, p2=p2, debias=debias), **options)


@_spelled_out
def nadam(
    learning_rate: StepSize,
    *,
    beta1: Number = 0.9,
    beta2: Number = 0.999,
    debias: bool = True,
    **options: Unpack[Options],
) -> Optimizer:
    """Adam that looks one step ahead; optax.nadam's form, torch.optim.NAdam without its warm-up of β1.

        steps along   β1·m_t/(1-β1^(t+1)) + (1-β1)·g_t/(1-β1^t)
        divided by    (Σ β2^(t-i)·g_i² / Σ β2^(t-i))^(1/2)

    Args:
        learning_rate: the step size α, or a schedule of it.
        beta1: momentum.
        beta2: how much of the past average of |g|^p1 is kept.
        debias: correct the averages for having started from zero.
        options: see :func:`wagmf`.

    >>> optimizer = nadam(0.1)

    Reference: Dozat 2016, ICLR workshop
    """
    return wagmf(learning_rate, _named("nadam", beta1=beta1, beta2=beta2, debias=debias), **options)


@_spelled_out
def adagrad(learning_rate: StepSize, **options: Unpack[Options]) -> Optimizer:
    """Equal weights, no momentum; eps counts √t times what it counts in torch.optim.Adagrad.

        steps along   g_t
        divided by    (Σ g_i² / t)^(1/2), α_t = α/√t

    Args:
        learning_rate: the step size α, or a schedule of it.
        options: see :func:`wagmf`.

    >>> optimizer = adagrad(0.1)

    Reference: Duchi, Hazan, Singer 2011, JMLR 12
    """
    return wagmf(learning_rate, _named("adagrad"), **options)


@_spelled_out
def sc_adagrad(learning_rate: StepSize, **options: Unpack[Options]) -> Optimizer:
    """AdaGrad for strongly convex losses: no root, step sizes 1/t.

        steps along   g_t
        divided by    Σ g_i² / t, α_t = α/t

    Args:
        learning_rate: the step size α, or a schedule of it.
        options: see :func:`wagmf`.

    >>> optimizer = sc_adagrad(0.1)

    Reference: Mukkamala, Hein 2017, arXiv:1706.05507
    """
    return wagmf(learning_rate, _named("sc_adagrad"), **options)


@_spelled_out
def rmsprop(
    learning_rate: StepSize, *, beta2: Number = 0.99, debias: bool = False, **options: Unpack[Options]
) -> Optimizer:
    """Exponentially growing weights, no momentum, uncorrected; equals torch.optim.RMSprop.

        steps along   g_t
        divided by    (Σ (1-β2)·β2^(t-i)·g_i²)^(1/2)

    Args:
        learning_rate: the step size α, or a schedule of it.
        beta2: how much of the past average of |g|^p1 is kept.
        debias: correct the averages for having started from zero.
        options: see :func:`wagmf`.

    >>> optimizer = rmsprop(0.1)

    Reference: Tieleman, Hinton 2012, lecture 6.5
    """
    return wagmf(learning_rate, _named("rmsprop", beta2=beta2, debias=debias), **options)


@_spelled_out
def rmsprop_nc(learning_rate: StepSize, **options: Unpack[Options]) -> Optimizer:
    """RMSProp with β2_t = 1 - 1/t, which is equal weights.

        steps along   g_t
        divided by    (Σ g_i² / t)^(1/2)

    Args:
        learning_rate: the step size α, or a schedule of it.
        options: see :func:`wagmf`.

    >>> optimizer = rmsprop_nc(0.1)

    Reference: Mukkamala, Hein 2017, arXiv:1706.05507
    """
    return wagmf(learning_rate, _named("rmsprop_nc"), **options)


@_spelled_out
def sc_rmsprop(learning_rate: StepSize, *, eta: Number = -0.1, **options: Unpack[Options]) -> Optimizer:
    """RMSProp for strongly convex losses: β2_t = 1 - 0.9/t as the weights t^-0.1 it amounts to.

        steps along   g_t
        divided by    Σ i^-0.1·g_i² / Σ i^-0.1, α_t = α/t

    Args:
        learning_rate: the step size α, or a schedule of it.
        eta: the weights are t^eta.
        options: see :func:`wagmf`.

    >>> optimizer = sc_rmsprop(0.1)

    Reference: Mukkamala, Hein 2017, arXiv:1706.05507
    """
    return wagmf(learning_rate, _named("sc_rmsprop", eta=eta), **options)


@_spelled_out
def signsgd(learning_rate: StepSize, *, beta1: Number = 0.0, **options: Unpack[Options]) -> Optimizer:
    """Only the newest gradient counts: every coordinate moves by the step size.

        steps along   g_t
        divided by    |g_t|

    Args:
        learning_rate: the step size α, or a schedule of it.
        beta1: momentum.
        options: see :func:`wagmf`.

    >>> optimizer = signsgd(0.1)

    Reference: Bernstein et al. 2018, arXiv:1802.04434
    """
    return wagmf(learning_rate, _named("signsgd", beta1=beta1), **options)


@_spelled_out
def momentum(
    learning_rate: StepSize, *, beta1: Number = 0.9, nesterov: bool = False, **options: Unpack[Options]
) -> Optimizer:
    """Heavy ball; lr/(1-β1) here is lr of torch.optim.SGD(momentum=β1).

        steps along   Σ (1-β1)·β1^(t-i)·g_i
        divided by    I

    Args:
        learning_rate: the step size α, or a schedule of it.
        beta1: momentum.
        nesterov: look one step ahead.
        options: see :func:`wagmf`.

    >>> optimizer = momentum(0.1)

    Reference: Polyak 1964
    """
    return wagmf(learning_rate, _named("momentum", beta1=beta1, nesterov=nesterov), **options)


@_spelled_out
def ogd(learning_rate: StepSize, **options: Unpack[Options]) -> Optimizer:
    """Online gradient descent, which is SGD.

        steps along   g_t
        divided by    I

    Args:
        learning_rate: the step size α, or a schedule of it.
        options: see :func:`wagmf`.

    >>> optimizer = ogd(0.1)

    Reference: Zinkevich 2003, ICML
    """
    return wagmf(learning_rate, _named("ogd"), **options)
