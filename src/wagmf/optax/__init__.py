"""Weighted adaptive gradient methods for JAX, as optax gradient transformations.

    optimizer = wada(1e-3)                       # where optax.adam(1e-3) was

>>> import jax.numpy as jnp
>>> optimizer = wada(0.1)
>>> state = optimizer.init(jnp.zeros(3))
"""

from wagmf.optax.named import (
    adagrad,
    adam,
    adamnc,
    amsgrad,
    momentum,
    nadam,
    nosadam,
    ogd,
    padam,
    rmsprop,
    rmsprop_nc,
    sc_adagrad,
    sc_rmsprop,
    signsgd,
    wada,
    wada_v3,
    wada_v4,
)  # fmt: skip
from wagmf.optax.transform import Options, WAGMFState, project_in, projected, scale_by_wagmf, wagmf

__all__ = [
    "Options", "WAGMFState", "adagrad", "adam", "adamnc", "amsgrad", "momentum", "nadam", "nosadam", "ogd", "padam",
    "project_in", "projected", "rmsprop", "rmsprop_nc", "sc_adagrad", "sc_rmsprop", "scale_by_wagmf", "signsgd",
    "wada", "wada_v3", "wada_v4", "wagmf",
]  # fmt: skip
