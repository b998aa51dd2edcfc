"""What an optimizer does while it trains, told to TensorBoard or to anything else that takes scalars."""

import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from wagmf.arguments import integer, refuse
from wagmf.rule import scale
from wagmf.torch.optimizer import WAGMF

__all__ = ["Watch", "Writer", "watch"]

_SAMPLE = 1_000_000  # of how many coordinates a median is taken: to sort all of a large model takes long


class Writer(Protocol):
    """What is told the scalars: TensorBoard's ``SummaryWriter``, or three lines around another logger.

    >>> class Printer:
    ...     def add_scalar(self, tag, value, step):
    ...         print(step, tag, value)
    >>> Printer().add_scalar("lr", 0.1, 100)
    100 lr 0.1
    """

    def add_scalar(self, tag: str, scalar_value: Any, global_step: Any = None, /) -> Any: ...


def watch(optimizer: WAGMF, writer: Writer, every: int = 100, *, name: str = "optimizer") -> "Watch":
    """Tell ``writer`` at every so many steps what the optimizer does, and change nothing of what it does.

    For each parameter group, as ``optimizer/group0/...``:

        lr                      as it was for this step
        window                  u, how many of today's gradients the past is worth to what has stepped most often
        V/min, V/median, V/max  what the steps are divided by
        update/norm             of the step that was taken, with its decay of weights and its projection
        update/rms              the same for one coordinate
        update/ratio            of the norms of the step and of the parameters before it

    Window and V are left out where the method has none, the ratio where the parameters are 0. A median is of a million
    coordinates at equal distances where there are more. Of sharded parameters every process tells of its own part, and
    none waits for another.

    A step has the number of the optimizer's own clock, t of what has stepped most often: those that a ``GradScaler``
    skips do not count, and a checkpoint that is loaded is counted on from.

    Only a step that is told of costs more than any hook does: a copy of the parameters, a look at V, and on a GPU that
    the host waits for it; a skipped step has the clock read once more. Steps in CUDA graphs and in compiled programs
    are not told of.

    Args:
        optimizer: one of ``wagmf.torch``, itself and not what a trainer has wrapped it in.
        writer: anything with ``add_scalar(tag, value, step)``.
        every: steps from one look to the next.
        name: what all tags begin with.

    >>> class Printer:
    ...     def add_scalar(self, tag, value, step):
    ...         print(step, tag, round(value, 4))
    >>> x = torch.full((4,), 16.0, requires_grad=True)
    >>> optimizer = WAGMF([x], lr=0.5)
    >>> handle = watch(optimizer, Printer(), every=2)
    >>> for _ in range(3):
    ...     x.grad = torch.full((4,), 16.0)
    ...     optimizer.step()
    2 optimizer/group0/lr 0.5
    2 optimizer/group0/window 1.5
    2 optimizer/group0/V/min 4.0
    2 optimizer/group0/V/median 4.0
    2 optimizer/group0/V/max 4.0
    2 optimizer/group0/update/norm 0.76
    2 optimizer/group0/update/rms 0.38
    2 optimizer/group0/update/ratio 0.0241
    >>> handle.remove()
    """
    if not isinstance(optimizer, WAGMF):
        right = "an optimizer of wagmf.torch itself; watch it before a trainer wraps it"
        refuse("optimizer", type(optimizer).__name__, right)
    if not callable(getattr(writer, "add_scalar", None)):
        refuse("writer", writer, "anything with add_scalar(tag, value, step), such as TensorBoard's SummaryWriter")
    return Watch(optimizer, writer, integer("every", every, least=1), name)


class _Before(NamedTuple):
    """What is remembered over a step: the numbers of steps that parameters have taken, and copies of them."""

    clocks: list[float]
    params: dict[Tensor, Tensor]


class Watch:
    """What :func:`watch` returns: ``remove()`` ends it, as does the end of a ``with`` block.

    >>> optimizer = WAGMF([torch.ones(2, requires_grad=True)])
    >>> class Silent:
    ...     def add_scalar(self, tag, value, step): ...
    >>> with watch(optimizer, Silent()) as handle:
    ...     optimizer.step()
    >>> handle.remove()  # once more does no harm
    """

    def __init__(self, optimizer: WAGMF, writer: Writer, every: int, name: str) -> None:
        self._writer, self._every, self._name = writer, every, name
        self._steps: int | None = None  # by the clocks when they were last asked, and calls since; None: ask them
        self._before: _Before | None = None
        self._handles = [
            optimizer.register_step_pre_hook(self._look),
            optimizer.register_step_post_hook(self._tell),
            optimizer.register_load_state_dict_post_hook(self._count_anew),
        ]

    def remove(self) -> None:
        """Tell nothing any more."""
        for handle in self._handles:
            handle.remove()

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, *_: Any) -> None:
        self.remove()

    def _count_anew(self, _: Optimizer) -> None:
        self._steps = None

    def _look(self, optimizer: Optimizer, *_: Any) -> None:
        """Before a step: keep what will be needed, if it is one to tell of."""
        if torch.compiler.is_compiling() or _is_capturing():
            return
        self._before = None  # of a step that was refused there may be something left
        if self._steps is None or self._is_due(self._steps + 1):
            # Which steps were skipped, the device alone may know: it is asked only where that matters.
            clocks = _clocks(optimizer)
            self._steps = _latest(clocks)
            if self._is_due(self._steps + 1):
                params = (param for group in optimizer.param_groups for param in group["params"])
                self._before = _Before(clocks, {param: param.detach().clone() for param in params})
        self._steps += 1

    def _is_due(self, step: int) -> bool:
        return step % self._every == 0

    def _tell(self, optimizer: Optimizer, *_: Any) -> None:
        """After a step: tell of it, or where none was taken (a scaler has found infinities), of the next."""
        before, self._before = self._before, None
        if before is None:
            return
        clocks = _clocks(optimizer)
        self._steps = _latest(clocks)
        if clocks == before.clocks or not self._is_due(self._steps):
            return
        with torch.no_grad():
            for number, group in enumerate(optimizer.param_groups):
                for tag, value in _of_group(group, optimizer.state, before.params):
                    self._writer.add_scalar(f"{self._name}/group{number}/{tag}", value, self._steps)


def _of_group(group: dict[str, Any], states: Any, before: dict[Tensor, Tensor]) -> Iterator[tuple[str, float]]:
    lr = group["lr"]
    yield from _spread("lr", [lr]) if isinstance(lr, Tensor) and lr.ndim else [("lr", float(lr))]
    stepped = [param for param in group["params"] if param.grad is not None and param in before]
    if not stepped:
        return
    if group["rule"].adapts:
        steps = _floats(states[param]["step"] for param in stepped)
        yield "window", float(states[stepped[steps.index(max(steps))]]["window"])
        yield from _spread("V", [_divisor(group, states[param]) for param in stepped])
    yield from _update([_numbers(before[param]) for param in stepped], [_numbers(param) for param in stepped])


def _divisor(group: dict[str, Any], state: dict[str, Any]) -> Tensor:
    """V, by the rule's own text; the step that this gives along nothing is not needed."""
    v, peak = (_numbers(state[name]) if name in state else None for name in ("v", "peak"))
    nothing = torch.zeros(())
    rest = {"lr": 1.0, "eps": group["eps"], "xp": torch}
    return scale(group["rule"], state["step"], state["window"], nothing, nothing, v, peak, **rest)[1]


def _update(before: list[Tensor], after: list[Tensor]) -> Iterator[tuple[str, float]]:
    moves = [torch.linalg.vector_norm(new - old) for old, new in zip(before, after, strict=True)]
    moved, size = (math.hypot(*_floats(norms)) for norms in (moves, map(torch.linalg.vector_norm, before)))
    yield "update/norm", moved
    yield "update/rms", moved / math.sqrt(max(1, sum(x.numel() for x in before)))
    if size:
        yield "update/ratio", moved / size


def _spread(tag: str, tensors: Iterable[Tensor]) -> Iterator[tuple[str, float]]:
    """The least, the middle and the largest of all numbers in the tensors."""
    parts = [x.reshape(-1) for x in tensors if x.numel()]
    if not parts:
        return
    apart = -(-sum(x.numel() for x in parts) // _SAMPLE)
    sample = torch.cat([x[::apart].to(parts[0].device) for x in parts])
    yield f"{tag}/min", min(_floats(x.min() for x in parts))
    yield f"{tag}/median", float(sample.median())
    yield f"{tag}/max", max(_floats(x.max() for x in parts))


def _numbers(x: Any) -> Tensor:
    """Of a shard what is here, of complex numbers both parts, and of half precision as much as the step has."""
    x = x.detach()
    x = x.to_local() if hasattr(x, "to_local") else x
    x = torch.view_as_real(x) if x.is_complex() else x
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _clocks(optimizer: Optimizer) -> list[float]:
    return _floats(state["step"] for state in optimizer.state.values() if "step" in state)


def _latest(clocks: list[float]) -> int:
    return int(max(clocks, default=0))


def _floats(scalars: Iterable[Tensor]) -> list[float]:
    """Their values, for which the host waits once, not for each."""
    scalars = list(scalars)
    return torch.stack([x.to(scalars[0]) for x in scalars]).tolist() if scalars else []


def _is_capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
