"""One optimizer step: ours beside torch's, optax's and the time that moving the bytes takes, all in one run.

    python benchmarks/step.py [--out FILE.json] [--only MODEL ...]   on a GPU where there is one, else on the CPU
    python benchmarks/step.py --report FILE.json ...                 the tables of docs/benchmarks.md

Every contender is an optimizer with parameters and gradients of its own, and what is timed is its ``step()``: back to
back with the gradients staying in place or, where it says so, alone, after a backward pass that made them anew. Before
that, ours are compared with torch and with the float64 oracle. ``wall`` is the host's clock up to the end of the work;
on a GPU ``device`` is the time that its kernels run, by the profiler, and ``host`` the time until the calls return. The
limit is moving as many bytes as the step reads and writes. ``extra`` is memory that a step needs for itself: on a GPU
its peak, on a CPU all that torch allocates on the way, added up (what Numba or the C library allocate is not seen).
Compiling is not timed. Contenders that would take too long are left out of the largest model.
"""

import argparse
import importlib.metadata
import json
import math
import os
import platform
import statistics
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch

import wagmf.torch
from wagmf.methods import method
from wagmf.online import OnlineLearner

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
F32, BF16 = torch.float32, torch.bfloat16
STEPS, LONGEST = 200, 0.2  # the most steps of a round on a GPU, and about the most seconds
BASE = "torch Adam, fused"
COMPILED, OPTAX = "torch Adam, compiled", "optax adam, jit"  # what they need may not be there
SLOW = (COMPILED, OPTAX, "torch Adam, single", "wagmf WADA, plain")  # not for more than 1e9 numbers


def resnet20():
    """For CIFAR-10, with shortcuts that have no weights: 59 tensors."""
    shapes = [(16, 3, 3, 3), (16,), (16,)]
    for stage, width in enumerate((16, 32, 64)):
        for block in range(6):
            before = width // 2 if stage and not block else width
            shapes += [(width, before, 3, 3), (width,), (width,)]
    return [*shapes, (10, 64), (10,)]


def gpt2(d=768, layers=12, words=50257):
    """GPT-2 small, whose head is its embedding: 148 tensors; or another one of its kind."""
    block = [(d,), (d,), (d, 3 * d), (3 * d,), (d, d), (d,), (d,), (d,), (d, 4 * d), (4 * d,), (4 * d, d), (d,)]
    return [(words, d), (1024, d), *block * layers, (d,), (d,)]


ON_GPU = {"ResNet-20": resnet20(), "GPT-2 small": gpt2(), "1.0 B": [(4096, 4096)] * 60}
ON_CPU = {"ResNet-20": resnet20(), "100 × 20 k": [(20_000,)] * 100, "20 M": [(20_000_000,)]}
MODELS = ON_GPU if GPU else ON_CPU


class Timed:
    """Something that takes steps."""

    def prepare(self):
        """What comes before a step and is not timed."""

    def wait(self):
        """Until the work is done."""
        if GPU:
            torch.cuda.synchronize()

    def round(self, steps):
        """Seconds until the work of so many steps is done, and until their calls return."""
        self.wait()
        begin = time.perf_counter()
        for _ in range(steps):
            self.step()
        host = time.perf_counter() - begin
        self.wait()
        return time.perf_counter() - begin, host


class Contender(Timed):
    """An optimizer over tensors of these shapes, which have gradients."""

    def __init__(self, make, shapes, dtype=F32):
        random = torch.Generator(DEVICE).manual_seed(0)
        drawn = [[torch.randn(s, generator=random, device=DEVICE).to(dtype) for s in shapes] for _ in range(2)]
        self.params, self.grads = [x.requires_grad_() for x in drawn[0]], drawn[1]
        for x, g in zip(self.params, self.grads, strict=True):
            x.grad = g
        self.optimizer = make(self.params)

    def step(self):
        self.optimizer.step()


class AfterBackward(Contender):
    """Its gradients are new tensors at every step, from the backward pass of a linear loss that is not timed."""

    def prepare(self):
        self.optimizer.zero_grad(set_to_none=True)
        sum((x * g).sum() for x, g in zip(self.params, self.grads, strict=True)).backward()

    def round(self, steps):
        seen = []
        for _ in range(steps):
            self.prepare()
            seen.append(super().round(1))
        return [sum(column) for column in zip(*seen, strict=True)]


class Compiled(Contender):
    """The step of torch's Adam through torch.compile, which is done with it before the first round."""

    def __init__(self, shapes):
        # A tensor as learning rate is what torch advises, but its foreach takes one on a GPU alone.
        rate = torch.tensor(1e-3, device=DEVICE) if GPU else 1e-3
        super().__init__(theirs(foreach=True, capturable=GPU, lr=rate), shapes)
        torch.compiler.reset()  # else the shapes of another model would make these dynamic
        self.compiled = torch.compile(lambda: self.optimizer.step())
        for _ in range(3):
            self.step()

    def step(self):
        with torch.no_grad():
            self.compiled()


class Optax(Timed):
    """The adam of optax over arrays of these shapes, in one jit that overwrites parameters and state."""

    def __init__(self, shapes):
        os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # or it takes most of the memory for itself
        import jax
        import optax

        if jax.default_backend() != ("gpu" if GPU else "cpu"):
            raise RuntimeError(f"jax runs on {jax.default_backend()}, torch on {DEVICE}")
        adam = optax.adam(1e-3)

        def update(params, state, grads):
            changes, state = adam.update(grads, state, params)
            return optax.apply_updates(params, changes), state

        random = np.random.default_rng(0)
        drawn = [[jax.device_put(random.standard_normal(s, np.float32)) for s in shapes] for _ in range(2)]
        self.params, self.grads = drawn
        self.state = jax.jit(adam.init)(self.params)
        self.update, self.block = jax.jit(update, donate_argnums=(0, 1)), jax.block_until_ready
        for _ in range(3):
            self.step()
        self.wait()

    def step(self):
        self.params, self.state = self.update(self.params, self.state, self.grads)

    def wait(self):
        self.block((self.params, self.state))


class Graph(Timed):
    """The step of a contender as a CUDA graph."""

    def __init__(self, contender):
        self.contender, self.graph = contender, torch.cuda.CUDAGraph()
        for _ in range(3):
            contender.step()
        torch.cuda.synchronize()
        with torch.cuda.graph(self.graph):
            contender.step()
        self.step = self.graph.replay


class Limit(Timed):
    """As many bytes as a step moves, x, m and v both ways and g once, and no arithmetic to speak of.

    On a GPU they are copied. A CPU reads the target of a copy before it writes it; so there one number is added to
    another in place, which moves three of them.
    """

    def __init__(self, shapes, dtype=F32):
        numbers = size(shapes) * 7 // (2 if GPU else 3)
        self.source, self.target = (torch.zeros(numbers, dtype=dtype, device=DEVICE) for _ in range(2))
        self.step = self.copy if GPU else self.add

    def copy(self):
        self.target.copy_(self.source)

    def add(self):
        self.target.add_(self.source)


def ours(name, **options):
    options = {"eps": 1e-8, "fused": True, **options}
    return lambda params: wagmf.torch.WAGMF(params, rule=method(name).rule, **options)


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
        "torch Adam, fused, after backward": lambda: AfterBackward(theirs(fused=True), shapes),
        "wagmf WADA, after backward": lambda: AfterBackward(ours("wada"), shapes),
        COMPILED: lambda: Compiled(shapes),
        OPTAX: lambda: Optax(shapes),
        "torch Adam, foreach": lambda: Contender(theirs(foreach=True), shapes),
        "wagmf WADA, foreach": lambda: Contender(ours("wada", fused=False, foreach=True), shapes),
        "torch Adam, single": lambda: Contender(theirs(foreach=False, fused=False), shapes),
        "wagmf WADA, plain": lambda: Contender(ours("wada", fused=False, foreach=False), shapes),
    }
    if GPU:
        table |= {
            "wagmf WADA, capturable": lambda: Contender(ours("wada", capturable=True), shapes),
            "torch Adam, fused, CUDA graph": lambda: Graph(Contender(theirs(fused=True, capturable=True), shapes)),
            "wagmf WADA, CUDA graph": lambda: Graph(Contender(ours("wada", capturable=True), shapes)),
            "wagmf WADA, bf16, fp32 state": lambda: Contender(ours("wada"), shapes, BF16),
            "wagmf WADA, all bf16": lambda: Contender(ours("wada", **low), shapes, BF16),
            "wagmf WADA, all bf16, stochastic": lambda: Contender(
                ours("wada", stochastic_rounding=True, **low), shapes, BF16
            ),
        }
    return {name: make for name, make in table.items() if name not in SLOW or size(shapes) <= 1e9}


def size(shapes):
    return sum(math.prod(shape) for shape in shapes)


def made(makers):
    """The contenders, less those that need what is not here."""
    ready = {}
    for name, make in makers.items():
        try:
            ready[name] = make()
        except Exception as why:
            if name not in (COMPILED, OPTAX):
                raise
            print(f"{name} is left out: {why!r}", file=sys.stderr)
    return ready


def check(shapes):
    """Ours is Adam where torch's is, after three steps."""
    a, b = Contender(ours("adam", lr=1e-3), shapes), Contender(theirs(lr=1e-3, fused=True), shapes)
    for _ in range(3):
        a.step()
        b.step()
    worst = max((x - y).abs().max().item() for x, y in zip(a.params, b.params, strict=True))
    assert worst < 1e-5, f"after three steps ours is {worst:.1e} away from torch's"
    return worst


def check_oracle(shapes, lr=0.1):
    """Ours is WADA where the float64 oracle is, after three long steps of the first numbers, which walk alone."""
    one = Contender(ours("wada", lr=lr), shapes)
    x, g = (each[0].detach().flatten()[:2000].double().cpu().numpy() for each in (one.params, one.grads))
    oracle = OnlineLearner(method("wada").rule, x, lr=lr, eps=1e-8)
    for _ in range(3):
        one.step()
        oracle.update(g)
    right = oracle.predict()
    worst = np.abs(one.params[0].detach().flatten()[:2000].double().cpu().numpy() - right).max().item()
    assert worst < 1e-4 * np.abs(right).max(), f"after three steps ours is {worst:.1e} away from the oracle"
    return worst


def on_gpu(makers, rounds=7):
    """Microseconds per step: the medians of rounds in which all that are given take turns."""
    ready = made(makers)
    steps = {name: fitting(one) for name, one in ready.items()}
    seen = {name: [] for name in ready}
    for _ in range(rounds):
        for name, one in ready.items():
            seen[name].append(one.round(steps[name]))
    times = {}
    for name, one in ready.items():
        wall, host = (statistics.median(column) / steps[name] * 1e6 for column in zip(*seen[name], strict=True))
        # The profiler is slow for those that have many kernels, and these take few steps.
        row = {"wall": wall, "device": busy(one, max(3, steps[name] // 10)), "host": host, "extra": extra(one)}
        times[name] = {key: value for key, value in row.items() if value is not None}
        print(name, {key: round(value, 1) for key, value in times[name].items()}, file=sys.stderr)
    return times


def fitting(one):
    """As many steps as fit into a round, after some to warm up."""
    one.round(5)
    begin = time.perf_counter()
    one.round(3)
    return min(STEPS, max(1, int(LONGEST * 3 / (time.perf_counter() - begin))))


def busy(one, steps):
    """Microseconds per step that kernels and copies run on the device; None where the profiler sees none."""
    if isinstance(one, AfterBackward):  # whose other kernels are not the step's
        return statistics.mean(kernels(one, 1) for _ in range(3))
    return kernels(one, steps) / steps or None


def kernels(one, steps):
    """Microseconds that kernels and copies of so many steps run."""
    one.prepare()
    one.wait()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(steps):
            one.step()
        one.wait()
    return sum(event.self_device_time_total for event in profile.key_averages())


def extra(one):
    """MiB that a step allocates for itself: the peak on a GPU, the sum on a CPU; None where it is not torch's step."""
    if isinstance(one, (Limit, Optax)):
        return None
    if isinstance(one, Graph):  # which has set aside what its step needs
        one = one.contender
    one.prepare()
    one.wait()
    if GPU:
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        one.step()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        one.step()
    return sum(max(event.self_cpu_memory_usage, 0) for event in profile.events()) / 2**20


def on_cpu(makers, rounds):
    """Microseconds per step: the medians of rounds in which all take turns, so that a busy machine hits them alike."""
    ready = made(makers)
    seen = {name: [] for name in ready}
    for number in range(rounds + 3):
        for name, one in ready.items():
            wall, _ = one.round(1)
            if number >= 3:
                seen[name].append(wall * 1e6)
    times = {}
    for name, one in ready.items():
        row = {"wall": statistics.median(seen[name]), "best": min(seen[name]), "extra": extra(one)}
        times[name] = {key: value for key, value in row.items() if value is not None}
    return times


def circumstances():
    """When, where and with what it is measured."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": torch.cuda.get_device_name() if GPU else f"{processor()}, {torch.get_num_threads()} threads",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "versions": versions(),
    }


def measured(options):
    report = {
        **circumstances(),
        "how": f"medians of rounds of up to {STEPS} steps" if GPU else "medians of steps taken in turns",
        "models": {},
    }
    for name, shapes in MODELS.items():
        if options.only and name not in options.only:
            continue
        numbers = size(shapes)
        checks = {"off": check(shapes), "off_oracle": check_oracle(shapes)}
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
        report["models"][name] = {"tensors": len(shapes), "numbers": numbers, **checks, "times": times}
    return report


def versions():
    """Of what may have a part in it, where it is present."""
    found = {}
    for name in ("Triton", "Numba", "jax", "optax"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def processor():
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def table(report):
    """The report as Markdown: microseconds, ratios to torch's fused Adam, and MiB."""
    also = "".join(f", {name} {version}" for name, version in report.get("versions", {}).items())
    when = f"{report['date']}; " if "date" in report else ""
    lines = [
        f"**{report['machine']}**, torch {report['torch']}{also}; {when}{report['how']}; microseconds per `step()`.",
        "",
    ]
    for name, model in report["models"].items():
        times = model["times"]
        columns = [key for key in ("wall", "device", "host") if key in times[BASE]]
        heads = [head for key in columns for head in (f"{key} µs", "× torch")]
        if "extra" in times[BASE]:  # which reports of old do not tell
            heads.append("extra MiB")
        lines += [
            f"{name}: {model['tensors']} tensors, {model['numbers']:,} numbers", "",
            "| | " + " | ".join(heads) + " |",
            "|---|" + "---:|" * len(heads),
        ]  # fmt: skip
        for who, seen in times.items():
            cells = []
            for key in columns:
                cells += [f"{seen[key]:,.1f}", f"{seen[key] / times[BASE][key]:.2f}"] if key in seen else ["", ""]
            if "extra MiB" in heads:
                cells.append(f"{seen['extra']:,.1f}" if "extra" in seen else "")
            lines.append(f"| {who} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="where to write the figures, as JSON")
    parser.add_argument("--report", type=Path, nargs="+", help="print the tables of earlier runs")
    parser.add_argument("--rounds", type=int, default=200, help="rounds on the CPU; a fifth of them for 20 M")
    parser.add_argument("--only", action="append", choices=list(MODELS), help="a model to run; may be given repeatedly")
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
