"""The plain path: the rule's own text, one tensor at a time. Every other path is held to it."""

import torch

from wagmf.rule import update
from wagmf.torch.batch import Batch, store

__all__ = ["step_plain"]


def step_plain(batch: Batch) -> float | torch.Tensor:
    """Take the step for every parameter in place, and return the new window u.

    >>> x, m, v = torch.zeros(1), torch.zeros(1), torch.zeros(1)
    >>> from wagmf import Rule
    >>> step_plain(Batch(Rule(beta1=0.0), 1, 0.0, [x], [torch.ones(1)], [], [v], [], lr=0.5))
    1.0
    >>> x
    tensor([-0.5000])
    """
    u_next = batch.u
    none: list[None] = [None] * len(batch.params)
    for x, g, m, v, peak in zip(
        batch.params, batch.grads, batch.m or none, batch.v or none, batch.peak or none, strict=True
    ):
        # In the precision of the arithmetic: at least float32, since |g|^p1 of a half-precision gradient overflows.
        exact = torch.promote_types(x.dtype, torch.float32)
        y, g = x.to(exact), g.to(exact)
        state = [None if old is None else old.to(exact) for old in (m, v, peak)]
        if batch.grad_scale is not None:
            g = g / batch.grad_scale.to(g.device)
        if batch.maximize:
            g = -g
        lr = batch.lr_for(x)
        if batch.weight_decay and batch.decoupled:
            y = y * (1 - lr * batch.rule.rate_at(batch.t) * batch.weight_decay)
        elif batch.weight_decay:
            g = g + batch.weight_decay * y
        new = update(batch.rule, batch.t, batch.u, g, *state, lr=lr, eps=batch.eps, xp=torch)
        y, u_next = y - new.step, new.u
        if batch.feasible is not None:
            y = batch.feasible.project(y, new.V, torch)
        for old, value in ((x, y), (m, new.m), (v, new.v), (peak, new.peak)):
            if old is not None:
                store(old, value, batch.stochastic_rounding)
    return u_next
