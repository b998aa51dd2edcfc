"""Train a small network on handwritten digits, with AdamW and with WADA: one line differs.

    python examples/torch_mnist_style.py

The digits are those that come with scikit-learn: 1,797 images of 8 × 8, real and offline. Both optimizers start from
the same weights and see the same batches; each has the best of six step sizes, chosen by images that are held out.
WADA's V is of the order of √|g|, so its best step size is not AdamW's.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

from wagmf.torch import WADA

LRS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
OPTIMIZERS = {
    "AdamW": lambda params, lr: torch.optim.AdamW(params, lr=lr),
    "WADA": lambda params, lr: WADA(params, lr=lr, weight_decay=0.01, decoupled_weight_decay=True),
}


def digits():
    """Images and labels: to train on, to choose the step size by, to test with."""
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    return [(x[part], y[part]) for part in order.split([1000, 297, 500])]


def train(make, lr, data, seed, epochs=20):
    x, y = data
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = make(model.parameters(), lr)
    for _ in range(epochs):
        for batch in torch.randperm(len(x)).split(100):
            optimizer.zero_grad()
            cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
    return model


@torch.no_grad()
def accuracy(model, data):
    x, y = data
    return (model(x).argmax(1) == y).double().mean().item()


def main(seeds=5):
    training, held_out, test = digits()
    print(f"{len(training[0])} digits to train on, {len(test[0])} to test with, {seeds} seeds")
    for name, make in OPTIMIZERS.items():
        lr = max(LRS, key=lambda lr: accuracy(train(make, lr, training, seed=0), held_out))
        found = torch.tensor([accuracy(train(make, lr, training, seed), test) for seed in range(1, seeds + 1)])
        print(f"{name:6s} lr {lr:g}: test accuracy {found.mean():.1%} ± {found.std():.1%} (standard deviation)")


if __name__ == "__main__":
    main()
