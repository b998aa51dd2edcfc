"""What a stack is shown: the dataset on the device, in each seed's own order, shifted and flipped there."""

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wagmf.arguments import flag, integer, real, refuse
from wagmf.lab.data import Dataset
from wagmf.lab.noise import Noise

__all__ = ["Augmentation", "Batches", "order"]

_ROWS, _COLUMNS, _FLIPS = 1001, 1002, 1003  # the streams of noise that augmentation draws from; layers count from 1


@dataclass(frozen=True)
class Augmentation:
    """How training images are varied: moved by up to ``shift`` of their size each way, the edge filling up; mirrored.

    >>> Augmentation(shift=0.1).reach((3, 32, 32))
    (3, 3)
    """

    shift: float = 0.0
    flip: bool = False

    def __post_init__(self) -> None:
        real("shift", self.shift, least=0, below=1)
        flag("flip", self.flip)

    def __bool__(self) -> bool:
        return self.shift > 0 or self.flip

    def reach(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """By how many whole pixels an image of that shape is moved at most, down and across."""
        if self and len(shape) != 3:
            refuse("augmentation", shape, "only images (channels, height, width) can be shifted and flipped")
        return (int(self.shift * shape[1]), int(self.shift * shape[2])) if self else (0, 0)


def order(seed: int, epoch: int, count: int) -> NDArray[np.int64]:
    """In which order a seed sees the training set in an epoch.

    >>> sorted(order(seed=0, epoch=1, count=5).tolist())
    [0, 1, 2, 3, 4]
    """
    return np.random.Generator(np.random.Philox(key=[seed, epoch + (1 << 32)])).permutation(count)


class Batches:
    """The dataset on the device, and the batches that the seeds of a stack take from it.

    An epoch is as many whole batches as there are; the few examples left over, others each time, wait for the next.

    >>> from wagmf.lab.data import load
    >>> batches = Batches(load("digits"), [0, 1], batch=128)
    >>> batches.begin(epoch=1)
    >>> x, y = batches.take(torch.tensor(0))
    >>> x.shape, y.shape, batches.steps
    (torch.Size([2, 128, 1, 8, 8]), torch.Size([2, 128]), 11)
    """

    def __init__(
        self,
        data: Dataset,
        seeds: list[int],
        batch: int = 128,
        augmentation: Augmentation | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.batch = min(integer("batch", batch, least=1), len(data.y_train))
        self.steps = len(data.y_train) // self.batch
        self.numbers = seeds
        self.seeds = torch.tensor(seeds, device=device)
        self.augmentation = augmentation or Augmentation()
        self.reach = self.augmentation.reach(data.shape)
        normal = data.normalised()
        kept = torch.int64 if data.tokens else dtype
        self.x_train, self.x_test = (torch.from_numpy(x).to(device, kept) for x in (normal.x_train, normal.x_test))
        self.y_train, self.y_test = (torch.tensor(y).to(device) for y in (data.y_train, data.y_test))
        self.order = torch.zeros(self.steps, len(seeds), self.batch, dtype=torch.int64, device=device)

    def begin(self, epoch: int) -> None:
        """Lay out the order of an epoch."""
        count = self.steps * self.batch
        rows = [order(seed, epoch, len(self.y_train))[:count].reshape(self.steps, -1) for seed in self.numbers]
        self.order.copy_(torch.from_numpy(np.stack(rows, axis=1)))

    def take(self, step: Tensor) -> tuple[Tensor, Tensor]:
        """The batch of each seed, x [S, batch, ...] and y [S, batch]; ``step`` counts from the first epoch on."""
        chosen = self.order.index_select(0, (step % self.steps).view(1))[0]
        y = self.y_train[chosen]
        if not self.augmentation:
            return self.x_train[chosen], y
        return self._varied(chosen, Noise(self.seeds, step)), y

    def _varied(self, chosen: Tensor, noise: Noise) -> Tensor:
        """The chosen images, each moved and mirrored as its seed, step and place say."""
        (down, across), count = self.reach, self.batch
        rows = noise.below(_ROWS, count, 2 * down + 1) - down
        columns = noise.below(_COLUMNS, count, 2 * across + 1) - across
        flips = noise.below(_FLIPS, count, 2) if self.augmentation.flip else torch.zeros_like(rows)
        if chosen.device.type == "cpu" and self.x_train.dtype == torch.float32:
            varied = np.empty((*chosen.shape, *self.x_train.shape[1:]), np.float32)
            _vary(self.x_train.numpy(), chosen.numpy(), rows.numpy(), columns.numpy(), flips.numpy(), varied)
            return torch.from_numpy(varied)
        channels, height, width = self.x_train.shape[1:]
        device = chosen.device
        down_to = (torch.arange(height, device=device) + rows[..., None]).clamp(0, height - 1)
        to = torch.arange(width, device=device)
        to = torch.where(flips[..., None] == 1, width - 1 - to, to)
        across_to = (to + columns[..., None]).clamp(0, width - 1)
        channel = torch.arange(channels, device=device)[:, None, None]
        return self.x_train[
            chosen[..., None, None, None], channel, down_to[..., None, :, None], across_to[..., None, None, :]
        ]


@numba.njit(cache=True, nogil=True)
def _vary(x: Any, chosen: Any, rows: Any, columns: Any, flips: Any, out: Any) -> None:
    """The gather above in one pass; tensors on a CPU would take ten times as long."""
    channels, height, width = x.shape[1:]
    for s in range(chosen.shape[0]):
        for i in range(chosen.shape[1]):
            image = x[chosen[s, i]]
            for h in range(height):
                row = min(max(h + rows[s, i], 0), height - 1)
                for w in range(width):
                    to = width - 1 - w if flips[s, i] == 1 else w
                    column = min(max(to + columns[s, i], 0), width - 1)
                    for c in range(channels):
                        out[s, i, c, h, w] = image[c, row, column]
