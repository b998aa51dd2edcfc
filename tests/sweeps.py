"""Small sweeps, and a process that starts some of them and kills them at moments of its choice.

What is forked here has one thread, and its parent has never gone backwards through a graph: torch does not mind then.
"""

import json
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path

import numpy as np
import torch

from wagmf.lab import checkpoints, engine, files, planning, records, sweep
from wagmf.lab.records import Records
from wagmf.lab.spec import experiment

ROOMS = {room.__file__ for room in (checkpoints, engine, files, planning, records, sweep)}
# Each is trained in stacks of its own; of ours, of others', with dropout; one diverges.
TABLES = (
    {"name": "deep", "model": "mlp", "width": 5, "methods": ["adam", "wada"]},
    {"name": "plain", "model": "softmax", "methods": {"adam": {}, "wada": {}, "torch.optim.SGD": [0.1, 1e38]}},
    {"name": "punished", "model": "softmax", "l2": 0.01, "methods": ["wada", "amsgrad"]},
)


def vectors(n=24, features=4, classes=3, seed=0):
    """Data that can be learned."""
    some = np.random.default_rng(seed)
    centres = some.normal(size=(classes, features))
    parts = {}
    for part, count in (("train", n), ("test", 9)):
        labels = np.arange(count) % classes
        parts |= {f"x_{part}": centres[labels] + some.normal(size=(count, features)) / 2, f"y_{part}": labels}
    return parts


def ready(*tables, data=None, stack=None, **more):
    """Experiments on made-up vectors, prepared."""
    common = {"dataset": "made", "model": "softmax", "methods": ["adam"], "lrs": [0.01, 0.1], "seeds": 2}
    common |= {"epochs": 4, "batch": 8}
    experiments = [experiment({**common, **table, **more}) for table in tables or ({},)]
    return planning.prepare(experiments, "cpu", sources={"made": data or vectors()}, stack=stack)


def outcome(path):
    """All that does not depend on when and how fast the runs were made."""
    return {run.key: (run.experiment, run.config, run.diverged, run.curves) for run in Records(path).runs()}


def stop_after(epochs, monkeypatch):
    """Have somebody press Ctrl-C after so many epochs; returns how a stack is trained otherwise."""
    train, left = engine.Stack.train, [epochs]

    def once(stack):
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        train(stack)

    monkeypatch.setattr(engine.Stack, "train", once)
    return train


def left_over(path):
    """What lies beside the file of records."""
    return sorted(str(found.relative_to(path.parent)) for found in path.parent.rglob("*") if found != path)


# ---------------------------------------------------------------- killed


def driver(folder: Path, kills: int) -> None:
    """Sweep undisturbed; killed again and again; and twice at the same time. What came of it goes into told.json."""
    torch.set_num_threads(1)
    torch.optim.SGD([torch.zeros(1)], lr=1.0)  # for the first optimizer, torch imports its compiler
    prepared = ready(*TABLES)
    names = {Path(f"/proc/self/task/{thread}/comm").read_text().strip() for thread in os.listdir("/proc/self/task")}
    assert len(names - {"jemalloc_bg_thd"}) == 1, names  # that one is of pyarrow and survives a fork
    length = folder / "length"
    began = time.perf_counter()
    assert _ended(_start(prepared, folder / "whole" / "runs.db", _count(length))) == 0
    seconds, lines = time.perf_counter() - began, int(length.read_text())
    told = {"killed": _killed(prepared, folder / "killed", kills, lines, seconds)}
    both = [_start(prepared, folder / "both" / "runs.db") for _ in range(2)]
    told["both"] = [_ended(child) for child in both]
    (folder / "told.json").write_text(json.dumps(told))


def _killed(prepared, folder, kills, lines, seconds):
    """Kill sweeps until so many were hit; one that finishes before is followed by another, on a file of its own."""
    pick, hit, sweeps = random.Random(0), [], []
    kinds = (["line", "clock", *SPOTS] * kills)[:kills]
    pick.shuffle(kinds)
    while kinds:
        path = folder / str(len(sweeps)) / "runs.db"
        sweeps.append([])  # what is recorded, and how often training began, after each kill
        first, code = ["schema", "between"], None
        while code != 0:
            kind = first.pop(0) if first else kinds.pop() if kinds else "none"
            moment = pick.random() / 8  # of a whole sweep
            planted = {**SPOTS, **FIRST, "line": _stop_at(int(moment * lines))}
            child = _start(prepared, path, planted.get(kind))
            if kind == "clock":
                time.sleep(moment * seconds)
                os.kill(child, signal.SIGKILL)
            code = _ended(child)
            assert code in (0, -signal.SIGKILL), f"{kind}: {code}"
            if code:
                hit.append(kind)
            elif kind in ("line", "clock", *SPOTS):
                kinds.insert(0, kind)  # it came too late
            if path.exists() and path.stat().st_size:
                sweeps[-1].append((sorted(outcome(path)), len(Records(path).attempts())))
    return {"hit": hit, "sweeps": sweeps}


def _start(prepared, path, plant=None) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        end = plant() if plant else None
        sweep.sweep(prepared, path, every=1)
        sys.settrace(None)
        if end:
            end()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _traced(each_line):
    """Call a function for every line of the rooms that is executed."""

    def look(frame, event, _):
        if frame.f_code.co_filename not in ROOMS:
            return None
        if event == "line":
            each_line()
        return look

    sys.settrace(look)


def _count(place):
    """For a child: count the lines of a whole sweep."""
    count = [0]

    def one_more():
        count[0] += 1

    def plant():
        _traced(one_more)
        return lambda: place.write_text(str(count[0]))

    return plant


def _stop_at(moment):
    """For a child: die at a line."""
    left = [moment]

    def one_less():
        left[0] -= 1
        if left[0] < 0:
            _die()

    return lambda: _traced(one_less)


def _half_a_checkpoint():
    save = torch.save

    def half(state, place):
        save(state, place)
        with open(place, "r+b") as file:
            file.truncate(os.path.getsize(place) // 2)
        _die()

    torch.save = half


def _within_the_transaction():
    """After the rows are written, before they count."""

    class Connection(records.sqlite3.Connection):
        def executemany(self, *arguments):
            super().executemany(*arguments)
            _die()

    connect = records.sqlite3.connect
    records.sqlite3.connect = lambda *a, **k: connect(*a, factory=Connection, **k)


def _recorded_but_not_tidied():
    add = Records.add

    def then_die(self, runs):
        add(self, runs)
        _die()

    Records.add = then_die


def _while_the_file_is_made():
    class Connection(records.sqlite3.Connection):
        def executescript(self, script):
            self.set_progress_handler(_die, 40)  # instructions of the database's own
            super().executescript(script)

    connect = records.sqlite3.connect
    records.sqlite3.connect = lambda *a, **k: connect(*a, factory=Connection, **k)


def _between_checkpoints():
    save = checkpoints.Checkpoints.save

    def twice(self, name, state):
        save(self, name, state)
        if state["epoch"] == 2:
            _die()

    checkpoints.Checkpoints.save = twice


SPOTS = {
    "checkpoint": _half_a_checkpoint,
    "transaction": _within_the_transaction,
    "recorded": _recorded_but_not_tidied,
}
FIRST = {"schema": _while_the_file_is_made, "between": _between_checkpoints}
