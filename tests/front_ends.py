"""Every front end, walking the same gradients with every method; a process each, since they cannot share one.

    python tests/front_ends.py FRONT_END FILE.npz

writes the decisions of every method in float64 and float32, a row per step. One parameter holds all kinds of gradients
side by side: coordinates do not touch each other.
"""

import os
import sys

import numpy as np
from tables import NAMED, PROBLEMS, gradients

from wagmf.methods import METHODS

STEPS, LR = 200, 0.1
DTYPES = ("float64", "float32")
TORCH_PATHS = {"plain": {"foreach": False, "fused": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
FRONT_ENDS = {  # by the process that runs them
    "torch": [f"torch {path}" for path in TORCH_PATHS],
    "optax": ["optax"],
    "keras-tensorflow": ["keras tensorflow"],
    "keras-jax": ["keras jax"],
    "keras-torch": ["keras torch"],
}


def problems(dtype):
    """The gradients, and where to start: at 0, so that differences can be told relative to how far a coordinate moves.

    In float32 |g|^4 must neither overflow nor vanish: 1e±12 becomes 1e±6.
    """
    scale = {"tiny": 1e6, "huge": 1e-6} if dtype == "float32" else {}
    columns = [gradients(name, T=STEPS) * scale.get(name, 1.0) for name in PROBLEMS]
    g = np.concatenate(columns, axis=1).astype(dtype)
    return g, np.zeros(g.shape[1], dtype)


def walk_torch(method, g, x0, path="fused"):
    import torch

    import wagmf.torch

    x = torch.nn.Parameter(torch.from_numpy(x0.copy()))
    optimizer = getattr(wagmf.torch, NAMED[method])([x], lr=LR, **TORCH_PATHS[path])
    for g_t in g:
        x.grad = torch.from_numpy(g_t)
        optimizer.step()
        yield x.detach().numpy().copy()


def walk_optax(method, g, x0):
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


def walk_keras(method, g, x0):
    import keras

    import wagmf.keras

    keras.config.set_floatx(str(g.dtype))
    x = keras.Variable(x0)
    optimizer = getattr(wagmf.keras, NAMED[method])(LR)
    optimizer.build([x])
    step = as_a_graph(lambda g_t: optimizer.apply([g_t], [x]))
    for g_t in g:
        step(keras.ops.convert_to_tensor(g_t))
        yield np.array(keras.ops.convert_to_numpy(x))


def as_a_graph(step):
    """As model.fit would run it on TensorFlow; eagerly each of its operations takes longer than the graph."""
    if os.environ["KERAS_BACKEND"] != "tensorflow":
        return step
    import tensorflow

    return tensorflow.function(step)


def walks_of(process):
    """The walks of the front ends that a process runs."""
    if process == "torch":
        return {f"torch {path}": lambda *args, path=path: walk_torch(*args, path) for path in TORCH_PATHS}
    return {FRONT_ENDS[process][0]: walk_optax if process == "optax" else walk_keras}


def main(process, file):
    if process.startswith("keras-"):
        os.environ["KERAS_BACKEND"] = process.removeprefix("keras-")
    if process == "keras-jax":
        import jax

        jax.config.update("jax_enable_x64", True)
    found = {}
    for dtype in DTYPES:
        g, x0 = problems(dtype)
        for front_end, walk in walks_of(process).items():
            for method in METHODS:
                found[f"{dtype}/{front_end}/{method}"] = np.stack(list(walk(method, g, x0)))
    np.savez(file, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
