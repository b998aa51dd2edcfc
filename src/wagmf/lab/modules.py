"""Any module as a model of the lab: stacked through torch.func where that gives the same, else one at a time."""

import hashlib
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from wagmf.arguments import Refused, refuse
from wagmf.lab.models import Model, Tensors
from wagmf.lab.noise import Noise, key
from wagmf.lab.sources import first_line, named, told

__all__ = ["Module", "factory_of", "module", "source_of"]

Factory = Callable[..., Any]


@dataclass(frozen=True)
class Module(Model):
    """A module of the user's, made by ``factory`` anew for each seed.

    Its forward pass takes x [batch, ...] and gives logits [batch, classes]; of sequences of tokens, which are whole
    numbers, [batch, length, classes]. What it draws at random (dropout) depends on seed and step alone. ``reason``
    says why its replicas cannot be computed together; empty if they can.

    >>> model = module(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), (1, 8, 8), 10)
    >>> model.way, model.shapes["1.weight"]
    ('stacked through torch.func', (10, 64))
    """

    factory: Factory = field(compare=False, default=nn.Identity)
    module: nn.Module = field(compare=False, default_factory=nn.Identity)
    trained: tuple[str, ...] = ()  # its parameters, but for those that are frozen or that the logits do not depend on
    size: int = 0
    random: bool = False  # whether it draws random numbers in training
    reason: str = ""
    compiles: ClassVar[bool] = False

    @property
    def way(self) -> str:
        """How its replicas are computed."""
        return f"one at a time ({self.reason})" if self.reason else "stacked through torch.func"

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The parameters of one replica."""
        return {name: tuple(param.shape) for name, param in self.module.named_parameters() if name in self.trained}

    @property
    def activations(self) -> int:
        """How many numbers the layers put out for one example."""
        return self.size

    def first(self, seed: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The parameters and buffers that the factory makes after ``torch.manual_seed(seed)``.

        Parameters that are not trained are among the buffers.
        """
        made = _made(self.factory, seed)
        params = {name: param.detach().clone() for name, param in made.named_parameters()}
        kept = {name: params.pop(name) for name in list(params) if name not in self.trained}
        return params, kept | {name: buffer.clone() for name, buffer in made.named_buffers()}

    def logits(self, p: Tensors, b: Tensors, x: Tensor, noise: Noise | None) -> Tensor:
        """The logits [S, K, classes, batch]; of sequences, [S, K, classes, batch·length]."""
        self.module.train(noise is not None)
        low = x.dtype in (torch.bfloat16, torch.float16)  # then torch decides what can be computed so
        x, dtype = (x.float(), x.dtype) if low else (x, torch.bfloat16)
        with torch.autocast(x.device.type, dtype, enabled=low, cache_enabled=False), _Norms() if low else nullcontext():
            return self._logits(p, b, x, noise).flatten(2, -2).transpose(2, 3)

    def _logits(self, p: Tensors, b: Tensors, x: Tensor, noise: Noise | None) -> Tensor:
        """The logits [S, K, batch, ..., classes]."""
        if self.reason:
            rows = [self._one_by_one(_at(p, s), _at(b, s), x[s], noise, s) for s in range(len(x))]
            return torch.stack(rows)
        if self.random and noise is not None:
            rows = [_seeded(noise, s, self._arms, _at(p, s), _at(b, s), x[s]) for s in range(len(x))]
            return torch.stack(rows)
        return vmap(vmap(self._call, (0, 0, None)), (0, 0, 0))(p, b, x)

    def _call(self, p: Tensors, b: Tensors, x: Tensor) -> Tensor:
        return functional_call(self.module, {**p, **b}, (x,))

    def _arms(self, p: Tensors, b: Tensors, x: Tensor) -> Tensor:
        """All arms of a seed, which draw the same numbers."""
        return vmap(self._call, (0, 0, None), randomness="same")(p, b, x)

    def _one_by_one(self, p: Tensors, b: Tensors, x: Tensor, noise: Noise | None, s: int) -> Tensor:
        """The arms of a seed, each of which draws the same numbers anew."""
        arms = range(len(next(iter(p.values()))))
        return torch.stack([_seeded(noise, s, self._call, _at(p, k), _at(b, k), x) for k in arms])


class _Norms(TorchFunctionMode):
    """Batch normalisation in float32: batched, torch has it for numbers of one type only."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (F.batch_norm, F.instance_norm, torch.batch_norm, torch.instance_norm):
            args = (args[0].float(), *args[1:])
        return func(*args, **(kwargs or {}))


def module(factory: Factory, inputs: tuple[int, ...], classes: int, batch: int = 4, *, tokens: bool = False) -> Module:
    """The model that a factory makes, tried out: does it fit the data, and can its replicas be computed together?

    ``tokens``: examples are sequences of whole numbers below ``classes``, and there are logits for each place.

    >>> class Fickle(nn.Linear):
    ...     def forward(self, x):
    ...         return super().forward(x) * (2 if x.sum().item() > 0 else 1)
    >>> module(lambda: Fickle(3, 2), (3,), 2).reason[:26]
    'its code cannot be batched'
    """
    made = _checked(factory)
    draws = torch.Generator().manual_seed(0)
    shape = (batch, *inputs)
    x = torch.randint(classes, shape, generator=draws) if tokens else torch.randn(shape, generator=draws)
    _check_state(factory, x)
    model = Module(inputs, classes, factory, made, *_tried(made, x, classes))
    return replace(model, reason=_unlike(model, x))


def factory_of(name: str) -> Factory:
    """What ``module:factory`` names; modules of the working folder are found, too.

    >>> factory_of("torch.nn:Identity")()
    Identity()
    """
    return named("model", name, "it must be a function without arguments, or a class, that gives a torch.nn.Module")


def source_of(factory: Factory) -> str:
    """A hash of a factory's code, of what it refers to, and of what it makes.

    So runs of another version are not taken for its own, nor those of another function in the same file.

    >>> len(source_of(nn.Identity))
    16
    """
    made = _made(factory, 0)
    kinds = dict.fromkeys(type(each) for each in made.modules() if not type(each).__module__.startswith("torch."))
    digest = hashlib.sha256("\n".join([*told(factory, *kinds), repr(made)]).encode())
    for name, tensor in made.state_dict().items():  # first weights may come from elsewhere
        digest.update(name.encode() + tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def _checked(factory: Factory) -> nn.Module:
    """What a factory makes; whatever cannot be trained is refused by name."""
    if isinstance(factory, nn.Module):
        refuse("model", type(factory).__name__, "give what makes it (its class, or a function), not the module itself")
    try:
        made = _made(factory, 0)
    except Exception as error:  # whatever the user's code may raise
        name = getattr(factory, "__qualname__", type(factory).__name__)
        raise Refused(f"Invalid model: {name} (it cannot be made: {first_line(error)})") from error
    if not isinstance(made, nn.Module):
        refuse("model", made, "the factory must return a torch.nn.Module")
    if any(is_lazy(value) for value in [*made.parameters(), *made.buffers()]):
        refuse("model", type(made).__name__, "its tensors have no shape before the first batch: name their sizes")
    if not any(param.requires_grad for param in made.parameters()):
        refuse("model", type(made).__name__, "it has no parameters to train")
    return made


def _made(factory: Factory, seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return factory()


def _at(tensors: Tensors, index: int) -> dict[str, Tensor]:
    return {name: tensor[index] for name, tensor in tensors.items()}


def _seeded(noise: Noise | None, s: int, work: Callable[..., Tensor], *arguments: Any) -> Tensor:
    """What ``work`` gives when torch's own random numbers begin as seed and step say."""
    if noise is None:
        return work(*arguments)
    high, low = key(int(noise.seeds[s]), int(noise.step), 0)
    with torch.random.fork_rng():
        torch.manual_seed((high << 31) ^ low)
        return work(*arguments)


def _check_state(factory: Factory, x: Tensor) -> None:
    """Refuse a module that keeps or draws what no checkpoint would hold: it has parameters and buffers for that."""
    outs, made = [], _made(factory, 0).train()
    kept = dict(made.named_buffers())
    first = {name: value.clone() for name, value in made.state_dict().items()}
    for _ in range(2):
        made.load_state_dict(first)
        try:
            with torch.random.fork_rng(devices=[]), torch.no_grad():
                torch.manual_seed(0)
                outs.append(made(x))
        except Exception:  # which is told better where it is tried out
            return
    name = type(made).__name__
    for buffer, value in made.named_buffers():
        if value is not kept.get(buffer):
            refuse("model", name, f"its code replaces the buffer {buffer}: write into it instead, as with copy_")
    if isinstance(outs[0], Tensor) and not torch.equal(*outs):
        refuse("model", name, "it gives different logits from equal weights: it keeps or draws something by itself")


def _tried(made: nn.Module, x: Tensor, classes: int) -> tuple[tuple[str, ...], int, bool]:
    """Which parameters are trained, how many numbers its layers put out for one example, whether it draws at random.

    Refuses a misfit.
    """
    sizes: list[int] = []
    hooks = [
        layer.register_forward_hook(lambda _, __, out: sizes.append(out.numel() if isinstance(out, Tensor) else 0))
        for layer in made.modules()
    ]
    try:
        with torch.random.fork_rng(devices=[]):
            before = torch.get_rng_state()
            out = made.train()(x)
            random = not torch.equal(before, torch.get_rng_state())
    except Exception as error:
        why = f"{tuple(x.shape)} does not go through it: {first_line(error)}"
        raise Refused(f"Invalid model: {type(made).__name__} ({why})") from error
    finally:
        for hook in hooks:
            hook.remove()
    right = (len(x), classes) if x.is_floating_point() else (*x.shape, classes)
    if not isinstance(out, Tensor) or out.shape != right:
        shape = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        refuse("model output", shape, f"it must be logits of shape {right}")
    names = [name for name, param in made.named_parameters() if param.requires_grad]
    if not out.requires_grad:
        refuse("model", type(made).__name__, "its logits do not depend on its parameters")
    grads = torch.autograd.grad(out.sum(), [made.get_parameter(name) for name in names], allow_unused=True)
    reached = tuple(name for name, grad in zip(names, grads, strict=True) if grad is not None)
    return reached, max(1, sum(sizes) // len(x)), random


def _unlike(model: Module, x: Tensor) -> str:
    """Why two replicas cannot be computed together, or an empty string: they are, and compared with each alone."""
    alone = replace(model, reason="to compare")
    found = []
    for each in (alone, model):
        firsts = [model.first(seed) for seed in (0, 1)]
        p, b = (
            {name: torch.stack([first[i][name] for first in firsts])[None] for name in firsts[0][i]} for i in (0, 1)
        )
        for param in p.values():
            param.requires_grad_()
        try:
            out = each.logits(p, b, x[None], Noise(torch.tensor([0]), torch.tensor(0)))
            weights = torch.linspace(-1, 1, out.numel()).view_as(out)
            grads = torch.autograd.grad((out * weights).sum(), list(p.values()))
            with torch.no_grad():
                evaluated = each.logits(p, b, x[None], None)
        except Exception as error:
            if each is alone:
                why = f"{tuple(x.shape)} does not go through it: {first_line(error)}"
                raise Refused(f"Invalid model: {type(model.module).__name__} ({why})") from error
            return f"its code cannot be batched: {first_line(error)[:120]}"
        found.append([out, evaluated, *b.values(), torch.cat([grad.flatten() for grad in grads])])
    alike = all(_close(one, other) for one, other in zip(*found, strict=True))
    return "" if alike else "batched, it computes something else"


def _close(one: Tensor, other: Tensor) -> bool:
    """Equal but for rounding, which is as large as the largest number makes it."""
    one, other = one.double(), other.double()
    return one.shape == other.shape and bool((one - other).abs().max() <= 1e-4 * other.abs().max() + 1e-12)
