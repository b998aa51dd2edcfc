"""The commands that pages tell their readers to type are typed: as they stand, one after the other, in a new folder.

Only the data are small: of ``digits`` the first 64, and what a reader would bring of their own is made up here. (And
what takes minutes even so is given fewer epochs.)
"""

import os
import re
import shlex
import shutil
import sys
from pathlib import Path
from unittest import mock

import forks
import numpy as np
import pytest
from test_documents import PAGES, ROOT, blocks, called

MODEL = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3))

    def forward(self, x):
        return self.layers(x)

net = Net
"""
SMALL = 'dataset = "digits"\nmodel = "softmax"\nmethods = ["adam"]\nlrs = [0.01, 0.03, 0.1]\nepochs = 3\nseeds = 2\n'
OTHERS = {  # what cannot be typed here, and who types it
    "reproduce --quick": "make quick",
    "study experiments/beyond": "tests/test_study.py",  # it asks for real data first
    "study experiments/beyond --quick": "tests/test_study.py",
    "sweep experiments/paper/cnn_cifar10.toml --engine ray --address HEAD:6379 --checkpoints s3://bucket/stacks":
        "tests/ecosystem/test_ray.py",
}  # fmt: skip
CODES = {"certify adam": 1}  # what says no
SHORTER = {"compare mlp --data digits": "--epochs 1"}  # 126 networks, each with 300,000 weights


def lines(path: Path) -> list[str]:
    """The commands in the blocks of a page, fenced and indented, in order."""
    shell = re.findall(r"^(?: {4})?wagmf ([a-z].*)$", path.read_text(), flags=re.M)
    return [shlex.join(shlex.split(line, comments=True)) for line in shell]


def toml_blocks(path: Path) -> list[str]:
    """Those of a page as experiments: what stands alone is added to a small one."""
    return [block if "dataset" in block else f"{SMALL}{block}" for block in blocks(path.read_text(), "toml")]


def furnish(folder: Path) -> None:
    """What a reader would have: the project, a model and data of their own, and the experiments of the pages."""
    for name in ("experiments", "reproduction"):
        shutil.copytree(ROOT / name, folder / name)
    for name in ("mine", "mymodel"):
        (folder / f"{name}.py").write_text(MODEL)
    rng = np.random.default_rng(0)
    parts = {"x_train": (40, 1, 4, 4), "x_test": (20, 1, 4, 4)}
    images = {name: rng.normal(size=shape).astype(np.float32) for name, shape in parts.items()}
    labels = {name.replace("x", "y"): np.arange(len(x)) % 3 for name, x in images.items()}
    np.savez(folder / "mine.npz", **images, **labels)
    mine, other = toml_blocks(ROOT / "docs" / "lab.md")
    (folder / "mine.toml").write_text(mine)
    (folder / "other.toml").write_text(other)


def run(folder: Path, commands: list[tuple[str, int]], limit: float = 300) -> forks.Ended:
    """Give the commands in a process of its own, which finds this file by its name alone."""
    text = f"from test_page_commands import typed\ntyped({str(folder)!r}, {commands!r})"
    return forks.run(forks.program, text, limit=limit, PYTHONPATH=str(Path(__file__).parent))


def typed(folder: str, commands: list[tuple[str, int]]) -> None:
    """Give the commands, and see how they exit."""
    os.chdir(folder)
    sys.path.insert(0, folder)
    from typer.testing import CliRunner

    from wagmf.cli import app
    from wagmf.lab import data
    from wagmf.lab.paper_runs import _fewer

    digits = _fewer(data.load("digits"), 64)
    load = data.load
    with mock.patch.object(data, "load", lambda name, *a, **k: digits if name == "digits" else load(name, *a, **k)):
        for line, code in commands:
            result = CliRunner().invoke(app, shlex.split(f"{line} {SHORTER.get(line, '')}"))
            print(line, result.output[-1500:], sep="\n")
            assert result.exit_code == code, (line, result.exception)
            print(f"TYPED {line}")


@pytest.mark.parametrize("path", [path for path in PAGES if lines(path)], ids=called)
def test_every_command_of_a_page_is_run(path, tmp_path):
    furnish(tmp_path)
    wanted = [line for line in lines(path) if line not in OTHERS]
    result = run(tmp_path, [(line, CODES.get(line, 0)) for line in wanted], limit=600)
    assert result.code == 0, result.said[-4000:]
    assert [line for line in wanted if f"TYPED {line}\n" not in result.said] == []


def test_a_command_that_fails_would_be_seen(tmp_path):
    furnish(tmp_path)
    result = run(tmp_path, [("methods", 0), ("compare nowhere:Net --data mine.npz", 0)])
    assert result.code == 1
    assert "TYPED methods\n" in result.said
    assert "TYPED compare" not in result.said
    assert "nowhere" in result.said


def test_others_run_what_is_not_run_here():
    every = {line for path in PAGES for line in lines(path)}
    assert {*OTHERS, *SHORTER, *CODES} <= every
    for line, where in OTHERS.items():
        if where.startswith("make "):
            assert re.search(rf"^{where[5:]}:.*\n\t\S*wagmf {line}$", (ROOT / "Makefile").read_text(), flags=re.M)
            assert where in (ROOT / ".ci" / "run").read_text().splitlines()
        else:
            text = (ROOT / where).read_text()
            assert all(word in text for word in re.findall(r"study|--quick|--engine|--address|--checkpoints", line))
    found = [block for path in PAGES for block in toml_blocks(path)]
    assert found == toml_blocks(ROOT / "docs" / "lab.md"), "these are swept; those of other pages would not be"
