"""Stacks as tasks of a Ray cluster: sized to its devices, recorded here as they finish, taken up again if lost.

The file of records is written by this process alone. A worker sends what it has to tell to a mailbox that lives beside
this process, and saves its stack where any other worker can go on from: on a shared path, or wherever fsspec can write.
"""

import importlib
import importlib.util
import os
import re
import socket
import subprocess
import sys
import sysconfig
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from wagmf.arguments import Refused, integer, real, refuse
from wagmf.lab.checkpoints import Checkpoints
from wagmf.lab.data import Dataset
from wagmf.lab.environment import environment
from wagmf.lab.planning import Work, memory_of, missing
from wagmf.lab.records import Run
from wagmf.lab.sources import first_line
from wagmf.lab.sweep import Desk, Engine, Epoch, Watch, train_stack

__all__ = ["Cluster"]

_LOOK = 0.5  # seconds between two looks into the mailbox
_AHEAD = 2  # stacks that are handed to the cluster for each that it can train at once: the next is there when one ends
_PATIENCE = 10.0  # seconds, for the head of a cluster to answer
_RETRIES = 20  # of a stack whose worker was lost


class Cluster(Engine):
    """A Ray cluster: the one at an address, or that of this machine, or, if there is none, one that is started here.

    A stack takes ``cpus`` and, if the cluster has any, ``gpus`` (a part of one is shared). ``checkpoints`` is a place
    that all nodes can write to; without it, stacks are saved beside the file of records, which must then be such a
    place for a stack to survive its node. A ``device`` that the cluster has not is refused. ``told`` is called with
    what a person should know.

    >>> Cluster(cpus=0)
    Traceback (most recent call last):
    wagmf.arguments.Refused: Invalid cpus: 0 (cpus must be an integer >= 1)
    """

    def __init__(
        self,
        *,
        address: str | None = None,
        checkpoints: str | None = None,
        cpus: int = 1,
        gpus: float = 1.0,
        device: str | None = None,
        told: Any = print,
    ) -> None:
        integer("cpus", cpus, least=1)
        real("gpus", gpus, least=0.0)
        if checkpoints is not None and (not checkpoints.strip() or checkpoints.startswith("memory:")):
            refuse("checkpoints", checkpoints, "it must be a folder or a URL that all nodes can write to")
        self.checkpoints, self.cpus, self._ray = checkpoints, cpus, _ray()
        self._connected = _connect(self._ray, address, told)
        self._data: dict[str, Any] = {}
        try:
            self._measure(gpus, device)
        except BaseException:
            self.__exit__()
            raise

    def _measure(self, gpus: float, device: str | None) -> None:
        """Find out what a stack may take; refuses what the cluster has not."""
        nodes, cpus = self._nodes(), self.cpus
        some = [node for node in nodes if node.gpus]
        self.device, self.gpus = ("cuda", gpus) if some and gpus else ("cpu", 0.0)
        if device not in (None, self.device):
            refuse("device", device, "the cluster has no GPU: use cpu" if not some else "on a cluster: cpu or cuda")
        able = [node for node in (some if self.gpus else nodes) if node.cpus >= cpus]
        if not able:
            refuse("cpus", cpus, f"no node has so many: {', '.join(f'{node.cpus:g}' for node in nodes)}")
        self.memory = min(node.part(cpus, self.gpus) for node in able)

    def __exit__(self, *_: object) -> None:
        """Leave a cluster of others, and end one that was started here; stay where somebody else had connected."""
        if self._connected:
            self._ray.shutdown()

    @property
    def slots(self) -> int:
        """How many stacks are trained at once: a cluster may grow and shrink."""
        there = self._ray.cluster_resources()
        by_cpus = there.get("CPU", 0) // self.cpus
        return max(1, int(min(by_cpus, there.get("GPU", 0) / self.gpus) if self.gpus else by_cpus))

    def train(self, works: list[Work], desk: Desk) -> None:
        """Train all stacks to their ends, and record each as it finishes."""
        with ExitStack() as held:
            _Sweep(self, desk, held).carry_out(works)

    def submit(self, work: Work, desk: Desk, mailbox: Any) -> Any:
        """Hand a stack to the cluster; its data are sent once."""
        data = work.prepared.data
        if data.digest not in self._data:
            self._data[data.digest] = self._ray.put(data)
        _carry_along(self._ray, work)
        task = self._ray.remote(max_retries=_RETRIES, num_cpus=self.cpus, num_gpus=self.gpus)(_trained)
        light = replace(work, prepared=replace(work.prepared, data=None))
        return task.remote(
            light, self._data[data.digest], desk.checkpoints.where, desk.every, self.cpus, mailbox, os.getcwd()
        )

    def mailbox(self) -> Any:
        """Beside this process: it is there as long as somebody reads it."""
        here = self._at(self._ray.get_runtime_context().get_node_id())
        return self._ray.remote(num_cpus=0, scheduling_strategy=here)(_Mailbox).remote()

    def _at(self, node: str) -> Any:
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        return strategies.NodeAffinitySchedulingStrategy(node, soft=False)

    def _nodes(self) -> list["_Node"]:
        """What there is; refuses a cluster whose nodes have no wagmf, or another one."""
        asked = []
        for node in self._ray.nodes():
            if node["Alive"]:
                gpu = 0.01 if node["Resources"].get("GPU") else 0  # a GPU is seen by those alone who have some of it
                task = self._ray.remote(num_cpus=0, num_gpus=gpu, max_retries=3)(_about)
                at = self._at(node["NodeID"])
                asked.append((node, task.options(scheduling_strategy=at).remote(bool(gpu))))
        return [self._node(node, answer) for node, answer in asked]

    def _node(self, node: Any, answer: Any) -> "_Node":
        name = node["NodeManagerHostname"]
        try:
            source, memory = self._ray.get(answer)
        except self._ray.exceptions.RayTaskError as error:
            refuse("node", name, f"wagmf cannot be used there: {error.cause}")
        if source != environment("cpu")["source"]:
            refuse("node", name, "its wagmf differs from the one here: install the same on all nodes")
        return _Node(node["Resources"].get("CPU", 0), node["Resources"].get("GPU", 0), *memory)


@dataclass(frozen=True)
class _Node:
    """A machine of the cluster."""

    cpus: float
    gpus: float
    memory: int
    gpu_memory: int

    def part(self, cpus: int, gpus: float) -> int:
        """The memory that is there for one of as many stacks as it trains at once."""
        if gpus:
            return int(self.gpu_memory * min(1.0, gpus))
        return int(self.memory * min(1.0, cpus / max(1.0, self.cpus)))


def _ray() -> Any:
    if importlib.util.find_spec("ray") is None:
        refuse("engine", "ray", "Ray is not installed: pip install 'wagmf[ray]'")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    return importlib.import_module("ray")


def _connect(ray: Any, address: str | None, told: Any) -> bool:
    """Whether it was done here: this process may be part of a cluster already."""
    if ray.is_initialized():
        _same(ray.get_runtime_context().gcs_address, address)
        return False
    if address is not None:
        _knock(address)
    elif (near := _nearby()) is not None:
        try:
            _knock(near)
            address = near
        except Refused as error:
            told(f"The Ray cluster that was started or named here is not used. {error}.")
            return _start(ray, told)
    try:
        ray.init(address=address or "auto", **_QUIET)
    except (ConnectionError, OSError, RuntimeError, ValueError, AssertionError) as error:
        if address is not None:
            refuse("address", address, f"the Ray cluster there cannot be joined: {first_line(error)}")
        return _start(ray, told)
    return True


_QUIET = {"log_to_driver": False, "logging_level": "ERROR"}


def _start(ray: Any, told: Any) -> bool:
    ray.init(address="local", include_dashboard=False, **_QUIET)
    cpus, gpus = (ray.cluster_resources().get(kind, 0) for kind in ("CPU", "GPU"))
    told(f"There is no Ray cluster; one was started on this machine, with {cpus:g} CPUs and {gpus:g} GPUs.")
    return True


def _nearby() -> str | None:
    """The cluster that Ray would join of itself: the one that is named, or that was started here last."""
    note = Path(os.environ.get("RAY_TMPDIR", "/tmp"), "ray", "ray_current_cluster")
    named = os.environ.get("RAY_ADDRESS") or (note.read_text().strip() if note.is_file() else "")
    return named if _HEAD.fullmatch(named) else None


_HEAD = re.compile(r"(?P<host>\[[^\]]+\]|[^:/\[\]]+):(?P<port>[0-9]+)")


def _same(joined: str, address: str | None) -> None:
    if address not in (None, joined):
        refuse("address", address, f"this process is connected to {joined}: leave that first")


def _knock(address: str) -> None:
    """Refuse an address at which no cluster answers; Ray itself would wait for minutes."""
    parts = _HEAD.fullmatch(address)
    if parts is None:
        refuse("address", address, "it must be HOST:PORT, those of the cluster's head")
    try:
        socket.create_connection((parts["host"].strip("[]"), int(parts["port"])), _PATIENCE).close()
    except (OSError, OverflowError) as error:
        refuse("address", address, f"nobody answers there: {first_line(error)}")
    ask = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", address]
    try:
        asked = subprocess.run(ask, timeout=6 * _PATIENCE, capture_output=True, text=True)
        said = "" if asked.returncode == 0 else asked.stderr.strip().rpartition("\n")[2] or "it is not well"
    except subprocess.TimeoutExpired:
        said = "no answer of Ray's kind"
    if said:
        refuse("address", address, f"somebody answers there, but no Ray cluster that can be joined: {said}")


def _carry_along(ray: Any, work: Work) -> None:
    """Send a module of the user's own with the work: other machines do not have its file."""
    factory = getattr(work.prepared.model, "factory", None)
    module = sys.modules.get(getattr(factory, "__module__", ""))
    place = getattr(module, "__file__", None)
    installed = [Path(sysconfig.get_path(kind)) for kind in ("stdlib", "purelib", "platlib")]
    if place and not any(Path(place).is_relative_to(folder) for folder in installed):
        ray.cloudpickle.register_pickle_by_value(module)


class _Sweep:
    """One sweep on a cluster: what is left, and what is under way."""

    def __init__(self, cluster: Cluster, desk: Desk, held: ExitStack) -> None:
        self.cluster, self.desk, self.ray = cluster, desk, cluster._ray
        self.mailbox = cluster.mailbox()
        self.left: deque[Work] = deque()
        self.running: dict[Any, tuple[Work, ExitStack]] = {}  # with its lock
        held.callback(self._end)

    def carry_out(self, works: list[Work]) -> None:
        self.left, waited = deque(works), False
        while self.left or self.running:
            self._hand_out()
            if not self.running:
                self.desk.wait(waited)
                waited = True
                continue
            ready, _ = self.ray.wait(list(self.running), num_returns=1, timeout=_LOOK)
            self._read_letters()
            for task in ready:
                self._settle(task)

    def _hand_out(self) -> None:
        """As much as the cluster can use; what another sweep has stays for later."""
        busy = []
        while self.left and len(self.running) < _AHEAD * self.cluster.slots:
            work = self.left.popleft()
            lock = self.desk.locked(work.identity)
            if lock is None:
                busy.append(work)
                continue
            with ExitStack() as held:
                held.enter_context(lock)
                done = self.desk.records.find(work.keys)
                if done:
                    self.left.extendleft(reversed(missing(work, done)))
                else:
                    self.running[self.cluster.submit(work, self.desk, self.mailbox)] = (work, held.pop_all())
        self.left.extend(busy)

    def _read_letters(self) -> None:
        works = {work.identity: work for work, _ in self.running.values()}
        for name, kind, content in self.ray.get(self.mailbox.take.remote()):
            if kind == "told":
                self.desk.watch.told(content)
            elif name in works:
                (self.desk.begun if kind == "begun" else self.desk.watch.trained)(works[name], content)

    def _settle(self, task: Any) -> None:
        work, held = self.running.pop(task)
        with held:
            runs = self._outcome(task, work)
            if runs is None:
                self.left.extendleft(reversed(self.desk.halved(work)))
            else:
                self.desk.finished(work, runs)

    def _outcome(self, task: Any, work: Work) -> list[Run] | None:
        try:
            return self.ray.get(task)
        except self.ray.exceptions.RayTaskError as error:
            raise error.cause from error
        except self.ray.exceptions.RayError as error:
            raise Refused(
                f"{work.prepared.experiment.name}: the worker of {len(work.keys)} runs was lost {_RETRIES + 1} times: "
                f"{first_line(error)} (what is recorded is kept, and the same command continues)"
            ) from error

    def _end(self) -> None:
        """However it ends: nobody trains on, and what was not finished is free for others."""
        for task, (_, held) in self.running.items():
            self.ray.cancel(task, force=True)
            held.close()
        self.ray.kill(self.mailbox)


# ---------------------------------------------------------------- at the workers


def _about(gpu: bool) -> tuple[str, tuple[int, int]]:
    """The version of the code, and the memory of the machine and of its GPU."""
    return environment("cpu")["source"], (memory_of("cpu"), memory_of("cuda") if gpu else 0)


def _trained(
    work: Work, data: Dataset, where: str, every: int, threads: int, mailbox: Any, folder: str
) -> list[Run] | None:
    """The runs of a stack; None if it does not fit into memory."""
    torch.set_num_threads(threads)
    if folder not in sys.path and Path(folder).is_dir():
        sys.path.insert(0, folder)  # optimizers of the user's own are imported by name
    whole = replace(work, prepared=replace(work.prepared, data=data))
    try:
        return train_stack(whole, Checkpoints(where), every, _Posting(mailbox))
    except torch.OutOfMemoryError:
        return None


class _Posting(Watch):
    """Writes letters."""

    def __init__(self, mailbox: Any) -> None:
        self._mailbox = mailbox

    def begun(self, work: Work, epoch: int) -> None:
        importlib.import_module("ray").get(self._mailbox.put.remote((work.identity, "begun", epoch)))  # before any runs

    def trained(self, work: Work, epoch: Epoch) -> None:
        self._mailbox.put.remote((work.identity, "trained", epoch))

    def told(self, text: str) -> None:
        self._mailbox.put.remote(("", "told", text))


class _Mailbox:
    """Letters of workers to the process that sweeps."""

    def __init__(self) -> None:
        self._letters: list[Any] = []

    def put(self, letter: Any) -> None:
        self._letters.append(letter)

    def take(self) -> list[Any]:
        letters, self._letters = self._letters, []
        return letters
