"""DDP, FSDP2 and distributed checkpoints, with two real processes, against one process alone."""

import contextlib
import json
import socket
from pathlib import Path

import forks
import pytest
import torch

# Runs a list of jobs, each a stretch of training, in this rank of the world it is started in.
SCRIPT = """
import json, os, torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
import wagmf.torch

class Told(set):
    def add_scalar(self, tag, value, step):
        assert 0 < value < float("inf"), (tag, value)
        self.add((tag, step))

def train(kind, name, first=0, last=12, load=None, save=None, out=None):
    torch.manual_seed(0)
    model = bare = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3)).double()
    if kind == "ddp":
        model = DistributedDataParallel(model)
    for layer in {"fsdp": (bare[0], bare[2]), "mixed": (bare[0],)}.get(kind, ()):
        fully_shard(layer)  # "mixed": a sharded layer and a plain one in the same group
    optimizer = getattr(wagmf.torch, name)(model.parameters(), 0.05, weight_decay=0.01)
    if load:
        parts = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
        dcp.load(parts, checkpoint_id=load)
        set_state_dict(model, optimizer, model_state_dict=parts["model"], optim_state_dict=parts["optimizer"])
    told = Told()
    if dist.get_rank() == 0:  # what is told of shards must not wait for other processes
        wagmf.torch.watch(optimizer, told, every=4)
    for t in range(first, last):
        data = torch.randn(8, 6, generator=torch.Generator().manual_seed(t), dtype=torch.float64)
        mine = data.chunk(dist.get_world_size())[dist.get_rank()] if kind != "mixed" else data
        optimizer.zero_grad()
        (model(mine) ** 2).sum(1).mean().backward()
        optimizer.step()
        assert all(path.endswith("by fused") for path in optimizer.paths), optimizer.paths
    steps = {step for tag, step in told if tag == "optimizer/group0/update/ratio"}
    assert dist.get_rank() or steps == set(range(first + 4, last + 1, 4)), (kind, told)
    if save:
        parts = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
        dcp.save(parts, checkpoint_id=save)
    whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in bare.parameters()]
    if dist.get_rank() == 0 and out:
        torch.save([p.detach().clone() for p in whole], out)

torch.set_num_threads(1)
dist.init_process_group("gloo")
for job in json.loads(os.environ["JOBS"]):
    train(**job)
dist.destroy_process_group()
"""


def launch(folder: Path, world: int, *jobs: dict) -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world)}
    environment["JOBS"] = json.dumps(jobs)
    with contextlib.ExitStack() as stack:
        ranks = [forks.started(forks.program, SCRIPT, folder, RANK=str(rank), **environment) for rank in range(world)]
        ended = [running.wait(240) for running in [*map(stack.enter_context, ranks)]]
    assert [each.code for each in ended] == [0] * world, "\n".join(each.said for each in ended)[-4000:]


KINDS, NAMES = ("ddp", "fsdp", "mixed"), ("WADA", "AMSGrad")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Everything in three launches, two processes, one, two again: starting them is what costs."""
    folder = tmp_path_factory.mktemp("trained")
    both = [{"kind": kind, "name": name, "out": f"{kind} {name}"} for kind in KINDS for name in NAMES]
    alone = [{"kind": "plain", "name": name, "out": f"plain {name}"} for name in NAMES]
    stage = {"kind": "fsdp", "name": "WADA"}
    launch(folder, 2, *both, {**stage, "last": 4, "save": "after4"})
    launch(folder, 1, *alone, {**stage, "first": 4, "last": 8, "load": "after4", "save": "after8"})
    launch(folder, 2, {**stage, "first": 8, "load": "after8", "out": "moved"})
    return lambda name: torch.load(folder / name, weights_only=True)


def same(ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)


# One worker trains for all of these.
pytestmark = pytest.mark.xdist_group("distributed")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_two_processes_walk_as_one(kind, name, trained):
    same(trained(f"{kind} {name}"), trained(f"plain {name}"))


def test_a_checkpoint_moves_from_two_processes_to_one_and_back(trained):
    same(trained("moved"), trained("plain WADA"))


def test_the_two_methods_differ(trained):
    assert not torch.equal(trained("plain WADA")[0], trained("plain AMSGrad")[0])
