"""How the lab's convolutions are best cut into programs on this GPU: every cut beside the one in use, layer by layer.

    python benchmarks/tiles.py [--out FILE.json] [--replicas N] [--only LAYER ...] [--near]
    python benchmarks/tiles.py --report FILE.json ...    the best cuts, and what they would save

Layers are those of ResNet-20 and of the CNN at batch 128, forwards, backwards (with the shortcut, ReLU and sums that
belong to it) and for the weights' gradients. A cut is compiled and compared with the one in use on images of noise, in
processes side by side; then all are timed one after the other, by the GPU's clock, and of several launches the median
is told, beside the time in which a copy moves as many bytes as the layer must read and write. ``--near`` lets copies to
shared memory go by way of the nearest cache, which Triton does not do by itself where they are 16 bytes wide.
Where there is no GPU there is nothing to time; with TRITON_INTERPRET=1 a few small images are tried all the same.
"""

import argparse
import itertools
import json
import math
import os
import statistics
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import torch

from wagmf.lab import convolutions
from wagmf.lab.convolutions import _Tiles, convolve, correlate

GPU = torch.cuda.is_available()
DEVICE, TYPE = ("cuda", torch.bfloat16) if GPU else ("cpu", torch.float32)
IMAGES = 128 if GPU else 2
SHARE = 1 if GPU else 4  # of the height and width of images


class Layer(NamedTuple):
    """A kernel of a network: channels and size of the images that are convolved, and what else belongs to it."""

    kind: str
    channels: int
    out: int
    size: int
    times: int  # that ResNet-20 has it

    @property
    def name(self):
        return f"{self.kind}-{self.channels}-{self.out}"

    @property
    def widens(self):
        """Whether there are more channels after it than before; then it halves the images, too."""
        return self.out > self.channels

    @property
    def back(self):
        return self.kind in ("inner", "outer")

    @property
    def read(self):
        """The channels of what is read: backwards those of the result."""
        return self.out if self.back else self.channels

    @property
    def made(self):
        return self.channels if self.back else self.out


# By "inner" the gradient of a block's second convolution is meant, by "outer" that of its first.
LAYERS = [
    *(Layer("forward", c, c, s, n) for c, s, n in ((16, 32, 6), (32, 16, 5), (64, 8, 5))),
    *(Layer("inner", c, c, s, 3) for c, s in ((16, 32), (32, 16), (64, 8))),
    *(Layer("outer", c, c, s, n) for c, s, n in ((16, 32, 3), (32, 16, 2), (64, 8, 2))),
    *(Layer("weights", c, c, s, n) for c, s, n in ((16, 32, 6), (32, 16, 5), (64, 8, 5))),
    Layer("forward", 16, 32, 32, 1),
    Layer("forward", 32, 64, 16, 1),
    Layer("outer", 16, 32, 32, 1),
    Layer("outer", 32, 64, 16, 1),
    Layer("weights", 16, 32, 32, 1),
    Layer("weights", 32, 64, 16, 1),
]


class Cut(NamedTuple):
    """How a kernel is cut up: its tiles, and for gradients of weights into how many parts pixels are."""

    tiles: _Tiles
    splits: int


def table(layer):
    """Which of the kernels' tables has the tiles of a layer, and where in it."""
    if layer.kind != "weights":
        return convolutions._CONVOLVE, layer.read
    return (vars(convolutions), "_WIDENING") if layer.widens else (convolutions._CORRELATE, layer.channels)


def in_use(layer):
    tiles, place = table(layer)
    return Cut(tiles[place], convolutions._SPLITS)


def use(layer, cut):
    tiles, place = table(layer)
    tiles[place], convolutions._SPLITS = cut


def cuts(layer):
    """Those that could be of use: powers of 2 are multiplied together, and no more than fits into a program."""
    now = in_use(layer)
    found = {now: None}
    weights = layer.kind == "weights"
    shapes = [(1, 2)] if layer.widens else [(1, 2), (2, 2)] if weights else [(1, 1), (1, 2), (2, 2), (1, 4)]
    blocks = (16, 32, 64) if weights else (64, 128)
    for block, warps, stages, (tall, wide) in itertools.product(blocks, (4, 8), {3, now.tiles.stages}, shapes):
        for together, splits in itertools.product((1, 2, 4), (4, 8, 12, 16) if weights else (now.splits,)):
            cut = Cut(_Tiles(block, warps, stages, tall, wide, together), splits)
            cells = convolutions._cells(3, 1 + layer.widens, cut.tiles, layer.back)
            made = cells.tall * cells.wide * layer.made
            many = cells.rows if weights else cells.columns
            window = together * layer.read * (cells.columns if weights else 1)
            held = stages * block * (window + made) if weights else stages * window * (block + made)
            sums = made * (window if weights else block) / (32 * warps)  # registers of a thread
            if many % together == 0 and window & (window - 1) == 0 and 2 * held < 200_000 and 8 <= sums <= 160:
                found[cut] = None
    return list(found)


def some(*shape):
    return torch.randn(shape, device=DEVICE).to(TYPE)


def job(layer, replicas):
    """What is launched, on images of noise; and the bytes that it must read and write."""
    torch.manual_seed(0)
    size, stride = layer.size // SHARE, 1 + layer.widens
    before = some(replicas, IMAGES, size, size, layer.channels)
    after = some(replicas, IMAGES, size // stride, size // stride, layer.out)
    weight = torch.randn(replicas, layer.out, layer.channels, 3, 3, device=DEVICE)
    a, b = (2 * each.numel() * replicas // len(each) for each in (before, after))  # bytes, in bfloat16
    if layer.kind == "forward":
        return partial(convolve, before, weight, stride=stride, summed=True), a + b
    if layer.kind == "weights":
        return partial(correlate, before, after, 3, stride), a + b
    back = (size, size)
    if layer.kind == "inner":
        coefficients = torch.rand(replicas, 3, layer.channels, device=DEVICE)
        more = {"beside": before, "coefficients": coefficients, "summed": True}
        return partial(convolve, after, weight, back=back, **more), b + 2 * a
    more = {"skip": after if stride == 2 else before, "gate": before, "beside": before, "summed": True}
    return partial(convolve, after, weight, stride=stride, back=back, **more), b * stride + (5 - stride) * a


def first(result):
    return (result[0] if isinstance(result, tuple) else result).float()


def tried(layer, cut, near):
    """Whether a cut can be compiled and gives what the one in use gives: nothing, or what is wrong."""
    if near:
        by_way_of_the_nearest_cache()
    launched = job(layer, 2)[0]
    right = first(launched())
    use(layer, cut)
    try:
        far = float((first(launched()) - right).norm() / right.norm())
    except Exception as error:  # of many kinds, as many as there are ways not to fit
        return f"{type(error).__name__}: {error}".splitlines()[0][:200]
    return "" if far < 0.02 else f"{far:.3g} away"


def by_way_of_the_nearest_cache():
    from triton import knobs

    def hook(backend=None, stages=None, *_):
        if stages is None:  # asked for what tells such kernels from others
            return "near", "near"
        plain = stages["ptx"]
        stages["ptx"] = lambda *given: plain(*given).replace("cp.async.cg.shared.global", "cp.async.ca.shared.global")

    knobs.runtime.add_stages_inspection_hook = hook


def microseconds(launched, rounds=15):
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(rounds)]
    launched()
    for begin, end in events:
        begin.record()
        launched()
        end.record()
    torch.cuda.synchronize()
    return 1000 * statistics.median(begin.elapsed_time(end) for begin, end in events)


def bandwidth():
    """Bytes a microsecond that a copy reads and writes."""
    x = torch.randn(1 << 29, device=DEVICE)
    y = torch.empty_like(x)
    return 8 * x.numel() / microseconds(lambda: y.copy_(x))


def compiled(layers, near, workers):
    """Every cut that works, of each layer; the reasons of those that do not are printed."""
    asked = [(layer, cut) for layer in layers for cut in cuts(layer)]
    unlike = {(layer, cut._replace(splits=0)): cut for layer, cut in asked}  # of which splits are not: compiled once
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        found = {key: pool.submit(tried, key[0], cut, near) for key, cut in unlike.items()}
        wrong = {key: one.result() for key, one in found.items()}
    for (layer, cut), reason in wrong.items():
        if reason:
            print(f"{layer.name} {tuple(cut.tiles)}: {reason}", file=sys.stderr)
    return [(layer, cut) for layer, cut in asked if not wrong[layer, cut._replace(splits=0)]]


def measure(layers, replicas, near, workers):
    rows, works = [], compiled(layers, near, workers)
    if near:
        by_way_of_the_nearest_cache()
    speed = bandwidth() if GPU else math.nan
    for layer in layers:
        launched, moved = job(layer, replicas)
        now = in_use(layer)
        for cut in (cut for each, cut in works if each == layer):
            use(layer, cut)
            told = {"layer": layer.name, "times": layer.times, "cut": [*cut.tiles, cut.splits], "in_use": cut == now}
            rows.append(told | {"us": microseconds(launched) if GPU else math.nan, "copy_us": moved / speed})
        use(layer, now)
        del launched
    device = torch.cuda.get_device_name() if GPU else "the interpreter, untimed"
    return {"device": device, "torch": torch.__version__, "replicas": replicas, "near": near, "rows": rows}


def report(found):
    print(f"{found['device']}, torch {found['torch']}, {found['replicas']} replicas" + (", near" * found["near"]))
    print("\n| layer | times | in use, µs | copy | best cut | µs | others |\n|---|--:|--:|--:|---|--:|---|")
    total = {"us": 0.0, "best": 0.0, "copy_us": 0.0}
    for name in dict.fromkeys(row["layer"] for row in found["rows"]):
        rows = sorted((row for row in found["rows"] if row["layer"] == name), key=lambda row: row["us"])
        now = next(row for row in rows if row["in_use"])
        best, *others = rows
        words = "; ".join(f"{row['cut']} {row['us']:.1f}" for row in others[:3])
        print(f"| {name} | {now['times']} | {now['us']:.1f} | {now['copy_us']:.1f} ", end="")
        print(f"| {best['cut']} | {best['us']:.1f} | {words} |")
        for key, value in (("us", now["us"]), ("best", best["us"]), ("copy_us", now["copy_us"])):
            total[key] += now["times"] * value
    print(f"\nResNet-20's: {total['us']:.0f} µs, with the best cuts {total['best']:.0f}, a copy {total['copy_us']:.0f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--replicas", type=int, default=44 if GPU else 2)
    parser.add_argument("--only", nargs="+", choices=[layer.name for layer in LAYERS])
    parser.add_argument("--near", action="store_true")
    parser.add_argument("--report", type=Path, nargs="+")
    chosen = parser.parse_args()
    if chosen.report:
        for path in chosen.report:
            report(json.loads(path.read_text()))
        return
    if not GPU and os.environ.get("TRITON_INTERPRET") != "1":
        print("There is no GPU here whose kernels could be timed.")
        return
    if chosen.near:  # Triton up to 3.6 does not tell what it has compiled so from what it has not
        os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp()
    layers = [layer for layer in LAYERS if not chosen.only or layer.name in chosen.only]
    found = measure(layers, chosen.replicas, chosen.near, max(1, os.cpu_count() or 1))
    if chosen.out:
        chosen.out.write_text(json.dumps(found) + "\n")
    report(found)


if __name__ == "__main__":
    main()
