"""Kernels written in Triton: compiled at their first launch, since CPU builds of torch come without Triton."""

import functools
import importlib
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

__all__ = ["floats", "launch"]

# Numbers of a problem; a kernel is not compiled anew because one of them happens to be divisible by 16.
_PLAIN = {"pixels", "images", "each", "rows", "count", "splits"}


def floats(like: Tensor, *shape: int) -> Tensor:
    """Memory for float32 numbers, where ``like`` is.

    >>> floats(torch.zeros(3), 2, 4).shape
    torch.Size([2, 4])
    """
    return torch.empty(shape, dtype=torch.float32, device=like.device)


def launch(kernel: Callable[..., None], grid: tuple[int, ...], x: Tensor, *arguments: Any, **options: int) -> None:
    """As many programs as ``grid`` says. Tensors on the device "meta" have no memory: for them nothing is done.

    >>> launch(print, (1,), torch.empty(3, device="meta"))
    """
    if not x.is_meta:
        _compiled(kernel)[grid](x, *arguments, enable_fp_fusion=True, **{"num_warps": 4, **options})


@functools.cache
def _compiled(kernel: Any) -> Any:
    """The kernel, which Triton compiles for each combination of its constants when they are first needed.

    Its module calls triton.language ``tl`` and the type of constants ``constexpr``, and may call functions of its own.
    """
    triton, tl = importlib.import_module("triton"), importlib.import_module("triton.language")
    names = kernel.__globals__
    names.update(tl=tl, constexpr=tl.constexpr)
    helpers = {name: names[name] for name in kernel.__code__.co_names if isinstance(names.get(name), FunctionType)}
    names.update({name: triton.jit(helper) for name, helper in helpers.items()})
    return triton.jit(kernel, do_not_specialize=sorted(_PLAIN & {*inspect.signature(kernel).parameters}))
