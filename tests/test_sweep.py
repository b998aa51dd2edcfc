"""Sweeps: nothing is lost, nothing is trained twice, whatever ends them and however the grid grows."""

import json
import os
import resource
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import forks
import pytest
import sweeps
import torch
from filelock import FileLock
from sweeps import TABLES, left_over, outcome, ready, vectors
from twins import one_thread as one_thread

from wagmf.arguments import Refused
from wagmf.lab import environment, planning
from wagmf.lab import sweep as room
from wagmf.lab.engine import Stack
from wagmf.lab.planning import addresses, plan, prepare, stack_size
from wagmf.lab.records import METRICS, Records
from wagmf.lab.spec import experiment
from wagmf.lab.sweep import Engine, Watch, sweep
from wagmf.lab.tuning import carry_out

pytestmark = pytest.mark.usefixtures("one_thread")


class Notes(Watch):
    """Remembers all that a sweep says."""

    def __init__(self):
        self.said, self.texts = [], []

    def planned(self, works, done):
        self.said.append(("planned", [len(work.keys) for work in works], done))

    def begun(self, work, epoch):
        self.said.append(("begun", len(work.keys), epoch))

    def finished(self, work, runs):
        self.said.append(("finished", len(runs)))

    def told(self, text):
        self.texts.append(text)


class Stop(BaseException):
    """As sudden as Ctrl-C."""


@pytest.fixture
def path(tmp_path):
    """In a folder of its own, so that all that is left beside it shows."""
    (tmp_path / "here").mkdir()
    return tmp_path / "here" / "runs.db"


@pytest.fixture
def stopping(monkeypatch):
    """Epochs that may be trained before the sweep is stopped."""
    train, left = Stack.train, [10**9]

    def once(stack):
        if left[0] == 0:
            raise Stop
        left[0] -= 1
        train(stack)

    monkeypatch.setattr(Stack, "train", once)
    return left


def whole(prepared, **more):
    """What an undisturbed sweep gives."""
    with tempfile.TemporaryDirectory() as folder:
        sweep(prepared, Path(folder) / "runs.db", **more)
        return outcome(Path(folder) / "runs.db")


def alike(mine, right):
    """The same runs with the same results, but for rounding."""
    assert set(mine) == set(right)
    for key, (name, config, diverged, curves) in right.items():
        assert mine[key][:3] == (name, config, diverged)
        for metric in METRICS:
            assert mine[key][3][metric] == pytest.approx(curves[metric], rel=2e-5, abs=1e-6)


# ---------------------------------------------------------------- killed


@pytest.fixture(scope="module")
def driven(tmp_path_factory):
    """The folder in which a process has swept undisturbed, killed 20 times, and twice at the same time."""
    folder = tmp_path_factory.mktemp("driven")
    ended = forks.run(sweeps.driver, folder, 20, fresh=True)
    assert ended.code == 0, ended.said[-4000:]
    return folder


needs_fork = pytest.mark.skipif(sys.platform != "linux", reason="forks processes that have torch imported")


@needs_fork
def test_killed_at_any_moment_it_goes_on_to_the_same_records_bit_for_bit(driven):
    right = outcome(driven / "whole" / "runs.db")
    assert len(right) == 28
    assert any(diverged for _, _, diverged, _ in right.values())
    told = json.loads((driven / "told.json").read_text())["killed"]
    assert len(told["hit"]) >= 20 + 2 * len(told["sweeps"]) - 2
    assert set(told["hit"]) == {"line", "clock", *sweeps.FIRST, *sweeps.SPOTS}
    for number in range(len(told["sweeps"])):
        path = driven / "killed" / str(number) / "runs.db"
        assert outcome(path) == right
        assert left_over(path) == []
    # They were hit while there was something to lose: runs recorded already, and others at some epoch.
    tried = [attempt for n in range(len(told["sweeps"])) for attempt in attempts(driven / "killed" / str(n))]
    went_on = {right[key][0] for keys, epoch in tried if epoch for key in keys}
    assert "deep" in went_on  # which would draw other masks if it had forgotten its step
    assert sum(0 < len(keys) < 28 for states in told["sweeps"] for keys, _ in states) >= 3


def attempts(folder):
    return Records(folder / "runs.db").attempts()


@needs_fork
def test_killed_at_any_moment_no_finished_run_is_trained_again(driven):
    told = json.loads((driven / "told.json").read_text())["killed"]
    for number, states in enumerate(told["sweeps"]):
        tried = attempts(driven / "killed" / str(number))
        for keys, count in states:  # what was recorded when training had begun so many times
            assert set(keys).isdisjoint(key for later, _ in tried[count:] for key in later)


@needs_fork
def test_two_sweeps_on_one_file_share_the_work(driven):
    assert json.loads((driven / "told.json").read_text())["both"] == [0, 0]
    path = driven / "both" / "runs.db"
    assert outcome(path) == outcome(driven / "whole" / "runs.db")
    trained = [key for keys, _ in Records(path).attempts() for key in keys]
    assert sorted(trained) == sorted(outcome(path))
    assert left_over(path) == []


@pytest.mark.parametrize("epochs", [0, 1, 3, 5, 8, 11])
def test_stopped_it_goes_on_from_the_last_checkpoint(epochs, path, stopping):
    prepared = ready(*TABLES[1:])
    right = whole(prepared)
    stopping[0] = epochs
    with pytest.raises(Stop):
        sweep(prepared, path, every=2)
    stopping[0] = 10**9
    before, notes = outcome(path), Notes()
    sweep(prepared, path, every=2, watch=notes)
    assert outcome(path) == right
    assert left_over(path) == []
    # Three stacks of four epochs: 8, 4 and 8 runs, and those of others after ours.
    stacks, within = divmod(epochs, 4)
    assert notes.said[0] == ("planned", [8, 4, 8][stacks:], len(before))
    assert notes.said[1] == ("begun", [8, 4, 8][stacks], within // 2 * 2)


def test_a_sweep_that_is_done_trains_nothing(path, monkeypatch):
    prepared = ready()
    keys = sweep(prepared, path)
    monkeypatch.setattr(Stack, "train", None)
    notes = Notes()
    assert sweep(prepared, path, watch=notes) == keys == set(outcome(path)) == set(addresses(prepared))
    assert notes.said == [("planned", [], 4)]
    assert left_over(path) == []


def test_a_damaged_checkpoint_is_told_and_not_used(path, stopping):
    prepared = ready()
    right = whole(prepared)
    for damage in (b"", b"half", None, "torch", "other"):
        path.unlink(missing_ok=True)
        stopping[0] = 2
        with pytest.raises(Stop):
            sweep(prepared, path, every=1)
        stopping[0] = 10**9
        (saved,) = path.parent.glob("*/*.pt")
        if damage is None:
            saved.write_bytes(saved.read_bytes()[:-100])
        elif damage == "torch":
            torch.save({"epoch": 3}, saved)
        elif damage == "other":
            torch.save([1, 2], saved)
        else:
            saved.write_bytes(damage)
        notes = Notes()
        sweep(prepared, path, watch=notes)
        (text,) = notes.texts
        assert text.startswith(f"{saved} cannot be read and is not used (")
        assert "begins anew" in text
        assert notes.said[1] == ("begun", 4, 0)
        assert outcome(path) == right
        assert left_over(path) == []


def test_a_checkpoint_of_no_use_does_not_stay(path, stopping):
    """Of a stack that was recorded just before the process was killed, and half a one."""
    prepared = ready()
    stopping[0] = 2
    with pytest.raises(Stop):
        sweep(prepared, path, every=1)
    (saved,) = path.parent.glob("*/*.pt")
    stopping[0] = 10**9
    kept = saved.read_bytes()
    sweep(prepared, path)
    saved.parent.mkdir()
    saved.write_bytes(kept)
    (saved.parent / f".{saved.stem}-abc.pt").write_bytes(kept[:99])
    sweep(prepared, path)
    assert left_over(path) == []


def test_checkpoints_of_other_experiments_are_kept(path, stopping):
    first, second = ready({"name": "first"}), ready({"name": "second", "l2": 0.1})
    stopping[0] = 2
    with pytest.raises(Stop):
        sweep(first, path, every=1)
    stopping[0] = 10**9
    sweep(second, path)
    (saved,) = plan(first, set())
    assert left_over(path) == ["runs.db.stacks", "runs.db.stacks/.gitignore", f"runs.db.stacks/{saved.identity}.pt"]
    notes = Notes()
    sweep(first, path, watch=notes)
    assert notes.said[1] == ("begun", 4, 2)
    assert left_over(path) == []


def test_the_lock_of_a_dead_process_does_not_block(path):
    prepared = ready()
    (work,) = plan(prepared, set())
    folder = path.with_name("runs.db.stacks")
    folder.mkdir()
    (folder / f"{work.identity}.lock").write_text("12345\nnowhere\n")
    sweep(prepared, path)
    assert len(outcome(path)) == 4
    assert left_over(path) == []


def test_what_another_sweep_trains_is_waited_for(path, monkeypatch):
    prepared = ready({"name": "mine"}, {"name": "theirs", "l2": 0.1})
    right = whole(prepared)
    theirs, of = plan(prepared, set())[1], prepared[1]
    folder = path.with_name("runs.db.stacks")
    folder.mkdir()
    lock = FileLock(folder / f"{theirs.identity}.lock", thread_local=False)
    lock.acquire()
    notes, waited = Notes(), []

    def pause(_):
        """The other one takes its time, and has then trained a part of it."""
        waited.append(len(outcome(path)))
        if len(waited) == 3:
            sweep([replace(of, experiment=replace(of.experiment, seeds=(1,)))], path)
            assert lock.is_locked
            assert (folder / f"{theirs.identity}.lock").exists()  # that sweep leaves alone what is in use
            lock.release()

    monkeypatch.setattr(room.time, "sleep", pause)
    sweep(prepared, path, watch=notes)
    assert waited == [4, 4, 4]
    assert notes.texts == ["Another sweep trains what is left; waiting for it."]
    # Of four runs two were recorded meanwhile: the others alone are trained.
    assert [len(keys) for keys, _ in Records(path).attempts()] == [4, 2, 2]
    alike(outcome(path), right)
    assert left_over(path) == []


# ---------------------------------------------------------------- grids


def test_a_grid_that_grows_trains_only_what_is_new(path):
    sweep(ready(), path)
    first = outcome(path)
    for table, new in (
        ({"lrs": [0.01, 0.1, 1.0]}, [2]),
        ({"lrs": [0.01, 0.1, 1.0], "seeds": [0, 1, 7]}, [3]),
        ({"lrs": [0.01, 0.1, 1.0], "seeds": [7, 1, 0], "methods": ["wada", "adam"]}, [9]),
        ({"lrs": [0.1], "methods": ["adam"]}, []),
    ):
        notes = Notes()
        sweep(ready(table), path, watch=notes)
        assert notes.said[0][1] == new
    everything = ready({"lrs": [0.01, 0.1, 1.0], "seeds": [0, 1, 7], "methods": ["wada", "adam"]})
    assert {key: outcome(path)[key] for key in first} == first
    alike(outcome(path), whole(everything))
    trained = [key for keys, _ in Records(path).attempts() for key in keys]
    assert sorted(trained) == sorted(addresses(everything))


def test_a_stack_that_was_stopped_goes_on_as_it_was_though_the_grid_has_grown(path, stopping):
    small = ready()
    right = whole(small)
    stopping[0] = 3
    with pytest.raises(Stop):
        sweep(small, path, every=1)
    stopping[0] = 10**9
    notes = Notes()
    large = ready({"lrs": [0.01, 0.03, 0.1], "seeds": 3, "methods": ["wada", "adam"]}, {"name": "other", "l2": 0.1})
    sweep(large, path, every=1, watch=notes)
    assert notes.said[:2] == [("planned", [4, 12, 2, 4], 0), ("begun", 4, 3)]
    assert {key: outcome(path)[key] for key in right} == right
    assert set(outcome(path)) == set(addresses(large))
    trained = [key for keys, epoch in Records(path).attempts() for key in keys if not epoch]
    assert sorted(trained) == sorted(outcome(path))
    assert left_over(path) == []


def test_a_stack_that_was_stopped_is_given_up_when_the_grid_no_longer_has_it(path, stopping):
    stopping[0] = 3
    with pytest.raises(Stop):
        sweep(ready({"lrs": [0.01, 0.1]}), path, every=1)
    stopping[0] = 10**9
    notes = Notes()
    sweep(ready({"lrs": [0.01, 1.0]}), path, watch=notes)
    assert notes.said[:2] == [("planned", [4], 0), ("begun", 4, 0)]
    # Half of what the checkpoint is of has been recorded since: it is of no use to anybody.
    assert left_over(path) == []
    sweep(ready({"lrs": [0.01, 0.1]}), path, watch=notes)
    assert notes.said[-2:] == [("begun", 2, 0), ("finished", 2)]


def test_small_stacks_give_what_one_stack_gives_and_are_cut_alike_each_time(path, monkeypatch, stopping):
    grid = {"methods": ["adam", "wada", "torch.optim.AdamW"], "lrs": [0.01, 0.1, 0.3], "seeds": 3}
    prepared = ready({"model": "mlp", "width": 4, **grid})
    right = whole(prepared)
    assert [len(work.keys) for work in plan(prepared, set())] == [18, 9]
    of = prepared[0]
    one = of.model.activations * 8 * 4
    for cache in (7 * one, 2 * one, 1):
        monkeypatch.setattr(planning, "_CACHE", cache)
        size = stack_size(of.experiment.problem, of.model, "cpu")
        assert size == max(1, cache // one)
        works = plan(prepared, set())
        assert sum(len(work.keys) for work in works) == 27
        assert max(len(work.keys) for work in works) <= size
        assert len(set.union(*(set(work.keys) for work in works))) == 27
        # Whatever is done before, the rest is cut as it would have been.
        for done in (works[:1], works[1:2], works[2:]):
            keys = {key for work in done for key in work.keys}
            assert plan(prepared, keys) == [work for work in works if work not in done]
    monkeypatch.setattr(planning, "_CACHE", 7 * one)
    stopping[0] = 6
    with pytest.raises(Stop):
        sweep(prepared, path, every=1)
    stopping[0] = 10**9
    sweep(prepared, path, every=1)
    alike(outcome(path), right)
    tried = Records(path).attempts()
    assert [epoch for _, epoch in tried] == [0, 0, 2, *[0] * (len(tried) - 3)]
    ways = {run.way for run in Records(path).runs()}
    assert all(way.startswith("stacked, ") for way in ways)
    assert len(ways) > 1


def test_memory_bounds_stacks_where_it_is_little_or_unknown(monkeypatch):
    (of,) = ready()
    monkeypatch.setattr(planning, "memory_of", lambda device: 1000)
    assert stack_size(of.experiment.problem, of.model, "cpu") == 1
    monkeypatch.undo()
    monkeypatch.setattr(planning.os, "sysconf", lambda name: (_ for _ in ()).throw(ValueError(name)))
    assert planning.memory_of("cpu") == 4 << 30


@pytest.mark.parametrize("most", [1, 3, 4, 100])
def test_stacks_can_be_made_smaller_and_have_the_same_runs(path, most):
    tables = [{"model": "softmax", "lrs": [0.01, 0.1, 1.0], "seeds": 3}, {"model": "mlp", "width": 5, "seeds": 5}]
    notes, prepared = Notes(), ready(*tables, stack=most)
    sweep(prepared, path, watch=notes)
    right = ready(*tables)
    (_, sizes, _), *_ = notes.said
    assert max(sizes) <= most
    assert sum(sizes) == len(addresses(right)) == 19
    assert sizes == [len(work.keys) for each in prepared for work in planning.cut(each)]
    assert (sizes == [9, 10]) == (most == 100)
    alike(outcome(path), whole(right))
    sweep(right, path, watch=notes)  # another size of stacks finds them all
    assert notes.said[-1] == ("planned", [], 19)


def test_a_stack_that_was_stopped_goes_on_as_it_was_though_stacks_are_to_be_smaller(path, stopping):
    right = whole(ready())
    stopping[0] = 3
    with pytest.raises(Stop):
        sweep(ready(), path, every=1)
    stopping[0] = 10**9
    notes = Notes()
    sweep(ready(stack=1), path, every=1, watch=notes)
    assert notes.said == [("planned", [4], 0), ("begun", 4, 3), ("finished", 4)]
    assert outcome(path) == right


def test_every_engine_is_given_the_smaller_stacks_of_a_search_too(path):
    class Noting(room.Engine):
        def train(self, works, desk):
            given.extend(len(work.keys) for work in works)
            super().train(works, desk)

    given = []
    carry_out(ready(tuning={}, stack=1), path, engine=Noting())
    assert set(given) == {1}
    assert len(given) == len(outcome(path)) > 5


@pytest.mark.parametrize("stack", [0, -1, 1.5, "many", True])
def test_a_stack_of_no_replicas_is_refused(stack):
    with pytest.raises(Refused, match=f"Invalid stack: {stack!r} .stack must be an integer >= 1"):
        ready(stack=stack)


def test_two_experiments_that_are_one_are_trained_once(path):
    prepared = ready({"name": "one"}, {"name": "the same"})
    assert [len(work.keys) for work in plan(prepared, set())] == [4]
    sweep(prepared, path)
    assert len(outcome(path)) == 4


# ---------------------------------------------------------------- memory


def test_a_stack_that_does_not_fit_is_halved(path, monkeypatch):
    prepared = ready({"lrs": [0.01, 0.1, 1.0], "seeds": 3})
    right, train = whole(prepared), Stack.train

    def limited(stack):
        if len(stack) > 2 and stack.epoch == 1:  # so that a checkpoint is there already
            raise torch.OutOfMemoryError("CUDA out of memory")
        train(stack)

    monkeypatch.setattr(Stack, "train", limited)
    notes = Notes()
    sweep(prepared, path, every=1, watch=notes)
    alike(outcome(path), right)
    assert notes.texts[:2] == [f"{n} replicas do not fit into memory: two stacks instead." for n in (9, 3)]
    assert max(said[1] for said in notes.said if said[0] == "finished") <= 2
    assert left_over(path) == []


def test_not_even_one_replica_fits(path, monkeypatch):
    def full(stack):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(Stack, "train", full)
    with pytest.raises(Refused, match=r"^tight: not even one replica fits into the memory of the device$"):
        sweep(ready({"name": "tight"}), path)
    assert outcome(path) == {}


def test_halves_of_a_stack_that_did_not_fit_go_on(path, monkeypatch, stopping):
    prepared = ready()
    right, train = whole(prepared), Stack.train

    def limited(stack):
        if len(stack) > 2:
            raise torch.OutOfMemoryError
        train(stack)

    monkeypatch.setattr(Stack, "train", limited)
    stopping[0] = 2
    with pytest.raises(Stop):
        sweep(prepared, path, every=1)
    stopping[0] = 10**9
    notes = Notes()
    sweep(prepared, path, every=1, watch=notes)
    assert notes.said[:2] == [("planned", [2, 2], 0), ("begun", 2, 2)]
    alike(outcome(path), right)
    assert left_over(path) == []


def test_memory_that_runs_out_while_a_checkpoint_is_read_is_not_taken_for_damage(path, monkeypatch, stopping):
    stopping[0] = 2
    with pytest.raises(Stop):
        sweep(ready(), path, every=1)
    stopping[0] = 10**9
    load = Stack.load_state_dict

    def limited(stack, state):
        if len(stack) > 2:
            raise torch.OutOfMemoryError
        load(stack, state)

    monkeypatch.setattr(Stack, "load_state_dict", limited)
    notes = Notes()
    sweep(ready(), path, watch=notes)
    assert notes.texts == ["4 replicas do not fit into memory: two stacks instead."]
    assert len(outcome(path)) == 4


# ---------------------------------------------------------------- disks


def limited_to(size, work):
    """Do something while no file may grow beyond a size."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        return work()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_told_and_costs_nothing_that_is_recorded(path):
    small, large = ready(), ready({"name": "wide", "model": "mlp", "width": 64})
    right = whole([*small, *large])
    sweep(small, path)
    kept = outcome(path)
    with pytest.raises(Refused, match=r"runs\.db\.stacks: the checkpoint cannot be written: .*make room"):
        limited_to(100_000, lambda: sweep([*small, *large], path, every=1))
    assert outcome(path) == kept
    assert [name for name in left_over(path) if name.endswith(".pt")] == []
    with pytest.raises(Refused, match=r"runs\.db: .*disk"):
        limited_to(path.stat().st_size, lambda: [Records(path).attempt(["k" * 50_000], 0) for _ in range(9)])
    assert outcome(path) == kept
    sweep([*small, *large], path, every=1)
    assert outcome(path) == right
    assert left_over(path) == []


def test_a_disk_that_is_full_when_the_runs_are_recorded(path, monkeypatch):
    prepared = ready()
    right, add = whole(prepared), Records.add

    def full(self, runs):
        limited_to(4096, lambda: add(self, runs))

    monkeypatch.setattr(Records, "add", full)
    with pytest.raises(Refused, match=r"runs\.db: .*disk"):
        sweep(prepared, path, every=1)
    monkeypatch.undo()
    assert outcome(path) == {}
    notes = Notes()
    sweep(prepared, path, watch=notes)
    assert notes.said[1] == ("begun", 4, 4)  # all of it was saved
    assert outcome(path) == right


def test_a_folder_that_cannot_be_written_is_told():
    folder = Path(tempfile.mkdtemp())
    user = os.geteuid()
    try:
        sweep(ready(), folder / "runs.db")
        kept = outcome(folder / "runs.db")
        os.chmod(folder / "runs.db", 0o644)
        os.chmod(folder, 0o555)
        if user == 0:
            os.seteuid(65534)  # root may write anywhere
        with pytest.raises(Refused, match=rf"^{folder}/runs\.db\.stacks: cannot be written: Permission denied$"):
            sweep(ready({"seeds": 3}), folder / "runs.db")
        with pytest.raises(
            Refused, match=rf"^{folder}/new\.db: unable to open .*\(its folder does not exist or cannot"
        ):
            sweep(ready(), folder / "new.db")
        assert outcome(folder / "runs.db") == kept  # reading is no writing
    finally:
        os.seteuid(user)
        os.chmod(folder, 0o755)
        assert sorted(os.listdir(folder)) == ["runs.db"]
        shutil.rmtree(folder)


# ---------------------------------------------------------------- what is refused before anything is trained


@pytest.mark.parametrize(
    ("table", "right"),
    [
        ({"dataset": "nowhere.npz"}, "nowhere.npz"),
        ({"dataset": "digit"}, "did you mean 'digits'"),
        ({"model": "mpl"}, "did you mean 'mlp'"),
        ({"model": "softmax", "width": 4}, "width"),
        ({"model": "torch.nn:Identity", "width": 4}, "model option: 'width'"),
        ({"model": "nowhere:net"}, "nowhere:net.*No module named 'nowhere'"),
        ({"methods": {"torch.optim.SGD": {"momentum": -1}}}, r"SGD\(momentum=-1\).*Invalid momentum value: -1"),
        ({"methods": ["torch.optim.SparseAdam"]}, "SparseAdam.*cannot train this model: .*dense gradients"),
        ({"methods": ["torch.optim.Muon"]}, "Muon.*cannot train this model: .*2D"),
        ({"name": "torn \udcff"}, r"Invalid name: .*udcff"),
    ],
)
def test_prepare_refuses_by_name(table, right):
    common = {"dataset": "digits", "model": "softmax", "methods": ["adam"], "lrs": [0.1]}
    with pytest.raises(Refused, match=right) as refused:
        prepare([experiment({**common, **table})], "cpu")
    assert len(str(refused.value).encode().splitlines()) == 1


def test_an_optimizer_that_needs_a_closure_is_refused():
    with pytest.raises(Refused, match=r"torch\.optim\.LBFGS.*closure"):
        ready({"methods": ["torch.optim.LBFGS"]})


def test_stacks_are_sized_by_the_memory_of_the_device_that_was_named(monkeypatch):
    of = ready({"model": "mlp", "width": 4})[0]
    sizes = {"cuda": 1 << 17, "cuda:1": 1 << 18}
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (0, sizes[device]))
    small, large = (stack_size(of.experiment.problem, of.model, device) for device in sizes)
    assert 1 < small < large < 256
    assert abs(large - 2 * small) <= 1


def test_prepare_refuses_a_device_that_is_not_there(monkeypatch):
    one = experiment({"dataset": "digits", "model": "softmax", "methods": ["adam"], "lrs": [0.1]})
    with pytest.raises(Refused, match="did you mean 'cuda'"):
        prepare([one], "cudda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(Refused, match=r"'cuda:1'.*has no GPU"):
        prepare([one], "cuda:1")


@pytest.mark.parametrize("every", [0, -1, 1.5, "2", None])
def test_every_is_a_number_of_epochs(every, path):
    with pytest.raises(Refused, match="every"):
        sweep(ready(), path, every=every)
    assert left_over(path) == []
    assert not path.exists()


def test_a_function_that_is_called_like_a_model_of_the_zoo_is_not_taken_for_it():
    def softmax():
        return torch.nn.Linear(4, 3, bias=False)

    one = experiment({"dataset": "made", "model": "softmax", "methods": ["adam"], "lrs": [0.1]})
    (mine,) = prepare([one], "cpu", sources={"made": vectors()}, factories={"softmax": softmax})
    assert mine.model.shapes == {"weight": (3, 4)}
    (zoo,) = prepare([one], "cpu", sources={"made": vectors()})
    assert set(addresses([mine])).isdisjoint(addresses([zoo]))


def test_runs_tell_what_they_were_made_with(path, monkeypatch):
    sweep(ready(), path)
    run = Records(path).runs()[0]
    assert run.environment == environment.environment("cpu")
    assert run.environment["torch"] == torch.__version__
    assert run.environment["threads"] == "1"
    assert run.step_ms > 0
    assert run.way == "stacked, 4 replicas"
    monkeypatch.setattr(environment.Path, "read_text", lambda self: (_ for _ in ()).throw(OSError))
    assert environment._processor()


def test_files_of_others_at_the_place_of_checkpoints_are_left_alone(path, tmp_path):
    """Those of people, and those of a sweep into another file that was stopped."""
    engine, other = Engine(), path.with_name("other.db")
    engine.checkpoints = str(tmp_path / "place")
    (tmp_path / "place").mkdir()
    (tmp_path / "place" / "mine.pt").write_text("precious")
    stopping = Notes()
    stopping.trained = lambda work, epoch: (_ for _ in ()).throw(Stop) if epoch.number == 3 else None
    with pytest.raises(Stop):
        sweep(ready(), other, engine=engine, watch=stopping, every=1)
    sweep(ready(), path, engine=engine, every=1)
    notes = Notes()
    sweep(ready(), other, engine=engine, watch=notes, every=1)
    assert ("begun", 4, 2) in notes.said
    assert outcome(other) == outcome(path) == whole(ready())
    assert [file.name for file in (tmp_path / "place").iterdir()] == ["mine.pt"]
    assert (tmp_path / "place" / "mine.pt").read_text() == "precious"


def test_files_have_names_of_their_own(path):
    first, again, other = Records(path).name(), Records(path).name(), Records(path.with_name("other.db")).name()
    assert first == again != other
