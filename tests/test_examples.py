"""The examples do what they say."""

import importlib.util
import re
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_torch_mnist_style(capsys, monkeypatch):
    example = load("torch_mnist_style")
    monkeypatch.setattr(example, "LRS", (0.03, 0.3))
    example.main(seeds=2)
    reached = dict(re.findall(r"^(\w+) .*test accuracy ([\d.]+)%", capsys.readouterr().out, flags=re.M))
    assert reached.keys() == {"AdamW", "WADA"}
    assert all(float(share) > 90 for share in reached.values())


def test_an_optimizer_that_does_not_learn_would_be_seen():
    example = load("torch_mnist_style")
    training, _, test = example.digits()
    still = example.train(example.OPTIMIZERS["WADA"], 0.0, training, seed=1)
    assert example.accuracy(still, test) == pytest.approx(0.1, abs=0.1)
