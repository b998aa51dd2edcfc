"""Records: what was run comes back as it was, and a file that is something else is left alone."""

import csv
import gzip
import json
import math
import os
import sqlite3
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from made_up import COLUMNS, HOSTILE

from wagmf.arguments import Refused
from wagmf.lab import records as room
from wagmf.lab.files import write_whole
from wagmf.lab.records import METRICS, Records, Run, export, restore, tables

CURVES = {"train_loss": [0.9, 0.1 + 0.2], "train_accuracy": [0.5, 1.0], "test_loss": [1.1, 1 / 3],
          "test_accuracy": [0.25, 0.75]}  # fmt: skip
NAMES = [*HOSTILE, "'; DROP TABLE runs; --", "two\nlines\r\n", 'quo"te, comma', "αβγ 数据 🎲", "[red]bold[/red]", " "]


def run(key="k", name="mine", diverged=None, curves=None, **config):
    shared = {"dataset": "digits", "model": "mlp", "epochs": 2, "batch": 128, "loss": "running"}
    arm = {"method": "wada", "method_options": {}, "lr": 0.1, "seed": 0}
    made_with = {"torch": "2.9", "device": "cpu"}
    return Run(
        key, name, {**shared, **arm, **config}, diverged, curves or CURVES, 0.25, "stacked, 4 replicas", made_with
    )


@pytest.fixture
def records(tmp_path):
    return Records(tmp_path / "runs.db")


# ---------------------------------------------------------------- the file


@pytest.mark.parametrize("name", NAMES)
def test_runs_come_back_as_they_were(name, records):
    options = {"betas": [0.9, 0.99], "text": name}
    lost = {metric: [0.5, None] for metric in METRICS}
    runs = [run("a", name, method=name, method_options=options), run("b", "other", 2, lost, lr=1e-300, seed=2**31 - 1)]
    records.add(runs)
    assert records.runs() == runs
    assert Records(records.path, create=False).runs(["b", "c"]) == runs[1:]
    assert records.find(["b", "c"]) == {"b"}
    assert records.runs([]) == []


def test_numbers_come_back_bit_for_bit(records):
    values = [*np.random.default_rng(0).normal(size=50).tolist(), 5e-324, 1.7976931348623157e308, -0.0]
    records.add([run(curves={"train_loss": values})])
    (back,) = records.runs()
    assert [value.hex() for value in back.curves["train_loss"] if value is not None] == [v.hex() for v in values]


def test_runs_are_added_all_or_none_and_the_first_stays(records):
    records.add([run("a", "first")])
    records.add([run("a", "second"), run("b")])
    assert [each.experiment for each in records.runs()] == ["first", "mine"]
    with pytest.raises(ValueError, match="not JSON compliant"):
        records.add([run("c"), run("d", curves={"train_loss": [math.nan]})])

    def broken():
        yield run("e")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        records.add(broken())
    assert records.find("abcde") == {"a", "b"}


def test_attempts_are_kept_in_order(records):
    records.attempt(["b", "a"], 0)
    records.attempt(["c"], 5)
    assert Records(records.path).attempts() == [(["b", "a"], 0), (["c"], 5)]


def test_any_number_may_write_at_once(tmp_path):
    """Also the file itself is made by all of them at once."""
    failed = []

    def write(number):
        try:
            mine = Records(tmp_path / "runs.db")
            for k in range(5):
                mine.attempt([str(number)], k)
                mine.add([run(f"{number}-{k}"), run("shared")])
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    found = Records(tmp_path / "runs.db")
    assert len(found.runs()) == 31
    assert len(found.attempts()) == 30
    assert os.listdir(tmp_path) == ["runs.db"]


def test_the_file_is_made_at_once_or_not_at_all(tmp_path, monkeypatch):
    """Killed between two of its statements, it is as if nothing had been."""
    scripts = []

    class Noted(sqlite3.Connection):
        def executescript(self, script):
            scripts.append(script)
            return super().executescript(script)

    connect = sqlite3.connect
    monkeypatch.setattr(room.sqlite3, "connect", lambda *a, **k: connect(*a, factory=Noted, **k))
    Records(tmp_path / "whole.db")
    statements = [""]
    for character in scripts[0]:
        statements[-1] += character
        if sqlite3.complete_statement(statements[-1]):
            statements.append("")
    assert len(statements) > 4
    for count in range(len(statements)):
        path = tmp_path / f"{count}.db"
        unfinished = connect(path, isolation_level=None)
        for statement in statements[:count]:
            unfinished.execute(statement)
        unfinished.close()
        Records(path).add([run()])
        assert len(Records(path).runs()) == 1


def test_who_looks_while_the_file_is_made_sees_all_or_nothing(tmp_path, monkeypatch):
    class Late(sqlite3.Connection):
        def execute(self, text, *more):
            if "sqlite_master" in text and not done:
                done.append(1)
                with suppress(Refused):  # it has to wait
                    Records(tmp_path / "late.db")
            return super().execute(text, *more)

    done, connect = [], sqlite3.connect
    monkeypatch.setattr(room, "_PATIENCE", 0.01)
    monkeypatch.setattr(room.sqlite3, "connect", lambda *a, **k: connect(*a, factory=Late, **k))
    Records(tmp_path / "late.db").add([run()])
    assert done == [1]


# ---------------------------------------------------------------- what is no file of records


def another_database(path, version=0, table="notes"):
    with sqlite3.connect(path) as database:
        database.execute(f"CREATE TABLE {table} (text TEXT)")
        database.execute(f"INSERT INTO {table} VALUES ('precious')")
        database.execute(f"PRAGMA user_version = {version}")
    database.close()


def emptied(path, version):
    with sqlite3.connect(path) as database:
        database.execute(f"PRAGMA user_version = {version}")
    database.close()


@pytest.mark.parametrize("create", [True, False])
@pytest.mark.parametrize(
    ("make", "right"),
    [
        (Path.mkdir, "it is a folder; name a file"),
        (os.mkfifo, "it is no file"),
        (lambda path: path.write_text("text " * 999), "file is not a database .it is not a file of records"),
        (lambda path: path.write_bytes(b"SQLite format 3\0" + b"\1" * 4080), "runs.db: "),
        (another_database, "a database, but not one of runs"),
        (lambda path: another_database(path, 1), "a database, but not one of runs"),
        (lambda path: another_database(path, 1, "runs"), "a database, but not one of runs"),
        (lambda path: another_database(path, 7), "a database, but not one of runs that this version can read"),
        (lambda path: emptied(path, 2), "a database, but not one of runs that this version can read"),
    ],
)
def test_what_is_no_file_of_records_is_refused_and_left_alone(make, right, create, tmp_path):
    path = tmp_path / "runs.db"
    make(path)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(Refused, match=right) as refused:
        Records(path, create=create)
    assert str(path) in str(refused.value)
    assert (path.read_bytes() if path.is_file() else None) == before
    assert os.listdir(tmp_path) == ["runs.db"]


def test_a_file_that_must_be_there_is_not_made(tmp_path):
    for name in ("runs.db", "missing/runs.db"):
        with pytest.raises(Refused, match=r"runs\.db.*there is no such file"):
            Records(tmp_path / name, create=False)
    assert os.listdir(tmp_path) == []
    (tmp_path / "empty.db").touch()
    with pytest.raises(Refused, match=r"empty\.db.*it holds no runs"):
        Records(tmp_path / "empty.db", create=False)


def test_a_missing_folder_is_told(tmp_path):
    with pytest.raises(Refused, match=r"missing/runs\.db: unable to open .*its folder does not exist"):
        Records(tmp_path / "missing" / "runs.db")


def test_a_file_that_another_program_holds_is_told_and_kept(records, monkeypatch):
    records.add([run("a")])
    monkeypatch.setattr(room, "_PATIENCE", 0.01)
    holder = sqlite3.connect(records.path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    for work in (lambda: records.add([run("b")]), lambda: records.attempt(["b"], 0), records.runs):
        with pytest.raises(Refused, match=r"runs\.db: database is locked \(another program has held it"):
            work()
    holder.close()
    assert records.find("ab") == {"a"}


def test_a_damaged_file_is_told(records):
    records.add([run(str(number), "x" * 3000) for number in range(9)])
    content = bytearray(records.path.read_bytes())
    content[4096 * 2 :] = os.urandom(len(content) - 4096 * 2)
    records.path.write_bytes(content)
    with pytest.raises(Refused, match=r"runs\.db: .*malformed \(the file is damaged\)"):
        records.runs()


def test_a_file_that_cannot_be_written_is_told_and_can_be_read():
    with tempfile.TemporaryDirectory() as folder:
        records = Records(Path(folder) / "runs.db")
        records.add([run()])
        os.chmod(folder, 0o755)
        os.chmod(records.path, 0o444)
        user = os.geteuid()
        if user == 0:
            os.seteuid(65534)  # root may write anywhere
        try:
            with pytest.raises(
                Refused, match=r"runs\.db: attempt to write a readonly database \(the file or its folder"
            ):
                records.add([run("b")])
            assert Records(records.path, create=False).runs() == [run()]
            with pytest.raises(Refused, match=r"new\.db: unable to open database file \(its folder"):
                Records(Path(folder) / "new.db")
        finally:
            os.seteuid(user)


# ---------------------------------------------------------------- frames


def some():
    """Two experiments, two methods, two step sizes, two seeds; one run diverged in the second epoch."""
    runs = []
    for name, model in (("b", "mlp"), ("a", "cnn")):
        for method, options in (("wada", {}), ("adam", {}), ("amsgrad", {"debias": True})):
            for lr in (1, 0.01):
                for seed in (3, 0):
                    lost = (name, method, lr, seed) == ("a", "adam", 1, 3)
                    curves = {m: [v[0], None] for m, v in CURVES.items()} if lost else CURVES
                    arm = {"method": method, "method_options": options, "lr": lr, "seed": seed}
                    runs.append(run(f"{len(runs):02}", name, 2 if lost else None, curves, model=model, **arm))
    return runs


def test_frames_have_the_shape_that_all_else_relies_on():
    found = tables(some())
    order = ["experiment", "method", "lr", "seed"]
    assert list(found.curves.columns) == [*order, "epoch", *METRICS]
    assert list(found.runs.columns) == COLUMNS
    kinds = {"lr": "f", "seed": "i", "epoch": "i", **dict.fromkeys(METRICS, "f")}
    assert {name: found.curves[name].dtype.kind for name in kinds} == kinds
    kinds = {"lr": "f", "seed": "i", "step_ms": "f", "epochs": "i", "batch": "i"}
    assert {name: found.runs[name].dtype.kind for name in kinds} == kinds
    assert found.runs["diverged"].dtype == pd.Int64Dtype()
    for frame, keys in ((found.curves, [*order, "epoch"]), (found.runs, order)):
        pd.testing.assert_frame_equal(frame, frame.sort_values(keys, ignore_index=True))
        assert not frame.duplicated(keys).any()
        assert all(isinstance(name, str) for name in frame["experiment"])
    assert len(found.curves) == 48
    assert len(found.runs) == 24
    assert sorted(set(found.curves["epoch"])) == [1, 2]
    assert sorted(set(found.runs["method"])) == ["adam", "amsgrad(debias=True)", "wada"]


def test_frames_say_what_the_runs_say():
    found = tables(some())
    for each in some():
        options = "(debias=True)" if each.config["method_options"] else ""
        where = {"experiment": each.experiment, "method": each.config["method"] + options}
        where |= {"lr": each.config["lr"], "seed": each.config["seed"]}
        rows = found.curves[np.all([found.curves[name] == value for name, value in where.items()], axis=0)]
        for metric in METRICS:
            right = [math.nan if value is None else value for value in each.curves[metric]]
            np.testing.assert_array_equal(rows[metric], right)
        (row,) = found.runs[found.runs["key"] == each.key].to_dict("records")
        assert row == where | {"key": each.key, "diverged": row["diverged"], "step_ms": 0.25,
                               "way": "stacked, 4 replicas", "dataset": "digits", "model": each.config["model"],
                               "epochs": 2, "batch": 128, "loss": "running"}  # fmt: skip
        assert pd.isna(row["diverged"]) if each.diverged is None else row["diverged"] == 2
    shared = {"dataset": "digits", "epochs": 2, "batch": 128, "loss": "running"}
    assert found.experiments == {"a": {**shared, "model": "cnn"}, "b": {**shared, "model": "mlp"}}
    assert found.environment == {"torch": "2.9", "device": "cpu"}


def test_frames_do_not_depend_on_the_order_of_runs():
    one, other = tables(some()), tables(reversed(some()))
    pd.testing.assert_frame_equal(one.curves, other.curves)
    pd.testing.assert_frame_equal(one.runs, other.runs)


def test_no_runs_are_empty_frames():
    found = tables([])
    assert (len(found.curves), len(found.runs)) == (0, 0)
    assert list(found.runs.columns) == COLUMNS
    assert (found.experiments, found.environment) == ({}, {})


def test_different_problems_of_one_name_are_numbered():
    runs = [run("a", epochs=1), run("b", epochs=2), run("c", epochs=1, seed=1), run("d", epochs=3)]
    found = tables(runs)
    names = dict(zip(found.runs["key"], found.runs["experiment"], strict=True))
    assert names == {"a": "mine", "b": "mine (2)", "c": "mine", "d": "mine (3)"}
    assert {name: shared["epochs"] for name, shared in found.experiments.items()} == {
        "mine": 1, "mine (2)": 2, "mine (3)": 3}  # fmt: skip
    # They may also be called otherwise than they were recorded.
    names = tables(runs, {"a": ["one"], "b": ["two"], "c": ["one"]}).runs
    assert dict(zip(names["key"], names["experiment"], strict=True)) == {
        "a": "one",
        "b": "two",
        "c": "one",
        "d": "mine",
    }


def test_data_that_were_moved_are_the_same_data():
    found = tables([run("a", dataset="here/mine.npz", data="123"), run("b", dataset="there.npz", data="123", seed=1)])
    assert list(found.experiments) == ["mine"]
    assert found.runs["dataset"].tolist() == ["here/mine.npz", "there.npz"]
    assert found.experiments["mine"]["dataset"] == "here/mine.npz"
    found = tables([run("a", dataset="mine.npz", data="123"), run("b", dataset="mine.npz", data="4", seed=1)])
    assert list(found.experiments) == ["mine", "mine (2)"]


def test_environments_that_differ_are_all_told():
    old = Run(**{**vars(run("a")), "environment": {"torch": "2.6"}})
    assert tables([run("b"), old, run("c")]).environment == {"torch": "2.6; 2.9", "device": "cpu"}


def test_what_was_not_measured_is_not_a_number():
    found = tables([run(curves={"train_loss": [0.5, 0.25], "test_loss": [0.5]})]).curves
    assert found["test_accuracy"].isna().all()
    assert found["test_loss"].isna().tolist() == [False, True]
    assert found["train_loss"].tolist() == [0.5, 0.25]


# ---------------------------------------------------------------- exports


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("name", NAMES)
def test_exports_hold_all_of_it(ending, name, tmp_path):
    found = tables([Run(**{**vars(each), "experiment": name + each.experiment}) for each in some()])
    path = export(found, tmp_path / f"out.{ending}")
    if ending == "csv":
        with open(path, newline="", encoding="utf-8") as file:
            back = list(csv.DictReader(file))
    else:
        back = pd.read_parquet(path).to_dict("records")
    assert len(back) == 48
    keys = found.runs.set_index(["experiment", "method", "lr", "seed"])
    for row, right in zip(back, found.curves.to_dict("records"), strict=True):
        for column, value in right.items():
            told = row[column]
            if isinstance(value, float) and math.isnan(value):
                assert told == "" or math.isnan(told)
            else:
                assert type(value)(told) == value
        of = keys.loc[(right["experiment"], right["method"], right["lr"], right["seed"])]
        assert row["key"] == of["key"]
        assert row["way"] == of["way"]
    assert [int(row["diverged"]) for row in back if not pd.isna(row["diverged"]) and row["diverged"] != ""] == [2, 2]
    assert os.listdir(tmp_path) == [f"out.{ending}"]


@pytest.mark.parametrize("name", ["runs", "runs.xlsx", "runs.CSV", ".csv"])
def test_other_endings_are_refused(name, tmp_path):
    with pytest.raises(Refused, match=r"Invalid export: .*the file must end in \.csv or \.parquet"):
        export(tables(some()), tmp_path / name)
    assert os.listdir(tmp_path) == []


def test_a_run_may_belong_to_several_experiments(tmp_path):
    records = Records(tmp_path / "runs.db")
    records.add([run("a"), run("b")])
    records.enrol({"a": ["one", "two"], "b": ["two"]})
    records.enrol({"a": ["one"]})
    found = tables(records.runs(), records.names()).runs
    assert sorted(zip(found["experiment"], found["key"], strict=True)) == [("one", "a"), ("two", "a"), ("two", "b")]


@pytest.mark.parametrize("text", ["{", "[]", "3"])
def test_a_damaged_run_is_named(tmp_path, text):
    records = Records(tmp_path / "runs.db")
    records.add([run("a")])
    with sqlite3.connect(records.path) as database:
        database.execute("UPDATE runs SET curves = ?", (text,))
    database.close()
    with pytest.raises(Refused, match=r"runs\.db: run a: .*damaged"):
        records.runs()


def test_a_link_goes_on_leading_to_its_file_and_a_device_stays_one(tmp_path):
    (tmp_path / "real.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to("real.txt")
    write_whole(tmp_path / "link.txt", lambda new: new.write_text("new"))
    assert (tmp_path / "real.txt").read_text() == "new"
    assert (tmp_path / "link.txt").is_symlink()
    with pytest.raises(OSError, match="no ordinary file"):
        write_whole(Path(os.devnull), lambda new: new.write_text("new"))
    with pytest.raises(OSError, match=r"No such file or directory: '.*/none/a\.txt'"):
        write_whole(tmp_path / "none" / "a.txt", lambda new: new.write_text("new"))


# ---------------------------------------------------------------- archives that others may have written


def archived(path, *, drop=(), lines=1, **fields):
    """An archive of a run that another program may have written, with other fields than a sound one has."""
    told = {**vars(run("a" * 20)), "experiments": ["mine"], **fields}
    told["config"] = {**vars(run())["config"], **fields["config"]} if isinstance(fields.get("config"), dict) else (
        told["config"])  # fmt: skip
    text = json.dumps({name: value for name, value in told.items() if name not in drop}) + "\n"
    path.write_bytes(gzip.compress(lines * text.encode()))
    return path


def curves(**other):
    return {**CURVES, **other}


def gone(**other):
    return {metric: [0.5, None] for metric in METRICS} | other


@pytest.mark.parametrize(
    ("fields", "right"),
    [
        ({"seconds": math.nan}, "Invalid seconds: nan (seconds must be a finite number >= 0"),
        ({"seconds": -1}, "Invalid seconds: -1 (seconds"),
        ({"seconds": 1e300}, "Invalid seconds: 1e+300 (seconds"),
        ({"seconds": True}, "Invalid seconds: True (seconds"),
        ({"step_ms": math.inf}, "Invalid step_ms: inf (step_ms"),
        ({"step_ms": -0.5}, "Invalid step_ms: -0.5 (step_ms"),
        ({"ended": "yesterday"}, "Invalid ended: 'yesterday' (it must be a moment since 1970 with its time zone"),
        ({"ended": "2026-01-01T00:00:00"}, "Invalid ended: '2026-01-01T00:00:00' (it must be a moment"),
        ({"ended": "0001-01-01T00:00:00+00:00"}, "Invalid ended: '0001"),
        ({"ended": 3}, "Invalid ended: 3 (ended must be text)"),
        ({"config": {"lr": True}}, "Invalid lr: True (lr must be a finite number > 0)"),
        ({"config": {"lr": None}}, "Invalid lr: None (lr"),
        ({"config": {"seed": False}}, "Invalid seed: False (seed must be an integer >= 0"),
        ({"config": {"seed": 2**63}}, "Invalid seed: 9223372036854775808 (seed"),
        ({"config": {"epochs": True}}, "Invalid epochs: True (epochs must be an integer >= 1"),
        ({"config": {"epochs": 3}}, "Invalid train_loss: 'a list of 2' (it must be a list of 3 values"),
        ({"config": {"method_options": None}}, "Invalid method_options: None (method_options must be a JSON table)"),
        ({"config": {"method_options": ["debias"]}}, "Invalid method_options: ['debias'] (method_options"),
        ({"config": {"l2": math.nan}}, "Invalid l2: nan (its numbers must be finite)"),
        ({"config": {"milestones": [1, {"a": -math.inf}]}}, "Invalid milestones: [1, {'a': -inf}] (its numbers"),
        ({"config": {"model": 3}}, "Invalid model: 3 (model must be text)"),
        ({"config": 3}, "Invalid config: 3 (config must be a JSON table)"),
        ({"curves": []}, "Invalid curves: [] (curves must be a JSON table)"),
        ({"curves": curves(more=[1, 2])}, "Invalid curves: ['more', 'test_accuracy', "),
        ({"curves": curves(test_loss=[0.5])}, "Invalid test_loss: 'a list of 1' (it must be a list of 2 values"),
        ({"curves": curves(test_loss="ab")}, "Invalid test_loss: 'ab' (it must be a list of 2 values"),
        ({"curves": curves(test_loss=[0.5, None])}, "Invalid test_loss: None (it must be a finite number in every"),
        ({"curves": curves(test_loss=[0.5, math.nan])}, "Invalid test_loss: nan (it must be a finite number"),
        ({"curves": curves(test_loss=[True, 0.5])}, "Invalid test_loss: True (it must be a finite number"),
        ({"curves": curves(test_loss=[0.5, 10**400])}, "Invalid test_loss: 1000"),
        ({"curves": curves(test_accuracy=[0.5, 1.5])}, "Invalid test_accuracy: 1.5 (it must be a number from 0 to 1"),
        ({"curves": curves(train_accuracy=[-0.5, 1])}, "Invalid train_accuracy: -0.5 (it must be a number from 0"),
        ({"diverged": True}, "Invalid diverged: True (diverged must be an integer >= 1 and <= 2)"),
        ({"diverged": 0}, "Invalid diverged: 0 (diverged must be an integer >= 1 and <= 2)"),
        ({"diverged": 3}, "Invalid diverged: 3 (diverged must be an integer >= 1 and <= 2)"),
        ({"diverged": 2}, "Invalid train_loss: 0.30000000000000004 (it must be null from epoch 2 on"),
        ({"diverged": 2, "curves": gone(test_loss=[None, None])}, "Invalid test_loss: None (it must be a finite"),
        ({"experiments": "mine"}, "Invalid experiments: 'mine' (experiments must be a JSON list)"),
        ({"experiments": ["mine", 3]}, "Invalid experiments: 3 (experiments must be text)"),
        ({"experiments": ["mine", "mine"]}, "Invalid experiments: ['mine', 'mine'] (one of them is named twice)"),
        ({"environment": {"key": 3}}, "Invalid key: 3 (key must be text)"),
        ({"more": 3, "other": 4}, "it must not have 'more', 'other'"),
        ({"drop": ["config", "curves"]}, "it lacks 'config', 'curves'"),
        ({"drop": ["experiments"]}, "it lacks 'experiments'"),
    ],
)
def test_a_run_that_is_not_sound_is_refused_by_name(fields, right, tmp_path):
    path = archived(tmp_path / "runs.jsonl.gz", **fields)
    with pytest.raises(Refused) as refused:
        restore(path)
    assert str(refused.value).startswith(f"{path}: is no archive of runs: run {'a' * 20}: {right}")


@pytest.mark.parametrize(
    ("content", "right"),
    [
        (b"", "it must be compressed by gzip, whole and undamaged"),
        (b"some text", "it must be compressed by gzip, whole and undamaged"),
        (gzip.compress(b"{}\n" * 99)[:-9], "it must be compressed by gzip, whole and undamaged"),
        (gzip.compress(b"{"), "its lines must be JSON"),
        (gzip.compress(b"\xff"), "its lines must be JSON"),
        (gzip.compress(b"[" * 10**6), "its lines must be JSON"),
        (gzip.compress(b"[]"), "line 1: it must be a JSON table"),
        (gzip.compress(b'{"key": 3}'), "line 1: it lacks 'config', 'curves', "),
        (gzip.compress(b""), "it holds none"),
    ],
    ids=["empty", "text", "cut", "half a table", "no text", "too deep", "a list", "another table", "none"],
)
def test_what_is_no_archive_is_told_in_words(content, right, tmp_path):
    path = tmp_path / "runs.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(Refused) as refused:
        restore(path)
    assert str(refused.value).startswith(f"{path}: is no archive of runs: {right}")
    with pytest.raises(Refused, match="is no archive of runs: it cannot be read: Is a directory"):
        restore(tmp_path)


def test_sound_runs_are_read_whoever_wrote_them(tmp_path):
    """Also those that diverged, at once or later, and what is written twice."""
    for epoch, values in ((1, [None, None]), (2, [1, None])):
        lost = dict.fromkeys(METRICS, values)
        (one,), names = restore(archived(tmp_path / "runs.jsonl.gz", diverged=epoch, curves=lost, lines=2))
        assert (one.diverged, one.curves, names) == (epoch, lost, {"a" * 20: ["mine"]})
    path = archived(tmp_path / "runs.jsonl.gz", drop=["way", "environment", "seconds", "step_ms", "ended"])
    assert restore(path)[0][0].curves == CURVES


@pytest.mark.parametrize("what", ["curves", "configuration"])
def test_a_run_is_not_there_twice_with_something_else(what, tmp_path):
    one, two = tmp_path / "one.jsonl.gz", tmp_path / "two.jsonl.gz"
    archived(one)
    archived(two, **({"diverged": 2, "curves": gone()} if what == "curves" else {"config": {"l2": 0.5}}))
    one.write_bytes(one.read_bytes() + two.read_bytes())
    with pytest.raises(Refused, match=rf"one\.jsonl\.gz: .*: run a+: it is there twice, with other {what}"):
        restore(one)
