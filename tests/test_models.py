"""The zoo: stacked layers compute what torch's own compute, also by the formulas for a GPU, which run anywhere."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from twins import F32, F64, OPTIONS, SHAPES, off
from twins import one_thread as one_thread

from wagmf.arguments import Refused
from wagmf.lab import models
from wagmf.lab.models import CNN, MLP, MODELS, Model, ResNet20, Softmax, initial, zoo
from wagmf.lab.noise import Noise
from wagmf.lab.plain import Block, plain

pytestmark = pytest.mark.usefixtures("one_thread")


def model_of(name, classes=4):
    return zoo(name, SHAPES[name], classes, **dict(OPTIONS.get(name, ())))


def drawn(*shape, seed=0, dtype=F64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64).to(dtype)


def replicas(model, S, K):
    """Parameters and averages that differ from replica to replica."""
    p = {name: 0.3 * drawn(S, K, *shape, seed=i) for i, (name, shape) in enumerate(model.shapes.items())}
    b = {name: drawn(S, K, *shape, seed=99).abs() + 0.5 for name, (shape, _) in model.buffers.items()}
    return p, b


# ------------------------------------------------------------------ what replicas have


@pytest.mark.parametrize("name", MODELS)
def test_a_replica_has_what_its_twin_has(name):
    model = model_of(name)
    net = plain(model)
    assert {key: tuple(param.shape) for key, param in net.named_parameters()} == model.shapes
    kept = {key: tuple(value.shape) for key, value in net.named_buffers() if "num_batches" not in key}
    assert kept == {key: shape for key, (shape, _) in model.buffers.items()}
    for key, value in net.named_buffers():
        if "num_batches" not in key:
            assert torch.all(value == model.buffers[key][1])


def test_the_sizes_of_the_paper():
    def size(model):
        return sum(math.prod(shape) for shape in model.shapes.values())

    assert size(Softmax((784,), 10)) == 7850
    assert size(MLP((784,), 10)) == 784 * 512 + 512 + 512 * 512 + 512 + 5130
    assert size(CNN((3, 32, 32), 10)) == 3 * 288 + 32 + 32 * 288 + 32 + 32 * 576 + 64 + 64 * 576 + 64 + 40_970
    assert size(ResNet20((3, 32, 32), 10)) == 269_722
    assert (MLP((784,), 10).dropout, ResNet20((3, 32, 32), 10).eps, ResNet20((3, 32, 32), 10).momentum) == (
        0.5,
        1e-3,
        0.99,
    )


@pytest.mark.parametrize("name", MODELS)
def test_first_weights_are_glorot_s_and_the_seed_s_own(name):
    model = model_of(name)
    first, again, other = initial(model, 5), initial(model, 5), initial(model, 6)
    for key, value in first.items():
        np.testing.assert_array_equal(value, again[key])
        if value.ndim > 1:
            limit = np.sqrt(6 / (np.prod(value.shape[2:]) * sum(value.shape[:2])))
            assert np.abs(value).max() < limit
            assert np.abs(value).max() > 0.8 * limit
            assert abs(value.mean()) < 5 * limit / (3 * value.size) ** 0.5
            assert not np.array_equal(value, other[key])
        else:
            assert np.all(value == (1 if key.endswith("norm.weight") else 0))
    weights = [value.ravel()[:20].tolist() for value in first.values() if value.ndim > 1]
    assert len(set(map(tuple, weights))) == len(weights)  # layers of one shape differ, too
    params, buffers = model.first(5)
    assert all(np.array_equal(params[key].numpy(), first[key]) for key in first)
    assert {key: value.unique().tolist() for key, value in buffers.items()} == {
        key: [fill] for key, (_, fill) in model.buffers.items()
    }


def test_keras_would_draw_within_the_same_limits():
    """Glorot: √(6/(fan in + fan out)), where a convolution's fans count its pixels."""
    weights = initial(CNN((3, 32, 32), 10), 0)
    for key, fans in (("conv1.weight", 27 + 288), ("conv3.weight", 288 + 576), ("head.weight", 4096 + 10)):
        limit = math.sqrt(6 / fans)
        assert 0.98 * limit < np.abs(weights[key]).max() <= limit


# ------------------------------------------------------------------ what they compute


@pytest.mark.parametrize("training", [False, True], ids=["evaluated", "trained"])
@pytest.mark.parametrize("name", MODELS)
def test_logits_are_the_twin_s(name, training):
    model, (S, K) = model_of(name), (2, 3)
    p, b = replicas(model, S, K)
    x, step = drawn(S, 6, *model.inputs, seed=7), torch.tensor(4)
    before = {key: value.clone() for key, value in b.items()}
    seeds = torch.tensor([11, 12])
    logits = model.logits(p, b, x, Noise(seeds, step) if training else None)
    assert logits.shape == (S, K, 4, 6)
    for s in range(S):
        for k in range(K):
            net = plain(model).double().train(training)
            mine = {key: value[s, k] for key, value in {**p, **before}.items()}
            net.load_state_dict(mine, strict=False)
            for number in (1, 2):
                if hasattr(net, f"dropout{number}"):
                    mask = Noise(seeds[s : s + 1], step).keep(number, (1, 12, 6), 0.4, F64)[0, 0].T
                    setattr(net, f"dropout{number}", Times(mask) if training else nn.Identity())
            assert off(logits[s, k].T, net(x[s])) < 1e-12
            for key, value in net.named_buffers():
                if key in b:
                    assert off(b[key][s, k], value) < 1e-13
                    assert torch.equal(b[key], before[key]) == (not training)


class Times(nn.Module):
    def __init__(self, mask):
        super().__init__()
        self.mask = mask

    def forward(self, h):
        return h * self.mask


def test_without_dropout_training_and_evaluation_are_one():
    model = MLP((6,), 3, width=5, dropout=0.0)
    p, b = replicas(model, 1, 2)
    x = drawn(1, 4, 6)
    trained = model.logits(p, b, x, Noise(torch.tensor([0]), torch.tensor(0)))
    assert torch.equal(trained, model.logits(p, b, x, None))


@pytest.mark.parametrize("name", MODELS)
def test_stacks_are_sized_by_what_examples_leave_behind(name):
    """About as many numbers as the layers of the twin put out: within a factor of 4."""
    model, sizes = model_of(name), []
    net = plain(model)
    for layer in net.modules():
        if not list(layer.children()) and not isinstance(layer, nn.Flatten):
            layer.register_forward_hook(lambda _, __, out: sizes.append(out.numel()))
    net(torch.randn(2, *model.inputs))
    assert 0.25 < model.activations / (sum(sizes) / 2) < 4


# ------------------------------------------------------------------ formulas for a GPU


def gradients(output, inputs):
    """Of a sum in which every number counts differently."""
    return torch.autograd.grad(
        (output * torch.linspace(-1, 2, output.numel(), dtype=output.dtype).view_as(output)).sum(), inputs
    )


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [F64, F32])
def test_the_first_convolution_as_one_product(dtype, bias):
    S, K, out, channels = 3, 2, 5, 2
    p = {"c.weight": drawn(S, K, out, channels, 3, 3, seed=1, dtype=dtype).requires_grad_()}
    p |= {"c.bias": drawn(S, K, out, seed=2, dtype=dtype).requires_grad_()} if bias else {}
    x = drawn(S, 4, channels, 5, 6, seed=3, dtype=dtype)
    grouped, product = models._first_convolution(p, "c", x), models._unfolded_convolution(p, "c", x)
    within = 1e-13 if dtype == F64 else 1e-5
    assert product.shape == (4, S * K * out, 5, 6)
    assert off(product, grouped) < within
    for one, other in zip(*(gradients(each, list(p.values())) for each in (product, grouped)), strict=True):
        assert off(one, other) < within


def test_in_the_product_a_replica_that_overflowed_leaves_the_others_alone():
    p = {"c.weight": drawn(3, 2, 5, 2, 3, 3)}
    x = drawn(3, 4, 2, 5, 6, seed=3)
    right = models._unfolded_convolution(p, "c", x).view(4, 3, 2, 5, 5, 6)
    p["c.weight"][1, 0] = math.nan
    p["c.weight"].requires_grad_()
    spoilt = models._unfolded_convolution(p, "c", x)
    (grad,) = gradients(spoilt.nan_to_num(1.0), [p["c.weight"]])
    spoilt = spoilt.view(4, 3, 2, 5, 5, 6)
    assert spoilt[:, 1, 0].isnan().all()
    for s, k in ((0, 0), (0, 1), (1, 1), (2, 0), (2, 1)):
        assert torch.equal(spoilt[:, s, k], right[:, s, k])
        assert grad[s, k].isfinite().all()


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("width", "out"), [(3, 5), (4, 4), (5, 3)])
def test_channels_of_zeros_change_nothing(width, out, stride):
    groups = 4
    h, weight = (
        drawn(2, groups * width, 5, 6).requires_grad_(),
        drawn(groups * out, width, 3, 3, seed=1).requires_grad_(),
    )
    even_h, even_weight = models._evened(h, weight, groups)
    assert even_weight.shape[1] == max(width, out)
    assert even_h.shape[1] == groups * max(width, out)
    mine = F.conv2d(even_h, even_weight, None, stride, 1, 1, groups)
    right = F.conv2d(h, weight, None, stride, 1, 1, groups)
    assert off(mine, right) < 1e-13
    for one, other in zip(*(gradients(each, [h, weight]) for each in (mine, right)), strict=True):
        assert off(one, other) < 1e-13


def test_widened_images_have_zeros_after_each_replica():
    h = drawn(2, 6, 3, 4)
    wide = models._widened(h, 3, 2).view(2, 3, 4, 3, 4)
    assert torch.equal(wide[:, :, :2].flatten(1, 2), h)
    assert torch.all(wide[:, :, 2:] == 0)
    assert models._widened(h, 3, 2).is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("size", [(4, 6), (5, 7), (2, 2), (3, 2)])
def test_pooling_by_comparison_takes_the_first_of_equals(size):
    """Values of three kinds only, so that most squares have ties; the gradient goes where max_pool2d's goes."""
    h = torch.randint(0, 3, (5, 6, *size), generator=torch.Generator().manual_seed(0)).double().requires_grad_()
    mine, right = models._pool_by_comparison(h), F.max_pool2d(h, 2)
    assert torch.equal(mine, right)
    assert torch.equal(*(gradients(each, [h])[0] for each in (mine, right)))
    assert torch.equal(models._pool(h), right)


def test_pooling_keeps_what_is_not_a_number():
    for place in range(4):
        h = drawn(1, 1, 2, 2)
        h.view(-1)[place] = math.nan
        assert models._pool_by_comparison(h).isnan().all()
        h.view(-1)[place] = math.inf
        assert models._pool_by_comparison(h).isinf().all()


@pytest.mark.parametrize(("dtype", "within"), [(F64, 1e-11), (F32, 1e-4)])
def test_batch_normalisation_by_sums(dtype, within):
    model = ResNet20((3, 8, 8), 10)
    h = (3 * drawn(8, 6, 5, 4, dtype=dtype) + drawn(1, 6, 1, 1, seed=1, dtype=dtype)).requires_grad_()
    weight, bias = (drawn(6, seed=seed, dtype=dtype).requires_grad_() for seed in (2, 3))
    mine, right = ([drawn(6, seed=4, dtype=dtype), drawn(6, seed=5, dtype=dtype).abs()] for _ in range(2))
    by_sums = model._norm_by_sums(h, *mine, weight, bias)
    by_torch = F.batch_norm(h, *right, weight, bias, True, 0.01, 1e-3)
    assert by_sums.dtype == dtype
    assert off(by_sums, by_torch) < within
    for one, other in zip(mine, right, strict=True):
        assert off(one, other) < within
        assert not one.requires_grad
    for one, other in zip(*(gradients(each, [h, weight, bias]) for each in (by_sums, by_torch)), strict=True):
        assert off(one, other) < within


def test_batch_normalisation_by_sums_of_a_constant_and_in_half_precision():
    model, mean, var = ResNet20((3, 8, 8), 10), torch.zeros(2), torch.ones(2)
    flat = model._norm_by_sums(torch.full((4, 2, 3, 3), 1000.1), mean, var, torch.ones(2), torch.zeros(2))
    assert flat.isfinite().all()
    half = drawn(8, 2, 5, 5, dtype=torch.bfloat16)
    normal = model._norm_by_sums(half, mean, var, torch.ones(2), torch.zeros(2))
    assert normal.dtype == torch.bfloat16
    assert mean.dtype == F32
    assert off(normal, F.batch_norm(half.double(), None, None, training=True, eps=1e-3)) < 0.02


# ------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: zoo("mpl", (4,), 2), ["model", "'mpl'", "did you mean 'mlp'"]),
        (lambda: zoo("resnet", (3, 8, 8), 2), ["model", "'resnet'", "resnet20"]),
        (lambda: zoo("softmax", (4,), 2, width=3), ["model option", "'width'", "softmax has no options"]),
        (lambda: zoo("mlp", (4,), 2, depth=3), ["model option", "'depth'", "width, dropout"]),
        (lambda: zoo("mlp", (4,), 2, width=0), ["width", "0"]),
        (lambda: zoo("mlp", (4,), 2, width=2.5), ["width", "2.5"]),
        (lambda: zoo("mlp", (4,), 2, width=True), ["width", "True"]),
        (lambda: zoo("mlp", (4,), 2, width=10**9), ["width", "1000000000"]),
        (lambda: zoo("mlp", (4,), 2, dropout=1.0), ["dropout", "1.0"]),
        (lambda: zoo("mlp", (4,), 2, dropout=-0.1), ["dropout", "-0.1"]),
        (lambda: zoo("mlp", (4,), 2, dropout="half"), ["dropout", "'half'"]),
        (lambda: zoo("cnn", (64,), 2), ["inputs", "(64,)", "images"]),
        (lambda: zoo("cnn", (3, 3, 8), 2), ["inputs", "(3, 3, 8)", "4 pixels"]),
        (lambda: zoo("resnet20", (64,), 2), ["inputs", "(64,)"]),
    ],
)
def test_bad_values_are_refused_by_name_and_value(make, named):
    with pytest.raises(Refused) as refusal:
        make()
    assert all(word in str(refusal.value) for word in named), refusal.value


def test_whole_numbers_may_be_written_with_a_point():
    assert zoo("mlp", (4,), 2, width=8.0, dropout=0) == MLP((4,), 2, 8, 0.0)
    assert isinstance(zoo("mlp", (4,), 2, width=8.0).shapes["head.weight"][1], int)


def test_the_base_is_no_model():
    bare = Model((4,), 2)
    assert (bare.features, bare.buffers, bare.way) == (4, {}, "stacked")
    with pytest.raises(NotImplementedError):
        _ = bare.shapes
    with pytest.raises(NotImplementedError):
        _ = bare.activations
    with pytest.raises(NotImplementedError):
        bare.logits({}, {}, torch.zeros(1), None)


def test_a_block_adds_its_input():
    block = Block(ResNet20((3, 8, 8), 10), 4, 4).double()
    x = drawn(2, 4, 6, 6)
    for layer in block.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.zeros_(layer.weight)
    assert torch.equal(block(x), F.relu(x))
