"""What there is to do: experiments with their data and models, and the stacks in which they are trained."""

import hashlib
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from wagmf.arguments import Refused, integer, one_of, refuse
from wagmf.lab.data import Dataset, load
from wagmf.lab.environment import default_device
from wagmf.lab.models import MODELS, Model, zoo
from wagmf.lab.modules import factory_of, module, source_of
from wagmf.lab.sources import first_line
from wagmf.lab.spec import Arm, Experiment, Problem, address

__all__ = ["Prepared", "Work", "addresses", "cut", "identity", "memory_of", "missing", "plan", "prepare", "stack_size"]

_CACHE = 32 << 20  # bytes of activations that a stack on a CPU may have: about what stays near the cores
_MEMORY = 0.5  # of all memory, which a stack may take


@dataclass(frozen=True)
class Prepared:
    """An experiment with its data and its model, on a device.

    >>> from wagmf.lab.spec import experiment
    >>> one = experiment({"dataset": "digits", "model": "softmax", "methods": ["adam"], "lrs": [0.1], "seeds": 2})
    >>> prepare([one])[0].model.classes
    10
    """

    experiment: Experiment
    data: Dataset = field(repr=False)
    model: Model = field(repr=False)
    device: str
    memory: int | None = None  # bytes for a stack and its neighbours, if not those of this machine
    stack: int | None = None  # at most so many replicas together, if fewer than the device likes


@dataclass(frozen=True)
class Work:
    """A stack to be trained.

    >>> from wagmf.lab.spec import experiment
    >>> one = experiment({"dataset": "digits", "model": "softmax", "methods": ["adam"], "lrs": [0.1], "seeds": 2})
    >>> [len(work.keys) for work in plan(prepare([one]), set())]
    [2]
    """

    prepared: Prepared
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]

    @property
    def keys(self) -> list[str]:
        """The addresses of its runs, seed by seed."""
        of = self.prepared
        problem, digest = of.experiment.problem, of.data.digest
        return [address(problem, digest, arm, seed)[0] for seed in self.seeds for arm in self.arms]

    @property
    def identity(self) -> str:
        """By which its checkpoint is found again."""
        return identity(self.keys)

    def halves(self) -> list["Work"]:
        """The same in two stacks; refuses to halve a single replica."""
        if len(self.arms) > 1:
            middle = len(self.arms) // 2
            return [replace(self, arms=self.arms[:middle]), replace(self, arms=self.arms[middle:])]
        if len(self.seeds) > 1:
            middle = len(self.seeds) // 2
            return [replace(self, seeds=self.seeds[:middle]), replace(self, seeds=self.seeds[middle:])]
        raise Refused(f"{self.prepared.experiment.name}: not even one replica fits into the memory of the device")


def identity(keys: list[str]) -> str:
    """By what a stack of these runs is known.

    >>> len(identity(["a", "b"])), identity(["a", "b"]) == identity(["b", "a"])
    (20, False)
    """
    return hashlib.sha256(" ".join(keys).encode()).hexdigest()[:20]


def prepare(
    experiments: Iterable[Experiment],
    device: str | None = None,
    *,
    sources: Mapping[str, Any] | None = None,
    factories: Mapping[str, Any] | None = None,
    memory: int | None = None,
    stack: int | None = None,
    progress: bool = True,
) -> list[Prepared]:
    """Load the data and try the models of experiments, so that whatever is wrong is found before anything is trained.

    ``sources`` and ``factories`` give data and factories of modules for names that experiments use. ``memory`` is that
    of a device elsewhere, which this machine need not have. No more than ``stack`` replicas are trained together.

    >>> from wagmf.lab.spec import experiment
    >>> vectors = {"x_train": [[0.0], [1.0]], "y_train": [0, 1], "x_test": [[0.0]], "y_test": [0]}
    >>> one = experiment({"dataset": "mine", "model": "softmax", "methods": ["adam"], "lrs": [0.1]})
    >>> prepare([one], sources={"mine": vectors})[0].data.shape
    (1,)
    """
    device = _device(device, elsewhere=memory is not None)
    if stack is not None:
        integer("stack", stack, least=1)
    loaded: dict[str, Dataset] = {}
    prepared = []
    for each in experiments:
        _check_name(each.name)
        try:
            name = each.problem.dataset
            if name not in loaded:
                loaded[name] = load((sources or {}).get(name, name), progress=progress)
            model, problem = _model(each.problem, loaded[name], factories or {})
            _try_optimizers(each.arms, model)
            problem = _settled(problem, loaded[name], device)
        except Refused as error:
            raise Refused(f"{each.name}: {error}") from error.__cause__
        prepared.append(Prepared(replace(each, problem=problem), loaded[name], model, device, memory, stack))
    return prepared


def _check_name(name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:
        refuse("name", ascii(name), "it must be text: the name of a file may be something else")


def _settled(problem: Problem, data: Dataset, device: str) -> Problem:
    """The problem as it is on a device, if it can be."""
    settled = problem.on(device)
    if data.tokens and settled.precision == "bfloat16":
        refuse("precision", problem.precision, 'here that is bfloat16, and tokens need precision = "float32"')
    return settled


def _try_optimizers(arms: tuple[Arm, ...], model: Model) -> None:
    """Refuse an optimizer of somebody else's that cannot be made with its options, or cannot step on this model."""
    for arm in {(arm.method, arm.options): arm for arm in arms if arm.dotted}.values():
        params = [torch.zeros(shape, requires_grad=True) for shape in model.shapes.values()]
        for param in params:
            param.grad = torch.zeros_like(param)
        try:
            arm.optimizer([{"params": params, "lr": arm.lr}], **dict(arm.options)).step()
        except Exception as error:  # whatever it may raise
            refuse("method", arm.label, f"it cannot train this model: {first_line(error)}")


def _device(device: str | None, elsewhere: bool) -> str:
    device = device or default_device()
    one_of("device", device.partition(":")[0], ("cpu", "cuda"))
    if device.startswith("cuda") and not elsewhere and not torch.cuda.is_available():
        refuse("device", device, "this machine, or this build of torch, has no GPU: use cpu")
    return device


def _model(problem: Problem, data: Dataset, factories: Mapping[str, Any]) -> tuple[Model, Problem]:
    """The model, and the problem with what the model adds to it: the version of its code."""
    if problem.model in MODELS and problem.model not in factories:
        if data.tokens:
            refuse("model", problem.model, "sequences of tokens need a module of one's own: module:factory")
        return zoo(problem.model, data.shape, data.classes, **dict(problem.options)), problem
    if problem.model not in factories and ":" not in problem.model:
        one_of("model", problem.model, [*MODELS, "module:factory"])
    if problem.options:
        refuse("model option", problem.options[0][0], "a module of one's own has its options in its factory")
    factory = factories.get(problem.model) or factory_of(problem.model)
    batch = min(problem.batch, len(data.y_train))
    model = module(factory, data.shape, data.classes, batch, tokens=data.tokens)
    return model, replace(problem, options=(("source", source_of(factory)),))


# ---------------------------------------------------------------- what is left to do


def addresses(prepared: Iterable[Prepared]) -> dict[str, list[str]]:
    """The address of every run that experiments consist of, and the names of those it belongs to.

    >>> from wagmf.lab.spec import experiment
    >>> one = experiment({"dataset": "digits", "model": "softmax", "methods": ["adam"], "lrs": [0.1], "seeds": 2})
    >>> list(addresses(prepare([one])).values())
    [['softmax on digits'], ['softmax on digits']]
    """
    found: dict[str, list[str]] = {}
    for each in prepared:
        for key in Work(each, each.experiment.arms, each.experiment.seeds).keys:
            found.setdefault(key, []).append(each.experiment.name)
    return found


def plan(prepared: Iterable[Prepared], done: set[str]) -> list[Work]:
    """The stacks that train what is not done: products of arms and seeds, as large as the device likes them.

    >>> from wagmf.lab.spec import experiment
    >>> one = experiment({"dataset": "digits", "model": "softmax", "methods": ["adam"], "lrs": [0.1, 0.2], "seeds": 2})
    >>> ready = prepare([one])
    >>> [len(work.keys) for work in plan(ready, {next(iter(addresses(ready)))})]
    [1, 2]
    """
    works, seen = [], set(done)
    for each in prepared:
        for block in cut(each):
            works += missing(block, seen)
            seen |= set(block.keys)
    return works


def missing(work: Work, done: set[str]) -> list[Work]:
    """What is left of a stack: arms that miss the same seeds are trained together.

    >>> from wagmf.lab.spec import experiment
    >>> one = experiment({"dataset": "digits", "model": "softmax", "methods": ["adam"], "lrs": [0.1], "seeds": 3})
    >>> [work] = plan(prepare([one]), set())
    >>> [left.seeds for left in missing(work, {work.keys[1]})]
    [(0, 2)]
    """
    problem, digest = work.prepared.experiment.problem, work.prepared.data.digest
    together: dict[tuple[int, ...], list[Arm]] = {}
    for arm in work.arms:
        left = tuple(seed for seed in work.seeds if address(problem, digest, arm, seed)[0] not in done)
        if left:
            together.setdefault(left, []).append(arm)
    return [replace(work, arms=tuple(arms), seeds=seeds) for seeds, arms in together.items()]


def cut(each: Prepared) -> Iterator[Work]:
    """The whole grid in stacks: by what is asked for, not by what is left, so that a second try cuts alike.

    >>> from wagmf.lab.spec import experiment
    >>> one = experiment({"dataset": "digits", "model": "softmax", "methods": ["adam"], "lrs": [0.1, 0.2], "seeds": 3})
    >>> [[len(work.keys) for work in cut(*prepare([one], stack=most))] for most in (None, 4, 2)]
    [[6], [3, 3], [2, 2, 2]]
    """
    size = stack_size(each.experiment.problem, each.model, each.device, each.memory)
    size = min(size, each.stack or size)
    seeds = each.experiment.seeds
    parts = math.ceil(len(seeds) / size)
    for dotted in (False, True):  # optimizers of others cannot be recorded as a graph: they do not share with ours
        arms = tuple(arm for arm in each.experiment.arms if arm.dotted == dotted)
        for some in _even(seeds, parts):
            for few in _even(arms, math.ceil(len(arms) / max(1, size // len(some)))):
                yield Work(each, few, some)


def _even(things: tuple[Any, ...], parts: int) -> list[tuple[Any, ...]]:
    """Cut into so many parts of about one size."""
    width = math.ceil(len(things) / max(1, parts))
    return [things[k : k + width] for k in range(0, len(things), max(1, width))]


def stack_size(problem: Problem, model: Model, device: str, memory: int | None = None) -> int:
    """How many replicas are trained together.

    On a CPU as many as keep their activations near the cores: a stack saves what each operation costs at least, and
    once that is small, more replicas only push each other out of the cache. On a GPU as many as fit. ``memory`` is that
    of the device, if it is not of this machine.

    >>> from wagmf.lab.models import Softmax
    >>> stack_size(Problem("digits", "softmax"), Softmax((64,), 10), "cpu") > 100
    True
    """
    width = {"bfloat16": 2, "float32": 4, "float64": 8}[problem.on(device).precision]
    activations = max(1, model.activations * problem.batch * width)
    weights = 6 * 4 * sum(math.prod(shape) for shape in model.shapes.values())
    fit = int(_MEMORY * (memory or memory_of(device))) // (2 * activations + weights)
    return max(1, min(_CACHE // activations, fit, 512) if device == "cpu" else min(fit, 256))


def memory_of(device: str) -> int:
    """The bytes of a device of this machine: all there are, not what is free, which changes, and stacks should not.

    >>> memory_of("cpu") > 2**28
    True
    """
    if device != "cpu":
        return torch.cuda.mem_get_info(device)[1]
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):  # not every system tells
        return 4 << 30
