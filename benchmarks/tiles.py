"""How the lab's convolutions are best cut into programs on this GPU: every cut that fits, beside the one in use.

    python benchmarks/tiles.py [--out FILE.json] [--replicas N] [--only LAYER ...] [--near]
    python benchmarks/tiles.py --report FILE.json ...    the best cuts, and what they would save

The layers are those of ResNet-20 with 3 × 3 pixels at batch 128: forwards, backwards with the shortcut, ReLU and sums
that belong to it, and the gradients of weights. A cut is compiled and compared with the one in use on images of noise,
in processes side by side. Then all are timed, one after the other and recorded as CUDA graphs, as in training: the
median of several replays by the GPU's clock, beside the time in which a copy moves as many bytes as the layer must
read and write. Layers share cuts as the kernels' tables have them, so the best are looked for table by table.
``--near`` lets copies to shared memory go by way of the nearest cache, which Triton does not do by itself where they
are 16 bytes wide.
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
from contextlib import contextmanager
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


class Cut(NamedTuple):
    """How a kernel is cut up: its tiles, and for gradients of weights into how many parts pixels are."""

    tiles: _Tiles
    splits: int


class Layer(NamedTuple):
    """A kernel of a network: channels before and after its convolution, the size of images before, what it computes."""

    kind: str  # "inner" is the gradient by a block's second convolution, "outer" that by its first
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

    @property
    def entry(self):
        """Where among the kernels' tables its tiles are."""
        if self.kind != "weights":
            return "_CONVOLVE", self.read
        return ("_WIDENING", None) if self.widens else ("_CORRELATE", self.channels)


LAYERS = [
    *(Layer("forward", c, c, s, n) for c, s, n in ((16, 32, 6), (32, 16, 5), (64, 8, 5))),
    *(Layer("inner", c, c, s, 3) for c, s in ((16, 32), (32, 16), (64, 8))),
    *(Layer("outer", c, c, s, n) for c, s, n in ((16, 32, 3), (32, 16, 2), (64, 8, 2))),
    *(Layer("weights", c, c, s, n) for c, s, n in ((16, 32, 6), (32, 16, 5), (64, 8, 5))),
    *(Layer(kind, c, 2 * c, s, 1) for kind in ("forward", "outer", "weights") for c, s in ((16, 32), (32, 16))),
]


def set_to(layer, cut):
    name, channels = layer.entry
    if channels is None:
        setattr(convolutions, name, cut.tiles)
    else:
        getattr(convolutions, name)[channels] = cut.tiles
    convolutions._SPLITS = cut.splits


def _in_use(layer):
    name, channels = layer.entry
    tiles = getattr(convolutions, name)
    return Cut(tiles if channels is None else tiles[channels], convolutions._SPLITS)


IN_USE = {layer: _in_use(layer) for layer in LAYERS}  # before any other is tried


@contextmanager
def using(layer, cut):
    set_to(layer, cut)
    try:
        yield
    finally:
        set_to(layer, IN_USE[layer])


def cuts(layer):
    """Those that could be of use: powers of 2 are multiplied together, and no more than fits into a program."""
    now, weights = IN_USE[layer], layer.kind == "weights"
    found = {now: None}
    shapes = [(1, 2)] if layer.widens else [(1, 2), (2, 2)] if weights else [(1, 1), (1, 2), (2, 2), (1, 4)]
    blocks = (16, 32, 64) if weights else (64, 128)
    # With one stage, what is read goes by way of the nearest cache and of registers; with more it goes past both.
    for block, warps, stages, (tall, wide) in itertools.product(blocks, (4, 8), {1, 3, now.tiles.stages}, shapes):
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


def job(layer, replicas):
    """What is launched, on images of noise; and the bytes that it must read and write."""
    torch.manual_seed(0)
    size, stride = layer.size // SHARE, 1 + layer.widens

    def some(side, channels):
        return torch.randn(replicas, IMAGES, side, side, channels, device=DEVICE).to(TYPE)

    before, after = partial(some, size, layer.channels), partial(some, size // stride, layer.out)
    weight = torch.randn(replicas, layer.out, layer.channels, 3, 3, device=DEVICE)
    a = 2 * replicas * IMAGES * size**2 * layer.channels  # bytes of images before, in bfloat16
    b = 2 * replicas * IMAGES * (size // stride) ** 2 * layer.out
    if layer.kind == "forward":
        return partial(convolve, before(), weight, stride=stride, summed=True), a + b
    if layer.kind == "weights":
        return partial(correlate, before(), after(), 3, stride), a + b
    # Each of them has memory of its own, as in training.
    if layer.kind == "inner":
        more = {"beside": before(), "coefficients": torch.rand(replicas, 3, layer.channels, device=DEVICE)}
        moved = b + 2 * a
    else:
        more = {"skip": after() if layer.widens else before(), "gate": before(), "beside": before()}
        moved = b + 3 * a + (b if layer.widens else a)
    return partial(convolve, after(), weight, stride=stride, back=(size, size), summed=True, **more), moved


def numbers(result):
    """What comes of a kernel: images, and their sums, which lie in as many rows as there are programs; or slopes."""
    return [result[0].float(), result[1].sum(1)] if isinstance(result, tuple) else [result]


def tried(layer, cut, near=False):
    """Whether a cut can be compiled and gives what the one in use gives: nothing, or what is wrong."""
    if near:
        by_way_of_the_nearest_cache()
    try:
        launched = job(layer, 2)[0]
        right = numbers(launched())
        with using(layer, cut):
            far = max(float((a - b).norm() / b.norm()) for a, b in zip(numbers(launched()), right, strict=True))
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
    for _ in range(3):
        launched()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launched()
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(rounds)]
    graph.replay()
    for begin, end in events:
        begin.record()
        graph.replay()
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
    unlike = {(layer, cut.tiles): cut for layer, cut in asked}  # how many splits there are is not compiled
    wrong = {}
    for _ in range(2):  # a process that dies takes the others' work with it
        with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
            found = {key: pool.submit(tried, key[0], cut, near) for key, cut in unlike.items() if key not in wrong}
            wrong |= {key: one.result() for key, one in found.items() if one.exception() is None}
    wrong = {key: wrong.get(key, "not tried: a process died") for key in unlike}
    for (layer, tiles), reason in wrong.items():
        if reason:
            print(f"{layer.name} {tuple(tiles)}: {reason}", file=sys.stderr)
    return [(layer, cut) for layer, cut in asked if not wrong[layer, cut.tiles]]


def measure(layers, replicas, near, workers):
    rows, works = [], compiled(layers, near, workers)
    if near:
        by_way_of_the_nearest_cache()
    speed = bandwidth() if GPU else math.nan
    for layer in layers:
        launched, moved = job(layer, replicas)
        for cut in (cut for each, cut in works if each == layer):
            with using(layer, cut):
                took = microseconds(launched) if GPU else math.nan
            told = {"layer": layer.name, "cut": [*cut.tiles, cut.splits], "in_use": cut == IN_USE[layer]}
            rows.append(told | {"us": took, "copy_us": moved / speed})
        del launched
    device = torch.cuda.get_device_name() if GPU else "the interpreter, untimed"
    return {"device": device, "torch": torch.__version__, "replicas": replicas, "near": near, "rows": rows}


# ---------------------------------------------------------------- what is told


def report(found):
    print(f"{found['device']}, torch {found['torch']}, {found['replicas']} replicas" + ", near" * found["near"])
    layers = {layer.name: layer for layer in LAYERS}
    took, now = {}, {}
    for row in found["rows"]:
        took.setdefault(layers[row["layer"]], {})[tuple(row["cut"])] = row["us"]
        now |= {layers[row["layer"]]: row["us"]} if row["in_use"] else {}
    now = {layer: now.get(layer, math.nan) for layer in took}  # unknown, if it does not work on this device
    copies = {layers[row["layer"]]: row["copy_us"] for row in found["rows"]}
    print("\n| layer | times | in use, µs | a copy | best cuts, µs |\n|---|--:|--:|--:|---|")
    for layer, times in took.items():
        words = "; ".join(f"{[*cut]} {times[cut]:.1f}" for cut in sorted(times, key=times.__getitem__)[:4])
        print(f"| {layer.name} | {layer.times} | {now[layer]:.1f} | {copies[layer]:.1f} | {words} |")
    print("\n| table | layers | in use, µs | best cut of all that share it | µs |\n|---|---|--:|---|--:|")
    for entry, (cut, best) in tables(took).items():
        own = [layer for layer in took if layer.entry == entry]
        before = sum(layer.times * now[layer] for layer in own)
        names = ", ".join(layer.name for layer in own)
        print(f"| {entry[0]} {entry[1] or ''} | {names} | {before:.0f} | {[*cut]} | {best:.0f} |")
    if len(took) == len(LAYERS) and {layer.entry for layer in LAYERS} == {*tables(took)}:
        before = sum(layer.times * now[layer] for layer in took)
        after = sum(best for _, best in tables(took).values())
        copied = sum(layer.times * copies[layer] for layer in took)
        print(f"\nOf a step of ResNet-20 {before:.0f} µs, with the best cuts {after:.0f}; copies: {copied:.0f}")


def tables(took):
    """For each table the cut that is best for all its layers, and what these take; there is one number of splits."""
    found = [_tables(took, splits) for splits in sorted({cut[-1] for times in took.values() for cut in times})]
    return min(found or [{}], key=lambda each: (-len(each), sum(best for _, best in each.values())))


def as_it_is(layer, cut):
    """What a cut of its table is to a layer: cells have a shape of their own where the images are halved."""
    if not layer.widens or layer.kind == "weights":
        return cut
    tiles = _Tiles(*cut[:-1])._replace(tall=1, wide=2)
    columns = convolutions._cells(3, 2, tiles, layer.back).columns
    return (*tiles._replace(together=min(tiles.together, columns)), cut[-1])


def _tables(took, splits):
    found = {}
    for entry in dict.fromkeys(layer.entry for layer in took):
        own = {layer: times for layer, times in took.items() if layer.entry == entry}
        every = {cut for times in own.values() for cut in times}
        some = [cut for cut in every if entry[0] == "_CONVOLVE" or cut[-1] == splits]
        some = [cut for cut in some if all(as_it_is(layer, cut) in times for layer, times in own.items())]
        total = {cut: sum(layer.times * times[as_it_is(layer, cut)] for layer, times in own.items()) for cut in some}
        if total:
            best = min(sorted(total), key=total.__getitem__)
            found[entry] = best, total[best]
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--replicas", type=int, default=44 if GPU else 2)
    parser.add_argument("--only", nargs="+", choices=[layer.name for layer in LAYERS])
    parser.add_argument("--near", action="store_true")
    parser.add_argument("--report", type=Path, nargs="+")
    chosen = parser.parse_args()
    for path in chosen.report or ():
        if not path.is_file():
            parser.error(f"--report {path}: there is no such file")
        report(json.loads(path.read_text()))
    if chosen.report:
        return
    if chosen.out and not chosen.out.parent.is_dir():
        parser.error(f"--out {chosen.out}: there is no such folder")
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
