"""Parameter groups as people are used to: weights decay, biases and scales do not."""

from collections.abc import Collection
from typing import Any

from torch.nn import Module

from wagmf.arguments import real, refuse

__all__ = ["param_groups_weight_decay"]


def param_groups_weight_decay(
    model: Module, weight_decay: float = 1e-5, no_weight_decay_list: Collection[str] = ()
) -> list[dict[str, Any]]:
    """Two parameter groups, as timm's function of this name makes them: what does not decay, and what does.

    What has fewer than two axes (biases, scales of normalisation) does not decay, nor what is called ``bias``, nor what
    is named. Frozen parameters are left out, a shared one occurs once, and a group without parameters is left out, too.
    Parameters keep their names, as every optimizer of torch 2.6 or newer takes them.

    Args:
        model: whose parameters.
        weight_decay: of the second group; the first has 0.
        no_weight_decay_list: names of further parameters that do not decay, as ``named_parameters`` gives them. Names
            that the model does not have are passed over: models of timm list what they may have.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.LayerNorm(3))
    >>> for group in param_groups_weight_decay(model, 0.01):
    ...     print(group["weight_decay"], [name for name, _ in group["params"]])
    0.0 ['0.bias', '1.weight', '1.bias']
    0.01 ['0.weight']
    """
    if isinstance(no_weight_decay_list, str):
        refuse("no_weight_decay_list", no_weight_decay_list, "a list of names, such as ['embedding.weight']")
    spared = set(no_weight_decay_list)
    rest, decaying = [], []
    for name, param in model.named_parameters():
        if param.requires_grad:
            spare = param.ndim <= 1 or name.rpartition(".")[2] == "bias" or name in spared
            (rest if spare else decaying).append((name, param))
    decay = real("weight_decay", weight_decay, least=0)
    return [{"params": params, "weight_decay": each} for params, each in ((rest, 0.0), (decaying, decay)) if params]
