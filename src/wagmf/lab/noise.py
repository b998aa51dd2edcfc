"""Random numbers by place, not by turn: what a replica draws depends on its seed, the step and the place alone.

So replicas of one seed draw alike whatever else is trained beside them, a run that was stopped goes on with the numbers
it would have drawn, and a CPU and a GPU draw the same ones. The numbers are 32 bits of a hash: a counter
that passes twice through the mixer "lowbias32" (Wellons, 2018), with half of the key before and half in between.
"""

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

__all__ = ["Noise", "bits", "key", "mix"]

_LOW = 0xFFFFFFFF
_FIRST, _SECOND = 0x7FEB352D, 0x846CA68B  # the multipliers of lowbias32
_SEED, _STREAM, _STEP = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D  # primes: each part of the key moves all of its bits


def mix(x: Any) -> Any:
    """Turn 32 bits, in a number or in int64 tensors, into 32 others that look unrelated.

    >>> mix(1) != mix(2)
    True
    >>> int(mix(torch.tensor([1]))[0]) == mix(1)
    True
    """
    x = ((x ^ (x >> 16)) * _FIRST) & _LOW
    x = ((x ^ (x >> 15)) * _SECOND) & _LOW
    return x ^ (x >> 16)


def key(seed: Any, step: Any, stream: int) -> tuple[Any, Any]:
    """The two halves of the key of one seed, step and stream (which layer, which use).

    >>> key(0, 1, 0) != key(0, 0, 1)
    True
    """
    first = mix((seed * _SEED + stream * _STREAM + 1) & _LOW)
    first = mix((first + step * _STEP) & _LOW)
    return first, mix((first ^ _SEED) + stream & _LOW)


def bits(seeds: Tensor, step: Tensor, stream: int, count: int) -> Tensor:
    """``count`` numbers of 32 bits for each seed, as int64, on the device of ``seeds``.

    >>> bits(torch.tensor([7]), torch.tensor(3), 0, 4).shape
    torch.Size([1, 4])
    """
    first, second = key(seeds, step, stream)
    if seeds.device.type == "cpu" and not torch.compiler.is_compiling():
        numbers = np.empty((len(seeds), count), np.uint32)
        _fill(first.numpy().astype(np.uint32), second.numpy().astype(np.uint32), numbers)
        return torch.from_numpy(numbers.astype(np.int64))
    place = torch.arange(count, device=seeds.device)
    return mix((mix(place ^ first[:, None]) + second[:, None]) & _LOW)


class Noise:
    """What the replicas of some seeds draw in one step.

    ``stream`` tells apart the layers that draw. ``step`` counts from the beginning of the training.

    >>> noise = Noise(torch.tensor([0, 1]), torch.tensor(5))
    >>> kept = noise.keep(stream=1, shape=(1000,), rate=0.5, dtype=torch.float32)
    >>> kept.shape, sorted(set(kept.flatten().tolist()))
    (torch.Size([2, 1000]), [0.0, 2.0])
    """

    def __init__(self, seeds: Tensor, step: Tensor) -> None:
        self.seeds, self.step = seeds, step

    def keep(self, stream: int, shape: tuple[int, ...], rate: float, dtype: torch.dtype) -> Tensor:
        """The dropout mask of each seed: 0 with probability ``rate``, otherwise 1/(1 - rate)."""
        count, limit = int(np.prod(shape)), round((1 - rate) * (1 << 32))
        if self.seeds.device.type == "cpu" and dtype == torch.float32 and not torch.compiler.is_compiling():
            first, second = key(self.seeds, self.step, stream)
            kept = np.empty((len(self.seeds), count), np.float32)
            _mask(first.numpy().astype(np.uint32), second.numpy().astype(np.uint32), limit, 1 / (1 - rate), kept)
            return torch.from_numpy(kept).view(-1, *shape)
        drawn = bits(self.seeds, self.step, stream, count).view(-1, *shape)
        return (drawn < limit).to(dtype) * (1 / (1 - rate))

    def below(self, stream: int, count: int, limit: int) -> Tensor:
        """``count`` integers from 0 to ``limit`` - 1 for each seed."""
        return (bits(self.seeds, self.step, stream, count) * limit) >> 32


@numba.njit(cache=True, inline="always")
def _draw(place: Any, first: Any, second: Any) -> Any:
    """One number; restates :func:`bits` for one place, in unsigned arithmetic that wraps by itself."""
    x = np.uint32(place) ^ first
    for half in range(2):
        x = np.uint32((x ^ (x >> np.uint32(16))) * np.uint32(_FIRST))
        x = np.uint32((x ^ (x >> np.uint32(15))) * np.uint32(_SECOND))
        x = np.uint32(x ^ (x >> np.uint32(16)))
        if half == 0:
            x = np.uint32(x + second)
    return x


@numba.njit(cache=True, nogil=True)
def _fill(first: Any, second: Any, out: Any) -> None:
    for s in range(out.shape[0]):
        for i in range(out.shape[1]):
            out[s, i] = _draw(i, first[s], second[s])


@numba.njit(cache=True, nogil=True)
def _mask(first: Any, second: Any, limit: Any, scale: Any, out: Any) -> None:
    """The mask in one pass: a comparison on tensors would go over memory eight times."""
    high, value = np.uint64(limit), np.float32(scale)
    for s in range(out.shape[0]):
        for i in range(out.shape[1]):
            out[s, i] = value if np.uint64(_draw(i, first[s], second[s])) < high else np.float32(0)
