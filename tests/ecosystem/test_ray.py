"""Sweeps on a real Ray cluster of three nodes: the same records as here, bit for bit, whatever dies."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from functools import partial
from pathlib import Path

import pytest
import ray
import torch
from ray.cluster_utils import Cluster as Nodes
from sweeps import outcome, ready, vectors
from twins import one_thread as one_thread

from wagmf.arguments import Refused
from wagmf.lab import cluster as room
from wagmf.lab.cluster import Cluster
from wagmf.lab.environment import environment
from wagmf.lab.planning import plan, prepare
from wagmf.lab.records import Records
from wagmf.lab.spec import experiment
from wagmf.lab.sweep import Watch, sweep

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.usefixtures("one_thread")]
TABLES = [{"name": name, "methods": [name], "seeds": 3} for name in ("adam", "wada", "amsgrad")]
LONG = {"epochs": 150, "data": vectors(n=400)}


SPEC = """
    dataset = "digits"
    model = "softmax"
    methods = ["adam", "wada"]
    lrs = [0.1]
    epochs = 2
"""


def wagmf(*words, cwd):
    command = [sys.executable, "-m", "wagmf", *map(str, words)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300)


def test_by_command_without_a_cluster_one_is_started_and_that_is_said(tmp_path):
    """The first test here: from the next on there is a cluster."""
    (tmp_path / "few.toml").write_text(textwrap.dedent(SPEC))
    done = wagmf("sweep", "few.toml", "--engine", "ray", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "There is no Ray cluster; one was started on this machine, with" in " ".join(done.stderr.split())
    assert len(outcome(tmp_path / "runs.db")) == 2
    for words, said in (
        (("--engine", "ray", "--address", "127.0.0.1:1"), "Invalid address: '127.0.0.1:1' (nobody answers there"),
        (("--engine", "ray", "--address", "ray://head:10001"), "it must be HOST:PORT"),
        (("--engine", "dask"), "Invalid engine: 'dask'"),
        (("--address", "somewhere"), "add --engine ray"),
        (("--checkpoints", "s3://b"), "add --engine ray"),
    ):
        refused = wagmf("sweep", "few.toml", *words, cwd=tmp_path)
        assert refused.returncode == 2, refused.stderr
        assert said in " ".join(refused.stderr.split())


REFUSED = """
import ray
from wagmf.arguments import Refused
from wagmf.lab.cluster import Cluster

try:
    Cluster(cpus=99, told=print)
except Refused as error:
    print(error)
print("connected:", ray.is_initialized())
"""


def test_a_cluster_that_is_gone_does_not_stop_one_and_a_refusal_leaves_none_behind():
    """Ray notes where it has started a cluster; after a crash that is a note of nothing."""
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as folder:  # sockets want short names
        note = Path(folder, "ray", "ray_current_cluster")
        note.parent.mkdir()
        note.write_text("127.0.0.1:1")
        words = [sys.executable, "-c", REFUSED]
        surroundings = os.environ | {"RAY_TMPDIR": folder}
        said = subprocess.run(words, capture_output=True, text=True, timeout=300, env=surroundings).stdout
    assert "is not used: nobody answers at 127.0.0.1:1" in said
    assert "one was started on this machine" in said
    assert "Invalid cpus: 99 (no node has so many" in said
    assert said.endswith("connected: False\n")


def test_somebody_else_who_answers_is_no_cluster(monkeypatch):
    monkeypatch.setattr(room, "_PATIENCE", 0.2)
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with socket.create_server((host, 0), family=family) as server:
            address = f"{host if ':' not in host else f'[{host}]'}:{server.getsockname()[1]}"
            with pytest.raises(Refused, match="somebody answers there, but no Ray cluster that can be joined"):
                room._knock(address)


def test_two_sweeps_at_once_have_a_cluster_each(tmp_path):
    """The second does not join what the first has started for itself and takes down when it is done."""
    started = []
    for name, epochs in (("first", 400), ("second", 800)):
        (tmp_path / f"{name}.toml").write_text(textwrap.dedent(SPEC).replace("epochs = 2", f"epochs = {epochs}"))
        words = ["sweep", f"{name}.toml", "--engine", "ray", "--records", f"{name}.db"]
        command = [sys.executable, "-m", "wagmf", *words]
        started.append(subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE))
        if name == "first":
            while not any(started[0].pid in ancestors(worker) for worker in training()):
                assert started[0].poll() is None
                time.sleep(0.2)
    for process, name in zip(started, ("first", "second"), strict=True):
        said = " ".join(process.communicate(timeout=300)[1].decode().split())
        assert process.returncode == 0, said
        assert "There is no Ray cluster; one was started on this machine, with" in said
        assert len(outcome(tmp_path / f"{name}.db")) == 2


def test_who_is_asked_to_end_ends_as_by_ctrl_c(tmp_path):
    """As batch systems ask; a sweep on this machine goes on from where it was."""
    (tmp_path / "few.toml").write_text(textwrap.dedent(SPEC).replace("epochs = 2", "epochs = 20000"))
    command = [sys.executable, "-m", "wagmf", "sweep", "few.toml", "--engine", "ray", "--every", "1"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    while not list(tmp_path.glob("runs.db.stacks/*.pt")):
        assert process.poll() is None
        time.sleep(0.2)
    process.terminate()
    said = " ".join(process.communicate(timeout=100)[1].decode().split())
    assert process.returncode == 130, said
    assert "Stopped: 0 of 2 runs are recorded; the same command continues." in said
    assert list(tmp_path.glob("runs.db.stacks/*.pt"))


HEADLESS = """
import os, signal, sys
from pathlib import Path
from ray.cluster_utils import Cluster as Nodes
from sweeps import outcome, ready, vectors
from wagmf.lab.cluster import Cluster
from wagmf.lab.sweep import Watch, sweep
from wagmf.arguments import Refused

nodes = Nodes(initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 2, "include_dashboard": False})
for settings in ({"gpus": 3}, {"gpus": 1.5}):
    try:
        Cluster(address=nodes.address, **settings)
    except Refused as error:
        print(error)
watch, tables = Watch(), [{"name": name, "methods": [name]} for name in ("adam", "wada")]
(gcs,) = nodes.head_node.all_processes["gcs_server"]
watch.trained = lambda work, epoch: epoch.number == 5 and work.keys[0] and os.kill(gcs.process.pid, signal.SIGKILL)
path = Path(sys.argv[1])
try:
    with Cluster(address=nodes.address, device="cpu") as cluster:
        print(cluster.device, cluster.gpus)
        sweep(ready(*tables, epochs=3000, data=vectors(n=400)), path, engine=cluster, watch=watch)
except Refused as error:
    print(error, len(outcome(path)), flush=True)
    raise SystemExit(2)
"""


def test_a_head_that_is_lost_is_told(tmp_path):
    """The node claims GPUs: they are left alone, and nobody waits for more than it has."""
    surroundings = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1]), "RAY_USAGE_STATS_ENABLED": "0"}
    command = [sys.executable, "-c", HEADLESS, str(tmp_path / "runs.db")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=surroundings)
    assert done.returncode in (1, 2), done.stderr  # Ray itself may end the process
    assert "Invalid gpus: 3.0 (no node has so many: 2)" in done.stdout, done.stdout
    assert "Invalid gpus: 1.5 (gpus must be" in done.stdout
    assert "cpu 0.0" in done.stdout
    assert "Joined the Ray cluster at" in done.stdout
    assert "The Ray cluster was lost: " in done.stdout
    assert "the same command continues) 0" in done.stdout


@pytest.fixture(scope="module")
def nodes():
    """A head that trains nothing, and two nodes that do."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    nodes = Nodes(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(2):
        nodes.add_node(num_cpus=1)
    nodes.wait_for_nodes()
    ray.init(address=nodes.address, log_to_driver=False, logging_level="ERROR")
    yield nodes
    ray.shutdown()
    nodes.shutdown()


@pytest.fixture(scope="module")
def right(tmp_path_factory):
    """What a sweep in this process records."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    path = tmp_path_factory.mktemp("right") / "runs.db"
    sweep(ready(*TABLES, **LONG), path)
    torch.set_num_threads(threads)
    return outcome(path)


class Disturbed(Watch):
    """Does something once, when a stack has come to an epoch and it can be done, and notes where stacks began."""

    def __init__(self, epoch=None, act=None):
        self.epoch, self.act = epoch, act
        self.begins, self.texts, self.done = [], [], set()
        self.most = 0  # that were seen to train at once

    def begun(self, work, epoch):
        self.begins.append((work.identity, epoch))
        assert work.identity not in self.done  # what is recorded is never trained again

    def trained(self, work, epoch):
        if epoch.number % 10 == 0:
            self.most = max(self.most, len(workers()))
        if self.act is not None and epoch.number >= self.epoch and self.act() is not False:
            self.act = None

    def finished(self, work, runs):
        self.done.add(work.identity)

    def told(self, text):
        self.texts.append(text)


def workers():
    """The processes of this cluster that train; there may be other people's."""
    session = ray.get_runtime_context().get_session_name().encode()
    return [worker for worker in training() if any(session in words(each) for each in ancestors(worker))]


def training():
    """All processes of the machine that train."""
    numbers = [int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit()]
    return [number for number in numbers if words(number).startswith(b"ray::_trained")]


def words(number):
    try:
        return Path(f"/proc/{number}/cmdline").read_bytes()
    except OSError:
        return b""  # it has ended


def ancestors(number):
    """A process and those who started it: workers forget their command line, but their raylets do not."""
    found = []
    while number > 1:
        found.append(number)
        try:
            number = int(Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            break
    return found


def lose_one(nodes):
    """Kill a node that trains, if there is one: whether it was done."""
    raylets = {node.all_processes["raylet"][0].process.pid: node for node in nodes.worker_nodes}
    victims = [raylets[each] for worker in workers() for each in ancestors(worker) if each in raylets]
    if victims:
        nodes.remove_node(victims[0], allow_graceful=False)
    return bool(victims)


def taken_up(watch):
    """The epochs after which stacks went on."""
    return [epoch for _, epoch in watch.begins if epoch]


def test_undisturbed(nodes, right, tmp_path):
    watch = Disturbed()
    with Cluster() as cluster:
        assert cluster.device == "cpu"
        prepared = ready(*TABLES, **LONG)
        sweep(prepared, tmp_path / "runs.db", engine=cluster, watch=watch)
        assert outcome(tmp_path / "runs.db") == right
        assert [epoch for _, epoch in watch.begins] == [0] * len(plan(prepared, set()))
        assert os.listdir(tmp_path) == ["runs.db"]
        assert {run.environment["threads"] for run in Records(tmp_path / "runs.db").runs()} == {"1"}
        watch.begins.clear()
        sweep(prepared, tmp_path / "runs.db", engine=cluster, watch=watch)
        assert watch.begins == []  # nothing is trained twice
    assert ray.is_initialized()  # a cluster of others is left alone


def test_as_many_are_trained_at_once_as_there_is_room_for(nodes, tmp_path):
    """There are more stacks; they take longer than workers, who start one after the other."""
    watch = Disturbed()
    with Cluster() as cluster:
        sweep(ready(*TABLES, **LONG | {"epochs": 600}), tmp_path / "runs.db", engine=cluster, watch=watch)
        assert watch.most == cluster.slots == 2


def tried(once):
    """Whether one of a few tries came to what a test is about: when workers start is not in anybody's hands."""
    return any(once(number) for number in range(5))


def test_a_node_that_dies_takes_nothing_with_it(nodes, right, tmp_path):
    """What it was at goes on elsewhere; if it died between two stacks, or before one was saved, another must die."""

    def once(number):
        path, where = tmp_path / f"{number}.db", tmp_path / f"shared {number}"
        watch = Disturbed(4, partial(lose_one, nodes))
        with Cluster(checkpoints=f"file://{where}") as cluster:
            sweep(ready(*TABLES, **LONG), path, engine=cluster, watch=watch, every=2)
        assert watch.act is None  # it was killed
        nodes.add_node(num_cpus=1)
        nodes.wait_for_nodes()
        assert outcome(path) == right
        assert len(watch.done) == len(TABLES)
        assert not list(where.iterdir())  # nothing is left
        return taken_up(watch)

    assert tried(once), "a stack that goes on from a checkpoint"


def test_a_worker_that_dies_takes_nothing_with_it(nodes, right, tmp_path):
    def kill():
        there = workers()
        for worker in there:
            os.kill(worker, signal.SIGKILL)
        return bool(there)

    def once(number):
        path, watch = tmp_path / f"{number}.db", Disturbed(10, kill)
        with Cluster() as cluster:
            sweep(ready(*TABLES, **LONG), path, engine=cluster, watch=watch, every=2)
        assert watch.act is None
        assert outcome(path) == right
        return taken_up(watch)

    assert tried(once), "a stack that goes on from a checkpoint"


def test_stopping_leaves_a_file_that_a_sweep_here_continues(nodes, right, tmp_path):
    path = tmp_path / "runs.db"

    def stop():
        raise KeyboardInterrupt

    with Cluster() as cluster, pytest.raises(KeyboardInterrupt):
        sweep(ready(*TABLES, **LONG), path, engine=cluster, watch=Disturbed(10, stop), every=2)
    assert outcome(path).items() <= right.items()
    until = time.monotonic() + 60
    while workers():  # nobody trains on
        assert time.monotonic() < until
        time.sleep(0.1)
    watch = Disturbed()
    sweep(ready(*TABLES, **LONG), path, watch=watch, every=2)
    assert outcome(path) == right
    assert taken_up(watch)  # from a checkpoint of the cluster


def beside(begun, path):
    """A sweep of everything in this process, beside the cluster's; and an event when it begins a stack."""
    watch = Watch()
    watch.begun = lambda *_: begun.set()
    return threading.Thread(target=sweep, args=(ready(*TABLES, **LONG), path), kwargs={"watch": watch})


@pytest.mark.parametrize("first", ["here", "there"])
def test_two_sweeps_of_the_same_stacks_share_the_work(nodes, right, tmp_path, first):
    """Whoever comes second waits for the stacks that the other has, and trains none of them again."""
    path, begun = tmp_path / "runs.db", threading.Event()
    other = beside(begun, path)
    watch = Disturbed(1, other.start if first == "there" else None)
    if first == "here":
        other.start()
        assert begun.wait(60)
    with Cluster() as cluster:
        sweep(ready(*TABLES, **LONG), path, engine=cluster, watch=watch)
    other.join()
    assert outcome(path) == right
    attempts = [tuple(keys) for keys, _ in Records(path).attempts()]
    assert len(attempts) == len(set(attempts)) == len(TABLES)


def test_a_module_of_ones_own_travels(nodes, tmp_path, monkeypatch):
    """Nor need the workers have its file, nor that of what it imports."""
    text = (
        "from torch import nn\nfrom mysize import head\n\ndef net():\n    return nn.Sequential(nn.Flatten(), head())\n"
    )
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "mynet.py").write_text(text)
    (tmp_path / "elsewhere" / "mysize.py").write_text("import torch\n\ndef head():\n    return torch.nn.Linear(4, 3)\n")
    monkeypatch.syspath_prepend(str(tmp_path / "elsewhere"))
    table = {"dataset": "made", "model": "mynet:net", "methods": ["wada"], "lrs": [0.1], "seeds": 2, "epochs": 2}
    mine = prepare([experiment(table)], "cpu", sources={"made": vectors()})
    sweep(mine, tmp_path / "here.db")
    with Cluster() as cluster:
        sweep(mine, tmp_path / "there.db", engine=cluster)
    assert len(outcome(tmp_path / "here.db")) == 2
    assert outcome(tmp_path / "here.db") == outcome(tmp_path / "there.db")


def test_what_goes_wrong_at_a_worker_is_told_here(nodes, tmp_path):
    place = tmp_path / "checkpoints"

    def spoil(*_):
        shutil.rmtree(place)
        place.write_text("no folder")

    watch = Watch()
    watch.planned = spoil
    with (
        Cluster(checkpoints=str(place)) as cluster,
        pytest.raises(Refused, match=r"checkpoints/wagmf-\w+: is no place for checkpoints"),
    ):
        sweep(ready(*TABLES[:1]), tmp_path / "runs.db", engine=cluster, watch=watch)


def test_stacks_that_do_not_fit_are_halved(nodes, tmp_path, monkeypatch):
    prepared = ready(*TABLES[:1])
    (work,) = plan(prepared, set())
    monkeypatch.setattr(room, "train_stack", lambda *_: (_ for _ in ()).throw(torch.OutOfMemoryError))
    here = room._Here(environment("cpu")["source"], ".", 1)
    assert room._trained(work, work.prepared.data, str(tmp_path), 1, None, here) is None
    monkeypatch.undo()
    submit, watch = Cluster.submit, Disturbed()

    def full(self, work, desk, mailbox):
        """The whole stack does not fit."""
        return ray.put(None) if len(work.keys) > 3 else submit(self, work, desk, mailbox)

    monkeypatch.setattr(Cluster, "submit", full)
    with Cluster() as cluster:
        sweep(prepared, tmp_path / "runs.db", engine=cluster, watch=watch)
    assert watch.texts == ["6 replicas do not fit into memory: two stacks instead."]
    assert len(outcome(tmp_path / "runs.db")) == 6


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cpus": 3}, "Invalid cpus: 3 .no node has so many"),
        ({"device": "cuda"}, "Invalid device: 'cuda' .the cluster has no GPU"),
        ({"gpus": -1}, "Invalid gpus"),
        ({"checkpoints": "nowhere://there"}, r"nowhere://there/\S+: is no place for checkpoints"),
        ({"checkpoints": "memory://there"}, "Invalid checkpoints: 'memory://there' .it must be a folder or a URL"),
        ({"checkpoints": " "}, "Invalid checkpoints: ' '"),
        ({"address": "127.0.0.1:1"}, "Invalid address: '127.0.0.1:1' .this process is connected to"),
    ],
)
def test_what_the_cluster_cannot_do_is_refused(nodes, settings, message, tmp_path):
    with pytest.raises(Refused, match=message), Cluster(**settings) as cluster:
        sweep(ready(), tmp_path / "runs.db", engine=cluster)


def test_another_wagmf_is_refused(nodes, monkeypatch):
    monkeypatch.setattr(room, "environment", lambda device: {"source": "another"})
    with pytest.raises(Refused, match="its wagmf differs"):
        Cluster()


def test_memory_is_that_of_a_share_of_a_node():
    node = room._Node(cpus=8, memory=64, gpu_memory=80)
    assert [node.part(1, 0.0), node.part(4, 0.0), node.part(16, 0.0)] == [8, 32, 64]
    assert [node.part(1, 1.0), node.part(1, 0.25), node.part(1, 2.0)] == [80, 20, 80]
