"""Every run that finished, in one SQLite file; statistics, figures and reports are functions of it.

A run is addressed by the content of its configuration, so that it is found again whichever experiment asks for it.
"""

import gzip
import json
import sqlite3
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from wagmf.arguments import Refused, real, refuse
from wagmf.lab.files import pack, single, unpack, write_whole
from wagmf.lab.spec import METRICS

__all__ = [
    "Records",
    "Run",
    "Tables",
    "archive",
    "configuration",
    "differs",
    "environment_of",
    "export",
    "problem_of",
    "restore",
    "shortened",
    "tables",
    "write_csv",
]

_FORMAT = 2
_PATIENCE = 60.0  # seconds to wait for others who write
_SCHEMA = """
BEGIN IMMEDIATE;                    -- all of it or, if the process is killed, nothing
CREATE TABLE IF NOT EXISTS runs (
    key TEXT PRIMARY KEY,           -- the hash of config
    experiment TEXT NOT NULL,       -- the name it was run under
    config TEXT NOT NULL,           -- JSON: all that the result depends on
    diverged INTEGER,               -- the epoch, or NULL
    curves TEXT NOT NULL,           -- JSON: metric -> one value per epoch, null where there is none
    step_ms REAL NOT NULL,          -- a step of its stack, divided by the replicas in it
    way TEXT NOT NULL,              -- how it was trained
    environment TEXT NOT NULL,      -- JSON
    seconds REAL NOT NULL,          -- that its stack took, compiling and evaluation included
    ended TEXT NOT NULL             -- when that was over, in UTC
) STRICT;
CREATE TABLE IF NOT EXISTS members (  -- which runs an experiment consists of; a run may belong to several
    experiment TEXT NOT NULL,
    key TEXT NOT NULL,
    PRIMARY KEY (experiment, key)
) STRICT;
CREATE TABLE IF NOT EXISTS attempts (  -- each time that training began or went on
    keys TEXT NOT NULL,             -- JSON: the runs that were trained together
    epoch INTEGER NOT NULL,         -- after which it went on; 0: it began
    at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP
) STRICT;
"""
_TABLES = {"runs", "attempts"}


@dataclass(frozen=True)
class Run:
    """A run that finished.

    >>> run = Run("k", "mine", {"method": "wada", "lr": 0.1, "seed": 0}, None, {"train_loss": [1.0, 0.5]})
    >>> run.config["method"], run.curves["train_loss"][-1]
    ('wada', 0.5)
    """

    key: str
    experiment: str
    config: Mapping[str, Any]
    diverged: int | None
    curves: Mapping[str, list[float | None]]
    step_ms: float = 0.0
    way: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    ended: str = ""

    def end(self, metric: str) -> float:
        """What a metric came to at the last epoch; not a number, if there it has no value."""
        last = self.curves[metric][-1]
        return float("nan") if last is None else last


class Records:
    """The file of runs. It is made if it is missing; runs are added whole or not at all, by any number of processes.

    >>> import tempfile
    >>> records = Records(Path(tempfile.mkdtemp()) / "runs.db")
    >>> records.add([Run("k", "mine", {"method": "wada"}, None, {"train_loss": [0.5]})])
    >>> records.find(["k", "other"])
    {'k'}
    """

    def __init__(self, path: str | Path, *, create: bool = True) -> None:
        self.path = Path(path)
        if self.path.is_dir():
            refuse("records", str(path), "it is a folder; name a file")
        if self.path.exists() and not self.path.is_file():
            refuse("records", str(path), "it is no file that could hold them")
        if not create and not self.path.is_file():
            refuse("records", str(path), "there is no such file")
        with self._open() as database:
            database.execute("BEGIN")  # both are of one moment: another process may be making the file
            version = database.execute("PRAGMA user_version").fetchone()[0]
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            database.rollback()
            if (version, tables) != (0, set()) and not (version == _FORMAT and tables >= _TABLES):
                refuse("records", str(path), "it is a database, but not one of runs that this version can read")
            if version == 0 and not create:
                refuse("records", str(path), "it holds no runs")
            if version == 0:
                database.executescript(_SCHEMA + f"PRAGMA user_version = {_FORMAT}; COMMIT;")

    def add(self, runs: Iterable[Run]) -> None:
        """Keep runs, all of them or, whatever happens, none. One that is there already stays as it is."""
        rows = [
            (
                run.key,
                run.experiment,
                json.dumps(run.config, sort_keys=True),
                run.diverged,
                json.dumps(run.curves, allow_nan=False),
                run.step_ms,
                run.way,
                json.dumps(run.environment, sort_keys=True),
                run.seconds,
                run.ended,
            )
            for run in runs
        ]
        with self._open() as database, database:
            database.executemany("INSERT OR IGNORE INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)

    def enrol(self, names: Mapping[str, Iterable[str]]) -> None:
        """Note to which experiments runs belong, by their keys, whether they are trained yet or not."""
        rows = [(name, key) for key, several in names.items() for name in several]
        with self._open() as database, database:
            database.executemany("INSERT OR IGNORE INTO members VALUES (?, ?)", rows)

    def names(self) -> dict[str, list[str]]:
        """What :meth:`enrol` noted."""
        found: dict[str, list[str]] = {}
        with self._open() as database:
            for name, key in database.execute("SELECT experiment, key FROM members ORDER BY rowid"):
                found.setdefault(key, []).append(name)
        return found

    def attempt(self, keys: list[str], epoch: int) -> None:
        """Note that training of these runs begins, or goes on after an epoch."""
        with self._open() as database, database:
            database.execute("INSERT INTO attempts (keys, epoch) VALUES (?, ?)", (json.dumps(keys), epoch))

    def attempts(self) -> list[tuple[list[str], int]]:
        """What :meth:`attempt` noted, in order."""
        with self._open() as database:
            found = database.execute("SELECT keys, epoch FROM attempts ORDER BY rowid").fetchall()
        return [(json.loads(keys), epoch) for keys, epoch in found]

    def name(self) -> str:
        """A name that no other file has, for what is kept elsewhere on its behalf."""
        with self._open() as database, database:
            database.execute("CREATE TABLE IF NOT EXISTS name (name TEXT NOT NULL) STRICT")
            once = "INSERT INTO name SELECT lower(hex(randomblob(8))) WHERE NOT EXISTS (SELECT * FROM name)"
            database.execute(once)  # one statement: of two processes that ask at once, one gives the name
            return database.execute("SELECT name FROM name").fetchone()[0]

    def find(self, keys: Iterable[str]) -> set[str]:
        """Which of these runs are here."""
        with self._open() as database:
            here = {key for (key,) in database.execute("SELECT key FROM runs")}
        return here & set(keys)

    def runs(self, keys: Iterable[str] | None = None) -> list[Run]:
        """The runs, or some of them, in the order of their addresses."""
        wanted = None if keys is None else set(keys)
        with self._open() as database:
            rows = database.execute("SELECT * FROM runs ORDER BY key").fetchall()
        found = []
        for key, name, config, diverged, curves, step_ms, way, environment, *when in rows:
            if wanted is None or key in wanted:
                told = [self._parsed(key, text) for text in (config, curves, environment)]
                found.append(Run(key, name, told[0], diverged, told[1], step_ms, way, told[2], *when))
        return found

    def _parsed(self, key: str, text: str) -> dict[str, Any]:
        try:
            told = json.loads(text)
        except ValueError:
            told = None
        if not isinstance(told, dict):
            raise Refused(f"{self.path}: run {key}: {text[:40]!r} (the file is damaged: it must be a JSON table)")
        return told

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """A connection for one piece of work: none is held open while something is trained."""
        try:
            database = sqlite3.connect(self.path, timeout=_PATIENCE)
            try:
                yield database
            finally:
                database.close()
        except sqlite3.DatabaseError as error:
            hints = {
                "full": "the disk is full; what was recorded before is kept",
                "readonly": "the file or its folder cannot be written",
                "unable to open": "its folder does not exist or cannot be written",
                "not a database": "it is not a file of records",
                "malformed": "the file is damaged",
                "locked": "another program has held it for a minute",
            }
            hint = next((hint for sign, hint in hints.items() if sign in str(error)), "")
            raise Refused(f"{self.path}: {error}" + (f" ({hint})" if hint else "")) from error


@dataclass(frozen=True)
class Tables:
    """Runs as frames: ``curves`` has a row for each run and epoch, ``runs`` one for each run.

    >>> run = Run("k", "mine", {"method": "wada", "lr": 0.1, "seed": 0}, None, {"train_loss": [1.0, 0.5]})
    >>> tables([run]).curves.shape
    (2, 9)
    """

    curves: pd.DataFrame
    runs: pd.DataFrame
    experiments: dict[str, dict[str, Any]]
    environment: dict[str, str]


_APART = ("method", "method_options", "method_source", "lr", "seed")  # what tells apart the runs of an experiment
_ORDER = ["experiment", "method", "lr", "seed"]


def tables(runs: Iterable[Run], names: Mapping[str, Iterable[str]] | None = None) -> Tables:
    """Runs as frames. ``names`` says to which experiments a run (by its key) belongs, if not to its own alone.

    Runs that were recorded under one name, but of different problems, are different experiments: the name is numbered.

    >>> run = Run("k", "mine", {"method": "wada", "lr": 0.1, "seed": 0, "epochs": 1}, None, {"train_loss": [0.5]})
    >>> tables([run]).experiments
    {'mine': {'epochs': 1}}
    """
    runs = sorted(runs, key=lambda run: run.key)
    problems: dict[str, dict[str, Any]] = {}
    curves, rows = [], []
    belongs = names or {}
    for run, called in [(each, name) for each in runs for name in belongs.get(each.key, [each.experiment])]:
        shared = {key: value for key, value in run.config.items() if key not in _APART}
        name = _name(called, shared, problems)
        common = {"experiment": name, "method": _label(run.config)}
        common |= {"lr": float(run.config["lr"]), "seed": int(run.config["seed"])}
        epochs = max((len(values) for values in run.curves.values()), default=0)
        more = {name: shared.get(name, "") for name in ("dataset", "model", "loss")}
        more |= {name: shared.get(name, 0) for name in ("epochs", "batch")}
        rows.append(common | {"key": run.key, "diverged": run.diverged, "step_ms": run.step_ms, "way": run.way} | more)
        for epoch in range(epochs):
            values = {metric: _at(run.curves.get(metric), epoch) for metric in METRICS}
            curves.append(common | {"epoch": epoch + 1} | values)
    frame = pd.DataFrame(curves, columns=[*_ORDER, "epoch", *METRICS])
    table = pd.DataFrame(
        rows, columns=[*_ORDER, "key", "diverged", "step_ms", "way", "dataset", "model", "epochs", "batch", "loss"]
    )
    table["diverged"] = table["diverged"].astype("Int64")
    frame = frame.sort_values([*_ORDER, "epoch"], ignore_index=True)
    return Tables(frame, table.sort_values(_ORDER, ignore_index=True), problems, environment_of(runs))


def _at(values: list[float | None] | None, epoch: int) -> float:
    value = values[epoch] if values is not None and epoch < len(values) else None
    return float("nan") if value is None else value


def _name(name: str, shared: dict[str, Any], problems: dict[str, dict[str, Any]]) -> str:
    """The name, numbered where another problem has it already. The same data in another place are no other problem."""
    candidate, number = name, 1
    here = {"dataset": shared.get("dataset")}
    while candidate in problems and problems[candidate] | here != shared | here:
        number += 1
        candidate = f"{name} ({number})"
    problems.setdefault(candidate, shared)
    return candidate


def configuration(run: Run) -> str:
    """All that its result depends on, as text; the same data may lie elsewhere.

    >>> configuration(Run("k", "mine", {"lr": 0.1, "dataset": "here.npz"}, None, {}))
    '{"lr": 0.1}'
    """
    return json.dumps({name: value for name, value in run.config.items() if name != "dataset"}, sort_keys=True)


def problem_of(run: Run) -> dict[str, Any]:
    """What all runs of an experiment have in common; the same data in another place are no other problem.

    >>> problem_of(Run("k", "mine", {"method": "wada", "lr": 0.1, "seed": 0, "epochs": 9}, None, {}))
    {'epochs': 9}
    """
    return {name: value for name, value in run.config.items() if name not in (*_APART, "dataset")}


def _label(config: Mapping[str, Any]) -> str:
    options = ", ".join(f"{name}={value!r}" for name, value in sorted(config.get("method_options", {}).items()))
    return f"{config['method']}({options})" if options else config["method"]


def environment_of(runs: Iterable[Run]) -> dict[str, str]:
    """What the runs were made with; where they differ, all there is.

    >>> environment_of([Run("k", "mine", {}, None, {}, environment={"device": name}) for name in ("b", "a", "b")])
    {'device': 'a; b'}
    """
    seen: dict[str, dict[str, None]] = {}
    for run in runs:
        for name, value in run.environment.items():
            seen.setdefault(name, {})[value] = None
    return {name: "; ".join(sorted(values)) for name, values in seen.items()}


def export(records: Tables, path: Path) -> Path:
    """Write the curves as CSV or Parquet, as the ending of the path says, with the runs' addresses beside them.

    >>> import tempfile
    >>> run = Run("k", "mine", {"method": "wada", "lr": 0.1, "seed": 0}, None, {"train_loss": [0.5]})
    >>> export(tables([run]), Path(tempfile.mkdtemp()) / "runs.csv").read_text().splitlines()[1][:15]
    'mine,wada,0.1,0'
    """
    if path.suffix not in (".csv", ".parquet"):
        refuse("export", str(path), "the file must end in .csv or .parquet")
    frame = records.curves.merge(records.runs.drop(columns=["loss"]), on=_ORDER, validate="many_to_one")
    if path.suffix == ".csv":
        return write_whole(path, lambda new: frame.to_csv(new, index=False))
    return write_whole(path, lambda new: frame.to_parquet(new, index=False))


def write_csv(table: pd.DataFrame, path: Path) -> Path:
    """Write a table for people to read: numbers to six digits.

    >>> import tempfile
    >>> write_csv(pd.DataFrame({"x": [1 / 3]}), Path(tempfile.mkdtemp()) / "thirds.csv").read_text()
    'x\\n0.333333\\n'
    """
    return write_whole(path, lambda new: table.to_csv(new, index=False, float_format="%.6g"))


def archive(runs: Iterable[Run], names: Mapping[str, Iterable[str]], path: Path) -> Path:
    """Write runs, and the experiments they belong to, into a small file that :func:`restore` reads: JSON lines, gzip.

    Curves are kept in single precision, which they are computed with. The same runs give the same bytes.

    >>> import tempfile
    >>> config = {"method": "wada", "lr": 0.1, "seed": 0, "epochs": 2}
    >>> run = Run("k", "mine", config, 2, dict.fromkeys(METRICS, [1 / 3, None]))
    >>> kept, names = restore(archive([run], {"k": ["mine"]}, Path(tempfile.mkdtemp()) / "runs.jsonl.gz"))
    >>> kept[0].curves["train_loss"], names
    ([0.33333334, None], {'k': ['mine']})
    """
    named = ((run, sorted(names.get(run.key, [run.experiment]))) for run in runs)
    return pack((asdict(shortened(run)) | {"experiments": called} for run, called in named), path)


def shortened(run: Run) -> Run:
    """The run as an archive keeps it: with its curves in single precision.

    >>> shortened(Run("k", "mine", {}, None, {"train_loss": [1 / 3, None]})).curves
    {'train_loss': [0.33333334, None]}
    """
    curves = {
        metric: [None if value is None else single(value) for value in values] for metric, values in run.curves.items()
    }
    return replace(run, curves=curves)


def restore(path: Path) -> tuple[list[Run], dict[str, list[str]]]:
    """The runs of an archive, and the names of the experiments that each belongs to.

    >>> restore(Path("nowhere.jsonl.gz"))
    Traceback (most recent call last):
    wagmf.arguments.Refused: nowhere.jsonl.gz: is no archive of runs: there is no such file
    """
    runs: dict[str, Run] = {}
    names: dict[str, list[str]] = {}
    try:
        for place, told in enumerate(_lines(path), 1):
            with _naming(told, place):
                run, called = _sound(told)
                if run.key in runs and (apart := differs(run, runs[run.key])):
                    raise ValueError(f"it is there twice, with other {apart} (a run must be there once)")
            runs[run.key] = run
            names[run.key] = sorted({*names.get(run.key, []), *called})
    except ValueError as error:
        raise Refused(f"{path}: is no archive of runs: {error}") from error
    if not runs:
        raise Refused(f"{path}: is no archive of runs: it holds none")
    return sorted(runs.values(), key=lambda run: run.key), names


def differs(run: Run, other: Run) -> str:
    """What two runs of one key do not have in common, though they must; nothing, if they are the same run.

    >>> run = Run("k", "mine", {"lr": 0.1}, None, {"train_loss": [1 / 3]})
    >>> differs(run, shortened(run)), differs(run, replace(run, curves={"train_loss": [0.5]}))
    ('', 'curves')
    """
    if configuration(run) != configuration(other):
        return "configuration"
    same = run.curves == other.curves or shortened(run).curves == shortened(other).curves
    return "" if same else "curves"


def _lines(path: Path) -> list[Any]:
    """The lines of an archive, or ValueError with words that say what it should be."""
    try:
        return unpack(path)
    except FileNotFoundError as error:
        raise ValueError("there is no such file") from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError("it must be compressed by gzip, whole and undamaged") from error
    except OSError as error:
        raise ValueError(f"it cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError("its lines must be JSON") from error


@contextmanager
def _naming(told: Any, place: int) -> Iterator[None]:
    """Say of which run an error is; of one without a key, of which line."""
    try:
        yield
    except ValueError as error:
        key = told.get("key") if isinstance(told, dict) else None
        raise ValueError(f"{f'run {key}' if isinstance(key, str) else f'line {place}'}: {error}") from error


# ------------------------------------------------------------------ others than this library may have written it

_FIELDS = {each.name: each.default is MISSING and each.default_factory is MISSING for each in fields(Run)}
_LARGEST = sys.float_info.max
_LONGEST = 1e9  # seconds: thirty years


def _sound(told: Any) -> tuple[Run, list[str]]:
    """The run of a line, and the names of its experiments, if all of its fields are what they should be."""
    if not isinstance(told, dict):
        raise ValueError("it must be a JSON table")
    needed = {name for name, wanted in _FIELDS.items() if wanted} | {"experiments"}
    for which, wrong in (("lacks", needed - told.keys()), ("must not have", told.keys() - {*_FIELDS, "experiments"})):
        if wrong:
            raise ValueError(f"it {which} {', '.join(map(repr, sorted(wrong)))}")
    run = Run(**{name: told[name] for name in _FIELDS if name in told})
    for name, kind in (("config", dict), ("curves", dict), ("environment", dict), ("experiments", list)):
        if not isinstance(told.get(name, kind()), kind):
            refuse(name, told[name], f"{name} must be a JSON {'table' if kind is dict else 'list'}")
    _check_words(run, told["experiments"])
    _check_config(run.config)
    _check_times(run)
    _check_curves(run)
    return run, told["experiments"]


def _check_words(run: Run, names: list[Any]) -> None:
    told = [(name, getattr(run, name)) for name in ("key", "experiment", "way", "ended")]
    for name, text in (*told, *run.environment.items(), *(("experiments", each) for each in names)):
        if not isinstance(text, str):
            refuse(name, text, f"{name} must be text")
    if len({*names}) < len(names):
        refuse("experiments", names, "one of them is named twice")


def _check_config(config: Mapping[str, Any]) -> None:
    for name in ("method", *(name for name in ("dataset", "model", "loss", "data") if name in config)):
        if not isinstance(config.get(name), str):
            refuse(name, config.get(name), f"{name} must be text")
    real("lr", config.get("lr"), above=0)
    _check_whole("seed", config.get("seed"), least=0)
    _check_whole("epochs", config.get("epochs"), least=1)
    if not isinstance(config.get("method_options", {}), dict):
        refuse("method_options", config["method_options"], "method_options must be a JSON table")
    for name, value in config.items():
        if not _is_finite(value):
            refuse(name, value, "its numbers must be finite")


def _check_whole(name: str, value: Any, *, least: int, most: int = 2**63 - 1) -> None:
    """Refuse what JSON has another word for, too: 1.0, true."""
    if type(value) is not int or not least <= value <= most:
        refuse(name, value, f"{name} must be an integer >= {least} and <= {most}")


def _is_finite(value: Any) -> bool:
    """Whether all numbers are, in tables and lists, too: JSON as Python reads it may have NaN and Infinity."""
    if isinstance(value, dict | list):
        return all(map(_is_finite, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, int | float) or -_LARGEST <= value <= _LARGEST


def _check_times(run: Run) -> None:
    """Of what they must be for minutes to be told of the run: durations, and a moment that has a place in time."""
    real("seconds", run.seconds, least=0, most=_LONGEST)
    real("step_ms", run.step_ms, least=0, most=_LONGEST)
    try:
        sound = not run.ended or datetime.fromisoformat(run.ended) >= datetime(1970, 1, 1, tzinfo=UTC)
    except (ValueError, TypeError):  # no moment; one without a time zone
        sound = False
    if not sound:
        refuse("ended", run.ended, "it must be a moment since 1970 with its time zone: 2026-01-01T00:00:00+00:00")


def _check_curves(run: Run) -> None:
    """Every metric has a value for each epoch before the run diverged, and null from there on."""
    epochs = run.config["epochs"]
    if run.diverged is not None:
        _check_whole("diverged", run.diverged, least=1, most=epochs)
    if set(run.curves) != set(METRICS):
        refuse("curves", sorted(run.curves), f"there must be one for each of {', '.join(METRICS)}")
    before = epochs if run.diverged is None else run.diverged - 1
    for metric, values in run.curves.items():
        if not isinstance(values, list) or len(values) != epochs:
            found = f"a list of {len(values)}" if isinstance(values, list) else values
            refuse(metric, found, f"it must be a list of {epochs} values, one for each of its epochs")
        late = [value for value in values[before:] if value is not None]
        if late:
            refuse(metric, late[0], f"it must be null from epoch {run.diverged} on, in which the run diverged")
        _check_values(metric, values[:before])


def _check_values(metric: str, values: list[Any]) -> None:
    low, high = (0, 1) if metric.endswith("accuracy") else (-_LARGEST, _LARGEST)
    if not {*map(type, values)} <= {int, float} or not all(low <= value <= high for value in values):
        wrong = next(each for each in values if type(each) not in (int, float) or not low <= each <= high)
        right = "a number from 0 to 1" if high == 1 else "a finite number"
        refuse(metric, wrong, f"it must be {right} in every epoch, or null from the one on in which the run diverged")
