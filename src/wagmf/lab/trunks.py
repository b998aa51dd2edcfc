"""The convolutional parts of the zoo's networks on a GPU, forwards and backwards, by kernels.

Those of :mod:`wagmf.lab.convolutions` and :mod:`wagmf.lab.layers`.

In bfloat16 alone: there it is faster than compiling the formulas of :mod:`wagmf.lab.models`, whose results these are
up to rounding.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from wagmf.lab.convolutions import convolve, correlate
from wagmf.lab.layers import blend, pool, settle, settle_back, spread, unpool
from wagmf.torch.triton import missing

__all__ = ["cnn", "fit", "patches", "resnet20"]

Tensors = Mapping[str, Tensor]


def fit(x: Tensor) -> bool:
    """Whether images x [S, images, channels, ...] are for these kernels: in bfloat16, on a GPU, of at most 7 channels.

    And whether Triton is installed in a version that works; whether it knows this GPU is not asked.

    >>> fit(torch.zeros(1, 2, 3, 8, 8))
    False
    """
    return x.is_cuda and x.dtype == torch.bfloat16 and _filled(9 * x.shape[2]) <= 64 and _known()


@torch.compiler.assume_constant_result
def _known() -> bool:
    return missing() is None


def patches(x: Tensor) -> Tensor:
    """The 3 × 3 pixels around each of x [S, images, channels, height, width], as channels, and some more of zeros.

    So the first convolution, of whose few channels no kernel could make much, is one of 1 × 1 pixels.

    >>> patches(torch.ones(1, 128, 3, 32, 32)).shape
    torch.Size([1, 128, 32, 32, 32])
    """
    height, width = x.shape[3:]
    x = F.pad(x, (1, 1, 1, 1))
    around = [x[..., i : i + height, j : j + width] for i in range(3) for j in range(3)]
    laid = torch.stack(around, 3).flatten(2, 3).permute(0, 1, 3, 4, 2)  # channels, then places, as weights have them
    return F.pad(laid, (0, _filled(laid.shape[4]) - laid.shape[4])).contiguous()


def _filled(channels: int) -> int:
    return max(16, 1 << (channels - 1).bit_length())


def _of_patches(weight: Tensor) -> Tensor:
    """The weights [R, out, channels, 3, 3] as those of patches."""
    laid = weight.flatten(2)
    return F.pad(laid, (0, _filled(laid.shape[2]) - laid.shape[2]))[..., None, None]


def _apply(trunk: Any, *arguments: Any) -> Tensor:
    """With whether a gradient may be asked for: a trunk cannot find out, since it is computed without."""
    return trunk.apply(torch.is_grad_enabled(), *arguments)


_uncompiled: Any = torch.compiler.disable(_apply)  # the kernels are: what compiles the rest goes around them


def _pixels(x: Tensor) -> int:
    return x.shape[1] * x.shape[2] * x.shape[3]


# ---------------------------------------------------------------- ResNet-20


def resnet20(model: Any, p: Tensors, b: Tensors, seen: Tensor, training: bool) -> Tensor:
    """What the network's head is given, [S·K, images, 64], of the images' patches; training moves running averages.

    >>> from wagmf.lab.models import ResNet20
    >>> model = ResNet20((3, 32, 32), 10)
    >>> p = {name: torch.empty(2, 4, *shape, device="meta") for name, shape in model.shapes.items()}
    >>> b = {name: torch.empty(2, 4, *shape, device="meta") for name, (shape, _) in model.buffers.items()}
    >>> resnet20(model, p, b, torch.empty(2, 128, 32, 32, 32, device="meta"), training=True).shape
    torch.Size([8, 128, 64])
    """
    names = [name for name in p if not name.startswith("head")]
    return _uncompiled(_ResNet20, model, b, seen, training, names, *(p[name] for name in names))


class _ResNet20(torch.autograd.Function):
    """relu(norm(conv)) of the stem; of each block after(h) = relu(norm(z2) + h), where z2 = conv(relu(norm(z1)))."""

    @staticmethod
    def forward(
        ctx: Any, keep: bool, model: Any, b: Tensors, seen: Tensor, training: bool, names: list[str], *params: Tensor
    ) -> Tensor:
        p = {name: param.flatten(0, 1) for name, param in zip(names, params, strict=True)}
        norms = {name: _Norm(model, p, b, name, training) for name in model.convolutions}
        z, sums = convolve(seen, _of_patches(p["stem.conv.weight"]), summed=training)
        h = blend(z, None, norms["stem"].coefficients(sums, _pixels(z)), relu=True)
        blocks = []
        for name, (_, _, stride) in model.convolutions.items():
            if not name.endswith(".1"):
                continue
            first, second = norms[name], norms[name.removesuffix("1") + "2"]
            z1, sums = convolve(h, first.filters, stride=stride, summed=training)
            y = blend(z1, None, first.coefficients(sums, _pixels(z1)), relu=True)
            z2, sums = convolve(y, second.filters, summed=training)
            after = blend(z2, h, second.coefficients(sums, _pixels(z2)), relu=True)
            if keep:
                blocks.append((first, second, stride, z, h, z1, y, z2, after))
            z, h = z2, after
        ctx.kept = names, norms["stem"], seen, blocks, [param.shape for param in params]
        return h.flatten(2, 3).mean(2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        names, stem, seen, blocks, shapes = ctx.kept
        slopes: dict[str, Tensor] = {}
        g, sums = spread(grads[0].contiguous(), *blocks[-1][:-3:-1])
        for first, second, stride, z, h, z1, y, z2, _ in reversed(blocks):
            dz = blend(g, z2, second.back(sums, _pixels(z2), slopes), relu=False)
            slopes[f"{second.name}.conv.weight"] = correlate(y, dz, 3)
            dy, sums = convolve(
                dz, second.filters, back=z1.shape[2:4], beside=z1, coefficients=first.settled, summed=True
            )
            dz = blend(dy, z1, first.back(sums, _pixels(z1), slopes), relu=False)
            slopes[f"{first.name}.conv.weight"] = correlate(h, dz, 3, stride)
            g, sums = convolve(
                dz, first.filters, stride=stride, back=h.shape[2:4], skip=g, gate=h, beside=z, summed=True
            )
        z = blocks[0][3]
        dz = blend(g, z, stem.back(sums, _pixels(z), slopes), relu=False)
        slopes["stem.conv.weight"] = correlate(seen, dz, 1)[:, :, : stem.filters[0, 0].numel(), 0, 0]
        found = [slopes[name].reshape(shape) for name, shape in zip(names, shapes, strict=True)]
        return None, None, None, None, None, None, *found


class _Norm:
    """A convolution's filters and the batch normalisation after it."""

    def __init__(self, model: Any, p: Tensors, b: Tensors, name: str, training: bool) -> None:
        self.name, self.training, self.eps, self.momentum = name, training, model.eps, model.momentum
        self.filters, self.weight, self.bias = (p[f"{name}.{kind}"] for kind in ("conv.weight", *_SCALES))
        # Views: where a buffer could only be flattened into a copy, its running averages would stand still.
        kept = (b[f"{name}.norm.running_{kind}"] for kind in ("mean", "var"))
        self.mean, self.var = (average.view(-1, average.shape[-1]) for average in kept)

    def coefficients(self, sums: Tensor, count: int) -> Tensor:
        """Those of the batch, or in evaluation those of the running averages."""
        if self.training:
            self.settled, self.found = settle(
                sums, count, self.weight, self.bias, self.mean, self.var, self.eps, self.momentum
            )
            return self.settled
        a = self.weight * torch.rsqrt(self.var + self.eps)
        return torch.stack((a, torch.ones_like(a), self.bias - self.mean * a), 1)

    def back(self, sums: Tensor, count: int, slopes: dict[str, Tensor]) -> Tensor:
        coefficients, *found = settle_back(sums, count, self.weight, self.found)
        slopes.update({f"{self.name}.{kind}": slope for kind, slope in zip(_SCALES, found, strict=True)})
        return coefficients


_SCALES = ("norm.weight", "norm.bias")


# ---------------------------------------------------------------- CNN


def cnn(p: Tensors, seen: Tensor) -> Tensor:
    """What the network's head is given, [S·K, images, height, width, 64], of the images' patches.

    >>> from wagmf.lab.models import CNN
    >>> p = {name: torch.empty(2, 4, *shape, device="meta") for name, shape in CNN((3, 32, 32), 10).shapes.items()}
    >>> cnn(p, torch.empty(2, 128, 32, 32, 32, device="meta")).shape
    torch.Size([8, 128, 8, 8, 64])
    """
    return _uncompiled(_CNN, seen, *(param for name, param in p.items() if name.startswith("conv")))


class _CNN(torch.autograd.Function):
    """relu(conv + bias) four times, after the second and the fourth the pooling."""

    @staticmethod
    def forward(ctx: Any, keep: bool, seen: Tensor, *params: Tensor) -> Tensor:
        weights, biases = ([param.flatten(0, 1) for param in params[k::2]] for k in (0, 1))
        inputs, outputs, h = [], [], seen
        for number, (weight, bias) in enumerate(zip(weights, biases, strict=True), 1):
            inputs += [h] if keep else []
            h, _ = convolve(h, weight if number > 1 else _of_patches(weight), bias=bias)
            outputs += [h] if keep else []
            h = pool(h) if number % 2 == 0 else h
        ctx.kept = weights, inputs, outputs, [param.shape for param in params]
        return h

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        weights, inputs, outputs, shapes = ctx.kept
        g, slopes = grads[0].contiguous(), []
        for number in (4, 2):  # with the convolution before it
            weight, h, first = weights[number - 1], inputs[number - 1], inputs[number - 2]
            g, sums = unpool(g, outputs[number - 1])
            slopes += [sums.sum(1), correlate(h, g, 3)]
            g, sums = convolve(g, weight, back=h.shape[2:4], gate=h, summed=True)
            slopes += [sums[:, :, 0].sum(1), correlate(first, g, 3 if number == 4 else 1)]
            if number == 4:
                g, _ = convolve(g, weights[2], back=first.shape[2:4])
        slopes[-1] = slopes[-1][:, :, : weights[0][0, 0].numel(), 0, 0]
        return None, None, *(slope.reshape(shape) for slope, shape in zip(reversed(slopes), shapes, strict=True))
