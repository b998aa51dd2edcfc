"""Many stacks: what is left to do, in which stacks, and doing it so that nothing is lost."""

import hashlib
import math
import os
import platform
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

import wagmf
from wagmf.arguments import Refused, integer, one_of, refuse
from wagmf.lab.data import Dataset, load
from wagmf.lab.engine import Stack
from wagmf.lab.files import write_whole
from wagmf.lab.models import MODELS, Model, zoo
from wagmf.lab.modules import factory_of, first_line, module, source_of
from wagmf.lab.records import Records, Run
from wagmf.lab.sources import commit
from wagmf.lab.spec import METRICS, Arm, Experiment, Problem, address

__all__ = [
    "Prepared",
    "Watch",
    "Work",
    "addresses",
    "default_device",
    "environment",
    "plan",
    "prepare",
    "stack_size",
    "sweep",
]

_CACHE = 32 << 20  # bytes of activations that a stack on a CPU may have: about what stays near the cores
_MEMORY = 0.5  # of all memory, which a stack may take
_PAUSE = 1.0  # seconds between two looks at what another sweep is at


@dataclass(frozen=True)
class Prepared:
    """An experiment with its data and its model, on a device.

    >>> from wagmf.lab.spec import experiment
    >>> one = experiment({"dataset": "digits", "model": "softmax", "methods": ["adam"], "lrs": [0.1], "seeds": 2})
    >>> prepare([one])[0].model.classes
    10
    """

    experiment: Experiment
    data: Dataset = field(repr=False)
    model: Model = field(repr=False)
    device: str


@dataclass(frozen=True)
class Work:
    """A stack to be trained.

    >>> from wagmf.lab.spec import experiment
    >>> one = experiment({"dataset": "digits", "model": "softmax", "methods": ["adam"], "lrs": [0.1], "seeds": 2})
    >>> [len(work.keys) for work in plan(prepare([one]), set())]
    [2]
    """

    prepared: Prepared
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]

    @property
    def keys(self) -> list[str]:
        """The addresses of its runs, seed by seed."""
        of = self.prepared
        problem, digest = of.experiment.problem, of.data.digest
        return [address(problem, digest, arm, seed)[0] for seed in self.seeds for arm in self.arms]

    @property
    def identity(self) -> str:
        """By which its checkpoint is found again."""
        return _identity(self.keys)

    def halves(self) -> list["Work"]:
        """The same in two stacks; refuses to halve a single replica."""
        if len(self.arms) > 1:
            middle = len(self.arms) // 2
            return [replace(self, arms=self.arms[:middle]), replace(self, arms=self.arms[middle:])]
        if len(self.seeds) > 1:
            middle = len(self.seeds) // 2
            return [replace(self, seeds=self.seeds[:middle]), replace(self, seeds=self.seeds[middle:])]
        raise Refused(f"{self.prepared.experiment.name}: not even one replica fits into the memory of the device")


def _identity(keys: list[str]) -> str:
    return hashlib.sha256(" ".join(keys).encode()).hexdigest()[:20]


class Watch:
    """What a sweep tells those who wait; this one does not listen.

    >>> Watch().planned([], 0)
    """

    def planned(self, works: list[Work], done: int) -> None:
        """The stacks that are left, and how many runs were done before."""

    def begun(self, work: Work, epoch: int) -> None:
        """A stack begins, or goes on after an epoch."""

    def trained(self, work: Work, stack: Stack) -> None:
        """An epoch of a stack is over."""

    def finished(self, work: Work, runs: list[Run]) -> None:
        """Runs are recorded."""

    def told(self, text: str) -> None:
        """Something that a person should know."""


def default_device() -> str:
    """The GPU if there is one.

    >>> default_device() in ("cpu", "cuda")
    True
    """
    return "cuda" if torch.cuda.is_available() else "cpu"


def prepare(
    experiments: Iterable[Experiment],
    device: str | None = None,
    *,
    sources: Mapping[str, Any] | None = None,
    factories: Mapping[str, Any] | None = None,
    progress: bool = True,
) -> list[Prepared]:
    """Load the data and try the models of experiments, so that whatever is wrong is found before anything is trained.

    ``sources`` and ``factories`` give data and factories of modules for names that experiments use.

    >>> from wagmf.lab.spec import experiment
    >>> vectors = {"x_train": [[0.0], [1.0]], "y_train": [0, 1], "x_test": [[0.0]], "y_test": [0]}
    >>> one = experiment({"dataset": "mine", "model": "softmax", "methods": ["adam"], "lrs": [0.1]})
    >>> prepare([one], sources={"mine": vectors})[0].data.shape
    (1,)
    """
    device = _device(device)
    loaded: dict[str, Dataset] = {}
    prepared = []
    for each in experiments:
        _check_name(each.name)
        try:
            name = each.problem.dataset
            if name not in loaded:
                loaded[name] = load((sources or {}).get(name, name), progress=progress)
            model, problem = _model(each.problem, loaded[name], factories or {})
            _try_optimizers(each.arms, model)
        except Refused as error:
            raise Refused(f"{each.name}: {error}") from error.__cause__
        prepared.append(Prepared(replace(each, problem=problem.on(device)), loaded[name], model, device))
    return prepared


def _check_name(name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:
        refuse("name", ascii(name), "it must be text: the name of a file may be something else")


def _try_optimizers(arms: tuple[Arm, ...], model: Model) -> None:
    """Refuse an optimizer of somebody else's that cannot be made with its options, or cannot step on this model."""
    for arm in {(arm.method, arm.options): arm for arm in arms if arm.dotted}.values():
        params = [torch.zeros(shape, requires_grad=True) for shape in model.shapes.values()]
        for param in params:
            param.grad = torch.zeros_like(param)
        try:
            arm.optimizer([{"params": params, "lr": arm.lr}], **dict(arm.options)).step()
        except Exception as error:  # whatever it may raise
            refuse("method", arm.label, f"it cannot train this model: {first_line(error)}")


def _device(device: str | None) -> str:
    device = device or default_device()
    one_of("device", device.partition(":")[0], ("cpu", "cuda"))
    if device.startswith("cuda") and not torch.cuda.is_available():
        refuse("device", device, "this machine, or this build of torch, has no GPU: use cpu")
    return device


def _model(problem: Problem, data: Dataset, factories: Mapping[str, Any]) -> tuple[Model, Problem]:
    """The model, and the problem with what the model adds to it: the version of its code."""
    if problem.model in MODELS and problem.model not in factories:
        return zoo(problem.model, data.shape, data.classes, **dict(problem.options)), problem
    if problem.model not in factories and ":" not in problem.model:
        one_of("model", problem.model, [*MODELS, "module:factory"])
    if problem.options:
        refuse("model option", problem.options[0][0], "a module of one's own has its options in its factory")
    factory = factories.get(problem.model) or factory_of(problem.model)
    batch = min(problem.batch, len(data.y_train))
    return module(factory, data.shape, data.classes, batch), replace(problem, options=(("source", source_of(factory)),))


# ---------------------------------------------------------------- what is left to do


def addresses(prepared: Iterable[Prepared]) -> dict[str, list[str]]:
    """The address of every run that experiments consist of, and the names of those it belongs to.

    >>> from wagmf.lab.spec import experiment
    >>> one = experiment({"dataset": "digits", "model": "softmax", "methods": ["adam"], "lrs": [0.1], "seeds": 2})
    >>> list(addresses(prepare([one])).values())
    [['softmax on digits'], ['softmax on digits']]
    """
    found: dict[str, list[str]] = {}
    for each in prepared:
        for key in Work(each, each.experiment.arms, each.experiment.seeds).keys:
            found.setdefault(key, []).append(each.experiment.name)
    return found


def plan(prepared: Iterable[Prepared], done: set[str]) -> list[Work]:
    """The stacks that train what is not done: products of arms and seeds, as large as the device likes them.

    >>> from wagmf.lab.spec import experiment
    >>> one = experiment({"dataset": "digits", "model": "softmax", "methods": ["adam"], "lrs": [0.1, 0.2], "seeds": 2})
    >>> ready = prepare([one])
    >>> [len(work.keys) for work in plan(ready, {next(iter(addresses(ready)))})]
    [1, 2]
    """
    works, seen = [], set(done)
    for each in prepared:
        for arms, seeds in _blocks(each):
            block = Work(each, arms, seeds)
            works += _missing(block, seen)
            seen |= set(block.keys)
    return works


def _missing(work: Work, done: set[str]) -> list[Work]:
    """What is left of a stack: arms that miss the same seeds are trained together."""
    problem, digest = work.prepared.experiment.problem, work.prepared.data.digest
    together: dict[tuple[int, ...], list[Arm]] = {}
    for arm in work.arms:
        left = tuple(seed for seed in work.seeds if address(problem, digest, arm, seed)[0] not in done)
        if left:
            together.setdefault(left, []).append(arm)
    return [replace(work, arms=tuple(arms), seeds=seeds) for seeds, arms in together.items()]


def _blocks(each: Prepared) -> Iterator[tuple[tuple[Arm, ...], tuple[int, ...]]]:
    """The whole grid cut into stacks: by what is asked for, not by what is left, so that a second try cuts alike."""
    size = stack_size(each.experiment.problem, each.model, each.device)
    seeds = each.experiment.seeds
    parts = math.ceil(len(seeds) / size)
    for dotted in (False, True):  # optimizers of others cannot be recorded as a graph: they do not share with ours
        arms = tuple(arm for arm in each.experiment.arms if arm.dotted == dotted)
        for some in _even(seeds, parts):
            for few in _even(arms, math.ceil(len(arms) / max(1, size // len(some)))):
                yield few, some


def _even(things: tuple[Any, ...], parts: int) -> list[tuple[Any, ...]]:
    """Cut into so many parts of about one size."""
    width = math.ceil(len(things) / max(1, parts))
    return [things[k : k + width] for k in range(0, len(things), max(1, width))]


def stack_size(problem: Problem, model: Model, device: str) -> int:
    """How many replicas are trained together.

    On a CPU as many as keep their activations near the cores: a stack saves what each operation costs at least, and
    once that is small, more replicas only push each other out of the cache. On a GPU as many as fit.

    >>> from wagmf.lab.models import Softmax
    >>> stack_size(Problem("digits", "softmax"), Softmax((64,), 10), "cpu") > 100
    True
    """
    width = {"bfloat16": 2, "float32": 4, "float64": 8}[problem.on(device).precision]
    activations = max(1, model.activations * problem.batch * width)
    weights = 6 * 4 * sum(math.prod(shape) for shape in model.shapes.values())
    if device == "cpu":
        return max(1, min(_CACHE // activations, int(_MEMORY * _memory()) // (2 * activations + weights), 512))
    _, memory = torch.cuda.mem_get_info(device)
    return max(1, min(int(_MEMORY * memory) // (2 * activations + weights), 256))


def _memory() -> int:
    """All there is, not what is free: that changes, and stacks should not."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):  # not every system tells
        return 4 << 30


# ---------------------------------------------------------------- doing it


def sweep(prepared: list[Prepared], path: str | Path, *, every: int = 5, watch: Watch | None = None) -> set[str]:
    """Train what is missing in the file of records, and return the addresses of all runs that were asked for.

    Runs are recorded stack by stack. A stack is saved every ``every`` epochs beside the file, so that a sweep that was
    stopped, or killed, goes on from there. Several sweeps on one file share the work.

    >>> import tempfile
    >>> from wagmf.lab.spec import experiment
    >>> table = {"dataset": "digits", "model": "softmax", "methods": ["wada"], "lrs": [0.1], "epochs": 1}
    >>> path = Path(tempfile.mkdtemp()) / "runs.db"
    >>> len(sweep(prepare([experiment(table)]), path)), len(Records(path).runs())
    (1, 1)
    """
    integer("every", every, least=1)
    watch, records = watch or Watch(), Records(path)
    named = addresses(prepared)
    wanted = set(named)
    folder = _stacks_folder(records.path)
    records.enrol(named)
    works = _resumed(plan(prepared, records.find(wanted)), prepared, records, folder)
    watch.planned(works, len(records.find(wanted)))
    left = list(works)
    waited = False
    while left:
        busy = []
        while left:
            work = left.pop(0)
            lock = _locked(folder, work.identity)
            if lock is None:
                busy.append(work)
                continue
            with lock:
                left = _do(work, records, folder, every, watch) + left
        if busy:
            if not waited:
                watch.told("Another sweep trains what is left; waiting for it.")
            waited = True
            time.sleep(_PAUSE)
        left = busy
    _tidy(folder, records)
    return wanted


@contextmanager
def _released(lock: FileLock) -> Iterator[None]:
    try:
        yield
    finally:
        lock.release()


def _locked(folder: Path, identity: str) -> AbstractContextManager[None] | None:
    """A stack for this process alone; None if another one has it, which ends with that process, however it ends."""
    lock = FileLock(folder / f"{identity}.lock", timeout=0)
    try:
        lock.acquire()
    except (Timeout, FileNotFoundError):  # the folder: another sweep is tidying it away
        return None
    return _released(lock)


def _stacks_folder(path: Path) -> Path:
    folder = path.with_name(path.name + ".stacks")
    try:
        folder.mkdir(exist_ok=True)
        (folder / ".gitignore").write_text("*\n")
    except OSError as error:
        raise Refused(f"{folder}: cannot be written: {error.strerror}") from error
    return folder


def _do(work: Work, records: Records, folder: Path, every: int, watch: Watch) -> list[Work]:
    """Train a stack to its end and record it; returns what is to be done instead.

    That is something if it does not fit into memory, or if another sweep has recorded some of it meanwhile.
    """
    done = records.find(work.keys)
    if done:
        return _missing(work, done)
    saved = folder / f"{work.identity}.pt"
    for stale in folder.glob(f".{work.identity}-*"):  # half a checkpoint of a process that was killed
        stale.unlink()
    try:
        stack = _stack(work, saved, watch)
        records.attempt(work.keys, stack.epoch)
        watch.begun(work, stack.epoch)
        while stack.epoch < work.prepared.experiment.problem.epochs:
            stack.train()
            watch.trained(work, stack)
            if stack.epoch % every == 0:
                _save(stack, saved)
    except torch.OutOfMemoryError:
        halves = work.halves()
        watch.told(f"{len(work.keys)} replicas do not fit into memory: two stacks instead.")
        torch.cuda.empty_cache()
        saved.unlink(missing_ok=True)
        return halves
    runs = _runs(work, stack)
    records.add(runs)
    saved.unlink(missing_ok=True)
    watch.finished(work, runs)
    return []


def _stack(work: Work, saved: Path, watch: Watch) -> Stack:
    of = work.prepared
    stack = Stack(of.experiment.problem, of.model, of.data, list(work.arms), list(work.seeds), of.device)
    if saved.exists():
        try:
            stack.load_state_dict(torch.load(saved, weights_only=True, map_location=of.device))
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # there is no end to what a damaged file may lead to
            watch.told(f"{saved} cannot be read and is not used ({first_line(error)}); its stack begins anew.")
            return Stack(of.experiment.problem, of.model, of.data, list(work.arms), list(work.seeds), of.device)
    return stack


def _save(stack: Stack, saved: Path) -> None:
    try:
        write_whole(saved, lambda new: torch.save(stack.state_dict(), new))
    except (OSError, RuntimeError) as error:
        why = error.strerror if isinstance(error, OSError) else first_line(error)
        raise Refused(
            f"{saved}: the checkpoint cannot be written: {why} (make room there and run the same command: "
            "what is recorded is kept)"
        ) from error


def _runs(work: Work, stack: Stack) -> list[Run]:
    """What a stack that is trained has to tell, run by run."""
    of, runs = work.prepared, []
    curves = {metric: torch.stack(stack.curves[metric]) for metric in METRICS}
    way = (
        f"{of.model.way}, {len(stack)} replica{'s' * (len(stack) > 1)}"
        if of.model.way.startswith("stacked")
        else of.model.way
    )
    when = (stack.wall, datetime.now(UTC).isoformat(timespec="seconds"))
    for s, seed in enumerate(work.seeds):
        for k, arm in enumerate(work.arms):
            key, config = address(of.experiment.problem, of.data.digest, arm, seed)
            told = {m: [v if math.isfinite(v) else None for v in curves[m][:, s, k].tolist()] for m in METRICS}
            diverged = int(stack.diverged[s, k]) or None
            made = environment(of.device)
            runs.append(Run(key, of.experiment.name, config, diverged, told, stack.step_ms, way, made, *when))
    return runs


def _resumed(works: list[Work], prepared: list[Prepared], records: Records, folder: Path) -> list[Work]:
    """The plan, but stacks that were begun before go on as they were, even if the grid has grown since."""
    planned = {work.identity for work in works}
    begun = {path.stem for path in folder.glob("[!.]*.pt")}
    if all(identity in planned for identity in begun):
        return works
    places = {}
    for each in prepared:
        for arm in each.experiment.arms:
            for seed in each.experiment.seeds:
                places[address(each.experiment.problem, each.data.digest, arm, seed)[0]] = (each, arm, seed)
    first, taken = [], set()
    for keys in _unfinished(records):
        if taken.isdisjoint(keys) and all(key in places for key in keys):
            work = Work(
                places[keys[0]][0],
                tuple(dict.fromkeys(places[key][1] for key in keys)),
                tuple(dict.fromkeys(places[key][2] for key in keys)),
            )
            if work.keys == keys and work.identity in begun:
                first.append(work)
                taken |= set(keys)
    return first + plan(prepared, records.find(places) | taken)


def _unfinished(records: Records) -> list[list[str]]:
    """The stacks that were begun and of which nothing is recorded: only they can go on from a checkpoint."""
    begun = [keys for keys, _ in records.attempts()]
    done = records.find(key for keys in begun for key in keys)
    return [keys for keys in begun if done.isdisjoint(keys)]


def _tidy(folder: Path, records: Records) -> None:
    """Leave nothing behind but checkpoints that are still of use, and what other sweeps are at."""
    kept = {_identity(keys) for keys in _unfinished(records)}
    for identity in {path.name.lstrip(".").partition(".")[0].partition("-")[0] for path in folder.glob("*.*")}:
        lock = _locked(folder, identity) if identity != "gitignore" else None
        if lock is None:
            continue
        with lock:
            for path in folder.glob(f".{identity}-*"):  # half a checkpoint of a process that was killed
                path.unlink(missing_ok=True)
            if identity not in kept:
                (folder / f"{identity}.pt").unlink(missing_ok=True)
            (folder / f"{identity}.lock").unlink(missing_ok=True)
    with suppress(OSError):
        if {path.name for path in folder.iterdir()} <= {".gitignore"}:
            (folder / ".gitignore").unlink(missing_ok=True)
            folder.rmdir()


@cache
def environment(device: str) -> dict[str, str]:
    """What runs are made with, as records keep it.

    >>> environment("cpu")["wagmf"] == wagmf.__version__
    True
    """
    told = {"wagmf": wagmf.__version__, "commit": commit(), "source": _source(), "python": platform.python_version()}
    told |= {name: metadata.version(name) for name in ("torch", "numpy", "numba")}
    hardware = torch.cuda.get_device_name(device) if device.startswith("cuda") else _processor()
    return told | {"system": platform.platform(), "device": hardware, "threads": str(torch.get_num_threads())}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _source() -> str:
    """A hash of the package's own code."""
    files = sorted(Path(wagmf.__file__).parent.rglob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:16]
