"""Finished walks of the synthetic problem, one JSON line each, written the moment they finish.

A line holds the task, the version and a hash of the source that computed it, and the logged numbers. A run that is
stopped, or killed, keeps every line it wrote; run again, it simulates only what is missing.
"""

import hashlib
import json
import os
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import wagmf
from wagmf import arguments, feasible, methods, online, rule, weights
from wagmf.arguments import Refused
from wagmf.lab.files import pack, single, unpack
from wagmf.lab.sources import commit
from wagmf.online import Task, Walk
from wagmf.rule import Rule

__all__ = ["Record", "Walks", "best_rate", "pack_walks", "source_hash", "unpack_walks", "walks_commits"]


@dataclass(frozen=True)
class Record:
    """A finished walk with the name of its method.

    >>> from wagmf import Rule
    >>> Record("wada", Task(Rule(), 10, (0.1,)), Walk(np.array([1]), np.zeros((1, 1)), np.zeros((1, 1)))).method
    'wada'
    """

    method: str
    task: Task
    walk: Walk


class Walks:
    """The file of finished walks at ``path``; reading skips what another version of the source has computed.

    >>> import tempfile
    >>> from wagmf import Rule
    >>> walks = Walks(Path(tempfile.mkdtemp()) / "walks.jsonl")
    >>> task = Task(Rule(decay=0.5), 100, (0.1,))
    >>> walks.add(Record("wada", task, online.simulate(**vars(task))))
    >>> [record.method for record in walks.find([("wada", task)])]
    ['wada']
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, record: Record) -> None:
        """Append the record in one write, and see it safely on the disk."""
        line = {
            "wagmf": wagmf.__version__,
            "source": source_hash(),
            **_describe(record.method, record.task),
            "t": record.walk.t.tolist(),
            "x": record.walk.x.tolist(),
            "regret": record.walk.regret.tolist(),
        }
        data = (json.dumps(line, allow_nan=False) + "\n").encode()
        with open(self.path, "ab+", buffering=0) as file:
            # A kill may have torn the last line: end it, so that only that one is lost.
            if file.tell():
                file.seek(-1, os.SEEK_END)
                data = data if file.read(1) == b"\n" else b"\n" + data
            while data:  # a full disk may take only part, and says so when asked to take the rest
                data = data[file.write(data) or 0 :]
            os.fsync(file.fileno())

    def find(self, wanted: Iterable[tuple[str, Task]]) -> list[Record]:
        """The records of those (method name, task) pairs that have finished, in the order asked for."""
        known = self._read()
        pairs = list(wanted)
        keys = [_key(_describe(*pair)) for pair in pairs]
        return [Record(name, task, known[key]) for (name, task), key in zip(pairs, keys, strict=True) if key in known]

    def _read(self) -> dict[str, Walk]:
        walks: dict[str, Walk] = {}
        if not self.path.exists():
            return walks
        for text in self.path.read_bytes().split(b"\n"):
            try:
                line = json.loads(text)
                walk = Walk(*(np.array(line.pop(name)) for name in ("t", "x", "regret")))
                whole = walk.x.shape == walk.regret.shape == (len(line["lrs"]), walk.t.size)
                if line.pop("source") == source_hash() and line.pop("wagmf") and whole:
                    walks[_key(line)] = walk
            except (ValueError, KeyError, AttributeError, TypeError):
                continue  # torn by a kill, or not ours; it will be computed again
        return walks


def _describe(name: str, task: Task) -> dict[str, Any]:
    return {"method": name, **asdict(task), "rule": task.rule.to_dict()}


def _key(description: dict[str, Any]) -> str:
    return json.dumps(description, sort_keys=True)


@cache
def source_hash() -> str:
    """A hash of the source that decides the numbers.

    >>> len(source_hash())
    12
    """
    sources = (Path(str(room.__file__)).read_bytes() for room in (arguments, weights, rule, methods, feasible, online))
    return hashlib.sha256(b"\0".join(sources)).hexdigest()[:12]


def best_rate(records: list[Record]) -> int:
    """The index of the step size whose median final R(T)/T over these records is least.

    >>> from wagmf import Rule
    >>> walk = Walk(np.array([1]), np.zeros((2, 1)), np.array([[3.0], [1.0]]))
    >>> best_rate([Record("wada", Task(Rule(), 1, (0.1, 1.0)), walk)])
    1
    """
    return int(np.argmin(np.median([record.walk.regret[:, -1] for record in records], axis=0)))


def pack_walks(records: Iterable[Record], path: Path) -> Path:
    """Write walks into a small file that :func:`unpack_walks` reads, whatever the source has become by then.

    Numbers are kept in single precision. The same walks give the same bytes.

    >>> import tempfile
    >>> task, folder = Task(rule.Rule(decay=0.5), 100, (0.1,)), Path(tempfile.mkdtemp())
    >>> path = pack_walks([Record("wada", task, online.simulate(**vars(task)))], folder / "walks.jsonl.gz")
    >>> unpack_walks(path)[0].task == task
    True
    """
    lines = []
    for record in records:
        told = {"wagmf": wagmf.__version__, "source": source_hash(), "commit": commit()}
        told |= _describe(record.method, record.task)
        told |= {"t": record.walk.t.tolist()}
        told |= {name: [list(map(single, row)) for row in getattr(record.walk, name)] for name in ("x", "regret")}
        lines.append(told)
    return pack(lines, path)


def unpack_walks(path: Path) -> list[Record]:
    """The walks that :func:`pack_walks` wrote.

    >>> unpack_walks(Path("nowhere.jsonl.gz"))
    Traceback (most recent call last):
    wagmf.arguments.Refused: nowhere.jsonl.gz: is no archive of walks: ...
    """
    records = []
    try:
        for line in unpack(path):
            t, x, regret = (np.array(line.pop(name), dtype=float) for name in ("t", "x", "regret"))
            walk, name = Walk(t.astype(np.int64), x, regret), line.pop("method")
            if not x.shape == regret.shape == (len(line["lrs"]), t.size) or name not in methods.METHODS:
                raise ValueError(f"the walk of {name} is not whole")
            told = {key: line[key] for key in Task.__dataclass_fields__}
            told |= {"rule": Rule.from_dict(line["rule"]), "lrs": tuple(map(float, line["lrs"])), "T": int(line["T"])}
            records.append(Record(name, Task(**told), walk))
    except (OSError, EOFError, ValueError, TypeError, KeyError, AttributeError, zlib.error) as error:
        raise Refused(f"{path}: is no archive of walks: {error}") from error
    return records


def walks_commits(path: Path) -> tuple[str, ...]:
    """The commits at which the walks of an archive were packed; the source that decides them was the same before.

    >>> import tempfile
    >>> task, folder = Task(rule.Rule(decay=0.5), 100, (0.1,)), Path(tempfile.mkdtemp())
    >>> path = pack_walks([Record("wada", task, online.simulate(**vars(task)))], folder / "walks.jsonl.gz")
    >>> walks_commits(path) == (commit(),)
    True
    """
    return tuple(sorted({line.get("commit") or "unknown" for line in unpack(path)}))
