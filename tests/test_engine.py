"""Stacks: every replica is trained as it would be alone, whoever is trained beside it, and goes on where it stopped."""

import io
from collections import defaultdict
from contextlib import contextmanager
from functools import cache

import pytest
import torch
from forks import untraced
from twins import F32, F64, SHAPES, Twin, made_data, model_of, off, problem_of
from twins import one_thread as one_thread

from wagmf.lab import engine, models
from wagmf.lab.engine import METRICS, Stack
from wagmf.lab.spec import Arm
from wagmf.methods import PAPER_METHODS
from wagmf.torch import WAGMF

SEEDS = (3, 8)
MODELS = tuple(SHAPES)
ADAMW = Arm("torch.optim.AdamW", 0.01, (("betas", (0.8, 0.99)), ("weight_decay", 0.1)))
SGD = Arm("torch.optim.SGD", 0.02, (("momentum", 0.9),))

pytestmark = pytest.mark.usefixtures("one_thread")


@cache
def twin(problem, arm, seed):
    """Trained for two epochs, once for all tests."""
    return Twin(problem, model_of(problem), data_of(problem), arm, seed).train().train()


def data_of(problem):
    return made_data(SHAPES[problem.model], n=36 if problem.model in ("cnn", "resnet20") else 52)


def stack_of(problem, arms, seeds=SEEDS):
    return Stack(problem, model_of(problem), data_of(problem), list(arms), list(seeds))


def trained(problem, arms, seeds=SEEDS, epochs=2):
    stack = stack_of(problem, arms, seeds)
    for _ in range(epochs):
        stack.train()
    return stack


class Watched:
    """A stack that is trained for two epochs, and what its batches gave: losses and gradients of every step."""

    def __init__(self, problem, arms, seeds=SEEDS):
        self.stack, self.losses, self.grads = stack_of(problem, arms, seeds), [], []
        forward, step = self.stack._forward, self.stack.updates.step
        self.stack._forward = lambda: self.see(forward())
        self.stack.updates.step = lambda: self.keep(step)
        for _ in range(2):
            self.stack.train()

    def see(self, scores):
        self.losses.append(scores[0].detach().clone())
        return scores

    def keep(self, step):
        self.grads.append({name: grad.clone() for name, grad in self.stack.grads.items()})
        step()


def kept(stack, s, k):
    return {name: each[s, k] for name, each in {**stack.params, **stack.buffers}.items()}


def differences(watched, s, k, right):
    """How far a replica is from its twin: of each kind of thing that can be compared, each of them."""
    stack = watched.stack
    mine = kept(stack, s, k)
    assert mine.keys() == right.kept.keys()
    found = {"kept": [off(mine[name], value) for name, value in right.kept.items()]}
    found["losses"] = [off([loss[s, k] for loss in watched.losses], right.losses)]
    pairs = [(a[name][s, k], b[name]) for a, b in zip(watched.grads, right.grads, strict=True) for name in a]
    found["grads"] = [off(*pair) for pair in pairs]
    for metric in METRICS:
        found[metric] = [off(torch.stack(stack.curves[metric])[:, s, k], right.curves[metric])]
    return found


def compared(problem, arms, only=None):
    """All differences of the replicas of the arms, or of some of them, from their twins."""
    watched, found = Watched(problem, arms), defaultdict(list)
    for s, seed in enumerate(SEEDS):
        for k in range(len(arms)) if only is None else only:
            for name, values in differences(watched, s, k, twin(problem, arms[k], seed)).items():
                found[name] += values
    return found


def check_twins(problem, arms, only=None):
    worst = {name: max(values) for name, values in compared(problem, arms, only).items()}
    assert max(worst.values()) <= 1e-10, worst


def grid(model):
    """The six methods, those of one method together at first, then one by one: 18 arms, or 8 of a large model.

    AMSGrad's first steps are large, and at 0.01 enlarge in ResNet-20 what CPUs round differently, up to 2e-10.
    """
    if model in ("softmax", "mlp"):
        together = [Arm(method, lr) for method in PAPER_METHODS for lr in (0.01, 0.03)]
        return together + [Arm(method, 0.05) for method in PAPER_METHODS]
    return [Arm("wada", 0.03), *(Arm(method, 0.003) for method in PAPER_METHODS), Arm("wada", 0.02)]


# ------------------------------------------------------------------ twins


@pytest.mark.parametrize("model", MODELS)
def test_replicas_of_mixed_methods_are_trained_as_alone(model):
    """Augmentation, dropout, L2, decay and milestones included; parameters, averages, losses, gradients, curves."""
    check_twins(problem_of(model), grid(model))


@pytest.mark.parametrize(
    ("model", "method"),
    # The large model's mixed stack has all six: here one without and one with a maximum to keep.
    [(model, method) for model in ("softmax", "mlp", "cnn") for method in PAPER_METHODS]
    + [("resnet20", "wada"), ("resnet20", "amsgrad")],
)
def test_replicas_of_one_method_are_trained_as_alone(model, method):
    lrs = (0.01, 0.03, 0.05) if model in ("softmax", "mlp") else (0.003, 0.002, 0.004)
    only = None if model in ("softmax", "mlp") else [0]
    check_twins(problem_of(model), [Arm(method, lr) for lr in lrs], only)


@pytest.mark.parametrize("model", MODELS)
def test_in_single_precision_they_differ_by_rounding(model):
    """Losses by 1e-5, tensors by 1e-3; but rounding may switch a ReLU on or off, and move some tensors further."""
    lrs = (0.0001,) if model in ("cnn", "resnet20") else (0.01, 0.03)
    arms = [Arm(method, lr) for method in PAPER_METHODS for lr in lrs]
    found = compared(problem_of(model, precision="float32"), arms)
    for name in ("losses", "train_loss", "test_loss"):
        assert max(found[name]) < 1e-5, name
    for name in ("kept", "grads"):
        far = sum(value > 1e-3 for value in found[name]) / len(found[name])
        assert far <= (0.05 if model in ("cnn", "resnet20") else 0), (name, far)


@pytest.mark.parametrize(("model", "traced"), [("cnn", True), ("resnet20", False)])
def test_by_the_formulas_for_a_gpu_too(model, traced, monkeypatch):
    """And they can be traced as one graph, for the compiler that a GPU has."""
    monkeypatch.setattr(models, "_first_convolution", models._unfolded_convolution)
    monkeypatch.setattr(models, "_pool", models._pool_by_comparison)
    convolve = models._convolve

    def evened(p, name, h, groups, stride):
        weight = p[f"{name}.weight"].flatten(0, 2)
        h, weight = models._evened(h, weight, groups)
        return convolve({**p, f"{name}.weight": weight[None, None]}, name, h, groups, stride)

    def norm(self, p, b, name, h, noise):
        averages = (b[f"{name}.norm.running_{each}"].view(-1) for each in ("mean", "var"))
        return self._norm_by_sums(h, *averages, *(p[f"{name}.norm.{each}"].flatten() for each in ("weight", "bias")))

    monkeypatch.setattr(models, "_convolve", evened)
    problem, arms = problem_of(model), [Arm("wada", 0.01), Arm("adam", 0.01)]
    stack, plain_norm = stack_of(problem, arms), models.ResNet20._norm
    if traced:
        stack._forward = torch.compile(stack._batch_scores, backend="aot_eager", fullgraph=True, dynamic=False)
    evaluate = stack._evaluate

    def evaluated(part):  # which normalises by the running averages everywhere
        with monkeypatch.context() as usual:
            usual.setattr(models.ResNet20, "_norm", plain_norm)
            return evaluate(part)

    monkeypatch.setattr(models.ResNet20, "_norm", norm)
    stack._evaluate = evaluated
    with untraced():
        stack.train()
        stack.train()
    for s, seed in enumerate(SEEDS):
        for k, arm in enumerate(arms):
            right = twin(problem, arm, seed)
            for name, value in right.kept.items():
                assert off(kept(stack, s, k)[name], value) < 1e-8, name
            for metric in METRICS:
                assert off(torch.stack(stack.curves[metric])[:, s, k], right.curves[metric]) < 1e-10


@pytest.mark.parametrize("model", ["softmax", "mlp", "cnn"])
def test_without_any_extras_too(model):
    settings = {"shift": 0.0, "flip": False, "l2": 0.0, "decay": None, "milestones": ()}
    settings |= {"options": (("width", 12), ("dropout", 0.0))} if model == "mlp" else {}
    check_twins(problem_of(model, **settings), [Arm("adam", 0.01), Arm("wada", 0.01), Arm("adamnc", 0.01)])


def test_a_batch_may_be_as_large_as_the_data():
    problem = problem_of("mlp", batch=1000)
    stack = trained(problem, [Arm("wada", 0.01)])
    assert (stack.batches.batch, stack.batches.steps) == (52, 1)


@pytest.mark.parametrize(("model", "precision", "within"), [
    ("softmax", "float64", 1e-13), ("mlp", "float64", 1e-12), ("cnn", "float64", 1e-10), ("resnet20", "float64", 1e-10),
    ("softmax", "float32", 1e-5), ("mlp", "float32", 1e-5),
])  # fmt: skip
def test_a_stack_is_as_many_stacks_of_one(model, precision, within):
    problem = problem_of(model, precision=precision)
    arms = [Arm("wada", 0.01), Arm("amsgrad", 0.01), Arm("wada", 0.02)][: 2 if model == "resnet20" else 3]
    whole = trained(problem, arms)
    for s, seed in enumerate(SEEDS):
        for k, arm in enumerate(arms):
            alone = trained(problem, [arm], [seed])
            for name, value in kept(alone, 0, 0).items():
                assert off(kept(whole, s, k)[name], value) <= within, name
            for metric in METRICS:
                assert off(*(torch.stack(each.curves[metric])[:, i, j] for each, i, j in
                             ((whole, s, k), (alone, 0, 0)))) <= within  # fmt: skip


# ------------------------------------------------------------------ losses


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_the_clean_loss_is_that_of_the_training_set_after_the_epoch(model):
    arms = [Arm("wada", 0.01), Arm("adam", 0.01)]
    clean = trained(problem_of(model, loss="clean"), arms)
    running = trained(problem_of(model), arms)
    for s, seed in enumerate(SEEDS):
        for k, arm in enumerate(arms):
            right = twin(problem_of(model), arm, seed).curves
            assert off(torch.stack(clean.curves["train_loss"])[:, s, k], right["clean_loss"]) < 1e-10
            assert off(torch.stack(running.curves["train_loss"])[:, s, k], right["train_loss"]) < 1e-10
            assert off(right["clean_loss"], right["train_loss"]) > 1e-3
    for name, param in clean.params.items():  # what is recorded changes nothing
        assert torch.equal(param, running.params[name])
    for metric in ("test_loss", "test_accuracy"):
        assert torch.equal(torch.stack(clean.curves[metric]), torch.stack(running.curves[metric]))


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_an_evaluation_in_pieces_gives_the_same(model, monkeypatch):
    stack = trained(problem_of(model), [Arm("wada", 0.01), Arm("adam", 0.01)], epochs=1)
    whole = [stack._evaluate(part) for part in ("train", "test")]
    for size in (1, 7, 23):
        monkeypatch.setattr(engine, "_EVALUATED", size)
        for part, right in zip(("train", "test"), whole, strict=True):
            assert off(stack._evaluate(part), right) < 1e-13


def test_equal_logits_are_a_hit_only_for_the_first_class_where_they_are_rounded():
    logits = torch.tensor([[1.0, 1.0, 0.0], [0.0, 2.0, 2.0]]).T[None, None]  # two examples of three classes
    for right, hits in (([0, 1], [1, 1]), ([1, 2], [0, 0]), ([2, 0], [0, 0])):
        loss, hit = engine._scores(logits.bfloat16(), torch.tensor([right]))
        assert hit[0, 0].tolist() == hits
        assert loss.dtype == F32
    _, hit = engine._scores(logits, torch.tensor([[2, 0]]))
    assert hit[0, 0].tolist() == [0, 0]


@pytest.mark.parametrize("model", MODELS)
def test_half_precision_trains_on_a_cpu_too(model):
    arms, settings = [Arm("wada", 0.001), Arm("adam", 0.001)], {"decay": None, "milestones": ()}
    half = trained(problem_of(model, precision="bfloat16", **settings), arms, epochs=1)
    single = trained(problem_of(model, precision="float32", **settings), arms, epochs=1)
    assert all(param.dtype == F32 for param in half.params.values())
    for metric in ("train_loss", "test_loss"):  # 8 bits, averaged over a batch
        assert off(half.curves[metric][0], single.curves[metric][0]) < 0.03
    assert not torch.equal(half.curves["train_loss"][0], single.curves["train_loss"][0])


# ------------------------------------------------------------------ divergence


def check_neighbours(mine, right, k):
    """All replicas but those of arm k are the same to the bit."""
    others = [i for i in range(len(mine.arms)) if i != k]
    for name, param in {**mine.params, **mine.buffers}.items():
        assert torch.equal(param[:, others], {**right.params, **right.buffers}[name][:, others]), name
    for metric in METRICS:
        a, b = (torch.stack(each.curves[metric])[:, :, others] for each in (mine, right))
        assert torch.equal(a, b)
        assert a.isfinite().all()
    assert (mine.diverged[:, others] == 0).all()


@pytest.mark.parametrize(
    ("model", "method", "neighbours"),
    [("resnet20", "ogd", "of other methods"), ("resnet20", "momentum", "of the same")]
    + [
        (model, method, neighbours)
        for model in ("softmax", "mlp", "cnn")
        for method in ("ogd", "momentum")
        for neighbours in ("of other methods", "of the same")
    ],
)
def test_a_replica_that_overflows_leaves_the_others_alone(model, method, neighbours):
    problem = problem_of(model, precision="float32")
    mixed = neighbours == "of other methods"
    arms = [Arm("adam" if mixed else method, 1e-3), Arm(method, 1e30), Arm("wada" if mixed else method, 2e-3)]
    mine = trained(problem, arms)
    right = trained(problem, [arms[0], Arm(method, 1e-3), arms[2]])
    check_neighbours(mine, right, 1)
    assert (right.diverged == 0).all()
    assert (mine.diverged[:, 1] == 1).all()
    assert not all(param[:, 1].isfinite().all() for param in mine.params.values())
    for metric in METRICS:
        assert torch.stack(mine.curves[metric])[:, :, 1].isnan().all()


@pytest.mark.parametrize(("model", "lr"), [("softmax", 1e5), ("mlp", 100.0), ("cnn", 300.0)])
def test_a_replica_may_diverge_in_a_later_epoch(model, lr):
    """Its weights grow at every step: 10^19, whose square overflows, is passed after some epochs."""
    problem = problem_of(model, precision="float32", decay=None, milestones=())
    arms = [Arm("adam", 1e-3), Arm("ogd", lr), Arm("wada", 2e-3)]
    mine = trained(problem, arms, epochs=5)
    right = trained(problem, [arms[0], Arm("ogd", 1e-3), arms[2]], epochs=5)
    check_neighbours(mine, right, 1)
    for s in range(len(SEEDS)):
        epoch = int(mine.diverged[s, 1])
        assert 2 <= epoch < 5
        for metric in METRICS:
            curve = torch.stack(mine.curves[metric])[:, s, 1]
            assert curve[: epoch - 1].isfinite().all()
            assert curve[epoch - 1 :].isnan().all()


@pytest.mark.parametrize("loss", ["running", "clean"])
def test_the_last_step_of_an_epoch_may_be_the_one_that_diverges(loss):
    """The batch was still fine: it shows in what is evaluated after it."""
    problem = problem_of("softmax", precision="float32", batch=52, loss=loss, shift=0.0, flip=False)
    stack = trained(problem, [Arm("ogd", 1e38), Arm("ogd", 0.1)], epochs=1)
    assert (stack._sums[0] / 1).isfinite().all()
    assert stack.diverged.tolist() == [[1, 0], [1, 0]]
    for metric in METRICS:
        assert stack.curves[metric][0][:, 0].isnan().all()
        assert stack.curves[metric][0][:, 1].isfinite().all()


# ------------------------------------------------------------------ again, and on


def equal(mine, right):
    """Two stacks to the bit, not-a-numbers included."""
    for a, b in ((mine.params, right.params), (mine.buffers, right.buffers)):
        for name in a:
            torch.testing.assert_close(a[name], b[name], rtol=0, atol=0, equal_nan=True)
    for metric in METRICS:
        a, b = torch.stack(mine.curves[metric]), torch.stack(right.curves[metric])
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(mine.diverged, right.diverged)
    assert mine.epoch == right.epoch
    assert torch.equal(mine.step, right.step)


@pytest.mark.parametrize("model", MODELS)
def test_the_same_stack_again_is_the_same_to_the_bit(model):
    problem = problem_of(model, precision="float32")
    arms = [Arm("wada", 0.01), Arm("ogd", 1e30), Arm("amsgrad", 0.01), ADAMW]
    equal(trained(problem, arms), trained(problem, arms))


def saved(stack):
    file = io.BytesIO()
    torch.save(stack.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


KINDS = {
    **{method: [Arm(method, lr) for lr in (0.01, 0.03, 0.05)] for method in PAPER_METHODS},
    "mixed": [Arm("wada", 0.01), Arm("momentum", 0.01), Arm("amsgrad", 0.01, (("debias", True),)), Arm("wada", 0.02)],
    "AdamW": [ADAMW, Arm(ADAMW.method, 0.02, ADAMW.options)],
    "SGD": [SGD],
    "ours and theirs": [Arm("adam", 0.01), ADAMW, SGD, Arm("adam", 0.02)],
    "one that diverges": [Arm("wada", 0.01), Arm("ogd", 1e30)],
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_stack_goes_on_exactly_after_any_epoch(kind):
    problem = problem_of("mlp", precision="float32", milestones=(1, 2))
    right = trained(problem, KINDS[kind], epochs=4)
    stack = stack_of(problem, KINDS[kind])
    for _ in range(4):
        resumed = stack_of(problem, KINDS[kind])
        resumed.load_state_dict(saved(stack))
        assert resumed.seconds == stack.seconds
        stack = resumed
        stack.train()
    equal(stack, right)


@pytest.mark.parametrize("model", ["cnn", "resnet20"])
def test_running_averages_go_on_too(model):
    problem = problem_of(model, precision="float32")
    arms = [Arm("wada", 0.001), Arm("adam", 0.001)]
    first = trained(problem, arms, epochs=1)
    resumed = stack_of(problem, arms)
    resumed.load_state_dict(saved(first))
    resumed.train()
    equal(resumed, trained(problem, arms))


def test_a_state_that_was_loaded_is_not_shared():
    problem = problem_of("softmax")
    first, second = trained(problem, KINDS["wada"], epochs=1), stack_of(problem, KINDS["wada"])
    second.load_state_dict(first.state_dict())
    second.train()
    assert (first.epoch, len(first.curves["test_loss"]), len(first.seconds)) == (1, 1, 1)
    equal(first, trained(problem, KINDS["wada"], epochs=1))
    equal(second, trained(problem, KINDS["wada"]))


# ------------------------------------------------------------------ pairs


@pytest.mark.parametrize("model", MODELS)
def test_arms_of_a_seed_are_paired_and_seeds_differ(model):
    """The same arm twice, apart from each other, and as one of the whole: first weights, order, noise are shared."""
    problem = problem_of(model, precision="float32")
    arms = [Arm("wada", 0.01), Arm("adam", 0.01), Arm("wada", 0.01)]
    stack = stack_of(problem, arms)
    first = {name: param.detach().clone() for name, param in stack.params.items()}
    for param in first.values():
        assert torch.equal(param[:, 0], param[:, 1])
    assert not any(torch.equal(p[0], p[1]) for name, p in first.items() if p.ndim > 3)
    stack.train()
    for param in {**stack.params, **stack.buffers}.values():
        assert torch.equal(param[:, 0], param[:, 2])
        assert not torch.equal(param[:, 0], param[:, 1])
        assert not torch.equal(param[0], param[1])
    for metric in ("train_loss", "test_loss"):
        curve = stack.curves[metric][0]
        assert off(curve[:, 0], curve[:, 2]) < 1e-6  # sums of many are rounded as they lie in memory
        assert (curve[0] != curve[1]).all()


def test_other_seeds_beside_it_change_nothing():
    problem = problem_of("mlp")
    among, alone = trained(problem, KINDS["wada"], (5, 3, 9)), trained(problem, KINDS["wada"], (3,))
    for name, param in alone.params.items():
        assert off(among.params[name][1], param[0]) < 1e-12


# ------------------------------------------------------------------ step sizes and optimizers


@pytest.mark.parametrize("model", ["softmax", "mlp"])
def test_optimizers_of_others_are_trained_as_alone_and_beside_ours(model):
    """With milestones and with decay, which they do not have themselves."""
    arms = [ADAMW, Arm(ADAMW.method, 0.03, ADAMW.options), Arm("wada", 0.01), SGD, Arm("wada", 0.03)]
    check_twins(problem_of(model), arms)
    check_twins(problem_of(model, decay=None), [ADAMW, Arm(ADAMW.method, 0.02, ADAMW.options), SGD])


def test_our_own_optimizers_by_their_dotted_names_are_the_methods():
    problem = problem_of("mlp", decay=None, eps=1e-7)
    check_twins(problem, [Arm("wagmf.torch.WADA", 0.01), Arm("wagmf.torch.WADA", 0.02), Arm("wada", 0.01)])
    stack = trained(problem, [Arm("wagmf.torch.WADA", 0.01), Arm("wada", 0.01)])
    for param in stack.params.values():
        assert off(param[:, 0], param[:, 1]) < 1e-12


def test_a_decay_that_an_arm_names_goes_before_the_problem_s():
    stack = stack_of(problem_of("softmax", decay=0.5), [Arm("wada", 0.01), Arm("wada", 0.01, (("decay", 1.0),))])
    assert [optimizer.param_groups[0]["rule"].decay for optimizer in stack.updates._all] == [0.5, 1.0]
    own = stack_of(problem_of("softmax", decay=None), [Arm("adagrad", 0.01), Arm("wada", 0.01)])
    assert [optimizer.param_groups[0]["rule"].decay for optimizer in own.updates._all] == [0.5, 0.0]


def test_milestones_change_the_step_sizes_that_arms_name():
    problem = problem_of("softmax", milestones=(1, 3), factor=0.5, epochs=4)
    stack, seen = stack_of(problem, [Arm("wada", 0.1), Arm("wada", 0.2), SGD, Arm("ogd", 0.4)]), []
    for _ in range(4):
        stack.train()
        ours, other, theirs, *_ = (optimizer.param_groups[0]["lr"] for optimizer in stack.updates._all)
        seen.append((ours.tolist(), theirs * stack.updates._taken**0.5, other.tolist()))
    for (ours, theirs, other), factor in zip(seen, (1, 0.5, 0.5, 0.25), strict=True):
        assert ours == [0.1 * factor, 0.2 * factor]
        assert theirs == pytest.approx(0.02 * factor, rel=1e-12)
        assert other == [0.4 * factor]


def test_one_optimizer_for_each_run_of_equal_methods():
    """Options tell methods apart, and arms of one method that lie apart have one each."""
    arms = [Arm("wada", 0.1), Arm("wada", 0.2), Arm("wada", 0.1, (("beta1", 0.5),)), Arm("adam", 0.1), Arm("wada", 0.3)]
    stack = stack_of(problem_of("softmax"), arms)
    assert list(stack.updates._ours) == [(0, 2), (2, 3), (3, 4), (4, 5)]
    assert all(isinstance(optimizer, WAGMF) for optimizer in stack.updates._all)
    assert stack.updates.recordable
    assert not stack_of(problem_of("softmax"), [Arm("wada", 0.1), SGD]).updates.recordable


def test_what_a_stack_says_of_itself():
    problem = problem_of("softmax", precision="auto")
    stack = stack_of(problem, [Arm("wada", 0.1)])
    assert (len(stack), stack.epoch, stack.step_ms, stack.problem.precision) == (2, 0, 0.0, "float32")
    stack.train()
    stack.seconds = [1.0, 0.3, 0.6]  # the median, for 3 steps of 2 replicas
    assert stack.step_ms == pytest.approx(100.0)
    assert int(stack.step) == 3
    assert all(curves[0].dtype == F64 for curves in stack.curves.values())


class GlobalNorm(torch.optim.SGD):
    """Looks at all of its parameters together, and puts new tensors into their place."""

    def step(self, closure=None):
        params = [param for group in self.param_groups for param in group["params"]]
        norm = torch.stack([param.grad.norm() for param in params]).norm()
        for group in self.param_groups:
            for param in group["params"]:
                param.data = param.data - group["lr"] * param.grad / (1 + norm)


def test_an_optimizer_that_looks_at_all_its_parameters_sees_one_replica(monkeypatch):
    monkeypatch.setattr(torch.optim, "GlobalNorm", GlobalNorm, raising=False)
    arms = [Arm("torch.optim.GlobalNorm", 0.1), Arm("torch.optim.GlobalNorm", 1e30)]
    problem = problem_of("softmax", epochs=2)
    together, alone = stack_of(problem, arms), stack_of(problem, arms[:1])
    for stack in (together, alone):
        stack.train()
        stack.train()
    for name, param in alone.params.items():
        assert off(together.params[name][:, :1], param) < 1e-12, name
        assert not torch.equal(param[0], param[1])
        assert not torch.equal(param[0, 0], torch.from_numpy(models.initial(alone.model, alone.seeds[0])[name]))


@pytest.mark.parametrize(("device", "wanted"), [("cpu", []), ("cuda:1", [torch.device("cuda", 1)])])
def test_an_epoch_is_trained_on_the_device_that_was_named(device, wanted, monkeypatch):
    """There kernels are launched and graphs are recorded, and not on the first GPU."""
    stack, current, seen = stack_of(problem_of("softmax"), [Arm("wada", 0.01)]), [], []

    @contextmanager
    def on(device):
        current.append(device)
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "device", on)
    monkeypatch.setattr(stack, "device", torch.device(device))
    monkeypatch.setattr(stack, "_wait", lambda: None)
    for name in ("_advance", "_record"):
        monkeypatch.setattr(stack, name, lambda: seen.append(list(current)))
    stack.train()
    assert seen == [wanted] * (stack.batches.steps + 1)
    assert current == []
