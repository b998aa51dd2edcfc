"""The kernels of convolutional networks beside torch's own formulas in float64, on any device and in any type.

What is rounded is given as such to both sides. Sums over pixels are compared with those of the kernel's own result,
rounded as it was written: the batch normalisation after it sees nothing else.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from wagmf.lab.convolutions import convolve, correlate
from wagmf.lab.layers import blend, pool, settle, settle_back, spread, unpool

LAYERS = [(16, 16, 3, 1), (32, 64, 3, 1), (64, 64, 3, 1), (16, 32, 3, 2), (32, 16, 1, 1)]
SIZES = [(6, 8), (5, 7)]  # whole cells, and not
IMAGES = 3


def close(mine, right, tolerance=1e-5):
    """Up to a part of each number and of the largest."""
    mine, right = mine.detach().double().cpu(), right.detach().double().cpu()
    largest = float(right.nan_to_num().abs().max())
    torch.testing.assert_close(mine, right, rtol=tolerance, atol=tolerance * largest, equal_nan=True)


def plain(x, weight, stride=1):
    """torch's own in float64, of images [S, images, height, width, channels], for the replicas that share them."""
    x = x.double().repeat_interleave(len(weight) // len(x), 0).permute(0, 1, 4, 2, 3)
    pairs = zip(x, weight.double(), strict=True)
    out = [F.conv2d(a, w, stride=stride, padding=w.shape[3] // 2) for a, w in pairs]
    return torch.stack(out).permute(0, 1, 3, 4, 2)


def sums_of(mine, beside=None):
    mine = mine.double()
    second = mine.square() if beside is None else mine * beside.double()
    return torch.stack((mine.sum((1, 2, 3)), second.sum((1, 2, 3))), 1)


class Kernels(NamedTuple):
    """Where they are tried, in which type, and how far they may be off: a part of the largest number."""

    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    tolerance: float = 1e-5
    replicas: int = 2

    def some(self, *shape) -> Tensor:
        """Random numbers as the type has them."""
        return torch.randn(shape).to(self.device, self.dtype)

    def images(self, *shape) -> Tensor:
        return self.some(self.replicas, IMAGES, *shape)

    def numbers(self, *shape) -> Tensor:
        """Parameters, in float32 as everywhere, but of values that the type has."""
        return self.some(self.replicas, *shape).float()

    def close(self, mine, right):
        close(mine, right, self.tolerance)

    def convolution(self, size, channels, out, kernel, stride, shared=1):
        """With its gradients; images may be shared by replicas."""
        x = self.some(self.replicas // shared, IMAGES, *size, channels)
        weight = self.numbers(out, channels, kernel, kernel)
        seen, filters = x.double().requires_grad_(), weight.double().requires_grad_()
        right = plain(seen, filters, stride)
        mine, sums = convolve(x, weight, stride=stride, summed=True)
        self.close(mine, right)
        close(sums.sum(1), sums_of(mine))
        assert convolve(x, weight, stride=stride)[1].numel() == 0

        grad = self.some(*mine.shape)
        right_x, right_weight = torch.autograd.grad((right * grad).sum(), (seen, filters))
        self.close(correlate(x, grad, kernel, stride), right_weight)
        if shared == 1:
            self.close(convolve(grad, weight, stride=stride, back=size)[0], right_x)

    def before_it_is_written(self, size):
        """A pixel that is not a number lets the gradient through, as torch's ReLU does."""
        x, weight, bias = self.images(*size, 16), self.numbers(16, 16, 3, 3), self.numbers(16)
        right = plain(x, weight)
        self.close(convolve(x, weight, bias=bias)[0], F.relu(right + bias.double()[:, None, None, None]))
        skip, gate, beside = (self.images(*size, 16) for _ in range(3))
        gate[1, 2, 3, 4, 5] = torch.nan
        mine, sums = convolve(x, weight, skip=skip, gate=gate, beside=beside, summed=True)
        self.close(mine, torch.where(gate <= 0, 0, right + skip))
        close(sums.sum(1), sums_of(mine, beside))

        coefficients = self.numbers(3, 16)
        a, _, c = coefficients.double()[:, :, None, None, None].unbind(1)
        beside[0, 1, 2, 3, 4] = torch.nan
        mine, _ = convolve(x, weight, beside=beside, coefficients=coefficients)
        self.close(mine, torch.where(a * beside + c <= 0, 0, right))

    def shortcut(self, size):
        """Forwards and backwards."""
        x, after = self.images(*size, 16), self.images(-(-size[0] // 2), -(-size[1] // 2), 32)
        shortcut = x.double().requires_grad_()
        wide = F.pad(shortcut[:, :, ::2, ::2], (0, 16))
        coefficients = self.numbers(3, 32)
        a, b, c = coefficients.double()[:, :, None, None, None].unbind(1)
        self.close(blend(after, x, coefficients, relu=True), F.relu(a * after + b * wide + c))
        self.close(blend(after, None, coefficients, relu=False), a * after + c)
        right = torch.autograd.grad((wide * after).sum(), shortcut)[0]
        weight = torch.zeros(self.replicas, 32, 16, 3, 3, device=self.device)
        self.close(convolve(after, weight, stride=2, back=size, skip=after)[0], right)

    def normalisation(self, rows):
        """Batch normalisation by sums over so many rows, its gradients and its running averages."""
        z, weight, bias, means = self.images(5, 6, 16), self.numbers(16), self.numbers(16), self.numbers(16)
        variances, count = self.numbers(16).abs(), IMAGES * 30
        wide = z.double().permute(1, 0, 4, 2, 3).flatten(1, 2).requires_grad_()
        scale, shift = (each.flatten().double().requires_grad_() for each in (weight, bias))
        running = [kept.double().flatten() for kept in (means, variances)]
        normal = F.batch_norm(wide, *running, scale, shift, training=True, momentum=0.01, eps=1e-3)

        sums = self.parts(sums_of(z), rows)
        coefficients, found = settle(sums, count, weight, bias, means, variances, 1e-3, 0.99)
        laid = normal.unflatten(1, (self.replicas, 16)).permute(1, 0, 3, 4, 2)
        self.close(blend(z, None, coefficients, relu=False), laid)
        close(means.flatten(), running[0])
        close(variances.flatten(), running[1])

        grad = self.some(*z.shape)
        right_z, *right_scales = torch.autograd.grad((laid * grad).sum(), (wide, scale, shift))
        coefficients, *scales = settle_back(self.parts(sums_of(grad, z), rows), count, weight, found)
        right = right_z.unflatten(1, (self.replicas, 16)).permute(1, 0, 3, 4, 2)
        self.close(blend(grad, z, coefficients, relu=False), right)
        for a, b in zip(scales, right_scales, strict=True):
            close(a.flatten(), b)

    def parts(self, sums, rows):
        """Each row has another part of the sums."""
        part = torch.rand(rows, 1, 1, dtype=torch.float64)
        return (sums[:, None] * (part / part.sum()).to(self.device)).float()

    def pooling(self, size, bad=None):
        """Of equal pixels the first has the gradient, and where all are 0, ReLU lets none through.

        In the second replica the pixel at that place of each window is not a number.
        """
        x = self.images(*size, 32).round()
        if bad is not None:
            x[1, :, bad // 2 :: 2, bad % 2 :: 2] = torch.nan
        x, seen = x.relu(), x.double().requires_grad_()
        wide = seen.relu().flatten(0, 1).permute(0, 3, 1, 2)
        right = F.max_pool2d(wide, 2).permute(0, 2, 3, 1).unflatten(0, x.shape[:2])
        close(pool(x), right, 0)
        grad = self.some(*right.shape)
        mine, sums = unpool(grad, x)
        close(mine, torch.autograd.grad((right * grad).sum(), seen)[0], 0)
        close(sums.sum(1), sums_of(mine)[:, 0])

    def mean(self):
        """The gradient of the mean over pixels."""
        gate, beside, grad = self.images(4, 5, 64), self.images(4, 5, 64), self.images(64)
        gate[1, 2, 3, 4, 5] = torch.nan
        mine, sums = spread(grad, gate, beside)
        self.close(mine, torch.where(gate <= 0, 0, grad.double()[:, :, None, None] / 20))
        close(sums.sum(1), sums_of(mine, beside))


BESIDES = [
    ("before_it_is_written", (SIZES[1],)),
    ("shortcut", (SIZES[1],)),
    ("normalisation", (3,)),
    ("pooling", (SIZES[1],)),
    ("pooling", (SIZES[0], 2)),
    ("mean", ()),
]
"""What there is besides convolutions, each once."""
