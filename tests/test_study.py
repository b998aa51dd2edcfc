"""Studies: what they ask, what of other experiments they use again, and that their answers follow from the records."""

import math
import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from twins import one_thread as one_thread
from typer.testing import CliRunner

from wagmf import cli
from wagmf.arguments import Refused
from wagmf.cli import app
from wagmf.lab import paper_runs, study
from wagmf.lab.evidence import experiment_of, gather, minutes
from wagmf.lab.paper_runs import archive_of, fewer, paper_experiments, quickly
from wagmf.lab.planning import Prepared, Work
from wagmf.lab.questions import ANSWERS, Beside, Question, answer_of, read_study, standing
from wagmf.lab.records import Records, Run, archive, restore
from wagmf.lab.spec import METRICS, Arm
from wagmf.lab.study import rebuild_study
from wagmf.lab.tuning import search
from wagmf.methods import METHODS
from wagmf.rule import Rule
from wagmf.weights import Polynomial

ROOT = Path(__file__).parent.parent
BEYOND, PAPER = ROOT / "experiments" / "beyond", ROOT / "experiments" / "paper"
RECORDS = ROOT / "reproduction" / "records"
GROWTH = [one for one in paper_experiments(BEYOND) if one.name.startswith("growth, ")]
METHODS_OF = ("adamnc", "wada", "nosadam(eta=2, p2=6)", "nosadam(eta=3, p2=8)")


def call(*words, expect=0):
    result = CliRunner().invoke(app, ["study", *map(str, words)])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == expect, result.output
    return result


def contents(folder, *without):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in ("runs.db", ".gitignore", *without)
    }


# ------------------------------------------------------------------ the folder experiments/beyond


@pytest.mark.parametrize("eta", range(4))
def test_the_methods_are_polynomial_weights_with_the_root_that_belongs_to_them(eta):
    """AdamNC and WADA are η = 0 and η = 1: the same rule but for the name of its weights."""
    labels = dict(zip(METHODS_OF, range(4), strict=True))
    for one in GROWTH:
        (arm,) = {Arm(arm.method, 1.0, arm.options) for arm in one.arms if labels[arm.label] == eta}
        wanted = Rule(Polynomial(eta), p1=2, p2=2 * (eta + 1))
        for name in ("p1", "p2", "beta1", "decay", "debias", "monotone", "nesterov"):
            assert getattr(arm.rule, name) == getattr(wanted, name), name
        for t in (1, 2, 7, 1000):
            assert arm.rule.weights.window(t) == pytest.approx(wanted.weights.window(t), rel=1e-12)


def test_the_answer_says_of_how_many_tasks_it_is():
    (scope,) = [question.scope for question in read_study(BEYOND).questions if question.name == "growth"]
    words = {7: "seven", 8: "eight", 9: "nine", 10: "ten"}
    assert scope == f"{words[len(GROWTH)]} of the paper's {words[len(paper_experiments(PAPER))]} tasks"
    assert (BEYOND / "README.md").read_text().count(scope) == 2


def test_minutes_are_shared_with_what_else_kept_the_device_busy():
    """One of the growth study waited for a network of the reproduction, for most of its time."""
    name = "growth, cnn on cifar10"
    own = [run for run in gather(BEYOND).runs if experiment_of(run.experiment) == name]
    known = [run for path in read_study(BEYOND).archives for run in restore(path)[0]]
    row = re.search(rf"^\| {name} \|.*$", (BEYOND / "README.md").read_text(), flags=re.M)[0]
    told = float(row.split(" | ")[3])
    assert told == pytest.approx(minutes([*own, *known])[name], abs=0.3)
    assert told < 0.5 * minutes(own)[name]


@pytest.mark.parametrize("one", GROWTH, ids=lambda one: one.name)
def test_the_paper_s_runs_are_used_again(one):
    """Of AdamNC and WADA nothing is missing, search and seeds: only η = 2 and 3 are left to train."""
    (like,) = paper_experiments(PAPER, [one.name.removeprefix("growth, ")])
    assert (one.problem, one.seeds, one.tuning) == (like.problem, like.seeds, like.tuning)
    assert one.seeds == tuple(range(8))
    runs = {run.key: run for run in restore(archive_of(RECORDS, like.name))[0]}
    (digest,) = {run.config["data"] for run in runs.values()}

    def prepared(arms):
        return Prepared(replace(one, arms=arms), SimpleNamespace(digest=digest), None, "cuda")

    def loss(stage, arm):
        keys = Work(stage, (arm,), stage.experiment.seeds).keys
        known = [math.inf if runs[key].diverged else runs[key].curves["train_loss"][-1] for key in keys if key in runs]
        return sum(known) / len(known) if len(known) == len(keys) else None

    old = tuple(arm for arm in one.arms if arm.method in ("adamnc", "wada"))
    found = search(prepared(old), loss)
    assert found.missing is None
    assert not found.edges
    chosen = found.chosen.experiment
    assert set(Work(found.chosen, chosen.arms, chosen.seeds).keys) <= set(runs)
    left = search(prepared(one.arms), loss).missing.experiment
    assert left.name == f"{one.name}, coarse"
    assert {arm.label for arm in left.arms} == set(METHODS_OF[2:])
    assert len(left.arms) == 10


def test_the_step_sizes_that_test_best_are_on_record():
    """The search trains nothing, among all step sizes with which a whole run was trained; only seeds are left."""
    (one,) = paper_experiments(BEYOND, ["accuracy, resnet20 on cifar10"])
    (like,) = paper_experiments(PAPER, ["resnet20 on cifar10"])
    assert (one.problem, one.seeds, one.tuning.seeds) == (like.problem, like.seeds, like.tuning.seeds)
    every = {run.key: run for path in read_study(BEYOND).archives for run in restore(path)[0]}
    runs = [run for run in every.values() if run.config["model"] == "resnet20" and run.config["dataset"] == "cifar10"]
    whole = [run for run in runs if run.config["epochs"] == one.problem.epochs and run.config["seed"] == 0]
    (digest,) = {run.config["data"] for run in runs}

    def lacks(stage, arm):
        (key,) = Work(stage, (arm,), stage.experiment.seeds).keys
        return 1 - every[key].curves["test_accuracy"][-1] if key in every else None

    found = search(Prepared(one, SimpleNamespace(digest=digest), None, "cuda"), lacks)
    assert found.missing is None
    assert not found.edges
    for arm in found.chosen.experiment.arms:
        own = {run.config["lr"]: run.curves["test_accuracy"][-1] for run in whole if run.config["method"] == arm.method}
        assert own[arm.lr] == max(own.values())
        listed = [other.lr for other in one.arms if other.method == arm.method]
        assert {*listed} <= {*own}
        assert all(min(abs(lr / near - 1) for near in listed) < 0.01 for lr in own), "all, but for rounding"
    assert len(found.chosen.experiment.arms) == 6


def test_the_folder_follows_from_its_records(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    if (BEYOND / "records").exists():
        shutil.copytree(BEYOND / "records", tmp_path / "records")
    rebuild_study(BEYOND, tmp_path)
    mine = contents(tmp_path)
    right = {name: data for name, data in contents(BEYOND).items() if not name.endswith((".toml", ".py", ".pyc"))}
    assert mine.keys() == right.keys()
    assert not [name for name in right if mine[name] != right[name]], "wagmf study experiments/beyond --no-train"


def test_every_experiment_is_told_of_as_run_or_not_run():
    text = (BEYOND / "README.md").read_text()
    for one in paper_experiments(BEYOND):
        path = archive_of(BEYOND / "records", one.name)
        if f"- {one.name}: " in text:
            assert not path.exists() or one.name not in {name for each in restore(path)[1].values() for name in each}
        else:
            runs, names = restore(path)
            finals = [run for run in runs if one.name in names[run.key]]
            assert len(finals) == len({arm.label for arm in one.arms}) * 8, "eight seeds of every method"
            assert {run.config["epochs"] for run in finals} == {one.problem.epochs}


def test_the_study_in_small_has_fewer_examples_and_as_many_classes():
    found = paper_experiments(BEYOND, ["characters"])
    (data,) = fewer(found, 10).values()
    assert 10 <= len(data.x_train) <= 12
    assert (len(data.x_test), data.classes) == (10, 96)
    assert quickly(found[0]).problem.dataset == found[0].problem.dataset


# ------------------------------------------------------------------ answers, from made-up records

STUDY = """
title = "Mine"
text = "Two tasks."
[[question]]
name = "growth"
asks = "Is linear the right growth?"
metrics = ["train_loss", "test_accuracy"]
reference = "wada"
[question.methods]
adamnc = "η = 0"
wada = "η = 1"
"nosadam(eta=2, p2=6)" = "η = 2"
"""
TASK = """
name = "growth, {model} on mnist"
dataset = "mnist"
model = "{model}"
epochs = 2
seeds = 8
[tuning]
seeds = 1
[methods]
adamnc = [0.01]
wada = [0.1]
nosadam = {{ lrs = [0.1], eta = 2, p2 = 6 }}
"""


@pytest.fixture
def described(tmp_path):
    """A study of two experiments."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "study.toml").write_text(STUDY)
    for model in ("softmax", "mlp"):
        (folder / f"{model}.toml").write_text(TASK.format(model=model))
    return folder


@pytest.fixture
def undrawn(monkeypatch):
    """Without figures, which take longer than all the rest."""
    monkeypatch.setattr(study.plots, "panel_picture", lambda panels, path, **_: path)


def record(folder, losses, tasks=("softmax", "mlp"), seeds=8, beside=0.008, lost=0.0):
    """Archives in which methods end at these losses, by task and method; seeds shift all alike, and a little apart.

    At the neighbours of its step size each would end higher by ``beside``, with an accuracy that is ``lost`` lower: a
    quarter of that might be gained half a step away.
    """
    noise = np.random.default_rng(0)
    for k, task in enumerate(tasks):
        name, runs, names = f"growth, {task} on mnist", [], {}
        shared = noise.normal(0, 0.05, seeds)
        for j, (method, options) in enumerate((("adamnc", {}), ("wada", {}), ("nosadam", {"eta": 2, "p2": 6}))):
            for seed in range(seeds):
                last = losses[k][j] + shared[seed] + noise.normal(0, 0.001)
                for lr in (0.1, 0.05, 0.2) if seed == 0 else (0.1,):
                    ends = last + beside * (lr != 0.1)
                    curves = {metric: [1.0, ends] for metric in METRICS}
                    curves["train_accuracy"] = [0.1, 0.95]
                    curves["test_accuracy"] = [0.1, 0.9 - lost * (lr != 0.1)]
                    config = {"method": method, "method_options": options, "lr": lr, "seed": seed, "data": "d"}
                    key = f"{task}{method}{seed}at{lr}"
                    runs.append(Run(key, name, config | {"model": task, "epochs": 2}, None, curves, seconds=1.0))
                    names[key] = [name] * (lr == 0.1) + [f"{name}, fine"] * (seed == 0)
        (folder / "records").mkdir(exist_ok=True)
        archive(runs, names, archive_of(folder / "records", name))


def answered(text):
    (row,) = [line for line in text.splitlines() if line.startswith("| Is linear the right growth?")]
    return row.split(" | ")[1]


@pytest.mark.parametrize(
    ("losses", "answer", "words"),
    [
        ([(0.6, 0.5, 0.6), (0.6, 0.5, 0.6)], "yes", "every other is shown to be worse than η = 1 somewhere"),
        (
            [(0.6, 0.5, 0.5), (0.6, 0.5, 0.4)],
            "no",
            "η = 2 is shown to be better than η = 1 somewhere, and worse",
        ),
        ([(0.4, 0.5, 0.4), (0.4, 0.5, 0.4)], "no", "η = 0 and η = 2 are shown to be better than η = 1"),
        (
            [(0.6, 0.5, 0.6), (0.6, 0.5, 0.4)],
            "it depends",
            "η = 2 is shown to be better than η = 1 in one place, worse",
        ),
        ([(0.6, 0.5, 0.5), (0.6, 0.5, 0.5)], "open", "nor is every other shown to be worse"),
    ],
)
def test_other_records_have_other_answers(losses, answer, words, described, tmp_path, undrawn):
    record(tmp_path, losses)
    text = rebuild_study(described, tmp_path)[0].read_text()
    assert answered(text) == f"**{answer}**"
    assert words in text
    assert "| 8 |" in text
    assert "Not run yet" not in text
    assert f"matters, the answer is *{answer}*" in text
    assert re.search(rf"choosing step sizes \(7\) it is \*{answer}\*", text)


def test_a_difference_too_small_to_matter_is_told_apart(described, tmp_path, undrawn):
    record(tmp_path, [(0.504, 0.5, 0.504), (0.504, 0.5, 0.504)])
    text = rebuild_study(described, tmp_path)[0].read_text()
    assert answered(text) == "**yes**; *open*, counting only what is large enough to matter"
    assert "matters, the answer is *open*" in text


@pytest.mark.parametrize(("beside", "answer"), [(0.39, "yes"), (0.41, "open")])
def test_a_difference_that_a_finer_grid_might_change_is_not_shown(beside, answer, described, tmp_path, undrawn):
    record(tmp_path, [(0.6, 0.5, 0.6), (0.6, 0.5, 0.6)], beside=beside)
    text = rebuild_study(described, tmp_path)[0].read_text()
    assert answered(text) == f"**{answer}**"
    assert f"| < 0.001 | {beside / 4:#.3g} |" in text


def test_step_sizes_that_another_metric_chose_are_told_of(described, tmp_path, undrawn, monkeypatch):
    """What a finer grid might change is known for the training loss, and for what has chosen."""
    record(tmp_path, [(0.6, 0.5, 0.6), (0.6, 0.5, 0.6)], beside=0.44, lost=0.004)
    assert "by training loss, and p knows nothing of that: a difference in training\nloss is" in written(
        described, tmp_path
    )
    by(described, "mlp", "test_accuracy")
    drawn, draw = [], study.sensitivity
    monkeypatch.setattr(
        study, "sensitivity", lambda curves, metric, lrs: drawn.append(metric) or draw(curves, metric, lrs)
    )
    text = written(described, tmp_path)
    assert "by training loss (in *growth, mlp on mnist* by test accuracy), and p knows" in text
    assert "a difference in training\nloss, or in what has chosen, is shown only" in text
    assert sorted(drawn) == ["test_accuracy", "train_loss"]
    rows = [line.split(" | ") for line in text.splitlines() if line.count(" | ") == 9]
    slacks = {metric: [row[6] for row in rows if row[1] == metric] for metric in ("training loss", "test accuracy")}
    assert slacks == {"training loss": ["0.110"] * 4, "test accuracy": ["–"] * 2 + ["0.10\N{NO-BREAK SPACE}pp"] * 2}
    assert {row[9] for row in rows if row[1] == "training loss"} == {"open |"}
    table = pd.read_csv(tmp_path / "step-sizes.csv")
    assert dict(zip(table["experiment"], table["by"], strict=True)) == {
        "growth, softmax on mnist": "train_loss",
        "growth, mlp on mnist": "test_accuracy",
    }
    assert table["test_accuracy"].tolist() == [0.9 if chosen else 0.896 for chosen in table["chosen"]]
    by(described, "softmax", "test_accuracy")
    assert "grid, by test accuracy, and p knows" in written(described, tmp_path)


def test_metrics_that_chose_step_sizes_are_told_apart():
    (one, *_), names = GROWTH, {"a": "train_loss", "b": "test_accuracy", "c": "train_loss", "d": "test_loss"}
    found = [replace(one, name=name, tuning=replace(one.tuning, by=by)) for name, by in names.items()]
    assert study._chosen_by(found) == "by training loss (in *b* by test accuracy; in *d* by test loss)"


def test_step_sizes_that_are_not_the_best_by_what_is_to_choose_them_are_not_taken(described, tmp_path, undrawn):
    """As after somebody has changed what is to choose, and trained nothing since."""
    record(tmp_path, [(0.6, 0.5, 0.6), (0.6, 0.5, 0.6)], lost=-0.004)
    assert "Not run yet" not in written(described, tmp_path)
    by(described, "mlp", "test_accuracy")
    text = written(described, tmp_path)
    assert answered(text) == "**yes** (provisional)"
    words = "the step size of η = 0, η = 1 and η = 2 is not the best by test accuracy, by which its file has it chosen"
    assert (
        f"- growth, mlp on mnist: 30 runs are recorded, those of its search for step sizes included; {words}." in text
    )


def test_a_step_size_at_which_a_seed_diverged_has_no_mean(described, tmp_path, undrawn):
    record(tmp_path, [(0.6, 0.5, 0.6), (0.6, 0.5, 0.6)])
    path = archive_of(tmp_path / "records", "growth, mlp on mnist")
    runs, names = restore(path)
    lost = [replace(run, curves={metric: [1.0, None] for metric in METRICS}, diverged=2)
            if run.config["lr"] == 0.2 else run for run in runs]  # fmt: skip
    archive(lost, names, path)
    written(described, tmp_path)
    table = pd.read_csv(tmp_path / "step-sizes.csv").set_index("experiment").loc["growth, mlp on mnist"]
    assert (
        table["train_loss"].isna().tolist() == table["test_accuracy"].isna().tolist() == (table["lr"] == 0.2).tolist()
    )


def by(folder, task, metric):
    path = folder / f"{task}.toml"
    path.write_text(path.read_text().replace("[tuning]", f'[tuning]\nby = "{metric}"'))


def written(folder, out):
    return rebuild_study(folder, out)[0].read_text()


def test_a_best_at_the_edge_of_its_grid_shows_nothing(described, tmp_path, undrawn):
    record(tmp_path, [(0.6, 0.5, 0.6), (0.6, 0.5, 0.6)])
    for task in ("softmax", "mlp"):
        path = archive_of(tmp_path / "records", f"growth, {task} on mnist")
        runs, names = restore(path)
        archive([run for run in runs if run.config["lr"] > 0.05], names, path)
    assert answered(rebuild_study(described, tmp_path)[0].read_text()) == "**open**"


def test_the_numbers_are_those_of_the_records(described, tmp_path):
    record(tmp_path, [(0.6, 0.5, 0.4), (0.6, 0.5, 0.4)])
    text = rebuild_study(described, tmp_path)[0].read_text()
    runs = restore(archive_of(tmp_path / "records", "growth, mlp on mnist"))[0]
    ends = {
        method: np.array(
            [run.curves["train_loss"][-1] for run in runs if (run.config["method"], run.config["lr"]) == (method, 0.1)]
        )
        for method in ("adamnc", "wada", "nosadam")
    }
    for end in ends.values():
        assert f"| {end.mean():.4f} ± {end.std(ddof=1):.4f} | 90.00 ± 0.00 % |" in text
    apart = ends["nosadam"].mean() - ends["wada"].mean()
    assert f"| training loss | η = 2 | {apart:+#.3g}".replace("-", "−") in text
    assert "after Holm over 4 and 4" in text
    assert (tmp_path / "figures" / "growth.svg").exists()
    assert (tmp_path / "figures" / "growth-step-sizes.png").exists()


def test_what_is_missing_is_named_and_the_answer_is_provisional(described, tmp_path, undrawn):
    record(tmp_path, [(0.6, 0.5, 0.6)], ["softmax"])
    text = rebuild_study(described, tmp_path)[0].read_text()
    assert answered(text) == "**yes** (provisional)"
    assert "Of 2 experiments 1 is not complete" in text
    assert "- growth, mlp on mnist: nothing is recorded under its name yet." in text
    record(tmp_path, [(0.6, 0.5, 0.6)], ["mlp"])
    path = archive_of(tmp_path / "records", "growth, mlp on mnist")
    runs, _ = restore(path)
    searched = [run for run in runs if run.config["method"] != "nosadam" and run.config["lr"] == 0.05]
    archive(searched, {run.key: ["growth, mlp on mnist, coarse"] for run in searched}, path)
    text = rebuild_study(described, tmp_path)[0].read_text()
    words = "2 runs are recorded, those of its search for step sizes included; of η = 2 there is none"
    assert f"- growth, mlp on mnist: {words}." in text


def test_a_method_that_diverged_more_often_is_not_better(described, tmp_path, undrawn):
    record(tmp_path, [(0.6, 0.5, 0.4), (0.6, 0.5, 0.4)])
    for task in ("softmax", "mlp"):
        path = archive_of(tmp_path / "records", f"growth, {task} on mnist")
        runs, names = restore(path)
        lost = [replace(run, curves={metric: [1.0, None] for metric in METRICS}, diverged=2)
                if run.config["method"] == "nosadam" and run.config["seed"] == 3 else run for run in runs]  # fmt: skip
        archive(lost, names, path)
    text = rebuild_study(described, tmp_path)[0].read_text()
    assert answered(text) == "**open**"
    assert "(1 of 8 diverged)" in text
    assert "nan" not in text


def test_an_experiment_with_one_method_fewer_is_not_whole(described, tmp_path, undrawn):
    """As after a method was added to its file."""
    record(tmp_path, [(0.6, 0.5, 0.6), (0.6, 0.5, 0.6)])
    path = archive_of(tmp_path / "records", "growth, mlp on mnist")
    runs, names = restore(path)
    archive([run for run in runs if run.config["method"] != "nosadam"], names, path)
    text = rebuild_study(described, tmp_path)[0].read_text()
    assert "Of 2 experiments 1 is not complete" in text
    assert "- growth, mlp on mnist: 20 runs are recorded" in text
    assert answered(text) == "**yes** (provisional)"


def test_a_folder_without_records_is_refused(described, tmp_path):
    with pytest.raises(Refused, match="records: there are no records in it"):
        rebuild_study(described, tmp_path)
    assert not (tmp_path / "README.md").exists()


@pytest.mark.parametrize(
    ("stands", "answer"),
    [
        ({}, "not run"),
        ({"a": (1, 0), "b": (0, 1)}, "no"),
        ({"a": (1, 1), "b": (0, 1)}, "it depends"),
        ({"a": (1, 1), "b": (2, 0)}, "no"),
        ({"a": (0, 2), "b": (0, 1)}, "yes"),
        ({"a": (0, 2), "b": (0, 0)}, "open"),
        ({"a": (0, 0)}, "open"),
    ],
)
def test_the_rule_of_an_answer(stands, answer):
    assert answer_of({name: {"better": b, "worse": w} for name, (b, w) in stands.items()}) == answer
    assert answer in ANSWERS


def test_standing_counts_every_comparison():
    found = ("better", "open", "level")
    cells = [Beside("e", "train_loss", "a", outcome, 0.1, 0, 0, 0, 0, 8, 1.0) for outcome in found]
    assert standing(cells)["a"] == {"better": 1, "worse": 0, "level": 1, "open": 1}
    assert standing(cells, large=True)["a"] == {"better": 0, "worse": 0, "level": 2, "open": 1}


# ------------------------------------------------------------------ what a study says of itself


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            'name = "growth"',
            'name = "grwth"',
            "Invalid name: 'grwth' (experiments must be called 'grwth, …'; there are 'growth, ",
        ),
        ('reference = "wada"', 'reference = "adam"', "Invalid reference: 'adam' (it is no method of growth, "),
        ('reference = "wada"', "", "Invalid reference: None (the question must say it)"),
        ('"test_accuracy"', '"accuracy"', "Invalid metric: 'accuracy'"),
        ('metrics = ["train_loss", "test_accuracy"]', 'metrics = "train_loss"', "metrics must be a list"),
        ('"test_accuracy"', '"train_loss"', "Invalid metric: 'train_loss' (it stands there twice)"),
        ('adamnc = "η = 0"', 'admnc = "η = 0"', "Invalid method: 'admnc' (growth has adamnc"),
        ('title = "Mine"', "title = 3", "Invalid title: 3 (title must be text)"),
        ('title = "Mine"', 'known = ["nowhere"]', "Invalid known: ['nowhere']"),
        ("[[question]]", "[question]", "write [[question]] above each of them"),
        ('adamnc = "η = 0"', "adamnc = 0", "methods must be a table"),
        ('adamnc = "η = 0"', 'adamnc = "a | b"', "Invalid method: 'a | b' (it stands in tables"),
        ("asks =", "ask =", "Invalid key of question: 'ask'"),
        ("title", "title =", "is not TOML"),
    ],
)
def test_a_study_that_makes_no_sense_is_refused(old, new, words, described, tmp_path, undrawn):
    (described / "study.toml").write_text(STUDY.replace(old, new, 1))
    with pytest.raises(Refused) as error:
        rebuild_study(described, tmp_path)
    assert words in str(error.value)
    assert "study.toml" in str(error.value)


@pytest.mark.parametrize("more", [[], ["--no-train"]])
def test_a_question_that_cannot_be_asked_is_refused_before_training(more, described, tmp_path):
    (described / "study.toml").write_text(STUDY.replace('name = "growth"', 'name = "grwth"', 1))
    result = CliRunner().invoke(app, ["study", str(described), "--quick", "-o", str(tmp_path / "out"), *more])
    assert "Invalid name: 'grwth'" in str(result.exception)
    assert not (tmp_path / "out").exists()


def test_an_experiment_of_which_nothing_is_asked_is_refused(described, tmp_path):
    (described / "more.toml").write_text(TASK.format(model="cnn").replace("growth, ", ""))
    with pytest.raises(Refused, match="no question is asked of cnn on mnist"):
        rebuild_study(described, tmp_path)


def test_questions_of_the_folder_can_be_read():
    read = read_study(BEYOND)
    assert [each.name for each in read.questions] == ["growth", "characters", "accuracy"]
    assert [path.resolve() for path in read.known] == [RECORDS]
    assert set(read.questions[0].methods) == set(METHODS_OF)
    assert Question("a", "?", ("train_loss",), "wada").called("adam") == "adam" in METHODS


def test_archives_are_known_also_of_searches_that_are_not_over(described):
    (described / "study.toml").write_text(STUDY.replace("title", 'known = ["old"]\ntitle', 1))
    kept = [described / "old" / name for name in ("a.jsonl.gz", "anew/a.jsonl.gz")]
    for path in (*kept, described / "old" / "walks.jsonl.gz", described / "old" / "costs.csv"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert read_study(described).archives == kept


def test_what_is_known_is_told_where_only_a_search_that_is_not_over_has_it(described, tmp_path, monkeypatch):
    (described / "study.toml").write_text(STUDY.replace("title", 'known = ["old", "none"]\ntitle', 1))
    (described / "old" / "anew").mkdir(parents=True)
    (described / "none").mkdir()
    shutil.copy(archive_of(RECORDS, "mlp on mnist"), described / "old" / "anew")

    def stopped(prepared, folder, every, known):
        assert [path.parent.name for path in known] == ["anew"]
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_prepared", lambda *_: [])
    monkeypatch.setattr(cli, "_train_some", stopped)
    monkeypatch.setattr(cli, "_err", Console(quiet=True))
    said = call(described, "-o", tmp_path / "out", expect=130).output.replace("\n", "")
    assert said.count("no runs: there are no archives in") == 1
    assert str(described / "none") in said


def test_who_watches_knows_what_chooses_in_each_experiment(described, tmp_path, monkeypatch):
    by(described, "mlp", "test_accuracy")
    seen = []
    monkeypatch.setattr(paper_runs, "train", lambda *_, watch, **__: seen.append(watch._chosen_by))
    cli._train_some([SimpleNamespace(experiment=one) for one in paper_experiments(described)], tmp_path, 1, [])
    assert seen == [{"growth, mlp on mnist": "test_accuracy", "growth, softmax on mnist": "train_loss"}]


# ------------------------------------------------------------------ the command

SMALL = """
dataset = "mnist"
model = "softmax"
epochs = 10
seeds = 8
[tuning]
seeds = 1
"""


def test_the_whole_study_in_small(tmp_path, monkeypatch, one_thread):
    """What another experiment has trained is not trained again, and the page follows from the study's own records."""
    monkeypatch.chdir(tmp_path)
    paper, mine = tmp_path / "paper", tmp_path / "mine"
    for folder in (paper, mine):
        folder.mkdir()
    asked = STUDY.replace("title", 'known = ["../paper/records"]\ntitle', 1)
    old = "[methods]\nadamnc = [0.1]\nwada = [1]\n"
    (paper / "study.toml").write_text(STUDY.replace('"nosadam(eta=2, p2=6)" = "η = 2"\n', ""))
    (paper / "softmax.toml").write_text(f'name = "growth, old"\n{SMALL}{old}')
    call(paper, "--quick", "-o", paper, "--device", "cpu")
    (mine / "study.toml").write_text(asked)
    new = "nosadam = { lrs = [1], eta = 2, p2 = 6 }\n"
    (mine / "softmax.toml").write_text(f'name = "growth, softmax on mnist"\n{SMALL}{old}{new}')
    said = call(mine, "--quick", "--device", "cpu").output.replace("\n", "")
    out = tmp_path / "mine-quick"
    assert f"Wrote     {out.name}/README.md" in said
    trained = {key for keys, _ in Records(out / "runs.db").attempts() for key in keys}
    runs, names = restore(archive_of(out / "records", "growth, softmax on mnist"))
    assert {run.config["method"] for run in runs if run.key in trained} == {"nosadam"}
    again = [run for run in runs if run.key not in trained]
    assert {run.config["method"] for run in again} == {"adamnc", "wada"}
    finals = [run for run in runs if "growth, softmax on mnist" in names[run.key]]
    assert len(finals) == 3 * 2
    text = (out / "README.md").read_text()
    assert answered(text) != "**not run**"
    assert f"| growth, softmax on mnist | {len(runs)} | {len(again)} |" in text
    assert "the pipeline tried out" in text
    assert "Known" not in said
    shutil.rmtree(paper / "records")
    (paper / "records").mkdir()
    assert "Known     no runs: there are no archives in " in call(mine, "--quick", "--device", "cpu").output
    shutil.copytree(out / "records", tmp_path / "alone" / "records")
    call(mine, "--no-train", "-o", tmp_path / "alone")
    assert contents(tmp_path / "alone") == contents(out)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "study.toml: cannot be read"),
        (["mine", "--every", "0"], "Invalid every: 0"),
        (["mine", "--no-train", "--only", "mlp"], "Invalid only: ['mlp']"),
        (["mine", "--only", "vgg", "--quick"], "Invalid only: 'vgg'"),
        (["mine", "--no-train", "-o", "empty"], "empty/records: there are no records in it"),
        (["mine", "--no-train", "--quick"], "mine-quick/records: there are no records in it"),
    ],
)
def test_what_cannot_be_done_is_refused(words, message, described, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Refused) as error:
        call(*words)
    assert message in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"], "nothing was made for nothing"
