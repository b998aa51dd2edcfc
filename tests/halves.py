"""Training in two halves, with a checkpoint between them that other people's trainers write and read."""

from pathlib import Path

import torch
from torch import Tensor, nn


def small_model(dropout: float = 0.0) -> nn.Module:
    """Always the same one; with dropout, a trainer must keep the state of the random numbers, too."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 1))


def small_data(rows: int = 32) -> torch.utils.data.TensorDataset:
    x = torch.randn(rows, 4, generator=torch.Generator().manual_seed(1))
    return torch.utils.data.TensorDataset(x, x.square().sum(1, keepdim=True))


def weights(model: nn.Module) -> Tensor:
    return torch.cat([x.detach().reshape(-1) for x in model.parameters()])


def lose_state(file: Path, *place: str | int) -> None:
    """Take the optimizer's state out of a checkpoint, in which the optimizer is found at ``place``."""
    checkpoint = torch.load(file, weights_only=True)
    optimizer = checkpoint
    for key in place:
        optimizer = optimizer[key]
    assert optimizer["state"], "there was none to lose"
    optimizer["state"] = {}
    torch.save(checkpoint, file)
