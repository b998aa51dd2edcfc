"""Convolutions of many networks as Triton kernels: in Triton's interpreter against torch's own.

In float32, and in float16 for what is rounded. The interpreter must be asked for before Triton is imported: the checks
run in a process of their own.
"""

import importlib.util
import os
import subprocess
import sys
import weakref

import interpreter
import numpy as np
import pytest
import torch
from kernels import BESIDES, IMAGES, LAYERS, SIZES, Kernels, close, plain

from wagmf.arguments import Refused
from wagmf.lab import convolutions, layers, models, trunks
from wagmf.lab.convolutions import convolve, correlate
from wagmf.lab.engine import _replicas
from wagmf.lab.layers import blend, pool, settle, unpool
from wagmf.lab.models import CNN, ResNet20, zoo
from wagmf.lab.noise import Noise

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")


@needs_triton
def test_the_kernels_in_the_interpreter():
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-o",
               "python_functions=check_*", __file__]  # fmt: skip
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stdout[-5000:] + result.stderr[-2000:]
    assert " passed" in result.stdout


META = torch.device("meta")


def empty(*shape):
    return torch.empty(shape, device=META)


@pytest.mark.parametrize(
    ("x", "weight", "options", "right"),
    [
        ((2, 3, 8, 8, 16), (2, 16, 16, 5, 5), {}, "size: 5 .*3 × 3"),
        ((2, 3, 8, 8, 16), (2, 16, 16, 3, 3), {"stride": 3}, "stride: 3 .*1, or 2"),
        ((2, 3, 8, 8, 16), (2, 16, 16, 1, 1), {"stride": 2}, "stride: 2 .*1, or 2"),
        ((2, 3, 8, 8, 16), (3, 16, 16, 3, 3), {}, "sets of images: 2 .*3 replicas"),
        ((2, 3, 8, 8, 24), (2, 16, 24, 3, 3), {}, "channels: 24 .*16, 32, 64"),
        ((2, 3, 8, 8, 16), (2, 24, 16, 3, 3), {}, "channels: 24 .*16, 32, 64"),
    ],
)
def test_convolutions_that_there_are_no_kernels_for_are_refused(x, weight, options, right):
    x, weight = empty(*x), empty(*weight)
    grad = empty(len(weight), *x.shape[1:4], weight.shape[1])
    with pytest.raises(Refused, match=right):
        convolve(x, weight, **options)
    with pytest.raises(Refused, match=right):
        correlate(x, grad, weight.shape[4], **options)


def test_images_that_lie_otherwise_are_refused():
    x, weight = empty(2, 3, 8, 8, 16), empty(2, 16, 16, 3, 3)
    turned = x.transpose(2, 3)
    convolve(x, weight, skip=x, gate=x, beside=x)
    for name in ("skip", "gate", "beside"):
        with pytest.raises(Refused, match=r"strides of images: .*contiguous"):
            convolve(x, weight, **{name: turned})
    for refused in (lambda: convolve(turned, weight), lambda: correlate(turned, x, 3), lambda: correlate(x, turned, 3)):
        with pytest.raises(Refused, match=r"strides of images: .*contiguous"):
            refused()


def test_a_single_pixel_is_refused_its_variance():
    each = empty(2, 16)
    settle(empty(2, 1, 2, 16), 2, each, each, each, each, 1e-3, 0.99)
    with pytest.raises(Refused, match=r"count: 1 .*>= 2"):
        settle(empty(2, 1, 2, 16), 1, each, each, each, each, 1e-3, 0.99)


def on_meta(model):
    """Parameters and buffers of two seeds with four arms, and the patches that they see."""
    p = {name: empty(2, 4, *shape).requires_grad_() for name, shape in model.shapes.items()}
    return p, {name: empty(2, 4, *shape) for name, (shape, _) in model.buffers.items()}, empty(2, 5, 8, 8, 32)


class Watched:
    """A function, and how many of the images that it and others made there still are when it is called."""

    def __init__(self, function, made, left):
        self.function, self.made, self.left = function, made, left

    def __call__(self, *arguments, **options):
        self.left.append(sum(each() is not None for each in self.made))
        result = self.function(*arguments, **options)
        self.made.append(weakref.ref(result[0] if isinstance(result, tuple) else result))
        return result


@pytest.mark.parametrize(("kind", "block"), [("cnn", 1), ("resnet20", 5)])
def test_an_evaluation_keeps_no_images(kind, block, monkeypatch):
    """But those of a layer, or of a block; what is trained keeps them all."""
    made, left, model = [], [], zoo(kind, (3, 8, 8), 10)
    for name in ("convolve", "blend", "pool"):
        monkeypatch.setattr(trunks, name, Watched(getattr(trunks, name), made, left))
    p, b, seen = on_meta(model)
    for training in (True, False):
        made.clear()
        left.clear()
        with torch.set_grad_enabled(training):
            h = trunks.cnn(p, seen) if kind == "cnn" else trunks.resnet20(model, p, b, seen, training)
        assert h.requires_grad == training
        assert max(left) == (len(made) - 1 if training else block)


def test_running_averages_that_would_be_copied_are_refused():
    model = zoo("resnet20", (3, 8, 8), 10)
    p, b, seen = on_meta(model)
    apart = {name: empty(4, 2, *kept.shape[2:]).transpose(0, 1) for name, kept in b.items()}
    trunks.resnet20(model, p, b, seen, training=True)
    with pytest.raises(RuntimeError, match="view"):
        trunks.resnet20(model, p, apart, seen, training=True)


@pytest.fixture(autouse=True)
def some(monkeypatch):
    """Random numbers; and programs so small that each layer has several, the last of which is not full."""
    torch.manual_seed(0)
    if os.environ.get("TRITON_INTERPRET") == "1":
        interpreter.mend()
        cut(monkeypatch)


def cut(monkeypatch, *, block=16, elements=256, weights=1 << 10, pairs=1 << 7):
    """How much a program takes: each costs the interpreter its time."""
    for tiles in (convolutions._CONVOLVE, convolutions._CORRELATE):
        for channels, tile in tiles.items():
            monkeypatch.setitem(tiles, channels, tile._replace(block=block))
    monkeypatch.setattr(convolutions, "_WIDENING", convolutions._WIDENING._replace(block=block))
    for name, few in {"_WEIGHTS": weights, "_PAIRS": pairs, "_SPLITS": 2}.items():
        monkeypatch.setattr(convolutions, name, few)
    monkeypatch.setattr(layers, "_ELEMENTS", elements)
    monkeypatch.setattr(layers, "_SUMS", 64 * 16)


@pytest.mark.parametrize(("channels", "out", "kernel", "stride"), LAYERS)
def check_a_convolution_and_its_gradients(channels, out, kernel, stride, monkeypatch):
    cut(monkeypatch, weights=4 * channels * out, pairs=channels * out // 2)
    Kernels().convolution(SIZES[1], channels, out, kernel, stride)


@pytest.mark.parametrize(("tall", "wide", "together"), [(1, 1, 1), (2, 2, 4), (1, 4, 2)])
def check_cells_of_any_shape(tall, wide, together, monkeypatch):
    """Which is best depends on the GPU, not on what is in use: benchmarks/tiles.py tries them."""
    cells = convolutions._CONVOLVE[16]._replace(tall=tall, wide=wide, together=together)
    monkeypatch.setitem(convolutions._CONVOLVE, 16, cells)
    Kernels().convolution(SIZES[1], 16, 16, 3, 1)


@pytest.mark.parametrize(("channels", "out", "kernel", "stride"), [LAYERS[0], LAYERS[-1]])
def check_a_convolution_of_images_that_are_shared(channels, out, kernel, stride):
    """By the arms of each of two seeds."""
    Kernels(replicas=4).convolution(SIZES[1], channels, out, kernel, stride, shared=2)


@pytest.mark.parametrize("size", SIZES)
def check_what_is_done_before_a_convolution_is_written(size):
    Kernels().before_it_is_written(size)


@pytest.mark.parametrize("size", SIZES)
def check_the_gradient_by_a_shortcut_comes_to_the_pixels_it_took(size):
    Kernels().shortcut(size)


@pytest.mark.parametrize("rows", [1, 200])
def check_batch_normalisation_is_that_of_torch(rows):
    Kernels().normalisation(rows)


@pytest.mark.parametrize("size", SIZES)
def check_pooling_and_its_gradient(size):
    Kernels().pooling(size)


@pytest.mark.parametrize("place", range(4))
def check_pooling_what_is_not_a_number(place):
    Kernels().pooling((4, 4), place)


def check_the_first_of_several_that_are_no_numbers_has_the_gradient():
    """As in the formula of the zoo; max_pool2d gives it to the last."""
    x, grad = Kernels().images(4, 4, 32), Kernels().images(2, 2, 32)
    x[torch.rand(x.shape) < 0.5] = torch.nan
    seen = x.clone().requires_grad_()
    right = models._pool_by_comparison(seen.relu().flatten(0, 1).permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
    wanted = torch.autograd.grad((right * grad.flatten(0, 1)).sum(), seen)[0]
    assert torch.equal(unpool(grad, x.relu())[0], wanted)


def check_the_gradient_of_the_mean():
    Kernels().mean()


@pytest.mark.parametrize(("what", "arguments"), [("convolution", (SIZES[1], *LAYERS[0])), *BESIDES])
def check_half_precision(what, arguments):
    """Rounded once, when a result is written; not in bfloat16, of which the interpreter's products are wrong."""
    getattr(Kernels(dtype=torch.float16, tolerance=2**-10), what)(*arguments)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def check_what_is_not_finite_is_seen_around_it(bad):
    """For the replica to be seen to diverge; not in another image or replica."""
    x, weight = Kernels().images(6, 8, 16), torch.randn(2, 16, 16, 3, 3)
    right = plain(x, weight)
    x[1, 1, 3, 3, 7] = bad
    spoiled = ~plain(x, weight).isfinite()
    with np.errstate(invalid="ignore"):  # the interpreter computes with NumPy, which warns of 0 · ∞
        mine, after = convolve(x, weight)[0], convolve(x, weight, bias=torch.zeros(2, 16))[0]
    assert not mine[spoiled].isfinite().any()
    spoiled[1, 1, 2:5] = True  # also what lies in a cell with it
    close(mine[~spoiled], right[~spoiled])
    coefficients = torch.rand(2, 3, 16)
    for h in (blend(x, None, coefficients, relu=True), blend(torch.randn_like(x), x, coefficients, relu=True)):
        assert (h.isfinite() == x.isfinite()).all()
    assert torch.equal(after.isnan(), mine.isnan())
    assert pool(after).isnan()[1, 1].any()
    assert pool(after)[0].isfinite().all()


@pytest.mark.parametrize(("kind", "seeds"), [("cnn", [4, 7]), ("resnet20", [4])])
def check_networks_are_those_of_the_zoo(kind, seeds, monkeypatch):
    """Logits, gradients and running averages, in training and in evaluation."""
    cut(
        monkeypatch, block=128, elements=1 << 11, weights=1 << 17, pairs=1 << 12
    )  # few programs, for there are many layers
    model = {"cnn": CNN, "resnet20": Shallow}[kind]((3, 5, 5), 10)
    p, buffers = _replicas(model, seeds, 2, torch.device("cpu"), torch.float32)
    for param in p.values():
        param.data += 0.1 * torch.randn_like(param)
    S = len(seeds)
    x, weight = torch.randn(S, IMAGES, 3, 5, 5), torch.randn(S, 2, 10, IMAGES)
    noise = Noise(torch.tensor(seeds), torch.tensor(0))
    found = []
    for fit in (False, True):
        monkeypatch.setattr(trunks, "fit", lambda x, fit=fit: fit)
        b = {name: kept.clone() for name, kept in buffers.items()}
        logits = model.logits(p, b, x, noise)
        grads = torch.autograd.grad((logits * weight).sum(), list(p.values()))
        with torch.no_grad():
            found.append([logits, *grads, *b.values(), model.logits(p, b, x, None)])
    for right, mine in zip(*found, strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-3, atol=2e-5 * float(right.detach().abs().max()))


class Shallow(ResNet20):
    """Every kind of block once, for the interpreter to be done within seconds."""

    @property
    def convolutions(self):
        kept = ("stem", "stage1.block1", "stage2.block1", "stage2.block2", "stage3.block1")
        return {name: layer for name, layer in super().convolutions.items() if name.startswith(kept)}
