"""Many stacks: doing what is left, so that nothing is lost."""

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

import torch
from filelock import FileLock, Timeout

from wagmf.arguments import Refused, integer
from wagmf.lab.checkpoints import Checkpoints
from wagmf.lab.engine import Stack
from wagmf.lab.environment import environment
from wagmf.lab.planning import Prepared, Work, addresses, identity, missing, plan
from wagmf.lab.records import Records, Run
from wagmf.lab.sources import first_line
from wagmf.lab.spec import METRICS, address

__all__ = ["Desk", "Engine", "Epoch", "Watch", "sweep", "train_stack"]

_PAUSE = 1.0  # seconds between two looks at what another sweep is at


@dataclass(frozen=True)
class Epoch:
    """What an epoch of a stack came to: steps, over all replicas, and means over seeds for each arm.

    >>> Epoch(number=2, steps=500, ends={"train_loss": (0.3,)}).number
    2
    """

    number: int
    steps: int
    ends: Mapping[str, tuple[float, ...]]  # of every metric


class Watch:
    """What a sweep tells those who wait; this one does not listen.

    >>> Watch().planned([], 0)
    """

    def planned(self, works: list[Work], done: int) -> None:
        """The stacks that are left, and how many runs were done before."""

    def begun(self, work: Work, epoch: int) -> None:
        """A stack begins, or goes on after an epoch."""

    def trained(self, work: Work, epoch: Epoch) -> None:
        """An epoch of a stack is over."""

    def finished(self, work: Work, runs: list[Run]) -> None:
        """Runs are recorded."""

    def told(self, text: str) -> None:
        """Something that a person should know."""


@dataclass(frozen=True)
class Desk:
    """What an engine works with: where runs are recorded, stacks are locked and saved, and who is told.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "runs.db"
    >>> Desk(Records(path), path.parent, Checkpoints(path.parent), 5, Watch()).every
    5
    """

    records: Records
    folder: Path
    checkpoints: Checkpoints
    every: int  # epochs between checkpoints
    watch: Watch

    def locked(self, name: str) -> AbstractContextManager[None] | None:
        """A stack for this process alone; None if another one has it, which ends with that process, however it ends."""
        lock = FileLock(self.folder / f"{name}.lock", timeout=0)
        try:
            lock.acquire()
        except (Timeout, FileNotFoundError):  # the folder: another sweep is tidying it away
            return None
        return _released(lock)

    def begun(self, work: Work, epoch: int) -> None:
        """Note that a stack begins, or goes on."""
        self.records.attempt(work.keys, epoch)
        self.watch.begun(work, epoch)

    def finished(self, work: Work, runs: list[Run]) -> None:
        """Record what came of a stack; its checkpoint has served."""
        self.records.add(runs)
        self.checkpoints.drop(work.identity)
        self.watch.finished(work, runs)

    def halved(self, work: Work) -> list[Work]:
        """What is done instead of a stack that does not fit into memory."""
        halves = work.halves()
        self.watch.told(f"{len(work.keys)} replicas do not fit into memory: two stacks instead.")
        self.checkpoints.drop(work.identity)
        return halves

    def wait(self, said: bool) -> None:
        """For another sweep, which has what is left."""
        if not said:
            self.watch.told("Another sweep trains what is left; waiting for it.")
        time.sleep(_PAUSE)


@contextmanager
def _released(lock: FileLock) -> Iterator[None]:
    try:
        yield
    finally:
        lock.release()


class Engine:
    """Who trains stacks, and where they are saved; this one trains them here, one after the other.

    >>> Engine().checkpoints is None  # beside the file of records
    True
    """

    checkpoints: str | None = None
    device: str | None = None  # and its memory, where they are not of this machine
    memory: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is kept open here."""

    def train(self, works: list[Work], desk: Desk) -> None:
        """Train all stacks to their ends, and record them."""
        left, waited = list(works), False
        while left:
            busy = []
            while left:
                work = left.pop(0)
                lock = desk.locked(work.identity)
                if lock is None:
                    busy.append(work)
                    continue
                with lock:
                    left = _do(work, desk) + left
            if busy:
                desk.wait(waited)
                waited = True
            left = busy


def sweep(
    prepared: list[Prepared],
    path: str | Path,
    *,
    every: int = 5,
    watch: Watch | None = None,
    engine: Engine | None = None,
) -> set[str]:
    """Train what is missing in the file of records, and return the addresses of all runs that were asked for.

    Runs are recorded stack by stack. A stack is saved every ``every`` epochs, so that a sweep that was stopped, or
    killed, goes on from there. Several sweeps on one file share the work. The ``engine`` trains the stacks: in this
    process, unless it is another.

    >>> import tempfile
    >>> from wagmf.lab.planning import prepare
    >>> from wagmf.lab.spec import experiment
    >>> table = {"dataset": "digits", "model": "softmax", "methods": ["wada"], "lrs": [0.1], "epochs": 1}
    >>> path = Path(tempfile.mkdtemp()) / "runs.db"
    >>> len(sweep(prepare([experiment(table)]), path)), len(Records(path).runs())
    (1, 1)
    """
    integer("every", every, least=1)
    engine, records = engine or Engine(), Records(path)
    folder = _stacks_folder(records.path)
    desk = Desk(records, folder, _place(engine, records, folder), every, watch or Watch())
    named = addresses(prepared)
    wanted = set(named)
    records.enrol(named)
    works = _resumed(plan(prepared, records.find(wanted)), prepared, desk)
    desk.watch.planned(works, len(records.find(wanted)))
    engine.train(works, desk)
    _tidy(desk)
    return wanted


def _place(engine: Engine, records: Records, folder: Path) -> Checkpoints:
    """A place of this file's own: what others keep beside it, other sweeps or people, is not ours to touch."""
    if engine.checkpoints is None:
        return Checkpoints(folder)
    return Checkpoints(f"{engine.checkpoints.rstrip('/')}/wagmf-{records.name()}")


def _stacks_folder(path: Path) -> Path:
    folder = path.with_name(path.name + ".stacks")
    try:
        folder.mkdir(exist_ok=True)
        (folder / ".gitignore").write_text("*\n")
    except OSError as error:
        raise Refused(f"{folder}: cannot be written: {error.strerror}") from error
    return folder


def _do(work: Work, desk: Desk) -> list[Work]:
    """Train a stack to its end and record it; returns what is to be done instead.

    That is something if it does not fit into memory, or if another sweep has recorded some of it meanwhile.
    """
    done = desk.records.find(work.keys)
    if done:
        return missing(work, done)
    try:
        runs = train_stack(work, desk.checkpoints, desk.every, _Noting(desk))
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return desk.halved(work)
    desk.finished(work, runs)
    return []


class _Noting(Watch):
    """Beginnings are recorded, and everything is passed on."""

    def __init__(self, desk: Desk) -> None:
        self.begun, self.trained, self.told = desk.begun, desk.watch.trained, desk.watch.told


def train_stack(work: Work, checkpoints: Checkpoints, every: int, watch: Watch) -> list[Run]:
    """Train a stack to its end, from its checkpoint if there is one, and return its runs.

    >>> import tempfile
    >>> from wagmf.lab.planning import prepare
    >>> from wagmf.lab.spec import experiment
    >>> table = {"dataset": "digits", "model": "softmax", "methods": ["wada"], "lrs": [0.1], "epochs": 1}
    >>> [work] = plan(prepare([experiment(table)]), set())
    >>> train_stack(work, Checkpoints(tempfile.mkdtemp()), 5, Watch())[0].experiment
    'softmax on digits'
    """
    checkpoints.clear(work.identity)
    stack = _stack(work, checkpoints, watch)
    watch.begun(work, stack.epoch)
    while stack.epoch < work.prepared.experiment.problem.epochs:
        stack.train()
        watch.trained(work, _epoch(stack))
        if stack.epoch % every == 0:
            checkpoints.save(work.identity, stack.state_dict())
    return _runs(work, stack)


def _stack(work: Work, checkpoints: Checkpoints, watch: Watch) -> Stack:
    stack = _fresh(work)
    try:
        state = checkpoints.load(work.identity, work.prepared.device)
        if state is not None:
            stack.load_state_dict(state)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # there is no end to what a damaged file may lead to
        name = f"{checkpoints.where}/{work.identity}.pt"
        watch.told(f"{name} cannot be read and is not used ({first_line(error)}); its stack begins anew.")
        return _fresh(work)
    return stack


def _fresh(work: Work) -> Stack:
    of = work.prepared
    return Stack(of.experiment.problem, of.model, of.data, list(work.arms), list(work.seeds), of.device)


def _epoch(stack: Stack) -> Epoch:
    ends = {metric: tuple(stack.curves[metric][-1].mean(0).tolist()) for metric in METRICS}
    return Epoch(stack.epoch, stack.batches.steps * len(stack), ends)


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


def _resumed(works: list[Work], prepared: list[Prepared], desk: Desk) -> list[Work]:
    """The plan, but stacks that were begun before go on as they were, even if the grid has grown since."""
    planned = {work.identity for work in works}
    begun = desk.checkpoints.names()
    if begun <= planned:
        return works
    places = {}
    for each in prepared:
        for arm in each.experiment.arms:
            for seed in each.experiment.seeds:
                places[address(each.experiment.problem, each.data.digest, arm, seed)[0]] = (each, arm, seed)
    first, taken = [], set()
    for keys in _unfinished(desk.records):
        if taken.isdisjoint(keys) and all(key in places for key in keys):
            work = Work(
                places[keys[0]][0],
                tuple(dict.fromkeys(places[key][1] for key in keys)),
                tuple(dict.fromkeys(places[key][2] for key in keys)),
            )
            if work.keys == keys and work.identity in begun:
                first.append(work)
                taken |= set(keys)
    return first + plan(prepared, desk.records.find(places) | taken)


def _unfinished(records: Records) -> list[list[str]]:
    """The stacks that were begun and of which nothing is recorded: only they can go on from a checkpoint."""
    begun = [keys for keys, _ in records.attempts()]
    done = records.find(key for keys in begun for key in keys)
    return [keys for keys in begun if done.isdisjoint(keys)]


def _tidy(desk: Desk) -> None:
    """Leave nothing behind but checkpoints that are still of use, and what other sweeps are at."""
    folder = desk.folder
    kept = {identity(keys) for keys in _unfinished(desk.records)}
    for name in {identity(keys) for keys, _ in desk.records.attempts()} | {path.stem for path in folder.glob("*.lock")}:
        lock = desk.locked(name)
        if lock is None:
            continue
        with lock:
            desk.checkpoints.clear(name)
            if name not in kept:
                desk.checkpoints.drop(name)
            (folder / f"{name}.lock").unlink(missing_ok=True)
    if desk.checkpoints.where != str(folder.resolve()):
        desk.checkpoints.leave()
    with suppress(OSError):
        if {path.name for path in folder.iterdir()} <= {".gitignore"}:
            (folder / ".gitignore").unlink(missing_ok=True)
            folder.rmdir()
