"""What an update path is given: parameters that take the same step, with everything the step depends on."""

import operator
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from wagmf.feasible import Feasible
from wagmf.rule import Rule

try:  # compares types, dtypes, devices, shapes and strides of many tensors in one call; torch.compile relies on it
    from torch._C._dynamo.guards import TensorGuards as _TensorGuards
except ImportError:  # then they are compared one by one, which is only slower
    _TensorGuards = None

__all__ = ["Batch", "Look", "Unfit", "put", "store"]


@dataclass
class Batch:
    """Parameters of one group that have taken equally many steps, and the step they take now.

    ``t`` is the number of this step and ``u`` the window before it: numbers, or tensors where the step must be computed
    on the device; the fused path takes one entry per parameter there, the others 0-dim ones. ``m``, ``v`` and ``peak``
    are empty where the rule keeps none. Complex tensors come as real views. The gradients are as the user left them,
    still scaled by ``grad_scale`` if that is not None. Where ``found_inf`` is not None, it is 0 on the device or else
    nothing is to be written.

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
    stochastic_rounding: bool = False
    differentiable: bool = False
    grad_scale: Tensor | None = None
    found_inf: Tensor | None = None

    @classmethod
    def of(
        cls, group: dict[str, Any], t: Any, u: Any, rows: Sequence[list[Tensor]], scale: Any = None, found: Any = None
    ) -> "Batch":
        """The step of a parameter group; ``rows`` are params, grads, m, v and peak."""
        params, grads, m, v, peak = rows
        return cls(
            group["rule"], t, u, params, grads, m, v, peak, group["lr"], group["eps"], group["weight_decay"],
            group["decoupled_weight_decay"], group["maximize"], group["feasible"], group["stochastic_rounding"],
            group["differentiable"], scale, found,
        )  # fmt: skip

    @property
    def replicas(self) -> int:
        """How many entries the step size has."""
        return self.lr.numel() if isinstance(self.lr, Tensor) and self.lr.ndim else 1

    def rows(self) -> list[list[Tensor]]:
        """What the step writes, kind by kind, and at the end the gradients; what the rule does not keep is left out."""
        return [row for row in (self.params, self.m, self.v, self.peak) if row] + [self.grads]

    def lr_for(self, param: Tensor) -> float | Tensor:
        """The step size as it broadcasts against ``param``: one entry per replica goes along the leading axis."""
        if not isinstance(self.lr, Tensor):
            return self.lr
        # In the precision of the arithmetic, for lr·λ and lr·t^-decay to be.
        lr = self.lr.to(torch.promote_types(param.dtype, torch.float32))
        lr = lr.to(param.device) if lr.device != param.device and lr.ndim else lr
        return lr.reshape(-1, *[1] * (param.ndim - 1)) if lr.ndim else lr


class Unfit(ValueError):
    """The batch is not for this path; the message says why. Nothing has been written.

    >>> raise Unfit("differentiable=True")
    Traceback (most recent call last):
    wagmf.torch.batch.Unfit: differentiable=True
    """


class Look:
    """How the tensors of a batch look and where they lie, to see at the next step what has changed of it.

    Gradients are new at every step and are compared in full. The others are compared in full only where one has moved
    or is gone: what is left unseen is a tensor that comes to be another view of its own memory while its gradient stays
    as it was. No tensor is held on to.

    >>> x, g = torch.zeros(2, 3), torch.zeros(2, 3)
    >>> look = Look(Batch(Rule(), 1, 0.0, [x], [g], [], [], []))
    >>> look.same(Batch(Rule(), 1, 0.0, [x.clone()], [g], [], [], []))
    True
    >>> look.same(Batch(Rule(), 1, 0.0, [x], [g.double()], [], [], []))
    False
    """

    def __init__(self, batch: Batch) -> None:
        self._extent, others = _extent(batch), _others(batch)
        self._grads, self._others = _comparison(batch.grads), _comparison(others)
        self._remember(others)

    def same(self, batch: Batch) -> bool:
        """Whether the tensors look as they did; if so, ``addresses`` is where parameters and state lie now."""
        if self._extent != _extent(batch) or not self._grads(batch.grads):
            return False
        others = _others(batch)
        if not self._gone and self.addresses == list(map(Tensor.data_ptr, others)):
            return True
        if not self._others(others):
            return False
        self._remember(others)
        return True

    def _remember(self, others: list[Tensor]) -> None:
        self.addresses = list(map(Tensor.data_ptr, others))
        # For as long as this is empty, no other state can have come to lie there. (Parameters are the caller's to keep,
        # and torch.utils.swap_tensors refuses those that have weak references.)
        self._gone: list[Any] = []
        self._alive = [weakref.ref(x, self._gone.append) for x in others[self._extent[0] :]]


def _others(batch: Batch) -> list[Tensor]:
    return [*batch.params, *batch.m, *batch.v, *batch.peak]


def _extent(batch: Batch) -> tuple[int, ...]:
    return len(batch.params), len(batch.m), len(batch.v), len(batch.peak), len(batch.grads), batch.replicas


def _comparison(tensors: list[Tensor]) -> Callable[[list[Tensor]], bool]:
    """A function that says whether tensors are of the same types, shapes, strides, ... as these."""
    if _TensorGuards is not None and tensors:
        guard = _TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)
        return lambda now: guard.check(*now)
    seen = _metadata(tensors)
    return lambda now: _metadata(now) == seen


_ASPECTS = operator.attrgetter("__class__", "dtype", "device", "layout", "shape", "requires_grad")


def _metadata(tensors: list[Tensor]) -> list[Any]:
    return [(_ASPECTS(x), x.is_neg(), x.layout == torch.strided and x.stride()) for x in tensors]


def store(target: Tensor, value: Tensor, stochastic: bool) -> None:
    """Write ``value`` into ``target``, rounding up or down at random in proportion where bfloat16 asks for it.

    >>> x = torch.zeros(10_000, dtype=torch.bfloat16)
    >>> store(x, torch.full((10_000,), 1 + 2**-9), stochastic=True)  # a quarter of the way from 1 to the next number
    >>> sorted(set(x.tolist()))
    [1.0, 1.0078125]
    """
    if stochastic and target.dtype == torch.bfloat16 and value.dtype in (torch.float32, torch.float64):
        value = value.float()
        bits = value.contiguous().view(torch.int32)
        noise = torch.randint_like(bits, 0, 1 << 16)
        rounded = ((bits + noise) & -(1 << 16)).view(torch.float32)
        value = torch.where(torch.isfinite(value), rounded, value)  # noise would turn infinity into NaN
    put(target, value)


def put(target: Tensor, value: Any) -> None:
    """Copy. A scalar goes as a vector: torch.compile may drop a copy into a scalar on the CPU, which has no user.

    >>> x = torch.zeros(())
    >>> put(x, torch.ones(()))
    >>> x
    tensor(1.)
    """
    # The function of dynamo that drops it is remove_tensorify_specialized_graphargs, as of torch 2.13.
    target.copy_(value) if target.ndim else target.view(1).copy_(value.view(1))
