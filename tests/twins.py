"""A replica of a stack as anybody would train it alone: torch's own layers, a scalar step size, an ordinary loop.

What it draws at random it takes from the lab's noise, of its own seed; where the numbers go is written anew here.
"""

from functools import cache

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from wagmf.lab.batches import order
from wagmf.lab.data import Dataset
from wagmf.lab.models import initial, zoo
from wagmf.lab.noise import Noise
from wagmf.lab.plain import plain
from wagmf.lab.spec import Problem
from wagmf.torch import WAGMF

F64, F32 = torch.float64, torch.float32
# Neither square nor even, where a model allows it: swapped axes and odd edges show.
SHAPES = {"softmax": (2, 5, 6), "mlp": (2, 5, 6), "cnn": (2, 6, 7), "resnet20": (3, 5, 4)}
OPTIONS = {"mlp": (("width", 12), ("dropout", 0.4))}
CLASSES = 4


@cache
def made_data(shape=(3, 8, 8), n=52, test=23, seed=0):
    """Images that can be learned: a pattern for each class, and noise."""
    some = np.random.default_rng(seed)
    pattern = some.normal(size=(CLASSES, *shape))
    labels = [np.arange(count) % CLASSES for count in (n, test)]
    (x, y), (x_test, y_test) = ((pattern[y] + some.normal(size=(len(y), *shape)), y) for y in labels)
    return Dataset("made", x, y, x_test, y_test)


def problem_of(model, **settings):
    """Everything there is: augmentation, dropout, L2, decay, milestones; in float64 unless told."""
    everything = {"shift": 0.25, "flip": True, "l2": 0.01, "decay": 0.5, "milestones": (1,), "factor": 0.3}
    everything |= {"epochs": 2, "batch": 16, "precision": "float64", "options": OPTIONS.get(model, ())}
    return Problem("made", model, **{**everything, **settings})


def model_of(problem, data=None):
    data = data or made_data(SHAPES[problem.model])
    return zoo(problem.model, data.shape, data.classes, **dict(problem.options))


def varied(images, seed, step, shift, flip):
    """The batch of a step, each image moved, its edge filling up, and then mirrored: with np.pad and slices."""
    noise = Noise(torch.tensor([seed]), torch.tensor(step))
    (count, _, height, width), new = images.shape, []
    down, across = int(shift * height), int(shift * width)
    rows, columns, flips = (
        noise.below(stream, count, limit)[0].tolist()
        for stream, limit in ((1001, 2 * down + 1), (1002, 2 * across + 1), (1003, 2))
    )
    for image, row, column, mirrored in zip(images, rows, columns, flips, strict=True):
        larger = np.pad(image, ((0, 0), (down, down), (across, across)), mode="edge")
        moved = larger[:, row : row + height, column : column + width]
        new.append(moved[:, :, ::-1] if flip and mirrored else moved)
    return np.stack(new)


class Masked(nn.Module):
    """Dropout by the mask that a seed draws: it lies features first there."""

    def __init__(self, twin, stream, rate):
        super().__init__()
        self.twin, self.stream, self.rate = [twin], stream, rate

    def forward(self, h):
        if not self.training:
            return h
        twin = self.twin[0]
        noise = Noise(torch.tensor([twin.seed]), torch.tensor(twin.t))
        return h * noise.keep(self.stream, (1, *h.T.shape), self.rate, h.dtype)[0, 0].T


class Twin:
    """One replica, trained alone."""

    def __init__(self, problem, model, data, arm, seed):
        dtype = getattr(torch, problem.precision)
        self.problem, self.arm, self.seed, self.t, self.epoch = problem, arm, seed, 0, 0
        self.net = plain(model).to(dtype)
        first = {name: torch.tensor(value) for name, value in initial(model, seed).items()}
        missing = self.net.load_state_dict(first, strict=False)
        assert not missing.unexpected_keys
        for number in (1, 2):
            if hasattr(self.net, f"dropout{number}"):
                setattr(self.net, f"dropout{number}", Masked(self, number, model.dropout))
        if arm.dotted:
            self.optimizer = arm.optimizer(self.net.parameters(), lr=arm.lr, **dict(arm.options))
        else:
            rule = arm.rule if problem.decay is None else arm.rule.with_decay(problem.decay)
            self.optimizer = WAGMF(self.net.parameters(), lr=arm.lr, rule=rule, eps=problem.eps)
        normal = data.normalised()
        self.x, self.x_test = normal.x_train, torch.tensor(normal.x_test, dtype=dtype)
        self.y, self.y_test = torch.tensor(normal.y_train), torch.tensor(normal.y_test)
        self.losses, self.hits, self.grads = [], [], []
        self.curves = {"train_loss": [], "train_accuracy": [], "test_loss": [], "test_accuracy": [], "clean_loss": []}

    def loss(self, x, y):
        logits = self.net(x)
        penalty = sum(param.square().sum() for param in self.net.parameters() if param.ndim > 1)
        plain_loss = F.cross_entropy(logits, y)
        hit = (logits.argmax(1) == y).double().mean().item()
        return plain_loss, plain_loss + self.problem.l2 * penalty, hit

    def train(self):
        """An epoch."""
        self.epoch += 1
        self.net.train()
        problem, batch, dtype = self.problem, self.problem.batch, self.x_test.dtype
        rate = problem.factor ** len([m for m in problem.milestones if m < self.epoch])
        places = order(self.seed, self.epoch, len(self.y))
        steps = len(self.y) // batch
        for i in range(steps):
            chosen = places[i * batch : (i + 1) * batch]
            x = self.x[chosen]
            if problem.shift or problem.flip:
                x = varied(x, self.seed, self.t, problem.shift, problem.flip)
            self.optimizer.zero_grad()
            _, loss, hit = self.loss(torch.tensor(np.ascontiguousarray(x), dtype=dtype), self.y[chosen])
            loss.backward()
            decay = (self.t + 1.0) ** -(problem.decay or 0.0) if self.arm.dotted else 1.0
            self.optimizer.param_groups[0]["lr"] = self.arm.lr * rate * decay
            self.optimizer.step()
            self.losses.append(loss.item())
            self.hits.append(hit)
            self.grads.append({name: param.grad.clone() for name, param in self.net.named_parameters()})
            self.t += 1
        self.record(steps, dtype)
        return self

    @torch.no_grad()
    def record(self, steps, dtype):
        self.net.eval()
        test_loss, _, test_hit = self.loss(self.x_test, self.y_test)
        _, clean, _ = self.loss(torch.tensor(self.x, dtype=dtype), self.y)
        values = np.mean(self.losses[-steps:]), np.mean(self.hits[-steps:]), test_loss.item(), test_hit, clean.item()
        for metric, value in zip(self.curves, values, strict=True):
            self.curves[metric].append(value)

    @property
    def kept(self):
        """Parameters and running averages, by the names that stacks have for them."""
        return {name: value for name, value in self.net.state_dict().items() if "num_batches" not in name}


def off(mine, right):
    """The largest difference, relative to the number or, where that is smaller, to a typical one of its tensor."""
    mine, right = (torch.as_tensor(each, dtype=F64).detach().cpu() for each in (mine, right))
    assert mine.shape == right.shape
    assert torch.equal(mine.isfinite(), right.isfinite())
    size = torch.maximum(right.abs(), right.abs().mean() + 1e-30)
    return ((mine - right).abs() / size).nan_to_num(0.0).max().item()


@pytest.fixture
def one_thread():
    """What is this small is slower with more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
