"""Which optimizer trains this model best? Any module, any data, in one call."""

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from wagmf.arguments import one_of, refuse
from wagmf.lab import report as reports
from wagmf.lab import stats
from wagmf.lab.planning import Prepared, addresses, prepare
from wagmf.lab.records import Records, Tables, tables
from wagmf.lab.spec import experiment
from wagmf.lab.sweep import Watch
from wagmf.lab.tuning import carry_out
from wagmf.methods import PAPER_METHODS

__all__ = ["LRS", "Comparison", "compare", "compared", "prepare_comparison", "searched_by"]

LRS: tuple[float, ...] = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
"""The step sizes that are tried where none are named."""


@dataclass(frozen=True)
class Comparison:
    """What came out: the records, and what they say.

    >>> data = {"x_train": [[0.0], [1.0]] * 8, "y_train": [0, 1] * 8, "x_test": [[0.0]], "y_test": [0]}
    >>> result = compare("softmax", data, methods=["adam", "wada"], lrs=[0.1, 1.0], seeds=2, epochs=3)
    >>> sorted(result.ranking["method"])
    ['adam', 'wada']
    """

    records: Tables
    criterion: str
    ways: tuple[str, ...]
    searched: Mapping[str, str] = field(default_factory=dict)  # by what, where a search has chosen step sizes before

    @property
    def rates(self) -> pd.DataFrame:
        """The step size of each method."""
        return stats.best_rates(self.records.curves, self.criterion)

    @property
    def ranking(self) -> pd.DataFrame:
        """The methods at their best step sizes, best first."""
        return stats.ranking(self.records.curves, self.criterion, rates=self.rates)

    @property
    def significance(self) -> pd.DataFrame:
        """Every pair of methods: is the difference real?"""
        return stats.significance(self.records.curves, self.criterion, rates=self.rates)

    def report(self, path: str | Path, *, rerun: str = "") -> Path:
        """Write the page that shows all this; ``rerun`` is the command that makes it again."""
        return reports.report(self.records, Path(path), criterion=self.criterion, rerun=rerun, searched=self.searched)

    def __str__(self) -> str:
        columns = ["experiment", "method", "lr", "n", "mean", "low", "high", "improves"]
        return self.ranking[columns].to_string(index=False, float_format="%.4g")


def prepare_comparison(
    model: Any,
    data: Any,
    *,
    methods: Sequence[str] | Mapping[str, Any] = PAPER_METHODS,
    lrs: Sequence[float] = LRS,
    seeds: int | Sequence[int] = 3,
    epochs: int = 20,
    device: str | None = None,
    name: str | None = None,
    **problem: Any,
) -> list[Prepared]:
    """The experiment that :func:`compare` runs, tried out and ready.

    >>> data = {"x_train": [[0.0], [1.0]], "y_train": [0, 1], "x_test": [[0.0]], "y_test": [0]}
    >>> prepare_comparison("softmax", data)[0].experiment.name
    'softmax on data'
    """
    if not isinstance(model, str) and not callable(model):
        refuse("model", model, "it must be a factory of modules, module:factory, or a name of the zoo")
    if isinstance(model, str):
        called, factories = model, {}
    else:
        called = getattr(model, "__qualname__", type(model).__name__)
        factories = {called: model}
    source = str(data) if isinstance(data, str | Path) else getattr(data, "name", "data")
    table = {"dataset": source, "model": called, "methods": methods, "lrs": _listed(lrs), "epochs": epochs, **problem}
    table["seeds"] = _listed(seeds)
    table |= {"name": name} if name else {}
    sources = {} if isinstance(data, str | Path) else {source: data}
    return prepare([experiment(table)], device, sources=sources, factories=factories)


def _listed(values: Any) -> Any:
    """Arrays and ranges as lists; what is neither is for the experiment to refuse."""
    return list(values) if isinstance(values, Iterable) and not isinstance(values, str) else values


def compare(
    model: Any,
    data: Any,
    *,
    records: str | Path | None = None,
    criterion: str = "train_loss",
    watch: Watch | None = None,
    **asked: Any,
) -> Comparison:
    """Train a model by every method at every step size from every seed, and say which is best, with evidence.

    Args:
        model: a factory of modules (a function without arguments, or a class), ``"module:factory"``, or a name of the
            zoo. Its modules take x [batch, ...] and give logits.
        data: a dataset's name, an .npz file, or a mapping with x_train, y_train, x_test and y_test.
        records: the file of runs; what it holds already is not trained again. By default nothing is kept.
        criterion: by which step sizes are chosen and methods ranked, "train_loss" or "test_accuracy".
        asked: ``methods``, ``lrs``, ``seeds``, ``epochs``, ``device``, and every key of an experiment: ``batch``,
            ``tuning``, ``l2``, ``decay``, ``milestones``, ``shift``, ``flip``, ``loss``, ...

    >>> import torch
    >>> net = lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 16), torch.nn.Linear(16, 10))
    >>> result = compare(net, "digits", methods=["adam", "torch.optim.SGD"], lrs=[0.01], seeds=2, epochs=1)
    >>> result.ways
    ('stacked through torch.func, 2 replicas',)
    """
    one_of("criterion", criterion, stats.CRITERIA)
    prepared = prepare_comparison(model, data, **asked)
    if records is not None:
        return _carried_out(prepared, Path(records), criterion, watch)
    with tempfile.TemporaryDirectory() as folder:
        return _carried_out(prepared, Path(folder) / "runs.db", criterion, watch)


def _carried_out(prepared: list[Prepared], path: Path, criterion: str, watch: Watch | None) -> Comparison:
    found = carry_out(prepared, path, watch=watch)
    return compared(found, Records(path), set(addresses(found)), criterion, searched_by(prepared))


def searched_by(prepared: Iterable[Prepared]) -> dict[str, str]:
    """The experiments whose step sizes are to be searched for, and by which metric.

    >>> data = {"x_train": [[0.0], [1.0]], "y_train": [0, 1], "x_test": [[0.0]], "y_test": [0]}
    >>> searched_by(prepare_comparison("softmax", data, tuning={"by": "test_accuracy"}))
    {'softmax on data': 'test_accuracy'}
    """
    return {each.experiment.name: each.experiment.tuning.by for each in prepared if each.experiment.tuning}


def compared(
    prepared: list[Prepared],
    records: Records,
    keys: set[str],
    criterion: str = "train_loss",
    searched: Mapping[str, str] | None = None,
) -> Comparison:
    """What the records say of experiments; ``searched`` are those whose step sizes were chosen before, and by what.

    >>> import tempfile
    >>> compared([], Records(Path(tempfile.mkdtemp()) / "runs.db"), set()).ways
    ()
    """
    found = records.runs(keys)
    ways = tuple(sorted({run.way for run in found}))
    return Comparison(tables(found, addresses(prepared)), criterion, ways, searched or {})
