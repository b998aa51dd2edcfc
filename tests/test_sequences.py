"""Sequences of tokens: data, modules and stacks of them, and the workload of experiments/beyond that needs them."""

import doctest
import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from twins import one_thread as one_thread

from wagmf.arguments import Refused
from wagmf.lab import engine
from wagmf.lab.batches import order
from wagmf.lab.data import Dataset, load
from wagmf.lab.engine import METRICS, Stack
from wagmf.lab.modules import module
from wagmf.lab.planning import prepare
from wagmf.lab.spec import Arm, Problem, experiment

pytestmark = pytest.mark.usefixtures("one_thread")

ROOT = Path(__file__).parent.parent
LENGTH, KINDS = 5, 4


def sequences(n=21, test=7, **changed):
    """Tokens that follow a rule, most of the time."""
    some = np.random.default_rng(0)
    parts = {}
    for part, count in (("train", n), ("test", test)):
        x = some.integers(0, KINDS, (count, LENGTH))
        x[0, 0] = KINDS - 1
        parts |= {f"x_{part}": x, f"y_{part}": (x * 3 + some.integers(0, 2, x.shape)) % KINDS}
    return parts | changed


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.cell, self.head = nn.Embedding(KINDS, 6), nn.Linear(6, 6), nn.Linear(6, KINDS)

    def forward(self, x):
        return self.head(torch.tanh(self.cell(self.table(x).cumsum(1))))


def table(**more):
    common = {"dataset": "mine", "model": "tagger", "methods": ["adam"], "lrs": [0.01], "epochs": 2, "batch": 8}
    return experiment(common | {"precision": "float64"} | more)


def ready(data=None, factory=Tagger, **more):
    sources, factories = {"mine": data or sequences()}, {"tagger": factory}
    return prepare([table(**more)], "cpu", sources=sources, factories=factories)[0]


def alone(seed, lr):
    """The ordinary loop of one replica: loss and accuracy of every epoch, over its batches and over the test set."""
    data = load(sequences())
    torch.manual_seed(seed)
    net = Tagger().double()
    optimizer = torch.optim.Adam(net.parameters(), lr, eps=1e-7)
    x, y, x_test, y_test = (
        torch.from_numpy(getattr(data, name)) for name in ("x_train", "y_train", "x_test", "y_test")
    )
    rows = []
    for epoch in (1, 2):
        told = []
        for first in range(0, 16, 8):
            chosen = torch.from_numpy(order(seed, epoch, len(x))[first : first + 8])
            logits = net(x[chosen]).flatten(0, 1)
            loss = F.cross_entropy(logits, y[chosen].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            told.append((loss.item(), (logits.argmax(1) == y[chosen].flatten()).double().mean().item()))
        logits = net(x_test).flatten(0, 1)
        hit = (logits.argmax(1) == y_test.flatten()).double().mean().item()
        rows.append([*np.mean(told, 0), F.cross_entropy(logits, y_test.flatten()).item(), hit])
    return np.array(rows)


@pytest.mark.parametrize("pieces", [500, 3])
def test_a_stack_of_sequences_is_the_ordinary_loop(pieces, monkeypatch):
    monkeypatch.setattr(engine, "_EVALUATED", pieces)
    of = ready()
    assert of.model.way.startswith("stacked")
    arms = [Arm("adam", lr) for lr in (0.01, 0.1)]
    stack = Stack(of.experiment.problem, of.model, of.data, arms, [0, 1], "cpu")
    for _ in range(2):
        stack.train()
    for s, seed in enumerate((0, 1)):
        for k, arm in enumerate(arms):
            mine = np.stack([torch.stack(stack.curves[metric])[:, s, k].numpy() for metric in METRICS], 1)
            np.testing.assert_allclose(mine, alone(seed, arm.lr), rtol=1e-9)


def test_tokens_stay_what_they_are():
    data = load(sequences())
    assert data.tokens
    assert (data.shape, data.classes) == ((LENGTH,), KINDS)
    assert data.x_train.dtype == data.y_train.dtype == np.int64
    assert data.normalised() is data
    rows = Dataset("rows", data.x_train, data.y_train[:, 0], data.x_test, data.y_test[:, 0])
    assert not rows.tokens
    assert rows.x_train.dtype == np.float64
    assert rows.digest != data.digest


def test_the_alphabet_is_that_of_both():
    x, y = sequences()["x_train"], sequences()["y_train"]
    data = sequences(y_train=np.minimum(y, 1), y_test=np.zeros((7, LENGTH), int))
    assert load(data).classes == x.max() + 1 == KINDS


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"x_test": np.full((7, LENGTH), 4)}, "Invalid x_test in arrays: 4 (the classes of y_train are 0 to 3, and x_"),
        ({"y_test": np.full((7, LENGTH), 9)}, "Invalid y_test in arrays: 9 (the classes of y_train are 0 to 3, and y_"),
        ({"x_train": np.full((21, LENGTH), -1)}, "Invalid x_train in arrays: -1 (whole numbers from 0"),
        ({"y_test": np.zeros(7, int)}, "Invalid y_test in arrays: 'labels of shape (7,)' (either both are sequences"),
        ({"x_train": np.zeros((21, LENGTH))}, "Invalid y_train in arrays: 'int64 of shape (21, 5)'"),
    ],
)
def test_bad_sequences_are_refused_by_name(changed, words):
    with pytest.raises(Refused) as error:
        load(sequences(**changed))
    assert words in str(error.value)


def test_what_does_not_fit_sequences_is_refused():
    with pytest.raises(Refused, match=r"model output: .*it must be logits of shape \(8, 5, 4\)"):
        ready(factory=lambda: nn.Sequential(nn.Embedding(KINDS, 3), nn.Flatten(), nn.Linear(15, KINDS)))
    with pytest.raises(Refused, match="sequences of tokens need a module of one's own"):
        ready(model="mlp")
    with pytest.raises(Refused, match=r"Invalid precision: 'bfloat16' .*tokens need precision = \"float32\""):
        ready(precision="bfloat16")
    of = ready(shift=0.1)
    with pytest.raises(Refused, match="only images"):
        Stack(of.experiment.problem, of.model, of.data, [Arm("adam", 0.1)], [0], "cpu")


def test_a_module_of_sequences_is_tried_with_tokens():
    model = module(Tagger, (LENGTH,), KINDS, tokens=True)
    assert model.reason == ""
    assert set(model.shapes) == {name for name, _ in Tagger().named_parameters()}
    with pytest.raises(Refused, match="does not go through it"):
        module(Tagger, (LENGTH,), KINDS)


# ---------------------------------------------------------------- data that a function makes


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working folder with functions that give data."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "mine_data.py").write_text(
        "from wagmf.lab.data import load\n"
        "rows = {'x_train': [[0.0], [1.0]], 'y_train': [0, 1], 'x_test': [[0.0]], 'y_test': [0]}\n"
        "def arrays(): return rows\n"
        "def dataset(): return load(rows)\n"
        "def broken(): raise RuntimeError('not today')\n"
        "def nothing(): return None\n"
    )
    yield tmp_path
    sys.modules.pop("mine_data", None)


def test_data_may_come_from_a_function(here):
    found = [load(f"mine_data:{name}") for name in ("arrays", "dataset")]
    assert found[0].digest == found[1].digest
    one = experiment({"dataset": "mine_data:arrays", "model": "softmax", "methods": ["adam"], "lrs": [0.1]})
    assert prepare([one], "cpu")[0].data.digest == found[0].digest


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mine_data:broken", "Invalid dataset: 'mine_data:broken' (it cannot be made: not today)"),
        ("mine_data:nothing", "Invalid dataset: 'mine_data:nothing' (module:function, which is"),
        ("mine_data:rows", "Invalid dataset: 'mine_data:rows' (module:function, which is"),
        ("mine_data:absent", "Invalid dataset: 'mine_data:absent' (it cannot be imported:"),
        ("nowhere:data", "Invalid dataset: 'nowhere:data' (it cannot be imported: No module named 'nowhere')"),
        (":data", "Invalid dataset: ':data' (module:function, which is"),
    ],
)
def test_a_function_that_gives_no_data_is_refused(name, words, here):
    with pytest.raises(Refused) as error:
        load(name)
    assert words in str(error.value)


# ---------------------------------------------------------------- characters


@pytest.fixture
def characters(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    return importlib.import_module("experiments.beyond.characters")


def test_the_examples_of_the_workload_run(characters):
    failed, tried = doctest.testmod(characters)
    assert not failed
    assert tried >= 6


def test_what_is_held_out_was_not_seen(characters):
    train, test = characters.text()
    seen, held = ({" ".join(part.split()) for part in each.split("\n\n")} for each in (train, test))
    assert len(held) > 100
    assert seen.isdisjoint(held)
    data = load("experiments.beyond.characters:topics_of_python")
    assert data.tokens
    assert (data.shape, data.classes) == ((characters.CONTEXT,), len(characters.ALPHABET))
    assert 3000 < len(data.x_train) < 6000, "pieces of a text of some hundred thousand characters"
    said = "".join(characters.ALPHABET[place] for place in data.x_train[:3].flatten())
    assert train.startswith(said)
    assert (data.x_train[:, 1:] == data.y_train[:, :-1]).all()
    assert (data.x_train[1:, 0] == data.y_train[:-1, -1]).all()


def test_the_transformer_does_not_look_ahead(characters):
    torch.manual_seed(0)
    net, x = characters.Transformer(16, 2, 2), torch.randint(96, (2, 64))
    later = x.clone()
    later[:, 40:] = (later[:, 40:] + 1) % 96
    one, other = net(x), net(later)
    assert torch.equal(one[:, :40], other[:, :40])
    assert not torch.equal(one[:, 40:], other[:, 40:])


def test_the_transformer_is_stacked_and_learns(characters):
    problem = Problem("text", "experiments.beyond.characters:Transformer", epochs=1, batch=8, precision="float32")
    data = load({name: rows[:32] for name, rows in characters.topics_of_python().items()} | alphabet(characters))
    model = module(lambda: characters.Transformer(16, 1, 2), data.shape, data.classes, tokens=True)
    assert model.way.startswith("stacked")
    stack = Stack(problem, model, data, [Arm("adam", 0.01), Arm("wada", 0.1)], [0], "cpu")
    for _ in range(6):
        stack.train()
    first, last = (stack.curves["train_loss"][k][0].numpy() for k in (0, -1))
    assert (last < first - 0.5).all()
    assert (stack.curves["test_loss"][-1].numpy() < np.log(96)).all()


def alphabet(characters):
    """Training pieces in which every character occurs."""
    x, y = characters.topics_of_python()["x_train"][:32].copy(), characters.topics_of_python()["y_train"][:32].copy()
    y[0, 0] = len(characters.ALPHABET) - 1
    return {"x_train": x, "y_train": y}
