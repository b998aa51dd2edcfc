"""How a sweep hands stacks to a cluster, with a cluster that is made up; tests/ecosystem has a real one."""

from contextlib import ExitStack
from types import SimpleNamespace

import pytest
from sweeps import outcome, ready
from twins import one_thread as one_thread

from wagmf.arguments import Refused
from wagmf.lab import cluster as room
from wagmf.lab import sweep as sweeping
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

    def train(self, works, desk):
        self.desk = desk
        with ExitStack() as held:
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
