"""The lab's engine: many runs as one stack, beside the same runs one by one, all in one run.

    python benchmarks/lab.py [--out FILE.json] [--only NAME ...]    on a GPU where there is one, else on the CPU
    python benchmarks/lab.py --report FILE.json ...                 the tables of docs/benchmarks.md

On a CPU: runs on digits, as plain torch loops with ``torch.optim.Adam(fused=True)``, and as the stacks that the lab
itself would form of the paper's six methods at five step sizes from five seeds. On a GPU: data as large as CIFAR-10's,
batch 128; a single network, compiled and recorded as a CUDA graph, with fused Adam, beside a stack of six methods and
eight seeds. Stacks do all that training does: batches in a new order, dropout, augmentation of images on the GPU (which
the single network is spared), losses, accuracies, the methods' own updates. Evaluation and compiling are not timed.
Before that, stacks in float64 are compared with plain networks after ten steps.
"""

import argparse
import json
import statistics
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

import wagmf.torch
from wagmf.lab import planning
from wagmf.lab.batches import order
from wagmf.lab.data import Dataset, load
from wagmf.lab.engine import Stack
from wagmf.lab.environment import environment as surroundings
from wagmf.lab.models import initial, zoo
from wagmf.lab.plain import plain
from wagmf.lab.spec import Arm, Problem
from wagmf.methods import PAPER_METHODS, method

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
BATCH = 128
# name: model, its options, step sizes of each method, seeds
ON_GPU = {"MLP": ("mlp", {}, 1, 8), "CNN": ("cnn", {}, 1, 8), "ResNet-20": ("resnet20", {}, 1, 8)}
ON_CPU = {
    "softmax": ("softmax", {}, 5, 5),
    "MLP, 64 wide": ("mlp", {"width": 64}, 5, 5),
    "MLP, 512 wide": ("mlp", {"width": 512}, 5, 5),
}
CASES = ON_GPU if GPU else ON_CPU


def images():
    """As large as CIFAR-10's; what is in the pictures makes no difference to the time."""
    some = np.random.default_rng(0)
    x, y = some.integers(0, 256, (20_000, 3, 32, 32), np.uint8), some.integers(0, 10, 20_000)
    return Dataset("noise", x, y, x[:1000], y[:1000])


def wait():
    if GPU:
        torch.cuda.synchronize()


def first_weights(model, seed):
    return {name: torch.tensor(value) for name, value in initial(model, seed).items()}


class Single:
    """One network in a plain loop: eager on a CPU, compiled and recorded on a GPU."""

    def __init__(self, model, data):
        self.net = plain(model).to(DEVICE)
        self.net.load_state_dict(first_weights(model, 0), strict=False)
        normal = data.normalised()
        self.x, self.y = torch.tensor(normal.x_train).to(DEVICE), torch.tensor(normal.y_train).to(DEVICE)
        self.optimizer = torch.optim.Adam(self.net.parameters(), fused=True, capturable=GPU)
        self.scores = torch.compile(self._scores) if GPU else self._scores
        self.chosen = torch.zeros(BATCH, dtype=torch.int64, device=DEVICE)
        self.sums = torch.zeros(2, device=DEVICE)
        if GPU:
            self.net.to(memory_format=torch.channels_last)
            self._record()

    def _scores(self, x, y):
        with torch.autocast(DEVICE, torch.bfloat16, enabled=GPU):
            logits = self.net(x)
        return F.cross_entropy(logits.float(), y), (logits.argmax(1) == y).float().mean()

    def _step(self):
        x, y = self.x[self.chosen], self.y[self.chosen]
        if GPU:
            x = x.to(memory_format=torch.channels_last)
        loss, hit = self.scores(x, y)
        self.optimizer.zero_grad(set_to_none=not GPU)
        loss.backward()
        self.optimizer.step()
        self.sums += torch.stack((loss.detach(), hit))

    def _record(self):
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(3):
                self._step()
        wait()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self._step()

    def steps(self, count):
        shuffled = torch.randperm(len(self.y), device=DEVICE)
        for step in range(count):
            first = step * BATCH % (len(self.y) - BATCH)
            self.chosen.copy_(shuffled[first : first + BATCH])
            self.graph.replay() if GPU else self._step()


class Stacked:
    """The same as a stack."""

    def __init__(self, problem, model, data, arms, seeds):
        self.stack = Stack(problem, model, data, arms, seeds, DEVICE)
        self.stack.batches.begin(1)
        self.steps(5)
        wait()

    def steps(self, count):
        for _ in range(count):
            self.stack._advance()


def deviation(kind, options):
    """How far a stack in float64 is from plain networks after ten steps, relative to the largest number.

    In float32 rounding alone soon decides on which side of a ReLU a value falls, and networks drift apart.
    """
    data = images() if GPU else load("digits")
    model = zoo(kind, data.shape, data.classes, **options | ({"dropout": 0.0} if kind == "mlp" else {}))
    arms, seeds, worst = [Arm("adam", 1e-3), Arm("wada", 1e-2)], [0, 3], 0.0
    stack = Stack(Problem("any", kind, precision="float64"), model, data, arms, seeds, DEVICE)
    stack.batches.begin(1)
    for _ in range(10):
        stack._advance()
    normal = data.normalised()
    for s, seed in enumerate(seeds):
        for k, arm in enumerate(arms):
            net = plain(model).double().to(DEVICE)
            net.load_state_dict(first_weights(model, seed), strict=False)
            optimizer = wagmf.torch.WAGMF(net.parameters(), lr=arm.lr, rule=method(arm.method).rule)
            chosen = order(seed, 1, len(data.y_train))
            for step in range(10):
                some = chosen[step * BATCH : (step + 1) * BATCH]
                x, y = (
                    torch.tensor(normal.x_train[some]).double().to(DEVICE),
                    torch.tensor(normal.y_train[some]).to(DEVICE),
                )
                optimizer.zero_grad()
                F.cross_entropy(net(x), y).backward()
                optimizer.step()
            for name, param in net.named_parameters():
                far = (stack.params[name][s, k] - param).abs().max() / param.abs().max().clamp(min=1e-3)
                worst = max(worst, far.item())
    return worst


def seconds(works, rounds):
    """The median time of each of some pieces of work, taken in turns."""
    took = [[] for _ in works]
    for _ in range(rounds):
        for times, work in zip(took, works, strict=True):
            wait()
            began = time.perf_counter()
            work()
            wait()
            times.append(time.perf_counter() - began)
    return [statistics.median(times) for times in took]


def measure(name, rounds):
    kind, options, rates, seeds = CASES[name]
    data = images() if GPU else load("digits")
    model = zoo(kind, data.shape, data.classes, **options)
    problem = Problem("any", kind, shift=0.1 if GPU else 0.0, flip=GPU)
    arms = [Arm(method, 1e-3 * 1.5**k) for method in PAPER_METHODS for k in range(rates)]
    size = len(arms) * seeds if GPU else min(len(arms) * seeds, planning.stack_size(problem, model, DEVICE))
    seeds = min(seeds, size)
    single = Single(model, data)
    began = time.perf_counter()
    stacked = Stacked(problem, model, data, arms[: max(1, size // seeds)], list(range(seeds)))
    ready = time.perf_counter() - began
    replicas = len(stacked.stack)
    alone_steps = 60 if GPU else 40
    stack_steps = 60 if GPU else max(3, 120 // replicas)
    alone, together = seconds([lambda: single.steps(alone_steps), lambda: stacked.steps(stack_steps)], rounds)
    row = {"name": name, "replicas": replicas, "alone_ms": 1e3 * alone / alone_steps}
    row |= {"stacked_ms": 1e3 * together / stack_steps / replicas, "ready_s": ready}
    return row


def environment():
    known = surroundings(DEVICE)
    told = {name: known[name] for name in ("device", "threads", "torch", "python")}
    return told | {"on": "GPU" if GPU else "CPU", "date": datetime.now(UTC).date().isoformat()}


def report(path):
    found = json.loads(path.read_text())
    where = found["environment"]
    lines = [
        f"**{where['on']}** ({where['device']}, torch {where['torch']}, {where['date']}; "
        f"medians of {found['rounds']} rounds)",
        "",
        "| model | replicas in a stack | alone, ms a step | stacked, ms a step and replica | times faster |"
        " float64, from plain networks |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for row in found["rows"]:
        cells = [row["name"], str(row["replicas"]), f"{row['alone_ms']:.3f}", f"{row['stacked_ms']:.4f}"]
        cells += [f"{row['alone_ms'] / row['stacked_ms']:.1f}", f"{row['deviation']:.0e}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def profile(name, steps=3, rows=40):
    """Which kernels a step of a stack spends its time in, per replica."""
    kind, options, rates, seeds = CASES[name]
    data = images()
    arms = [Arm(method, 1e-3 * 1.5**k) for method in PAPER_METHODS for k in range(rates)]
    model = zoo(kind, data.shape, data.classes, **options)
    stacked = Stacked(Problem("any", kind, shift=0.1, flip=True), model, data, arms, list(range(seeds)))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        stacked.steps(steps)
        wait()
    total = {}
    for event in seen.events():
        count, took = total.get(event.name, (0, 0.0))
        total[event.name] = (count + 1, took + event.device_time_total)
    share = steps * len(stacked.stack)
    print(f"{name}: {sum(took for _, took in total.values()) / share:.1f} µs a replica in kernels")
    for kernel, (count, took) in sorted(total.items(), key=lambda item: -item[1][1])[:rows]:
        print(f"{took / share:8.2f} µs {count / steps:6.1f} × {kernel[:120]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="where to write the figures, as JSON")
    parser.add_argument("--report", type=Path, nargs="+", help="print the tables of earlier runs")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", action="append", choices=list(CASES), help="to run; may be given repeatedly")
    parser.add_argument("--profile", action="store_true", help="print where the time of a GPU goes, instead")
    args = parser.parse_args()
    if args.report:
        print("\n".join(report(path) for path in args.report), end="")
        return
    if args.profile:
        for name in args.only or CASES:
            profile(name)
        return
    rows = []
    for name in args.only or CASES:
        far = deviation(*CASES[name][:2])
        assert far < 1e-8, f"{name}: a stack is {far:.1g} from plain networks"
        torch.compiler.reset()
        rows.append(measure(name, args.rounds) | {"deviation": far})
        torch.compiler.reset()
        print(rows[-1], flush=True)
        if args.out:
            found = {"environment": environment(), "rounds": args.rounds, "rows": rows}
            args.out.write_text(json.dumps(found, indent=1) + "\n")
    if args.out:
        print(report(args.out))


if __name__ == "__main__":
    main()
