"""Stacks as tasks of a Ray cluster: sized to its devices, recorded here as they finish, taken up again if lost.

The file of records is written by this process alone. A worker sends what it has to tell to a mailbox that lives beside
this process, and saves its stack where any other worker can go on from: on a shared path, or wherever fsspec can write.
"""

import importlib
import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from wagmf.arguments import Refused, integer, real, refuse
from wagmf.lab.checkpoints import Checkpoints
from wagmf.lab.data import Dataset
from wagmf.lab.environment import environment
from wagmf.lab.planning import Work, memory_of, missing
from wagmf.lab.records import Run
from wagmf.lab.sources import first_line, is_own
from wagmf.lab.sweep import Desk, Engine, Epoch, Watch, train_stack

__all__ = ["Cluster"]

_LOOK = 0.5  # seconds between two looks into the mailbox
_AHEAD = 2  # stacks that are handed to the cluster for each that it can train at once: the next is there when one ends
_PATIENCE = 10.0  # seconds, for the head of a cluster to answer
_RETRIES = 20  # of a stack whose worker was lost


class Cluster(Engine):
    """A Ray cluster: the one at an address, or that in RAY_ADDRESS, or that of ``ray start`` on this machine.

    If there is none of these, one is started here, for this process alone. A stack takes ``cpus`` and, if the cluster
    has any, ``gpus`` (a part of one is shared); with ``device="cpu"`` it leaves them alone. ``checkpoints`` is a place
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
        gpus = _wanted(gpus, device)
        if checkpoints is not None and (not checkpoints.strip() or checkpoints.startswith("memory:")):
            refuse("checkpoints", checkpoints, "it must be a folder or a URL that all nodes can write to")
        self.checkpoints, self.cpus, self._ray = checkpoints, cpus, _ray()
        self._connected = _connect(self._ray, address, told)
        self._data: dict[str, Any] = {}
        try:
            self._measure(gpus, device, told)
        except BaseException:
            self.__exit__()
            raise

    def _measure(self, gpus: float, device: str | None, told: Any) -> None:
        """Find out what a stack may take; refuses what the cluster has not, before any node is waited for."""
        there = [node for node in self._ray.nodes() if node["Alive"]]
        some = [node for node in there if node["Resources"].get("GPU")] if gpus else []
        self.device, self.gpus = ("cuda", gpus) if some else ("cpu", 0.0)
        if device not in (None, self.device):
            refuse("device", device, "the cluster has no GPU: use cpu")
        able = _able("cpus", self.cpus, _able("gpus", self.gpus, some or there))
        nodes = zip(there, self._nodes(there, told), strict=True)
        self.memory = min(node.part(self.cpus, self.gpus) for each, node in nodes if each in able)

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

    def look(self) -> None:
        """Refuse to go on without the cluster's head: Ray would wait for it, and then end this process unheard."""
        try:
            _patiently(self._ray.get_runtime_context().gcs_address)
        except OSError as error:
            self._connected = False  # there is nobody to take leave of
            raise _lost(error) from error

    def train(self, works: list[Work], desk: Desk) -> None:
        """Train all stacks to their ends, and record each as it finishes."""
        with _ended_in_order(), _told_if_lost(self._ray.exceptions.RayError), ExitStack() as held:
            _Sweep(self, desk, held).carry_out(works)

    def submit(self, work: Work, desk: Desk, mailbox: Any) -> Any:
        """Hand a stack to the cluster; its data are sent once."""
        data = work.prepared.data
        if data.digest not in self._data:
            self._data[data.digest] = self._ray.put(data)
        _carry_along(self._ray, work)
        task = self._ray.remote(max_retries=_RETRIES, num_cpus=self.cpus, num_gpus=self.gpus)(_trained)
        light = replace(work, prepared=replace(work.prepared, data=None))
        here = _Here(environment("cpu")["source"], os.getcwd(), self.cpus)
        return task.remote(light, self._data[data.digest], desk.checkpoints.where, desk.every, mailbox, here)

    def mailbox(self) -> Any:
        """Beside this process: it is there as long as somebody reads it."""
        here = self._at(self._ray.get_runtime_context().get_node_id())
        return self._ray.remote(num_cpus=0, scheduling_strategy=here)(_Mailbox).remote()

    def _at(self, node: str) -> Any:
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        return strategies.NodeAffinitySchedulingStrategy(node, soft=False)

    def _nodes(self, there: list[Any], told: Any) -> list["_Node"]:
        """What they have; refuses a cluster whose nodes have no wagmf, or another one."""
        asked = []
        for node in there:
            # A GPU is seen by those alone who have some of it; who wants none need not wait until one is free.
            gpu = 0.01 if self.gpus and node["Resources"].get("GPU") else 0
            task = self._ray.remote(num_cpus=0, num_gpus=gpu, max_retries=3)(_about)
            at = self._at(node["NodeID"])
            asked.append((node, task.options(scheduling_strategy=at).remote(bool(gpu))))
        self._say_who_is_awaited(asked, told)
        return [self._node(node, answer) for node, answer in asked]

    def _say_who_is_awaited(self, asked: list[tuple[Any, Any]], told: Any) -> None:
        """Nobody should look at a silent screen because others have the GPUs."""
        answers = [answer for _, answer in asked]
        _, late = self._ray.wait(answers, num_returns=len(answers), timeout=_PATIENCE)
        names = [node["NodeManagerHostname"] for node, answer in asked if answer in late]
        if names:
            why = ": a GPU must be free there, or the device be cpu" if self.gpus else ""
            told(f"Waiting for an answer of {', '.join(names)}{why}.")

    def _node(self, node: Any, answer: Any) -> "_Node":
        name = node["NodeManagerHostname"]
        try:
            source, memory = self._ray.get(answer)
        except self._ray.exceptions.RayTaskError as error:
            refuse("node", name, f"wagmf cannot be used there: {error.cause}")
        except self._ray.exceptions.RayError as error:
            refuse("node", name, f"it was lost before it answered: {first_line(error)}")
        _same_source(name, source, environment("cpu")["source"])
        return _Node(node["Resources"].get("CPU", 0), *memory)


@dataclass(frozen=True)
class _Node:
    """A machine of the cluster."""

    cpus: float
    memory: int
    gpu_memory: int

    def part(self, cpus: int, gpus: float) -> int:
        """The memory that is there for one of as many stacks as it trains at once."""
        if gpus:
            return int(self.gpu_memory * min(1.0, gpus))
        return int(self.memory * min(1.0, cpus / max(1.0, self.cpus)))


@dataclass(frozen=True)
class _Here:
    """What a worker is to know of where the sweep is: its wagmf and its folder; and the threads that it may have."""

    source: str
    folder: str
    threads: int


def _same_source(node: str, there: str, here: str) -> None:
    if there != here:
        refuse("node", node, "its wagmf differs from the one here: install the same on all nodes")


def _wanted(gpus: Any, device: str | None) -> float:
    """The GPUs of a stack, where there are any; refuses what Ray hands out to nobody."""
    number = real("gpus", gpus, least=0.0)
    if number != (round(number, 4) if number < 1 else int(number)):
        refuse("gpus", gpus, "gpus must be a part of one, to four decimals, or a whole number of them")
    if device not in (None, "cpu", "cuda"):
        refuse("device", device, "on a cluster: cpu or cuda")
    if device == "cuda" and not number:
        refuse("gpus", gpus, "device cuda needs some: 1, or a part of one")
    return 0.0 if device == "cpu" else number


def _able(kind: str, wanted: float, nodes: list[Any]) -> list[Any]:
    """The nodes that have as much for one stack; Ray itself would wait for one that has."""
    there = [node["Resources"].get(kind.upper().removesuffix("S"), 0) for node in nodes]
    if wanted > max(there):
        refuse(kind, wanted, f"no node has so many: {', '.join(f'{each:g}' for each in there)}")
    return [node for node, has in zip(nodes, there, strict=True) if has >= wanted]


def _ray() -> Any:
    if importlib.util.find_spec("ray") is None:
        refuse("engine", "ray", "Ray is not installed: pip install 'wagmf[ray]'")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    return importlib.import_module("ray")


def _connect(ray: Any, address: str | None, told: Any) -> bool:
    """Whether it was done here: this process may be part of a cluster already."""
    if ray.is_initialized():
        joined = ray.get_runtime_context().gcs_address
        _same(joined, address)
        told(f"This process is part of the Ray cluster at {joined}, {_size(ray)}; it is used.")
        return False
    if address is not None:
        _knock(address)
    elif (address := _answering(told)) is None:
        ray.init(address="local", include_dashboard=False, **_QUIET)
        told(f"There is no Ray cluster; one was started on this machine, {_size(ray)}.")
        return True
    try:
        ray.init(address=address, **_QUIET)
    except (ConnectionError, OSError, RuntimeError, ValueError, AssertionError) as error:
        refuse("address", address, f"the Ray cluster there cannot be joined: {first_line(error)}")
    told(f"Joined the Ray cluster at {address}, {_size(ray)}.")
    return True


_QUIET = {"log_to_driver": False, "logging_level": "ERROR"}


def _size(ray: Any) -> str:
    cpus, gpus = (ray.cluster_resources().get(kind, 0) for kind in ("CPU", "GPU"))
    return f"with {cpus:g} CPUs and {gpus:g} GPUs"


def _answering(told: Any) -> str | None:
    """The cluster that is named, or noted here; a note may be left of one that is gone, and then there is none."""
    named = os.environ.get("RAY_ADDRESS", "auto") or "auto"
    if named == "local":
        return None
    if named != "auto":
        _knock(named, "RAY_ADDRESS")
        return named
    near = _noted()
    try:
        if near is not None:
            _call(near)
            _knock(near, "cluster")
        return near
    except Refused as error:
        raise Refused(f"{error}; RAY_ADDRESS=local starts one for this sweep alone") from error
    except (OSError, ValueError) as error:
        told(f"The Ray cluster that was started here is not used: nobody answers at {near}: {first_line(error)}.")
        return None


def _noted() -> str | None:
    """The cluster that `ray start` has noted here.

    Ray's "auto" would also look for any at all among the processes of this machine: one that another sweep has started
    for itself, and takes down when it is done. Of such Ray leaves no note.
    """
    folder = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    note = Path(folder, "ray", "ray_current_cluster")
    return (note.read_text().strip() if note.is_file() else "") or None


_HEAD = re.compile(r"(?P<host>\[[^\]]+\]|[^:/\[\]]+):(?P<port>[0-9]+)")


def _call(address: str) -> None:
    """Fails if nobody answers there."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _PATIENCE).close()
    except OverflowError as error:  # there is no such port
        raise OSError(str(error)) from error


def _same(joined: str, address: str | None) -> None:
    if address not in (None, joined):
        refuse("address", address, f"this process is connected to {joined}: leave that first")


def _knock(address: str, name: str = "address") -> None:
    """Refuse an address at which no cluster answers; Ray itself would wait for minutes."""
    if _HEAD.fullmatch(address) is None:
        refuse(name, address, "it must be HOST:PORT, those of the cluster's head")
    try:
        _call(address)
    except OSError as error:
        refuse(name, address, f"nobody answers there: {first_line(error)}")
    ask = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", address]
    try:
        asked = subprocess.run(ask, timeout=6 * _PATIENCE, capture_output=True, text=True)
        said = "" if asked.returncode == 0 else asked.stderr.strip().rpartition("\n")[2] or "it is not well"
    except subprocess.TimeoutExpired:
        said = "no answer of Ray's kind"
    if said:
        token = " (with RAY_AUTH_MODE=token, if it asks for one)" if "oken" in said or "uthenticat" in said else ""
        refuse(name, address, f"somebody answers there, but no Ray cluster that can be joined{token}: {said}")


def _carry_along(ray: Any, work: Work) -> None:
    """Send modules of the user's own with the work: other machines do not have their files."""
    factory = getattr(work.prepared.model, "factory", None)
    for module in _own_modules(getattr(factory, "__module__", "")):
        ray.cloudpickle.register_pickle_by_value(module)


def _own_modules(name: str) -> list[ModuleType]:
    """A module of the user's own, and those of whom it has something; what is installed is on other machines, too."""
    found: dict[str, ModuleType] = {}
    names = [name]
    while names:
        module = sys.modules.get(names.pop())
        if module is not None and module.__name__ not in found and is_own(module) and not _is_ours(module):
            found[module.__name__] = module
            names += [_home_of(value) for value in vars(module).values()]
    return list(found.values())


def _home_of(value: Any) -> str:
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return name if isinstance(name, str) else ""


def _is_ours(module: ModuleType) -> bool:
    """Nodes have wagmf, also where it is installed from a folder of the user's."""
    return module.__name__.partition(".")[0] == __name__.partition(".")[0]


def _patiently(head: str) -> None:
    """Fails if nobody has answered there for a while: a head may be started anew."""
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            return _call(head)
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(_LOOK)


def _lost(error: Exception) -> Refused:
    said = first_line(error)
    return Refused(f"The Ray cluster was lost: {said} (what is recorded is kept, and the same command continues)")


@contextmanager
def _told_if_lost(kind: type[Exception]) -> Iterator[None]:
    """What Ray raises besides what tasks do: what is beside this process does not answer any more."""
    try:
        yield
    except kind as error:
        raise _lost(error) from error


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """Who asks this process to end, as batch systems do, stops it as Ctrl-C does; Ray would leave in the middle."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


class _Sweep:
    """One sweep on a cluster: what is left, and what is under way."""

    def __init__(self, cluster: Cluster, desk: Desk, held: ExitStack) -> None:
        self.cluster, self.desk, self.ray = cluster, desk, cluster._ray
        self.mailbox = cluster.mailbox()
        self.left: deque[Work] = deque()
        self.alone = False  # the cluster's head is gone
        self.noted: set[str] = set()  # stacks of which it is noted that they have begun
        self.running: dict[Any, tuple[Work, ExitStack]] = {}  # with its lock
        held.callback(self._end)

    def carry_out(self, works: list[Work]) -> None:
        self.left, waited = deque(works), False
        while self.left or self.running:
            self._look()
            self._hand_out()
            if not self.running:
                self.desk.wait(waited)
                waited = True
                continue
            ready, _ = self.ray.wait(list(self.running), num_returns=1, timeout=_LOOK)
            self._read_letters()
            for task in ready:
                self._settle(task)

    def _look(self) -> None:
        """Before Ray is asked for anything, since it answers no more without its head."""
        try:
            self.cluster.look()
        except Refused:
            self.alone = True
            raise

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
            elif name in works and kind == "begun":
                self._begun(works[name], content)
            elif name in works:
                self.desk.watch.trained(works[name], content)

    def _begun(self, work: Work, epoch: int) -> None:
        self.noted.add(work.identity)
        self.desk.begun(work, epoch)

    def _settle(self, task: Any) -> None:
        work, held = self.running.pop(task)
        with held:
            runs = self._outcome(task, work)
            if work.identity not in self.noted:  # it was faster than its letter
                self._begun(work, 0)
            if runs is None:
                self.left.extendleft(reversed(self.desk.halved(work)))
            else:
                self.desk.finished(work, runs)

    def _outcome(self, task: Any, work: Work) -> list[Run] | None:
        try:
            return self.ray.get(task)
        except self.ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, self.ray.exceptions.RayError):
                raise Refused(
                    f"{work.prepared.experiment.name}: a worker cannot read what was sent to it: "
                    f"{first_line(error.cause)} (what your own files import must be installed on the nodes)"
                ) from error
            raise error.cause from error
        except self.ray.exceptions.RayError as error:
            raise Refused(
                f"{work.prepared.experiment.name}: the worker of {len(work.keys)} runs was lost {_RETRIES + 1} times: "
                f"{first_line(error)} (what is recorded is kept, and the same command continues)"
            ) from error

    def _end(self) -> None:
        """However it ends: nobody trains on, and what was not finished is free for others."""
        for _, held in self.running.values():
            held.close()
        if not self.alone:
            with suppress(self.ray.exceptions.RayError):  # where the cluster is gone there is nobody to stop
                for task in self.running:
                    self.ray.cancel(task, force=True)
                self.ray.kill(self.mailbox)


# ---------------------------------------------------------------- at the workers


def _about(gpu: bool) -> tuple[str, tuple[int, int]]:
    """The version of the code, and the memory of the machine and of its GPU."""
    return environment("cpu")["source"], (memory_of("cpu"), memory_of("cuda") if gpu else 0)


def _trained(work: Work, data: Dataset, where: str, every: int, mailbox: Any, here: _Here) -> list[Run] | None:
    """The runs of a stack; None if it does not fit into memory. A node may have come after all were asked."""
    _same_source(socket.gethostname(), environment("cpu")["source"], here.source)
    torch.set_num_threads(here.threads)
    if here.folder not in sys.path and Path(here.folder).is_dir():
        sys.path.insert(0, here.folder)  # optimizers of the user's own are imported by name
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
        # Nor is this waited for: while a task waits, Ray lets another one have its CPUs.
        self._mailbox.put.remote((work.identity, "begun", epoch))

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
