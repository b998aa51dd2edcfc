"""What would it take on 1, 8, 64 and 512 GPUs? The paper's grid, and a study of 100,000 runs: a simulation.

    python benchmarks/cluster.py [--report]

What a stack takes is measured: from the records of the reproduction the pace of full stacks, and what they took
besides; from its costs the pace of a network alone; a step of n replicas takes a + b·n. How stacks are handed out is
simulated as the sweep does it: stage after stage of an experiment, each experiment as soon as it may, a stack to
whichever GPU is free first. The size of stacks is the one of those tried that ends first: large ones waste less, small
ones keep more GPUs busy. A GPU is lost now and then, and its stack goes on from its checkpoint.
"""

import argparse
import heapq
import math
import random
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from wagmf.lab.paper_runs import paper_experiments
from wagmf.lab.records import restore

ROOT = Path(__file__).parent.parent
RECORDS = ROOT / "reproduction" / "records"
GPUS = (1, 8, 64, 512)
SIZES = (1, 2, 3, 6, 12, 24, 48)
RUNS = 100_000
IMAGES = {"mnist": 60_000, "cifar10": 50_000, "cifar100": 50_000}
FULL = 24  # replicas of a stack that is full enough to say how fast a full one is
TESTED = 1 + 10_000 / 50_000 / 3  # every epoch ends with a test, which goes forward only
BETWEEN_LOSSES = 7 * 24 * 3600.0  # seconds until a GPU is lost, in the mean
BETWEEN_CHECKPOINTS = 5  # epochs
FINE = 5  # step sizes of the second stage


@dataclass(frozen=True)
class Pace:
    """Seconds of a stack: until it is ready, and of a step, for itself and for each replica."""

    ready: float
    step: float
    replica: float


def paces():
    """By model, from its fastest full stack; softmax regression alone is taken to be as slow as an MLP alone."""
    costs = pd.read_csv(RECORDS / "costs.csv").groupby("model")["ms"].mean()
    found = {}
    for model in ("softmax", "mlp", "cnn", "resnet20"):
        step, size, ready = min(stack_times(model))
        alone = TESTED * costs.get(model, costs["mlp"]) / 1e3
        replica = (step * size - alone) / (size - 1)
        found[model] = Pace(ready, alone - replica, replica)
    return found


def stack_times(model):
    """Of every full stack on record: seconds of a step by replica, its size, seconds that did not go into steps."""
    stacks = {}
    for path in sorted(RECORDS.glob(f"{model}-on-*.jsonl.gz")):
        for run in restore(path)[0]:
            stacks.setdefault((run.ended, run.seconds), []).append(run)
    for (_, seconds), runs in stacks.items():
        config, step = runs[0].config, TESTED * runs[0].step_ms / 1e3
        steps = config["epochs"] * (IMAGES[config["dataset"]] // config["batch"])
        if len(runs) >= FULL:
            yield step, len(runs), max(0.0, seconds - steps * step * len(runs))


@dataclass(frozen=True)
class Stage:
    """Runs that may be trained at once."""

    model: str
    runs: int
    epochs: int
    steps: int  # of an epoch


def paper():
    """Experiments, each as its stages; a search that goes beyond its first grid takes a little longer."""
    found = []
    for each in paper_experiments(ROOT / "experiments" / "paper", []):
        problem, tuning = each.problem, each.tuning
        steps = IMAGES[problem.dataset] // problem.batch
        methods, searched = len({arm.label for arm in each.arms}), len(tuning.seeds)
        found.append(
            [
                Stage(problem.model, len(each.arms) * searched, tuning.epochs or problem.epochs, steps),
                Stage(problem.model, FINE * methods * searched, tuning.fine_epochs or problem.epochs, steps),
                Stage(problem.model, methods * (len(each.seeds) - searched), problem.epochs, steps),
            ]
        )
    return found


def study():
    """As many runs of the networks of the paper's grid, full length, without stages."""
    finals = [stages[-1] for stages in paper() if stages[-1].model != "softmax"]
    return [[Stage(each.model, RUNS // len(finals), each.epochs, each.steps)] for each in finals]


def cut(stage, size, pace):
    """Seconds of each stack, and of what is lost with one between two checkpoints."""
    count = math.ceil(stage.runs / size)
    sizes = [stage.runs // count + (k < stage.runs % count) for k in range(count)]
    steps = stage.epochs * stage.steps
    return [
        (pace.ready + steps * (pace.step + pace.replica * n), BETWEEN_CHECKPOINTS / stage.epochs, pace.ready)
        for n in sizes
    ]


def simulate(experiments, gpus, size, known, seed=0):
    """Seconds until all is done, seconds in which GPUs were busy, and how many were lost."""
    some = random.Random(seed)
    free = [0.0] * gpus
    waiting = [(0.0, number, 0) for number in range(len(experiments))]  # when, which experiment, which stage
    heapq.heapify(waiting)
    end = busy = 0.0
    lost = 0
    while waiting:
        start, number, place = heapq.heappop(waiting)
        stage, ends = experiments[number][place], []
        for seconds, unsaved, ready in sorted(cut(stage, size, known[stage.model]), reverse=True):
            losses = 0
            left = some.expovariate(1 / BETWEEN_LOSSES)
            while left < seconds:  # it goes on elsewhere, from the last checkpoint
                losses += 1
                seconds += ready + some.random() * unsaved * seconds
                left += some.expovariate(1 / BETWEEN_LOSSES)
            began = max(start, heapq.heappop(free))
            heapq.heappush(free, began + seconds)
            ends.append(began + seconds)
            busy, lost = busy + seconds, lost + losses
        end = max(end, *ends)
        if place + 1 < len(experiments[number]):
            heapq.heappush(waiting, (max(ends), number, place + 1))
    return end, busy, lost


def rows(experiments, known):
    for gpus in GPUS:
        tried = {size: simulate(experiments, gpus, size, known) for size in SIZES}
        size = min(tried, key=lambda size: tried[size][0])
        yield gpus, size, *tried[size]


def table(title, experiments, known):
    runs = sum(stage.runs for stages in experiments for stage in stages)
    lines = [f"**{title}** ({runs:,} runs)", ""]
    lines += ["| GPUs | replicas in a stack, at most | hours | GPU hours | busy | GPUs lost on the way |"]
    lines += ["|--:|--:|--:|--:|--:|--:|"]
    for gpus, size, end, busy, lost in rows(experiments, known):
        hours = f"{end / 3600:,.2f} | {busy / 3600:,.1f}"
        lines.append(f"| {gpus} | {size} | {hours} | {busy / end / gpus:.0%} | {lost} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--report", action="store_true", help="the same: nothing is measured here")
    parser.parse_args()
    known = paces()
    lines = ["| a stack of | is ready after, s | a step takes, ms | and for each replica, ms |", "|---|--:|--:|--:|"]
    lines += [
        f"| {model} | {pace.ready:.0f} | {1e3 * pace.step:.3f} | {1e3 * pace.replica:.4f} |"
        for model, pace in known.items()
    ]
    tables = ["\n".join(lines), table("The paper's grid", paper(), known)]
    print("\n\n".join([*tables, table("A study of its networks, 200 epochs each", study(), known)]))


if __name__ == "__main__":
    main()
