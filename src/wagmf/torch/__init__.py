"""The PyTorch front end: the methods of the table as optimizers.

>>> import torch
>>> from wagmf.torch import WADA
>>> model = torch.nn.Linear(3, 1)
>>> optimizer = WADA(model.parameters(), lr=1e-2)
"""

from wagmf.torch.groups import param_groups_weight_decay
from wagmf.torch.named import (
    OGD,
    WADA,
    AdaGrad,
    Adam,
    AdamNC,
    AMSGrad,
    Momentum,
    NAdam,
    NosAdam,
    Padam,
    RMSProp,
    RMSPropNC,
    SCAdaGrad,
    SCRMSProp,
    SignSGD,
    WADAv3,
    WADAv4,
)  # fmt: skip
from wagmf.torch.optimizer import WAGMF
from wagmf.torch.watching import watch

__all__ = [
    "OGD", "WADA", "WAGMF", "AMSGrad", "AdaGrad", "Adam", "AdamNC", "Momentum", "NAdam", "NosAdam", "Padam", "RMSProp",
    "RMSPropNC", "SCAdaGrad", "SCRMSProp", "SignSGD", "WADAv3", "WADAv4",
    "param_groups_weight_decay", "watch",
]  # fmt: skip
