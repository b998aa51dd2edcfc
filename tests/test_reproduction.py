"""The reproduction: its experiments are the paper's, its folder follows from its records, and it can be stopped."""

import functools
import gzip
import itertools
import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats as scipy_stats
from sweeps import stop_after
from twins import one_thread as one_thread
from typer.testing import CliRunner

from wagmf.arguments import Refused
from wagmf.cli import app
from wagmf.lab import costs, engine, paper_runs, reproduction, stats
from wagmf.lab.anew import searched_again
from wagmf.lab.claims import verdicts
from wagmf.lab.evidence import anew_archives, experiment_of, gather, minutes, shares, significance_table
from wagmf.lab.looks import label, title_of
from wagmf.lab.paper import BASELINES, OURS, PAIRS, PANELS
from wagmf.lab.paper_runs import archive_of, paper_experiments, quickly, train
from wagmf.lab.planning import prepare
from wagmf.lab.records import Records, Run, archive, restore
from wagmf.lab.report import report
from wagmf.lab.reproduction import rebuild
from wagmf.lab.spec import METRICS, experiment
from wagmf.lab.tuning import COARSE, FINE, next_rates
from wagmf.lab.walks import unpack_walks
from wagmf.methods import PAPER_METHODS

ROOT = Path(__file__).parent.parent
FOLDER, EXPERIMENTS = ROOT / "reproduction", ROOT / "experiments" / "paper"
ARCHIVES = [path for path in sorted((FOLDER / "records").glob("*.jsonl.gz")) if path.name != "walks.jsonl.gz"]


def call(*words, expect=0):
    result = CliRunner().invoke(app, ["reproduce", *map(str, words)])
    assert result.exit_code == expect, result.output
    return result


def verdict_in(text, claim):
    (row,) = [line for line in text.splitlines() if line.startswith(f"| {claim} |")]
    return row.split(" | ")[2]


# ------------------------------------------------------------------ from the records alone


def contents(folder):
    made = {"report.html", "runs.db", "walks.jsonl", ".gitignore"}  # as are the locks of sweeps that were stopped
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in made and path.parent.suffix != ".stacks"
    }


def test_the_folder_follows_from_its_records(tmp_path):
    """Of what anybody has who cloned the project: the records, and nothing that was made of them."""
    shutil.copytree(FOLDER / "records", tmp_path / "records")
    said = call("--no-train", "-o", tmp_path).output.replace("\n", "")
    mine, right = contents(tmp_path), contents(FOLDER)
    assert mine.keys() == right.keys()
    assert all(f"Wrote     {tmp_path / name}" in said for name in right if not name.startswith("records"))
    different = [name for name in right if mine[name] != right[name]]
    assert not different, "wagmf reproduce --no-train"
    assert (tmp_path / "report.html").stat().st_size > 10**6
    assert not (tmp_path / "runs.db").exists()


@functools.cache
def recorded():
    """What is on record here, read once: tests leave it as it is."""
    return gather(FOLDER)


def alter(folder, name, change):
    """Change every run of an experiment itself."""
    path = archive_of(folder / "records", name)
    runs, names = restore(path)
    archive([change(run) if name in names[run.key] else run for run in runs], names, path)


def test_other_records_have_other_verdicts(tmp_path):
    def better(run):
        if run.config["method"] != "wada":
            return run
        losses = [value * 0.9 for value in run.curves["train_loss"]]
        hits = [value + 0.05 for value in run.curves["test_accuracy"]]
        return replace(run, curves={**run.curves, "train_loss": losses, "test_accuracy": hits})

    shutil.copytree(FOLDER / "records", tmp_path / "records")
    for name in ("mlp on cifar10", "mlp on cifar100"):
        alter(tmp_path, name, better)
    evidence = gather(tmp_path)
    before, after = (
        {each.id: each.verdict for each in verdicts(found.finals, found.walks, found.costs, found.slacks)}
        for found in (recorded(), evidence)
    )
    assert before["C6"] != after["C6"] == "confirmed"
    assert {claim for claim in before if before[claim] != after[claim]} == {"C6"}
    table = significance_table(evidence)
    mlp = table[table["panel"].isin(["3b", "3c", "4b", "4c"]) & (table["ours"] == "wada")]
    assert set(mlp["shown"]) == {"ours"}


def test_p_values_are_those_of_the_tests():
    evidence = recorded()
    table = significance_table(evidence)
    assert len(table) == len(PAIRS) * len(evidence.panels) > 0
    for row in table.sample(12, random_state=0).to_dict("records"):
        curves = evidence.of(row["experiment"])
        last = curves[curves["epoch"] == curves["epoch"].max()].sort_values("seed")
        a, b = (last.loc[last["method"] == row[who], row["metric"]].to_numpy() for who in ("ours", "baseline"))
        assert len(a) == len(b) == row["n"]
        assert row["student"] == pytest.approx(scipy_stats.ttest_ind(a, b).pvalue)
        assert row["welch"] == pytest.approx(scipy_stats.ttest_ind(a, b, equal_var=False).pvalue)
        assert row["paired"] == pytest.approx(scipy_stats.ttest_rel(a, b).pvalue)
        lower = row["metric"] == "train_loss"
        assert row["ahead"] == ("ours" if (a.mean() < b.mean()) == lower else "baseline")
        ends = [curves[(curves["method"] == row[who]) & (curves["seed"] == 0)] for who in ("ours", "baseline")]
        late = [end.sort_values("epoch")[row["metric"]].to_numpy()[-8:] for end in ends]
        if all(np.ptp(end) > 0 for end in late):  # late in a run an accuracy may stay what it is, to the digit
            assert row["last_epochs"] == pytest.approx(scipy_stats.ttest_ind(*late).pvalue)
        (panel,) = [panel for panel in PANELS if panel.name == row["panel"]]
        assert row["printed"] == dict(zip(PAIRS, panel.p, strict=True))[row["ours"], row["baseline"]]
        assert row["agrees"] == ((row["student"] < 0.05) == (row["printed"] < 0.05))


def test_runs_that_diverged_are_told_and_never_ahead(tmp_path):
    """Adam at every seed, AMSGrad at three: neither is the best baseline, nor ahead of anybody."""

    def lost(run):
        gone = run.config["method"] == "adam" or (run.config["method"] == "amsgrad" and run.config["seed"] < 3)
        curves = {metric: [*values[:-1], None] for metric, values in run.curves.items()}
        return replace(run, curves=curves, diverged=len(values_of(run))) if gone else run

    (tmp_path / "records").mkdir()
    # The panels of others would take long to draw.
    shutil.copy(FOLDER / "records" / "mlp-on-cifar10.jsonl.gz", tmp_path / "records")
    alter(tmp_path, "mlp on cifar10", lost)
    table = significance_table(gather(tmp_path))
    cells = table[(table["panel"] == "3b") & table["baseline"].isin(["adam", "amsgrad"])]
    assert set(cells["ahead"]) == {"ours"}
    text = rebuild(tmp_path)[0].read_text()
    (row,) = [line for line in text.splitlines() if line.startswith("| 3b | MLP")]
    assert "| – (8 of 8 diverged) |" in row
    assert "(3 of 8 diverged) |" in row
    assert "to AdamNC" in row
    assert "nan" not in text


def values_of(run):
    return run.curves["train_loss"]


def test_runs_of_some_seeds_are_no_panel(tmp_path):
    """What is not whole is named so by the one who knows what was asked for; see _names in paper_runs.py."""
    shutil.copytree(FOLDER / "records", tmp_path / "records")
    path = archive_of(tmp_path / "records", "mlp on cifar10")
    runs, names = restore(path)
    fewer = {
        key: [f"{n}, unfinished" if n == "mlp on cifar10" else n for n in several] for key, several in names.items()
    }
    archive(runs, fewer, path)
    before, after = ({panel.experiment for panel in found.panels} for found in (recorded(), gather(tmp_path)))
    assert before - after == {"mlp on cifar10"}


def test_walks_alone_are_enough_to_write(tmp_path):
    (tmp_path / "records").mkdir()
    shutil.copy(FOLDER / "records" / "walks.jsonl.gz", tmp_path / "records")
    text = rebuild(tmp_path)[0].read_text()
    assert verdict_in(text, "C1") == "**confirmed**"
    assert verdict_in(text, "C6") == "**not run**"


def test_nothing_to_write_is_said(tmp_path):
    with pytest.raises(Refused, match="there are no records"):
        rebuild(tmp_path)


# ------------------------------------------------------------------ the records


@pytest.mark.parametrize("path", ARCHIVES, ids=lambda path: path.name)
def test_records_say_what_made_them(path):
    runs, names = restore(path)
    text = (FOLDER / "README.md").read_text()
    for run in runs:
        commit = run.environment["commit"]
        assert len(commit) == 40, "a commit, and nothing changed since"
        assert set(commit) <= set("0123456789abcdef")
        assert run.environment["device"]
        assert run.environment["torch"]
        assert run.seconds > 0
        assert run.ended
        assert run.config["dataset"] in ("mnist", "cifar10", "cifar100")
        # A run without a name is of a search that another, of longer runs, has replaced: the page tells of both.
        assert names[run.key] or f"**{title_of(experiment_of(run.experiment))} was searched twice" in text


@pytest.mark.parametrize("path", ARCHIVES, ids=lambda path: path.name)
def test_experiments_are_whole_and_their_step_sizes_inside_the_grid(path):
    """Six methods, eight seeds; in the second stage every method's own is better than its neighbours on both sides.

    Of an experiment that is still going on there is the search, and no panel. Where the second stage is shorter than
    the runs themselves, the page says so.
    """
    evidence = recorded()
    (name,) = {panel.experiment for panel in PANELS if archive_of(FOLDER, panel.experiment).name == path.name}
    (asked,) = paper_experiments(EXPERIMENTS, [name])
    finals = evidence.of(name)
    if finals.empty:
        assert not [panel for panel in evidence.panels if panel.experiment == name]
    else:
        assert set(finals["method"]) == set(PAPER_METHODS)
        assert finals.groupby("method")["seed"].agg(set).map(lambda seeds: seeds == set(range(8))).all()
        assert (finals.groupby(["method", "seed"])["epoch"].max() == asked.problem.epochs).all()
    table = pd.read_csv(FOLDER / "step-sizes.csv")
    fine = table[(table["experiment"] == name) & (table["stage"] == "fine")]
    known = table[(table["experiment"] == name) & (table["epochs"] == fine["epochs"].max())]
    if len(fine):
        text = (FOLDER / "README.md").read_text()
        assert ("its second stage was shorter" in text) or fine["epochs"].max() == asked.problem.epochs
        assert (f"**{title_of(name)}: its second" in text) == (fine["epochs"].max() < asked.problem.epochs)
    for method, rows in known.groupby("method"):
        chosen = rows[rows["chosen"]]["lr"].unique()
        assert chosen.size == 1, method
        assert rows["lr"].min() < chosen[0] < rows["lr"].max(), method
        assert chosen[0] == rows.loc[rows["train_loss"].idxmin(), "lr"], method


def test_a_search_that_was_replaced_is_told_of(tmp_path):
    """Runs of an earlier second stage are kept without a name: what it had chosen, and what that came to, is said."""
    (tmp_path / "records").mkdir()
    path = Path(shutil.copy(FOLDER / "records" / "mlp-on-cifar10.jsonl.gz", tmp_path / "records"))
    runs, names = restore(path)
    fine = [run for run in runs if names[run.key] == ["mlp on cifar10, fine"] and run.config["method"] == "wada"]
    last = max(fine, key=lambda run: run.config["lr"])  # no run of 200 epochs is as good as this one of 50
    before = [
        replace(run, key=f"x{run.key[1:]}", config=run.config | {"epochs": 50}, curves=cut(run, 50)) for run in fine
    ]
    least = {metric: [0.5] * 50 for metric in METRICS}
    before = [replace(run, curves=least) if run.config["lr"] == last.config["lr"] else run for run in before]
    archive([*runs, *before], names | {run.key: [] for run in before}, path)
    text = rebuild(tmp_path)[0].read_text()
    assert "**MLP on CIFAR-10 was searched twice.**" in text
    (told,) = [line for line in text.splitlines() if line.startswith("WADA ") and "→" in line]
    assert told.startswith(f"WADA {last.config['lr']:g} ({last.curves['train_loss'][-1]:.4f}) → ")
    assert f"Its {len(before)} runs, " in text
    assert "**MLP on CIFAR-10 was searched twice.**" not in (FOLDER / "README.md").read_text()


AGAIN = "mlp on cifar10"


@pytest.fixture
def anew(tmp_path):
    """Of a search that is done again the archive, and its runs; beside it that of what shorter runs had chosen.

    The runs are those of the true search, of which the shorter ones are beginnings. What these chose has turned out to
    be worse; and of WADA two step sizes are one, but for rounding.
    """
    (tmp_path / "records" / "anew").mkdir(parents=True)
    before = archive_of(tmp_path / "records", AGAIN)
    runs, names = restore(archive_of(FOLDER / "records", AGAIN))
    own = [run for run in runs if AGAIN in names[run.key]]
    fine = [run for run in runs if f"{AGAIN}, fine" in names[run.key]]
    short = [
        replace(run, key=f"s{run.key[1:]}", config=run.config | {"epochs": 100}, curves=cut(run, 100)) for run in fine
    ]
    called = {run.key: [AGAIN] for run in own} | {run.key: [f"{AGAIN}, fine"] for run in short}
    archive([*(with_losses(run, 1.1) for run in own), *short], called, before)
    searched = [replace(run, experiment=f"{AGAIN}, fine") for run in fine if run not in own]
    last = max(of(searched, "wada"), key=lambda run: run.config["lr"])
    searched.append(replace(last, key=f"r{last.key[1:]}", config=last.config | {"lr": 1.004 * last.config["lr"]}))
    return archive_of(tmp_path / "records" / "anew", AGAIN), searched


def cut(run: Run, epochs: int) -> dict[str, list[Any]]:
    return {metric: values[:epochs] for metric, values in run.curves.items()}


def gone(run: Run, epoch: int) -> Run:
    """The run, had it diverged."""
    curves = {metric: values[: epoch - 1] + [None] * (len(values) - epoch + 1) for metric, values in run.curves.items()}
    return replace(run, curves=curves, diverged=epoch)


def with_losses(run: Run, times: float) -> Run:
    return replace(run, curves=run.curves | {"train_loss": [times * loss for loss in run.curves["train_loss"]]})


def whole(*runs: Run) -> list[Run]:
    """Those of full length, by the seed that chooses."""
    return [run for run in runs if (run.config["epochs"], run.config["seed"]) == (200, 0)]


def chosen_again(searched: list[Run], method: str, seed: int, **other: Any) -> Run:
    """A made-up run of another seed, at the step size of those that were searched anew where the method trains best."""
    run = min(of(searched, method), key=last_loss)
    ends = {metric: 0.9 - seed / 100 if metric == "test_accuracy" else seed / 100 for metric in METRICS}
    curves = {metric: [end] * run.config["epochs"] for metric, end in ends.items()}
    key, name = f"{seed}{run.key[:0:-1]}", experiment_of(run.experiment)  # no other run's key, whatever it begins with
    return replace(run, experiment=name, config=run.config | {"seed": seed}, key=key, curves=curves, **other)


def last_loss(run: Run) -> float:
    return run.curves["train_loss"][-1]


def last_share(run: Run) -> float:
    return run.curves["test_accuracy"][-1]


def of(runs: list[Run], method: str) -> list[Run]:
    return [run for run in runs if run.config["method"] == method]


def test_a_search_that_is_not_over_is_told_of_and_shown_nowhere(tmp_path, anew):
    """Its runs are in no figure and table; what it has found is, in words, as far as it takes other runs' place."""
    path, runs = anew
    alone, chosen = rebuild(tmp_path)[0].read_text(), gather(tmp_path).chosen[AGAIN]
    assert "is not over" not in alone
    kept, called = restore(archive_of(tmp_path / "records", AGAIN))
    one = of(runs, "adam")[-1]
    curves = one.curves | {"train_loss": [*one.curves["train_loss"][:-1], 0.0125]}
    curves |= {"test_accuracy": [*one.curves["test_accuracy"][:-1], 0.987]}
    runs = [replace(run, curves=curves) if run is one else run for run in runs]
    runs = [gone(run, 7) if run.config["method"] == "amsgrad" else run for run in runs]
    archive(runs, {}, path)
    text = rebuild(tmp_path)[0].read_text()
    lines = {line for line in text.splitlines() if line.startswith(("|", "!["))}
    assert lines == {line for line in alone.splitlines() if line.startswith(("|", "!["))}
    lost = sum(run.config["method"] == "amsgrad" for run in runs)
    head = f"epochs, which is not over: {len(runs)} runs so far, {lost} of which diverged, by\none seed."
    assert f"**{title_of(AGAIN)} is searched again**, in a second stage of 200 {head}" in text
    assert f"Adam {one.config['lr']:g} (0.0125 and 98.70 %; shown here is {chosen['adam']:g})" in text
    (before,) = of(whole(*kept), "amsgrad")
    told = f"AMSGrad {before.config['lr']:g} ({last_loss(before):.4f} and "
    assert told in text, "a run of the same length and seed that was there before"
    wada = of(whole(*runs, *kept), "wada")
    least, most = last_share(min(wada, key=last_loss)), max(map(last_share, wada))
    assert f"its test accuracy {100 * least:.2f} % beside baselines' 98.70 % at most. " in text
    counts = f"{len(wada) - 1} step sizes of WADA's and {len(of(whole(*runs, *kept), 'adam'))} of Adam's"  # two are one
    assert f"choosing among {counts}, it is {100 * most:.2f} % beside 98.70 %.\n" in text
    assert f"the {len(runs)} runs of the search that is done again ({sum(minutes(runs).values()):.1f} minutes; " in text
    some = [
        replace(run, config=run.config | {"seed": seed}, key=f"{seed}{run.key[1:]}") for run in runs for seed in (0, 1)
    ]
    archive(of(some, "adam"), {}, path)
    text = rebuild(tmp_path)[0].read_text()
    assert "runs so far, by\n2 seeds." in text
    assert "AdamNC 0." not in text.split("is searched again**")[1].split("What the search chooses")[0]
    assert ": a search with runs of 200 epochs is not over, and has not come to all methods yet.\n" in text
    # Given up, they go among the others; they may lie where they were, too, but without a name.
    none = {run.key: [] for run in runs}
    archive([*kept, *runs], called | none, archive_of(tmp_path / "records", AGAIN))
    archive(runs, none, path)
    text = rebuild(tmp_path)[0].read_text()
    assert "is not over" not in text
    assert "done again" not in text


def test_what_a_search_has_chosen_is_told_of_until_all_seeds_are_there(tmp_path, anew):
    """By the seeds that all methods have: those of which one method lacks a run, or diverged, count for none."""
    path, searched = anew
    pairs = [(method, seed) for method in PAPER_METHODS for seed in (1, 2) if (method, seed) != ("amsgrad", 2)]
    own = [chosen_again(searched, *pair) for pair in pairs]
    last = [chosen_again(searched, name, 3) for name in PAPER_METHODS]
    own += [gone(run, 1) if run.config["method"] == "wada" else run for run in last]
    archive([*searched, *own], {}, path)
    text = rebuild(tmp_path)[0].read_text()
    assert "is not over" not in text
    assert f"second stage of 200 epochs: {len(searched)} runs, by\none seed." in text
    first = {method: min(of(searched, method), key=last_loss) for method in PAPER_METHODS}
    losses = {method: (last_loss(run) + 0.01) / 2 for method, run in first.items()}
    share = (last_share(first["wada"]) + 0.89) / 2
    (line,) = [line for line in text.splitlines() if line.startswith("2 of 8 seeds are there for all methods")]
    told = f"WADA {losses['wada']:.4f} and {100 * share:.2f} %, WADA-v3 "
    lost = "1 of these runs diverged, whose seeds count for none"
    assert f"({lost}); means of training loss and test accuracy: {told}" in line
    best = min(BASELINES, key=losses.__getitem__)
    behind = f"{losses['wada']:.4f} beside {label(best)}'s {losses[best]:.4f}"
    told = "epochs has chosen others. Where each trains best, by 2 of 8 seeds, WADA's training loss is "
    assert f"{told}{behind}, and its test accuracy {100 * share:.2f} % beside" in text
    assert f"and the {len(searched) + len(own)} runs of the search that is done again (" in text
    # Of Adam no step size is as good as the one that was chosen before, and all seeds are there.
    worse = [with_losses(run, 9.0) for run in of(searched, "adam")]
    other = [run for run in [*searched, *own] if run.config["method"] != "adam"]
    archive([*worse, *other], {}, path)
    text = rebuild(tmp_path)[0].read_text()
    (line,) = [line for line in text.splitlines() if line.startswith("2 of 8 seeds are there for all methods")]
    kept = of(restore(archive_of(tmp_path / "records", AGAIN))[0], "adam")
    ends = [last_loss(run) for run in kept if run.config["epochs"] == 200 and run.config["seed"] in (0, 1)]
    assert f", Adam {np.mean(ends):.4f} and " in line
    # Nothing of other methods had to be searched: all that their grids ask for is there.
    archive([*worse, *of(other, "wada")], {}, path)
    text = rebuild(tmp_path)[0].read_text()
    assert f"3 of 8 seeds are there for all methods ({lost}); means of" in text
    # All of them are of one seed that diverged: it is over, and nothing can be said of all methods.
    none = [gone(run, 1) for run in searched]
    archive([*none, *(run for run in own if run.config["seed"] == 3)], {}, path)
    there = restore(archive_of(tmp_path / "records", AGAIN))[0]
    drop([*of(whole(*there), "wada"), *(run for run in there if run.config["seed"] == 7)], tmp_path)
    text = rebuild(tmp_path)[0].read_text()
    assert f"\n0 of 7 seeds are there for all methods ({lost}).\n" in text
    assert "What the search chooses" not in text
    assert "seeds are there for all methods;" not in text


def test_a_search_is_over_when_it_has_chosen(tmp_path, anew):
    """Before anything is run at what it has chosen, but for what the search itself had run there."""
    path, searched = anew
    first = [min(of(searched, method), key=last_loss) for method in PAPER_METHODS]
    names = {run.key: [f"{AGAIN}, fine", f"{AGAIN}, unfinished"] for run in first}
    archive(searched, names, path)
    text = rebuild(tmp_path)[0].read_text()
    assert "is not over" not in text
    assert f": {len(searched)} runs, by\none seed." in text
    assert "\n1 of 8 seeds are there for all methods; means of training loss and test accuracy: WADA " in text


def test_a_search_by_shorter_runs_is_over_when_it_has_chosen(tmp_path, anew):
    """Its own are of another length, and of these it tells, beside those that were there before."""
    path, searched = anew
    short = [replace(run, config=run.config | {"epochs": 150}, curves=cut(run, 150)) for run in searched]
    own = [chosen_again(searched, method, seed) for method in PAPER_METHODS for seed in (1, 2)]
    lrs = {method: min(of(short, method), key=last_loss).config["lr"] for method in PAPER_METHODS}
    own = [replace(run, config=run.config | {"lr": lrs[run.config["method"]]}) for run in own]
    archive([*short, *own], {}, path)
    text = rebuild(tmp_path)[0].read_text()
    assert f"in a second stage of 150 epochs: {len(short)} runs, by\none seed." in text
    assert "\n2 of 8 seeds are there for all methods; means of training loss and test accuracy: WADA 0.0150" in text
    assert "told of nowhere" not in text


def test_runs_of_both_stages_are_of_the_second_too(tmp_path, anew):
    """Whatever they were recorded as: names say what they are of."""
    path, searched = anew
    archive(searched, {}, path)
    (before,) = (line for line in rebuild(tmp_path)[0].read_text().splitlines() if line.startswith("any: "))
    others = ["mlp on cifar10, coarse", "something else"]
    runs = [replace(run, experiment=others[k % 2]) for k, run in enumerate(searched)]
    archive(runs, {run.key: [f"{AGAIN}, coarse", f"{AGAIN}, fine"] for run in runs}, path)
    text = rebuild(tmp_path)[0].read_text()
    assert before in text.splitlines()
    assert "told of nowhere" not in text


def drop(runs: list[Run], folder: Path) -> None:
    """Take runs out of the archive of what was there before."""
    path, keys = archive_of(folder / "records", AGAIN), {run.key for run in runs}
    kept, names = restore(path)
    archive([run for run in kept if run.key not in keys], names, path)


def test_what_was_searched_in_between_is_not_told_as_the_search(tmp_path, anew):
    """Runs of another problem or without a name are of a search that has been given up: they are counted, aside."""
    path, searched = anew
    archive(searched, {}, path)
    (before,) = (line for line in rebuild(tmp_path)[0].read_text().splitlines() if line.startswith("any: "))
    best = min(of(searched, "wada"), key=last_loss)
    flat = {metric: [0.001] * 200 for metric in METRICS}
    made = {"another problem": {"l2": 0.5}, "no name": {"lr": 0.5}}
    more = [replace(best, key=key, config=best.config | change, curves=flat) for key, change in made.items()]
    archive([*searched, *more], {"no name": []}, path)
    text = rebuild(tmp_path)[0].read_text()
    assert before in text.splitlines()
    assert f": {len(searched)} runs so far, by" in text
    assert f"Kept apart, too, and told of nowhere: 2 of {AGAIN}." in text


def test_what_only_rounding_tells_apart_is_one_step_size(tmp_path, anew):
    """That of the search that is done again: it is what can be chosen."""
    path, searched = anew
    before = archive_of(tmp_path / "records", AGAIN)
    kept, called = restore(before)
    lr = {run.config["method"]: run.config["lr"] for run in kept if AGAIN in called[run.key]}["wada"]
    best = min(of(searched, "wada"), key=last_loss)
    near = replace(best, key="near", config=best.config | {"lr": lr * 1.004}, curves=with_losses(best, 2.0).curves)
    archive([*searched, near], {}, path)
    text = rebuild(tmp_path)[0].read_text()
    assert f"WADA {best.config['lr']:g} ({last_loss(best):.4f} and " in text
    better = replace(best, key="near", config=near.config, curves=with_losses(best, 0.5).curves)
    archive([*searched, better], {}, path)
    assert f"WADA {1.004 * lr:g} ({last_loss(better):.4f} and " in rebuild(tmp_path)[0].read_text()


def test_what_is_kept_apart_and_told_of_nowhere_is_counted(tmp_path, anew):
    """Of a search whose second stage is not begun, or of an experiment that nobody knows."""
    path, searched = anew
    one, *_ = searched
    early = [replace(run, experiment=f"{AGAIN}, coarse") for run in searched[:3]]
    archive([*searched[3:], *early], {}, path)
    text = rebuild(tmp_path)[0].read_text()
    assert f"Kept apart, too, and told of nowhere: 3 of {AGAIN}." in text
    assert f"and the {len(searched)} runs that are kept apart" in text
    other = [replace(one, key="of another", experiment="vgg on cifar10, fine", config=one.config | {"model": "vgg"})]
    archive([*early, *other], {}, path)
    text = rebuild(tmp_path)[0].read_text()
    assert "Kept apart and told of nowhere: 3 of mlp on cifar10; 1 of vgg on cifar10." in text
    assert "is searched again" not in text
    spent = sum(minutes([*early, *other]).values())
    whole_paper = sum(minutes(gather(tmp_path).runs).values())
    sums = f"({spent:.1f} minutes; with them it is {whole_paper + spent:.1f} so far)"
    assert f"and the 4 runs that are kept apart {sums}" in text
    assert "runs in all, the searches for step sizes included, and 4 that are kept apart." in text


def test_one_go_is_without_what_a_search_had_trained_that_was_replaced(tmp_path, anew):
    """By as many of the runs of each stack as belong to what is shown: here of two of eight in a minute's stack."""
    before = archive_of(tmp_path / "records", AGAIN)
    kept, called = restore(before)
    spent, stack = sum(minutes(kept).values()), {"seconds": 60.0, "ended": "2026-01-01T00:01:00+00:00"}
    fine = [run for run in kept if called[run.key] == [f"{AGAIN}, fine"]]
    moved = {run.key: replace(run, **stack) for run in fine[:2]}
    replaced = [
        replace(run, key=f"x{run.key[1:]}", config=run.config | {"epochs": 50}, curves=cut(run, 50), **stack)
        for run in fine[:6]
    ]
    runs = [*(moved.get(run.key, run) for run in kept), *replaced]
    archive(runs, called | {run.key: [] for run in replaced}, before)
    evidence = gather(tmp_path)
    assert reproduction._in_one_go(evidence) == pytest.approx(
        (spent + 0.25, sum(seconds for _, _, seconds, _ in shares(kept)) / 60 + 0.25)
    )
    assert sum(minutes(evidence.runs).values()) == pytest.approx(spent + 1)
    page = (FOLDER / "README.md").read_text()
    assert f"{reproduction._in_one_go(gather(FOLDER))[0]:.1f} minutes, with searches" in page


def test_every_commit_is_named(tmp_path):
    """Of what is shown, and of what is told of searches that are done again."""
    page = (FOLDER / "README.md").read_text().rpartition("All else was made with")[2]
    paths = [*ARCHIVES, *anew_archives(FOLDER)]
    assert {run.environment["commit"] for path in paths for run in restore(path)[0]} == {
        *re.findall(r"\b[0-9a-f]{40}\b", page)
    }


def test_what_is_said_of_searches_that_are_done_again_is_on_record():
    """Where each method trains best, where it tests best, and what seeds came to so far, by the archives alone."""
    text, searches = (FOLDER / "README.md").read_text(), searched_again(recorded())
    assert text.count(" is searched again**, ") == len(searches)
    for path in anew_archives(FOLDER):
        found, before = restore(path)[0], restore(FOLDER / "records" / path.name)[0]
        name = experiment_of(found[0].experiment)
        if name not in searches:
            continue  # no second stage is begun
        own, runs = [run for run in found if run.experiment == name], whole(*found, *before)
        seeds = {run.config["seed"] for run in own}
        assert f"**{title_of(name)} is searched again**, " in text
        for method in PAPER_METHODS:
            first, top = min(of(runs, method), key=last_loss), max(of(runs, method), key=last_share)
            lr, there = first.config["lr"], top.config["lr"]
            best = f"; at most {100 * last_share(top):.2f} %, at {there:g}" if there != lr else ""
            told = f"{label(method)} {lr:g} ({last_loss(first):.4f} and {100 * last_share(first):.2f} %{best}; "
            assert f"{told}shown here is {recorded().chosen[name][method]:g})" in text
            if own:
                assert {run.config["lr"] for run in of(own, method)} <= {lr}, "what was chosen"
                assert {run.config["seed"] for run in of(own, method)} in (seeds, set())
        for method in {run.config["method"] for run in own}:
            ends = [last_loss(min(of(runs, method), key=last_loss)), *map(last_loss, of(own, method))]
            assert f"{label(method)} {np.mean(ends):.4f} and " in text
        assert not own or f"{1 + len(seeds)} of 8 seeds are there for all methods; " in text


def test_accuracies_are_drawn_of_a_search_that_was_done_again_when_it_is_over(tmp_path, anew, monkeypatch):
    """At every step size of whole runs, but for those that rounding tells apart; ringed is where it trains best."""
    drawn = {}

    def kept(panels, path, **_):
        drawn[path.name] = {panel.title: panel for panel in panels}
        return []

    monkeypatch.setattr(reproduction.plots, "panel_pictures", kept)
    path, searched = anew
    archive(searched, {}, path)
    evidence = gather(tmp_path)
    reproduction._figures(evidence, [], searched_again(evidence), tmp_path / "figures")
    assert [*drawn["tested"]] == [f"{title_of(AGAIN)}, 100 epochs"], (
        "it may not be over: nothing that it has chosen is on record"
    )
    before = drawn["step-sizes"][f"{title_of(AGAIN)}, 100 epochs"]
    archive([*searched, *(chosen_again(searched, method, 1) for method in PAPER_METHODS)], {}, path)
    evidence = gather(tmp_path)
    reproduction._figures(evidence, [], searched_again(evidence), tmp_path / "figures")
    after = drawn["step-sizes"][f"{title_of(AGAIN)}, 100 epochs"]
    assert [line.x.tolist() for line in after.lines] == [line.x.tolist() for line in before.lines]
    panel = drawn["tested"][f"{title_of(AGAIN)}, searched again, 200 epochs"]
    losses = drawn["step-sizes"][f"{title_of(AGAIN)}, searched again, 200 epochs"]
    assert [line.x.tolist() for line in losses.lines] == [line.x.tolist() for line in panel.lines]
    known = whole(*searched, *restore(archive_of(tmp_path / "records", AGAIN))[0])
    for line in panel.lines:
        ends = {run.config["lr"]: last_share(run) for run in of(known, line.method)}
        np.testing.assert_allclose([ends[lr] for lr in line.x], line.y, rtol=1e-6)  # archives are in single precision
        assert all(1.01 * a < b for a, b in itertools.pairwise(line.x))
        assert len(line.x) == len(ends) - (line.method == "wada"), "of which two are one"
        (ring,) = [mark.x for mark in panel.marks if mark.method == line.method]
        assert ring == min(of(known, line.method), key=last_loss).config["lr"]


def test_step_sizes_of_a_search_that_is_done_again_are_in_the_table(tmp_path, anew):
    """Also before it is over; then nothing is chosen. Of those that diverged there is no loss."""
    path, searched = anew
    *_, lost = sorted(of(searched, "adam"), key=last_loss)
    for more, chosen in (([], False), ([chosen_again(searched, method, 1) for method in PAPER_METHODS], True)):
        archive([*searched, *more], {}, path)
        rebuild(tmp_path)
        table = pd.read_csv(tmp_path / "step-sizes.csv")
        again = table[table["stage"] == "fine, again"]
        known = whole(*searched, *restore(archive_of(tmp_path / "records", AGAIN))[0])
        for method in PAPER_METHODS:
            rows, runs = again[again["method"] == method], of(known, method)
            assert len(rows) == len(runs) - (method == "wada"), "of which two are one"
            least = min(runs, key=last_loss)
            assert rows["train_loss"].min() == pytest.approx(last_loss(least), rel=1e-5)
            assert rows.loc[rows["chosen"], "lr"].tolist() == [least.config["lr"]] * chosen
    archive([gone(run, 9) if run is lost else run for run in searched], {}, path)
    rebuild(tmp_path)
    rows = pd.read_csv(tmp_path / "step-sizes.csv").query("stage == 'fine, again' and method == 'adam'")
    assert rows.loc[rows["train_loss"].isna(), "lr"].tolist() == [lost.config["lr"]]


def test_what_trains_as_well_and_tests_better_is_told(tmp_path, anew):
    """On the first screen, too: which of the two is chosen is chance."""
    path, searched = anew
    ends = stats.finals(recorded().of(AGAIN), "train_loss")
    between = 1.1 * ends.loc[ends["method"] == "wada", "value"].std()  # what is shown has losses of 1.1 times these
    first = min(of(whole(*searched, *restore(archive_of(tmp_path / "records", AGAIN))[0]), "wada"), key=last_loss)

    def page(loss: float, share: float) -> str:
        curves = {"train_loss": [loss] * 200, "test_accuracy": [share] * 200, "test_loss": [1.0] * 200}
        curves |= {metric: [0.5] * 200 for metric in METRICS if metric not in curves}
        also = replace(first, key="also", config=first.config | {"lr": 0.7}, curves=curves, experiment=f"{AGAIN}, fine")
        archive([*searched, also], {}, path)
        return rebuild(tmp_path)[0].read_text()

    loss, share = last_loss(first) + 0.9 * between, last_share(first) + 0.003
    told = f"To within what seeds differ by, WADA trains as well at 0.7 ({loss:.4f}, one seed), and tests at "
    told, text = f"{told}{100 * share:.2f} % there.", page(loss, share)
    assert text.count(told) == 2
    assert f" % at most. {told} Where each tests best" in text.split("## Figures")[0]
    assert "costs little of the loss (of accuracy it may: see below)." in text
    assert "To within" not in page(last_loss(first) + 1.1 * between, share)
    assert "To within" not in page(loss, last_share(first) + 0.002), "too little to matter"
    assert "To within" not in page(loss, last_share(first) - 0.003)
    # Of what is shown all but one seed diverged: nobody knows how much seeds differ by.
    before = archive_of(tmp_path / "records", AGAIN)
    runs, names = restore(before)
    late = [run.config["method"] == "wada" and AGAIN in names[run.key] and run.config["seed"] > 0 for run in runs]
    archive([gone(run, 9) if lost else run for run, lost in zip(runs, late, strict=True)], names, before)
    assert sum(late) == 7
    assert "To within" not in page(loss, share)


def test_where_losses_still_fall_is_told():
    """Of every search that is shown, by its own losses."""
    wanted = []
    for name in recorded().chosen:
        curves = recorded().of(f"{name}, fine")
        ends = curves[curves["epoch"] == curves["epoch"].max()].groupby(["method", "lr"])["train_loss"].mean()
        for method, losses in ends.groupby("method"):
            tried = dict(zip(losses.index.get_level_values("lr"), losses, strict=True))
            wanted += [f"{label(method)} to {lr:g} in {title_of(name)}" for lr in next_rates(tried, tried, FINE)]
    lines = re.findall(
        r"^Losses still fall towards an edge, .*: (.*)\.$", (FOLDER / "README.md").read_text(), flags=re.M
    )
    assert lines == ["; ".join(wanted)][: len(wanted)]


def test_the_interactive_report_follows_the_paper_and_says_who_chose(tmp_path):
    shutil.copytree(FOLDER / "records", tmp_path / "records")
    page = rebuild(tmp_path)[-1].read_text()
    headings = re.findall(r'<h2 id="e\d+-name">(.*?)</h2>', page)
    experiments = list(dict.fromkeys(panel.experiment for panel in PANELS if panel.experiment in recorded().chosen))
    named = [[panel.name for panel in PANELS if panel.experiment == name] for name in experiments]
    own = zip(experiments, named, strict=True)
    assert headings == [f"{title_of(name)} ({', '.join(panels)})" for name, panels in own]
    assert "by a search that came before these runs" in page
    assert "each method at its own step size, which a search has chosen." in page
    assert "mean over seeds. A step size at which" not in page
    assert "place in the grid" not in page


def test_the_summary_says_how_near_others_came_at_other_step_sizes():
    """Where a difference in accuracy is shown; by the second stage, at any step size but the one that was chosen."""
    evidence = recorded()
    outcomes = reproduction._outcomes(evidence, significance_table(evidence), {})
    told = "\n".join(reproduction._at_other_rates(evidence, outcomes))
    text = (FOLDER / "README.md").read_text()
    assert told.replace("\n", "; ") in text
    fine = pd.read_csv(FOLDER / "step-sizes.csv").query("stage == 'fine' and not chosen")
    rows = re.findall(r"(WADA|Adam|AMSGrad|AdamNC) came to ([\d.]+) % in ([^,]+), beside", told)
    shown = re.findall(r"^\| \d[a-d] \| (.*), test accuracy \|.* pp to (\w+): (better|worse) ", text, flags=re.M)
    assert [task for *_, task in rows] == [task for task, *_ in shown]
    for (name, value, task), (_, _, stands) in zip(rows, shown, strict=True):
        behind = BASELINES if stands == "better" else ("wada",)
        tried = fine[(fine["experiment"].map(title_of) == task) & fine["method"].isin(behind)]
        assert float(value) == pytest.approx(100 * tried["test_accuracy"].max(), abs=0.005)
        assert name == label(tried.loc[tried["test_accuracy"].idxmax(), "method"])


def test_the_page_says_where_another_step_size_tests_better():
    table = pd.read_csv(FOLDER / "step-sizes.csv")
    fine = table[table["stage"] == "fine"]
    page = (FOLDER / "README.md").read_text()
    told = page[page.index("The step size that trains best") : page.index("## Cost per batch")]
    names = {panel.experiment for panel in recorded().panels if panel.metric == "test_accuracy"}
    for (name, _), rows in fine[fine["experiment"].isin(names)].groupby(["experiment", "method"]):
        (taken,) = rows.loc[rows["chosen"], "test_accuracy"]
        better = [row for row in rows.itertuples() if row.test_accuracy > taken]
        top = max(better, key=lambda row: row.test_accuracy, default=None)
        other = f", {100 * top.test_accuracy:.2f} % at {top.lr:g}" if top else ""
        assert f"| {100 * taken:.2f} %{other} |" in told, name
        assert f"| {title_of(name)} | {rows['epochs'].max()} | " in told
    for name, again in searched_again(recorded()).items():
        (row,) = (line for line in told.splitlines() if line.startswith(f"| {title_of(name)}, searched again | "))
        for method, one in again.best.items():
            known = of(list(again.tried), method)
            top, first = max(map(last_share, known)), last_share(min(known, key=last_loss))
            assert (one.top, one.accuracy) == (top, first)
            assert f" {100 * first:.2f} %, {100 * top:.2f} % at " in row


def test_the_accuracies_that_are_known_stand_beside_the_best_that_whole_runs_came_to():
    """ResNet-20 on CIFAR-10: what methods end at, and what each came to where it tests best, best first."""
    paths = [FOLDER / "records" / folder / "resnet20-on-cifar10.jsonl.gz" for folder in ("", "anew")]
    every = {run.key: run for path in paths if path.exists() for run in restore(path)[0]}
    tops = [max(of(whole(*every.values()), method), key=last_share) for method in PAPER_METHODS]
    told = [
        f"{100 * last_share(run):.2f} % ({label(run.config['method'])} at {run.config['lr']:g}, "
        f"with a training loss of {last_loss(run):.3f})"
        for run in sorted(tops, key=last_share, reverse=True)
    ]
    page = (FOLDER / "README.md").read_text()
    assert f"by one seed in runs of 200 epochs, they come to\n{', '.join(told)}." in page
    reach = [sum(last_share(run) >= share for run in tops) for share in (0.9125, 0.9216)]
    assert f"\nAll {reach[0]} reach 91.25 %: what keeps accuracies here below that is" in page
    assert f"\n{reach[1]} of 6 reaches 92.16 %: what the others lack" in page
    (row,) = re.findall(r"^\| 6b \| .*, test accuracy \| (.*?) \| [-+±]", page, flags=re.M)
    ends = sorted(cell.strip("*") for cell in row.split(" | "))
    assert f"Here methods end at {ends[0]} to {ends[-1]}, at step sizes\n" in page


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        (
            (0.92, 0.93, 0.94, 0.95, 0.96, 0.9125),
            "All 6 reach 91.25 %: what keeps accuracies here below that is that step sizes are chosen by training "
            "loss.\n4 of 6 reach 92.16 %: what the others lack to that the choice by training loss does not explain, ",
        ),
        (
            (0.92, 0.91, 0.91, 0.91, 0.91, 0.91),
            "1 of 6 reaches 91.25 %: what the others lack to that the choice by training loss does not explain, or "
            "not alone.\nNone of 6 reaches 92.16 %: what they lack to that the choice by training loss does not ",
        ),
    ],
)
def test_it_is_told_whether_accuracies_are_low_by_what_chooses(shares, words, tmp_path):
    """The longest runs of a search tell it, also of one that is done again, and is kept apart."""
    (tmp_path / "records" / "anew").mkdir(parents=True)
    name = "resnet20 on cifar10"
    runs, names = restore(archive_of(FOLDER / "records", name))
    archive(runs, names, archive_of(tmp_path / "records", name))
    one = next(run for run in runs if (run.config["epochs"], run.config["seed"]) == (200, 0))
    made = [
        replace(
            one,
            key=f"made up {place}",
            experiment=f"{name}, fine",
            config=one.config | {"method": method, "lr": 7.0, "epochs": 300},
            curves={metric: 300 * values[-1:] for metric, values in one.curves.items()}
            | {"test_accuracy": [share] * 300},
        )
        for place, (method, share) in enumerate(zip(PAPER_METHODS, shares, strict=True))
    ]
    archive(made, {}, archive_of(tmp_path / "records" / "anew", name))
    text = rebuild(tmp_path)[0].read_text()
    assert "by one seed in runs of 300 epochs" in text
    assert f"{100 * max(shares):.2f} % (" in text
    assert words in text
    archive(made[1:], {}, archive_of(tmp_path / "records" / "anew", name))
    shown = {run.config["epochs"] for run in runs if f"{name}, fine" in names[run.key]}
    told = f"by one seed in runs of {max(shown)} epochs"
    assert told in rebuild(tmp_path)[0].read_text(), "those that all methods have"


def test_walks_are_those_of_the_paper():
    walks = unpack_walks(FOLDER / "records" / "walks.jsonl.gz")
    assert {record.method for record in walks} == set(PAPER_METHODS)
    assert {record.task.T for record in walks} == {10**7}
    assert len({record.task.seed for record in walks if record.task.setting == "stochastic"}) == 8


def test_minutes_are_shared_where_stacks_were_trained_at_once():
    def run(name, start, end, epochs=None):
        when = {"seconds": 60.0 * (end - start), "ended": f"2026-01-01T00:{end:02d}:00+00:00"}
        return Run(f"{name}{start}", name, {"epochs": epochs or end - start}, None, {}, **when)

    runs = [run("mlp on mnist, fine", 0, 4), run("mlp on mnist", 4, 6), run("cnn on cifar10", 2, 10)]
    runs += [replace(each, key=f"{each.key} too") for each in runs] + [Run("old", "mlp on mnist", {}, None, {})]
    assert minutes(runs) == pytest.approx({"mlp on mnist": 2 + 1 + 1, "cnn on cifar10": 1 + 1 + 4})
    assert minutes([]) == {}
    elsewhere = {**run("cnn on cifar10", 0, 6).__dict__, "environment": {"device": "another"}}
    assert minutes([*runs[:2], Run(**elsewhere)]) == pytest.approx({"mlp on mnist": 6, "cnn on cifar10": 6})
    # One that waited for others is not taken to have been as busy as they.
    waited, one = run("cnn on cifar10", 0, 8, epochs=4), run("mlp on mnist", 2, 6, epochs=3)
    runs = [waited, one, replace(one, key="another")]
    assert minutes(runs) == pytest.approx({"mlp on mnist": 3, "cnn on cifar10": 5})


def edited(data, **fields):
    """The first line of an archive with other values, of those that it has."""
    line = json.loads(gzip.decompress(data).splitlines()[0])
    return gzip.compress(json.dumps(line | {key: fields[key] for key in fields if key in line}).encode())


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: b"",
        lambda data: data[: len(data) // 2],
        lambda data: b"not gzip",
        lambda data: gzip.compress(b"{}\n"),
        lambda data: gzip.compress(b"[1]\n"),
        lambda data: gzip.compress(b"{\n"),
        lambda data: gzip.compress(b"\xff\n"),
        lambda data: edited(data, curves=None, t="x"),
        lambda data: edited(data, curves={"train_loss": ["x"]}, x=[["x"]]),
        lambda data: edited(data, config={"lr": 0.1}, regret=None),
        lambda data: edited(data, ended="yesterday", lrs="x"),
        lambda data: edited(data, environment={"commit": 3}, rule=3),
        lambda data: edited(data, experiments="mlp", method=None, T="x"),
        lambda data: edited(data, config={"method": "wada", "lr": 0.1, "seed": 0}, method=None),
        lambda data: edited(data, config={"method": "wada", "lr": 0.1, "seed": 0, "epochs": "200"}, method=None),
        lambda data: edited(data, config={"method": "wada", "lr": "0.1", "seed": 0, "epochs": 2}, method=None),
        lambda data: edited(data, config={"method": "wada", "lr": 0.1, "seed": 0.5, "epochs": 2}, method=None),
        lambda data: edited(data, curves={metric: [] for metric in METRICS}, method=None),
        lambda data: edited(data, seconds="long", method=None),
        lambda data: edited(data, diverged="early", method=None),
        lambda data: edited(data, ended="2026-01-01T00:00:00", method=None),
    ],
)
def test_damaged_archives_are_refused_by_name(tmp_path, spoil):
    for path, read in ((ARCHIVES[0], restore), (FOLDER / "records" / "walks.jsonl.gz", unpack_walks)):
        damaged = tmp_path / path.name
        damaged.write_bytes(spoil(path.read_bytes()))
        with pytest.raises(Refused, match=r"jsonl\.gz: is no archive of"):
            read(damaged)


def test_archives_keep_runs_to_single_precision(tmp_path):
    rng = np.random.default_rng(0)
    curves = {metric: [*rng.lognormal(0, 9, 50).tolist(), None] for metric in ("train_loss", "test_loss")}
    curves |= {metric: [*rng.uniform(size=50).tolist(), None] for metric in ("train_accuracy", "test_accuracy")}
    environment, when = {"commit": "c"}, (12.5, "2026-01-01T00:00:00+00:00")
    runs = [
        Run(
            key,
            "mine",
            {"method": "wada", "lr": 0.1, "seed": 0, "epochs": 51},
            51,
            curves,
            0.25,
            "stacked",
            environment,
            *when,
        )
        for key in "ba"
    ]
    path = archive(runs, {"a": ["x", "mine"]}, tmp_path / "runs.jsonl.gz")
    kept, names = restore(path)
    assert [run.key for run in kept] == ["a", "b"]
    assert names == {"a": ["mine", "x"], "b": ["mine"]}
    assert replace(kept[0], curves=curves) == runs[1]
    np.testing.assert_array_equal(
        np.array(kept[0].curves["train_loss"][:-1], np.float32), np.array(curves["train_loss"][:-1], np.float32)
    )
    assert kept[0].curves["train_loss"][-1] is None
    assert archive(kept, names, tmp_path / "again.jsonl.gz").read_bytes() == path.read_bytes()


# ------------------------------------------------------------------ the experiments


def test_every_panel_has_its_experiment():
    found = {each.name: each for each in paper_experiments(EXPERIMENTS)}
    assert set(found) == {panel.experiment for panel in PANELS}
    for name, each in found.items():
        problem = each.problem
        assert (problem.batch, problem.eps, each.seeds, problem.loss) == (128, 1e-7, tuple(range(8)), "running"), name
        labels = {arm.label for arm in each.arms}
        assert labels == {*OURS, *BASELINES} - {"amsgrad"} | {"amsgrad(debias=True)"}, name
        for called in labels:
            lrs = sorted(arm.lr for arm in each.arms if arm.label == called)
            assert len(lrs) >= 5, name
            assert all(math.isclose(b / a, COARSE, rel_tol=0.01) for a, b in itertools.pairwise(lrs)), name
        if problem.model == "softmax":
            assert (problem.decay, problem.shift, problem.flip, problem.precision) == (0.5, 0.0, False, "float32")
        else:
            assert (problem.decay, problem.epochs, problem.milestones) == (0.0, 200, (80, 120, 160)), name
            assert (problem.shift, problem.flip, problem.factor) == (0.1, problem.dataset != "mnist", 0.1), name


@pytest.mark.parametrize("data", ["mnist", "cifar10", "cifar100"])
def test_lambda_is_the_best_on_the_test_set_and_not_at_an_edge(data):
    tried = pd.read_csv(ROOT / "experiments" / "records" / "softmax_l2.csv")
    tried = tried[tried["dataset"] == data].assign(
        l2=lambda rows: rows["experiment"].str.rpartition(" ")[2].astype(float)
    )
    best = tried.groupby("l2")["test_accuracy"].max()
    (asked,) = paper_experiments(EXPERIMENTS, [f"softmax on {data}"])
    assert asked.problem.l2 == best.idxmax()
    assert best.index.min() < asked.problem.l2 < best.index.max()
    text = (FOLDER / "README.md").read_text()
    assert f"{asked.problem.l2:g} on {data}" in text
    if data == "mnist":  # of which the page says by how little
        first, second = best.sort_values().iloc[[-1, -2]]
        assert "two\n  images of 10,000" in text
        assert round(10_000 * (first - second)) == 2


def test_the_page_says_what_seeds_say_that_did_not_choose():
    """Each row of the first table has the p of these, from the t-test of their differences, adjusted by Holm."""
    finals = recorded().finals
    rows, found = (FOLDER / "README.md").read_text().splitlines(), {}
    for panel in recorded().panels:
        if panel.metric == "test_accuracy":
            own = finals[(finals["experiment"] == panel.experiment) & (finals["seed"] > 0)]
            ends = own[own["epoch"] == own["epoch"].max()].pivot(index="seed", columns="method", values=panel.metric)
            assert len(ends) == 7, "one seed chose"
            for pair in PAIRS:
                found[panel.name, *pair] = scipy_stats.ttest_rel(*(ends[name] for name in pair)).pvalue
    order = sorted(found, key=found.__getitem__)
    raised = np.maximum.accumulate([found[key] * (len(order) - k) for k, key in enumerate(order)])
    adjusted = dict(zip(order, np.minimum(raised, 1), strict=True))
    for panel in {key[0] for key in found}:
        (row,) = [line for line in rows if re.match(rf"\| {panel} \| [A-Z]\S+ on", line)]
        best = next(name for name in BASELINES if f"to {label(name)}:" in row)
        p = float(re.search(r", (\S+)\) \|$", row)[1])
        assert p == pytest.approx(adjusted[panel, "wada", best], rel=0.2, abs=0.006)


def test_records_of_one_seed_of_a_method_are_written_up(tmp_path):
    """All of them chose: of the others nothing can be said, and the rest of the page is there."""
    (tmp_path / "records").mkdir()
    path = shutil.copy(FOLDER / "records" / "mlp-on-cifar10.jsonl.gz", tmp_path / "records")
    runs, names = restore(Path(path))
    gone = {run.key for run in runs if run.config["method"] == "wada" and run.config["seed"] > 0}
    left = [run for run in runs if run.key not in gone]
    archive(left, {run.key: names[run.key] for run in left}, Path(path))
    text = rebuild(tmp_path)[0].read_text()
    (row,) = [line for line in text.splitlines() if line.startswith("| 3b | MLP")]
    assert row.endswith("–) |")


@pytest.mark.parametrize(
    ("p", "text"),
    [(0.0496, "0.0496"), (0.0504, "0.0504"), (0.0460, "0.046"), (0.054, "0.054"), (0.05, "0.05"), (0.045, "0.04"),
     (0.012, "0.01"), (3e-7, "3e-7"), (0.0, "0"), (math.nan, "–")],
)  # fmt: skip
def test_p_is_seen_to_be_above_or_below_the_threshold(p, text):
    assert reproduction._p(p) == text


def test_the_report_shows_no_more_than_the_page(tmp_path):
    """What finer grids might change is not shown there either; and Figure 1 is in it."""
    (tmp_path / "records").mkdir()
    for name in ("softmax-on-cifar10", "walks"):
        shutil.copy(FOLDER / "records" / f"{name}.jsonl.gz", tmp_path / "records")
    page = next(path for path in rebuild(tmp_path) if path.name == "report.html").read_text()
    assert "Figure 1: the synthetic problem" in page
    assert "WADA is better than every other method" not in page
    assert "might gain at a step size between" in page
    evidence = gather(tmp_path)
    searched = dict.fromkeys(evidence.chosen, "train_loss")
    plain = report(evidence.all, tmp_path / "plain.html", searched=searched).read_text()
    assert "might gain at a step size between" not in plain


def test_the_page_says_what_the_rule_of_grids_changes():
    evidence = recorded()
    plain = {each.id: each for each in verdicts(evidence.finals, evidence.walks, evidence.costs)}
    (told,) = re.findall(r"^Without it: (.*)\.$", (FOLDER / "README.md").read_text(), re.MULTILINE)
    for each in told.split("; "):
        claim, verdict, hits, cells = re.fullmatch(r"(C\d+) ([a-z ]+) \((\d+) of (\d+)\)", each).groups()
        outcomes = [cell.outcome for cell in plain[claim].cells]
        assert (plain[claim].verdict, outcomes.count("hit"), len(outcomes)) == (verdict, int(hits), int(cells))
    assert "C4 confirmed (18 of 18)" in told


# ------------------------------------------------------------------ the command


@pytest.fixture
def small(tmp_path):
    """One experiment of each kind, with few step sizes."""
    folder = tmp_path / "small"
    folder.mkdir()
    for model in ("softmax", "mlp"):
        (folder / f"{model}.toml").write_text(
            f'dataset = "mnist"\nmodel = "{model}"\nepochs = 10\nmilestones = [4]\nseeds = 8\n[tuning]\nepochs = 5\n'
            "[methods]\nadam = [0.01]\namsgrad = { lrs = [0.01], debias = true }\nadamnc = [0.01]\nwada = [0.03]\n"
            "wada_v3 = [0.03]\nwada_v4 = [0.03]\n"
        )
    return folder


def test_the_whole_pipeline_in_small(tmp_path, small, one_thread):
    """Stopped in between, it keeps what is done, says so, and goes on; a second time it trains nothing."""
    out = tmp_path / "out"
    with pytest.MonkeyPatch.context() as patch:
        stop_after(5, patch)
        said = call("--quick", "--only", "softmax", "--experiments", small, "-o", out, "--device", "cpu", expect=130)
    assert "the same command continues" in said.output
    kept = {run.key for run in restore(out / "records" / "softmax-on-mnist.jsonl.gz")[0]}
    assert kept
    assert not any(name.startswith("softmax on mnist, unfinished") for name in kept_names(out)), "only the search"
    (out / "runs.db").unlink()  # the archive is enough
    call("--quick", "--only", "softmax", "--experiments", small, "-o", out, "--device", "cpu")
    runs, names = restore(out / "records" / "softmax-on-mnist.jsonl.gz")
    assert kept < {run.key for run in runs}
    finals = [run for run in runs if "softmax on mnist" in names[run.key]]
    assert len(finals) == len(PAPER_METHODS) * 2
    starts = [key for keys, _ in Records(out / "runs.db").attempts() for key in keys]
    assert kept.isdisjoint(starts)
    text = (out / "README.md").read_text()
    assert "they stand in for every dataset" in text
    assert verdict_in(text, "C3") != "**not run**"
    assert verdict_in(text, "C5") == "**not run**"
    (again := tmp_path / "again" / "records" / "anew").mkdir(parents=True)
    shutil.copy(out / "records" / "softmax-on-mnist.jsonl.gz", again)
    call("--quick", "--only", "softmax", "--experiments", small, "-o", tmp_path / "again", "--device", "cpu")
    assert not Records(tmp_path / "again" / "runs.db").attempts(), "all was known from a search that was not over"
    assert "is not over" not in (tmp_path / "again" / "README.md").read_text()
    before = contents(out)
    call("--quick", "--only", "softmax", "--experiments", small, "-o", out, "--device", "cpu")
    assert [key for keys, _ in Records(out / "runs.db").attempts() for key in keys] == starts
    assert contents(out) == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--only", "vgg"], "Invalid only: 'vgg'"),
        (["--experiments", "nowhere"], "there are no experiments in it"),
        (["--every", "0"], "Invalid every: 0"),
        (["--no-train", "-o", "empty"], "there are no records in it"),
        (["--no-train", "-o", "experiments/paper/mlp_mnist.toml"], "it must be a folder that can be written"),
        (["--no-train", "--only", "mlp"], "Invalid only: ['mlp']"),
        (["--no-train", "--device", "cpu"], "Invalid device: 'cpu'"),
        (["--no-train", "--experiments", "elsewhere"], "Invalid experiments: 'elsewhere' (it is for training"),
        (["--no-train", "--every", "20"], "Invalid every: 20 (it is for training"),
        (["--device", "abacus", "--quick"], "Invalid device: 'abacus'"),
    ],
)
def test_what_cannot_be_done_is_refused(words, message, tmp_path, monkeypatch):
    shutil.copytree(EXPERIMENTS, tmp_path / "experiments" / "paper")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["reproduce", *words])
    assert result.exit_code != 0
    assert message in str(result.exception)
    if words[0] in ("--only", "--experiments", "--every"):
        assert [path.name for path in tmp_path.iterdir()] == ["experiments"], "nothing was made for nothing"


@pytest.mark.parametrize(
    ("file", "old", "new", "words"),
    [
        ("mlp_mnist", "[tuning]\n", '[tuning]\nby = "test_accuracy"\n',
         "Invalid by of tuning: 'test_accuracy' (mlp on mnist must be tuned by train_loss"),
        ("cnn_cifar10", "[methods]\n", "[methods]\nmomentum = [0.1]\n",
         "Invalid methods: 'momentum' (cnn on cifar10 must have those of the paper alone: adam, "),
    ],
)  # fmt: skip
def test_what_the_page_has_no_words_for_is_not_trained(file, old, new, words, tmp_path, monkeypatch):
    """A study may have any methods, and choose step sizes by what it likes."""
    folder = tmp_path / "experiments" / "paper"
    shutil.copytree(EXPERIMENTS, folder)
    path = folder / f"{file}.toml"
    path.write_text(path.read_text().replace(old, new))
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["reproduce", "--quick"])
    assert result.exit_code != 0
    assert words in str(result.exception)
    assert [each.name for each in tmp_path.iterdir()] == ["experiments"]


def kept_names(out):
    return {name for several in restore(out / "records" / "softmax-on-mnist.jsonl.gz")[1].values() for name in several}


def ready_to_train(small, **changed):
    (one,) = paper_experiments(small, ["softmax"])
    one = quickly(one)
    return prepare([replace(one, problem=replace(one.problem, **changed))], "cpu")


def test_archives_are_written_after_every_stack(tmp_path, small, monkeypatch, one_thread):
    """A kill leaves them as they were after the last one."""
    written = []
    monkeypatch.setattr(paper_runs, "archive", lambda runs, names, path: written.append((len(list(runs)), names)))
    train(ready_to_train(small), tmp_path / "runs.db", tmp_path)
    counts = [count for count, _ in written]
    assert len(counts) > 3
    assert counts == sorted(counts)
    called = [{name for several in names.values() for name in several} for _, names in written]
    assert called[0] == {"softmax on mnist, coarse"}
    assert "softmax on mnist" in called[-1]
    assert "softmax on mnist, unfinished" not in called[-1]


def test_an_experiment_that_was_changed_keeps_its_old_runs_without_a_name(tmp_path, small, one_thread):
    train(ready_to_train(small), tmp_path / "runs.db", tmp_path)
    before, _ = restore(tmp_path / "softmax-on-mnist.jsonl.gz")
    train(ready_to_train(small, l2=0.5), tmp_path / "runs.db", tmp_path)
    after, names = restore(tmp_path / "softmax-on-mnist.jsonl.gz")
    assert {run.key for run in before} < {run.key for run in after}
    assert {run.config["l2"] for run in after if names[run.key]} == {0.5}
    assert {run.config["l2"] for run in after if not names[run.key]} == {0.0}


def test_what_was_whole_stays_until_a_new_search_is_whole(tmp_path, small, monkeypatch, one_thread):
    """Stopped in between, what is new is kept apart; when it is done it takes the other's place."""
    train(ready_to_train(small), tmp_path / "runs.db", tmp_path)
    path, apart = (folder / "softmax-on-mnist.jsonl.gz" for folder in (tmp_path, tmp_path / "anew"))
    before = path.read_bytes()
    with pytest.MonkeyPatch.context() as patch:
        stop_after(2, patch)
        with pytest.raises(KeyboardInterrupt):
            train(ready_to_train(small, l2=0.5), tmp_path / "runs.db", tmp_path, every=1)
    assert path.read_bytes() == before
    runs, names = restore(apart)
    assert runs
    assert all(run.config["l2"] == 0.5 for run in runs)
    assert {name for several in names.values() for name in several} == {"softmax on mnist, coarse"}
    train(ready_to_train(small, l2=0.5), tmp_path / "other.db", tmp_path, known=[apart])
    assert not apart.exists()
    after, names = restore(path)
    assert {run.config["l2"] for run in after if "softmax on mnist" in names[run.key]} == {0.5}
    assert {run.key for run in runs} < {run.key for run in after}


def test_a_search_that_is_changed_again_keeps_what_it_had(tmp_path, small, one_thread):
    """However often: what was trained for a description in between stays in the archive, without a name."""
    train(ready_to_train(small), tmp_path / "runs.db", tmp_path)
    path, apart = (folder / "softmax-on-mnist.jsonl.gz" for folder in (tmp_path, tmp_path / "anew"))
    for l2 in (0.5, 0.7):
        with pytest.MonkeyPatch.context() as patch:
            stop_after(2, patch)
            with pytest.raises(KeyboardInterrupt):
                train(ready_to_train(small, l2=l2), tmp_path / "other.db", tmp_path, known=[apart][: l2 > 0.5], every=1)
        (tmp_path / "other.db").unlink()
    runs, names = restore(apart)
    assert {run.config["l2"] for run in runs if names[run.key]} == {0.7}
    assert {run.config["l2"] for run in runs if not names[run.key]} == {0.5}
    train(ready_to_train(small, l2=0.7), tmp_path / "other.db", tmp_path, known=[apart])
    assert not apart.exists()
    after, names = restore(path)
    assert {run.key for run in runs} < {run.key for run in after}
    assert {run.config["l2"] for run in after if names[run.key]} == {0.7}


def test_a_search_that_is_taken_up_again_is_as_it_was(tmp_path, small, one_thread):
    """After the description had been what it was before: what was kept apart has waited there."""
    train(ready_to_train(small), tmp_path / "runs.db", tmp_path)
    apart = tmp_path / "anew" / "softmax-on-mnist.jsonl.gz"
    with pytest.MonkeyPatch.context() as patch:
        stop_after(2, patch)
        with pytest.raises(KeyboardInterrupt):
            train(ready_to_train(small, l2=0.5), tmp_path / "runs.db", tmp_path, every=1)
    before = apart.read_bytes()
    train(ready_to_train(small), tmp_path / "runs.db", tmp_path)
    assert apart.read_bytes() == before
    runs, names = restore(apart)
    with pytest.MonkeyPatch.context() as patch:
        stop_after(2, patch)
        with pytest.raises(KeyboardInterrupt):
            train(ready_to_train(small, l2=0.5), tmp_path / "other.db", tmp_path, every=1)
    after, called = restore(apart)
    assert {run.key for run in runs} < {run.key for run in after}, "nothing is trained again"
    assert all({*names[run.key]} <= {*called[run.key]} for run in runs)


def test_records_of_another_kind_are_not_mixed_in(tmp_path, small, one_thread):
    train(ready_to_train(small), tmp_path / "runs.db", tmp_path)
    path = tmp_path / "softmax-on-mnist.jsonl.gz"
    runs, names = restore(path)
    archive([replace(run, config={**run.config, "data": "other"}) for run in runs], names, path)
    with pytest.raises(Refused, match="it holds runs on other data than digits"):
        train(ready_to_train(small), tmp_path / "runs.db", tmp_path)
    curves = {metric: [value / 2 for value in values] for metric, values in runs[0].curves.items()}
    archive([replace(runs[0], curves=curves), *runs[1:]], names, path)
    with pytest.raises(Refused, match=f"run {runs[0].key} is not the one that"):
        train(ready_to_train(small), tmp_path / "runs.db", tmp_path)


def test_finals_are_named_when_all_are_there(tmp_path, small, one_thread):
    prepared = ready_to_train(small)
    train(prepared, tmp_path / "runs.db", tmp_path)
    (more,) = [replace(each, experiment=replace(each.experiment, seeds=(0, 1, 2))) for each in prepared]
    names = paper_runs._names(more, Records(tmp_path / "runs.db"))
    called = [name for several in names.values() for name in several]
    assert called.count("softmax on mnist, unfinished") == 2 * len(PAPER_METHODS)
    assert "softmax on mnist" not in called


def test_walks_and_costs_that_are_there_are_not_lost(tmp_path, monkeypatch):
    """What took long, or was measured elsewhere, is not written over by a trial."""
    monkeypatch.chdir(EXPERIMENTS.parents[1])
    records = tmp_path / "records"
    records.mkdir()
    for name in ("walks.jsonl.gz", "costs.csv"):
        shutil.copy(FOLDER / "records" / name, records)
    before = {path.name: path.read_bytes() for path in records.iterdir()}
    words = ["reproduce", "--quick", "-o", str(tmp_path)]
    refused = CliRunner().invoke(app, [*words, "--only", "synthetic"])
    assert "walks.jsonl.gz: it holds walks other than those" in str(refused.exception)
    assert "costs.csv already: remove it to time every method" in call(*words[1:], "--only", "costs").output
    assert {path.name: path.read_bytes() for path in records.iterdir()} == before


@pytest.mark.parametrize("out", ["", ".", "elsewhere/.."])
def test_a_page_of_somebody_s_own_is_not_written_over(out, tmp_path, monkeypatch):
    """Be it of somebody who has swept, which leaves a file of records, or of a study."""
    shutil.copytree(EXPERIMENTS, tmp_path / "experiments" / "paper")
    (tmp_path / "elsewhere").mkdir()
    page, database = tmp_path / "README.md", tmp_path / "runs.db"
    page.write_text("mine")
    Records(database)
    monkeypatch.chdir(tmp_path)
    told = (
        "README.md: it is not of records that are here, and would be overwritten (use another --out, or move it away)"
    )
    for also, said in (([], told), (["study.toml"], "it is the folder of a study")):
        for name in also:
            (tmp_path / name).touch()
        refused = CliRunner().invoke(app, ["reproduce", "--quick", "--out", out])
        assert said in str(refused.exception)
        assert page.read_text() == "mine"
        assert len([*tmp_path.iterdir()]) == 4 + len(also)


def test_costs_alone_are_no_page(tmp_path, monkeypatch, one_thread):
    monkeypatch.setattr(costs, "MODELS", ("softmax",))
    monkeypatch.chdir(EXPERIMENTS.parents[1])
    said = call("--quick", "--only", "costs", "-o", tmp_path).output
    assert "Page none yet: in " in " ".join(said.split())
    assert [path.name for path in (tmp_path / "records").iterdir()] == ["costs.csv"]


def test_quick_is_the_same_on_digits():
    for each in paper_experiments(EXPERIMENTS):
        quick = quickly(each)
        assert (quick.problem.dataset, quick.arms, quick.name) == ("digits", each.arms, each.name)
        assert quick.problem.model == each.problem.model
        assert max(quick.problem.milestones, default=0) < quick.problem.epochs < 10
    with pytest.raises(Refused, match="mlp on digits does not say how"):
        quickly(experiment({"dataset": "digits", "model": "mlp", "methods": ["adam"], "lrs": [0.1]}))


def test_costs_are_those_of_each_method(tmp_path, monkeypatch, one_thread):
    """A method that dawdles is seen to."""
    train = engine.Stack.train

    def dawdling(stack):
        train(stack)
        stack.seconds[-1] += 1.0 if stack.arms[0].method == "wada" else 0.0

    monkeypatch.setattr(engine.Stack, "train", dawdling)
    monkeypatch.setattr(costs, "MODELS", ("mlp",))
    table = pd.read_csv(costs.measure(tmp_path / "costs.csv", "cpu", quick=True)).set_index("method")
    assert set(table.index) == set(PAPER_METHODS)
    assert table["ms"].idxmax() == "wada"
    assert table["ms"].min() > 0
    assert table["ms"].drop("wada").max() < 1000 < table.loc["wada", "ms"]
