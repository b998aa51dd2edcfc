"""Which path takes a batch: the kernel where it fits, else multi-tensor operations, else the rule itself."""

import functools
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

from wagmf.arguments import refuse
from wagmf.torch import cpu, triton
from wagmf.torch.batch import Batch, Unfit
from wagmf.torch.foreach import step_foreach
from wagmf.torch.foreach import unfit as unfit_for_foreach
from wagmf.torch.plain import step_plain

__all__ = ["Path", "choose"]


class Path(NamedTuple):
    """How a batch is stepped, why not by the kernel, and what the kernel keeps for the next step.

    >>> Path("plain", step_plain, "differentiable=True", {}).name
    'plain'
    """

    name: str
    step: Callable[[Batch], Any]
    why: str | None
    cache: dict[str, Any]


def choose(batch: Batch, *, foreach: bool | None = None, fused: bool | None = None) -> Path:
    """The fastest path that can take the batch, or a refusal where the one that was asked for cannot.

    >>> import torch
    >>> from wagmf import Rule
    >>> batch = Batch(Rule(), 1, 0.0, *[[torch.zeros(1)]] * 4, [], differentiable=True)
    >>> choose(batch)
    Path(name='plain', step=<function step_plain at ...>, why='differentiable=True', cache={})
    """
    why: str | None = "foreach=True" if foreach else "fused=False"
    if not foreach and fused is not False:
        step, unfit, missing = _KERNELS.get(batch.params[0].device.type, (None, _no_kernel, lambda: None))
        why = unfit(batch)
        if step is not None and why is None:
            cache: dict[str, Any] = {}
            return Path("fused", functools.partial(step, cache=cache), None, cache)
        if fused:
            refuse("fused", True, f"the kernel cannot take {why}; fused=None chooses a path that can")
        if why == missing():
            _warn(why)
    if foreach or (foreach is None and batch.params[0].is_cuda):
        reason = unfit_for_foreach(batch)
        if reason is None:
            return Path("foreach", _step_foreach, why, {})
        if foreach:
            refuse("foreach", True, f"this path cannot take {reason}; foreach=None chooses one that can")
    return Path("plain", step_plain, why, {})


@functools.cache
def _warn(why: str) -> None:
    """Say once what people would otherwise wonder about: why it is slow."""
    warnings.warn(f"wagmf steps without its fused kernel: {why}", RuntimeWarning, stacklevel=2)


def _no_kernel(batch: Batch) -> str:
    return f"tensors on {batch.params[0].device}"


_KERNELS: dict[str, tuple[Any, Callable[[Batch], str | None], Callable[[], str | None]]] = {
    "cuda": (triton.step_triton, triton.unfit, triton.missing),
    "cpu": (cpu.step_cpu, cpu.unfit, lambda: cpu.missing()),
}


def _step_foreach(batch: Batch) -> Any:
    reason = unfit_for_foreach(batch)  # the tensors may have changed since the path was chosen
    if reason is not None:
        raise Unfit(reason)
    return step_foreach(batch)
