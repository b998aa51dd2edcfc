"""The examples do what they say."""

import importlib.util
import re
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parent.parent / "examples"
DIGITS = ["torch_mnist_style", "jax_digits", "keras_digits"]
# Those of each by one worker: Keras imports TensorFlow to fit a model, which takes seconds.
EACH = [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in DIGITS]
ELSEWHERE = {"fsdp2_transformer": "ecosystem/test_fsdp2.py"}


@pytest.fixture(autouse=True)
def one_thread():
    """As many tests run at once as there are cores: threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_example_is_run_here_or_elsewhere():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*DIGITS, *ELSEWHERE}
    for name, test in ELSEWHERE.items():
        assert f"{name}.py" in (Path(__file__).parent / test).read_text()


@pytest.mark.parametrize("name", EACH)
def test_both_optimizers_learn_the_digits(name, capsys, monkeypatch):
    example = load(name)
    monkeypatch.setattr(example, "LRS", (0.03, 0.3))
    example.main(seeds=2)
    reached = dict(re.findall(r"^(\w+) .*test accuracy ([\d.]+)%", capsys.readouterr().out, flags=re.M))
    assert reached.keys() == {"AdamW", "WADA"}
    assert all(float(share) > 90 for share in reached.values())


@pytest.mark.parametrize("name", EACH)
def test_an_optimizer_that_does_not_learn_would_be_seen(name):
    example = load(name)
    training, _, test = example.digits()
    still = example.train(example.OPTIMIZERS["WADA"], 0.0, training, seed=1)
    assert example.accuracy(still, test) == pytest.approx(0.1, abs=0.1)
