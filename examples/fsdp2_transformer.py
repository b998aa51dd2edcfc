"""Train a small transformer under FSDP2 with WADA: sharded, with accumulation, clipping and checkpoints that move.

    python examples/fsdp2_transformer.py                                  one process, nothing sharded
    torchrun --nproc-per-node 2 examples/fsdp2_transformer.py             two processes (gloo on CPUs, nccl on GPUs)
    torchrun ... examples/fsdp2_transformer.py --checkpoint runs/a --resume    goes on where it was killed

It predicts the next character of Python's own documentation, which comes with CPython: nothing is downloaded. The batch
of a step is a function of the step alone and is dealt out to however many processes there are. So one process, two, and
a run that moves from two to one and back all print the same curve, up to rounding; ``--dtype float64`` shows how far.
A checkpoint keeps the options that decide the curve: a run goes on with these, and with others it is refused.
"""

import argparse
import json
import math
import os
import shutil
from pathlib import Path
from pydoc_data.topics import topics

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from wagmf import method
from wagmf.methods import METHODS
from wagmf.torch import WAGMF

TEXT = "\n".join(topics[name] for name in sorted(topics))
CHARACTERS = {character: number for number, character in enumerate(sorted(set(TEXT)))}
# What decides the curve, which a checkpoint keeps; all else may change when a run goes on.
DECIDE = ("method", "lr", "batch", "clip", "dtype", "width", "layers", "heads", "context")


class Block(nn.Module):
    """Attention to what came before, then a perceptron; each adds to what it was given."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before, self.mix, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.think = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        q, k, v = self.mix(self.before(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(-2))
        return x + self.think(x)


class Transformer(nn.Module):
    """The loss of telling every next character of some texts, the mean of minus the logarithm of its probability."""

    def __init__(self, width, layers, heads, context):
        super().__init__()
        self.characters, self.places = nn.Embedding(len(CHARACTERS), width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.last, self.score = nn.LayerNorm(width), nn.Linear(width, len(CHARACTERS))

    def forward(self, texts):
        seen, following = texts[:, :-1], texts[:, 1:]
        x = self.characters(seen) + self.places(torch.arange(seen.shape[1], device=texts.device))
        for block in self.blocks:
            x = block(x)
        scores = self.score(self.last(x)).flatten(0, 1)
        return cross_entropy(scores.to(torch.promote_types(scores.dtype, torch.float32)), following.flatten())


def start():
    """Join the group that torchrun has made, or be one alone; the device of this process."""
    gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    backend = "cpu:gloo,cuda:nccl" if gpu else "gloo"
    alone = {} if "RANK" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group(backend, **alone)
    return device


def build(options, device):
    """The model and its optimizer, sharded where there are several processes."""
    torch.manual_seed(0)  # every process draws all weights and keeps its part
    model = Transformer(options.width, options.layers, options.heads, options.context)
    model = model.to(device, getattr(torch, options.dtype))
    if dist.get_world_size() > 1:
        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    # In bfloat16 the state is, too; small steps are not lost since parameters and state are rounded at random.
    low = {"state_dtype": torch.bfloat16, "stochastic_rounding": True} if options.dtype == "bfloat16" else {}
    return model, WAGMF(model.parameters(), options.lr, rule=method(options.method).rule, **low)


def batch(text, step, options):
    """What this process has to read in a step, in as many parts as gradients are accumulated over."""
    random = torch.Generator().manual_seed(step)
    starts = torch.randint(len(text) - options.context, (options.batch,), generator=random)
    mine = starts[dist.get_rank() :: dist.get_world_size()]
    return text[mine[:, None] + torch.arange(options.context + 1)].chunk(options.accumulate)


def take_step(model, optimizer, parts, options, device):
    """One step of the optimizer; the loss of the whole batch, and the norm of its gradient before it was clipped."""
    loss = torch.zeros((), dtype=torch.float64, device=device)
    for number, part in enumerate(parts, 1):
        if dist.get_world_size() > 1:  # gradients wait here for the last part, and only then go to the other processes
            model.set_requires_gradient_sync(number == len(parts))
        # All parts are of one size: the mean of their means, over parts here and over processes in FSDP2, is that of
        # the batch.
        share = model(part.to(device)) / len(parts)
        share.backward()
        loss += share.detach()
    norm = nn.utils.clip_grad_norm_(model.parameters(), options.clip)
    norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
    optimizer.step()
    optimizer.zero_grad()
    dist.all_reduce(loss)
    return loss.item() / dist.get_world_size(), norm.item()


def state_of(model, optimizer):
    """What is saved: every process holds its part, and the parts can be read by any number of processes."""
    return dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))


def save(options, step, model, optimizer):
    """Write a checkpoint under another name first: what is called a checkpoint is whole, whenever it was killed."""
    partial, whole = (options.checkpoint / f"{name}-{step:08d}" for name in ("partial", "step"))
    if dist.get_rank() == 0:
        shutil.rmtree(partial, ignore_errors=True)  # of a run that was killed while it wrote
    dist.barrier()
    dcp.save(state_of(model, optimizer), checkpoint_id=partial)
    dist.barrier()
    if dist.get_rank() == 0:
        (partial / "options.json").write_text(json.dumps({name: getattr(options, name) for name in DECIDE}))
        partial.rename(whole)
    dist.barrier()


def newest(folder):
    """The last checkpoint that is whole, or None."""
    return max(folder.glob("step-*"), default=None)


def objection(checkpoint, options):
    """Why a run with these options cannot go on from a checkpoint, or None."""
    try:
        kept = json.loads((checkpoint / "options.json").read_text())
    except FileNotFoundError:
        return f"{checkpoint} has no options.json, which tells what it was trained with: begin in another --checkpoint"
    others = [name for name in DECIDE if kept[name] != getattr(options, name)]
    here, there = (" ".join(f"--{name} {of[name]}" for name in others) for of in (vars(options), kept))
    return f"{here}: {checkpoint} has {there}; go on with that, or begin in another --checkpoint" if others else None


def load(checkpoint, model, optimizer):
    """Put a checkpoint into the model and the optimizer; how many steps it had taken."""
    state = state_of(model, optimizer)
    dcp.load(state, checkpoint_id=checkpoint)  # refuses where anything is missing, a number of the optimizer's included
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return int(checkpoint.name.removeprefix("step-"))


def cut(curve, first):
    """Drop the steps that are going to be taken again: a run may be killed when it has gone on from a checkpoint."""
    curve.parent.mkdir(parents=True, exist_ok=True)
    lines = curve.read_text().splitlines(keepends=True) if curve.exists() else []
    partial = curve.with_name(f"partial-{curve.name}")
    partial.write_text("".join(lines[:first]))
    partial.replace(curve)


def tell(step, loss, norm, options):
    """Print some steps, and write all of them to the file of the curve."""
    if step % 10 == 0 or step == options.steps - 1:
        print(f"step {step:5d}  loss {loss:.4f}  gradient {norm:.3f}", flush=True)
    if options.curve:
        with options.curve.open("a") as curve:
            print(json.dumps({"step": step, "loss": loss, "norm": norm}), file=curve)


def train(options, device):
    text = torch.tensor([CHARACTERS[each] for each in TEXT])
    model, optimizer = build(options, device)
    found = newest(options.checkpoint) if options.resume else None
    first = load(found, model, optimizer) if found else 0
    one = dist.get_rank() == 0
    if one and options.curve:
        cut(options.curve, first)
    for step in range(first, options.steps):
        torch.manual_seed(step * dist.get_world_size() + dist.get_rank())  # rounding at random, where it is asked for
        loss, norm = take_step(model, optimizer, batch(text, step, options), options, device)
        if one:
            tell(step, loss, norm, options)
        if options.checkpoint and ((step + 1) % options.every == 0 or step == options.steps - 1):
            save(options, step + 1, model, optimizer)


def count(text):
    """A whole number from 1."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number >= 1")
    return int(text)


def positive(text):
    """A number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number > 0")
    return value


def arguments(given=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--method", default="wada", choices=sorted(METHODS), help="a row of the table of methods")
    parser.add_argument("--lr", type=positive, default=0.1, help="the step size")
    parser.add_argument("--steps", type=count, default=200, help="how many in all, those before --resume included")
    parser.add_argument("--batch", type=count, default=32, help="texts in a step, over all processes and parts")
    parser.add_argument("--accumulate", type=count, default=1, help="in how many parts a process takes its texts")
    parser.add_argument("--clip", type=positive, default=math.inf, help="the longest gradient that is not shortened")
    parser.add_argument("--dtype", default="float32", choices=["float32", "float64", "bfloat16"])
    parser.add_argument("--width", type=count, default=128)
    parser.add_argument("--layers", type=count, default=4)
    parser.add_argument("--heads", type=count, default=4)
    parser.add_argument("--context", type=count, default=64, help="characters of a text")
    parser.add_argument("--checkpoint", type=Path, help="folder for checkpoints")
    parser.add_argument("--every", type=count, default=50, help="steps from one checkpoint to the next")
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint, if there is one")
    parser.add_argument("--curve", type=Path, help="file for the loss of every step, as JSON lines")
    options = parser.parse_args(given)
    processes = int(os.environ.get("WORLD_SIZE", 1))
    if options.batch % (processes * options.accumulate):
        parser.error(f"--batch {options.batch} must be divisible by {processes} processes × {options.accumulate} parts")
    if options.width % options.heads:
        parser.error(f"--width {options.width} must be divisible by --heads {options.heads}")
    if options.context >= len(TEXT):
        parser.error(f"--context {options.context} must be less than {len(TEXT)}, the characters of all texts")
    if math.isinf(options.lr):
        parser.error(f"--lr {options.lr} must be finite")
    if options.resume and not options.checkpoint:
        parser.error("--resume needs --checkpoint, the folder to go on from")
    if options.checkpoint:
        check_folder(parser, options)
    return options


def check_folder(parser, options):
    """Refuse a place where nothing can be saved, and checkpoints that this run would not go on from."""
    for place in (options.checkpoint, *options.checkpoint.parents):
        if place.exists() and not place.is_dir():
            parser.error(f"--checkpoint {options.checkpoint} must be a folder or a free name, but {place} is a file")
    found = newest(options.checkpoint)
    if found and not options.resume:
        parser.error(f"--checkpoint {options.checkpoint} has checkpoints: --resume goes on from them")
    if found and (told := objection(found, options)):
        parser.error(told)


def main(given=None):
    options = arguments(given)
    device = start()
    try:
        train(options, device)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
