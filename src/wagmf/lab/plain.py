"""The models of the zoo as plain modules, one replica each: the reference, and what trained weights load into."""

from collections import OrderedDict

from torch import Tensor, nn
from torch.nn import functional as F

from wagmf.lab.models import CNN, MLP, Model, ResNet20

__all__ = ["Block", "plain"]


def plain(model: Model) -> nn.Module:
    """The twin of a model of the zoo: torch's own layers, under the same names.

    >>> plain(MLP((64,), 10, width=32))
    Sequential(
      (flat): Flatten(start_dim=1, end_dim=-1)
      (hidden1): Linear(in_features=64, out_features=32, bias=True)
      ...
    """
    layers: dict[str, nn.Module] = {}
    if isinstance(model, ResNet20):
        layers = _resnet(model)
    elif isinstance(model, CNN):
        for number in range(1, 5):
            out, width = model.shapes[f"conv{number}.weight"][:2]
            layers |= {f"conv{number}": nn.Conv2d(width, out, 3, padding=1), f"relu{number}": nn.ReLU()}
            if number % 2 == 0:
                layers[f"pool{number}"] = nn.MaxPool2d(2)
    layers["flat"] = nn.Flatten()
    if isinstance(model, MLP):
        for number in (1, 2):
            out, width = model.shapes[f"hidden{number}.weight"]
            layers |= {f"hidden{number}": nn.Linear(width, out), f"relu{number}": nn.ReLU()}
            layers[f"dropout{number}"] = nn.Dropout(model.dropout)
    out, width = model.shapes["head.weight"]
    return nn.Sequential(OrderedDict(layers | {"head": nn.Linear(width, out)}))


def _resnet(model: ResNet20) -> dict[str, nn.Module]:
    layers: dict[str, nn.Module] = {"stem": _conv_norm(model, model.inputs[0], 16), "relu": nn.ReLU()}
    width = 16
    for stage, out in enumerate((16, 32, 64), 1):
        blocks = OrderedDict()
        for number in (1, 2, 3):
            blocks[f"block{number}"], width = Block(model, width, out), out
        layers[f"stage{stage}"] = nn.Sequential(blocks)
    return layers | {"pool": nn.AdaptiveAvgPool2d(1)}


def _conv_norm(model: ResNet20, width: int, out: int, stride: int = 1) -> nn.Module:
    norm = nn.BatchNorm2d(out, eps=model.eps, momentum=1 - model.momentum)
    return nn.Sequential(OrderedDict(conv=nn.Conv2d(width, out, 3, stride, 1, bias=False), norm=norm))


class Block(nn.Module):
    """A residual block of two convolutions; where it grows wider, its shortcut is padded with zero channels.

    >>> import torch
    >>> import torch
    >>> Block(ResNet20((3, 32, 32), 10), 16, 32)(torch.zeros(2, 16, 8, 8)).shape
    torch.Size([2, 32, 4, 4])
    """

    def __init__(self, model: ResNet20, width: int, out: int) -> None:
        super().__init__()
        self.more = out - width
        self.add_module("1", _conv_norm(model, width, out, 2 if self.more else 1))
        self.add_module("2", _conv_norm(model, out, out))

    def forward(self, x: Tensor) -> Tensor:
        """relu(second(relu(first(x))) + x)"""
        y = self.get_submodule("2")(F.relu(self.get_submodule("1")(x)))
        return F.relu(y + (F.pad(x[..., ::2, ::2], (0, 0, 0, 0, 0, self.more)) if self.more else x))
