"""How a sweep hands stacks to a cluster, with a cluster that is made up; tests/ecosystem has a real one."""

import importlib
import os
import socket
import sys
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from sweeps import outcome, ready
from twins import one_thread as one_thread

from wagmf.arguments import Refused
from wagmf.lab import cluster as room
from wagmf.lab import sweep as sweeping
from wagmf.lab.environment import environment
from wagmf.lab.planning import plan
from wagmf.lab.records import Records
from wagmf.lab.sweep import Desk, Engine, Watch, sweep, train_stack

pytestmark = pytest.mark.usefixtures("one_thread")
TABLES = [{"name": name, "methods": [name], "seeds": 2} for name in ("adam", "wada", "amsgrad")]


class MadeUp(Engine):
    """A cluster that trains a stack when its result is asked for, and answers what Ray would."""

    slots = 1
    exceptions = SimpleNamespace(RayTaskError=type("Task", (Exception,), {}), RayError=type("Lost", (Exception,), {}))

    def __init__(self):
        self._ray, self.handed, self.cancelled, self.desk = self, [], [], None
        self.take = SimpleNamespace(remote=list)  # the mailbox is empty
        self.act = lambda work: None  # before a stack is trained
        self.look = lambda: None  # its head answers

    def train(self, works, desk):
        self.desk = desk
        with room._told_if_lost(self.exceptions.RayError), ExitStack() as held:
            room._Sweep(self, desk, held).carry_out(works)

    def mailbox(self):
        return self

    def submit(self, work, desk, mailbox):
        self.handed.append(work.identity)
        return work

    def wait(self, tasks, num_returns, timeout):
        return tasks[:num_returns], tasks[num_returns:]

    def get(self, task):
        if isinstance(task, list):
            return task
        self.act(task)
        return train_stack(task, self.desk.checkpoints, self.desk.every, Watch())

    def cancel(self, task, force):
        self.cancelled.append(task.identity)

    def kill(self, mailbox):
        """There is none."""


@pytest.fixture
def right(tmp_path):
    sweep(ready(*TABLES), tmp_path / "right.db")
    return outcome(tmp_path / "right.db")


def test_everything_is_handed_out_once(right, tmp_path):
    cluster = MadeUp()
    sweep(ready(*TABLES), tmp_path / "runs.db", engine=cluster)
    assert outcome(tmp_path / "runs.db") == right
    assert len(cluster.handed) == len(set(cluster.handed)) == len(TABLES)
    assert cluster.cancelled == []


def test_what_another_sweep_has_is_waited_for(right, tmp_path, monkeypatch):
    """It is not handed out before the other gives it back, nor at all if the other has recorded it."""
    path, cluster, prepared = tmp_path / "runs.db", MadeUp(), ready(*TABLES)
    watch, said, held = Watch(), [], {}
    watch.told = said.append

    def planned(works, done):
        desk = Desk(Records(path), path.with_name("runs.db.stacks"), None, 5, Watch())
        held.update({work.identity: desk.locked(work.identity) for work in works[:2]})
        for lock in held.values():
            lock.__enter__()

    def waited(seconds):
        assert not held.keys() & set(cluster.handed)
        (first, lock), (_, other) = held.items()
        lock.__exit__(None, None, None)
        other.__exit__(None, None, None)
        sweep(prepared[1:2], path)  # the other sweep has recorded the second of them, and only that
        held.clear()
        held[first] = lock

    watch.planned = planned
    monkeypatch.setattr(sweeping, "time", SimpleNamespace(sleep=waited))
    sweep(prepared, path, engine=cluster, watch=watch)
    assert outcome(path) == right
    assert said == ["Another sweep trains what is left; waiting for it."]
    assert len(cluster.handed) == 2


@pytest.mark.parametrize("error", [KeyboardInterrupt, MadeUp.exceptions.RayError("gone")])
def test_however_it_ends_nobody_trains_on_and_stacks_are_free(right, tmp_path, error):
    path, cluster = tmp_path / "runs.db", MadeUp()

    def end(work):
        if work.identity == cluster.handed[1]:
            raise error

    cluster.act = end
    with pytest.raises(KeyboardInterrupt if error is KeyboardInterrupt else Refused):
        sweep(ready(*TABLES), path, engine=cluster)
    assert outcome(path).items() < right.items()
    assert set(cluster.cancelled) == set(cluster.handed[2:])
    desk = Desk(Records(path), path.with_name("runs.db.stacks"), None, 5, Watch())
    assert all(desk.locked(name) is not None for name in cluster.handed)
    sweep(ready(*TABLES), path)
    assert outcome(path) == right


def test_a_worker_that_is_lost_too_often_is_told(tmp_path):
    cluster = MadeUp()
    cluster.act = lambda work: (_ for _ in ()).throw(MadeUp.exceptions.RayError("the node is gone"))
    with pytest.raises(Refused, match="adam: the worker of 4 runs was lost 21 times: the node is gone"):
        sweep(ready(*TABLES), tmp_path / "runs.db", engine=cluster)


def test_a_cluster_that_is_lost_is_told_and_the_same_command_continues(right, tmp_path):
    """Its mailbox does not answer, and there is nobody who could be stopped."""
    path, cluster = tmp_path / "runs.db", MadeUp()

    def gone(*_, **__):
        raise MadeUp.exceptions.RayError("the owner has died")

    def die(work):
        cluster.take.remote, cluster.cancel, cluster.kill = gone, gone, gone

    cluster.act = die
    with pytest.raises(Refused, match=r"The Ray cluster was lost: the owner has died .* the same command continues"):
        sweep(ready(*TABLES), path, engine=cluster)
    assert outcome(path).items() < right.items()
    sweep(ready(*TABLES), path, engine=MadeUp())
    assert outcome(path) == right


def test_a_head_that_does_not_answer_is_told_before_ray_waits_for_it(right, tmp_path, monkeypatch):
    """Nor is Ray asked to stop anything: it would end this process instead of answering."""
    monkeypatch.setattr(room, "_PATIENCE", 0.01)
    path, cluster = tmp_path / "runs.db", MadeUp()
    context = SimpleNamespace(gcs_address="127.0.0.1:1")
    engine = room.Cluster.__new__(room.Cluster)
    engine._ray, engine._connected = SimpleNamespace(get_runtime_context=lambda: context), True
    cluster.act = lambda work: setattr(cluster, "look", engine.look)
    cluster.kill = cluster.cancel = lambda *_, **__: pytest.fail("Ray was asked")
    with pytest.raises(Refused, match=r"The Ray cluster was lost: .*refused .* the same command continues"):
        sweep(ready(*TABLES), path, engine=cluster)
    engine.__exit__()
    assert 0 < len(outcome(path)) < len(right)
    sweep(ready(*TABLES), path, engine=MadeUp())
    assert outcome(path) == right


class Room:
    """What Ray tells of nodes, and what it was asked for; GPUs that others hold are never free."""

    exceptions = MadeUp.exceptions

    def __init__(self, *nodes, held=False):
        self.there, self.held, self.joined, self.asked = nodes, held, [], []

    def is_initialized(self):
        return False

    def init(self, address, **_):
        self.joined.append(address)

    def shutdown(self):
        self.joined.append("left")

    def cluster_resources(self):
        return {kind: sum(node.get(kind, 0) for node in self.there) for kind in ("CPU", "GPU")}

    def nodes(self):
        names = enumerate(self.there)
        return [{"Alive": True, "NodeID": i, "NodeManagerHostname": f"n{i}", "Resources": node} for i, node in names]

    def remote(self, num_cpus, num_gpus, max_retries):
        self.asked.append(num_gpus)
        return lambda about: SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda gpu: self._answer(gpu)))

    def _answer(self, gpu):
        return len(self.asked) - 1, gpu

    def wait(self, answers, num_returns, timeout):
        late = [answer for answer in answers if answer[1] and self.held]
        return [answer for answer in answers if answer not in late], late

    def get(self, answer):
        return room.environment("cpu")["source"], (64, 80 if answer[1] else 0)


@pytest.fixture
def joined(monkeypatch, tmp_path):
    """A cluster of nodes that are made up."""
    monkeypatch.setattr(room.Cluster, "_at", lambda self, node: node)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    def join(there, **settings):
        monkeypatch.setattr(room, "_ray", lambda: there)
        return room.Cluster(**{"told": lambda text: None} | settings)

    return join


SMALL, LARGE = {"CPU": 4, "GPU": 1}, {"CPU": 8, "GPU": 4}


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"gpus": 5}, r"Invalid gpus: 5.0 \(no node has so many: 1, 4\)"),
        ({"gpus": 4, "cpus": 9}, r"Invalid cpus: 9 \(no node has so many: 8\)"),
        ({"gpus": 1.5}, r"Invalid gpus: 1.5 \(gpus must be a part of one, to four decimals, or a whole number"),
        ({"gpus": 0.00001}, r"Invalid gpus: 1e-05 \(gpus must be a part of one, to four decimals"),
        ({"gpus": 0, "device": "cuda"}, r"Invalid gpus: 0 \(device cuda needs some"),
        ({"device": "mps"}, r"Invalid device: 'mps' \(on a cluster: cpu or cuda\)"),
    ],
)
def test_what_no_node_has_for_a_stack_is_refused(joined, settings, named):
    there = Room({"CPU": 16}, SMALL, LARGE)
    with pytest.raises(Refused, match=named):
        joined(there, **settings)
    assert there.joined in ([], ["local", "left"])
    assert there.asked == []  # nobody is waited for in vain


@pytest.mark.parametrize("settings", [{"device": "cpu"}, {"gpus": 0}, {"device": "cpu", "gpus": 9, "cpus": 8}])
def test_who_wants_no_gpu_asks_for_none_and_waits_for_none(joined, settings):
    there, said = Room(SMALL, LARGE, held=True), []
    cluster = joined(there, told=said.append, **settings)
    assert (cluster.device, cluster.gpus, there.asked) == ("cpu", 0.0, [0, 0])
    assert not any("Waiting" in text for text in said)


def test_gpus_that_others_hold_are_waited_for_aloud(joined):
    there, said = Room({"CPU": 16}, SMALL, held=True), []
    cluster = joined(there, told=said.append, device="cuda", gpus=0.5)
    assert (cluster.device, cluster.gpus, cluster.memory, there.asked) == ("cuda", 0.5, 40, [0, 0.01])
    assert said[1:] == ["Waiting for an answer of n1: a GPU must be free there, or the device be cpu."]


def test_without_an_address_only_a_cluster_that_is_named_or_noted_is_joined(joined, monkeypatch, tmp_path):
    """What runs here besides may be another sweep's own, which takes it down when it is done."""
    monkeypatch.setattr(room, "_knock", lambda *_: None)
    monkeypatch.setattr(room, "_call", lambda *_: None)
    (tmp_path / "ray").mkdir()
    note = tmp_path / "ray" / "ray_current_cluster"
    for named, noted, address in (
        ("", "", "local"),
        ("auto", "", "local"),
        ("local", "head:1", "local"),
        ("", "head:1", "head:1"),
        ("other:2", "head:1", "other:2"),
    ):
        monkeypatch.setitem(os.environ, "RAY_ADDRESS", named)
        note.write_text(noted)
        there, said = Room(SMALL), []
        joined(there, told=said.append)
        assert there.joined == [address]
        start = (
            "There is no Ray cluster; one was started" if address == "local" else f"Joined the Ray cluster at {address}"
        )
        assert [text.startswith(start) for text in said] == [True]


def test_a_stack_that_is_faster_than_its_letter_is_noted_all_the_same(tmp_path):
    """Workers do not wait for their letters to be read."""
    path = tmp_path / "runs.db"
    sweep(ready(*TABLES), path, engine=MadeUp())  # its mailbox is always empty
    assert [epoch for _, epoch in Records(path).attempts()] == [0] * len(TABLES)


def test_what_a_worker_cannot_read_is_not_taken_for_a_cluster_that_is_lost(tmp_path):
    engine = MadeUp()
    wrong = engine.exceptions.RayTaskError()
    wrong.cause = engine.exceptions.RayError("System error: No module named 'my_parts'")

    def fail(work):
        raise wrong

    engine.act = fail
    with pytest.raises(Refused, match=r"a worker cannot read .* No module named 'my_parts' .what your own files"):
        sweep(ready(*TABLES[:1]), tmp_path / "runs.db", engine=engine)


def test_what_cannot_be_joined_is_refused_and_a_note_of_nothing_is_told(joined, monkeypatch, tmp_path):
    """Somebody who names a cluster does not want this machine instead."""
    (tmp_path / "ray").mkdir()
    note = tmp_path / "ray" / "ray_current_cluster"
    for named, refused in (
        ("garbage", "Invalid RAY_ADDRESS: 'garbage' .it must be HOST:PORT"),
        ("127.0.0.1:1", "Invalid RAY_ADDRESS: '127.0.0.1:1' .nobody answers there"),
    ):
        monkeypatch.setitem(os.environ, "RAY_ADDRESS", named)
        with pytest.raises(Refused, match=refused):
            joined(Room(SMALL))
    monkeypatch.setitem(os.environ, "RAY_ADDRESS", "")
    for noted in ("127.0.0.1:1", "garbage"):
        note.write_text(noted)
        there, said = Room(SMALL), []
        joined(there, told=said.append)
        assert there.joined == ["local"]
        assert said[0].startswith(f"The Ray cluster that was started here is not used: nobody answers at {noted}")
    monkeypatch.setattr(room, "_PATIENCE", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        note.write_text(f"127.0.0.1:{server.getsockname()[1]}")
        with pytest.raises(Refused, match=r"Invalid cluster: .* can be joined.*; RAY_ADDRESS=local starts one"):
            joined(Room(SMALL))


def test_a_node_that_comes_later_must_have_the_same_wagmf(tmp_path):
    (work,) = plan(ready({"methods": ["wada"]}), set())
    here = room._Here(environment("cpu")["source"], ".", torch.get_num_threads())
    asked = (work, work.prepared.data, str(tmp_path), 1, mock.MagicMock())
    assert room._trained(*asked, here)
    with pytest.raises(Refused, match=r"Invalid node: .*its wagmf differs from the one here"):
        room._trained(*asked, replace(here, source="another"))


def test_what_a_model_imports_of_ones_own_travels_with_it(tmp_path, monkeypatch):
    texts = {
        "my_net": "import torch\nfrom my_parts import head\nimport numpy\n\ndef net():\n    return head()\n",
        "my_parts": "import my_sizes\nimport torch\n\ndef head():\n    return torch.nn.Linear(4, my_sizes.OUT)\n",
        "my_sizes": "OUT = 3\n",
        "my_other": "OUT = 4\n",
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("my_net", "my_other"):
        importlib.import_module(name)
    assert {module.__name__ for module in room._own_modules("my_net")} == {"my_net", "my_parts", "my_sizes"}
    assert room._own_modules("torch.nn") == room._own_modules("wagmf.lab.models") == room._own_modules("") == []
    for name in texts:
        sys.modules.pop(name, None)
