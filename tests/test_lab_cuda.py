"""On a GPU: stacks that are compiled and recorded are trained as on a CPU; skipped where there is none."""

import io

import pytest
import torch
from kernels import BESIDES, LAYERS, SIZES, Kernels
from twins import F32, F64, SHAPES, Twin, made_data, model_of, off, problem_of

from wagmf.lab import models, trunks
from wagmf.lab.batches import Augmentation, Batches
from wagmf.lab.engine import METRICS, Stack
from wagmf.lab.noise import Noise, bits
from wagmf.lab.spec import Arm

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning:torch"),
]

SEEDS = [3, 8]
ARMS = [Arm("wada", 0.001), Arm("amsgrad", 0.001), Arm("wada", 0.002)]


def trained(problem, arms, device="cuda", epochs=3):
    """Three epochs of three steps: three are taken one by one, the others by a graph, across two milestones."""
    stack = Stack(problem, model_of(problem), made_data(SHAPES[problem.model]), list(arms), SEEDS, device)
    for _ in range(epochs):
        stack.train()
    return stack


def settings(**changed):
    return {"milestones": (1, 2), "epochs": 3, **changed}


@pytest.fixture(autouse=True)
def fresh():
    """Every stack compiles its own functions; torch would stop after some of them."""
    torch._dynamo.reset()


@pytest.mark.parametrize("model", SHAPES)
def test_stacks_on_both_devices_are_one(model):
    """In float64: the compiled formulas, the graph, noise, augmentation and step sizes of later epochs."""
    problem = problem_of(model, **settings())
    mine, right = trained(problem, ARMS), trained(problem, ARMS, "cpu")
    assert mine._graph is not None
    for name, value in {**right.params, **right.buffers}.items():
        assert off({**mine.params, **mine.buffers}[name], value) < 1e-7, name
    for metric in METRICS:
        assert off(torch.stack(mine.curves[metric]), torch.stack(right.curves[metric])) < 1e-8, metric


@pytest.mark.parametrize("model", SHAPES)
def test_half_precision_learns_what_single_does(model):
    problem = problem_of(model, **settings(precision="auto", decay=None))
    half, single = (
        trained(problem, ARMS),
        trained(problem_of(model, **settings(precision="float32", decay=None)), ARMS, "cpu"),
    )
    assert half.problem.precision == "bfloat16"
    assert all(param.dtype == F32 for param in half.params.values())
    for metric in ("train_loss", "test_loss"):
        assert off(torch.stack(half.curves[metric]), torch.stack(single.curves[metric])) < 0.1, metric


OVERFLOWS = [("mlp", "float32"), ("cnn", "float32"), ("cnn", "bfloat16"), ("resnet20", "bfloat16")]


@pytest.mark.parametrize(("model", "precision"), OVERFLOWS)
def test_a_replica_that_overflows_leaves_the_others_alone(model, precision):
    problem = problem_of(model, **settings(precision=precision))
    mine = trained(problem, [ARMS[0], Arm("ogd", 1e30), ARMS[2]])
    right = trained(problem, [ARMS[0], Arm("ogd", 1e-3), ARMS[2]])
    assert mine.diverged.tolist() == [[0, 1, 0], [0, 1, 0]]
    assert not right.diverged.any()
    for name, param in mine.params.items():
        assert off(param[:, [0, 2]], right.params[name][:, [0, 2]]) < 1e-3, name
        assert param[:, [0, 2]].isfinite().all()
    for metric in METRICS:
        assert torch.stack(mine.curves[metric])[:, :, 1].isnan().all()
        assert torch.stack(mine.curves[metric])[:, :, [0, 2]].isfinite().all()


@pytest.mark.parametrize("model", ["cnn", "resnet20"])
def test_networks_in_half_precision_are_for_the_kernels(model):
    """Which the tests around this one are to reach."""
    assert trunks.fit(torch.zeros(1, 2, *SHAPES[model], dtype=torch.bfloat16, device="cuda"))
    assert not trunks.fit(torch.zeros(1, 2, *SHAPES[model], device="cuda"))


HALF = Kernels("cuda", torch.bfloat16, 2**-7)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("layer", LAYERS)
def test_convolutions_in_half_precision(layer, size):
    """Of numbers that are rounded already, beside those of float64."""
    torch.manual_seed(0)
    HALF.convolution(size, *layer)
    HALF._replace(replicas=4).convolution(size, *layer, shared=2)


@pytest.mark.parametrize(("what", "arguments"), BESIDES)
def test_what_lies_between_convolutions_in_half_precision(what, arguments):
    torch.manual_seed(0)
    getattr(HALF, what)(*arguments)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
@pytest.mark.parametrize("precision", ["float64", "bfloat16"])
def test_stacks_on_the_second_device_are_those_of_the_first(precision):
    problem = problem_of("cnn", **settings(precision=precision))
    first, second = trained(problem, ARMS), trained(problem, ARMS, "cuda:1")
    assert second._graph is not None
    for name, value in first.params.items():
        assert second.params[name].device == torch.device("cuda", 1)
        assert off(second.params[name], value) < 1e-2, name


def test_a_stack_goes_on_exactly():
    problem = problem_of("mlp", **settings(precision="float32"))
    arms, file = [*ARMS, Arm("torch.optim.AdamW", 0.01)], io.BytesIO()
    for chosen in (ARMS, arms):
        right, first = trained(problem, chosen), trained(problem, chosen, epochs=1)
        file.seek(0)
        torch.save(first.state_dict(), file)
        file.seek(0)
        resumed = trained(problem, chosen, epochs=0)
        resumed.load_state_dict(torch.load(file, weights_only=True, map_location="cuda"))
        resumed.train()
        resumed.train()
        for name, param in right.params.items():
            assert torch.equal(resumed.params[name], param), name
        for metric in METRICS:
            assert torch.equal(torch.stack(resumed.curves[metric]), torch.stack(right.curves[metric]))


def test_optimizers_of_others_are_trained_as_alone():
    problem = problem_of("mlp", **settings())
    arms = [Arm("torch.optim.AdamW", 0.01, (("weight_decay", 0.1),)), Arm("wada", 0.01)]
    stack = trained(problem, arms)
    assert stack._graph is None
    for s, seed in enumerate(SEEDS):
        for k, arm in enumerate(arms):
            twin = Twin(problem, model_of(problem), made_data(SHAPES["mlp"]), arm, seed).train().train().train()
            for name, value in twin.kept.items():
                assert off(stack.params[name][s, k], value) < 1e-9, name


def test_both_devices_draw_the_same():
    seeds, step = torch.tensor([0, 5, 2**31 - 1]), torch.tensor(10**6)
    assert torch.equal(bits(seeds.cuda(), step.cuda(), 1, 10_000).cpu(), bits(seeds, step, 1, 10_000))
    for dtype in (F32, F64, torch.bfloat16):
        masks = [Noise(seeds.to(on), step.to(on)).keep(2, (3, 50), 0.3, dtype).cpu() for on in ("cuda", "cpu")]
        assert torch.equal(*masks)


def test_both_devices_show_the_same():
    seen = []
    for device in ("cuda", "cpu"):
        batches = Batches(made_data((2, 5, 7)), SEEDS, 16, Augmentation(0.3, True), device)
        batches.begin(2)
        seen.append([each.cpu() for each in batches.take(torch.tensor(4, device=device))])
    assert torch.equal(seen[0][0], seen[1][0])
    assert torch.equal(seen[0][1], seen[1][1])


def test_layers_on_both_devices_are_one():
    """Not compiled: the branches that only a GPU takes."""
    random = torch.Generator().manual_seed(0)
    p = {
        "c.weight": torch.randn(2, 3, 5, 4, 3, 3, generator=random, dtype=F64),
        "c.bias": torch.randn(2, 3, 5, dtype=F64),
    }
    on_gpu = {name: value.cuda() for name, value in p.items()}
    x, h = torch.randn(2, 6, 4, 5, 7, dtype=F64), torch.randn(6, 24, 5, 7, dtype=F64)
    assert off(models._first_convolution(on_gpu, "c", x.cuda()), models._first_convolution(p, "c", x)) < 1e-12
    for stride in (1, 2):
        assert off(models._convolution(on_gpu, "c", h.cuda(), stride), models._convolution(p, "c", h, stride)) < 1e-12
    assert torch.equal(models._pool(h.cuda()).cpu(), models._pool(h))
