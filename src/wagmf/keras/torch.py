"""Keras on torch: all variables in one call of the kernels that step torch's own models."""

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor

from wagmf.torch.batch import Batch, Unfit
from wagmf.torch.paths import Path, choose

__all__ = ["step_torch"]


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
        lr = _value(learning_rate)
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
        together[x.device, x.dtype, g.dtype, g.layout].append(number)
    places = [optimizer._get_variable_index(variable) for variable in variables]
    found = {}
    for numbers in together.values():
        mine = tuple(places[number] for number in numbers)
        kept = [[row[place].value for place in mine] for row in (optimizer._kept.get(n) for n in _KEPT) if row]
        names = [name in optimizer._kept for name in _KEPT]
        rows = iter(kept)
        found[mine] = [
            [params[number] for number in numbers],
            [grads[number] for number in numbers],
            *(next(rows) if name else [] for name in names),
        ]
    return found


_KEPT = ("m", "v", "peak")


def _clock(optimizer: Any, x: Tensor) -> tuple[Any, Any]:
    """t, and u as it was before: numbers, or on a device that need not be waited for, tensors there."""
    count, rule, window = _value(optimizer.iterations), optimizer.rule, optimizer._window
    if not rule.adapts:
        window = 0.0
    elif window is not None:
        window = _value(window)
    if x.device.type == "cpu":
        t = int(count) + 1
        return t, rule.window_before(t, None if window is None else float(window)) if rule.adapts else 0.0
    t = count.to(x.device, torch.float64) + 1
    window = window.to(x.device, torch.float64) if isinstance(window, Tensor) else window
    return t, rule.window_before(t, window) if rule.adapts else torch.zeros_like(t)


def _value(x: Any) -> Any:
    x = getattr(x, "value", x)
    return x.detach() if isinstance(x, Tensor) else x


def _take(paths: dict[Any, Path], places: tuple[int, ...], batch: Batch) -> Any:
    """Step by the path of the last time, or by another where the tensors no longer fit it."""
    if places in paths:
        try:
            return paths[places].step(batch)
        except Unfit:
            pass
    paths[places] = choose(batch)
    return paths[places].step(batch)
