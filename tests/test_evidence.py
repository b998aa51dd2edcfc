"""Evidence: what the archives of a folder say together; where they contradict each other, that is refused."""

import gzip
import json
import shutil

import pytest

from wagmf.arguments import Refused
from wagmf.lab.evidence import anew_archives, gather
from wagmf.lab.records import Run, archive
from wagmf.lab.spec import METRICS

NAME = "mlp on mnist"
COSTS = "model,method,ms,device\nmlp,adam,0.5,cpu\ncnn,adam,0.25,cpu\nmlp,wada,2,cpu\n"


def run(key, end=0.5, **config):
    shared = {"dataset": "mnist", "model": "mlp", "epochs": 2, "method": "wada", "lr": 0.1, "seed": 0}
    curves = {metric: [0.75, end] for metric in METRICS}
    return Run(
        key, NAME, shared | config, None, {m: v[:1] * (config.get("epochs", 2) - 1) + v[1:] for m, v in curves.items()}
    )


@pytest.fixture
def records(tmp_path):
    (tmp_path / "records" / "anew").mkdir(parents=True)
    return tmp_path / "records"


def put(path, *runs, **names):
    return archive(runs, names, path)


@pytest.mark.parametrize("place", ["b.jsonl.gz", "anew/b.jsonl.gz"])
def test_a_run_is_the_same_in_all_archives(place, records):
    put(records / "a.jsonl.gz", run("k", 1 / 3))
    put(records / place, run("k", 1 / 3), run("l", seed=1))
    found = gather(records.parent)
    assert [each.key for each in (*found.runs, *found.anew)] == ["k", "l"]
    put(records / place, run("k", 0.25), run("l", seed=1))
    with pytest.raises(Refused) as refused:
        gather(records.parent)
    told = f"{records / place}: run k has other curves in {records / 'a.jsonl.gz'} (remove one of them)"
    assert str(refused.value) == told


def test_curves_that_single_precision_does_not_tell_apart_are_the_same(records):
    path = put(records / "a.jsonl.gz", run("k", 1 / 3))
    line = json.loads(gzip.decompress(path.read_bytes()))
    line["curves"] = run("k", 1 / 3).curves
    (records / "b.jsonl.gz").write_bytes(gzip.compress(json.dumps(line).encode()))
    assert len(gather(records.parent).runs) == 1


@pytest.mark.parametrize("place", ["a.jsonl.gz", "b.jsonl.gz", "anew/b.jsonl.gz"])
def test_a_run_is_there_under_one_key(place, records):
    """It would count twice; that its data were moved makes it no other."""
    twice = [run("k"), run("l", dataset="data/mnist.npz")]
    put(records / place, twice[1])
    put(records / "a.jsonl.gz", *twice[: 1 + (place == "a.jsonl.gz")])
    with pytest.raises(Refused) as refused:
        gather(records.parent)
    told = f"{records / place}: run l has the configuration of run k in {records / 'a.jsonl.gz'} (remove one of them)"
    assert str(refused.value) == told


def test_what_is_kept_apart_has_no_other_names_for_what_is_shown(records):
    """But it has one for what is kept without, of a search that was given up, and then taken up again."""
    put(records / "a.jsonl.gz", run("k"), run("m", seed=2), run("n", seed=3), m=[], n=[])
    again = {"k": ["mine"], "l": [f"{NAME}, fine"], "m": [f"{NAME}, fine"], "n": []}
    put(records / "anew" / "a.jsonl.gz", run("k"), run("l", seed=1), run("m", seed=2), run("n", seed=3), **again)
    found = gather(records.parent)
    assert found.names == again | {"k": [NAME]}
    assert [each.key for each in found.runs] == ["k", "n"]
    assert [each.key for each in found.anew] == ["m", "l"]


@pytest.mark.parametrize(("what", "value"), [("epochs", 3), ("l2", 0.5), ("data", "d"), ("flip", True)])
def test_a_name_is_of_one_problem(what, value, records):
    for one in ("a", "b"):
        runs = run("k"), run("l", seed=1, **{what: value})
        put(records / "a.jsonl.gz", *runs[: 2 if one == "a" else 1])
        put(records / "b.jsonl.gz", runs[1])
        with pytest.raises(Refused) as refused:
            gather(records.parent)
        assert f"{records / 'a.jsonl.gz'}: {NAME} is of two problems: {what} is {value!r} (run l)" in str(
            refused.value
        ) or f"{records / 'b.jsonl.gz'}: {NAME} is of two problems: {what} is {value!r} (run l)" in str(refused.value)
    put(records / "a.jsonl.gz", run("k"), run("l", seed=1, **{what: value}), l=[f"{NAME}, fine"])
    put(records / "b.jsonl.gz", run("m", seed=2, **{what: value}), m=[])
    assert len(gather(records.parent).runs) == 3, "a stage of the search, and what is kept without a name"


def test_the_same_data_may_lie_elsewhere(records):
    put(records / "a.jsonl.gz", run("k"), run("l", seed=1, dataset="digits"), k=["mine"], l=["mine"])
    assert list(gather(records.parent).all.experiments) == ["mine"]
    for place in ("digits", "data/mnist.npz"):
        put(records / "a.jsonl.gz", run("k", dataset=place))
        assert list(gather(records.parent).all.experiments) == [NAME]


@pytest.mark.parametrize(
    ("what", "value", "right"),
    [
        ("method", "momentum", "'momentum' (method must be wada or wada_v3 or wada_v4 or adam or amsgrad or adamnc)"),
        ("model", "cnn", "'cnn' (model must be mlp)"),
        ("dataset", "cifar10", "'cifar10' (dataset must be mnist)"),
    ],
)
@pytest.mark.parametrize("place", ["a.jsonl.gz", "anew/a.jsonl.gz"])
def test_runs_of_the_paper_s_experiments_are_of_what_these_are(what, value, right, place, records):
    path = put(records / place, run("k", **{what: value}), k=["mine", f"{NAME}, fine"])
    with pytest.raises(Refused) as refused:
        gather(records.parent)
    assert str(refused.value) == f"{path}: run k of {NAME}, fine: Invalid {what}: {right}"
    put(records / place, run("k", **{what: value}), k=["mine", f"mine, {NAME}"])
    assert gather(records.parent).names == {"k": ["mine", f"mine, {NAME}"]}


def test_archives_are_in_folders(records):
    shutil.rmtree(records / "anew")
    (records / "anew").touch()
    with pytest.raises(Refused, match="anew: it must be a folder of archives"):
        anew_archives(records.parent)
    shutil.rmtree(records)
    records.touch()
    with pytest.raises(Refused, match="records: it must be a folder of archives"):
        gather(records.parent)


def test_what_is_kept_apart_are_runs(records):
    put(records / "anew" / "a.jsonl.gz")
    with pytest.raises(Refused, match=r"a\.jsonl\.gz: is no archive of runs: it holds none"):
        gather(records.parent)
    (records / "anew" / "walks.jsonl.gz").touch()
    with pytest.raises(Refused, match=r"walks\.jsonl\.gz: only runs are kept here \(walks belong into .*records\)"):
        gather(records.parent)


def test_costs_are_numbers(records):
    (records / "costs.csv").write_text(COSTS)
    assert gather(records.parent).costs["ms"].tolist() == [0.5, 0.25, 2.0]


@pytest.mark.parametrize("ms", ["", "fast", "0", "-1", "nan", "inf", "True"])
def test_a_cost_that_is_none_is_refused(ms, records):
    (records / "costs.csv").write_text(COSTS.replace("0.25", ms))
    with pytest.raises(Refused) as refused:
        gather(records.parent)
    told = f"{records / 'costs.csv'}: line 3: Invalid ms: {ms!r} (ms must be a finite number > 0)"
    assert str(refused.value) == told


def test_a_cost_is_there_once(records):
    (records / "costs.csv").write_text(COSTS + "mlp,adam,0.75,cuda\n")
    with pytest.raises(Refused, match=r"costs\.csv: line 5: mlp, adam is in line 2, too \(it must be there once\)"):
        gather(records.parent)
