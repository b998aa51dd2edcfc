"""An experiment: what is trained, by which methods, at which step sizes, from which seeds; read from TOML.

    dataset = "digits"
    epochs = 20
    seeds = 5
    methods = ["adam", "wada"]
    lrs = [0.001, 0.01, 0.1]

    [[experiment]]              # what the file says above holds for each of them
    model = "softmax"
    decay = 0.5

    [[experiment]]
    model = "mlp"
    width = 64
    [experiment.methods]        # a method may have step sizes and options of its own
    wada = [0.01, 0.03]
    amsgrad = { lrs = [0.001], debias = true }
    "torch.optim.AdamW" = { weight_decay = 0.01 }
    nosadam = [{ eta = 1, p2 = 4 }, { eta = 2, p2 = 6 }]   # … and may occur with several

What an experiment says of itself goes before what the file says above. With a table ``[tuning]`` a search begins with
these step sizes (see tuning.py), and the experiment itself is run at those that it has chosen:

    [tuning]
    epochs = 50                 # runs of the search are shorter, milestones with them
    fine_epochs = 200           # … but not those of its second stage
    seeds = 1
    below = 4                   # steps of the second stage below the first one's best; 2 if nothing is said
    above = 3                   # … and above it, likewise
    by = "test_accuracy"        # at the last epoch; "train_loss" if nothing is said
"""

import hashlib
import importlib
import inspect
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from wagmf.arguments import Refused, flag, integer, one_of, real, refuse
from wagmf.lab.sources import look_here, told
from wagmf.methods import METHODS
from wagmf.rule import Rule, fold

__all__ = [
    "LOSSES",
    "METRICS",
    "PRECISIONS",
    "RATES",
    "Arm",
    "Experiment",
    "Problem",
    "Tuning",
    "address",
    "experiment",
    "read",
]

METRICS: tuple[str, ...] = ("train_loss", "train_accuracy", "test_loss", "test_accuracy")
"""What is recorded of every epoch."""

LOSSES: tuple[str, ...] = ("running", "clean")
"""The training loss: the mean over the batches of an epoch as they were trained on, or over the clean training set."""

PRECISIONS: tuple[str, ...] = ("auto", "float32", "bfloat16", "float64")
"""Of activations and products; weights and the update are float32 at least. "auto": bfloat16 on a GPU."""


RATES: tuple[float, float] = (1.2e-38, 1e38)
"""The least and the largest step size: in float32 what is smaller loses digits, and much larger ones are infinite."""


@dataclass(frozen=True)
class Arm:
    """A method with its options and a step size. A dotted name is an optimizer of torch's kind, such as AdamW.

    >>> Arm("wada", 0.01).rule.p2
    4.0
    >>> Arm("amsgrad", 0.001, (("debias", True),)).label
    'amsgrad(debias=True)'
    """

    method: str
    lr: float
    options: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "lr", _rate(self.lr, "learning rate"))
        object.__setattr__(self, "options", tuple((name, _fixed(value)) for name, value in self.options))
        if self.dotted:
            _check_call(self.optimizer, self)
        else:
            one_of("method", self.method, METHODS)
            _ = self.rule

    @property
    def dotted(self) -> bool:
        """Whether the method is an optimizer of somebody else's."""
        return isinstance(self.method, str) and "." in self.method

    @property
    def label(self) -> str:
        """The method as tables name it."""
        options = ", ".join(f"{name}={value!r}" for name, value in self.options)
        return f"{self.method}({options})" if options else self.method

    @property
    def rule(self) -> Rule:
        """The rule of one of our own methods."""
        known = METHODS[self.method].rule
        fields = {*asdict(known), "beta2", "eta"} - {"weights"}
        for name, _ in self.options:
            if name not in fields:
                refuse(f"option of {self.method}", name, f"one of {', '.join(sorted(fields))}")
        return fold(known, dict(self.options))

    @property
    def optimizer(self) -> Any:
        """The class that a dotted name means."""
        return _optimizer(self.method)


@dataclass(frozen=True)
class Problem:
    """What is trained and how; everything but method, step size and seed.

    Args:
        dataset: digits, mnist, cifar10, cifar100, the path of an .npz file, or ``module:function``.
        model: softmax, mlp, cnn, resnet20, or a module of one's own as ``module:factory``.
        options: of the model, such as (("width", 64),).
        epochs: how many passes over the training set.
        batch: how many examples a step sees.
        decay: α_t = lr·t^-decay; None is the method's own.
        milestones: epochs after which the step size is multiplied by ``factor``.
        l2: the penalty l2·Σ w² on weights (not on biases and scales), part of the training loss.
        shift: training images are moved by up to this part of their size each way.
        flip: half of the training images are mirrored.
        eps: added to V; torch's optimizers keep their own.
        loss: which training loss is recorded, "running" or "clean".
        precision: "auto", "float32", "bfloat16" or "float64".

    >>> Problem("digits", "mlp", (("width", 64),)).epochs
    20
    """

    dataset: str
    model: str
    options: tuple[tuple[str, Any], ...] = ()
    epochs: int = 20
    batch: int = 128
    decay: float | None = None
    milestones: tuple[int, ...] = ()
    factor: float = 0.1
    l2: float = 0.0
    shift: float = 0.0
    flip: bool = False
    eps: float = 1e-7
    loss: str = "running"
    precision: str = "auto"

    def __post_init__(self) -> None:
        checked = {
            "epochs": integer("epochs", self.epochs, least=1, most=10**6),
            "batch": integer("batch", self.batch, least=1, most=10**7),
            "decay": None if self.decay is None else real("decay", self.decay, least=0),
            "milestones": tuple(integer("milestones", each, least=1, most=10**6) for each in self.milestones),
            "factor": real("factor", self.factor, above=0),
            "l2": real("l2", self.l2, least=0),
            "shift": real("shift", self.shift, least=0, below=1),
            "eps": real("eps", self.eps, least=0),
        }
        for name, value in checked.items():  # 1 and 1.0 are the same problem, and have one address
            object.__setattr__(self, name, value)
        flag("flip", self.flip)
        one_of("loss", self.loss, LOSSES)
        one_of("precision", self.precision, PRECISIONS)

    def on(self, device: str) -> "Problem":
        """The same with its precision settled, as it is on a device."""
        auto = "bfloat16" if device.startswith("cuda") else "float32"
        return replace(self, precision=auto if self.precision == "auto" else self.precision)

    def rate(self, epoch: int) -> float:
        """By what the step size is multiplied in an epoch, which counts from 1.

        >>> Problem("digits", "mlp", milestones=(2, 4)).rate(3)
        0.1
        """
        return self.factor ** sum(epoch > milestone for milestone in self.milestones)

    def lasting(self, epochs: int) -> "Problem":
        """The same in so many epochs, with its milestones at the same parts of them.

        >>> Problem("digits", "mlp", epochs=200, milestones=(80, 120)).lasting(50).milestones
        (20, 30)
        """
        part = epochs / self.epochs
        return replace(self, epochs=epochs, milestones=tuple(max(1, round(each * part)) for each in self.milestones))


@dataclass(frozen=True)
class Tuning:
    """How step sizes are searched for: how long the runs of its two stages are, and from which seeds.

    The second stage begins with so many steps ``below`` and ``above`` the best of the first: longer runs may want
    smaller step sizes, or larger ones, and to go on beyond an edge takes a round of its own each time. ``by`` is the
    metric of the last epoch that tells the best.

    >>> Tuning(epochs=50, fine_epochs=200).seeds
    (0,)
    """

    epochs: int
    fine_epochs: int
    seeds: tuple[int, ...] = (0,)
    below: int = 2
    above: int = 2
    by: str = "train_loss"

    def __post_init__(self) -> None:
        one_of("by of tuning", self.by, METRICS)


@dataclass(frozen=True)
class Experiment:
    """A problem, the arms that are compared on it, and the seeds each of them is run from.

    >>> one = experiment({"dataset": "digits", "model": "softmax", "methods": ["adam"], "lrs": [0.1], "seeds": 2})
    >>> one.name, one.arms, one.seeds
    ('softmax on digits', (Arm(method='adam', lr=0.1, options=()),), (0, 1))
    """

    name: str
    problem: Problem
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    tuning: Tuning | None = None


def address(problem: Problem, digest: str, arm: Arm, seed: int) -> tuple[str, dict[str, Any]]:
    """The address of a run, which is a hash of all that its result depends on; and all that.

    >>> problem = Problem("digits", "softmax")
    >>> key, config = address(problem, "", Arm("wada", 0.1), 0)
    >>> key == address(problem, "", Arm("wada", 0.1), 0)[0] != address(problem, "", Arm("wada", 0.1), 1)[0]
    True
    """
    shared = vars(problem) | {"options": dict(problem.options), "data": digest}
    config = shared | {"method": arm.method, "method_options": dict(arm.options), "lr": arm.lr, "seed": seed}
    if arm.dotted and not arm.method.startswith("torch."):
        config["method_source"] = hashlib.sha256("\n".join(told(arm.optimizer)).encode()).hexdigest()[:16]
    # Data are known by their content: a file that was moved is the same data. The name is kept for people to read.
    counted = {key: value for key, value in config.items() if key != "dataset"}
    text = json.dumps(counted, sort_keys=True, default=list)
    return hashlib.sha256(text.encode()).hexdigest()[:20], json.loads(json.dumps(config, default=list))


def read(path: str | Path) -> list[Experiment]:
    """The experiments of a TOML file; whatever is wrong is refused with the file, the key and its value.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "mine.toml"
    >>> _ = path.write_text('dataset = "digits"\\nmodel = "mlp"\\nmethods = ["wada"]\\nlrs = [0.1]\\nepochs = -3')
    >>> read(path)
    Traceback (most recent call last):
    wagmf.arguments.Refused: .../mine.toml: Invalid epochs: -3 (epochs must be an integer >= 1 and <= 1,000,000)
    """
    path = Path(path)
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Refused(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # of TOML, of UTF-8, of a path that can be none
        raise Refused(f"{path}: is not TOML: {error}") from None
    tables = content.pop("experiment", None)
    if tables is not None and (not isinstance(tables, list) or not all(isinstance(each, dict) for each in tables)):
        raise Refused(f"{path}: Invalid experiment: {tables!r} (write [[experiment]] above each of them)")
    found = []
    for number, table in enumerate([{}] if tables is None else tables, 1):
        try:
            found.append(experiment({**content, **table}, path.parent))
        except Refused as error:
            where = f"{path}: " if tables is None else f"{path}: experiment {number}: "
            raise Refused(where + str(error)) from None
    if not found:
        raise Refused(f"{path}: Invalid experiment: [] (there must be at least one)")
    names = [each.name for each in found]
    for name in names:
        if names.count(name) > 1:
            raise Refused(f"{path}: Invalid name: {name!r} (two experiments have it: give each a name of its own)")
    return found


_OWN = ("name", "methods", "lrs", "seeds", "tuning")
_MODEL_OPTIONS = ("width", "dropout")
_PROBLEM = tuple(name for name in Problem.__dataclass_fields__ if name != "options")
_KEYS = (*_OWN, *_PROBLEM, *_MODEL_OPTIONS)


def experiment(table: Mapping[str, Any], folder: Path | None = None) -> Experiment:
    """The experiment that a table describes; paths in it are relative to ``folder``.

    >>> experiment({"dataset": "digits", "modle": "mlp"})
    Traceback (most recent call last):
    wagmf.arguments.Refused: Invalid key: 'modle' (did you mean 'model'? choose from name, methods, ...)
    """
    for name in table:
        one_of("key", name, _KEYS)
    for name in ("dataset", "model", "methods"):
        if name not in table:
            refuse(name, None, "the experiment must say it")
    for name in ("dataset", "model", "name"):
        if name in table and (not isinstance(table[name], str) or not table[name].strip()):
            refuse(name, table[name], f"{name} must be a word")
    milestones = table.get("milestones", ())
    if not isinstance(milestones, list | tuple):
        refuse("milestones", milestones, "milestones must be a list of epochs")
    said = {name: table[name] for name in _PROBLEM if name in table}
    said |= {"milestones": tuple(milestones), "dataset": _dataset(table["dataset"], folder)}
    options = tuple((name, table[name]) for name in _MODEL_OPTIONS if name in table)
    problem = Problem(**said, options=options)
    name = table.get("name", f"{problem.model} on {Path(problem.dataset).stem}")
    arms, seeds = _arms(table["methods"], table.get("lrs")), _seeds(table.get("seeds", 1))
    return Experiment(name, problem, arms, seeds, _tuning(table.get("tuning"), problem))


def _dataset(source: str, folder: Path | None) -> str:
    return str(folder / source) if folder and source.endswith(".npz") else source


def _rate(lr: Any, what: str) -> float:
    return real("lr", lr, least=RATES[0], most=RATES[1], what=what)


def _arms(methods: Any, lrs: Any) -> tuple[Arm, ...]:
    """Every method at every step size it is tried with."""
    if isinstance(methods, str) or not isinstance(methods, Iterable) or not methods:
        refuse("methods", methods, "methods must be a list of names, or a table of names with their step sizes")
    said = methods.items() if isinstance(methods, Mapping) else [(name, {}) for name in methods]
    arms = []
    for name, own in [(name, own) for name, several in said for own in _variants(several)]:
        if not isinstance(name, str):
            refuse("methods", name, "a method is called by its name")
        options = dict(own) if isinstance(own, Mapping) else {"lrs": own}
        rates = options.pop("lrs", lrs)
        if isinstance(rates, str) or not isinstance(rates, Iterable) or not rates:
            refuse(f"lrs of {name}", rates, "lrs must be a list of step sizes, for all methods or for this one")
        for lr in rates:
            arm = Arm(name, _rate(lr, f"learning rate of {name}"), tuple(sorted(options.items())))
            if arm in arms:
                refuse(f"lrs of {name}", lr, "it occurs twice")
            arms.append(arm)
    return tuple(arms)


def _variants(own: Any) -> list[Any]:
    """What is said of a method: once, or several times with other options."""
    several = isinstance(own, list | tuple) and any(isinstance(each, Mapping) for each in own)
    return list(own) if several else [own]


_TUNING = tuple(each.name for each in fields(Tuning))


def _tuning(table: Any, problem: Problem) -> Tuning | None:
    if table is None:
        return None
    if not isinstance(table, Mapping):
        refuse("tuning", table, f"tuning must be a table with {', '.join(_TUNING)}, or some of them")
    for name in table:
        one_of("key of tuning", name, _TUNING)
    epochs = integer("epochs of tuning", table.get("epochs", problem.epochs), least=1, most=10**6)
    fine = integer("fine_epochs of tuning", table.get("fine_epochs", epochs), least=1, most=10**6)
    below, above = (integer(f"{name} of tuning", table.get(name, 2), least=1, most=10) for name in ("below", "above"))
    return Tuning(epochs, fine, _seeds(table.get("seeds", 1)), below, above, table.get("by", "train_loss"))


def _seeds(seeds: Any) -> tuple[int, ...]:
    if isinstance(seeds, list | tuple):
        numbers = tuple(integer("seeds", seed, least=0, most=2**31 - 1) for seed in seeds)
        if not seeds or len(set(numbers)) < len(seeds):
            refuse("seeds", seeds, "seeds must be how many there are, or a list without repetitions")
        return numbers
    return tuple(range(integer("seeds", seeds, least=1, most=10**5)))


def _optimizer(name: str) -> Any:
    """The class that a dotted name means."""
    module, _, attribute = name.rpartition(".")
    look_here()
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # whatever a module of somebody else's may raise
        refuse("method", name, f"no optimizer can be imported by this name: {error}")
    if not (isinstance(found, type) and hasattr(found, "step") and hasattr(found, "zero_grad")):
        refuse("method", name, "it must be an optimizer of torch's kind")
    return found


def _check_call(optimizer: Any, arm: Arm) -> None:
    """Refuse an optimizer that cannot be made with these options, or that wants more than gradients to step along."""
    try:
        inspect.signature(optimizer).bind([], lr=arm.lr, **dict(arm.options))
    except (TypeError, ValueError) as error:
        refuse(f"options of {arm.method}", dict(arm.options), f"it cannot be called with lr and these: {error}")
    try:
        inspect.signature(optimizer.step).bind(None)
    except (TypeError, ValueError) as error:
        refuse("method", arm.method, f"step() must do without arguments: {error}")


def _fixed(value: Any) -> Any:
    """Lists as tuples: arms are compared and looked up."""
    if not isinstance(value, list | tuple | bool | int | float | str | None):
        refuse("option", value, "options are numbers, words, true or false, and lists of these")
    return tuple(map(_fixed, value)) if isinstance(value, list | tuple) else value
