"""What an update path is given: parameters that take the same step, with everything the step depends on."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from wagmf.feasible import Feasible
from wagmf.rule import Rule

__all__ = ["Batch", "store"]


@dataclass
class Batch:
    """Parameters of one group that have taken equally many steps, and the step they take now.

    ``t`` is the number of this step and ``u`` the window before it: numbers, or 0-dim tensors where the step must be
    computed on the device. ``m``, ``v`` and ``peak`` are empty where the rule keeps none. Complex tensors come as real
    views. The gradients are as the user left them, still scaled by ``grad_scale`` if that is not None.

    >>> batch = Batch(Rule(), 1, 0.0, [torch.zeros(2)], [torch.ones(2)], [torch.zeros(2)], [torch.zeros(2)], [])
    >>> batch.lr_for(batch.params[0])
    0.001
    """

    rule: Rule
    t: Any
    u: Any
    params: list[Tensor]
    grads: list[Tensor]
    m: list[Tensor]
    v: list[Tensor]
    peak: list[Tensor]
    lr: float | Tensor = 1e-3
    eps: float = 1e-7
    weight_decay: float = 0.0
    decoupled: bool = False
    maximize: bool = False
    feasible: Feasible | None = None
    grad_scale: Tensor | None = None
    stochastic_rounding: bool = False
    differentiable: bool = False

    def lr_for(self, param: Tensor) -> float | Tensor:
        """The step size as it broadcasts against ``param``: one entry per replica goes along the leading axis."""
        if not isinstance(self.lr, Tensor):
            return self.lr
        lr = self.lr.to(param.device) if self.lr.device != param.device and self.lr.ndim else self.lr
        return lr.reshape(-1, *[1] * (param.ndim - 1)) if lr.ndim else lr


def store(target: Tensor, value: Tensor, stochastic: bool) -> None:
    """Write ``value`` into ``target``, rounding up or down at random in proportion where bfloat16 asks for it.

    >>> x = torch.zeros(10_000, dtype=torch.bfloat16)
    >>> store(x, torch.full((10_000,), 1 + 2**-9), stochastic=True)  # a quarter of the way from 1 to the next number
    >>> sorted(set(x.tolist()))
    [1.0, 1.0078125]
    """
    if stochastic and target.dtype == torch.bfloat16 and value.dtype == torch.float32:
        bits = value.contiguous().view(torch.int32)
        noise = torch.randint_like(bits, 0, 1 << 16)
        rounded = ((bits + noise) & -(1 << 16)).view(torch.float32)
        value = torch.where(torch.isfinite(value), rounded, value)  # noise would turn infinity into NaN
    target.copy_(value)
