"""The lab's commands: sweep, compare, runs and report."""

import csv
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import forks
import numpy as np
import pytest
import torch
from rich.console import Console
from sweeps import outcome, stop_after, vectors
from twins import one_thread as one_thread
from typer.testing import CliRunner

from wagmf import cli
from wagmf.arguments import Refused
from wagmf.lab.engine import Stack
from wagmf.lab.records import Records
from wagmf.methods import PAPER_METHODS

pytestmark = pytest.mark.usefixtures("one_thread")

TOML = """
dataset = "mine.npz"
model = "softmax"
epochs = 2
batch = 8
seeds = 2
lrs = [0.01, 0.1]
methods = ["adam", "wada"]
"""
NET = """
import time
from pathlib import Path
from torch import nn

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))

    def forward(self, x):
        if Path("slow").exists():
            time.sleep(0.02)
        return super().forward(x)

something = 3

def broken():
    raise RuntimeError("not today")
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working folder with data, a model and an experiment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(cli, "_out", Console(width=180))
    monkeypatch.setattr(cli, "_err", Console(stderr=True, width=10_000))
    np.savez(tmp_path / "mine.npz", **vectors())
    (tmp_path / "mine_net.py").write_text(NET)
    (tmp_path / "mine.toml").write_text(TOML)
    yield tmp_path
    sys.modules.pop("mine_net", None)


def call(*arguments, expect=0):
    result = CliRunner().invoke(cli.app, [str(argument) for argument in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == expect, result.output
    return result


def files(folder):
    return sorted(path.name for path in folder.iterdir() if path.name not in ("mine.npz", "mine_net.py", "mine.toml"))


@pytest.fixture
def swept(here):
    call("sweep", "mine.toml")
    return here


# ---------------------------------------------------------------- sweep


def test_sweep_trains_records_and_reports(here):
    said = call("sweep", "mine.toml", "-o", "report.html", "--every", "1")
    assert files(here) == ["report.html", "runs.db"]
    runs = Records("runs.db").runs()
    assert len(runs) == 8
    assert {run.experiment for run in runs} == {"softmax on mine"}
    assert "8 of 8 runs are recorded" in said.stderr
    assert "softmax on mine" in said.stdout
    assert "Trained   stacked, 8 replicas" in said.stdout
    assert "Report    report.html" in said.stdout
    assert "Records   runs.db" in said.stdout
    assert "softmax on mine" in (here / "report.html").read_text()
    again = call("sweep", "mine.toml", "-r", "runs.db", "--criterion", "test_accuracy")
    assert "8 of 8 runs were done before" in again.stderr
    assert "Report" not in again.stdout
    assert outcome("runs.db") == {run.key: (run.experiment, run.config, run.diverged, run.curves) for run in runs}


def test_sweep_prints_the_best_step_size_of_each_method(swept):
    said = call("sweep", "mine.toml").stdout
    curves = {}
    for run in Records("runs.db").runs():
        curves.setdefault((run.config["method"], run.config["lr"]), []).append(run.curves)
    for method in ("adam", "wada"):
        loss = {lr: np.mean([c["train_loss"][-1] for c in curves[method, lr]]) for lr in (0.01, 0.1)}
        best = min(loss, key=loss.get)
        hit = np.mean([c["test_accuracy"][-1] for c in curves[method, best]])
        (row,) = [line for line in said.splitlines() if f" {method} " in line]
        assert f"{best:g} " in row
        assert f"{loss[best]:.4g} ±" in row
        assert f"{hit:.2%}" in row


def test_sweep_takes_several_files_and_records_of_ones_own(here):
    (here / "other.toml").write_text(TOML.replace("softmax", "mlp") + "width = 4\n")
    said = call("sweep", "mine.toml", "other.toml", "--records", "mine.db").stdout
    assert len(Records("mine.db").runs()) == 16
    assert "mlp on mine" in said
    assert "softmax on mine" in said


def test_help_is_words_and_no_pictures():
    """Rich reads :factory: and the like as a name of a picture."""
    for command in ("sweep", "compare", "runs", "report"):
        assert not [sign for sign in call(command, "--help").stdout if ord(sign) > 0xFFFF]
    assert "MODULE:FACTORY" in call("compare", "--help").stdout


def test_ctrl_c_is_told_and_the_same_command_goes_on(here, monkeypatch):
    (here / "mine.toml").write_text(TOML + '[[experiment]]\nname = "a"\n[[experiment]]\nname = "b"\nl2 = 0.1\n')
    train = stop_after(3, monkeypatch)
    said = call("sweep", "mine.toml", "--every", "1", "-o", "report.html", expect=130)
    assert "Stopped: 8 of 16 runs are recorded; the same command continues." in said.stderr
    assert "Records   runs.db" in said.stdout
    assert files(here) == ["report.html", "runs.db", "runs.db.stacks"]
    monkeypatch.setattr(Stack, "train", train)
    said = call("sweep", "mine.toml", "--every", "1", "-o", "report.html")
    assert "8 of 16 runs were done before." in said.stderr
    assert "b: 8 runs go on after epoch 1." in said.stderr
    assert "16 of 16 runs are recorded" in said.stderr
    assert files(here) == ["report.html", "runs.db"]
    call("sweep", "mine.toml", "-r", "whole.db")
    assert outcome("runs.db") == outcome("whole.db")


def test_ctrl_c_before_anything_is_recorded(here, monkeypatch):
    def stop(stack):
        raise KeyboardInterrupt

    monkeypatch.setattr(Stack, "train", stop)
    said = call("sweep", "mine.toml", expect=130)
    assert "Stopped: 0 of 8 runs are recorded" in said.stderr
    assert said.stdout == ""


def wait_for(condition, process, seconds=120.0):
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


def test_a_signal_from_the_keyboard(here):
    """A process of its own, whose second experiment is slow until we let it be quick."""
    (here / "mine.toml").write_text(
        TOML.replace("epochs = 2", "epochs = 6")
        + '[[experiment]]\nname = "quick"\n[[experiment]]\nname = "slow"\nmodel = "mine_net:Net"\n'
    )
    (here / "slow").touch()
    command = [sys.executable, "-B", "-m", "wagmf", "sweep", "mine.toml", "--every", "1"]
    environment = {**forks.unmeasured(), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    wait_for((here / "runs.db.stacks").exists, process)
    wait_for(lambda: len(Records("runs.db").attempts()) == 2 and list(here.glob("runs.db.stacks/[!.]*.pt")), process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Stopped: 8 of 16 runs are recorded; the same command continues." in " ".join(err.split())
    assert "Traceback" not in err
    assert "quick" in out
    assert len(Records("runs.db").runs()) == 8
    (here / "slow").unlink()
    said = call("sweep", "mine.toml", "--every", "1")
    assert "slow: 8 runs go on after epoch " in said.stderr
    call("sweep", "mine.toml", "-r", "whole.db")
    mine, right = outcome("runs.db"), outcome("whole.db")
    assert set(mine) == set(right)
    for key in right:
        assert mine[key][3]["train_loss"] == pytest.approx(right[key][3]["train_loss"], rel=1e-4)
    assert files(here) == ["runs.db", "whole.db"]


# ---------------------------------------------------------------- compare


def test_compare_takes_my_model_and_my_data(here):
    arguments = ["compare", "mine_net:Net", "--data", "mine.npz", "--methods", "adam, wada,torch.optim.SGD"]
    arguments += ["--lrs", "0.01,0.1", "--seeds", "2", "--epochs", "2", "--batch", "8", "-o", "out"]
    said = call(*arguments)
    assert files(here) == ["out"]
    assert sorted(path.name for path in (here / "out").iterdir()) == ["report.html", "runs.db"]
    assert "mine_net:Net on mine" in said.stdout
    assert "Trained   stacked through torch.func, 8 replicas" in said.stdout
    assert "torch.optim.SGD" in said.stdout
    assert len(Records("out/runs.db").runs()) == 12
    assert "12 of 12 runs were done before" in call(*arguments).stderr
    # Its code is a part of what a run is known by.
    (here / "mine_net.py").write_text(NET.replace("nn.ReLU", "nn.Tanh"))
    sys.modules.pop("mine_net")
    assert "were done before" not in call(*arguments).stderr
    assert len(Records("out/runs.db").runs()) == 24


def test_compare_tells_when_replicas_are_trained_one_at_a_time(here):
    (here / "mine_net.py").write_text(NET.replace("if Path", "if x.sum().item() > 9e9 or Path"))
    arguments = ["compare", "mine_net:Net", "--data", "mine.npz", "--methods", "adam", "--lrs", "0.1", "--epochs", "1"]
    said = call(*arguments, "--batch", "8", "--seeds", "1")
    assert "Replicas are trained one at a time (its code cannot be batched: " in said.stderr
    assert "Trained   one at a time (" in said.stdout
    assert files(here) == ["comparison"]


def test_compare_by_default_takes_the_papers_methods(here):
    said = call("compare", "mlp", "--width", "4", "--data", "mine.npz", "--lrs", "0.1", "--epochs", "1", "--batch", "8")
    assert {run.config["method"] for run in Records("comparison/runs.db").runs()} == set(PAPER_METHODS)
    assert {run.config["options"]["width"] for run in Records("comparison/runs.db").runs()} == {4}
    assert all(name in said.stdout for name in PAPER_METHODS)


# ---------------------------------------------------------------- runs and report


def test_runs_lists_and_exports(swept):
    said = call("runs").stdout
    for method in ("adam", "wada"):
        (row,) = [line for line in said.splitlines() if f" {method} " in line]
        assert [cell.strip() for cell in row.split("│")[1:7]] == ["softmax on mine", method, "2", "2", "4", ""]
    every = call("runs", "runs.db", "--all").stdout
    for run in Records("runs.db").runs():
        (row,) = [line for line in every.splitlines() if run.key in line]
        assert f" {run.config['method']} " in row
        assert f" {run.config['lr']:g} " in row
    for ending in ("csv", "parquet"):
        assert f"8 runs into out.{ending}" in call("runs", "runs.db", "--export", f"out.{ending}").stdout
    with open("out.csv", newline="") as file:
        assert len(list(csv.DictReader(file))) == 16
    assert files(swept) == ["out.csv", "out.parquet", "runs.db"]


def test_runs_counts_what_diverged(here):
    (here / "mine.toml").write_text(TOML.replace("[0.01, 0.1]", "[0.01, 1e38]").replace('"adam"', '"torch.optim.SGD"'))
    said = call("sweep", "mine.toml").stdout
    assert "Records" in said
    (row,) = [line for line in call("runs").stdout.splitlines() if "torch.optim.SGD" in line]
    lost = sum(run.diverged is not None for run in Records("runs.db").runs() if run.config["method"] != "wada")
    assert lost > 0
    assert [cell.strip() for cell in row.split("│")[3:7]] == ["2", "2", "4", str(lost)]


def test_report_writes_page_and_pictures(swept):
    said = call("report", "runs.db", "-o", "page.html", "--pictures", "drawn", "--title", "Mine & <yours>").stdout
    page = (swept / "page.html").read_text()
    assert "Mine &amp; &lt;yours&gt;" in page
    assert 'src="http' not in page
    drawn = sorted(path.suffix for path in (swept / "drawn").iterdir())
    assert set(drawn) == {".png", ".svg"}
    assert f"Pictures  {len(drawn)} in drawn" in said
    assert "Report    page.html" in said
    assert files(swept) == ["drawn", "page.html", "runs.db"]
    call("report", "--criterion", "test_accuracy")
    assert (swept / "report.html").exists()


def test_hostile_names_are_printed_as_text(here):
    name = "[red]bold[/red] [/] :dog: <b>"
    (here / "mine.toml").write_text(TOML + f'name = "{name}"\n')
    for arguments in (["sweep", "mine.toml", "-o", "report.html"], ["runs"], ["runs", "--all"]):
        assert name in call(*arguments).stdout
    assert "[red]bold[/red] [/] :dog: &lt;b&gt;" in (here / "report.html").read_text()


# ---------------------------------------------------------------- what is refused


def another_database():
    with sqlite3.connect("other.db") as database:
        database.execute("CREATE TABLE notes (text TEXT)")
    database.close()


def without_labels():
    np.savez("half.npz", x_train=np.zeros((4, 2)))


def text(name, content):
    return lambda: Path(name).write_text(content)


COMPARE = ["compare", "softmax", "--data", "mine.npz", "-o", "out"]


@pytest.mark.parametrize(
    ("make", "arguments", "named"),
    [
        # what an experiment says
        (None, ["sweep", "none.toml"], ["none.toml", "No such file"]),
        (lambda: Path("dir.toml").mkdir(), ["sweep", "dir.toml"], ["dir.toml", "directory"]),
        (text("x.toml", "a = = b"), ["sweep", "x.toml"], ["x.toml", "is not TOML"]),
        (text("x.toml", ""), ["sweep", "x.toml"], ["x.toml", "dataset"]),
        (text("x.toml", TOML + "epoch = 3"), ["sweep", "x.toml"], ["x.toml", "did you mean 'epochs'"]),
        (text("x.toml", TOML.replace("wada", "wadda")), ["sweep", "x.toml"], ["x.toml", "did you mean 'wada'"]),
        (text("x.toml", TOML.replace("0.01,", "-1,")), ["sweep", "x.toml"], ["x.toml", "learning rate of adam", "-1"]),
        (text("x.toml", TOML.replace("[0.01, 0.1]", "0.1")), ["sweep", "x.toml"], ["lrs of adam", "0.1"]),
        (text("x.toml", TOML.replace("seeds = 2", "seeds = 0")), ["sweep", "x.toml"], ["seeds", "0"]),
        (text("x.toml", TOML.replace("epochs = 2", "epochs = 0")), ["sweep", "x.toml"], ["epochs", "0"]),
        (text("x.toml", TOML.replace("batch = 8", "batch = 1.5")), ["sweep", "x.toml"], ["batch", "1.5"]),
        (text("x.toml", TOML.replace("mine", "none")), ["sweep", "x.toml"], ["none.npz"]),
        (text("x.toml", TOML + "width = 3"), ["sweep", "x.toml"], ["softmax on mine", "width"]),
        (text("x.toml", TOML.replace("softmax", "cnn")), ["sweep", "x.toml"], ["cnn on mine"]),
        (text("x.toml", TOML.replace("softmax", "sofmax")), ["sweep", "x.toml"], ["did you mean 'softmax'"]),
        # what a command says
        (None, ["sweep", "mine.toml", "--every", "0"], ["every", "0"]),
        (None, ["sweep", "mine.toml", "--stack", "0"], ["stack", "0", "an integer >= 1"]),
        (None, ["sweep", "mine.toml", "--stack", "-2", "--engine", "ray"], ["stack", "-2", "an integer >= 1"]),
        (None, ["sweep", "mine.toml", "--criterion", "loss"], ["criterion", "'loss'"]),
        (None, ["sweep", "mine.toml", "--device", "cuda"], ["device", "'cuda'", "no GPU"]),
        (None, ["sweep", "mine.toml", "--device", "tpu"], ["device", "'tpu'"]),
        (None, ["sweep", "mine.toml", "-r", "none/runs.db"], ["none/runs.db", "its folder does not exist"]),
        (None, ["sweep", "mine.toml", "-r", "."], ["records", "'.'", "it is a folder"]),
        (None, ["sweep", "mine.toml", "-r", "mine.npz"], ["mine.npz", "not a database"]),
        (another_database, ["sweep", "mine.toml", "-r", "other.db"], ["other.db", "not one of runs"]),
        (None, [*COMPARE, "--lrs", "0.1,x"], ["lrs", "'x'"]),
        (None, [*COMPARE, "--lrs", "0"], ["learning rate of adam", "0"]),
        (None, [*COMPARE, "--lrs", "nan"], ["learning rate of adam", "nan"]),
        (None, [*COMPARE, "--lrs", "0.1,0.1"], ["lrs of adam", "twice"]),
        (None, [*COMPARE, "--methods", "adam,wadda"], ["did you mean 'wada'"]),
        (None, [*COMPARE, "--methods", ""], ["method", "''"]),
        (None, [*COMPARE, "--methods", "torch.optim.Adan"], ["torch.optim.Adan", "no optimizer can be imported"]),
        (None, [*COMPARE, "--methods", "torch.optim.LBFGS"], ["torch.optim.LBFGS", "closure"]),
        (None, [*COMPARE, "--methods", "torch.optim.SparseAdam"], ["torch.optim.SparseAdam", "dense gradients"]),
        (None, [*COMPARE, "--methods", "os.path"], ["os.path"]),
        (None, [*COMPARE, "--seeds", "0"], ["seeds", "0"]),
        (None, [*COMPARE, "--epochs", "0"], ["epochs", "0"]),
        (None, [*COMPARE, "--batch", "0"], ["batch", "0"]),
        (None, [*COMPARE, "--width", "3"], ["softmax on mine", "width"]),
        (None, [*COMPARE, "--device", "cuda:3"], ["device", "'cuda:3'"]),
        (None, ["compare", "mpl", "--data", "mine.npz"], ["did you mean 'mlp'"]),
        (None, ["compare", "mine_net:Nte", "--data", "mine.npz"], ["mine_net:Nte", "has no attribute"]),
        (None, ["compare", "nowhere:Net", "--data", "mine.npz"], ["nowhere:Net", "No module named 'nowhere'"]),
        (None, ["compare", "mine_net:something", "--data", "mine.npz"], ["mine_net:something", "function"]),
        (None, ["compare", "mine_net:broken", "--data", "mine.npz"], ["broken", "not today"]),
        (None, ["compare", "mine_net:Net", "--data", "digits"], ["mine_net:Net on digits", "(128, 1, 8, 8)"]),
        (None, ["compare", "mine_net:Net", "--data", "mine.npz", "--width", "3"], ["model option", "width"]),
        (None, ["compare", "mlp", "--data", "mnits"], ["did you mean 'mnist'"]),
        (without_labels, ["compare", "mlp", "--data", "half.npz"], ["half.npz", "y_train"]),
        (text("bad.npz", "text"), ["compare", "mlp", "--data", "bad.npz"], ["bad.npz"]),
        (text("out", "text"), COMPARE, ["out", "must be a folder"]),
        (None, ["runs"], ["runs.db", "there is no such file"]),
        (None, ["runs", "."], ["'.'", "it is a folder"]),
        (None, ["runs", "mine.toml"], ["mine.toml", "not a database"]),
        (another_database, ["runs", "other.db"], ["other.db", "not one of runs"]),
        (None, ["report", "none.db"], ["none.db", "there is no such file"]),
    ],
)
def test_what_is_wrong_is_named_in_one_line_and_nothing_is_written(make, arguments, named, here, monkeypatch, capsys):
    if make:
        make()
    before = files(here)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(Stack, "train", None)
    monkeypatch.setattr(sys, "argv", ["wagmf", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    said = capsys.readouterr()
    assert end.value.code == 2, said.err
    assert len(said.err.splitlines()) == 1, said.err
    assert all(word in said.err for word in named), said.err
    assert said.out == ""
    assert files(here) == before


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["runs", "--export", "out.xlsx"], ["out.xlsx", ".csv or .parquet"]),
        (["runs", "--export", "none/out.csv"], ["none"]),
        (["report", "--criterion", "loss"], ["criterion", "'loss'"]),
        (["report", "-o", "."], ["'.'", "folder"]),
        (["report", "-o", "."], ["."]),
    ],
)
def test_what_cannot_be_made_of_records_is_told(arguments, named, swept, monkeypatch, capsys):
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["wagmf", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    said = capsys.readouterr()
    assert end.value.code == 2
    assert len(said.err.splitlines()) == 1
    assert all(word in said.err for word in named), said.err
    assert files(swept) == ["runs.db"]


@pytest.mark.parametrize(
    ("option", "value"), [("address", "a:1"), ("checkpoints", "s3://b"), ("cpus", 99), ("gpus", -3.0), ("gpus", 1.0)]
)
def test_what_is_for_a_cluster_is_refused_without_a_cluster(option, value, here):
    with pytest.raises(Refused, match=rf"Invalid {option}: {value!r} \(it is for a cluster: add --engine ray\)"):
        call("sweep", "mine.toml", f"--{option}", value)
    assert not (here / "runs.db").exists()


def test_records_without_runs(here):
    Records("runs.db")
    assert "experiment" in call("runs").stdout
    assert "0 runs into out.csv" in call("runs", "--export", "out.csv").stdout
    assert files(here) == ["out.csv", "runs.db"]
