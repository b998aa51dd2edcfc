"""What lies between the convolutions of many networks: batch normalisation, shortcuts, ReLU and pooling, in Triton.

Images lie as in :mod:`wagmf.lab.convolutions`, whose sums over pixels batch normalisation is computed from: what
remains of it is a·x + c, which is done together with the shortcut and ReLU.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch import Tensor

from wagmf.arguments import integer
from wagmf.lab.launching import floats, launch

__all__ = ["blend", "pool", "settle", "settle_back", "spread", "unpool"]

tl: Any = None  # triton.language, from the first launch on
constexpr: TypeAlias = Any  # the name by which Triton knows an argument that is constant when a kernel is compiled

_ELEMENTS = 2048  # that a program of an elementwise kernel takes
_SUMS = 4096  # that a program adds up at a time: it waits for each of these times, and there is one a replica


def blend(x: Tensor, y: Tensor | None, coefficients: Tensor, *, relu: bool) -> Tensor:
    """a·x + b·y + c with coefficients [R, 3, channels]; y may be a shortcut: larger images with fewer channels.

    >>> x, y = torch.empty(8, 128, 16, 16, 32, device="meta"), torch.empty(8, 128, 32, 32, 16, device="meta")
    >>> blend(x, y, torch.empty(8, 3, 32, device="meta"), relu=True).shape
    torch.Size([8, 128, 16, 16, 32])
    """
    R, images, height, width, channels = x.shape
    out, block, pixels = torch.empty_like(x), _ELEMENTS // channels, images * height * width
    shape, shortcut = ((1, 1, 1), False) if y is None else (y.shape[2:], y.shape != x.shape)
    grid = (-(-pixels // block), R)
    launch(_blend, grid, x, y, coefficients, out, pixels, height, width, channels, *shape, shortcut, relu, block)
    return out


def settle(
    sums: Tensor, count: int, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor, eps: float, momentum: float
) -> tuple[Tensor, Tensor]:
    """Batch normalisation by the sums of ``count`` pixels, as coefficients of :func:`blend`; moves running averages.

    Returned with it are mean and 1/deviation, [R, 2, channels], for :func:`settle_back`. A single pixel has no
    variance, and is refused.

    >>> weight = torch.empty(8, 16, device="meta")
    >>> settle(torch.empty(8, 99, 2, 16, device="meta"), 10**5, weight, weight, weight, weight, 1e-3, 0.99)[0].shape
    torch.Size([8, 3, 16])
    """
    integer("count", count, least=2)
    R, rows, _, channels = sums.shape
    coefficients, found = floats(sums, R, 3, channels), floats(sums, R, 2, channels)
    launch(
        _settle, (R,), sums, weight, bias, mean, var, coefficients, found, rows, count, eps, 1 - momentum, channels,
        _SUMS // channels,
    )  # fmt: skip
    return coefficients, found


def settle_back(sums: Tensor, count: int, weight: Tensor, found: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Its gradient, as coefficients by which :func:`blend` makes it of the gradient and the images.

    Returned with it are the gradients of weight and bias, [R, channels].

    >>> sums, weight = torch.empty(8, 99, 2, 16, device="meta"), torch.empty(8, 16, device="meta")
    >>> [x.shape[1:] for x in settle_back(sums, 10**5, weight, torch.empty(8, 2, 16, device="meta"))]
    [torch.Size([3, 16]), torch.Size([16]), torch.Size([16])]
    """
    R, rows, _, channels = sums.shape
    coefficients, slopes = floats(sums, R, 3, channels), floats(sums, 2, R, channels)
    block = _SUMS // channels
    launch(_settle_back, (R,), sums, weight, found, coefficients, slopes[0], slopes[1], rows, count, channels, block)
    return coefficients, slopes[0], slopes[1]


def spread(grad: Tensor, gate: Tensor, beside: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient [R, images, channels] of the mean over pixels, 0 where ``gate`` is, and its sums as in convolve.

    >>> x = torch.empty(8, 128, 8, 8, 64, device="meta")
    >>> spread(torch.empty(8, 128, 64, device="meta"), x, x)[0].shape
    torch.Size([8, 128, 8, 8, 64])
    """
    R, images, height, width, channels = gate.shape
    out, block, pixels = torch.empty_like(gate), _ELEMENTS // channels, images * height * width
    programs = -(-pixels // block)
    sums = floats(gate, R, programs, 2, channels)
    launch(_spread, (programs, R), grad, gate, beside, out, sums, pixels, height * width, channels, block)
    return out, sums


def pool(x: Tensor) -> Tensor:
    """The largest of every 2 × 2 pixels; what is not a number stays so.

    >>> pool(torch.empty(8, 128, 9, 9, 32, device="meta")).shape
    torch.Size([8, 128, 4, 4, 32])
    """
    R, images, height, width, channels = x.shape
    out = x.new_empty((R, images, height // 2, width // 2, channels))
    block, pixels = _ELEMENTS // channels, images * (height // 2) * (width // 2)
    grid = (-(-pixels // block), R)
    launch(_pool, grid, x, out, pixels, height, width, height // 2, width // 2, channels, block)
    return out


def unpool(grad: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of pool(relu(·)), where relu(·) is x: to the first of the largest; and its sums [R, rows, channels].

    As in :func:`pool`, what is not a number is larger than any.

    >>> x, grad = torch.empty(8, 128, 9, 9, 32, device="meta"), torch.empty(8, 128, 4, 4, 32, device="meta")
    >>> unpool(grad, x)[0].shape
    torch.Size([8, 128, 9, 9, 32])
    """
    R, images, height, width, channels = x.shape
    out = torch.zeros_like(x) if height % 2 or width % 2 else torch.empty_like(x)
    block, pixels = _ELEMENTS // channels, images * (height // 2) * (width // 2)
    programs = -(-pixels // block)
    sums = floats(x, R, programs, channels)
    launch(_unpool, (programs, R), grad, x, out, sums, pixels, height, width, height // 2, width // 2, channels, block)
    return out, sums


# From here on the text is compiled by Triton for the device.


def _blend(
    x, y, coefficients, out, pixels, HEIGHT: constexpr, WIDTH: constexpr, CHANNELS: constexpr, Y_HEIGHT: constexpr,
    Y_WIDTH: constexpr, Y_CHANNELS: constexpr, SHORTCUT: constexpr, RELU: constexpr, BLOCK: constexpr,
):  # fmt: skip
    """BLOCK pixels of one replica."""
    r = tl.program_id(1).to(tl.int64)
    p, channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, CHANNELS)
    here = (p < pixels)[:, None]
    place = r * pixels * CHANNELS + p[:, None] * CHANNELS + channel[None, :]
    coefficients += r * (3 * CHANNELS) + channel
    value = tl.load(x + place, mask=here, other=0.0).to(tl.float32) * tl.load(coefficients)[None, :]
    value += tl.load(coefficients + 2 * CHANNELS)[None, :]
    if y is not None:
        inside = here
        if SHORTCUT:
            image, h, w = p // (HEIGHT * WIDTH), p // WIDTH % HEIGHT, p % WIDTH
            there = (image * Y_HEIGHT + 2 * h) * Y_WIDTH + 2 * w
            y += r * (pixels // (HEIGHT * WIDTH) * (Y_HEIGHT * Y_WIDTH * Y_CHANNELS))
            place_of_y = there[:, None] * Y_CHANNELS + channel[None, :]
            inside = here & (channel < Y_CHANNELS)[None, :]
        else:
            place_of_y = place
        other = tl.load(y + place_of_y, mask=inside, other=0.0).to(tl.float32)
        value += other * tl.load(coefficients + CHANNELS)[None, :]
    if RELU:
        value = tl.where(value < 0, 0.0, value)
    tl.store(out + place, value.to(out.dtype.element_ty), mask=here)


def _total(sums, rows, CHANNELS, BLOCK):
    """Both sums of one replica over all rows."""
    row, channel = tl.arange(0, BLOCK), tl.arange(0, CHANNELS)
    first, second = tl.zeros((BLOCK, CHANNELS), tl.float32), tl.zeros((BLOCK, CHANNELS), tl.float32)
    for start in range(0, rows, BLOCK):
        at = (start + row)[:, None] * (2 * CHANNELS) + channel[None, :]
        inside = (start + row < rows)[:, None]
        first += tl.load(sums + at, mask=inside, other=0.0)
        second += tl.load(sums + at + CHANNELS, mask=inside, other=0.0)
    return tl.sum(first, 0), tl.sum(second, 0)


def _settle(
    sums, weight, bias, mean, var, coefficients, found, rows, count, eps, pace, CHANNELS: constexpr,
    BLOCK: constexpr,
):  # fmt: skip
    """One replica."""
    r = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, CHANNELS)
    first, second = _total(sums + r * rows * (2 * CHANNELS), rows, CHANNELS, BLOCK)
    m = first / count
    v = second / count - m * m
    v = tl.where(v < 0, 0.0, v)
    inverse = 1 / tl.sqrt(v + eps)
    at = r * CHANNELS + channel
    kept = tl.load(mean + at)
    tl.store(mean + at, kept + (m - kept) * pace)
    kept = tl.load(var + at)
    tl.store(var + at, kept + (v * (count / (count - 1)) - kept) * pace)
    a = tl.load(weight + at) * inverse
    coefficients += r * (3 * CHANNELS) + channel
    tl.store(coefficients, a)
    tl.store(coefficients + CHANNELS, tl.full((CHANNELS,), 1.0, tl.float32))
    tl.store(coefficients + 2 * CHANNELS, tl.load(bias + at) - m * a)
    found += r * (2 * CHANNELS) + channel
    tl.store(found, m)
    tl.store(found + CHANNELS, inverse)


def _settle_back(
    sums, weight, found, coefficients, weight_slope, bias_slope, rows, count, CHANNELS: constexpr, BLOCK: constexpr
):
    """One replica."""
    r = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, CHANNELS)
    first, second = _total(sums + r * rows * (2 * CHANNELS), rows, CHANNELS, BLOCK)
    m = tl.load(found + r * (2 * CHANNELS) + channel)
    inverse = tl.load(found + r * (2 * CHANNELS) + CHANNELS + channel)
    slope = (second - m * first) * inverse
    at = r * CHANNELS + channel
    tl.store(weight_slope + at, slope)
    tl.store(bias_slope + at, first)
    a = tl.load(weight + at) * inverse
    b = -a * inverse * slope / count
    coefficients += r * (3 * CHANNELS) + channel
    tl.store(coefficients, a)
    tl.store(coefficients + CHANNELS, b)
    tl.store(coefficients + 2 * CHANNELS, -a * first / count - b * m)


def _spread(grad, gate, beside, out, sums, pixels, AREA: constexpr, CHANNELS: constexpr, BLOCK: constexpr):
    """BLOCK pixels of one replica."""
    tile, r = tl.program_id(0), tl.program_id(1).to(tl.int64)
    p, channel = tile * BLOCK + tl.arange(0, BLOCK), tl.arange(0, CHANNELS)
    here = (p < pixels)[:, None]
    place = r * pixels * CHANNELS + p[:, None] * CHANNELS + channel[None, :]
    image = r * (pixels // AREA) + p // AREA
    value = tl.load(grad + image[:, None] * CHANNELS + channel[None, :], mask=here, other=0.0).to(tl.float32) / AREA
    value = tl.where(tl.load(gate + place, mask=here, other=0.0).to(tl.float32) <= 0, 0.0, value)
    rounded = value.to(out.dtype.element_ty)
    tl.store(out + place, rounded, mask=here)
    value = rounded.to(tl.float32)
    sums += (r * tl.num_programs(0) + tile) * (2 * CHANNELS)
    tl.store(sums + channel, tl.sum(value, 0))
    tl.store(sums + CHANNELS + channel, tl.sum(value * tl.load(beside + place, mask=here, other=0.0).to(tl.float32), 0))


def _pool(
    x, out, pixels, IN_HEIGHT: constexpr, IN_WIDTH: constexpr, HEIGHT: constexpr, WIDTH: constexpr,
    CHANNELS: constexpr, BLOCK: constexpr,
):  # fmt: skip
    """BLOCK pixels of the result of one replica."""
    r = tl.program_id(1).to(tl.int64)
    p, channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, CHANNELS)
    here = (p < pixels)[:, None]
    image, h, w = p // (HEIGHT * WIDTH), p // WIDTH % HEIGHT, p % WIDTH
    whole = r * (pixels // (HEIGHT * WIDTH) * (IN_HEIGHT * IN_WIDTH * CHANNELS))
    at = whole + (((image * IN_HEIGHT + 2 * h) * IN_WIDTH + 2 * w) * CHANNELS)[:, None] + channel[None, :]
    under = at + IN_WIDTH * CHANNELS
    a, b = tl.load(x + at, mask=here, other=0.0), tl.load(x + at + CHANNELS, mask=here, other=0.0)
    c, d = tl.load(x + under, mask=here, other=0.0), tl.load(x + under + CHANNELS, mask=here, other=0.0)
    a, c = tl.where((a >= b) | (a != a), a, b), tl.where((c >= d) | (c != c), c, d)
    place = r * pixels * CHANNELS + p[:, None] * CHANNELS + channel[None, :]
    tl.store(out + place, tl.where((a >= c) | (a != a), a, c), mask=here)


def _unpool(
    grad, x, out, sums, pixels, IN_HEIGHT: constexpr, IN_WIDTH: constexpr, HEIGHT: constexpr, WIDTH: constexpr,
    CHANNELS: constexpr, BLOCK: constexpr,
):  # fmt: skip
    """BLOCK pixels of the gradient of one replica."""
    tile, r = tl.program_id(0), tl.program_id(1).to(tl.int64)
    p, channel = tile * BLOCK + tl.arange(0, BLOCK), tl.arange(0, CHANNELS)
    here = (p < pixels)[:, None]
    image, h, w = p // (HEIGHT * WIDTH), p // WIDTH % HEIGHT, p % WIDTH
    whole = r * (pixels // (HEIGHT * WIDTH) * (IN_HEIGHT * IN_WIDTH * CHANNELS))
    at = whole + (((image * IN_HEIGHT + 2 * h) * IN_WIDTH + 2 * w) * CHANNELS)[:, None] + channel[None, :]
    under = at + IN_WIDTH * CHANNELS
    slope = tl.load(grad + r * pixels * CHANNELS + p[:, None] * CHANNELS + channel[None, :], mask=here, other=0.0)
    a, b = tl.load(x + at, mask=here, other=0.0), tl.load(x + at + CHANNELS, mask=here, other=0.0)
    c, d = tl.load(x + under, mask=here, other=0.0), tl.load(x + under + CHANNELS, mask=here, other=0.0)
    upper, lower = (a >= b) | (a != a), (c >= d) | (c != c)
    top, low = tl.where(upper, a, b), tl.where(lower, c, d)
    above = (top >= low) | (top != top)
    slope = tl.where(tl.where(above, top, low) <= 0, 0.0, slope)
    tl.store(out + at, tl.where(above & upper, slope, 0.0), mask=here)
    tl.store(out + at + CHANNELS, tl.where(above & (upper == 0), slope, 0.0), mask=here)
    tl.store(out + under, tl.where((above == 0) & lower, slope, 0.0), mask=here)
    tl.store(out + under + CHANNELS, tl.where((above == 0) & (lower == 0), slope, 0.0), mask=here)
    tl.store(sums + (r * tl.num_programs(0) + tile) * CHANNELS + channel, tl.sum(slope.to(tl.float32), 0))
