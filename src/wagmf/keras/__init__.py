"""Weighted adaptive gradient methods for Keras 3, on TensorFlow, JAX and torch alike.

    model.compile(WADA(1e-3), loss=...)          # where keras.optimizers.Adam(1e-3) was

>>> optimizer = WADA(0.1, clipnorm=1.0)
"""

from wagmf.keras.named import (
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
from wagmf.keras.optimizer import WAGMF, Options

__all__ = [
    "OGD",
    "WADA",
    "WAGMF",
    "AMSGrad",
    "AdaGrad",
    "Adam",
    "AdamNC",
    "Momentum",
    "NAdam",
    "NosAdam",
    "Options",
    "Padam",
    "RMSProp",
    "RMSPropNC",
    "SCAdaGrad",
    "SCRMSProp",
    "SignSGD",
    "WADAv3",
    "WADAv4",
]  # fmt: skip
