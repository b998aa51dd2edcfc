"""Every front end, walking the same gradients with every method.

One parameter holds all kinds of gradients side by side: coordinates do not touch each other.
"""

import contextlib

import numpy as np
from tables import NAMED, PROBLEMS, gradients

from wagmf.methods import METHODS

STEPS, LR = 200, 0.1
DTYPES = ("float64", "float32")
TORCH_PATHS = {"plain": {"foreach": False, "fused": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}


def problems(dtype):
    """The gradients, and where to start: at 0, so that differences can be told relative to how far a coordinate moves.

    In float32 |g|^4 must neither overflow nor vanish: 1e±12 becomes 1e±6.
    """
    scale = {"tiny": 1e6, "huge": 1e-6} if dtype == "float32" else {}
    columns = [gradients(name, T=STEPS) * scale.get(name, 1.0) for name in PROBLEMS]
    g = np.concatenate(columns, axis=1).astype(dtype)
    return g, np.zeros(g.shape[1], dtype)


def walks(front_end):
    """The decisions of every method in float64 and float32, a row per step, by dtype and method."""
    kind, _, which = front_end.partition(" ")
    walk = {"torch": walk_torch, "optax": walk_optax, "keras": walk_keras}[kind]
    found = {}
    for dtype in DTYPES:
        g, x0 = problems(dtype)
        found |= {f"{dtype}/{method}": np.stack(list(walk(which, method, g, x0))) for method in METHODS}
    return found


def walk_torch(path, method, g, x0):
    import torch

    import wagmf.torch

    x = torch.nn.Parameter(torch.from_numpy(x0.copy()))
    optimizer = getattr(wagmf.torch, NAMED[method])([x], lr=LR, **TORCH_PATHS[path])
    for g_t in g:
        x.grad = torch.from_numpy(g_t)
        optimizer.step()
        yield x.detach().numpy().copy()


def walk_optax(_, method, g, x0):
    import jax
    import optax

    import wagmf.optax

    optimizer = getattr(wagmf.optax, method)(LR)

    def step(carry, g_t):
        x, state = carry
        updates, state = optimizer.update(g_t, state, x)
        x = optax.apply_updates(x, updates)
        return (x, state), x

    with jax.enable_x64(g.dtype == np.float64):
        x0 = jax.numpy.asarray(x0)
        yield from np.asarray(jax.lax.scan(step, (x0, optimizer.init(x0)), jax.numpy.asarray(g))[1])


def walk_keras(back_end, method, g, x0):
    import keras

    import wagmf.keras

    assert keras.backend.backend() == back_end
    keras.config.set_floatx(str(g.dtype))
    with wide_enough(back_end, g.dtype):
        x = keras.Variable(x0)
        optimizer = getattr(wagmf.keras, NAMED[method])(LR)
        optimizer.build([x])
        step = as_a_graph(back_end, lambda g_t: optimizer.apply([g_t], [x]))
        for g_t in g:
            step(keras.ops.convert_to_tensor(g_t))
            yield np.array(keras.ops.convert_to_numpy(x))


def wide_enough(back_end, dtype):
    """Jax has float64 only where it is asked for."""
    if back_end != "jax":
        return contextlib.nullcontext()
    import jax

    return jax.enable_x64(dtype == np.float64)


def as_a_graph(back_end, step):
    """As model.fit would run it on TensorFlow; eagerly each of its operations takes longer than the graph."""
    if back_end != "tensorflow":
        return step
    import tensorflow

    return tensorflow.function(step)
