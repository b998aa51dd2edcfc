"""What a person sees while a sweep runs: what is done and left, how fast, until when, and what is best so far."""

import math
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from wagmf.lab.looks import QUANTITIES
from wagmf.lab.planning import Work
from wagmf.lab.records import Run
from wagmf.lab.stats import better_is_lower
from wagmf.lab.sweep import Epoch, Watch

__all__ = ["LiveView"]

_Row: TypeAlias = tuple[str, str, float, Mapping[str, float]]  # experiment, method, step size, metrics


class LiveView(Watch):
    """A progress bar with the best of each method so far; where nobody watches a screen, a line for each stack.

    The best is by what chooses in a search, else by what ``by`` has for the experiment, else by the ``criterion``.

    >>> with LiveView(Console(quiet=True)) as view:
    ...     view.planned([], 3)
    >>> view.done
    3
    """

    def __init__(
        self, console: Console, criterion: str = "train_loss", by: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self.done = self.total = 0
        self._console = console
        self._criterion = criterion
        self._chosen_by = by
        self._by: dict[str, str] = {}  # the metric that tells the best, of each experiment that is under way
        self._latest: dict[tuple[str, str], dict[float, dict[str, float]]] = {}  # step size: metrics
        self._current = ""
        self._rate = ""
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:3.0f} %"))
        self._bars = Progress(*columns, TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(), console=console)
        self._bar: Any = None
        self._live = Live(console=console, refresh_per_second=4, transient=True, get_renderable=self._render)
        self._clocks: dict[str, tuple[float, int]] = {}  # of stacks under way: when it began, and its steps since
        self._epochs: dict[str, int] = {}  # that are over, of each stack

    def __enter__(self) -> "LiveView":
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def planned(self, works: list[Work], done: int) -> None:
        """The stacks that are left, and how many runs were done before."""
        self.done, self.total = done, done + sum(len(work.keys) for work in works)
        if done:
            self.told(f"{done} of {self.total} runs were done before.")
        units = sum(len(work.keys) * work.prepared.experiment.problem.epochs for work in works)
        self._bar = self._bars.add_task("", total=units)
        for way in dict.fromkeys(work.prepared.model.way for work in works):
            if not way.startswith("stacked"):
                self.told(f"Replicas are trained {way}.")

    def begun(self, work: Work, epoch: int) -> None:
        """A stack begins, or goes on after an epoch."""
        if epoch:
            self.told(f"{work.prepared.experiment.name}: {len(work.keys)} runs go on after epoch {epoch}.")
        self._advance(work, epoch)
        self._clocks[work.identity] = (time.perf_counter(), 0)

    def trained(self, work: Work, epoch: Epoch) -> None:
        """An epoch of a stack is over."""
        of, replicas = work.prepared.experiment, len(work.keys)
        self._advance(work, epoch.number)
        self._rate = f"{self._steps_a_second(work, epoch.steps):,.0f} steps/s"
        self._current = f"{of.name}: {replicas} replicas, epoch {epoch.number} of {of.problem.epochs}"
        self._by[of.name] = of.tuning.by if of.tuning else self._chosen_by.get(of.name, self._criterion)
        for k, arm in enumerate(work.arms):
            ends = {metric: values[k] for metric, values in epoch.ends.items()}
            self._latest.setdefault((of.name, arm.label), {})[arm.lr] = ends

    def _steps_a_second(self, work: Work, more: int) -> float:
        """Of all stacks under way, one of which has just taken some more."""
        now = time.perf_counter()
        began, steps = self._clocks.get(work.identity, (now, 0))
        self._clocks[work.identity] = (began, steps + more)
        return sum(steps / max(1e-9, now - began) for began, steps in self._clocks.values())

    def _advance(self, work: Work, epoch: int) -> None:
        """To so many epochs of a stack: fewer than before, if it was lost and goes on from its checkpoint."""
        before = self._epochs.get(work.identity, 0)
        self._epochs[work.identity] = epoch
        self._bars.advance(self._bar, len(work.keys) * (epoch - before))

    def finished(self, work: Work, runs: list[Run]) -> None:
        """Runs are recorded."""
        self.done += len(runs)
        self._clocks.pop(work.identity, None)
        if not self._console.is_terminal:
            self.told(
                f"{self.done} of {self.total} runs are recorded; last {work.prepared.experiment.name}, {self._rate}."
            )

    def told(self, text: str) -> None:
        """Something that a person should know."""
        self._console.print(Text(text), highlight=False)

    def _best(self) -> list[_Row]:
        """Every method at the step size that is best by now, the best first; what diverged is last."""
        rows = [
            min(((name, method, lr, ends) for lr, ends in rates.items()), key=self._order)
            for (name, method), rates in self._latest.items()
        ]
        return sorted(rows, key=self._order)

    def _order(self, row: _Row) -> tuple[str, bool, float]:
        name, _, _, ends = row
        value = ends[self._by[name]]
        return name, math.isnan(ends["train_loss"] + value), value if better_is_lower(self._by[name]) else -value

    def _render(self) -> Group:
        by = list(dict.fromkeys(self._by.values())) or [self._criterion]
        shown = [metric for metric in QUANTITIES if metric in ("train_loss", "test_accuracy", *by)]
        words, title = [QUANTITIES[metric] for metric in shown], " and ".join(QUANTITIES[metric] for metric in by)
        table = Table("experiment", "method", "best α", *words, title=f"Best so far, by {title}")
        for name, method, lr, ends in self._best():
            told = {m: Text(f"{ends[m]:.4g}" if better_is_lower(m) else f"{ends[m]:.2%}") for m in shown}
            told[self._by[name]].stylize("bold")  # what tells the best of this experiment
            table.add_row(Text(name), Text(method), f"{lr:g}", *told.values())
        self._bars.update(self._bar, description=f"{self.done}/{self.total} runs") if self._bar is not None else None
        return Group(table, Text(f"{self._current}   {self._rate}"), self._bars)
