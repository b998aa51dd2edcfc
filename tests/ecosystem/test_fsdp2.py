"""The FSDP2 example, from torchrun: two processes walk as one, and checkpoints move between them with all that is in.

Curves are compared in float64. One process and two add up the same numbers in another order, so that losses and norms
differ in the last place, by 1e-16 of them, and in the steps taken here by no more than ten times that. What is lost of
the optimizer's state shows in the second digit. TOLERANCE lies between, far from both.
"""

import json
import runpy
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import forks
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save, torch_save_to_dcp

from wagmf.torch import WADA

EXAMPLE = Path(__file__).parents[2] / "examples" / "fsdp2_transformer.py"
SMALL = "--dtype float64 --width 32 --layers 2 --context 32 --batch 8"
TOLERANCE = 1e-12
METHODS = {"wada": "--method wada", "amsgrad": "--method amsgrad --lr 0.01"}  # m and v, and a maximum besides
ALL = 40  # steps of the longest runs
CLIP, LR = 0.3, 0.1
LOST = [("wada", "m"), ("wada", "v"), ("wada", "step"), ("wada", "window"), ("amsgrad", "m"), ("amsgrad", "v")]

# Starting takes longer than training: many runs of the example in the processes of one launch, each with the arguments
# of a command line. The errors of those that fail are written down.
MANY = """
import json, runpy, sys, traceback
from pathlib import Path
import torch.distributed as dist
example = runpy.run_path(sys.argv[1])
device = example["start"]()
for name, arguments in json.loads(sys.argv[2]).items():
    try:
        example["train"](example["arguments"](arguments.split()), device)
    except BaseException:  # a checkpoint that is refused is no Exception
        Path(name + ".error").write_text(traceback.format_exc())
dist.destroy_process_group()
"""

# One worker trains for all of these.
pytestmark = pytest.mark.xdist_group("fsdp2")


def command(processes: int, *rest: str) -> list[str]:
    """As people write it: torchrun for several processes, python for one."""
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    return [*(run if processes > 1 else [sys.executable]), *rest]


def launch(folder: Path, processes: int, **runs: str) -> None:
    """Let the example run with these arguments, one after the other; each writes its curve to a file of its name."""
    jobs = {name: f"{SMALL} --curve {name}.jsonl {arguments}" for name, arguments in runs.items()}
    (folder / "many.py").write_text(MANY)
    # Two processes with a thread each, on what may be two cores.
    environment = forks.unmeasured() | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command(processes, "many.py", str(EXAMPLE), json.dumps(jobs)),
        cwd=folder, env=environment, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    check_ended(done)


def check_ended(done: subprocess.CompletedProcess[str]) -> None:
    """Well, or by what processes of torch may die of on a loaded machine when all is done and saved.

    Gloo's threads outlive the process group, which FSDP2 holds. One that lets go of its last tensor while the
    interpreter ends cannot have its lock, and ends the process with these words. What was done is tested elsewhere.
    """
    late = "terminate called without an active exception" in done.stderr
    assert done.returncode == 0 or late, (done.stdout + done.stderr)[-4000:]


def curve(folder: Path, name: str, key: str = "loss") -> torch.Tensor:
    """What was written of every step, which must be there once and in order."""
    error = folder / f"{name}.error"
    assert not error.exists(), error.read_text()[-4000:]
    lines = [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(len(lines)))
    return torch.tensor([line[key] for line in lines], dtype=torch.float64)


def checkpoint_of(folder: Path, name: str, step: int) -> dict:
    """A checkpoint as plain tensors."""
    file = folder / "checkpoint.pt"
    dcp_to_torch_save(folder / name / f"step-{step:08d}", file)
    return torch.load(file, weights_only=False)


def fork_run(folder: Path, name: str, new: str) -> Path:
    """Another run that has the fourth step of ``name`` behind it, and was killed at the sixth."""
    whole = folder / new / "step-00000004"
    shutil.copytree(folder / name / "step-00000004", whole)
    (folder / new / "partial-00000008").mkdir()
    (folder / new / "partial-00000008" / "__0_0.distcp").write_text("not all of it")
    lines = (folder / f"{name}.jsonl").read_text().splitlines()
    (folder / f"{new}.jsonl").write_text("\n".join([*lines[:5], lines[5][:10]]))
    return whole


def rewrite(folder: Path, name: str, new: str, change) -> None:
    """The same, of a checkpoint whose optimizer is changed."""
    whole = fork_run(folder, name, new)
    state = checkpoint_of(folder, name, 4)
    change(state["optimizer"])
    options = (whole / "options.json").read_text()
    shutil.rmtree(whole)
    torch.save(state, folder / "changed.pt")
    torch_save_to_dcp(folder / "changed.pt", whole)
    (whole / "options.json").write_text(options)


def zero(part: str):
    def change(optimizer):
        assert all(state[part].abs().sum() > 0 for state in optimizer["state"].values())
        for state in optimizer["state"].values():
            state[part].zero_()

    return change


def going_on(method: str, name: str, steps: int = 8) -> str:
    return f"{METHODS[method]} --steps {steps} --every 4 --checkpoint {name} --resume"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """All runs in three launches: two processes, one, two again."""
    folder = tmp_path_factory.mktemp("fsdp2")
    both = {name: f"{method} --steps 12 --every 4 --checkpoint {name}" for name, method in METHODS.items()}
    extras = {
        "parts2": "--steps 4 --accumulate 2",
        "clipped2": f"--steps 4 --clip {CLIP}",
        "low": "--steps 12 --dtype bfloat16 --checkpoint low",
        "descent": f"--method ogd --lr {LR} --steps 2 --every 1 --clip {CLIP} --checkpoint descent",
    }
    launch(folder, 2, **both, **extras)
    alone = {f"alone_{name}": f"{method} --steps {ALL}" for name, method in METHODS.items()}
    alone |= {"parts1": "--steps 4 --accumulate 4", "clipped1": f"--steps 4 --clip {CLIP} --accumulate 2"}
    for name in METHODS:
        fork_run(folder, name, f"moved_{name}")
        alone[f"moved_{name}"] = going_on(name, f"moved_{name}")
    for name, part in LOST:
        rewrite(folder, name, f"lost_{name}_{part}", zero(part))
        alone[f"lost_{name}_{part}"] = going_on(name, f"lost_{name}_{part}")
    rewrite(folder, "wada", "unchanged", lambda optimizer: None)
    rewrite(folder, "wada", "gone", lambda optimizer: optimizer["state"].clear())
    kept = fork_run(folder, "wada", "other") / "options.json"
    kept.write_text(kept.read_text().replace('"wada"', '"wada_v3"'))
    alone |= {"unchanged": going_on("wada", "unchanged"), "gone": going_on("wada", "gone")}
    launch(folder, 1, **alone, other=f"{going_on('wada', 'other')} --method wada_v3")
    launch(folder, 2, **{f"moved_{name}": going_on(name, f"moved_{name}", 12) for name in METHODS})
    return folder


def same(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=TOLERANCE, atol=0)


@pytest.mark.parametrize("key", ["loss", "norm"])
@pytest.mark.parametrize("method", METHODS)
def test_two_processes_have_the_curve_of_one(trained, method, key):
    ours = curve(trained, method, key)
    assert len(ours) == 12
    same(ours, curve(trained, f"alone_{method}", key)[:12])


def test_the_documents_tell_the_tolerance():
    assert f"on two processes is that on one to {TOLERANCE:g}," in (EXAMPLE.parents[1] / "docs/torch.md").read_text()


def test_the_two_methods_differ_and_learn(trained):
    wada, amsgrad = (curve(trained, name) for name in METHODS)
    assert (wada - amsgrad)[1:].abs().min() > 1e-3
    assert wada[-1] < wada[0] - 0.5


@pytest.mark.parametrize("method", METHODS)
def test_a_checkpoint_moves_from_two_processes_to_one_and_back(trained, method):
    """Of a run that was killed: with a checkpoint that is not whole, and steps on its curve that are taken again."""
    moved = curve(trained, f"moved_{method}")
    assert len(moved) == 12
    same(moved, curve(trained, method))
    assert len(list((trained / f"moved_{method}").glob("step-*"))) == 3


def test_a_checkpoint_that_was_only_rewritten_goes_on_as_before(trained):
    same(curve(trained, "unchanged"), curve(trained, "wada")[:8])


@pytest.mark.parametrize(("method", "part"), LOST)
def test_state_that_is_lost_would_be_seen(trained, method, part):
    """Any of it: the comparisons above are far from passing."""
    lost, kept = curve(trained, f"lost_{method}_{part}"), curve(trained, method)[:8]
    same(lost[:5], kept[:5])  # the loss of the fifth step is of parameters, which are not lost
    assert ((lost - kept).abs() / kept)[5:].max() > 1e9 * TOLERANCE


def test_a_checkpoint_without_the_state_is_refused(trained):
    assert "Missing key in checkpoint state_dict: optimizer.state" in (trained / "gone.error").read_text()


def test_a_checkpoint_of_another_rule_is_refused_whatever_its_options_say(trained):
    assert "p1 2.0 there, 3.0 here" in (trained / "other.error").read_text()


@pytest.mark.parametrize("name", ["parts1", "parts2"])
def test_gradients_of_parts_add_up_to_that_of_the_batch(trained, name):
    for key in ("loss", "norm"):
        same(curve(trained, name, key), curve(trained, "wada", key)[:4])


def test_clipping_is_the_same_for_two_processes_and_changes_the_walk(trained):
    clipped = curve(trained, "clipped2")
    same(clipped, curve(trained, "clipped1"))
    assert (clipped - curve(trained, "wada")[:4])[1:].abs().min() > 1e-3


def test_a_clipped_gradient_is_as_long_as_it_may_be(trained):
    """Gradient descent moves by the step size times what it is given."""
    before, after = (checkpoint_of(trained, "descent", step)["model"] for step in (1, 2))
    moved = torch.stack([(after[name] - before[name]).norm() for name in before]).norm()
    whole = curve(trained, "descent", "norm")[1]
    assert whole > 2 * CLIP
    torch.testing.assert_close(moved, LR * CLIP * whole / (whole + 1e-6), rtol=1e-10, atol=0)  # torch adds 1e-6


def test_bfloat16_is_what_is_kept_and_learns(trained):
    saved = checkpoint_of(trained, "low", 12)
    kept = [state[name] for state in saved["optimizer"]["state"].values() for name in ("m", "v")]
    assert {x.dtype for x in [*saved["model"].values(), *kept]} == {torch.bfloat16}
    low = curve(trained, "low")
    assert low[-1] < low[0] - 0.5


def test_a_run_that_is_killed_goes_on(trained, tmp_path):
    """The commands of the example itself: one process until it is killed, then two."""
    rest = f"--steps {ALL} --every 5 --checkpoint run --resume --curve killed.jsonl"
    run = [str(EXAMPLE), *SMALL.split(), *rest.split()]
    environment = forks.unmeasured() | {"OMP_NUM_THREADS": "1"}
    here = {"cwd": tmp_path, "env": environment}
    killed = subprocess.Popen(command(1, *run), **here, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while killed.poll() is None and len(list(tmp_path.glob("run/step-*"))) < 2:
        time.sleep(0.02)
    killed.kill()
    assert killed.wait() == -signal.SIGKILL
    check_ended(subprocess.run(command(2, *run), **here, capture_output=True, text=True, timeout=240))
    same(curve(tmp_path, "killed"), curve(trained, "alone_wada"))


def test_a_checkpoint_that_was_not_finished_is_none(tmp_path, monkeypatch):
    """Killed while it writes, a run leaves nothing that would be taken for one."""

    def killed(state, checkpoint_id):
        checkpoint_id.mkdir()
        (checkpoint_id / "__0_0.distcp").write_text("not all of it")
        raise KeyboardInterrupt

    example, model = runpy.run_path(str(EXAMPLE)), torch.nn.Linear(2, 1)
    options = example["arguments"](["--checkpoint", str(tmp_path)])
    monkeypatch.setattr(dcp, "save", killed)
    example["start"]()
    try:
        with pytest.raises(KeyboardInterrupt):
            example["save"](options, 4, model, WADA(model.parameters()))
    finally:
        dist.destroy_process_group()
    assert list(tmp_path.iterdir())
    assert example["newest"](tmp_path) is None


@pytest.fixture(scope="module")
def read():
    return runpy.run_path(str(EXAMPLE))["arguments"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("--batch 9 --accumulate 2", "--batch 9 must be divisible by 1 processes × 2 parts"),
        *[
            (f"--{name}={value}", f"argument --{name}: '{value}' must be a whole number >= 1")
            for name in ("steps", "batch", "accumulate", "width", "layers", "heads", "context", "every")
            for value in ("0", "-1", "1.5", "many", "²")
        ],
        *[
            (f"--{name}={value}", f"argument --{name}: '{value}' must be a number > 0")
            for name in ("lr", "clip")
            for value in ("0", "-1", "nan", "much")
        ],
        ("--lr inf", "--lr inf must be finite"),
        ("--heads 3", "--width 128 must be divisible by --heads 3"),
        ("--context 100000000", "--context 100000000 must be less than"),
        ("--resume", "--resume needs --checkpoint"),
        ("--checkpoint full", "has checkpoints: --resume goes on from them"),
        ("--checkpoint full --resume", "full/step-00000004 has no options.json, which tells what it was trained with"),
        *[
            (f"--checkpoint {name}{more}", f"--checkpoint {name} must be a folder or a free name, but file is a file")
            for name in ("file", "file/runs/a")
            for more in ("", " --resume")
        ],
        ("--method sgd", "invalid choice: 'sgd'"),
    ],
)
def test_wrong_arguments_are_refused(tmp_path, monkeypatch, capsys, read, arguments, told):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full" / "step-00000004").mkdir(parents=True)
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit):
        read(arguments.split())
    assert told in capsys.readouterr().err


def resumed(*others: str) -> list[str]:
    """What goes on with the run of WADA, but for some options."""
    return [*SMALL.split(), *going_on("wada", "wada").split(), *others]


@pytest.mark.parametrize(
    ("others", "here", "there"),
    [
        (["--lr", "5.0"], "--lr 5.0", "--lr 0.1"),
        (["--layers", "1"], "--layers 1", "--layers 2"),
        (["--dtype", "bfloat16"], "--dtype bfloat16", "--dtype float64"),
        (["--method", "wada_v3"], "--method wada_v3", "--method wada"),
        (["--clip", "1"], "--clip 1.0", "--clip inf"),
        (["--heads", "2"], "--heads 2", "--heads 4"),
        (["--context", "16"], "--context 16", "--context 32"),
        (["--width", "64", "--batch", "4"], "--batch 4 --width 64", "--batch 8 --width 32"),
    ],
)
def test_a_run_goes_on_only_with_what_its_checkpoint_was_trained_with(
    trained, monkeypatch, capsys, read, others, here, there
):
    monkeypatch.chdir(trained)
    with pytest.raises(SystemExit):
        read(resumed(*others))
    told = f"error: {here}: wada/step-00000012 has {there}; go on with that, or begin in another --checkpoint\n"
    assert capsys.readouterr().err.endswith(told)


def test_what_does_not_decide_the_curve_may_change(trained, monkeypatch, read):
    monkeypatch.chdir(trained)
    free = ["--steps=50", "--every=7", "--accumulate=4", "--curve=other.jsonl", f"--checkpoint={trained / 'wada'}"]
    assert read(resumed(*free)).steps == 50


def test_every_option_decides_the_curve_or_is_free(read):
    free = {"steps", "accumulate", "checkpoint", "every", "resume", "curve"}
    assert vars(read([])).keys() == free | {*runpy.run_path(str(EXAMPLE))["DECIDE"]}


def test_the_least_that_is_right_is_taken(read):
    counts = ("steps", "batch", "accumulate", "width", "layers", "heads", "context", "every")
    options = read([*(f"--{name}=1" for name in counts), "--clip=inf", "--lr=1e-9"])
    assert {getattr(options, name) for name in counts} == {1}
    assert (options.clip, options.lr) == (float("inf"), 1e-9)
