"""The simulation of clusters: it plans what was trained, waits as a sweep waits, and fits what it says it fits."""

import runpy
from collections import Counter
from pathlib import Path

import pytest

from wagmf.lab.planning import stack_size

# Not as a program: nothing is printed.
SCRIPT = runpy.run_path(str(Path(__file__).parent.parent / "benchmarks" / "cluster.py"))
Pace, Trained, simulate, fitted = (SCRIPT[name] for name in ("Pace", "Trained", "simulate", "fitted"))
NAMES = list(SCRIPT["world"]()[0])


def by_kind(stacks):
    return Counter((stack.epochs, stack.replicas) for stack in stacks)


@pytest.mark.parametrize("name", NAMES)
def test_the_stacks_are_those_that_were_trained(name):
    """Rounds beyond a grid included. The last may have been trained in parts, or be missing, or some of them.

    Where step sizes were searched for twice, stacks of the second search lack what the first had trained.
    """
    ours = [stack for each in SCRIPT["paper"]() for whose, stack in each if whose == name]
    there, once = SCRIPT["on_record"](name), SCRIPT["counted"](name) == len(SCRIPT["archived"](name))
    assert SCRIPT["counted"](name) <= SCRIPT["runs_of"](name) == sum(stack.replicas for stack in ours)
    if once and SCRIPT["world"]()[1][name].experiment.name == name:  # its search is on record: nothing stands in for it
        assert sum(stack.replicas for stack in there) == SCRIPT["counted"](name)
        parts, instead_of = by_kind(there) - by_kind(ours), by_kind(ours) - by_kind(there)
        assert sum(instead_of.values()) <= 1
        for epochs, replicas in parts:
            assert [epochs == length and replicas < size for length, size in instead_of] == [True]


def test_most_experiments_are_on_record_whole_and_some_went_beyond_their_grids():
    whole = [name for name in NAMES if SCRIPT["counted"](name) == SCRIPT["runs_of"](name)]
    assert len(whole) >= 7
    assert len(SCRIPT["paper"]()) > 3


def test_the_last_round_trains_only_what_the_search_has_not():
    *_, last = SCRIPT["paper"]()
    counts = Counter()
    for name, stack in last:
        counts[name] += stack.replicas
    prepared, _, _ = SCRIPT["world"]()
    for name, each in prepared.items():
        of, tuning = each.experiment, each.experiment.tuning
        seeds = len(of.seeds) - len(tuning.seeds) * (tuning.fine_epochs == of.problem.epochs)
        assert counts[name] == seeds * len({arm.label for arm in of.arms})


@pytest.mark.parametrize("most", [None, 7])
def test_no_stack_is_larger_than_it_may_be(most):
    for stages in (SCRIPT["paper"](most), SCRIPT["study"](most)):
        sizes = [stack.replicas for each in stages for _, stack in each]
        assert max(sizes) <= (most or 256)
    large = SCRIPT["large"]()
    assert all(stack_size(each.experiment.problem, each.model, each.device, each.memory) == 256 for each in large)
    runs = sum(stack.replicas for each in SCRIPT["study"](most) for _, stack in each)
    assert SCRIPT["RUNS"] * 0.99 < runs <= SCRIPT["RUNS"]


def test_a_round_waits_for_the_one_before_and_stacks_go_to_whoever_is_free():
    known = {"slow": Pace(10.0, 1.0, 0.5), "fast": Pace(0.0, 1.0, 0.0)}
    first = [("fast", Trained(100, 1, 1)), ("slow", Trained(100, 2, 3)), ("fast", Trained(100, 3, 9))]
    last = [("fast", Trained(100, 5, 1))]
    assert [known[name].seconds(stack) for name, stack in first] == [1, 14, 3]
    for gpus, end in ((1, 23), (2, 19), (3, 19)):
        took, busy, lost = simulate([first, last], gpus, known)
        assert (took, busy, lost) == (pytest.approx(end), pytest.approx(23), 0)
    assert simulate([first + last], 2, known)[0] == pytest.approx(14)


def test_gpus_that_are_lost_cost_time_and_each_is_lost_as_often():
    known = {"long": Pace(60.0, 1.0, 0.0)}
    week = Trained(1000, 7 * 24 * 3600, 1)
    took, busy, lost = simulate([[("long", week)] * 300], 300, known)
    assert 250 < lost < 350  # of 300 GPUs, in a week
    assert busy > 300 * known["long"].seconds(week)
    assert took > known["long"].seconds(week)


def test_a_fit_finds_the_pace_that_stacks_went_at():
    pace = Pace(20.0, 0.002, 0.0003)
    sizes = [(100, 1000, 30), (200, 2000, 30), (200, 2000, 2), (200, 2000, 42)]
    stacks = [Trained(*size, pace.seconds(Trained(*size))) for size in sizes]
    found = fitted(stacks, pace.alone)
    assert (found.ready, found.further) == (pytest.approx(20.0), pytest.approx(0.0003))
    assert SCRIPT["from_the_others"](stacks, pace.alone) == pytest.approx([stack.seconds for stack in stacks])
    stacks[0] = Trained(100, 1000, 30, 500.0)  # is predicted without itself
    assert SCRIPT["from_the_others"](stacks, pace.alone)[0] == pytest.approx(pace.seconds(stacks[0]))
