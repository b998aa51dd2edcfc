"""Convolutions of many networks as Triton kernels: in Triton's interpreter against torch's own, in float32.

The interpreter must be asked for before Triton is imported: the checks run in a process of their own.
"""

import functools
import importlib.util
import os
import subprocess
import sys
import weakref

import pytest
import torch
from torch.nn import functional as F

from wagmf.arguments import Refused
from wagmf.lab import convolutions, launching, trunks
from wagmf.lab.convolutions import convolve, correlate
from wagmf.lab.engine import _replicas
from wagmf.lab.layers import blend, pool, settle, settle_back, spread, unpool
from wagmf.lab.models import zoo
from wagmf.lab.noise import Noise

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
needs_compiler = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="TRITON_INTERPRET is set")
R, IMAGES = 2, 3
SIZES = [(6, 8), (5, 7)]  # whole cells, and not


@needs_triton
def test_the_kernels_in_the_interpreter():
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-o",
               "python_functions=check_*", __file__]  # fmt: skip
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stdout[-5000:] + result.stderr[-2000:]
    assert " passed" in result.stdout


class Driver:
    """In the place of a GPU's, since there is none."""

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0

    def get_current_target(self):
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)


class Compiled:
    """A kernel that is compiled where it would be launched."""

    def __init__(self, kernel):
        self.kernel, self.texts = kernel, []

    def __getitem__(self, grid):
        return functools.partial(self.compile, grid=grid)

    def compile(self, *arguments, **options):
        self.texts.append(self.kernel.warmup(*arguments, **options).asm["ptx"])


@needs_triton
@needs_compiler
def test_the_kernels_compile_into_wide_loads_and_tensor_core_products(tmp_path, monkeypatch):
    """The interpreter runs much that the compiler refuses, and narrow loads would be several times slower."""
    from triton.runtime import driver

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(driver, "_active", Driver())
    kernels, compiled = {}, launching._compiled
    monkeypatch.setattr(
        launching, "_compiled", lambda kernel: kernels.setdefault(kernel.__name__, Compiled(compiled(kernel)))
    )
    x = torch.zeros(2, 2, 32, 32, 16, dtype=torch.bfloat16)
    convolve(x, torch.zeros(2, 16, 16, 3, 3), back=(32, 32), skip=x, gate=x, beside=x, summed=True)
    correlate(x, x, 3)
    blend(x, x, torch.zeros(2, 3, 16), relu=True)
    texts = {name: text for name, kernel in kernels.items() for text in kernel.texts}
    assert list(texts) == ["_lay", "_convolve", "_correlate", "_gather", "_blend"]
    for name, text in texts.items():
        if name in ("_convolve", "_correlate"):
            assert "wgmma.mma_async" in text
            assert "cp.async.cg" in text  # 16 bytes at once
        if name in ("_convolve", "_correlate", "_blend"):
            assert "ld.global.b16" not in text
            assert "st.global.b16" not in text


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
    """Random numbers; and few programs, each of which takes the interpreter its time."""
    torch.manual_seed(0)
    if os.environ.get("TRITON_INTERPRET") == "1":
        for name, few in {"_WEIGHTS": 1 << 17, "_PAIRS": 1 << 12, "_SPLITS": 2}.items():
            monkeypatch.setattr(convolutions, name, few)


def images(*shape, replicas=R):
    return torch.randn(replicas, IMAGES, *shape)


def plain(x, weight, stride=1):
    """torch's own in float64, of images [R, images, height, width, channels]."""
    out = [
        F.conv2d(a.permute(0, 3, 1, 2), w, stride=stride, padding=w.shape[3] // 2)
        for a, w in zip(x, weight, strict=True)
    ]
    return torch.stack(out).permute(0, 1, 3, 4, 2)


def close(mine, right):
    torch.testing.assert_close(mine.double(), right.double(), rtol=1e-5, atol=1e-5 * float(right.detach().abs().max()))


LAYERS = [(16, 16, 3, 1), (32, 64, 3, 1), (64, 64, 3, 1), (16, 32, 3, 2), (32, 16, 1, 1)]


@pytest.mark.parametrize(("channels", "out", "kernel", "stride"), LAYERS)
@pytest.mark.parametrize("size", SIZES[1:])
def check_a_convolution_and_its_gradients(size, channels, out, kernel, stride):
    """Where they share images, and where not. The sums are those over pixels."""
    x = images(*size, channels, replicas=1 if kernel == 1 else R)
    weight = torch.randn(R, out, channels, kernel, kernel)
    seen, filters = x.repeat_interleave(R // len(x), 0).double().requires_grad_(), weight.double().requires_grad_()
    right = plain(seen, filters, stride)
    mine, sums = convolve(x, weight, stride=stride, summed=True)
    close(mine, right)
    close(sums.sum(1), torch.stack((right.sum((1, 2, 3)), right.square().sum((1, 2, 3))), 1))
    assert convolve(x, weight, stride=stride)[1].numel() == 0

    grad = torch.randn_like(mine)
    right_x, right_weight = torch.autograd.grad((right * grad).sum(), (seen, filters))
    close(correlate(x, grad, kernel, stride), right_weight)
    if kernel == 3:
        close(convolve(grad, weight, stride=stride, back=size)[0], right_x)


@pytest.mark.parametrize("size", SIZES)
def check_what_is_done_before_a_convolution_is_written(size):
    x, weight, bias = images(*size, 16), torch.randn(R, 16, 16, 3, 3), torch.randn(R, 16)
    right = plain(x, weight)
    close(convolve(x, weight, bias=bias)[0], F.relu(right + bias[:, None, None, None]))
    skip, gate, beside, coefficients = images(*size, 16), images(*size, 16), images(*size, 16), torch.randn(R, 3, 16)
    mine, sums = convolve(x, weight, skip=skip, gate=gate, beside=beside, summed=True)
    wanted = (right + skip) * (gate > 0)
    close(mine, wanted)
    close(sums.sum(1), torch.stack((wanted.sum((1, 2, 3)), (wanted * beside).sum((1, 2, 3))), 1))
    mine, _ = convolve(x, weight, beside=beside, coefficients=coefficients)
    a, _, c = coefficients[:, :, None, None, None].unbind(1)
    close(mine, right * (a * beside + c > 0))


@pytest.mark.parametrize("size", SIZES)
def check_the_gradient_by_a_shortcut_comes_to_the_pixels_it_took(size):
    x, after = images(*size, 16), images(-(-size[0] // 2), -(-size[1] // 2), 32)
    shortcut = x.clone().requires_grad_()
    wide = F.pad(shortcut[:, :, ::2, ::2], (0, 16))
    coefficients = torch.randn(R, 3, 32)
    a, b, c = coefficients[:, :, None, None, None].unbind(1)
    close(blend(after, x, coefficients, relu=True), F.relu(a * after + b * wide + c))
    close(blend(after, None, coefficients, relu=False), a * after + c)
    weight = torch.zeros(R, 32, 16, 3, 3)
    right = torch.autograd.grad((wide * after).sum(), shortcut)[0]
    close(convolve(after, weight, stride=2, back=size, skip=after)[0], right)


def check_batch_normalisation_is_that_of_torch():
    z, weight, bias = images(5, 6, 16), torch.randn(R, 16), torch.randn(R, 16)
    means, mine = torch.randn(R, 16), torch.randn(R, 16).abs()
    right_means, right = means.clone(), mine.clone()
    count, wide = IMAGES * 30, z.permute(1, 0, 4, 2, 3).flatten(1, 2).double().requires_grad_()
    scale, shift = weight.flatten().double().requires_grad_(), bias.flatten().double().requires_grad_()
    running = [kept.double().flatten() for kept in (right_means, right)]
    normal = F.batch_norm(wide, *running, scale, shift, training=True, momentum=0.01, eps=1e-3)

    sums = torch.stack((z.sum((1, 2, 3)), z.square().sum((1, 2, 3))), 1)
    parts = torch.stack((sums * 0.25, sums * 0.75), 1)  # over any number of rows
    coefficients, found = settle(parts, count, weight, bias, means, mine, 1e-3, 0.99)
    laid = normal.unflatten(1, (R, 16)).permute(1, 0, 3, 4, 2)
    close(blend(z, None, coefficients, relu=False), laid)
    close(means.flatten(), running[0])
    close(mine.flatten(), running[1])

    grad = torch.randn_like(z)
    right_z, *right_scales = torch.autograd.grad((laid * grad).sum(), (wide, scale, shift))
    sums = torch.stack((grad.sum((1, 2, 3)), (grad * z).sum((1, 2, 3))), 1)[:, None]
    coefficients, *scales = settle_back(sums, count, weight, found)
    close(blend(grad, z, coefficients, relu=False), right_z.unflatten(1, (R, 16)).permute(1, 0, 3, 4, 2))
    for a, b in zip(scales, right_scales, strict=True):
        close(a.flatten(), b)


@pytest.mark.parametrize("size", SIZES)
def check_pooling_and_its_gradient(size):
    """Of equal pixels the first has the gradient; where all are 0, ReLU lets none through."""
    x = images(*size, 32).round().relu().requires_grad_()
    right = F.max_pool2d(x.flatten(0, 1).permute(0, 3, 1, 2), 2).permute(0, 2, 3, 1).unflatten(0, (R, IMAGES))
    assert torch.equal(pool(x.detach()), right)
    grad = torch.randn_like(right)
    wanted = torch.autograd.grad((right * grad).sum(), x)[0] * (x > 0)
    mine, sums = unpool(grad, x.detach())
    close(mine, wanted)
    close(sums.sum(1), wanted.sum((1, 2, 3)))


@pytest.mark.parametrize("place", range(4))
def check_the_gradient_of_pooling_what_is_not_a_number(place):
    x, grad = images(4, 4, 32), images(2, 2, 32)
    x[1, :, place // 2 :: 2, place % 2 :: 2] = torch.nan
    seen = x.clone().requires_grad_()
    right = F.max_pool2d(seen.relu().flatten(0, 1).permute(0, 3, 1, 2), 2).permute(0, 2, 3, 1)
    wanted = torch.autograd.grad((right * grad.flatten(0, 1)).sum(), seen)[0]
    assert torch.equal(unpool(grad, x.relu())[0], wanted)


def check_the_gradient_of_the_mean():
    gate, beside, grad = images(4, 5, 64), images(4, 5, 64), torch.randn(R, IMAGES, 64)
    wanted = grad[:, :, None, None] / 20 * (gate > 0)
    mine, sums = spread(grad, gate, beside)
    close(mine, wanted)
    close(sums.sum(1), torch.stack((wanted.sum((1, 2, 3)), (wanted * beside).sum((1, 2, 3))), 1))


def check_what_is_not_a_number_stays_so():
    """In its own replica, for that to be seen to diverge."""
    x, weight = images(4, 4, 16), torch.randn(R, 16, 16, 3, 3)
    x[1] = torch.nan
    after = convolve(x, weight, bias=torch.zeros(R, 16))[0]
    for h in (after, blend(x, None, torch.ones(R, 3, 16), relu=True), pool(after)):
        assert h[1].isnan().all()
        assert h[0].isfinite().all()


@pytest.mark.parametrize(("kind", "size"), [("cnn", 5), ("resnet20", 5)])
def check_networks_are_those_of_the_zoo(kind, size, monkeypatch):
    """Logits, gradients and running averages, in training and in evaluation."""
    model = zoo(kind, (3, size, size), 10)
    p, buffers = _replicas(model, [4], R, torch.device("cpu"), torch.float32)
    for param in p.values():
        param.data += 0.1 * torch.randn_like(param)
    x, weight = torch.randn(1, IMAGES, 3, size, size), torch.randn(1, R, 10, IMAGES)
    noise = Noise(torch.tensor([4]), torch.tensor(0))
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
