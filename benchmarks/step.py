"""One optimizer step: ours beside torch.optim.Adam and the time that moving the bytes takes, all in one run.

    python benchmarks/step.py [--out FILE.json]        on a GPU where there is one, else on the CPU
    python benchmarks/step.py --report FILE.json ...   the tables of docs/benchmarks.md

Every contender is an optimizer with parameters and gradients of its own, and what is timed is its ``step()``: back to
back, the gradients staying in place or, where it says so, moving every time. Before that, ours are compared with torch.
``wall`` is the host's clock up to the end of the work; on a GPU ``device`` is the time that its kernels run, by the
profiler, and ``host`` the time until the calls return. The limit is moving as many bytes as the step reads and writes.
"""

import argparse
import json
import math
import os
import platform
import statistics
import sys
import time
from pathlib import Path

import torch

import wagmf.torch
from wagmf.methods import method

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
F32, BF16 = torch.float32, torch.bfloat16
STEPS = 200
BASE = "torch Adam, fused"


def resnet20():
    """For CIFAR-10, with shortcuts that have no weights: 59 tensors."""
    shapes = [(16, 3, 3, 3), (16,), (16,)]
    for stage, width in enumerate((16, 32, 64)):
        for block in range(6):
            before = width // 2 if stage and not block else width
            shapes += [(width, before, 3, 3), (width,), (width,)]
    return [*shapes, (10, 64), (10,)]


def gpt2():
    """GPT-2 small, whose head is its embedding: 148 tensors."""
    d = 768
    block = [(d,), (d,), (d, 3 * d), (3 * d,), (d, d), (d,), (d,), (d,), (d, 4 * d), (4 * d,), (4 * d, d), (d,)]
    return [(50257, d), (1024, d), *block * 12, (d,), (d,)]


ON_GPU = {"ResNet-20": resnet20(), "GPT-2 small": gpt2(), "1.0 B": [(4096, 4096)] * 60}
ON_CPU = {"ResNet-20": resnet20(), "100 × 20 k": [(20_000,)] * 100, "20 M": [(20_000_000,)]}


class Contender:
    """An optimizer over tensors of these shapes, which have gradients."""

    def __init__(self, make, shapes, dtype=F32, moving=False):
        random = torch.Generator(DEVICE).manual_seed(0)
        drawn = [[torch.randn(s, generator=random, device=DEVICE).to(dtype) for s in shapes] for _ in range(2)]
        self.params, self.grads = [x.requires_grad_() for x in drawn[0]], [drawn[1]]
        if moving:
            self.grads.append([g.clone() for g in self.grads[0]])
        self.optimizer, self.moving, self.taken = make(self.params), moving, 0
        self.give()

    def give(self):
        for x, g in zip(self.params, self.grads[self.taken % len(self.grads)], strict=True):
            x.grad = g

    def step(self):
        if self.moving:
            self.taken += 1
            self.give()
        self.optimizer.step()


class Limit:
    """As many bytes as a step moves, x, m and v both ways and g once, and no arithmetic to speak of.

    On a GPU they are copied. A CPU reads the target of a copy before it writes it; so there one number is added to
    another in place, which moves three of them.
    """

    def __init__(self, shapes, dtype=F32):
        size = sum(math.prod(shape) for shape in shapes) * 7 // (2 if GPU else 3)
        self.source, self.target = (torch.zeros(size, dtype=dtype, device=DEVICE) for _ in range(2))
        self.step = self.copy if GPU else self.add

    def copy(self):
        self.target.copy_(self.source)

    def add(self):
        self.target.add_(self.source)


def ours(name, **options):
    return lambda params: wagmf.torch.WAGMF(params, rule=method(name).rule, eps=1e-8, fused=True, **options)


def theirs(**options):
    return lambda params: torch.optim.Adam(params, **options)


def contenders(shapes):
    """Makers, so that those of a large model need not all be in memory at once."""
    low = {"state_dtype": BF16}
    table = {
        "moving as many bytes": lambda: Limit(shapes),
        BASE: lambda: Contender(theirs(fused=True), shapes),
        "wagmf Adam": lambda: Contender(ours("adam"), shapes),
        "wagmf WADA": lambda: Contender(ours("wada"), shapes),
        "torch Adam, foreach": lambda: Contender(theirs(foreach=True), shapes),
    }
    if GPU:
        table |= {
            "torch Adam, fused, gradients moving": lambda: Contender(theirs(fused=True), shapes, moving=True),
            "wagmf WADA, gradients moving": lambda: Contender(ours("wada"), shapes, moving=True),
            "wagmf WADA, capturable": lambda: Contender(ours("wada", capturable=True), shapes),
            "wagmf WADA, bf16, fp32 state": lambda: Contender(ours("wada"), shapes, BF16),
            "wagmf WADA, all bf16": lambda: Contender(ours("wada", **low), shapes, BF16),
            "wagmf WADA, all bf16, stochastic": lambda: Contender(
                ours("wada", stochastic_rounding=True, **low), shapes, BF16
            ),
        }
    return table


def check(shapes):
    """Ours is Adam where torch's is, after three steps."""
    a, b = Contender(ours("adam", lr=1e-3), shapes), Contender(theirs(lr=1e-3, fused=True), shapes)
    for _ in range(3):
        a.step()
        b.step()
    worst = max((x - y).abs().max().item() for x, y in zip(a.params, b.params, strict=True))
    assert worst < 1e-5, f"after three steps ours is {worst:.1e} away from torch's"
    return worst


def on_gpu(makers, rounds=7):
    """Microseconds per step: the medians of rounds in which all that are given take turns."""
    ready = {name: make() for name, make in makers.items()}
    seen = {name: [] for name in ready}
    for number in range(rounds + 1):
        for name, one in ready.items():
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(STEPS if number else 5):
                one.step()
            host = time.perf_counter() - begin
            torch.cuda.synchronize()
            if number:
                seen[name].append((time.perf_counter() - begin, host))
    times = {}
    for name, one in ready.items():
        wall, host = (statistics.median(column) / STEPS * 1e6 for column in zip(*seen[name], strict=True))
        times[name] = {"wall": wall, "device": busy(one), "host": host}
        print(name, {key: round(value, 1) for key, value in times[name].items()}, file=sys.stderr)
    return times


def busy(one, steps=20):
    """Microseconds per step that kernels and copies run on the device."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(steps):
            one.step()
        torch.cuda.synchronize()
    return sum(event.self_device_time_total for event in profile.key_averages()) / steps


def on_cpu(makers, rounds):
    """Microseconds per step: the medians of rounds in which all take turns, so that a busy machine hits them alike."""
    ready = {name: make() for name, make in makers.items()}
    times = {name: [] for name in ready}
    for number in range(rounds + 3):
        for name, one in ready.items():
            begin = time.perf_counter()
            one.step()
            if number >= 3:
                times[name].append(time.perf_counter() - begin)
    return {name: {"wall": statistics.median(seen) * 1e6, "best": min(seen) * 1e6} for name, seen in times.items()}


def measured(options):
    machine = torch.cuda.get_device_name() if GPU else f"{processor()}, {torch.get_num_threads()} threads"
    report = {"machine": machine, "torch": torch.__version__, "python": platform.python_version(), "models": {}}
    report["how"] = f"medians of rounds of {STEPS} steps back to back" if GPU else "medians of steps taken in turns"
    for name, shapes in (ON_GPU if GPU else ON_CPU).items():
        numbers = sum(math.prod(shape) for shape in shapes)
        difference = check(shapes)
        makers = contenders(shapes)
        if GPU and numbers < 1e9:
            times = on_gpu(makers)
        elif GPU:  # too large for all to be in memory at once
            times = {}
            for who, make in makers.items():
                times |= on_gpu({who: make}, 3)
                torch.cuda.empty_cache()
        else:
            rounds = options.rounds if numbers < 10_000_000 else max(5, options.rounds // 5)
            times = on_cpu(makers, rounds)
        report["models"][name] = {"tensors": len(shapes), "numbers": numbers, "off": difference, "times": times}
    return report


def processor():
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def table(report):
    """The report as Markdown: microseconds, and ratios to torch's fused Adam."""
    lines = [f"**{report['machine']}**, torch {report['torch']}; {report['how']}; microseconds per `step()`.", ""]
    for name, model in report["models"].items():
        times = model["times"]
        columns = [key for key in ("wall", "device", "host") if key in times[BASE]]
        lines += [
            f"{name}: {model['tensors']} tensors, {model['numbers']:,} numbers", "",
            "| | " + " | ".join(f"{key} µs | × torch" for key in columns) + " |",
            "|---|" + "---:|---:|" * len(columns),
        ]  # fmt: skip
        for who, seen in times.items():
            cells = [f"{seen[key]:,.1f} | {seen[key] / times[BASE][key]:.2f}" for key in columns]
            lines.append(f"| {who} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="where to write the figures, as JSON")
    parser.add_argument("--report", type=Path, nargs="+", help="print the tables of earlier runs")
    parser.add_argument("--rounds", type=int, default=200, help="rounds on the CPU; a fifth of them for 20 M")
    options = parser.parse_args()
    if options.report:
        print("\n".join(table(json.loads(path.read_text())) for path in options.report), end="")
        return
    report = measured(options)
    print(table(report))
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    if "OMP_WAIT_POLICY" in os.environ:
        print("OMP_WAIT_POLICY is set, which changes what threads cost", file=sys.stderr)
    main()
