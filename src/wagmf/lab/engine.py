"""Trains one stack: S seeds × K arms of one problem, together."""

import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from wagmf.lab.batches import Augmentation, Batches
from wagmf.lab.data import Dataset
from wagmf.lab.models import Model
from wagmf.lab.noise import Noise
from wagmf.lab.spec import METRICS, Arm, Problem
from wagmf.torch import WAGMF

__all__ = ["Stack"]

_torch: Any = torch  # its type stubs do not know _foreach_copy_
_EVALUATED = 500  # examples a forward pass of an evaluation takes


class Stack:
    """S seeds × K arms of one problem, trained together, one epoch at a time.

    Replicas of a seed share first weights, order, augmentation and dropout. ``curves`` has one row [S, K] of each
    metric for every epoch that was trained, not-a-number from the epoch on in which a replica diverged.

    >>> from wagmf.lab.data import load
    >>> from wagmf.lab.models import zoo
    >>> data = load("digits")
    >>> stack = Stack(Problem("digits", "softmax"), zoo("softmax", (1, 8, 8), 10), data, [Arm("adam", 0.01)], [0, 1])
    >>> stack.train()
    >>> stack.epoch, stack.curves["test_accuracy"][0].shape
    (1, torch.Size([2, 1]))
    """

    def __init__(
        self,
        problem: Problem,
        model: Model,
        data: Dataset,
        arms: list[Arm],
        seeds: list[int],
        device: str = "cpu",
    ) -> None:
        problem = problem.on(device)
        self.problem, self.model, self.arms, self.seeds = problem, model, arms, seeds
        self.device, dtype = torch.device(device), getattr(torch, problem.precision)
        self.batches = Batches(data, seeds, problem.batch, Augmentation(problem.shift, problem.flip), device, dtype)
        self.epoch = 0
        self.step = torch.zeros((), dtype=torch.int64, device=device)
        self.seconds: list[float] = []  # that each epoch's training took
        self.wall = 0.0  # seconds that everything took
        self.curves: dict[str, list[Tensor]] = {metric: [] for metric in METRICS}
        self.diverged = torch.zeros(len(seeds), len(arms), dtype=torch.int64)  # the epoch, 0 where it has not
        self.params, self.buffers = _replicas(model, seeds, len(arms), self.device, dtype)
        self.grads = {name: torch.zeros_like(param) for name, param in self.params.items()}
        self.updates = _Updates(self)
        # Of losses and of accuracies.
        self._sums = torch.zeros(2, len(seeds), len(arms), dtype=torch.float64, device=device)
        self._forward = self._compiled(self._batch_scores)
        self._score = self._compiled(self._scores)
        self._graph: Any = None
        self._eager = 0  # steps taken without the graph
        self._recordable = self.device.type == "cuda" and model.compiles and self.updates.recordable

    def __len__(self) -> int:
        return len(self.seeds) * len(self.arms)

    # ------------------------------------------------------------ one epoch

    def train(self) -> None:
        """Train one epoch, and record it."""
        with _current(self.device):
            self._train()

    def _train(self) -> None:
        start = time.perf_counter()
        self.epoch += 1
        self.batches.begin(self.epoch)
        self.updates.rate(self.problem.rate(self.epoch))
        self._sums.zero_()
        began = time.perf_counter()
        for _ in range(self.batches.steps):
            self._advance()
        self._wait()
        self.seconds.append(time.perf_counter() - began)
        self._record()
        self.wall += time.perf_counter() - start

    @property
    def step_ms(self) -> float:
        """What one step of one replica took, in the median over epochs: the first one also compiles."""
        return 1e3 * statistics.median(self.seconds or [0.0]) / self.batches.steps / len(self)

    def _record(self) -> None:
        running = (self._sums / self.batches.steps).cpu()
        train = running if self.problem.loss == "running" else self._evaluate("train")
        test = self._evaluate("test")
        # The last step of an epoch shows in what is evaluated after it.
        finite = running[0].isfinite() & train[0].isfinite() & test[0].isfinite()
        self.diverged[(self.diverged == 0) & ~finite] = self.epoch
        gone = self.diverged > 0
        for metric, values in zip(METRICS, (*train, *test), strict=True):
            self.curves[metric].append(values.double().masked_fill(gone, torch.nan))

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    # ------------------------------------------------------------ one step

    def _advance(self) -> None:
        """One step of all replicas: on a GPU recorded once, when all is compiled and warm, and then replayed."""
        if self._graph is not None:
            self._graph.replay()
        elif not self._recordable or self._eager < _WARM:
            self._take_step()
            self._eager += 1
        else:
            self._wait()
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._take_step()
            self._graph.replay()  # recording computes nothing

    def _take_step(self) -> None:
        loss, hit = self._forward()
        grads = torch.autograd.grad(loss.sum(), list(self.params.values()))
        _torch._foreach_copy_(list(self.grads.values()), list(grads))
        self.updates.step()
        self._sums += torch.stack((loss.detach(), hit))
        self.step += 1

    def _batch_scores(self) -> tuple[Tensor, Tensor]:
        """The training loss of this step's batch and the part of it that is classified right, each [S, K]."""
        x, y = self.batches.take(self.step)
        logits = self.model.logits(self.params, self.buffers, x, Noise(self.batches.seeds, self.step))
        loss, hit = _scores(logits, y)
        return loss.mean(2) + self._penalty(), hit.mean(2)

    def _penalty(self) -> Tensor | float:
        """l2·Σ w² of each replica."""
        if not self.problem.l2:
            return 0.0
        weights = [param for param in self.params.values() if param.ndim > 3]
        return self.problem.l2 * torch.stack([weight.square().flatten(2).sum(2) for weight in weights]).sum(0)

    # ------------------------------------------------------------ evaluation

    @torch.no_grad()
    def _evaluate(self, part: str) -> Tensor:
        """Loss and accuracy [2, S, K] on a part of the data, without dropout and augmentation."""
        x, y = getattr(self.batches, f"x_{part}"), getattr(self.batches, f"y_{part}")
        size = min(_EVALUATED, len(y))
        total = torch.zeros(2, len(self), device=self.device, dtype=torch.float64)
        for first in range(0, len(y), size):
            # The last piece begins early, so that all are of one shape, and counts only what is new in it.
            start = min(first, len(y) - size)
            scores = self._score(x[None, start : start + size], y[None, start : start + size])
            total += scores[..., first - start :].double().sum(2)
        penalty = self._penalty() if part == "train" else 0.0
        loss, accuracy = (total / len(y)).view(2, len(self.seeds), len(self.arms))
        return torch.stack((loss + penalty, accuracy)).cpu()

    def _scores(self, x: Tensor, y: Tensor) -> Tensor:
        """Loss and hit [2, S·K, batch] of every example of x [1, batch, ...], which all replicas see."""
        p, b = ({name: each.flatten(0, 1)[None] for name, each in kept.items()} for kept in (self.params, self.buffers))
        loss, hit = _scores(self.model.logits(p, b, x, None), y)
        return torch.stack((loss[0], hit[0]))

    def _compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function itself on a CPU: there a compiler may be missing, and takes longer than most stacks."""
        compiles = self.device.type == "cuda" and self.model.compiles
        return torch.compile(function, dynamic=False) if compiles else function

    # ------------------------------------------------------------ checkpoints

    def state_dict(self) -> dict[str, Any]:
        """All that training goes on from, after an epoch; :meth:`load_state_dict` goes on exactly."""
        return {
            "epoch": self.epoch,
            "step": self.step,
            "params": self.params,
            "buffers": self.buffers,
            "updates": self.updates.state_dict(),
            "curves": self.curves,
            "diverged": self.diverged,
            "seconds": self.seconds,
            "wall": self.wall,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state; before the first epoch only."""
        self.epoch, self.seconds, self.wall = state["epoch"], list(state["seconds"]), state["wall"]
        self.curves = {metric: [row.cpu() for row in state["curves"][metric]] for metric in METRICS}
        self.diverged.copy_(state["diverged"])
        self.step.copy_(state["step"])
        with torch.no_grad():
            for kept in ("params", "buffers"):
                for name, tensor in getattr(self, kept).items():
                    tensor.copy_(state[kept][name])
        self.updates.load_state_dict(state["updates"])


def _current(device: torch.device) -> AbstractContextManager[Any]:
    """Where kernels are launched and graphs are recorded, which is the first GPU unless one says otherwise."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


_WARM = 3  # steps before a CUDA graph is recorded: everything has then been compiled and allocated


def _scores(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy and hit of every example, [S, K, batch], of logits [S, K, classes, batch] and y [S, batch].

    Of sequences, y [S, batch, length], they are means over the places, of which logits has a column each.
    """
    if y.ndim == 3:
        places = _scores(logits, y.flatten(1))
        loss, hit = (each.unflatten(2, y.shape[1:]).mean(3) for each in places)
        return loss, hit
    rounded = logits.dtype in (torch.bfloat16, torch.float16)
    logits = logits.float() if rounded else logits
    right = logits.gather(2, y[:, None, None].expand(-1, logits.shape[1], 1, -1))[:, :, 0]
    loss = torch.logsumexp(logits, 2) - right
    # Rounded logits are often equal: then the first counts, as for everybody. Otherwise the maximum is much faster.
    hit = logits.detach().argmax(2) == y[:, None] if rounded else right >= logits.detach().amax(2)
    return loss, hit.to(loss.dtype)


def _replicas(
    model: Model, seeds: list[int], arms: int, device: torch.device, dtype: torch.dtype
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The first weights and buffers of all replicas, with axes [S, K] in front."""
    kept_in = torch.float64 if dtype == torch.float64 else torch.float32
    firsts = [model.first(seed) for seed in seeds]
    params, buffers = (
        {name: _stacked([first[which][name] for first in firsts], arms, device, kept_in) for name in firsts[0][which]}
        for which in (0, 1)
    )
    return {name: param.requires_grad_() for name, param in params.items()}, buffers


def _stacked(firsts: list[Tensor], arms: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """One tensor for all replicas: those of a seed begin alike. Counters keep their type."""
    first = torch.stack(firsts).to(device)
    first = first.to(dtype) if first.is_floating_point() else first
    return first[:, None].expand(-1, arms, *first.shape[1:]).clone()


class _Updates:
    """The optimizers of a stack: one of ours for each method, and for each replica one of somebody else's."""

    def __init__(self, stack: Stack) -> None:
        self._stack, arms = stack, stack.arms
        self.recordable = not any(arm.dotted for arm in arms)
        bounds = [k for k in range(len(arms)) if k == 0 or _method(arms[k]) != _method(arms[k - 1])]
        parts = zip(bounds, [*bounds[1:], len(arms)], strict=True)
        self._ours = {part: self._of_method(*part) for part in parts if not arms[part[0]].dotted}
        places = [(s, k) for k, arm in enumerate(arms) if arm.dotted for s in range(len(stack.seeds))]
        self._theirs = {place: _Foreign(stack, *place) for place in places}
        self._taken, self._factor = 0, 1.0  # steps, and what milestones have made of the step sizes

    def _of_method(self, first: int, last: int) -> WAGMF:
        """One optimizer for the arms of a method, with a step size for each replica."""
        stack, arm = self._stack, self._stack.arms[first]
        lrs = torch.tensor([each.lr for each in stack.arms[first:last]], dtype=torch.float64, device=stack.device)
        whole = last - first == len(stack.arms)
        if whole:  # then a tensor of all replicas is one parameter; otherwise those of each seed lie together
            lrs = lrs.repeat(len(stack.seeds))
        views = []
        for name, param in stack.params.items():
            data, grad = param.detach(), stack.grads[name]
            for s in range(1 if whole else len(stack.seeds)):
                view = data.flatten(0, 1) if whole else data[s, first:last]
                view.requires_grad_().grad = grad.flatten(0, 1) if whole else grad[s, first:last]
                views.append(view)
        decay = None if "decay" in dict(arm.options) else stack.problem.decay  # an arm's own goes first
        rule = arm.rule if decay is None else arm.rule.with_decay(decay)
        return WAGMF(views, lr=lrs, rule=rule, eps=stack.problem.eps, capturable=stack.device.type == "cuda")

    def rate(self, factor: float) -> None:
        """Multiply the step sizes that the arms name by ``factor``."""
        self._taken = (self._stack.epoch - 1) * self._stack.batches.steps
        self._factor = factor
        for (first, last), optimizer in self._ours.items():
            lr = optimizer.param_groups[0]["lr"]
            lrs = torch.tensor([arm.lr * factor for arm in self._stack.arms[first:last]], dtype=lr.dtype)
            lr.copy_(lrs.repeat(lr.numel() // len(lrs)))

    def step(self) -> None:
        """Take the step."""
        self._taken += 1
        for optimizer in self._ours.values():
            optimizer.step()
        if self._theirs:  # ours know how their step sizes decay
            rate = self._factor * self._taken ** -(self._stack.problem.decay or 0.0)
            for foreign in self._theirs.values():
                foreign.step(rate)

    def state_dict(self) -> list[Any]:
        """What the optimizers go on from."""
        return [optimizer.state_dict() for optimizer in self._all]

    def load_state_dict(self, states: list[Any]) -> None:
        """Go on from there."""
        for optimizer, state in zip(self._all, states, strict=True):
            optimizer.load_state_dict(state)

    @property
    def _all(self) -> list[Any]:
        return [*self._ours.values(), *(foreign.optimizer for foreign in self._theirs.values())]


class _Foreign:
    """An optimizer of somebody else's for one replica alone: it may look at all of its parameters together."""

    def __init__(self, stack: Stack, s: int, k: int) -> None:
        self._arm = stack.arms[k]
        self._places = [param.detach()[s, k] for param in stack.params.values()]
        self._views = [place.detach().requires_grad_() for place in self._places]
        for view, grad in zip(self._views, stack.grads.values(), strict=True):
            view.grad = grad[s, k]
        self.optimizer = self._arm.optimizer(self._views, lr=self._arm.lr, **dict(self._arm.options))

    def step(self, rate: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = self._arm.lr * rate
        self.optimizer.step()
        for view, place in zip(self._views, self._places, strict=True):
            if view.data_ptr() != place.data_ptr():  # it put another tensor there
                place.copy_(view.detach())
                view.data = place


def _method(arm: Arm) -> tuple[Any, ...]:
    return arm.method, arm.options
