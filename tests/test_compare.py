"""Comparisons of anybody's modules: stacked where that gives the same, told where not, and refused by name."""

import random
import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from sweeps import outcome, ready, vectors
from torch import nn
from torch.nn import functional as F
from twins import off
from twins import one_thread as one_thread

from wagmf.arguments import Refused
from wagmf.lab import modules as room
from wagmf.lab import planning, stats
from wagmf.lab.batches import order
from wagmf.lab.compare import Comparison, compare, prepare_comparison
from wagmf.lab.data import load
from wagmf.lab.engine import METRICS, Stack
from wagmf.lab.modules import factory_of, module, source_of
from wagmf.lab.noise import Noise, key
from wagmf.lab.records import Records
from wagmf.lab.sources import first_line
from wagmf.lab.spec import Arm, Problem
from wagmf.torch import WAGMF

pytestmark = pytest.mark.usefixtures("one_thread")

QUICK = {"methods": ["adam", "wada"], "lrs": [0.01, 0.1], "seeds": 2, "epochs": 2, "batch": 8}
STACKED = "stacked through torch.func, 8 replicas"


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


def dropping():
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))


def normalised():
    # No bias: its gradient would be zero but for rounding, which Adam would make large.
    return nn.Sequential(nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head, self.drop = nn.LSTM(1, 5, batch_first=True), nn.Linear(5, 3), nn.Dropout(0.3)

    def forward(self, x):
        return self.head(self.drop(self.cell(x[:, :, None])[0][:, -1]))


class Fickle(nn.Linear):
    """Looks at its numbers to decide what to do."""

    def __init__(self):
        super().__init__(4, 3)

    def forward(self, x):
        out = super().forward(x)
        return out * 2 if out.sum().item() > 0 else out


class Partly(nn.Module):
    """A part that is frozen, a part that nothing depends on, one weight in two places, and a constant."""

    def __init__(self):
        super().__init__()
        self.first, self.frozen, self.unused = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(2, 2)
        self.again, self.head = nn.Linear(4, 4), nn.Linear(4, 3)
        self.again.weight = self.first.weight
        self.frozen.requires_grad_(False)
        self.register_buffer("scale", torch.tensor(1.5), persistent=False)

    def forward(self, x):
        return self.head(self.again(F.relu(self.frozen(self.first(x) * self.scale))))


class Alone:
    """A module trained as anybody would: an ordinary loop."""

    def __init__(self, factory, problem, data, arm, seed, drawing=False):
        torch.manual_seed(seed)
        self.net = factory().to(getattr(torch, problem.precision))
        self.problem, self.seed, self.drawing, self.t, self.epoch = problem, seed, drawing, 0, 0
        params = [param for param in self.net.parameters() if param.requires_grad]
        made = arm.optimizer(params, lr=arm.lr, **dict(arm.options)) if arm.dotted else None
        self.optimizer = made or WAGMF(params, lr=arm.lr, rule=arm.rule, eps=problem.eps)
        normal, dtype = data.normalised(), getattr(torch, problem.precision)
        self.x, self.x_test = (torch.tensor(x, dtype=dtype) for x in (normal.x_train, normal.x_test))
        self.y, self.y_test = torch.tensor(normal.y_train), torch.tensor(normal.y_test)

    def train(self):
        self.epoch += 1
        self.net.train()
        places, batch, losses = order(self.seed, self.epoch, len(self.y)), self.problem.batch, []
        for i in range(len(self.y) // batch):
            chosen = places[i * batch : (i + 1) * batch]
            if self.drawing:
                high, low = key(self.seed, self.t, 0)
                torch.manual_seed((high << 31) ^ low)
            self.optimizer.zero_grad()
            loss = F.cross_entropy(self.net(self.x[chosen]), self.y[chosen])
            loss.backward()
            self.optimizer.step()
            losses.append(loss.item())
            self.t += 1
        self.net.eval()
        with torch.no_grad():
            logits = self.net(self.x_test)
        right = (logits.argmax(1) == self.y_test).double().mean().item()
        return np.mean(losses), F.cross_entropy(logits, self.y_test).item(), right


ARMS = (
    Arm("wada", 0.1),
    Arm("wada", 0.01),
    Arm("adam", 0.05),
    Arm("torch.optim.AdamW", 0.01, (("weight_decay", 0.1),)),
)


@pytest.mark.parametrize("factory", [mlp, normalised, dropping, Recurrent, Fickle, Partly])
def test_every_replica_is_trained_as_it_would_be_alone(factory):
    """Weights, running averages and curves, in float64, replica by replica."""
    data = load(vectors())
    problem = Problem("made", "mine", epochs=3, batch=8, precision="float64")
    model = module(factory, data.shape, data.classes)
    assert bool(model.reason) == (factory in (Recurrent, Fickle))
    stack = Stack(problem, model, data, list(ARMS), [3, 8])
    for _ in range(3):
        stack.train()
    for s, seed in enumerate((3, 8)):
        for k, arm in enumerate(ARMS):
            alone = Alone(factory, problem, data, arm, seed, factory in (dropping, Recurrent))
            curves = np.array([alone.train() for _ in range(3)])
            for metric, right in zip(("train_loss", "test_loss", "test_accuracy"), curves.T, strict=True):
                mine = torch.stack(stack.curves[metric])[:, s, k]
                assert off(mine, right) < 1e-9, (metric, seed, arm)
            kept = {**stack.params, **stack.buffers}
            right = dict(alone.net.named_parameters()) | dict(alone.net.named_buffers())
            assert set(kept) == set(right)
            for name, tensor in kept.items():
                assert off(tensor[s, k], right[name]) < 1e-8, (name, seed, arm)


def test_only_what_can_be_trained_is():
    data = load(vectors())
    model = module(Partly, data.shape, data.classes)
    assert set(model.shapes) == {"first.weight", "first.bias", "again.bias", "head.weight", "head.bias"}
    params, buffers = model.first(0)
    assert set(buffers) == {"frozen.weight", "frozen.bias", "unused.weight", "unused.bias", "scale"}
    assert set(params) == set(model.shapes)


def test_first_weights_depend_on_the_seed_alone():
    model = module(mlp, (4,), 3)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one, other, again = model.first(0)[0], model.first(1)[0], model.first(0)[0]
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(one[name], again[name]) and not torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("factory", [dropping, normalised, mlp])
def test_stacked_and_one_at_a_time_give_the_same(factory, monkeypatch):
    stacked = compare(factory, vectors(), **QUICK)
    assert stacked.ways == (STACKED,)
    monkeypatch.setattr(room, "_unlike", lambda *_: "because we say so")
    alone = compare(factory, vectors(), **QUICK)
    assert alone.ways == ("one at a time (because we say so)",)
    assert len(alone.records.runs) == 8
    for metric in METRICS:
        assert off(stacked.records.curves[metric], alone.records.curves[metric]) < 2e-5


def test_dropout_is_shared_by_the_arms_of_a_seed_and_new_each_step():
    for reason in ("", "to compare"):
        model = replace(module(dropping, (4,), 3), reason=reason)
        p, b = ({k: v.expand(2, 3, *v.shape) for k, v in part.items()} for part in model.first(0))
        x = torch.ones(2, 5, 4)

        def at(step, model=model, p=p, b=b, x=x):
            return model.logits(p, b, x, Noise(torch.tensor([1, 2]), torch.tensor(step)))

        assert torch.equal(at(0), at(0))
        assert torch.equal(at(0)[:, 0], at(0)[:, 2])
        assert not torch.equal(at(0), at(1))
        assert not torch.equal(at(0)[0], at(0)[1])


@pytest.mark.parametrize("factory", [mlp, normalised, dropping])
def test_half_precision_is_torchs_own(factory):
    """Weights stay in float32; what is computed is as it would be under autocast, and not as in float32."""
    exact, half = (
        compare(factory, vectors(), precision=precision, **QUICK).records.curves["train_loss"]
        for precision in ("float32", "bfloat16")
    )
    assert 1e-5 < off(half, exact) < 0.1
    model = module(factory, (4,), 3)
    p, b = ({name: value[None, None] for name, value in part.items()} for part in model.first(0))
    for noise in (None, Noise(torch.tensor([0]), torch.tensor(0))):
        x = torch.arange(20.0).view(1, 5, 4) / 8  # which bfloat16 has exactly
        rounded, right = (model.logits(p, b, each, noise) for each in (x.bfloat16(), x))
        assert 1e-5 < off(rounded, right) < 0.1


@pytest.mark.parametrize(
    ("factory", "reason"),
    [
        (Recurrent, "its code cannot be batched: Batching rule not implemented"),
        (Fickle, "its code cannot be batched: "),
        (lambda: Global(), "batched, it computes something else"),
    ],
)
def test_what_cannot_be_stacked_is_trained_one_at_a_time_and_says_so(factory, reason):
    result = compare(factory, vectors(), **{**QUICK, "epochs": 1})
    (way,) = result.ways
    assert way.startswith(f"one at a time ({reason}")
    assert len(way.splitlines()) == 1
    assert set(result.records.runs["way"]) == {way}


class Global(nn.Linear):
    """Notices that replicas are computed together, and does otherwise."""

    def __init__(self):
        super().__init__(4, 3)

    def forward(self, x):
        return super().forward(x) * (2 if torch._C._functorch.is_batchedtensor(self.weight) else 1)


# ---------------------------------------------------------------- what is refused


def broken():
    raise KeyError


class Evaluated(nn.Linear):
    def forward(self, x):
        if not self.training:
            raise RuntimeError("no evaluation\nof this")
        return super().forward(x)


@pytest.mark.parametrize(
    ("factory", "right"),
    [
        (nn.Flatten, "'Flatten' .it has no parameters to train"),
        (lambda: nn.Linear(4, 3).requires_grad_(False), "'Linear' .it has no parameters to train"),
        (lambda: nn.Linear(4, 5), r"model output: \(8, 5\) .it must be logits of shape \(8, 3\)"),
        (lambda: nn.LSTM(4, 3), "model output: 'tuple'"),
        (lambda: nn.Linear(7, 3), r"Linear .\(8, 4\) does not go through it: mat1 and mat2"),
        (lambda: nn.Embedding(4, 3), r"Embedding .\(8, 4\) does not go through it"),
        (lambda: None, "None .the factory must return a torch.nn.Module"),
        (lambda: nn.LazyLinear(3), "'LazyLinear' .its tensors have no shape"),
        (broken, "broken .it cannot be made: KeyError"),
        (lambda x: x, "it cannot be made: .*missing 1 required positional argument"),
        (partial(nn.Linear, 4), "partial .it cannot be made: "),
        (nn.Linear(4, 3), "'Linear' .give what makes it"),
        (partial(Evaluated, 4, 3), r"Evaluated .\(8, 4\) does not go through it: no evaluation.$"),
        (lambda: type("Cut", (nn.Linear,), {"forward": lambda self, x: x[:, :3]})(4, 3), "'Cut' .its logits do not"),
        (3, "3 .it must be a factory of modules"),
        ("mpl", "did you mean 'mlp'"),
        (":net", "':net'"),
        ("mine:", "'mine:'"),
        ("torch.nn:Nothing", "torch.nn:Nothing.*has no attribute 'Nothing'"),
        ("torch.nn:__doc__x.y", "it cannot be imported"),
        ("torch:__version__", "it must be a function without arguments, or a class"),
        ("..up:net", "it cannot be imported"),
    ],
)
def test_what_is_no_model_is_refused_by_name(factory, right, monkeypatch):
    monkeypatch.setattr(Stack, "train", None)
    with pytest.raises(Refused, match=right) as refused:
        compare(factory, vectors(), **QUICK)
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("asked", "right"),
    [
        ({"criterion": "loss"}, "Invalid criterion: 'loss'"),
        ({"lrs": 0.1}, "lrs of adam: 0.1"),
        ({"lrs": []}, "lrs of adam"),
        ({"lrs": "0.1"}, "lrs of adam: '0.1'"),
        ({"seeds": 0}, "seeds: 0"),
        ({"seeds": 1.5}, "seeds: 1.5"),
        ({"methods": "adam"}, "methods: 'adam'"),
        ({"methods": ["torch.optim.LBFGS"]}, "LBFGS.*closure"),
        ({"methods": {"torch.optim.SGD": {"momentun": 1}}}, "SGD.*momentun"),
        ({"methods": {"torch.optim.SGD": {"nesterov": True}}}, "SGD.nesterov=True.*Nesterov momentum requires"),
        ({"widht": 3}, "did you mean 'width'"),
        ({"width": 3}, "model option: 'width'"),
        ({"device": "tpu"}, "device"),
        ({"name": ""}, None),
    ],
)
def test_what_cannot_be_asked_for_is_refused_before_anything_is_trained(asked, right, monkeypatch):
    train = Stack.train
    monkeypatch.setattr(Stack, "train", None if right else train)
    if right is None:  # no name is the default one
        assert compare(mlp, vectors(), **QUICK, **asked).ranking["experiment"][0] == "mlp on data"
        return
    with pytest.raises(Refused, match=right):
        compare(mlp, vectors(), **{**QUICK, **asked})


# ---------------------------------------------------------------- modules of the working folder


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working folder that is not on the path yet; what is imported from it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    sys.modules.pop("mine_net", None)


NET = "from torch import nn\n\nW = 6\n\n\ndef net():\n    return nn.Sequential(nn.Linear(4, W), nn.Linear(W, 3))\n"


def test_a_factory_is_found_in_the_working_folder_and_known_by_its_code(here):
    file = here / "mine_net.py"
    known = []
    for text in (
        NET,
        "# the same\n" + NET,
        NET.replace("6", "7"),
        NET.replace("nn.Linear(4", "nn.ReLU(), nn.Linear(4"),
    ):
        file.write_text(text)
        sys.modules.pop("mine_net", None)
        prepared = prepare_comparison("mine_net:net", vectors(), **QUICK)
        assert prepared[0].experiment.name == "mine_net:net on data"
        known.append(frozenset(planning.addresses(prepared)))
    assert known[0] == known[1]
    assert known[0].isdisjoint(known[2] | known[3])
    assert known[2].isdisjoint(known[3])


OTHER = """
import torch
from torch import nn


def twice(x):
    return 2 * x


class Block(nn.Linear):
    def forward(self, x):
        return twice(super().forward(x))


class Mine(torch.optim.SGD):
    def step(self, closure=None):
        return super().step(closure)
"""


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("2 * x", "3 * x", False),
        ("twice(super()", "twice(1 + super()", False),
        ("step(closure)", "step()", False),
        ("\n\n\n", "\n\n\n# x\n", True),
    ],
)
def test_code_that_is_called_counts(here, old, new, same):
    """What a factory imports, what that calls, and an optimizer of one's own; but not comments."""
    (here / "mine_net.py").write_text("import mine_parts\n\n\ndef net():\n    return mine_parts.Block(4, 3)\n")
    known = []
    for text in (OTHER, OTHER.replace(old, new, 1)):
        (here / "mine_parts.py").write_text(text)
        for name in ("mine_net", "mine_parts"):
            sys.modules.pop(name, None)
        prepared = prepare_comparison("mine_net:net", vectors(), **{**QUICK, "methods": ["mine_parts.Mine"]})
        known.append(set(planning.addresses(prepared)))
    assert (known[0] == known[1]) == same
    assert same or known[0].isdisjoint(known[1])


def test_first_weights_from_elsewhere_count():
    weights = {"scale": 1.0}

    def net():
        made = nn.Linear(4, 3)
        nn.init.constant_(made.weight, weights["scale"])
        return made

    before = source_of(net)
    weights["scale"] = 2.0
    assert source_of(net) != before


def test_a_file_with_an_error_is_refused_by_name(here):
    (here / "mine_net.py").write_text("def net(:\n")
    with pytest.raises(Refused, match=r"mine_net:net.*it cannot be imported: invalid syntax"):
        factory_of("mine_net:net")
    (here / "mine_net.py").write_text("raise RuntimeError('not\\ntoday')\n")
    with pytest.raises(Refused, match=r"'mine_net:net' \(it cannot be imported: not\)$"):
        factory_of("mine_net:net")


def test_factories_that_make_different_modules_are_different():
    def sized(width):
        return lambda: nn.Sequential(nn.Linear(4, width), nn.Linear(width, 3))

    class Scaled(nn.Linear):  # what tells it apart does not show
        def __init__(self, scale=1.0):
            super().__init__(4, 3)
            self.scale = scale

        def forward(self, x):
            return super().forward(x) * self.scale

    def scaled(scale):
        return lambda: Scaled(scale)

    one, two = (lambda: Scaled(2.0)), (lambda: Scaled(3.0))

    def by_default(scale=4.0):
        return Scaled(scale)

    def by_another_default(scale=5.0):
        return Scaled(scale)

    makers = [sized(5), sized(6), scaled(1.0), scaled(2.0), one, two, by_default, by_another_default]
    makers += [partial(Scaled, 1.0), partial(Scaled, 2.0), partial(Scaled, scale=2.0), Scaled]
    known = [source_of(maker) for maker in makers]
    assert len(set(known)) == len(makers)
    again = [sized(5), sized(6), scaled(1.0), scaled(2.0)]
    assert [source_of(maker) for maker in again] == known[:4]


def test_a_factory_without_a_file_is_known_by_what_it_makes():
    names = {"nn": nn}
    exec("def one(): return nn.Linear(4, 3)\ndef two(): return nn.Linear(4, 3, bias=False)", names)
    assert source_of(names["one"]) != source_of(names["two"])
    assert source_of(names["one"]) == source_of(names["one"])
    assert len(source_of(partial(nn.Linear, 4, 3))) == 16


def test_a_closure_is_not_taken_for_another_in_the_records(tmp_path):
    losses = []
    for width in (3, 5):
        made = compare(lambda width=width: nn.Sequential(nn.Linear(4, width), nn.Linear(width, 3)), vectors(), **QUICK,
                       records=tmp_path / "runs.db")  # fmt: skip
        losses.append(made.records.curves["train_loss"].tolist())
    assert losses[0] != losses[1]
    assert len(outcome(tmp_path / "runs.db")) == 16


def test_an_error_that_says_nothing_is_called_by_its_kind():
    assert first_line(ValueError("\n a \nb")) == "a"
    assert first_line(ValueError("x" * 999)) == "x" * 300


# ---------------------------------------------------------------- comparisons


def test_compare_says_what_the_records_say(tmp_path):
    asked = {**QUICK, "methods": ["adam", "wada", "torch.optim.SGD"], "seeds": 3, "epochs": 4}
    result = compare("softmax", vectors(), **asked)
    curves = result.records.curves
    assert isinstance(result, Comparison)
    assert len(curves) == 3 * 2 * 3 * 4
    assert result.ways == ("stacked, 12 replicas", "stacked, 6 replicas")
    last = curves[curves["epoch"] == 4].groupby(["method", "lr"])["train_loss"].mean()
    rates = result.rates.set_index("method")["lr"]
    for method in ("adam", "wada", "torch.optim.SGD"):
        assert rates[method] == last[method].idxmin()
    ranking = result.ranking
    assert ranking["mean"].tolist() == pytest.approx(sorted(last[method].min() for method in rates.index))
    assert ranking["n"].tolist() == [3, 3, 3]
    assert len(result.significance) == 3
    assert set(result.significance["metric"]) == {"train_loss"}
    for name in ("adam", "wada", "torch.optim.SGD"):
        assert name in str(result)
    page = result.report(tmp_path / "report.html")
    assert page == tmp_path / "report.html"
    assert "torch.optim.SGD" in page.read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_compare_by_test_accuracy():
    asked = {**QUICK, "lrs": [1e-6, 0.3], "epochs": 3}
    result = compare("softmax", vectors(), criterion="test_accuracy", **asked)
    assert set(result.rates["lr"]) == {0.3}
    assert result.criterion == "test_accuracy"
    right = stats.ranking(result.records.curves, "test_accuracy", rates=result.rates)
    assert result.ranking.equals(right)
    assert set(result.significance["metric"]) == {"test_accuracy"}


def test_records_are_used_again(tmp_path, monkeypatch):
    path = tmp_path / "runs.db"
    first = compare(mlp, vectors(), records=path, **QUICK)
    monkeypatch.setattr(Stack, "train", None)
    again = compare(mlp, vectors(), records=str(path), **QUICK)
    assert again.records.curves.equals(first.records.curves)
    part = compare(mlp, vectors(), records=path, **{**QUICK, "lrs": [0.1]}, name="of this alone")
    assert len(part.records.runs) == 4
    assert list(part.records.experiments) == ["of this alone"]
    assert len(Records(path).runs()) == 8


def test_nothing_is_kept_where_no_records_are_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    compare("softmax", vectors(), **QUICK)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("data", ["dict", "dataset", "npz", "path"])
def test_data_of_every_kind(data, tmp_path):
    np.savez(tmp_path / "mine.npz", **vectors())
    kinds = {"dict": vectors(), "dataset": load(vectors()), "npz": str(tmp_path / "mine.npz")}
    kinds["path"] = tmp_path / "mine.npz"
    names = {"dict": "data", "dataset": "arrays", "npz": "mine", "path": "mine"}
    asked = {"methods": ["wada"], "lrs": np.array([0.1, 0.2]), "seeds": range(2, 4), "epochs": 1, "batch": 8}
    result = compare("softmax", kinds[data], **asked)
    assert list(result.records.experiments) == [f"softmax on {names[data]}"]
    assert sorted(set(result.records.runs["seed"])) == [2, 3]
    (run,) = ready({"methods": ["wada"], "lrs": [0.1], "seeds": [2], "epochs": 1})
    assert set(planning.addresses([run])) <= set(result.records.runs["key"])  # whatever it is called, it is the same


def test_options_of_optimizers_count():
    methods = {"torch.optim.SGD": {"momentum": 0.9}, "torch.optim.AdamW": {"betas": [0.8, 0.9]}, "wada": {"p2": 3}}
    result = compare("softmax", vectors(), **{**QUICK, "methods": methods})
    assert len(result.records.runs) == 12
    plain = compare("softmax", vectors(), **{**QUICK, "methods": list(methods)})
    losses = [each.records.curves.groupby("method")["train_loss"].mean().tolist() for each in (result, plain)]
    assert all(one != other for one, other in zip(*losses, strict=True))


class Counting(nn.Linear):
    """Its rate falls with every call, by a number that no checkpoint holds."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x) / self.calls


class Replacing(nn.Linear):
    def __init__(self):
        super().__init__(4, 3)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return super().forward(x - self.mean)


class Drawing(nn.Linear):
    def forward(self, x):
        return super().forward(x) * random.random()


@pytest.mark.parametrize(
    ("factory", "why"),
    [
        (lambda: Counting(4, 3), "keeps or draws something by itself"),
        (Replacing, "replaces the buffer mean"),
        (lambda: Drawing(4, 3), "keeps or draws something by itself"),
    ],
)
def test_a_module_with_state_that_no_checkpoint_holds_is_refused(factory, why):
    with pytest.raises(Refused, match=why):
        module(factory, (4,), 3)


def test_a_module_is_tried_with_the_batches_it_will_see():
    def net():
        return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))

    with pytest.raises(Refused, match="more than 1 value"):
        prepare_comparison(net, vectors(), **{**QUICK, "batch": 1})
