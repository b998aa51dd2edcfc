"""Train a small network on handwritten digits with Keras, with its AdamW and with WADA: one line differs.

    KERAS_BACKEND=jax python examples/keras_digits.py        or tensorflow, or torch

The digits are those that come with scikit-learn: 1,797 images of 8 × 8, real and offline. Both optimizers start from
the same weights and see the same batches; each has the best of five step sizes, chosen by images that are held out.
WADA's V is of the order of √|g|, so its best step size is not AdamW's.
"""

import keras
import numpy as np
from sklearn.datasets import load_digits

from wagmf.keras import WADA

LRS = (0.01, 0.03, 0.1, 0.3, 1.0)
OPTIMIZERS = {
    "AdamW": lambda lr: keras.optimizers.AdamW(lr, weight_decay=0.01),
    "WADA": lambda lr: WADA(lr, weight_decay=0.01),
}


def digits():
    """Images and labels: to train on, to choose the step size by, to test with."""
    images, labels = load_digits(return_X_y=True)
    x = images.astype(np.float32) / 16
    order = np.random.default_rng(0).permutation(len(x))
    return [(x[part], labels[part]) for part in np.split(order, [1000, 1297])]


def train(make, lr, data, seed, epochs=10):
    keras.utils.set_random_seed(seed)
    layers = [keras.Input((64,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)]
    model = keras.Sequential(layers)
    model.compile(make(lr), loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(*data, batch_size=100, epochs=epochs, verbose=0)
    return model


def accuracy(model, data):
    x, y = data
    return float((keras.ops.convert_to_numpy(model(x)).argmax(1) == y).mean())


def main(seeds=3):
    training, held_out, test = digits()
    print(f"Keras {keras.__version__} on {keras.backend.backend()}")
    print(f"{len(training[0])} digits to train on, {len(test[0])} to test with, {seeds} seeds")
    for name, make in OPTIMIZERS.items():
        lr = max(LRS, key=lambda lr: accuracy(train(make, lr, training, seed=0), held_out))
        found = np.array([accuracy(train(make, lr, training, seed), test) for seed in range(1, seeds + 1)])
        print(f"{name:6s} lr {lr:g}: test accuracy {found.mean():.1%} ± {found.std(ddof=1):.1%} (standard deviation)")


if __name__ == "__main__":
    main()
