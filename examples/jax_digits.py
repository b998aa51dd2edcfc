"""Train a small network on handwritten digits in plain JAX, with optax's AdamW and with WADA: one line differs.

    python examples/jax_digits.py

The digits are those that come with scikit-learn: 1,797 images of 8 × 8, real and offline. Both optimizers start from
the same weights and see the same batches; each has the best of six step sizes, chosen by images that are held out, on
average over the seeds. WADA's V is of the order of √|g|, so its best step size is not AdamW's.
"""

import math
from functools import partial
from itertools import pairwise

import jax
import numpy as np
import optax
from sklearn.datasets import load_digits

from wagmf.optax import wada

LRS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
OPTIMIZERS = {
    "AdamW": lambda lr: optax.adamw(lr, weight_decay=0.01),
    "WADA": lambda lr: wada(lr, weight_decay=0.01),
}


def digits():
    """Images and labels: to train on, to choose the step size by, to test with."""
    images, labels = load_digits(return_X_y=True)
    x = images.astype(np.float32) / 16
    order = np.random.default_rng(0).permutation(len(x))
    return [(x[part], labels[part]) for part in np.split(order, [1000, 1297])]


def network(random, *widths):
    """Weights and biases of every layer."""
    sizes = pairwise(widths)
    return [(random.standard_normal((n, k), np.float32) * math.sqrt(2 / n), np.zeros(k, np.float32)) for n, k in sizes]


def logits(params, x):
    for w, b in params[:-1]:
        x = jax.nn.relu(x @ w + b)
    w, b = params[-1]
    return x @ w + b


def loss(params, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(logits(params, x), y).mean()


@partial(jax.jit, static_argnums=0)
def fit(make, lr, params, data, batches):
    """One program for the whole run; a step size that is an argument of it spares compiling it for each."""
    x, y = data
    optimizer = make(lr)

    def step(carry, batch):
        params, state = carry
        grads = jax.grad(loss)(params, x[batch], y[batch])
        updates, state = optimizer.update(grads, state, params)
        return (optax.apply_updates(params, updates), state), None

    (params, _), _ = jax.lax.scan(step, (params, optimizer.init(params)), batches)
    return params


def train(make, lr, data, seed, epochs=20):
    random = np.random.default_rng(seed)
    params = network(random, 64, 64, 10)
    order = np.concatenate([random.permutation(len(data[0])) for _ in range(epochs)])
    return fit(make, lr, params, data, order.reshape(-1, 100))


def accuracy(params, data):
    x, y = data
    return float((logits(params, x).argmax(1) == y).mean())


def main(seeds=5):
    training, held_out, test = digits()
    print(f"{len(training[0])} digits to train on, {len(test[0])} to test with, {seeds} seeds")
    for name, make in OPTIMIZERS.items():
        trained = {lr: [train(make, lr, training, seed) for seed in range(seeds)] for lr in LRS}
        lr = max(LRS, key=lambda lr: sum(accuracy(params, held_out) for params in trained[lr]))
        found = np.array([accuracy(params, test) for params in trained[lr]])
        print(f"{name:6s} lr {lr:g}: test accuracy {found.mean():.1%} ± {found.std(ddof=1):.1%} (standard deviation)")


if __name__ == "__main__":
    main()
