"""The table: one row per named method. Documentation, command line and tests are generated from it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from wagmf.arguments import one_of
from wagmf.rule import Rule
from wagmf.weights import Equal, Exponential, Latest, Linear, Polynomial

__all__ = ["METHODS", "PAPER_METHODS", "Method", "markdown_table", "method"]


@dataclass(frozen=True)
class Method:
    """A row of the table.

    ``phi`` and ``psi`` are the averaging functions of the paper's Table 1: the method steps along φ_t / ψ_t. Sums run
    over i ≤ t.

    >>> method("wada").rule == Rule()
    True
    """

    name: str
    title: str
    rule: Rule
    phi: str
    psi: str
    summary: str
    reference: str


_WADA = "Zhong et al. 2019, arXiv:2101.00238"
_REDDI = "Reddi, Kale, Kumar 2018, arXiv:1904.09237"
_MUKKAMALA = "Mukkamala, Hein 2017, arXiv:1706.05507"

_M = "Σ (1-β1)·β1^(t-i)·g_i"

_ROWS = (
    Method(
        "wada",
        "WADA",
        Rule(Linear(), p1=2, p2=4),
        _M,
        "(Σ i·g_i² / Σ i)^(1/4)",
        "Linearly growing weights on squared gradients, fourth root.",
        _WADA,
    ),
    Method(
        "wada_v3",
        "WADA-v3",
        Rule(Linear(), p1=3, p2=4),
        _M,
        "(Σ i·|g_i|³ / Σ i)^(1/4)",
        "WADA with the third power of gradients.",
        _WADA,
    ),
    Method(
        "wada_v4",
        "WADA-v4",
        Rule(Linear(), p1=4, p2=4),
        _M,
        "(Σ i·g_i⁴ / Σ i)^(1/4)",
        "WADA with the fourth power: V scales as the gradients do.",
        _WADA,
    ),
    Method(
        "adam",
        "Adam",
        Rule(Exponential(0.999), p1=2, p2=2, debias=True),
        f"{_M} / (1-β1^t)",
        "(Σ β2^(t-i)·g_i² / Σ β2^(t-i))^(1/2)",
        "Exponentially growing weights, bias-corrected; equals torch.optim.Adam.",
        "Kingma, Ba 2015, arXiv:1412.6980",
    ),
    Method(
        "amsgrad",
        "AMSGrad",
        Rule(Exponential(0.999, steady=True), p1=2, p2=2, monotone=True),
        _M,
        "max_{s≤t} (Σ_{i≤s} (1-β2)·β2^(s-i)·g_i²)^(1/2)",
        "Adam with the running maximum of v; debias=True equals torch.optim.Adam(amsgrad=True).",
        _REDDI,
    ),
    Method(
        "adamnc",
        "AdamNC",
        Rule(Equal(), p1=2, p2=2),
        _M,
        "(Σ g_i² / t)^(1/2)",
        "Equal weights: AdaGrad with momentum.",
        _REDDI,
    ),
    Method(
        "nosadam",
        "Nostalgic Adam",
        Rule(Polynomial(-0.1), p1=2, p2=2),
        _M,
        "(Σ i^-0.1·g_i² / Σ i^-0.1)^(1/2)",
        "Slowly shrinking weights: the past counts more than the present.",
        "Huang, Wang, Dong 2019, arXiv:1805.07557",
    ),
    Method(
        "padam",
        "Padam",
        Rule(Exponential(0.999, steady=True), p1=2, p2=8, monotone=True),
        _M,
        "max_{s≤t} (Σ_{i≤s} (1-β2)·β2^(s-i)·g_i²)^(1/8)",
        "AMSGrad with a partial power p = 1/p2 = 1/8 between Adam and SGD.",
        "Chen et al. 2020, arXiv:1806.06763",
    ),
    Method(
        "nadam",
        "NAdam",
        Rule(Exponential(0.999), p1=2, p2=2, debias=True, nesterov=True),
        "β1·m_t/(1-β1^(t+1)) + (1-β1)·g_t/(1-β1^t)",
        "(Σ β2^(t-i)·g_i² / Σ β2^(t-i))^(1/2)",
        "Adam that looks one step ahead; optax.nadam's form, torch.optim.NAdam without its warm-up of β1.",
        "Dozat 2016, ICLR workshop",
    ),
    Method(
        "adagrad",
        "AdaGrad",
        Rule(Equal(), p1=2, p2=2, beta1=0, decay=0.5),
        "g_t",
        "(Σ g_i² / t)^(1/2), α_t = α/√t",
        "Equal weights, no momentum; eps counts √t times what it counts in torch.optim.Adagrad.",
        "Duchi, Hazan, Singer 2011, JMLR 12",
    ),
    Method(
        "sc_adagrad",
        "SC-AdaGrad",
        Rule(Equal(), p1=2, p2=1, beta1=0, decay=1),
        "g_t",
        "Σ g_i² / t, α_t = α/t",
        "AdaGrad for strongly convex losses: no root, step sizes 1/t.",
        _MUKKAMALA,
    ),
    Method(
        "rmsprop",
        "RMSProp",
        Rule(Exponential(0.99, steady=True), p1=2, p2=2, beta1=0),
        "g_t",
        "(Σ (1-β2)·β2^(t-i)·g_i²)^(1/2)",
        "Exponentially growing weights, no momentum, uncorrected; equals torch.optim.RMSprop.",
        "Tieleman, Hinton 2012, lecture 6.5",
    ),
    Method(
        "rmsprop_nc",
        "RMSProp-NC",
        Rule(Equal(), p1=2, p2=2, beta1=0),
        "g_t",
        "(Σ g_i² / t)^(1/2)",
        "RMSProp with β2_t = 1 - 1/t, which is equal weights.",
        _MUKKAMALA,
    ),
    Method(
        "sc_rmsprop",
        "SC-RMSProp",
        Rule(Polynomial(-0.1), p1=2, p2=1, beta1=0, decay=1),
        "g_t",
        "Σ i^-0.1·g_i² / Σ i^-0.1, α_t = α/t",
        "RMSProp for strongly convex losses: β2_t = 1 - 0.9/t as the weights t^-0.1 it amounts to.",
        _MUKKAMALA,
    ),
    Method(
        "signsgd",
        "signSGD",
        Rule(Latest(), p1=1, p2=1, beta1=0),
        "g_t",
        "|g_t|",
        "Only the newest gradient counts: every coordinate moves by the step size.",
        "Bernstein et al. 2018, arXiv:1802.04434",
    ),
    Method(
        "momentum",
        "Momentum",
        Rule(Equal(), p2=math.inf),
        _M,
        "I",
        "Heavy ball; lr/(1-β1) here is lr of torch.optim.SGD(momentum=β1).",
        "Polyak 1964",
    ),
    Method(
        "ogd",
        "OGD",
        Rule(Equal(), p2=math.inf, beta1=0),
        "g_t",
        "I",
        "Online gradient descent, which is SGD.",
        "Zinkevich 2003, ICML",
    ),
)

METHODS: Mapping[str, Method] = MappingProxyType({row.name: row for row in _ROWS})
"""Every named method, by name."""

PAPER_METHODS: tuple[str, ...] = ("adam", "amsgrad", "adamnc", "wada", "wada_v3", "wada_v4")
"""The methods the paper's experiments compare."""


def method(name: str) -> Method:
    """The row called ``name``; an unknown name is refused with the nearest known one.

    >>> method("adagrad").rule.decay
    0.5
    >>> method("adamm")
    Traceback (most recent call last):
    wagmf.arguments.Refused: Invalid method: 'adamm' (did you mean 'adam'? choose from wada, wada_v3, ...)
    """
    return METHODS[one_of("method", name, METHODS)]


def markdown_table() -> str:
    """The table as README and the documentation show it.

    >>> print(markdown_table().splitlines()[0])
    | method | φ_t | ψ_t | in a sentence | reference |
    """
    head = ["| method | φ_t | ψ_t | in a sentence | reference |", "|---|---|---|---|---|"]
    return (
        "\n".join(
            head + [f"| `{row.name}` | {row.phi} | {row.psi} | {row.summary} | {row.reference} |" for row in _ROWS]
        )
        .replace("|g_i|", "\\|g_i\\|")
        .replace("|g_t|", "\\|g_t\\|")
    )
