"""What would it take on 1, 8, 64 and 512 GPUs? The paper's grid, and a study of 100,000 runs: a simulation.

    python benchmarks/cluster.py [--report]

The sweep is the lab's own: the search for step sizes is asked what it wants next, is told the losses that the
reproduction has recorded, and what it wants is cut into stacks as for an H200. So there are as many rounds as there
were, those that go on beyond a grid included, and as in ``wagmf sweep`` a round begins when the one before it is over,
for all experiments together. A stack goes to the GPU that is free first, in the order of the plan. A GPU is lost now
and then, and its stack goes on from its checkpoint.

What a stack takes is fitted to the records of the reproduction, by model and data set: a part until it is ready, a part
for each step, a part for each step of each replica. How far that is off is told beside it.
"""

import argparse
import heapq
import math
import random
import statistics
import tempfile
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from wagmf.lab.evidence import gather, shares, stack_of
from wagmf.lab.models import zoo
from wagmf.lab.paper_runs import archive_of, paper_experiments
from wagmf.lab.planning import Prepared, addresses, cut, plan
from wagmf.lab.records import Records, restore
from wagmf.lab.spec import Arm
from wagmf.lab.tuning import recorded, search

ROOT = Path(__file__).parent.parent
RECORDS = ROOT / "reproduction" / "records"
GPUS = (1, 8, 64, 512)
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192)
RUNS = 100_000
MEMORY = 141 * 10**9  # bytes of an H200
# Of data: training images, the shape of one, classes.
DATA = {
    "mnist": (60_000, (1, 28, 28), 10),
    "cifar10": (50_000, (3, 32, 32), 10),
    "cifar100": (50_000, (3, 32, 32), 100),
}
BETWEEN_LOSSES = 7 * 24 * 3600.0  # seconds until a GPU is lost, in the mean, each
BETWEEN_CHECKPOINTS = 5  # epochs
SEEDS = 3  # of losses, over which is averaged


# ---------------------------------------------------------------- what is on record


def name_of(problem):
    return f"{problem.model} on {problem.dataset}"


@dataclass(frozen=True)
class Trained:
    """A stack on record, or one that is planned: epochs, steps and replicas; and what it took."""

    epochs: int
    steps: int
    replicas: int
    seconds: float = math.nan


@cache
def archived(name):
    """The runs that are on record of an experiment, those of a search that is done again included."""
    paths = [path for folder in (RECORDS, RECORDS / "anew") if (path := archive_of(folder, name)).exists()]
    return tuple({run.key: run for path in paths for run in restore(path)[0]}.values())


@cache
def counted(name):
    """How many of those that the sweep trains are on record: not what an earlier search has tried."""
    keys = {
        key for _, wanted in rounds() for each in wanted if name_of(each.experiment.problem) == name
        for key in addresses([each])
    }  # fmt: skip
    return sum(run.key in keys for run in archived(name))


@cache
def shared():
    """What each stack took of the time in which the GPU was at several, those of the other study included."""
    found = [gather(folder) for folder in (RECORDS.parent, ROOT / "experiments" / "beyond")]
    return shares(run for each in found for run in (*each.runs, *each.anew))


def on_record(name):
    """The stacks that an experiment was trained in, in order."""
    stacks = {}
    for run in archived(name):
        stacks.setdefault(stack_of(run), []).append(run)
    found = []
    for stack, runs in sorted(stacks.items(), key=lambda each: each[0][1:]):
        config = runs[0].config
        steps = config["epochs"] * (DATA[config["dataset"]][0] // config["batch"])
        found.append(Trained(config["epochs"], steps, len(runs), shared()[stack]))
    return found


# ---------------------------------------------------------------- what a stack takes


@dataclass(frozen=True)
class Pace:
    """Seconds of a stack: until it is ready, of a step of one replica alone, and for each further one."""

    ready: float
    alone: float
    further: float

    def seconds(self, stack):
        return self.ready + stack.steps * (self.alone + self.further * (stack.replicas - 1))


def fitted(stacks, alone):
    """The pace that is nearest to what stacks took, by squares, so that long ones count; no part is negative."""
    steps, replicas, seconds = np.array([(each.steps, each.replicas, each.seconds) for each in stacks]).T
    (ready, further), _ = nnls(np.stack([np.ones_like(steps), steps * (replicas - 1)], 1), seconds - steps * alone)
    return Pace(ready, alone, further)


def step_alone(model):
    """Seconds of a step of one network, as timed; one of softmax regression is taken to be as long as an MLP's."""
    costs = pd.read_csv(RECORDS / "costs.csv").groupby("model")["ms"].median()
    return costs.get(model, costs["mlp"]) / 1e3


def from_the_others(stacks, alone):
    """What each stack would take, going by all others: what was fitted to it does not say how good the fit is."""
    rest = [[other for other in stacks if other is not each] for each in stacks]
    return [fitted(others, alone).seconds(each) for each, others in zip(stacks, rest, strict=True)]


# ---------------------------------------------------------------- what is trained


@cache
def world():
    """The experiments as they are prepared for an H200, without their data; by name, whose records stand in for each.

    An experiment whose search is on record stands for itself, any other is taken to search as another of its model.
    """
    found = sorted(paper_experiments(ROOT / "experiments" / "paper"), key=lambda each: each.name)  # as their files are
    runs = [run for each in found for run in archived(each.name)]
    digests = {run.config["dataset"]: run.config["data"] for run in runs}
    with tempfile.TemporaryDirectory() as folder:
        records = Records(Path(folder) / "runs.db")
        records.add(runs)
        loss = recorded(records)
    prepared = {}
    for each in found:
        problem = each.problem.on("cuda")
        model = zoo(problem.model, *DATA[problem.dataset][1:], **dict(problem.options))
        data = SimpleNamespace(digest=digests.get(problem.dataset, problem.dataset))
        prepared[each.name] = Prepared(replace(each, problem=problem), data, model, "cuda", MEMORY)
    known = {name: each for name, each in prepared.items() if search(each, loss).chosen is not None}
    stands = {
        name: known.get(name)
        or next(other for other in known.values() if other.experiment.problem.model == each.experiment.problem.model)
        for name, each in prepared.items()
    }
    return {name: searching_as(each, stands[name]) for name, each in prepared.items()}, stands, loss


def searching_as(each, other):
    """An experiment that searches as another one does: there are losses on record of what that asks for."""
    of = other.experiment
    return replace(each, experiment=replace(each.experiment, arms=of.arms, tuning=of.tuning))


def paces():
    """By experiment: that of its own stacks, whatever they were of; with too few, that of what stands in for it."""
    found = {}
    for name, other in world()[1].items():
        stacks = on_record(name) if len(on_record(name)) > 1 else on_record(name_of(other.experiment.problem))
        found[name] = fitted(stacks, step_alone(other.experiment.problem.model))
    return found


@cache
def rounds():
    """The sweep of the paper's grid as the search goes on: for each round what is done before it, and what it wants."""
    return tuple(searching())


def searching():
    prepared, stands, loss = world()
    done = set()

    def told(each, arm):
        """The loss of what has been trained by then."""
        if not done.issuperset(addresses([replace(each, experiment=replace(each.experiment, arms=(arm,)))])):
            return None
        name = name_of(each.experiment.problem)
        value = loss(replace(each, data=stands[name].data), arm)
        assert value is not None, f"{name}: nothing on record says what {arm} came to"
        return value

    while True:
        found = [search(each, told) for each in prepared.values()]
        wanted = [each.missing for each in found if each.missing is not None]
        yield frozenset(done), wanted or [each.chosen for each in found]
        if not wanted:
            return
        done |= set(addresses(wanted))


@cache
def paper(most=None):
    """Rounds of stacks, each with the name of its experiment."""
    return [
        [planned(work) for work in plan([replace(each, stack=most) for each in wanted], done)]
        for done, wanted in rounds()
    ]


def study(most=None):
    """Stacks of the large study, which has no search: all in one round."""
    return [[planned(work) for each in large() for work in cut(replace(each, stack=most))]]


@cache
def large():
    """The paper's networks, full length, from its seeds, at many step sizes."""
    prepared, _, _ = world()
    networks = [each for each in prepared.values() if each.experiment.problem.model != "softmax"]
    seeds = len(networks[0].experiment.seeds)
    arms = tuple(Arm("wada", 0.1 * 0.99**k) for k in range(RUNS // len(networks) // seeds))
    return [replace(each, experiment=replace(each.experiment, arms=arms)) for each in networks]


def planned(work):
    problem = work.prepared.experiment.problem
    steps = problem.epochs * (DATA[problem.dataset][0] // problem.batch)
    return name_of(problem), Trained(problem.epochs, steps, len(work.arms) * len(work.seeds))


# ---------------------------------------------------------------- how it goes


def simulate(stages, gpus, known, seed=0):
    """Seconds until all is done, seconds in which GPUs were busy, and how many were lost."""
    some = random.Random(seed)
    end, busy, lost = 0.0, 0.0, 0
    for stage in stages:
        free = [end] * gpus  # nothing of a round begins before all of the last one is done
        for name, stack in stage:
            seconds, losses = with_losses(known[name].seconds(stack), stack.epochs, known[name].ready, some)
            began = heapq.heappop(free)
            heapq.heappush(free, began + seconds)
            busy, lost = busy + seconds, lost + losses
        end = max(free)
    return end, busy, lost


def with_losses(seconds, epochs, ready, some):
    """What a stack takes that goes on elsewhere from its last checkpoint, and how often it does."""
    unsaved, losses = BETWEEN_CHECKPOINTS / epochs, 0
    left = some.expovariate(1 / BETWEEN_LOSSES)
    while left < seconds:
        losses += 1
        seconds += ready + some.random() * unsaved * seconds
        left += some.expovariate(1 / BETWEEN_LOSSES)
    return seconds, losses


def averaged(stages, gpus, known):
    each = [simulate(stages, gpus, known, seed) for seed in range(SEEDS)]
    return tuple(statistics.mean(values) for values in zip(*each, strict=True))


# ---------------------------------------------------------------- what is told


def table(title, stages, known, sizes=SIZES):
    """By the number of GPUs: with stacks as large as fit, and with those of the sizes tried that are done first."""
    tried = {most: stages(most) for most in (None, *sizes)}
    counts = {most: (len(cuts), sum(map(len, cuts))) for most, cuts in tried.items()}
    runs = sum(stack.replicas for each in tried[None] for _, stack in each)
    lines = [f"**{title}** ({runs:,} runs in {counts[None][0]} round{'s' * (counts[None][0] > 1)})", ""]
    lines += ["| GPUs | `--stack` | stacks | hours | GPU hours | busy | GPUs lost on the way |"]
    lines += ["|--:|--:|--:|--:|--:|--:|--:|"]
    for gpus in GPUS:
        took = {most: averaged(cuts, gpus, known) for most, cuts in tried.items()}
        best = min(took, key=lambda most: took[most][0])
        for most in dict.fromkeys([None, best]):
            end, busy, lost = took[most]
            name = f"{most or 'not given'}{', the best' * (most == best)}"
            cells = [gpus, name, f"{counts[most][1]:,}", f"{end / 3600:,.2f}", f"{busy / 3600:,.1f}"]
            lines.append("| " + " | ".join(map(str, [*cells, f"{busy / end / gpus:.0%}", f"{lost:.1f}"])) + " |")
    return "\n".join(lines)


def pace_table(known):
    """What was recorded, what is predicted, and the paces."""
    _, stands, _ = world()
    lines = [
        "| | runs on record | took, min | predicted from the other stacks, min | a stack is off by up to "
        "| ready after, s | a step alone, ms | for each further replica, ms | of the sweep's runs are on record |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for name, pace in known.items():
        stacks = on_record(name)
        cells = ["–"] * 3
        if len(stacks) > 1:
            there = from_the_others(stacks, pace.alone)
            off = max(max(a / b, b / a) for a, b in zip(there, (each.seconds for each in stacks), strict=True))
            cells = [f"{sum(each.seconds for each in stacks) / 60:.1f}", f"{sum(there) / 60:.1f}", f"× {off:.1f}"]
        cells += [f"{pace.ready:.0f}", f"{1e3 * pace.alone:.3f}", f"{1e3 * pace.further:.4f}"]
        cells += [f"{counted(name)} of {runs_of(name)}"]
        lines.append(f"| {name} | {len(archived(name))} | {' | '.join(cells)} |")
    most = max(stack.replicas for name in known for stack in on_record(name))
    lines += ["", f"No stack on record has more than {most} replicas: what larger ones take is extrapolated."]
    lines += [instead(name, other.experiment) for name, other in stands.items() if other.experiment.name != name]
    return "\n".join(lines)


def instead(name, other):
    """What is to be said where another search stands in for one that is not over."""
    own = next(each for each in paper_experiments(ROOT / "experiments" / "paper") if each.name == name)
    words = {"epochs": "epochs in its first stage", "fine_epochs": "epochs in its second", "below": "step sizes below",
             "above": "step sizes above"}  # fmt: skip
    pairs = [(getattr(other.tuning, field), getattr(own.tuning, field), told) for field, told in words.items()]
    unlike = [(f"{theirs} {told}", str(asked)) for theirs, asked, told in pairs if theirs != asked]
    has, wants = (" and ".join(each) for each in zip(*unlike, strict=True)) if unlike else ("", "")
    return (
        f"The search of {name} is not over, and is taken to go, and to want as many runs, as that of {other.name}"
        + (f": with {has}, where {wants} are asked for." if unlike else ".")
    )


def runs_of(name):
    """How many runs the experiment has in all, its search included."""
    return sum(stack.replicas for each in paper() for whose, stack in each if whose == name)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--report", action="store_true", help="the same: nothing is measured here")
    parser.parse_args()
    known = paces()
    tables = [pace_table(known), table("The paper's grid", paper, known)]
    whole = [size for size in SIZES if size >= 8]  # the seeds of an arm are not cut
    print("\n\n".join([*tables, table("A study of its networks, 200 epochs each", study, known, whole)]))


if __name__ == "__main__":
    main()
