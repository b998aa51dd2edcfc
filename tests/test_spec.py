"""Experiments: what files say is read, whatever is wrong is refused by file, key and value, and runs have addresses."""

import dataclasses
import json
import os
import subprocess
import sys

import pytest
import torch

from wagmf.arguments import Refused
from wagmf.lab.spec import LOSSES, PRECISIONS, Arm, Problem, address, experiment, read
from wagmf.methods import METHODS

GOOD = {"dataset": "digits", "model": "mlp", "methods": ["adam"], "lrs": [0.1]}
EXAMPLE = """
dataset = "digits"
epochs = 3
seeds = [4, 2]
methods = ["adam", "wada"]
lrs = [0.001, 0.01]

[[experiment]]
model = "softmax"
decay = 0.5

[[experiment]]
name = "mine"
dataset = "sub/own.npz"
model = "mlp"
width = 64
dropout = 0.25
batch = 32
milestones = [1, 2]
factor = 0.5
l2 = 0.001
shift = 0.1
flip = true
eps = 1e-8
loss = "clean"
precision = "float64"
seeds = 2
[experiment.methods]
wada = [0.01, 0.03]
amsgrad = { lrs = [0.5], debias = true, beta2 = 0.99 }
"torch.optim.AdamW" = { weight_decay = 0.01, betas = [0.8, 0.9] }
"""


def write(folder, text):
    path = folder / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


# ------------------------------------------------------------------ good ones


def test_a_method_may_occur_with_several_options():
    table = {"nosadam": [{"eta": 1, "p2": 4}, {"eta": 2, "p2": 6, "lrs": [1.0, 2.0]}], "wada": [0.3]}
    one = experiment(GOOD | {"methods": table})
    assert [(arm.label, arm.lr) for arm in one.arms] == [
        ("nosadam(eta=1, p2=4)", 0.1),
        ("nosadam(eta=2, p2=6)", 1.0),
        ("nosadam(eta=2, p2=6)", 2.0),
        ("wada", 0.3),
    ]
    assert one.arms[1].rule.weights.eta == 2
    with pytest.raises(Refused, match=r"lrs of nosadam.*it occurs twice"):
        experiment(GOOD | {"methods": {"nosadam": [{"eta": 1}, {"eta": 1}]}})
    with pytest.raises(Refused, match="lrs of nosadam"):
        experiment(GOOD | {"methods": {"nosadam": [{"eta": 1}, 0.3]}})


def test_a_file_is_read_whole(tmp_path):
    first, second = read(write(tmp_path, EXAMPLE))
    assert first.name == "softmax on digits"
    assert first.problem == Problem("digits", "softmax", epochs=3, decay=0.5)
    assert first.arms == tuple(Arm(method, lr) for method in ("adam", "wada") for lr in (0.001, 0.01))
    assert first.seeds == (4, 2)
    assert second.name == "mine"
    assert second.seeds == (0, 1)
    assert second.problem == Problem(
        str(tmp_path / "sub/own.npz"), "mlp", (("width", 64), ("dropout", 0.25)), epochs=3, batch=32,
        milestones=(1, 2), factor=0.5, l2=0.001, shift=0.1, flip=True, eps=1e-8, loss="clean", precision="float64",
    )  # fmt: skip
    theirs = (("betas", (0.8, 0.9)), ("weight_decay", 0.01))
    assert second.arms == (
        Arm("wada", 0.01), Arm("wada", 0.03), Arm("amsgrad", 0.5, (("beta2", 0.99), ("debias", True))),
        Arm("torch.optim.AdamW", 0.001, theirs), Arm("torch.optim.AdamW", 0.01, theirs),
    )  # fmt: skip
    assert second.arms[2].rule.weights.beta == 0.99
    assert second.arms[2].label == "amsgrad(beta2=0.99, debias=True)"
    assert second.arms[3].optimizer is torch.optim.AdamW
    assert len(set(second.arms)) == 5  # they can be looked up


def test_a_file_may_be_one_experiment(tmp_path):
    text = 'dataset = "mnist"\nmodel = "cnn"\nmethods = ["wada"]\nlrs = [1]\n'
    (only,) = read(write(tmp_path, text))
    assert (only.name, only.seeds, only.arms) == ("cnn on mnist", (0,), (Arm("wada", 1.0),))
    assert read(str(write(tmp_path, text))) == [only]
    absolute = experiment({**GOOD, "dataset": "/data/own.npz"}, tmp_path)
    assert (absolute.problem.dataset, absolute.name) == ("/data/own.npz", "mlp on own")
    assert experiment({**GOOD, "dataset": "own.npz"}).problem.dataset == "own.npz"


def test_numbers_are_the_same_however_they_are_written(tmp_path):
    """Whole numbers with a point, and numbers without one: one problem, one address."""
    loose = {"epochs": 5.0, "batch": 64.0, "decay": 1, "milestones": [2.0], "factor": 1, "l2": 0, "shift": 0, "eps": 0}
    exact = {
        "epochs": 5,
        "batch": 64,
        "decay": 1.0,
        "milestones": (2,),
        "factor": 1.0,
        "l2": 0.0,
        "shift": 0.0,
        "eps": 0.0,
    }
    one, other = (
        experiment({**GOOD, **loose, "lrs": [1], "seeds": [1.0]}),
        experiment({**GOOD, **exact, "lrs": [1.0], "seeds": [1]}),
    )
    assert one == other
    assert address(one.problem, "", one.arms[0], 1) == address(other.problem, "", other.arms[0], 1)
    assert isinstance(one.problem.epochs, int)
    assert isinstance(one.seeds[0], int)
    assert isinstance(one.arms[0].lr, float)
    assert json.dumps(dataclasses.asdict(one.problem)) == json.dumps(dataclasses.asdict(other.problem))


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_an_arm(method):
    assert Arm(method, 0.1).rule == METHODS[method].rule
    assert Arm(method, 0.1).label == method
    assert not Arm(method, 0.1).dotted


def test_milestones_count_epochs_that_are_over():
    problem = Problem("digits", "mlp", milestones=(4, 2), factor=0.5)
    assert [problem.rate(epoch) for epoch in range(1, 7)] == [1, 1, 0.5, 0.5, 0.25, 0.25]


@pytest.mark.parametrize(
    ("precision", "device", "settled"),
    [
        ("auto", "cpu", "float32"),
        ("auto", "cuda", "bfloat16"),
        ("auto", "cuda:1", "bfloat16"),
        ("float32", "cuda", "float32"),
        ("float64", "cpu", "float64"),
    ],
)
def test_precision_is_settled_on_a_device(precision, device, settled):
    assert Problem("digits", "mlp", precision=precision).on(device).precision == settled


# ------------------------------------------------------------------ bad ones

TOP = 'dataset = "digits"\nmodel = "mlp"\nmethods = ["adam"]\nlrs = [0.1]\n'


def but(**changed):
    """The good file with lines changed or added; None leaves one out."""
    lines = {"dataset": '"digits"', "model": '"mlp"', "methods": '["adam"]', "lrs": "[0.1]"} | changed
    return "".join(f"{key} = {value}\n" for key, value in lines.items() if value is not None)


BAD = {
    "unknown key": (but(modle='"mlp"'), ["key", "'modle'", "did you mean 'model'"]),
    "unknown key, near one of ours": (but(epoch="3"), ["key", "'epoch'", "did you mean 'epochs'"]),
    "unknown table": (TOP + "[training]\nepochs = 3\n", ["key", "'training'"]),
    "options is no key": (but(options="[]"), ["key", "'options'"]),
    "no dataset": (but(dataset=None), ["dataset", "None", "must say"]),
    "no model": (but(model=None), ["model", "None"]),
    "no methods": (but(methods=None), ["methods", "None"]),
    "no step sizes": (but(lrs=None), ["lrs of adam", "None"]),
    "dataset a number": (but(dataset="5"), ["dataset", "5"]),
    "dataset empty": (but(dataset='" "'), ["dataset", "' '"]),
    "model a list": (but(model='["mlp"]'), ["model", "['mlp']"]),
    "name a number": (but(name="7"), ["name", "7"]),
    "name empty": (but(name='""'), ["name", "''"]),
    "epochs negative": (but(epochs="-3"), ["epochs", "-3"]),
    "epochs zero": (but(epochs="0"), ["epochs", "0"]),
    "epochs half": (but(epochs="2.5"), ["epochs", "2.5"]),
    "epochs true": (but(epochs="true"), ["epochs", "True"]),
    "epochs a word": (but(epochs='"ten"'), ["epochs", "'ten'"]),
    "epochs huge": (but(epochs="1" + "0" * 30), ["epochs", "1" + "0" * 30]),
    "epochs beyond all numbers": (but(epochs="1" + "0" * 400), ["epochs", "1" + "0" * 400]),
    "epochs infinite": (but(epochs="inf"), ["epochs", "inf"]),
    "epochs a date": (but(epochs="2020-01-01"), ["epochs", "2020"]),
    "batch zero": (but(batch="0"), ["batch", "0"]),
    "batch huge": (but(batch="100000000"), ["batch", "100000000"]),
    "decay negative": (but(decay="-0.5"), ["decay", "-0.5"]),
    "decay a word": (but(decay='"sqrt"'), ["decay", "'sqrt'"]),
    "milestones a number": (but(milestones="3"), ["milestones", "3"]),
    "milestones a word": (but(milestones='"3"'), ["milestones", "'3'"]),
    "milestones of zero": (but(milestones="[0]"), ["milestones", "0"]),
    "milestones of words": (but(milestones='["a"]'), ["milestones", "'a'"]),
    "milestones of lists": (but(milestones="[[1]]"), ["milestones", "[1]"]),
    "milestones huge": (but(milestones="[1" + "0" * 30 + "]"), ["milestones", "0" * 30]),
    "factor zero": (but(factor="0"), ["factor", "0"]),
    "factor nan": (but(factor="nan"), ["factor", "nan"]),
    "l2 negative": (but(l2="-1"), ["l2", "-1"]),
    "shift one": (but(shift="1.0"), ["shift", "1.0"]),
    "flip a number": (but(flip="1"), ["flip", "1"]),
    "flip a word": (but(flip='"yes"'), ["flip", "'yes'"]),
    "eps negative": (but(eps="-1e-8"), ["eps", "-1e-08"]),
    "loss unknown": (but(loss='"runing"'), ["loss", "'runing'", "did you mean 'running'"]),
    "precision unknown": (but(precision='"float16"'), ["precision", "'float16'"]),
    "precision a number": (but(precision="32"), ["precision", "32"]),
    "seeds zero": (but(seeds="0"), ["seeds", "0"]),
    "seeds true": (but(seeds="true"), ["seeds", "True"]),
    "seeds none": (but(seeds="[]"), ["seeds", "[]"]),
    "seeds twice": (but(seeds="[1, 2, 1]"), ["seeds", "[1, 2, 1]", "repetitions"]),
    "seeds twice, in disguise": (but(seeds="[1, 1.0]"), ["seeds", "[1, 1.0]"]),
    "seeds negative": (but(seeds="[-1]"), ["seeds", "-1"]),
    "seeds huge": (but(seeds="[2147483648]"), ["seeds", "2147483648"]),
    "seeds of words": (but(seeds='["a"]'), ["seeds", "'a'"]),
    "seeds of lists": (but(seeds="[[1]]"), ["seeds", "[1]"]),
    "seeds many": (but(seeds="1000000"), ["seeds", "1000000"]),
    "methods a word": (but(methods='"adam"'), ["methods", "'adam'"]),
    "methods none": (but(methods="[]"), ["methods", "[]"]),
    "methods a number": (but(methods="3"), ["methods", "3"]),
    "methods of numbers": (but(methods="[3]"), ["methods", "3"]),
    "methods of lists": (but(methods='[["adam"]]'), ["methods", "['adam']"]),
    "methods twice": (but(methods='["adam", "adam"]'), ["adam", "0.1", "twice"]),
    "method unknown": (but(methods='["adamm"]'), ["method", "'adamm'", "did you mean 'adam'"]),
    "method empty": (but(methods='[""]'), ["method", "''"]),
    "method in capitals": (but(methods='["WADA"]'), ["method", "'WADA'", "did you mean 'wada'"]),
    "optimizer that is not there": (but(methods='["torch.optim.Adamm"]'), ["method", "'torch.optim.Adamm'", "import"]),
    "module that is not there": (but(methods='["no_such_module.Adam"]'), ["method", "'no_such_module.Adam'"]),
    "no module": (but(methods='[".Adam"]'), ["method", "'.Adam'"]),
    "dots only": (but(methods='["..x"]'), ["method", "'..x'"]),
    "no optimizer": (but(methods='["torch.nn.Linear"]'), ["method", "'torch.nn.Linear'", "torch's kind"]),
    "no class": (but(methods='["os.path"]'), ["method", "'os.path'"]),
    "optimizer of no method": (but(methods='["torch.optim.Optimizer"]'), ["options of torch.optim.Optimizer", "lr"]),
    "optimizer with closures": (but(methods='["torch.optim.LBFGS"]'), ["method", "'torch.optim.LBFGS'", "closure"]),
    "lr true": (but(lrs="[true]"), ["learning rate of adam", "True", "lr"]),
    "lr a word": (but(lrs='["x"]'), ["learning rate of adam", "'x'"]),
    "lr nan": (but(lrs="[nan]"), ["learning rate of adam", "nan"]),
    "lr infinite": (but(lrs="[inf]"), ["learning rate of adam", "inf"]),
    "lr zero": (but(lrs="[0.1, 0]"), ["learning rate of adam", "0"]),
    "lr too small": (but(lrs="[1e-38]"), ["learning rate of adam", "1e-38", ">= 1.2e-38"]),
    "lr too large": (but(lrs="[1e39]"), ["learning rate of adam", "1e+39", "<= 1e+38"]),
    "lr negative": (but(lrs="[-0.1]"), ["learning rate of adam", "-0.1"]),
    "lrs a number": (but(lrs="0.1"), ["lrs of adam", "0.1", "list"]),
    "lrs a word": (but(lrs='"0.1"'), ["lrs of adam", "'0.1'"]),
    "lrs none": (but(lrs="[]"), ["lrs of adam", "[]"]),
    "lrs twice": (but(lrs="[0.1, 1e-1]"), ["lrs of adam", "0.1", "twice"]),
    "lrs a table": (but(lrs="{a = 1}"), ["learning rate of adam", "'a'"]),
    "own lr true": (but(methods="{wada = [true]}"), ["learning rate of wada", "True"]),
    "own lrs a number": (but(methods="{wada = 0.1}"), ["lrs of wada", "0.1"]),
    "option unknown": (but(methods="{wada = {lrs = [1], beta3 = 0.5}}"), ["option of wada", "'beta3'", "beta1"]),
    "option of other weights": (but(methods="{wada = {beta2 = 0.5}}"), ["beta2", "0.5", "Exponential"]),
    "option out of range": (but(methods="{wada = {beta1 = 1.0}}"), ["beta1", "1.0"]),
    "option of a wrong type": (but(methods="{adam = {debias = 1}}"), ["debias", "1"]),
    "weights as an option": (but(methods='{wada = {weights = "equal"}}'), ["option of wada", "'weights'"]),
    "option of theirs": (but(methods='{"torch.optim.SGD" = {moment = 1}}'), ["options of torch.optim.SGD", "moment"]),
    "lr as an option": (but(methods='{"torch.optim.SGD" = {lr = 1}}'), ["options of torch.optim.SGD", "{'lr': 1}"]),
    "not TOML": ("dataset = \n", ["not TOML", "line 1"]),
    "a key twice": (TOP + 'model = "cnn"\n', ["not TOML", "line 5"]),
    "nested too deep": ("x = " + "[" * 10_000, ["not TOML"]),
    "experiment a table": (TOP + "[experiment]\nepochs = 1\n", ["experiment", "[[experiment]]"]),
    "experiment a word": (TOP + 'experiment = "a"\n', ["experiment", "'a'"]),
    "experiments of words": (TOP + 'experiment = ["a"]\n', ["experiment", "'a'"]),
    "no experiment": (TOP + "experiment = []\n", ["experiment", "[]"]),
    "names twice": (TOP + "[[experiment]]\n[[experiment]]\nepochs = 2\n", ["name", "'mlp on digits'", "own"]),
    "the second is wrong": (TOP + "[[experiment]]\n[[experiment]]\nepochs = -1\n", ["experiment 2", "epochs", "-1"]),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_files_are_refused_by_file_key_and_value(case, tmp_path):
    text, named = BAD[case]
    path = write(tmp_path, text)
    with pytest.raises(Refused) as refusal:
        read(path)
    said = str(refusal.value)
    assert said.startswith(f"{path}: ")
    assert all(word in said for word in named), said


def test_the_good_file_that_they_are_made_from_is_read(tmp_path):
    assert read(write(tmp_path, but())) == [experiment(GOOD, tmp_path)]
    assert but() == TOP


def test_files_that_cannot_be_read_are_refused_by_name(tmp_path):
    missing = tmp_path / "missing.toml"
    with pytest.raises(Refused, match=r"missing.toml: cannot be read: No such file"):
        read(missing)
    with pytest.raises(Refused, match=f"{tmp_path}: cannot be read: Is a directory"):
        read(tmp_path)
    latin = tmp_path / "latin.toml"
    latin.write_bytes('name = "Müller"'.encode("latin-1"))
    with pytest.raises(Refused, match=r"latin.toml: is not TOML: .*utf-8"):
        read(latin)
    with pytest.raises(Refused, match="null"):
        read("a\0b.toml")


def test_modules_that_break_when_imported_are_refused(tmp_path, monkeypatch):
    (tmp_path / "broken_optimizers.py").write_text("raise RuntimeError('half-way')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(Refused, match=r"broken_optimizers.Mine.*half-way"):
        Arm("broken_optimizers.Mine", 0.1)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Arm("wada", -1), ["learning rate", "-1", "lr"]),
        (lambda: Arm("wada", True), ["learning rate", "True"]),
        (lambda: Arm("wadda", 0.1), ["method", "'wadda'"]),
        (lambda: Arm(3, 0.1), ["method", "3"]),
        (lambda: Problem("digits", "mlp", epochs=0), ["epochs", "0"]),
        (lambda: Problem("digits", "mlp", loss="clear"), ["loss", "'clear'", "clean"]),
        (lambda: experiment({**GOOD, 3: 4}), ["key", "3"]),
    ],
)
def test_bad_values_are_refused_in_programs_too(make, named):
    with pytest.raises(Refused) as refusal:
        make()
    assert all(word in str(refusal.value) for word in named), refusal.value


# ------------------------------------------------------------------ addresses

PROBLEM = Problem("digits", "mlp", (("width", 64),))
OTHER = {
    "model": "cnn",
    "options": (("width", 65),),
    "epochs": 21,
    "batch": 127,
    "decay": 0.0,
    "milestones": (3,),
    "factor": 0.2,
    "l2": 1e-9,
    "shift": 0.1,
    "flip": True,
    "eps": 1e-8,
    "loss": "clean",
    "precision": "float64",
}


def key(problem=PROBLEM, digest="d", arm=None, seed=0):
    return address(problem, digest, arm or Arm("wada", 0.1), seed)[0]


def test_an_address_changes_with_all_that_matters():
    assert set(OTHER) == {field.name for field in dataclasses.fields(Problem)} - {"dataset"}
    keys = {name: key(dataclasses.replace(PROBLEM, **{name: value})) for name, value in OTHER.items()}
    keys |= {
        "none": key(),
        "digest": key(digest="e"),
        "seed": key(seed=1),
        "lr": key(arm=Arm("wada", 0.1000001)),
        "method": key(arm=Arm("wada_v3", 0.1)),
        "method option": key(arm=Arm("wada", 0.1, (("beta1", 0.5),))),
        "method option's value": key(arm=Arm("wada", 0.1, (("beta1", 0.6),))),
        "model option": key(dataclasses.replace(PROBLEM, options=(("width", 64), ("dropout", 0.1)))),
    }
    assert len(set(keys.values())) == len(keys)
    assert all(len(each) == 20 for each in keys.values())


def test_an_address_does_not_change_with_names_and_places():
    assert key(dataclasses.replace(PROBLEM, dataset="/elsewhere/digits.npz")) == key()
    table = {**GOOD, "seeds": 1}
    one, other = experiment({**table, "name": "a"}), experiment({**table, "name": "b"})
    assert key(one.problem, arm=one.arms[0]) == key(other.problem, arm=other.arms[0])
    two = ("beta1", 0.5), ("p1", 3.0)
    assert key(arm=Arm("wada", 0.1, two)) == key(arm=Arm("wada", 0.1, two[::-1]))


def test_what_an_address_stands_for_is_plain_and_whole():
    arm = Arm("torch.optim.AdamW", 0.1, (("betas", [0.8, 0.9]),))
    _, config = address(dataclasses.replace(PROBLEM, milestones=(1, 2)), "d", arm, 3)
    assert json.loads(json.dumps(config)) == config
    assert config["dataset"] == "digits"
    assert config["options"] == {"width": 64}
    assert config["milestones"] == [1, 2]
    assert (config["method"], config["method_options"], config["lr"]) == (arm.method, {"betas": [0.8, 0.9]}, 0.1)
    assert (config["seed"], config["data"]) == (3, "d")
    assert set(config) == set(OTHER) | {"dataset", "data", "method", "method_options", "lr", "seed"}


def test_an_address_is_the_same_in_every_process():
    program = (
        "from wagmf.lab.spec import *\n"
        "problem = Problem('digits', 'mlp', (('width', 64),), milestones=(1, 2), decay=0.5)\n"
        "print(address(problem, 'd', Arm('amsgrad', 0.1, (('beta2', 0.9), ('debias', True))), 5)[0])"
    )
    problem = Problem("digits", "mlp", (("width", 64),), milestones=(1, 2), decay=0.5)
    found = {key(problem, arm=Arm("amsgrad", 0.1, (("beta2", 0.9), ("debias", True))), seed=5) + "\n"}
    for seed in ("0", "1", "random"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", program]
        found.add(subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout)
    assert len(found) == 1


def test_the_lists_of_choices():
    assert LOSSES == ("running", "clean")
    assert PRECISIONS == ("auto", "float32", "bfloat16", "float64")
    for precision in PRECISIONS[1:]:
        assert isinstance(getattr(torch, precision), torch.dtype)
