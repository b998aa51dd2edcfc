"""Keras on torch: all variables in one call of the kernels that step torch's own models."""

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor

from wagmf.torch.batch import Batch, Unfit
from wagmf.torch.paths import Path, choose

__all__ = ["step_torch"]

_PATTERNS = 16  # for how many sets of variables, as gradients are missing, the kernel's tables are kept


def step_torch(optimizer: Any, grads: list[Any], variables: list[Any], learning_rate: Any) -> bool:
    """Step the variables of a Keras optimizer, and say whether it was done: torch.compile traces the other way.

    >>> step_torch(None, [], [], 0.1)
    True
    """
    if torch.compiler.is_compiling():
        return False
    if not variables:
        return True
    with torch.no_grad():
        lr, grads = _value(learning_rate), [g if g.layout == torch.strided else g.to_dense() for g in grads]
        u = None
        for places, rows in _alike(optimizer, grads, variables).items():
            t, before = _clock(optimizer, rows[0][0])
            batch = Batch(optimizer.rule, t, before, *rows, lr=lr, eps=optimizer.eps)
            u = _take(optimizer.__dict__.setdefault("_paths", {}), places, batch)
        if optimizer._window is not None:
            optimizer._window.assign(u)
    return True


def _alike(optimizer: Any, grads: list[Any], variables: list[Any]) -> dict[tuple[int, ...], list[list[Tensor]]]:
    """The tensors that can go together, by the places of their variables: params, grads, m, v and peak."""
    together: defaultdict[Any, list[int]] = defaultdict(list)
    params = [variable.value for variable in variables]
    for number, (x, g) in enumerate(zip(params, grads, strict=True)):
        together[x.device, x.dtype, g.dtype].append(number)
    places = [optimizer._get_variable_index(variable) for variable in variables]
    found = {}
    for numbers in together.values():
        mine = tuple(places[number] for number in numbers)
        rows = [optimizer._kept.get(name) for name in optimizer.rule.keeps]
        kept = [[row[place].value for place in mine] if row else [] for row in rows]
        found[mine] = [[each[number] for number in numbers] for each in (params, grads)] + kept
    return found


def _clock(optimizer: Any, x: Tensor) -> tuple[Any, Any]:
    """t, and u as it was before: numbers, or on a device that need not be waited for, tensors there."""
    rule, count, window = optimizer.rule, _value(optimizer.iterations), _value(optimizer._window)
    if x.device.type == "cpu":
        t, window = int(count) + 1, None if window is None else float(window)
        return t, rule.window_before(t, window) if rule.adapts else 0.0
    t, window = count.to(x.device, torch.float64) + 1, None if window is None else window.to(x.device, torch.float64)
    return t, rule.window_before(t, window) if rule.adapts else torch.zeros_like(t)


def _value(x: Any) -> Any:
    x = getattr(x, "value", x)
    return x.detach() if isinstance(x, Tensor) else x


def _take(paths: dict[Any, Path], places: tuple[int, ...], batch: Batch) -> Any:
    """Step by the kernel of the last time, or by what is best now where there was none or the tensors do not fit it."""
    if places in paths and paths[places].name == "fused":
        try:
            return paths[places].step(batch)
        except Unfit:
            pass
    if len(paths) > _PATTERNS:
        paths.clear()
    paths[places] = choose(batch)
    return paths[places].step(batch)
