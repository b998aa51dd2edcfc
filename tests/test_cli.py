"""The command line, in this process and as people start it."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import forks
import numpy as np
import pytest
from typer.testing import CliRunner

from wagmf import cli
from wagmf.lab import plots
from wagmf.lab import walks as walks_room
from wagmf.lab.walks import Record, Walks
from wagmf.methods import METHODS, PAPER_METHODS
from wagmf.online import Task, Walk, simulate
from wagmf.rule import Rule

QUICK = ["online", "--T", "2e3", "--seeds", "2", "--lrs", "0.1,1"]


def call(*arguments, expect=0):
    result = CliRunner().invoke(cli.app, [str(argument) for argument in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == expect, result.output
    return result.output


def start(*arguments, **kwargs):
    """The command as a process of its own."""
    command = [sys.executable, "-m", "wagmf", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **kwargs)


def test_methods_lists_every_method():
    output = call("methods")
    assert all(name in output for name in METHODS)
    assert call("methods", "--markdown").startswith("| method |")


@pytest.mark.parametrize(
    ("arguments", "exit_code", "said"),
    [
        (["wada"], 0, "holds (for every t)"),
        (["adam"], 1, "first broken at t = 2"),
        (["rmsprop"], 1, "first broken at t = 101"),
        (["adagrad"], 0, "α_t = α/√t"),
        (["wada", "--decay", "0"], 1, "constant step size"),
        (["--weights", "polynomial:2", "--p2", "6"], 0, "exactly enough"),
        (["--weights", "polynomial:2", "--p2", "5.9"], 1, "too little"),
        (["--weights", "linear", "--p2", "3.999999999"], 1, "too little"),
        (["--weights", "exponential:0.999:steady", "--p2", "2", "--monotone", "--decay", "0"], 0, "of the order of T"),
        (["wada"], 0, "momentum that fades"),
        (["--weights", "exponential:0.999", "--p2", "2", "--monotone"], 0, "running maximum"),
    ],
)
def test_certify_answers(arguments, exit_code, said):
    assert said in " ".join(call("certify", *arguments, expect=exit_code).split())


def test_online_writes_records_picture_and_page(tmp_path):
    output = call(*QUICK, "-o", tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["figure1.html", "figure1.png", "walks.jsonl"]
    assert all(name in output for name in PAPER_METHODS)
    assert (tmp_path / "figure1.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "figure1.html").read_text()
    assert "WADA-v3" in page
    assert 'src="http' not in page
    rows = [json.loads(line) for line in (tmp_path / "walks.jsonl").read_text().splitlines()]
    assert len(rows) == len(PAPER_METHODS) * 3
    assert {(row["T"], row["setting"]) for row in rows} == {(2000, "stochastic"), (2000, "online")}
    assert all(row["source"] == walks_room.source_hash() for row in rows)


def test_the_command_uses_the_papers_step_sizes_and_settings():
    tasks = cli._tasks("1e7", 3, "wada,sc_adagrad", "1,0.1,1", 100)
    assert {(name, task.rule.decay) for name, task in tasks} == {("wada", 0.5), ("sc_adagrad", 1.0)}
    assert {(task.setting, task.seed) for _, task in tasks} == {("online", 0), *(("stochastic", s) for s in range(3))}
    assert all((task.T, task.lrs, task.x0, task.eps) == (10**7, (0.1, 1.0), 0.0, 1e-7) for _, task in tasks)


def made_up(seed, regret, x, setting="stochastic"):
    """A record with these values at t = 1 and 2 for two step sizes."""
    task = Task(Rule(decay=0.5), 2, (0.1, 1.0), seed, setting)
    return Record("wada", task, Walk(np.array([1, 2]), np.array(x, float), np.array(regret, float)))


MADE_UP = [
    made_up(0, [[9, 5], [9, 1]], [[0, 0.5], [0, -0.1]]),
    made_up(1, [[9, 0], [9, 2]], [[0, 0.6], [0, -0.2]]),
    made_up(2, [[9, 6], [9, 3]], [[0, 0.7], [0, -0.9]]),
    made_up(0, [[9, 7], [9, 8]], [[0, 0.3], [0, 0.4]], "online"),
]


def test_the_table_says_what_the_records_say():
    table = cli._summary(MADE_UP)
    rows = [list(cells) for cells in zip(*(column.cells for column in table.columns), strict=True)]
    # Medians over seeds of R(T)/T are 5 and 2, so the second step size is best, at the grid's upper edge.
    assert rows[0] == ["stochastic", "wada", "≥ 1", "2.000", "-0.200", "-0.20 … +0.60", "holds"]
    assert rows[1] == ["online", "wada", "≤ 0.1", "7.000", "+0.300", "+0.30 … +0.40", "holds"]


def test_the_figure_shows_what_the_records_say():
    regret, iterate, online_regret, last = plots._panels(MADE_UP, None)
    assert [panel.curves[0].median[-1] for panel in (regret, iterate, online_regret)] == [2, -0.2, 7]
    assert (regret.curves[0].low[-1], regret.curves[0].high[-1]) == (1.5, 2.5)
    assert last.curves[0].at.tolist() == [0.1, 1.0]
    assert last.curves[0].median.tolist() == [0.6, -0.2]
    chosen = plots._panels(MADE_UP, 0)
    assert [panel.curves[0].median[-1] for panel in chosen[:3]] == [5, 0.6, 7]
    assert plots._limits([]) == (-1.0, 1.0)


def test_a_reader_who_has_seen_enough_costs_no_file(tmp_path):
    command = f"{sys.executable} -m wagmf {' '.join(QUICK)} -o {tmp_path} | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    assert "Traceback" not in done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"walks.jsonl", "figure1.png", "figure1.html"}


def test_online_computes_only_what_is_missing(tmp_path):
    call(*QUICK, "-o", tmp_path, "--methods", "wada")
    before = (tmp_path / "walks.jsonl").read_text()
    assert "3 of 6 runs were done before" in call(*QUICK, "-o", tmp_path, "--methods", "wada,adam")
    after = (tmp_path / "walks.jsonl").read_text()
    assert after.startswith(before)
    assert after.count("\n") == 6


def test_online_takes_every_method(tmp_path):
    call("online", "--T", "300", "--seeds", "1", "--lrs", "0.1", "-o", tmp_path, "--methods", "all")
    assert (tmp_path / "walks.jsonl").read_text().count("\n") == 2 * len(METHODS)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["online", "--T", "0"], ["T", "0"]),
        (["online", "--T", "many"], ["T", "many"]),
        (["online", "--T", "nan"], ["T", "nan"]),
        (["online", "--T", "1e30"], ["T", "1e+30"]),
        (["online", "--seeds", "100000000"], ["seeds", "100000000"]),
        (["online", "--points", "1000000000"], ["points", "1000000000"]),
        (["online", "--seeds", "0"], ["seeds", "0"]),
        (["online", "--methods", "wadda"], ["wadda", "did you mean 'wada'"]),
        (["online", "--methods", ""], ["method", "''"]),
        (["online", "--lrs", "-1"], ["learning rate", "-1"]),
        (["online", "--lrs", "0.1,x"], ["lrs", "x"]),
        (["online", "--lrs", "nan"], ["learning rate", "nan"]),
        (["online", "--points", "1"], ["points", "1"]),
        (["online", "--jobs", "0"], ["jobs", "0"]),
        (["certify"], ["name a method"]),
        (["certify", "wadda"], ["wadda", "did you mean 'wada'"]),
        (["certify", "wada", "--p2", "4"], ["wada", "not both"]),
        (["certify", "--weights", "linear"], ["--p2"]),
        (["certify", "--weights", "linaer", "--p2", "4"], ["linaer", "did you mean 'linear'"]),
        (["certify", "--weights", "linear", "--p2", "-1"], ["p2", "-1"]),
        (["certify", "wada", "--decay", "-1"], ["decay", "-1"]),
        (["certify", "wada", "--horizon", "1"], ["horizon", "1"]),
    ],
)
def test_bad_arguments_are_refused_and_nothing_is_written(arguments, named, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["wagmf", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 2
    message = " ".join(capsys.readouterr().err.split())
    assert all(word in message for word in named), message
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_told(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setattr(sys, "argv", ["wagmf", *QUICK, "-o", str(tmp_path / "file" / "deeper")])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 2
    message = "".join(capsys.readouterr().err.split())  # the console may break the line anywhere
    assert "Invalidout" in message
    assert "file/deeper" in message


def test_version_and_help():
    import wagmf

    assert call("--version").strip() == wagmf.__version__
    words = call("--help")
    assert "Examples" in words
    assert "wagmf certify wada" in words
    assert "[default: one a core]" in call("online", "--help")
    assert "[default: the" in call("certify", "--help")
    assert "exponential:BETA[:steady]" in call("certify", "--help")


def wait_for(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.01)


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_ctrl_c_leaves_what_finished(tmp_path):
    arguments = ["online", "--T", "3e6", "--seeds", "30", "--methods", "wada", "--lrs", "1", "-o", tmp_path]
    run = start(*arguments)
    wait_for(lambda: lines(tmp_path / "walks.jsonl") >= 2)
    run.send_signal(signal.SIGINT)
    output, _ = run.communicate(timeout=60)
    assert run.returncode == 130, output
    kept = lines(tmp_path / "walks.jsonl")
    assert 2 <= kept < 31
    assert f"{kept} of 31 runs are done and kept" in " ".join(output.split())
    assert {path.name for path in tmp_path.iterdir()} == {"walks.jsonl", "figure1.png", "figure1.html"}


def test_killed_at_any_moment_it_continues_to_the_same_records(tmp_path):
    arguments = ["online", "--T", "2e5", "--seeds", "20", "--methods", "wada,adam", "--lrs", "0.1,1", "-o"]
    pick = random.Random(0)
    for _ in range(4):
        with forks.started(forks.module, "wagmf", *arguments, str(tmp_path / "killed")):  # and killed
            time.sleep(pick.uniform(0.1, 2))
    for folder in ("killed", "whole"):
        result = forks.run(forks.module, "wagmf", *arguments, str(tmp_path / folder), limit=120)
        assert result.code == 0, result.said
    killed, whole = (
        sorted((tmp_path / folder / "walks.jsonl").read_text().splitlines()) for folder in ("killed", "whole")
    )
    # A kill may tear the line being written; every other line is there once, and the same.
    assert len(whole) == 42
    assert set(whole) <= set(killed)
    assert len(killed) - len(whole) <= 4
    pictures = [(tmp_path / folder / "figure1.png").read_bytes() for folder in ("killed", "whole")]
    assert pictures[0] == pictures[1]


# ------------------------------------------------------------------ the records


def record(name="wada", seed=0):
    task = Task(Rule(decay=0.5), 100, (0.1, 1.0), seed)
    return Record(name, task, simulate(**vars(task)))


def test_records_come_back_as_they_were(tmp_path):
    walks = Walks(tmp_path / "walks.jsonl")
    assert walks.find([("wada", record().task)]) == []
    walks.add(record())
    walks.add(record(seed=1))
    (found,) = walks.find([("wada", record(seed=1).task), ("adam", record().task)])
    np.testing.assert_array_equal(found.walk.x, record(seed=1).walk.x)
    np.testing.assert_array_equal(found.walk.regret, record(seed=1).walk.regret)


def test_a_torn_line_costs_that_line_alone(tmp_path):
    walks = Walks(tmp_path / "walks.jsonl")
    walks.add(record(seed=0))
    walks.add(record(seed=1))
    walks.path.write_bytes(walks.path.read_bytes()[:-50])
    walks.add(record(seed=2))
    wanted = [("wada", record(seed=s).task) for s in range(3)]
    assert [found.task.seed for found in walks.find(wanted)] == [0, 2]


def test_what_is_not_a_record_is_passed_over(tmp_path):
    walks = Walks(tmp_path / "walks.jsonl")
    walks.add(record())
    line = json.loads(walks.path.read_text())
    for broken in ({**line, "x": [[1.0]]}, {**line, "t": None}, [], 3, None, {}):
        with walks.path.open("a") as file:
            file.write(json.dumps(broken) + "\n")
    with walks.path.open("ab") as file:
        file.write(b"\xff\xfe not text\n")
    walks.add(record(seed=1))
    found = walks.find([("wada", record(seed=s).task) for s in (0, 1)])
    assert [one.task.seed for one in found] == [0, 1]
    np.testing.assert_array_equal(found[0].walk.x, record().walk.x)


def test_records_of_another_source_are_not_trusted(tmp_path, monkeypatch):
    walks = Walks(tmp_path / "walks.jsonl")
    walks.add(record())
    monkeypatch.setattr(walks_room, "source_hash", lambda: "another")
    assert walks.find([("wada", record().task)]) == []


def test_a_failed_picture_leaves_the_old_one(tmp_path):
    from wagmf.lab.files import write_whole

    path = tmp_path / "figure1.png"
    path.write_text("old")

    def fail(new):
        new.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_whole(path, fail)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["figure1.png"]
    os.umask(mask := os.umask(0))
    assert write_whole(path, lambda new: new.write_text("new")).stat().st_mode & 0o777 == 0o666 & ~mask
