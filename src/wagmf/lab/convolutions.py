"""Convolutions of many networks at once, as Triton kernels.

Images of all replicas lie as [replica, image, height, width, channel], so that a replica is a plain convolution of its
own. Reading the nine pixels around each pixel from the cache would take longest of all; so a program computes cells of
a few pixels and reads the window around each once: 3 × 4 pixels for a cell of 1 × 2, 4 × 4 for one of 2 × 2. The
product is then [cells, window · channels] × [window · channels, cell · channels], in which some weights are 0: the
tensor cores have time for that.

What would have to read a result again is done before it is written: bias and ReLU, the sums that batch normalisation
needs, and on the way back the gradient that came by the shortcut and that of ReLU.

Those weights do not hide what is not finite, since 0 · ∞ is not a number: an infinite pixel, or one that is not a
number, spoils all pixels of every cell whose window it lies in, also those that the convolution itself would leave
alone. They are pixels of the same image and the same replica.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from wagmf.arguments import refuse
from wagmf.lab.launching import floats, launch

__all__ = ["convolve", "correlate"]

tl: Any = None  # triton.language, from the first launch on
constexpr: TypeAlias = Any  # the name by which Triton knows an argument that is constant when a kernel is compiled

_SPLITS = 4  # into which the pixels of a replica are cut when weights' gradients are summed up
_WEIGHTS = 1024  # that a program lays out
_PAIRS = 256  # of channels whose gradient a program adds up


class _Cells(NamedTuple):
    """Pixels that are computed together, and the window they are computed from."""

    tall: int
    wide: int
    rows: int  # of the window
    columns: int
    down: int  # from a window to that of the next cell
    across: int
    around: int  # rows and columns of the window before the first pixel
    taps: tuple[int, int, int]  # the window's row r meets the cell's row t by way of the kernel's row a·r + b·t + c

    def number(self, images: int, height: int, width: int) -> int:
        return images * -(-height // self.tall) * -(-width // self.wide)


class _Tiles(NamedTuple):
    """How a kernel is cut up."""

    block: int  # cells of a program
    warps: int
    stages: int  # loads under way
    tall: int  # rows and columns of a cell: more of them save reading, fewer save multiplying
    wide: int
    together: int  # columns of the window that are one product, or rows of it that a program sums up


# By channels of the images, for batches of 128 on an H200; benchmarks/tiles.py tries others.
_CONVOLVE = {16: _Tiles(128, 4, 3, 1, 2, 2), 32: _Tiles(128, 4, 4, 1, 2, 1), 64: _Tiles(64, 4, 3, 1, 2, 1)}
_CORRELATE = {16: _Tiles(32, 4, 3, 2, 2, 4), 32: _Tiles(32, 4, 3, 2, 2, 1), 64: _Tiles(64, 8, 3, 1, 2, 1)}
_WIDENING = _Tiles(32, 8, 3, 1, 2, 1)  # in place of the latter where there are more channels after than before


def _cells(size: int, stride: int, tiles: _Tiles, back: bool) -> _Cells:
    if size == 1:
        return _Cells(1, 1, 1, 1, 1, 1, 0, (1, 0, 0))
    if stride == 2:
        return _Cells(2, 2, 2, 2, 1, 1, 0, (-2, 1, 1)) if back else _Cells(1, 1, 3, 4, 2, 2, 1, (1, -2, 0))
    tall, wide = tiles.tall, tiles.wide
    return _Cells(tall, wide, tall + 2, wide + 2, tall, wide, 1, (-1, 1, 2) if back else (1, -1, 0))


def convolve(
    x: Tensor,
    weight: Tensor,
    *,
    stride: int = 1,
    back: tuple[int, int] | None = None,
    bias: Tensor | None = None,
    skip: Tensor | None = None,
    gate: Tensor | None = None,
    beside: Tensor | None = None,
    coefficients: Tensor | None = None,
    summed: bool = False,
) -> tuple[Tensor, Tensor]:
    """The images x convolved with weights [R, out, in, 3, 3] or [R, out, in, 1, 1], and sums over their pixels.

    There are 16, 32 or 64 channels, before and after; the ``stride`` is 1, or 2 for 3 × 3 pixels. Where there are fewer
    sets of images than of weights, neighbouring replicas share them. ``back`` is the size of the images whose gradient
    this is, given that of their convolution: x. Then comes, of what is given: ReLU after adding the ``bias``; the
    gradient ``skip`` that came by a shortcut; 0 where ``gate`` is 0 or below, or where ``coefficients`` make ReLU of
    ``beside`` 0. The sums [R, rows, 2, channels], to be added up over rows, are those of the result and of its product
    with ``beside``, or of its square; without ``summed`` there are no rows.

    >>> x, weight = torch.empty(2, 128, 32, 32, 16, device="meta"), torch.empty(8, 32, 16, 3, 3, device="meta")
    >>> convolve(x, weight, stride=2)[0].shape  # four replicas see the same images
    torch.Size([8, 128, 16, 16, 32])
    """
    (images, height, width, channels), (R, *_, size) = x.shape[1:], weight.shape
    out_channels = weight.shape[2 if back else 1]
    _check(R, size, stride, (channels, out_channels), x, skip, gate, beside)
    tiles = _CONVOLVE[channels]
    cells = _cells(size, stride, tiles, back is not None)
    high, wide = back or (-(-height // stride), -(-width // stride))
    programs = -(-cells.number(images, high, wide) // tiles.block)
    out = x.new_empty((R, images, high, wide, out_channels))
    sums = floats(x, R, programs * cells.tall * cells.wide if summed else 0, 2, out_channels)
    launch(
        _convolve, (programs, R), x, _laid(weight, x.dtype, cells, back is not None), out, bias, skip, gate, beside,
        coefficients, sums if summed else None, images, height, width, high, wide, channels, out_channels,
        0 if skip is None else skip.shape[4], *cells[:7], min(tiles.together, cells.columns), R // len(x), tiles.block,
        _precision(x), num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    return out, sums


def correlate(x: Tensor, grad: Tensor, size: int, stride: int = 1) -> Tensor:
    """The gradient of weights [R, out, in, size, size], of images x whose convolution has the gradient ``grad``.

    >>> x, grad = torch.empty(2, 128, 32, 32, 16, device="meta"), torch.empty(8, 128, 16, 16, 32, device="meta")
    >>> correlate(x, grad, 3, stride=2).shape
    torch.Size([8, 32, 16, 3, 3])
    """
    (R, images, high, wide, out_channels), (height, width, channels) = grad.shape, x.shape[2:]
    _check(R, size, stride, (channels, out_channels), x, grad)
    tiles = _CORRELATE[channels] if out_channels <= channels or size == 1 else _WIDENING
    cells = _cells(size, stride, tiles, back=False)
    together = tiles.together if cells.rows == 4 else 1
    splits = _SPLITS if size == 3 else 8 * _SPLITS  # a single tap has fewer programs for each
    each = tiles.block * -(-cells.number(images, high, wide) // (splits * tiles.block))
    splits = -(-cells.number(images, high, wide) // each)
    parts = floats(x, R, splits, cells.rows, cells.columns * channels, cells.tall * cells.wide * out_channels)
    launch(
        _correlate, (splits, cells.rows // together, R), x, grad, parts, images, each, height, width, high, wide,
        channels, out_channels, *cells[:7], together, R // len(x), tiles.block, _precision(x), num_warps=tiles.warps,
        num_stages=tiles.stages,
    )  # fmt: skip
    slope = floats(x, R, out_channels, channels, size, size)
    grid = (size * size, R, -(-channels * out_channels // _PAIRS))
    launch(_gather, grid, parts, slope, splits, size, channels, out_channels, *cells[:4], stride, _PAIRS)
    return slope


def _check(replicas: int, size: int, stride: int, channels: tuple[int, int], x: Tensor, *others: Tensor | None) -> None:
    """Refuse what the kernels would make something else of, without a word."""
    if size not in (1, 3):
        refuse("size", size, "a convolution is of 1 × 1 or of 3 × 3 pixels")
    if stride not in ((1, 2) if size == 3 else (1,)):
        refuse("stride", stride, "it must be 1, or 2 for a convolution of 3 × 3 pixels")
    if replicas % len(x):
        refuse("sets of images", len(x), f"as many of the {replicas} replicas must see each of them")
    for number in channels:
        if number not in _CONVOLVE:
            refuse("channels", number, f"images must have {', '.join(map(str, _CONVOLVE))} of them")
    for images in (x, *others):
        if images is not None and not images.is_contiguous():
            refuse("strides of images", images.stride(), "they must be contiguous, channels last")


def _laid(weight: Tensor, dtype: torch.dtype, cells: _Cells, back: bool) -> Tensor:
    """Weights as the kernel reads them: [R, rows of the window, columns · channels, cell · channels]."""
    R, out, width, size, _ = weight.shape
    channels, out_channels = (out, width) if back else (width, out)
    shape = (R, cells.rows, cells.columns * channels, cells.tall * cells.wide * out_channels)
    laid = torch.empty(shape, dtype=dtype, device=weight.device)
    grid = (-(-math.prod(shape[1:]) // _WEIGHTS), R)
    launch(_lay, grid, weight.contiguous(), laid, size, channels, out_channels, *cells[:4], *cells.taps, back, _WEIGHTS)
    return laid


def _precision(x: Tensor) -> str:
    return "ieee" if x.dtype == torch.float32 else "tf32"  # which says nothing about half precision


# From here on the text is compiled by Triton for the device.


def _lay(
    weight, laid, SIZE: constexpr, IN: constexpr, OUT: constexpr, TALL: constexpr, WIDE: constexpr, ROWS: constexpr,
    COLUMNS: constexpr, A: constexpr, B: constexpr, C: constexpr, BACK: constexpr, BLOCK: constexpr,
):  # fmt: skip
    """BLOCK weights of one replica, each to where a pixel of the window meets one of the cell."""
    r = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    NUMEL: constexpr = ROWS * COLUMNS * IN * TALL * WIDE * OUT
    o, u, t = place % OUT, place // OUT % WIDE, place // (OUT * WIDE) % TALL
    of_window = place // (OUT * WIDE * TALL)
    c, column, row = of_window % IN, of_window // IN % COLUMNS, of_window // (IN * COLUMNS)
    i, j = A * row + B * t + C, A * column + B * u + C
    inside = (i >= 0) & (i < SIZE) & (j >= 0) & (j < SIZE) & (place < NUMEL)
    filter = c * OUT + o if BACK else o * IN + c
    value = tl.load(weight + r * (IN * OUT * SIZE * SIZE) + (filter * SIZE + i) * SIZE + j, mask=inside, other=0.0)
    tl.store(laid + r * NUMEL + place, value.to(laid.dtype.element_ty), mask=place < NUMEL)


def _convolve(
    x, weight, out, bias, skip, gate, beside, coefficients, sums, images,
    IN_HEIGHT: constexpr, IN_WIDTH: constexpr, HEIGHT: constexpr, WIDTH: constexpr, IN: constexpr, OUT: constexpr,
    SKIP: constexpr, TALL: constexpr, WIDE: constexpr, ROWS: constexpr, COLUMNS: constexpr, DOWN: constexpr,
    ACROSS: constexpr, AROUND: constexpr, TOGETHER: constexpr, SHARED: constexpr, BLOCK: constexpr,
    PRECISION: constexpr,
):  # fmt: skip
    """BLOCK cells of one replica. What there is not of bias, skip, gate, beside, coefficients and sums is None."""
    tile, r = tl.program_id(0), tl.program_id(1).to(tl.int64)
    WINDOW: constexpr = TOGETHER * IN  # of which the window has PIECES in a row
    PIECES: constexpr = COLUMNS // TOGETHER
    CELL: constexpr = TALL * WIDE * OUT
    HIGH: constexpr = (HEIGHT + TALL - 1) // TALL  # cells of an image
    BROAD: constexpr = (WIDTH + WIDE - 1) // WIDE
    cell = tile * BLOCK + tl.arange(0, BLOCK)
    image, h, w = cell // (HIGH * BROAD), cell // BROAD % HIGH, cell % BROAD
    column, place = tl.arange(0, WINDOW), tl.arange(0, CELL)
    top, left = h * DOWN - AROUND, w * ACROSS - AROUND
    beyond = left[:, None] + (column // IN)[None, :]
    x += r // SHARED * images * (IN_HEIGHT * IN_WIDTH * IN)
    at = x + (((image * IN_HEIGHT + top) * IN_WIDTH + left) * IN)[:, None] + column[None, :]
    weight += r * (ROWS * COLUMNS * IN * CELL) + column[:, None] * CELL + place[None, :]
    channel, u, t = place % OUT, place // OUT % WIDE, place // (OUT * WIDE)
    row, across = h[:, None] * TALL + t[None, :], w[:, None] * WIDE + u[None, :]
    here = (image < images)[:, None]
    if HEIGHT % TALL != 0 or WIDTH % WIDE != 0:
        here = here & (row < HEIGHT) & (across < WIDTH)
    to = (
        r * images * (HEIGHT * WIDTH * OUT)
        + ((image[:, None] * HEIGHT + row) * WIDTH + across) * OUT
        + channel[None, :]
    )
    # Read early, since reading takes longest.
    shortcut, other, opening = tl.zeros((1,), tl.float32), tl.zeros((1,), tl.float32), tl.zeros((1,), tl.float32)
    if skip is not None:
        if SKIP == OUT:
            by, even = to, here
        else:
            SKIP_HEIGHT: constexpr = (HEIGHT + 1) // 2
            SKIP_WIDTH: constexpr = (WIDTH + 1) // 2
            by = ((image[:, None] * SKIP_HEIGHT + row // 2) * SKIP_WIDTH + across // 2) * SKIP + channel[None, :]
            by += r * images * (SKIP_HEIGHT * SKIP_WIDTH * SKIP)
            even = here & (row % 2 == 0) & (across % 2 == 0)
        shortcut = tl.load(skip + by, mask=even, other=0.0)
    if beside is not None:
        other = tl.load(beside + to, mask=here, other=0.0)
    if gate is not None:
        opening = tl.load(gate + to, mask=here, other=0.0)

    value = tl.zeros((BLOCK, CELL), tl.float32)
    for k in range(ROWS * PIECES):
        now, first = top + k // PIECES, k % PIECES * TOGETHER
        inside = ((image < images) & (now >= 0) & (now < IN_HEIGHT))[:, None]
        inside = inside & (beyond + first >= 0) & (beyond + first < IN_WIDTH)
        window = tl.load(at + (k // PIECES * IN_WIDTH + first) * IN, mask=inside, other=0.0)
        value = tl.dot(window, tl.load(weight + k * (WINDOW * CELL)), value, input_precision=PRECISION)

    if bias is not None:
        value += tl.load(bias + r * OUT + channel)[None, :]
        value = tl.where(value < 0, 0.0, value)  # what is not a number stays so
    if skip is not None:
        value += shortcut.to(tl.float32)
    if coefficients is not None:
        coefficients += r * (3 * OUT) + channel
        relu = tl.load(coefficients)[None, :] * other.to(tl.float32) + tl.load(coefficients + 2 * OUT)[None, :]
        value = tl.where(relu <= 0, 0.0, value)
    if gate is not None:
        value = tl.where(opening.to(tl.float32) <= 0, 0.0, value)
    rounded = value.to(out.dtype.element_ty)
    tl.store(out + to, rounded, mask=here)
    if sums is not None:
        value = tl.where(here, rounded.to(tl.float32), 0.0)
        second = value * value
        if beside is not None:
            second = value * other.to(tl.float32)
        sums += (r * tl.num_programs(0) + tile) * (2 * CELL) + place // OUT * (2 * OUT) + channel
        tl.store(sums, tl.sum(value, 0))
        tl.store(sums + OUT, tl.sum(second, 0))


def _correlate(
    x, grad, parts, images, each,
    IN_HEIGHT: constexpr, IN_WIDTH: constexpr, HEIGHT: constexpr, WIDTH: constexpr, IN: constexpr, OUT: constexpr,
    TALL: constexpr, WIDE: constexpr, ROWS: constexpr, COLUMNS: constexpr, DOWN: constexpr, ACROSS: constexpr,
    AROUND: constexpr, TOGETHER: constexpr, SHARED: constexpr, BLOCK: constexpr, PRECISION: constexpr,
):  # fmt: skip
    """TOGETHER rows of the window, from ``each`` cells of one replica."""
    split, part, r = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    WINDOW: constexpr = TOGETHER * COLUMNS * IN
    CELL: constexpr = TALL * WIDE * OUT
    HIGH: constexpr = (HEIGHT + TALL - 1) // TALL
    BROAD: constexpr = (WIDTH + WIDE - 1) // WIDE
    column, place = tl.arange(0, WINDOW), tl.arange(0, CELL)
    channel, u, t = place % OUT, place // OUT % WIDE, place // (OUT * WIDE)
    within, after = column % (COLUMNS * IN), part * TOGETHER + column // (COLUMNS * IN)  # in a row, and which row
    x += r // SHARED * images * (IN_HEIGHT * IN_WIDTH * IN)
    grad += r * images * (HEIGHT * WIDTH * OUT)
    total = tl.zeros((WINDOW, CELL), tl.float32)
    for start in range(split * each, split * each + each, BLOCK):
        cell = start + tl.arange(0, BLOCK)
        image, h, w = cell // (HIGH * BROAD), cell // BROAD % HIGH, cell % BROAD
        above, left = h[:, None] * DOWN - AROUND + after[None, :], w[:, None] * ACROSS - AROUND
        beyond = left + (within // IN)[None, :]
        inside = (image < images)[:, None] & (beyond >= 0) & (beyond < IN_WIDTH) & (above >= 0) & (above < IN_HEIGHT)
        at = ((image[:, None] * IN_HEIGHT + above) * IN_WIDTH + left) * IN + within[None, :]
        at, inside = tl.max_contiguous(tl.multiple_of(at, (1, 16)), (1, 16)), tl.max_constancy(inside, (1, 16))
        window = tl.load(x + at, mask=inside, other=0.0)
        row, across = h[:, None] * TALL + t[None, :], w[:, None] * WIDE + u[None, :]
        here = (image < images)[:, None]
        if HEIGHT % TALL != 0 or WIDTH % WIDE != 0:
            here = here & (row < HEIGHT) & (across < WIDTH)
        at = ((image[:, None] * HEIGHT + row) * WIDTH + across) * OUT + channel[None, :]
        slope = tl.load(grad + at, mask=here, other=0.0)
        total = tl.dot(tl.trans(window), slope, total, input_precision=PRECISION)
    parts += (r * tl.num_programs(0) + split) * (ROWS * COLUMNS * IN * CELL) + part * (WINDOW * CELL)
    tl.store(parts + column[:, None] * CELL + place[None, :], total)


def _gather(
    parts, slope, splits, SIZE: constexpr, IN: constexpr, OUT: constexpr, TALL: constexpr, WIDE: constexpr,
    ROWS: constexpr, COLUMNS: constexpr, STRIDE: constexpr, BLOCK: constexpr,
):  # fmt: skip
    """One tap of BLOCK pairs of channels of one replica, over all pixels of a cell that it leads to, and all parts."""
    i, j, r = tl.program_id(0) // SIZE, tl.program_id(0) % SIZE, tl.program_id(1).to(tl.int64)
    pair = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    o, c, inside = pair % OUT, pair // OUT, pair < IN * OUT
    CELL: constexpr = TALL * WIDE * OUT
    parts += r * splits * (ROWS * COLUMNS * IN * CELL)
    total = tl.zeros((BLOCK,), tl.float32)
    for split in range(splits):
        for t in tl.static_range(TALL):
            for u in tl.static_range(WIDE):
                window = ((i + STRIDE * t) * COLUMNS + j + STRIDE * u) * IN + c
                at = split * (ROWS * COLUMNS * IN * CELL) + window * CELL + (t * WIDE + u) * OUT + o
                total += tl.load(parts + at, mask=inside, other=0.0)
    tl.store(slope + r * (OUT * IN * SIZE * SIZE) + ((o * IN + c) * SIZE + i) * SIZE + j, total, mask=inside)
