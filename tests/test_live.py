"""What a person sees while a sweep runs."""

import io
import math
import re

import pytest
from rich.console import Console
from sweeps import ready, stop_after, vectors
from torch import nn
from twins import one_thread as one_thread

from wagmf.lab import live as room
from wagmf.lab.compare import compare, prepare_comparison
from wagmf.lab.live import LiveView
from wagmf.lab.looks import QUANTITIES
from wagmf.lab.planning import plan
from wagmf.lab.sweep import Epoch, sweep

pytestmark = pytest.mark.usefixtures("one_thread")

HOSTILE = "[red]bold[/red] [/] :dog: <b>"


def console(**options):
    return Console(file=io.StringIO(), width=200, **options)


def said(view_console):
    return view_console.file.getvalue()


def test_where_nobody_watches_there_is_a_line_for_each_stack(tmp_path):
    prepared = ready({"name": "one"}, {"name": "two", "l2": 0.1})
    out = console()
    with LiveView(out) as view:
        sweep(prepared, tmp_path / "runs.db", watch=view)
    lines = said(out).splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("4 of 8 runs are recorded; last one, ")
    assert lines[1].startswith("8 of 8 runs are recorded; last two, ")
    assert all(line.endswith(" steps/s.") for line in lines)
    assert (view.done, view.total) == (8, 8)
    assert "\x1b" not in said(out)


def test_what_was_done_before_and_what_goes_on_is_told(tmp_path, monkeypatch):
    stop_after(6, monkeypatch)
    prepared = ready({"name": "one"}, {"name": "two", "l2": 0.1})
    with pytest.raises(KeyboardInterrupt), LiveView(console()) as view:
        sweep(prepared, tmp_path / "runs.db", every=1, watch=view)
    monkeypatch.undo()
    out = console()
    with LiveView(out) as view:
        sweep(prepared, tmp_path / "runs.db", every=1, watch=view)
    lines = said(out).splitlines()
    assert lines[:2] == ["4 of 8 runs were done before.", "two: 4 runs go on after epoch 2."]
    assert lines[2].startswith("8 of 8 runs are recorded")
    task = view._bars.tasks[0]
    assert (task.completed, task.total) == (16, 16)


class Looking(nn.Linear):
    def __init__(self):
        super().__init__(4, 3)

    def forward(self, x):
        return super().forward(x) * (2 if x.sum().item() > 0 else 1)


def test_a_model_that_is_trained_one_at_a_time_is_told_before():
    out = console()
    asked = {"methods": ["adam"], "lrs": [0.1], "epochs": 1, "batch": 8}
    with LiveView(out) as view:
        compare(Looking, vectors(), watch=view, **asked)
    assert said(out).startswith("Replicas are trained one at a time (its code cannot be batched: ")
    out = console()
    with LiveView(out) as view:
        compare(lambda: nn.Linear(4, 3), vectors(), watch=view, **asked)
    assert "one at a time" not in said(out)


def test_a_screen_shows_the_best_of_each_method(tmp_path):
    prepared = ready({"name": HOSTILE, "methods": ["adam", "wada"]})
    out = console(force_terminal=True, color_system=None)
    with LiveView(out) as view:
        sweep(prepared, tmp_path / "runs.db", watch=view)
        shown = console()
        shown.print(view._render())
    text = said(shown)
    assert "4/8 runs" not in text
    assert "8/8 runs" in text
    assert "Best so far, by training loss" in text
    assert "[red]bold[/red] [/] :dog: <b>" in text
    assert "epoch 4 of 4" in text
    assert text.index("adam") != text.index("wada")
    assert "left" in text
    assert "runs are recorded" not in said(out)  # the bar says so


def shown(number, losses):
    """An epoch of two seeds and two arms, of three steps each."""
    return Epoch(number, 12, ends(losses, [1 - loss for loss in losses]))


def ends(losses, hits):
    """The test loss is best in the middle, and the training accuracy where the test accuracy is worst."""
    found = {"train_loss": losses, "train_accuracy": [1 - hit for hit in hits]}
    return found | {"test_loss": [abs(loss - 0.6) for loss in losses], "test_accuracy": hits}


def test_the_best_so_far_is_the_best_of_this_epoch():
    prepared = ready({"name": "one", "lrs": [0.01, 0.1]})
    (work,) = plan(prepared, set())
    view = LiveView(console())
    view.planned([work], 0)
    view.begun(work, 0)
    for losses, right in (
        ([math.nan, 0.9], (0.9, 0.1)),  # one that diverged at once is no best
        ([math.nan, 0.8], (0.8, 0.1)),
        ([0.5, 0.7], (0.5, 0.01)),
        ([0.6, 0.65], (0.6, 0.01)),  # what was better once does not count
        ([0.7, 0.6], (0.6, 0.1)),
        ([0.7, math.nan], (0.7, 0.01)),
    ):
        view.trained(work, shown(1, losses))
        [(name, method, lr, found)] = view._best()
        assert (name, method, lr) == ("one", "adam", right[1])
        assert (found["train_loss"], found["test_accuracy"]) == (right[0], pytest.approx(1 - right[0]))


def test_the_best_method_is_shown_first_and_one_that_diverged_last():
    view = LiveView(console())
    for methods, losses in ((["adam"], [math.nan, math.nan]), (["amsgrad"], [0.7, 0.9]), (["wada"], [0.9, 0.5])):
        (work,) = plan(ready({"name": "one", "methods": methods}), set())
        view.planned([work], 0)
        view.trained(work, shown(1, losses))
    assert [row[1:3] for row in view._best()] == [("wada", 0.1), ("amsgrad", 0.01), ("adam", 0.01)]


@pytest.mark.parametrize(
    ("criterion", "by", "chosen_by"),
    [
        ("test_accuracy", None, {}),
        ("train_loss", "test_accuracy", {}),
        ("train_loss", "test_accuracy", {"one": "train_loss"}),
        ("train_loss", None, {"one": "test_accuracy", "two": "train_loss"}),
    ],
)
def test_where_an_accuracy_chooses_it_tells_the_best(criterion, by, chosen_by):
    """By the criterion, or in a search, and after it, by what chooses there; what trains best does not test best."""
    view = LiveView(out := console(), criterion, chosen_by)
    for methods, losses, hits in ((["adam"], [0.5, 0.7], [0.6, 0.7]), (["wada"], [0.9, math.nan], [0.8, 0.9])):
        tuning = {"tuning": {"by": by}} if by else {}
        (work,) = plan(ready({"name": "one", "methods": methods} | tuning), set())
        view.planned([work], 0)
        view.trained(work, Epoch(1, 12, ends(losses, hits)))
    assert [row[1:3] for row in view._best()] == [("wada", 0.01), ("adam", 0.1)]
    out.print(view._render())
    assert "Best so far, by test accuracy" in said(out)
    colours = console(force_terminal=True)
    colours.print(view._render())
    assert "\x1b[1m80.00%" in said(colours)
    assert "\x1b[1m0." not in said(colours)


@pytest.mark.parametrize(
    ("by", "right", "bold"),
    [
        ("test_loss", [("adam", 0.1), ("wada", 0.01)], "0.1"),
        ("train_accuracy", [("adam", 0.01), ("wada", 0.01)], "40.00%"),
    ],
)
def test_any_metric_may_tell_the_best_and_is_shown_then(by, right, bold):
    view = LiveView(out := console())
    for methods, losses, hits in ((["adam"], [0.4, 0.7], [0.6, 0.7]), (["wada"], [0.9, math.nan], [0.8, 0.9])):
        (work,) = plan(ready({"name": "one", "methods": methods, "tuning": {"by": by}}), set())
        view.planned([work], 0)
        view.trained(work, Epoch(1, 12, ends(losses, hits)))
    assert [row[1:3] for row in view._best()] == right
    out.print(view._render())
    heads = re.findall(r"training loss|training accuracy|test loss|test accuracy", said(out))
    assert heads == [QUANTITIES[by], *(QUANTITIES[m] for m in QUANTITIES if m in ("train_loss", "test_accuracy", by))]
    colours = console(force_terminal=True)
    colours.print(view._render())
    assert f"\x1b[1m{bold}" in said(colours)


@pytest.mark.parametrize("first", [True, False])
def test_what_has_no_value_to_choose_by_is_last_though_its_loss_is_known(first):
    view = LiveView(console(), "test_accuracy")
    for methods, hits in ((["adam"], [math.nan, 0.6] if first else [0.6, math.nan]), (["wada"], [math.nan, math.nan])):
        (work,) = plan(ready({"name": "one", "methods": methods}), set())
        view.planned([work], 0)
        view.trained(work, Epoch(1, 12, ends([0.5, 0.5], hits)))
    assert [row[1:3] for row in view._best()] == [("adam", 0.1 if first else 0.01), ("wada", 0.01)]
    view._latest = dict(reversed(view._latest.items()))
    assert [row[1] for row in view._best()] == ["adam", "wada"]


def test_the_rate_is_that_of_all_stacks_under_way(monkeypatch):
    prepared = ready({"name": "one"})
    (work,) = plan(prepared, set())
    times = iter([100.0, 102.0, 104.0])
    monkeypatch.setattr(room.time, "perf_counter", lambda: next(times))
    view = LiveView(console())
    view.planned([work], 0)
    view.begun(work, 2)
    view.trained(work, shown(3, [0.5, 0.6]))
    assert view._rate == "6 steps/s"  # 3 steps of 4 replicas in 2 seconds
    view.trained(work, shown(4, [0.5, 0.6]))
    assert view._rate == "6 steps/s"
    assert view._current == "one: 4 replicas, epoch 4 of 4"


def test_several_stacks_may_be_under_way_and_one_may_be_lost(monkeypatch):
    works = plan(ready({"name": "one"}, {"name": "two", "methods": ["wada"]}), set())
    now = [100.0]
    monkeypatch.setattr(room.time, "perf_counter", lambda: now[0])
    view = LiveView(console())
    view.planned(works, 0)
    for work in works:
        view.begun(work, 0)
    now[0] = 102.0
    for work in works:
        view.trained(work, shown(1, [0.5, 0.6]))
    assert view._rate == "12 steps/s"  # of both
    assert view._bars.tasks[0].completed == 8
    view.begun(works[0], 0)  # again: its worker was lost
    assert view._bars.tasks[0].completed == 4
    view.finished(works[1], [])
    now[0] = 103.0
    view.trained(works[0], shown(1, [0.5, 0.6]))
    assert view._rate == "12 steps/s"  # of the one that is left


def test_before_anything_is_planned_there_is_something_to_see():
    out = console()
    out.print(LiveView(out)._render())
    assert "Best so far, by training loss" in said(out)
    out.print(LiveView(out, "test_accuracy")._render())
    assert "Best so far, by test accuracy" in said(out)


def test_text_is_printed_as_it_is():
    out = console(force_terminal=True)
    LiveView(out).told(HOSTILE)
    assert "[red]bold[/red] [/] :dog: <b>" in said(out)
    assert prepare_comparison("softmax", vectors(), name=HOSTILE)[0].experiment.name == HOSTILE
