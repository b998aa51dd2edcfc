"""The search for step sizes: which ones are tried, in which order, what is chosen, and that it goes on where it was."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from sweeps import ready, stop_after, vectors
from twins import one_thread as one_thread
from typer.testing import CliRunner

from wagmf.arguments import Refused
from wagmf.cli import app
from wagmf.lab.compare import compare
from wagmf.lab.planning import prepare
from wagmf.lab.records import Records, Run
from wagmf.lab.spec import METRICS, Arm, Tuning, address, experiment
from wagmf.lab.tuning import COARSE, next_rates, recorded, search, tune

GRID = (0.01, 0.0316, 0.1, 0.316, 1.0)


def searched(best, grid=GRID, factor=COARSE, known=()):
    """Every step size that is tried, in order, when the loss is least at ``best``."""
    tried, order = {lr: abs(math.log(lr / best)) for lr in known}, []
    while wanted := next_rates(tried, grid, factor):
        assert not set(wanted) & set(tried), "nothing is tried twice"
        order += wanted
        tried |= {lr: abs(math.log(lr / best)) for lr in wanted}
    return order


@pytest.mark.parametrize(
    ("best", "beyond"),
    [
        (0.1, []),
        (0.03, []),
        (1.5, [3.16]),
        (1e-3, [0.00316, 0.001, 0.000316]),
        (50.0, [3.16, 10.0, 31.6, 100.0]),
        (1e-9, [0.00316, 0.001, 0.000316, 0.0001, 3.16e-05]),  # not without end
        (1e9, [3.16, 10.0, 31.6, 100.0, 316.0]),
    ],
)
def test_the_grid_is_extended_until_its_best_is_inside(best, beyond):
    assert searched(best) == [*GRID, *beyond]


@pytest.mark.parametrize(("first", "second"), [(1.0, 0.001), (0.01, 31.6)])
def test_a_second_valley_beyond_an_edge_is_found(first, second):
    """The best of the grid is inside, and losses fall towards an edge: what is beyond may be better still."""
    tried, grid = {}, (0.00316, *GRID, 3.16, 10.0)
    while wanted := next_rates(tried, grid, COARSE):
        tried |= {lr: min(abs(math.log(lr / first)) + 0.5, abs(math.log(lr / second))) for lr in wanted}
    assert min(grid, key=tried.get) == first
    assert min(tried, key=tried.get) == second


def test_both_edges_are_gone_beyond_at_once():
    tried = {0.01: 0.1, 0.0316: 0.5, 0.1: 0.6, 0.316: 0.5, 1.0: 0.2}
    assert next_rates(tried, GRID, COARSE) == (0.00316, 3.16)
    assert next_rates({0.1: 0.5}, [0.1], COARSE) == (0.0316, 0.316)


def test_noise_where_nothing_is_learned_is_not_followed():
    """At large step sizes losses may stay at that of guessing, a little up or down."""
    tried = {0.01: 0.5, 0.0316: 0.3, 0.1: 0.6, 0.316: 2.303, 1.0: 2.302}
    assert next_rates(tried, GRID, COARSE) == ()


@pytest.mark.parametrize(
    ("tried", "best"),
    [
        ({0.01: 0.5, 0.0316: 0.4, 0.1: 0.3, 0.316: 0.1, 1.0: 0.1}, 0.316),
        ({0.01: 0.1, 0.0316: 0.1, 0.1: 0.3, 0.316: 0.4, 1.0: 0.5}, 0.0316),
    ],
)
def test_of_equals_one_inside_is_better_than_one_at_the_edge(tried, best):
    one, _ = prepared_for({}, epochs=50, fine_epochs=200)
    found = search(one, lambda prepared, arm: tried.get(arm.lr, 0.6))
    assert set(found.coarse["adam"]) == set(GRID)
    assert best in found.fine["adam"]
    assert next_rates({0.1: 0.2, 1.0: 0.2}, [0.1, 1.0], COARSE) == (0.0316,), "of two, both are at the edge"


def test_a_method_that_diverges_everywhere_ends_at_the_smallest_that_was_tried():
    one, _ = prepared_for({}, epochs=50, fine_epochs=200)
    found = search(one, lambda prepared, arm: math.inf)
    assert found.edges == ("adam", "wada")
    assert found.chosen.experiment.arms[0].lr == min(found.fine["adam"]) < min(found.coarse["adam"])


def test_of_equals_the_middle_one_is_the_best():
    """Accuracies may all be the same: nothing falls towards an edge, and the choice is not at one."""
    one, _ = prepared_for({})
    found = search(one, lambda prepared, arm: 0.0)
    assert set(found.coarse["adam"]) == set(GRID)
    assert found.chosen.experiment.arms[0].lr == pytest.approx(0.1)
    assert found.edges == ()


def test_where_all_diverges_smaller_ones_are_tried():
    tried = dict.fromkeys(GRID, math.inf)
    assert next_rates(tried, GRID, COARSE) == (0.00316,)
    assert next_rates(tried | {0.00316: 0.3, 0.001: 0.4}, GRID, COARSE) == ()


def test_one_that_diverges_is_an_edge_that_was_tried():
    assert next_rates({0.1: 0.5, 1.0: 0.2, 10.0: math.inf}, (0.1, 1.0, 10.0), COARSE) == ()


def prepared_for(best, **tuning):
    """An experiment whose final loss is known, and how often each arm was asked for."""
    table = {"dataset": "digits", "model": "softmax", "methods": ["adam", "wada"], "lrs": list(GRID), "seeds": 8}
    one = prepare([experiment(table | {"epochs": 200, "milestones": [80], "tuning": tuning})], "cpu")[0]

    def loss(prepared, arm):
        return abs(math.log(arm.lr / best[arm.method])) + prepared.experiment.problem.epochs / 1e6

    return one, loss


def test_the_second_stage_is_fine_and_around_the_first_ones_best():
    one, loss = prepared_for({"adam": 0.02, "wada": 3.0})
    found = search(one, loss)
    assert found.missing is None
    assert found.edges == ()
    assert {arm.method: arm.lr for arm in found.chosen.experiment.arms} == {"adam": 0.0211, "wada": 3.16}
    assert set(found.coarse["wada"]) == {*GRID, 3.16, 10.0}
    assert set(found.fine["adam"]) == {*GRID, 0.014, 0.0211, 0.0474, 0.0711}
    assert found.chosen.experiment.seeds == tuple(range(8))
    assert found.chosen.experiment.tuning is None


def test_the_second_stage_begins_as_far_below_as_is_asked():
    one, loss = prepared_for({"adam": 0.1, "wada": 0.1}, epochs=50, fine_epochs=200, below=4)
    assert sorted(search(one, loss).fine["adam"]) == [0.0198, 0.0296, 0.0444, 0.0667, 0.1, 0.15, 0.225]


def test_the_second_stage_begins_as_far_above_as_is_asked():
    one, loss = prepared_for({"adam": 0.1, "wada": 0.1}, epochs=50, fine_epochs=200, above=3)
    assert sorted(search(one, loss).fine["adam"]) == [0.0444, 0.0667, 0.1, 0.15, 0.225, 0.338]


def test_stages_of_different_length_do_not_share_losses():
    one, loss = prepared_for({"adam": 0.1, "wada": 0.1}, epochs=50, fine_epochs=200, seeds=2)
    asked = []

    def noting(prepared, arm):
        of = prepared.experiment
        asked.append((of.name, of.problem.epochs, of.problem.milestones, of.seeds, arm.lr))
        return loss(prepared, arm)

    found = search(one, noting)
    assert {row[:4] for row in asked} == {
        ("softmax on digits, coarse", 50, (20,), (0, 1)),
        ("softmax on digits, fine", 200, (80,), (0, 1)),
    }
    assert sorted(found.fine["adam"]) == [0.0444, 0.0667, 0.1, 0.15, 0.225]


def test_a_fine_best_at_the_edge_is_followed():
    """The longer runs of the second stage may like quite another step size."""
    one, _ = prepared_for({}, epochs=50, fine_epochs=200)
    best = {50: 0.1, 200: 0.02}
    found = search(one, lambda prepared, arm: abs(math.log(arm.lr / best[prepared.experiment.problem.epochs])))
    assert found.chosen.experiment.arms[0].lr == pytest.approx(0.0197, rel=0.01)


def test_a_search_that_finds_no_end_says_so():
    one, _ = prepared_for({})
    assert search(one, lambda prepared, arm: arm.lr).edges == ("adam", "wada")


def test_what_is_missing_is_asked_for_together():
    one, loss = prepared_for({"adam": 0.1, "wada": 5.0})
    first = search(one, lambda prepared, arm: None).missing.experiment
    assert [(arm.method, arm.lr) for arm in first.arms] == [(name, lr) for name in ("adam", "wada") for lr in GRID]
    second = search(one, lambda prepared, arm: loss(prepared, arm) if arm.lr in GRID else None).missing.experiment
    assert [(arm.method, arm.lr) for arm in second.arms] == [("wada", 3.16)]


def test_an_experiment_that_is_not_tuned_is_refused():
    one, loss = prepared_for({})
    plain = replace(one, experiment=replace(one.experiment, tuning=None))
    with pytest.raises(Refused, match="softmax on digits does not say how"):
        search(plain, loss)


@pytest.mark.parametrize(
    ("by", "best"),
    [("train_loss", 0.1), ("test_accuracy", 1.0), ("test_loss", 0.316), ("train_accuracy", 0.0316)],
)
def test_the_metric_that_is_asked_for_chooses(tmp_path, by, best):
    """Each metric is best somewhere else."""
    at = {"train_loss": 0.1, "test_accuracy": 1.0, "test_loss": 0.316, "train_accuracy": 0.0316}
    (one,) = ready({"methods": ["adam"], "lrs": list(GRID), "tuning": {"by": by}})

    def away(metric, lr):
        return 0.05 * abs(math.log(lr / at[metric]))

    def run(lr):
        key, config = address(one.experiment.problem, one.data.digest, Arm("adam", lr), 0)
        curves = {m: [away(m, lr) if m.endswith("loss") else 0.9 - away(m, lr)] for m in METRICS}
        return Run(key, "made", config, None, curves)

    records = Records(tmp_path / "runs.db")
    while (found := search(one, recorded(records))).missing:
        records.add([run(arm.lr) for arm in found.missing.experiment.arms])
    assert found.chosen.experiment.arms[0].lr == best
    assert found.fine["adam"][best] == pytest.approx(0.0 if by.endswith("loss") else 0.1)


def test_what_rounding_alone_tells_apart_is_not_tried_again():
    """A grid that is as fine as the second stage, and as long: there is nothing left for it."""
    one, loss = prepared_for({"adam": 0.107, "wada": 0.0711})
    grid = [0.0316, 0.0474, 0.0711, 0.107, 0.16, 0.24]
    arms = tuple(Arm(method, lr) for method in ("adam", "wada") for lr in grid)
    found = search(replace(one, experiment=replace(one.experiment, arms=arms)), loss)
    assert {method: sorted(tried) for method, tried in found.fine.items()} == {"adam": grid, "wada": grid}
    assert [arm.lr for arm in found.chosen.experiment.arms] == [0.107, 0.0711]


TUNED = {"methods": {"adam": [0.01, 0.1], "amsgrad": {"lrs": [0.1], "debias": True}}, "epochs": 2}


def test_tuning_is_a_function_of_the_records(tmp_path, monkeypatch, one_thread):
    """Stopped after every epoch and run again, it does what it does in one go, and trains nothing twice."""
    whole = tune(ready(TUNED | {"tuning": {"epochs": 1, "fine_epochs": 2}}), tmp_path / "whole.db")
    for _ in range(200):
        with monkeypatch.context() as patch:
            stop_after(1, patch)
            try:
                parts = tune(ready(TUNED | {"tuning": {"epochs": 1, "fine_epochs": 2}}), tmp_path / "parts.db", every=1)
                break
            except KeyboardInterrupt:
                continue
    assert [one.experiment for one, _ in parts] == [one.experiment for one, _ in whole]
    assert [found.fine for _, found in parts] == [found.fine for _, found in whole]
    assert {run.key for run in Records(tmp_path / "parts.db").runs()} == {
        run.key for run in Records(tmp_path / "whole.db").runs()
    }
    starts = [key for keys, epoch in Records(tmp_path / "whole.db").attempts() for key in keys if epoch == 0]
    assert len(starts) == len(set(starts))


def test_a_search_that_is_stopped_has_chosen_nothing(tmp_path, monkeypatch, one_thread):
    """What is recorded by then may be of the search itself, and the page says what it shows of it."""
    monkeypatch.chdir(tmp_path)
    np.savez("made.npz", **vectors())
    head = 'dataset = "made.npz"\nmodel = "softmax"\nepochs = 1\nbatch = 8\nseeds = 1\nmethods = ["adam", "wada"]\n'
    (tmp_path / "mine.toml").write_text(head + 'lrs = [0.01, 0.1]\n[tuning]\nby = "test_accuracy"\n')
    stop_after(1, monkeypatch)
    said = CliRunner().invoke(app, ["sweep", "mine.toml", "-o", "report.html", "--every", "1"])
    assert said.exit_code == 130, said.output
    page = tmp_path / "report.html"
    assert not page.exists() or "which a search has chosen" not in page.read_text()


def test_a_grid_ends_where_a_step_size_may_not_be():
    """There is no smaller one to be tried, and the best is at an edge; so with the finer grid."""
    assert next_rates({1.2e-38: 0.1, 1.2e-37: 0.2}, [1.2e-38, 1.2e-37], 10) == ()
    assert next_rates({1e37: 0.2, 1e38: 0.1}, [1e37, 1e38], 10) == ()
    assert next_rates({1e-37: 0.1, 1e-36: 0.2}, [1e-37, 1e-36], 10 / 3) == (3e-38,)
    (one,) = ready({"methods": ["adam"], "lrs": [1.2e-38, 1.2e-37], "tuning": {}})
    found = search(one, lambda prepared, arm: arm.lr)
    assert (found.missing, found.edges) == (None, ("adam",))
    assert min(found.fine["adam"]) == found.chosen.experiment.arms[0].lr == 1.2e-38


def test_experiments_without_a_search_pass_through(tmp_path):
    (one,) = ready({"methods": ["adam"], "lrs": [0.1]})
    assert tune([one], tmp_path / "runs.db") == [(one, None)]
    assert Records(tmp_path / "runs.db").runs() == []


def test_a_seed_that_diverged_counts_as_infinitely_bad(tmp_path):
    (one,) = ready({"methods": ["adam"], "lrs": [0.1, 1e38], "seeds": 2, "epochs": 1})
    from wagmf.lab.sweep import sweep

    loss = recorded(Records(tmp_path / "runs.db"))
    assert loss(one, Arm("adam", 0.1)) is None
    sweep([one], tmp_path / "runs.db")
    loss = recorded(Records(tmp_path / "runs.db"))
    assert loss(one, Arm("adam", 1e38)) == math.inf
    finals = [run.curves["train_loss"][-1] for run in Records(tmp_path / "runs.db").runs() if run.config["lr"] == 0.1]
    assert loss(one, Arm("adam", 0.1)) == pytest.approx(sum(finals) / 2)
    assert loss(replace(one, experiment=replace(one.experiment, seeds=(0, 1, 2))), Arm("adam", 0.1)) is None


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (3, "Invalid tuning: 3"),
        ({"epoch": 3}, "Invalid key of tuning: 'epoch'"),
        ({"epochs": 0}, "Invalid epochs of tuning: 0"),
        ({"fine_epochs": "x"}, "Invalid fine_epochs of tuning: 'x'"),
        ({"seeds": -1}, "Invalid seeds: -1"),
        ({"below": 0}, "Invalid below of tuning: 0"),
        ({"above": 11}, "Invalid above of tuning: 11"),
        ({"by": "accuracy"}, "Invalid by of tuning: 'accuracy'"),
    ],
)
def test_bad_tuning_is_refused(table, message):
    with pytest.raises(Refused, match=message):
        experiment({"dataset": "digits", "model": "mlp", "methods": ["adam"], "lrs": [0.1], "tuning": table})


def test_defaults_of_tuning():
    table = {"dataset": "digits", "model": "mlp", "methods": ["adam"], "lrs": [0.1], "epochs": 30}
    assert experiment(table).tuning is None
    assert experiment(table | {"tuning": {}}).tuning == Tuning(30, 30, (0,), 2, 2, "train_loss")
    assert experiment(table | {"tuning": {"epochs": 10, "seeds": [3, 4]}}).tuning == Tuning(10, 10, (3, 4))


def test_sweep_and_compare_search_where_they_are_asked_to(tmp_path, monkeypatch, one_thread):
    monkeypatch.chdir(tmp_path)
    np.savez("made.npz", **vectors())
    head = 'dataset = "made.npz"\nmodel = "softmax"\nepochs = 2\nbatch = 8\nseeds = 3\nmethods = ["adam", "wada"]\n'
    (tmp_path / "mine.toml").write_text(head + "lrs = [0.01, 0.1]\n[tuning]\nepochs = 1\n")
    said = CliRunner().invoke(app, ["sweep", "mine.toml", "-o", "report.html"])
    assert said.exit_code == 0, said.output
    kept = Records("runs.db")
    finals = [run for run in kept.runs() if "softmax on made" in kept.names()[run.key]]
    assert len({(run.config["method"], run.config["lr"]) for run in finals}) == 2
    assert len(finals) == 6
    page = (tmp_path / "report.html").read_text()
    assert "the only one that was tried" not in page
    assert "came before these runs: training loss of the last epoch" in page
    (tmp_path / "mine.toml").write_text(head + 'lrs = [0.01, 0.1]\n[tuning]\nby = "test_accuracy"\n')
    said = CliRunner().invoke(app, ["sweep", "mine.toml", "-r", "more.db", "-o", "report.html"])
    assert said.exit_code == 0, said.output
    assert "came before these runs: test accuracy of the last epoch. What" in (tmp_path / "report.html").read_text()
    several = [('name = "{}"\n' + head + "lrs = [0.01, 0.1]\n" + tuning).format(name) for name, tuning in (
        ("first", '[tuning]\nby = "test_accuracy"\n'), ("second", "[tuning]\n"), ("third", ""))]  # fmt: skip
    for k, text in enumerate(several):
        (tmp_path / f"{k}.toml").write_text(text)
    said = CliRunner().invoke(app, ["sweep", "0.toml", "1.toml", "2.toml", "-r", "more.db", "-o", "report.html"])
    assert said.exit_code == 0, said.output
    page = (tmp_path / "report.html").read_text()
    assert (
        "came before these runs: test accuracy of the last epoch in first; training loss of the last epoch in second."
        in page
    )
    assert "In the others chosen: the lowest training loss" in page
    assert "mean over seeds, or which a search has chosen." in page
    result = compare(
        "softmax", "made.npz", methods=["adam"], lrs=[0.1], epochs=2, batch=8, tuning={"epochs": 1}, records="runs.db"
    )
    assert result.rates["method"].tolist() == ["adam"]
    assert len(result.records.runs) == 3
    assert re.search(r"<td>first</td>.*?<td class=\"keep\">–</td><td class=\"keep\">–</td></tr>", page), "not inside"
    page = result.report("compared.html").read_text()
    assert "each method at its own step size, which a search has chosen." in page
    assert "the only one that was tried" not in page
