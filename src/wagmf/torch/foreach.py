"""The foreach path: the rule's lines as multi-tensor operations, for many tensors on one device in few launches."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from wagmf.torch.batch import Batch
from wagmf.weights import Latest

__all__ = ["step_foreach", "unfit"]

_torch: Any = torch  # the multi-tensor operations have private names, which torch.optim itself calls


def unfit(batch: Batch) -> str | None:
    """Why this path cannot take the batch, or None.

    >>> from wagmf import Rule
    >>> unfit(Batch(Rule(), 1, 0.0, [], [], [], [], [], differentiable=True))
    'differentiable=True'
    """
    if batch.differentiable:
        return "differentiable=True"
    if batch.feasible is not None:
        return f"feasible={batch.feasible}"
    if isinstance(batch.lr, Tensor) and batch.lr.ndim:
        return "a lr with one entry per replica"
    if batch.stochastic_rounding:
        return "stochastic_rounding=True"
    tensors = [*batch.params, *batch.grads, *batch.m, *batch.v, *batch.peak]
    if any(x.dtype not in (torch.float32, torch.float64) for x in tensors):
        return "a dtype other than float32 and float64"
    return None


def step_foreach(batch: Batch) -> float | Tensor:
    """Take the step for every parameter in place, and return the new window u; restates :func:`wagmf.rule.update`.

    >>> from wagmf import Rule
    >>> x, v = torch.zeros(1), torch.zeros(1)
    >>> step_foreach(Batch(Rule(beta1=0.0), 1, 0.0, [x], [torch.ones(1)], [], [v], [], lr=0.5))
    1.0
    >>> x
    tensor([-0.5000])
    """
    rule, t, lr = batch.rule, batch.t, batch.lr_for(batch.params[0])
    alpha = lr * rule.rate_at(t)
    beta1, (a, b) = rule.beta1_at(t), rule.lookahead_at(t)
    g = _gradients(batch, alpha)
    m: Sequence[Tensor] = g
    if rule.has_momentum:
        _torch._foreach_mul_(batch.m, beta1)
        _torch._foreach_add_(batch.m, _torch._foreach_mul(g, 1 - beta1))
        m = batch.m
    u, V = batch.u, None
    if rule.adapts:
        u = 1 + rule.weights.discount(t) * u
        V = _V(batch, g, u)
    step = _torch._foreach_mul(m, a * alpha)
    if rule.nesterov:
        _torch._foreach_add_(step, _torch._foreach_mul(g, b * alpha))
    if V is not None:
        _torch._foreach_div_(step, V)
    _torch._foreach_sub_(batch.params, step)
    return u


def _gradients(batch: Batch, alpha: float | Tensor) -> Sequence[Tensor]:
    g: Sequence[Tensor] = batch.grads
    if batch.grad_scale is not None:
        g = _torch._foreach_mul(g, 1 / batch.grad_scale.to(g[0].device))
    if batch.maximize:
        g = _torch._foreach_neg(g)
    if batch.weight_decay and batch.decoupled:
        _torch._foreach_mul_(batch.params, 1 - alpha * batch.weight_decay)
    elif batch.weight_decay:
        g = _torch._foreach_add(g, _torch._foreach_mul(batch.params, batch.weight_decay))
    return g


def _V(batch: Batch, g: Sequence[Tensor], u: float | Tensor) -> Sequence[Tensor]:
    """Update v and peak in place; V = v^(1/p2) + eps."""
    rule = batch.rule
    now = _torch._foreach_abs(g)
    if rule.p1 == 2:
        now = _torch._foreach_mul(g, g)
    elif rule.p1 != 1:
        _torch._foreach_pow_(now, rule.p1)
    if isinstance(rule.weights, Latest):
        _torch._foreach_copy_(batch.v, now)
    else:
        _torch._foreach_sub_(now, batch.v)
        _torch._foreach_mul_(now, 1 / u)
        _torch._foreach_add_(batch.v, now)
    V: Sequence[Tensor] = batch.v
    if rule.monotone:
        _torch._foreach_maximum_(batch.peak, _torch._foreach_mul(batch.v, u))
        V = _torch._foreach_mul(batch.peak, 1 / u)
    V = _torch._foreach_mul(V, 1.0) if V is batch.v else V  # a copy; _foreach_clone is missing from older torch
    p2 = rule.p2
    while p2 >= 2 and math.fmod(p2, 2) == 0:
        _torch._foreach_sqrt_(V)
        p2 /= 2
    if p2 != 1:
        _torch._foreach_pow_(V, 1 / p2)
    if torch.tensor(batch.eps, dtype=V[0].dtype).item() > 0:
        _torch._foreach_add_(V, batch.eps)
    else:
        _torch._foreach_add_(V, [(each == 0).to(each.dtype) for each in V])
    return V
