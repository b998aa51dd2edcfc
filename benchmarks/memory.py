"""What an optimizer holds in memory, and what a step takes: ours beside torch's AdamW, in float32 and bfloat16.

    python benchmarks/memory.py [--out FILE.json] [--rounds N]    on a GPU where there is one, else on the CPU
    python benchmarks/memory.py --report FILE.json ...            the table of docs/benchmarks.md

The parameters are those of a transformer. ``state`` is counted from the tensors of the optimizer's state, and checked
against what the first step has left allocated, by torch's own account. ``all`` adds parameters and gradients. A step
may need more for a while: ``peak`` is the most that the second one has allocated, over what was there before it. Times
are of ``step()`` by the host's clock, up to the end of the work. In a round everyone takes two steps, the second of
which is timed, in an order that is drawn anew; ratios are taken within rounds, and of them the median and the quartiles
are told, so that a machine which does other things meanwhile hits all alike. AdamW has a twin: as far as its ratio is
from 1, the others' may be off.
"""

import argparse
import gc
import json
import random
import statistics
import tempfile
from pathlib import Path

import torch
from step import BF16, F32, GPU, Contender, circumstances, gpt2, ours, size

# A CPU takes seconds for a step of GPT-2 small where it has no kernel.
MODELS = {"GPT-2 small": gpt2()} if GPU else {"GPT-2 of 4 layers, 256 wide": gpt2(256, 4, 8192)}
BASE, TWIN = "torch AdamW, float32", "the same again"


def adamw(**options):
    return lambda params: torch.optim.AdamW(params, fused=True, **options)


def wada(name="wada", **options):
    """Ours by whatever path fits: the kernel of a CPU does not round at random."""
    return ours(name, fused=None, weight_decay=0.01, decoupled_weight_decay=True, **options)


# How it is made, and the type of its parameters.
CONTENDERS = {
    BASE: (adamw(), F32),
    TWIN: (adamw(), F32),
    "wagmf WADA, float32": (wada(), F32),
    "torch AdamW with amsgrad, float32": (adamw(amsgrad=True), F32),
    "wagmf AMSGrad, float32": (wada("amsgrad"), F32),
    "torch AdamW, bfloat16": (adamw(), BF16),
    "wagmf WADA, bfloat16, state in float32": (wada(), BF16),
    "wagmf WADA, bfloat16": (wada(state_dtype=BF16), BF16),
    "wagmf WADA, bfloat16, stochastic rounding": (wada(state_dtype=BF16, stochastic_rounding=True), BF16),
}


def allocated(one):
    """Bytes that a step leaves allocated, and the most that it has allocated on the way, by torch's account."""
    if GPU:
        # What was asked for: blocks that are dealt out may be larger, by up to a megabyte each.
        torch.cuda.synchronize()
        before = torch.cuda.memory_stats()["requested_bytes.all.current"]
        torch.cuda.reset_peak_memory_stats()
        one.step()
        torch.cuda.synchronize()
        after = torch.cuda.memory_stats()
        return after["requested_bytes.all.current"] - before, after["requested_bytes.all.peak"] - before
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        one.step()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profile.export_chrome_trace(file.name)
        events = json.loads(Path(file.name).read_text())["traceEvents"]
    now = most = 0
    for event in sorted((event for event in events if event["name"] == "[memory]"), key=lambda event: event["ts"]):
        now += event["args"]["Bytes"]
        most = max(most, now)
    return now, most


def counted(optimizer):
    """Bytes of the tensors of the state; a tensor that several parameters share counts once."""
    held = {x.untyped_storage().data_ptr(): x for state in optimizer.state.values() for x in state.values()}
    return sum(x.untyped_storage().nbytes() for x in held.values())


def memory(one):
    """Bytes for each parameter, of a contender that has taken no step yet; and how the step was taken."""
    numbers = sum(x.numel() for x in one.params)
    gc.collect()
    left, _ = allocated(one)
    state, (_, peak) = counted(one.optimizer), allocated(one)
    # Some small things are kept for the next step.
    assert abs(left - state) < 0.01 * state, f"{state} bytes are counted, {left} were allocated"
    given = sum(x.nbytes + x.grad.nbytes for x in one.params)
    paths = getattr(one.optimizer, "paths", None)
    path = paths[0].split(" by ")[1].split(",")[0] if paths else "fused"
    return {"state": state / numbers, "all": (given + state) / numbers, "peak": peak / numbers, "path": path}


def times(ready, rounds):
    """Milliseconds of every contender in every round."""
    seen, names = {name: [] for name in ready}, list(ready)
    drawn = random.Random(0)
    for number in range(rounds + 1):
        drawn.shuffle(names)
        for name in names:
            ready[name].round(1)  # so that what it reads is where its own step leaves it, not its neighbour's
            wall, _ = ready[name].round(1)
            if number:
                seen[name].append(round(wall * 1e3, 4))
    return seen


def measured(rounds):
    report = {**circumstances(), "rounds": rounds, "models": {}}
    for model, shapes in MODELS.items():
        ready, rows = {}, {}
        for name, (make, dtype) in CONTENDERS.items():
            ready[name] = Contender(make, shapes, dtype)
            rows[name] = memory(ready[name])
        for name, seen in times(ready, rounds).items():
            rows[name]["ms"] = seen
        report["models"][model] = {"tensors": len(shapes), "numbers": size(shapes), "rows": rows}
    return report


def table(report):
    """The report as Markdown."""
    also = "".join(f", {name} {version}" for name, version in report["versions"].items() if name in ("Triton", "Numba"))
    how = f"medians of {report['rounds']} rounds, with quartiles of the ratios"
    lines = [f"**{report['machine']}**, torch {report['torch']}{also}; {report['date']}; {how}."]
    for model, seen in report["models"].items():
        lines += [
            "",
            f"{model}: {seen['tensors']} tensors, {seen['numbers']:,} parameters; bytes are for each of them",
            "",
            "| | state | × AdamW | all | peak | path | ms a step | × AdamW |",
            "|---|---:|---:|---:|---:|---|---:|---:|",
        ]
        base = seen["rows"][BASE]
        for name, row in seen["rows"].items():
            ratios = [one / other for one, other in zip(row["ms"], base["ms"], strict=True)]
            low, middle, high = statistics.quantiles(ratios, n=4)
            cells = [f"{row['state']:.2f}", f"{row['state'] / base['state']:.2f}", f"{row['all']:.2f}",
                     f"{row['peak']:.2f}", row["path"], f"{statistics.median(row['ms']):.2f}",
                     f"{middle:.2f} ({low:.2f} to {high:.2f})"]  # fmt: skip
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="where to write the figures, as JSON")
    parser.add_argument("--report", type=Path, nargs="+", help="print the tables of earlier runs")
    parser.add_argument("--rounds", type=int, default=40, help="at least 2: the table has quartiles")
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error(f"--rounds {options.rounds} must be at least 2")
    if options.report:
        print("\n".join(table(json.loads(path.read_text())) for path in options.report), end="")
        return
    report = measured(options.rounds)
    print(table(report))
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
