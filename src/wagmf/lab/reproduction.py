"""The reproduction of the paper, written from its records alone: figures, tables, verdicts, and the report of it all.

A folder has ``records/`` (archives of runs, of walks, and the cost per batch); :func:`rebuild` writes the rest beside
it. Nothing is trained here, and the same records give the same files.
"""

import itertools
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pandas as pd

from wagmf.arguments import Refused
from wagmf.lab import plots, stats
from wagmf.lab.claims import ACCURACY_MARGIN, LOSS_MARGIN, Verdict, stated, verdicts
from wagmf.lab.figures import QUANTITIES, best, sensitivity, training
from wagmf.lab.files import write_whole
from wagmf.lab.looks import Panel, label, styles
from wagmf.lab.paper import BASELINES, OURS, PAIRS, PANELS, Printed
from wagmf.lab.records import Run, Tables, restore, tables
from wagmf.lab.report import report
from wagmf.lab.walks import Record, unpack_walks

__all__ = ["Evidence", "gather", "minutes", "rebuild", "significance_table"]

_ALPHA = 0.05
_COSTS = ["model", "method", "ms", "device"]
_STAGES = ("coarse", "fine")
_DATA = {"mnist": "MNIST", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "digits": "digits"}
_MODELS = {"softmax": "softmax regression", "mlp": "MLP", "cnn": "CNN", "resnet20": "ResNet-20"}
_COLUMNS = {2: 3, 3: 3, 4: 3, 5: 2, 6: 2}  # panels in a row, as the paper has them


@dataclass(frozen=True)
class Evidence:
    """All records of a folder. Methods have their plain names: options, such as AMSGrad's correction, are dropped.

    >>> import tempfile
    >>> gather(Path(tempfile.mkdtemp())).panels
    []
    """

    runs: list[Run]
    names: dict[str, list[str]]
    walks: list[Record]
    costs: pd.DataFrame

    @cached_property
    def all(self) -> Tables:
        """Every run, of searches too."""
        found = tables(self.runs, self.names)
        for frame in (found.curves, found.runs):
            frame["method"] = [name.partition("(")[0] for name in frame["method"]]
        return found

    @cached_property
    def finals(self) -> Any:
        """The curves of the experiments themselves: every method at the step size that was chosen, all seeds."""
        curves: Any = self.all.curves
        return curves[curves["experiment"].isin({panel.experiment for panel in PANELS})].reset_index(drop=True)

    @property
    def panels(self) -> list[Printed]:
        """The panels of the paper for which every method was run."""
        there = self.finals.groupby("experiment")["method"].agg(set) if len(self.finals) else {}
        return [panel for panel in PANELS if there.get(panel.experiment, set()) >= {*OURS, *BASELINES}]

    def of(self, experiment: str) -> Any:
        """The curves of an experiment, or of a stage of its search."""
        curves: Any = self.all.curves
        return curves[curves["experiment"] == experiment].reset_index(drop=True)

    @cached_property
    def chosen(self) -> dict[str, dict[str, float]]:
        """The step sizes that the experiments were run with, by experiment and method."""
        found: dict[str, dict[str, float]] = {}
        for name, method, lr in self.finals[["experiment", "method", "lr"]].drop_duplicates().itertuples(index=False):
            found.setdefault(name, {})[method] = lr
        return {name: found[name] for name in _in_order(found)}


def gather(folder: Path) -> Evidence:
    """Read the records of a folder; what is not there yet is empty.

    >>> import tempfile
    >>> len(gather(Path(tempfile.mkdtemp())).runs)
    0
    """
    runs: dict[str, Run] = {}
    names: dict[str, list[str]] = {}
    for path in sorted((folder / "records").glob("*.jsonl.gz")):
        if path.name != "walks.jsonl.gz":
            found, called = restore(path)
            runs |= {run.key: run for run in found}
            for key, several in called.items():
                names[key] = sorted({*names.get(key, []), *several})
    walks, costs = folder / "records" / "walks.jsonl.gz", folder / "records" / "costs.csv"
    return Evidence(
        list(runs.values()),
        names,
        unpack_walks(walks) if walks.exists() else [],
        _costs_of(costs) if costs.exists() else pd.DataFrame(columns=_COSTS),
    )


def _costs_of(path: Path) -> pd.DataFrame:
    try:
        found = pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise Refused(f"{path}: cannot be read: {error}") from error
    missing = [name for name in _COSTS if name not in found.columns]
    if missing:
        raise Refused(f"{path}: there must be columns {', '.join(_COSTS)}; {missing[0]} is missing")
    return found


# ------------------------------------------------------------------ the table of p-values


def significance_table(evidence: Evidence) -> pd.DataFrame:
    """The paper's table, a row for each cell whose panel was run: its p-value and ours, by every test.

    ``agrees`` is whether Student's p is on the same side of 0.05 as the printed one; ``stated``, what the paper's text
    says of the two, if anything; ``ahead``, which of them is better in the mean, "ours" or "baseline"; ``shown``, the
    same if the paired test, adjusted by Holm for all cells of this metric, has p < 0.05, else empty; ``last_epochs`` is
    Student's p of the last 8 epochs of one run: the paper's seem to be such.

    >>> import tempfile
    >>> significance_table(gather(Path(tempfile.mkdtemp()))).empty
    True
    """
    parts = []
    for metric in ("train_loss", "test_accuracy"):
        panels = [panel for panel in evidence.panels if panel.metric == metric]
        if not panels:
            continue
        curves = evidence.finals[evidence.finals["experiment"].isin([panel.experiment for panel in panels])]
        found = stats.significance(curves, metric, pairs=PAIRS)
        late = stats.paper_significance(curves, metric, pairs=PAIRS).set_index(["experiment", "a", "b"])["p"]
        by_cell = found.set_index(["experiment", "a", "b"])
        parts += [_cell(panel, k, by_cell, late) for panel in panels for k in range(len(PAIRS))]
    order = {panel.name: place for place, panel in enumerate(PANELS)}
    table = pd.DataFrame(parts)
    return (
        table.sort_values("panel", key=lambda names: names.map(order), kind="stable", ignore_index=True)
        if parts
        else table
    )


def _cell(panel: Printed, k: int, found: Any, late: Any) -> dict[str, Any]:
    (ours, baseline), printed = PAIRS[k], panel.p[k]
    row = found.loc[(panel.experiment, ours, baseline)]
    sign = -1 if stats.better_is_lower(panel.metric) else 1
    shown = {"a": "ours", "b": "baseline"}.get(row["better"], "")
    tests = ("student", "welch", "paired", "permutation")
    return {
        "panel": panel.name, "experiment": panel.experiment, "metric": panel.metric, "ours": ours,
        "baseline": baseline, "n": row["n"], "mean_ours": row["mean_a"], "mean_baseline": row["mean_b"],
        "difference": row["difference"], "low": row["low"], "high": row["high"], "hedges_g": row["hedges_g"],
        "printed": printed, **{name: row[name] for name in tests},
        **{f"{name}_holm": row[f"{name}_holm"] for name in tests},
        "last_epochs": late[panel.experiment, ours, baseline],
        "stated": stated().get((panel.name, ours, baseline), ""), "ahead": _ahead(row, sign), "shown": shown,
        "agrees": bool((row["student"] < _ALPHA) == (printed < _ALPHA)),
    }  # fmt: skip


def _ahead(row: Any, sign: int) -> str:
    """Who is better in the mean: whoever diverged less often, and among equals by the seeds that both finished."""
    if row["diverged_a"] != row["diverged_b"]:
        return "ours" if row["diverged_a"] < row["diverged_b"] else "baseline"
    return ("ours" if sign * row["difference"] > 0 else "baseline") if np.isfinite(row["difference"]) else ""


# ------------------------------------------------------------------ what it cost


def minutes(runs: Iterable[Run]) -> dict[str, float]:
    """The minutes that experiments, with their searches, took: where stacks were trained at once, each has its share.

    >>> stack = {"config": {}, "diverged": None, "curves": {}, "seconds": 60.0, "ended": "2026-01-01T00:01:00+00:00"}
    >>> minutes([Run("k", "mlp on mnist, fine", **stack), Run("l", "cnn on cifar10", **stack)])
    {'mlp on mnist': 0.5, 'cnn on cifar10': 0.5}
    """
    stacks = {(_experiment(run.experiment), run.ended, run.seconds) for run in runs if run.ended}
    spans = []
    for name, ended, seconds in sorted(stacks):
        end = datetime.fromisoformat(ended)
        spans.append((name, end - timedelta(seconds=seconds), end))
    moments = sorted({moment for _, *span in spans for moment in span})
    spent = dict.fromkeys((name for name, *_ in spans), 0.0)
    for start, end in itertools.pairwise(moments):
        active = [name for name, begun, over in spans if begun <= start and over >= end]
        for name in active:
            spent[name] += (end - start).total_seconds() / 60 / len(active)
    return {name: spent[name] for name in _in_order(spent)}


def _in_order(names: Iterable[str]) -> list[str]:
    """Experiments as the paper has them, others after these."""
    order = list(dict.fromkeys(panel.experiment for panel in PANELS))
    return sorted(names, key=lambda name: (order.index(name) if name in order else len(order), name))


def _experiment(name: str) -> str:
    """The experiment that a stage of a search belongs to."""
    head, _, stage = name.rpartition(", ")
    return head if stage in _STAGES else name


# ------------------------------------------------------------------ figures


def _figures(evidence: Evidence, folder: Path) -> list[Path]:
    folder.mkdir(exist_ok=True)
    drawn = []
    for ending in ("png", "svg"):
        if evidence.walks:
            drawn.append(plots.figure1_picture(evidence.walks, folder / f"figure1.{ending}"))
        for number, columns in _COLUMNS.items():
            panels = [_panel(evidence, panel) for panel in evidence.panels if panel.figure == number]
            if panels:
                title = f"Figure {number}, reproduced: mean of {_seeds(evidence)} seeds with 95 % bands"
                path = folder / f"figure{number}.{ending}"
                drawn.append(plots.panel_picture(panels, path, title=title, methods=_methods(), columns=columns))
        searched = [_searched(evidence, name) for name in evidence.chosen if len(evidence.of(f"{name}, fine"))]
        if searched:
            path = folder / f"step-sizes.{ending}"
            title = "The search for step sizes, its second stage: what was chosen is ringed"
            drawn.append(plots.panel_picture(searched, path, title=title, methods=_methods(), columns=3))
    return drawn


def _panel(evidence: Evidence, panel: Printed) -> Panel:
    drawn = training(evidence.of(panel.experiment), panel.metric, evidence.chosen[panel.experiment])
    title = f"({panel.letter}) {_title(panel.experiment)}: {QUANTITIES[panel.metric]}"
    return replace(drawn, title=title, zoom=0.8 * max(float(line.x[-1]) for line in drawn.lines))


def _searched(evidence: Evidence, name: str) -> Panel:
    drawn = sensitivity(evidence.of(f"{name}, fine"), "train_loss", evidence.chosen[name])
    return replace(drawn, title=_title(name))


def _methods() -> list[str]:
    return list(styles([*OURS, *BASELINES]))


def _title(experiment: str) -> str:
    model, _, data = experiment.partition(" on ")
    return f"{_MODELS.get(model, model)} on {_DATA.get(data, data)}"


def _seeds(evidence: Evidence) -> str:
    counts = sorted(set(evidence.finals.groupby(["experiment", "method"])["seed"].nunique())) or [0]
    return f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


# ------------------------------------------------------------------ words


def rebuild(folder: Path) -> list[Path]:
    """Write everything that follows from the records of a folder, and return what was written, README.md first.

    >>> import tempfile
    >>> rebuild(Path(tempfile.mkdtemp()))
    Traceback (most recent call last):
    wagmf.arguments.Refused: .../records: there are no records in it
    """
    evidence = gather(folder)
    if not evidence.runs and not evidence.walks:
        raise Refused(f"{folder / 'records'}: there are no records in it")
    table = significance_table(evidence)
    found = verdicts(evidence.finals, evidence.walks, evidence.costs)
    drawn = _figures(evidence, folder / "figures")
    written = [
        _csv(table, folder / "significance.csv"),
        _csv(_claims_table(found), folder / "claims.csv"),
        _csv(_rates_table(evidence), folder / "step-sizes.csv"),
    ]
    text = _text(evidence, table, found)
    readme = write_whole(folder / "README.md", lambda new: new.write_text(text, encoding="utf-8"))
    page = []
    if len(evidence.finals):
        page = [
            report(_only_finals(evidence), folder / "report.html", title="Adam revisited, reproduced", searched=True)
        ]
    return [readme, *written, *drawn, *page]


def _only_finals(evidence: Evidence) -> Tables:
    names = set(evidence.finals["experiment"])
    runs: Any = evidence.all.runs
    problems = {name: told for name, told in evidence.all.experiments.items() if name in names}
    return replace(
        evidence.all, curves=evidence.finals, runs=runs[runs["experiment"].isin(names)], experiments=problems
    )


def _csv(table: pd.DataFrame, path: Path) -> Path:
    return write_whole(path, lambda new: table.to_csv(new, index=False, float_format="%.6g"))


def _claims_table(found: list[Verdict]) -> pd.DataFrame:
    rows = [{"claim": each.id, "verdict": each.verdict, **asdict(cell)} for each in found for cell in each.cells]
    return pd.DataFrame(rows)


def _rates_table(evidence: Evidence) -> pd.DataFrame:
    """Every step size that was tried in the searches, with its loss, and which of them was taken."""
    parts = []
    for name, rates in evidence.chosen.items():
        for stage in _STAGES:
            curves = evidence.of(f"{name}, {stage}")
            if len(curves):
                ends: Any = stats.finals(curves, "train_loss")
                means = ends.groupby(["method", "lr"], as_index=False)["value"].mean()
                epochs = int(curves["epoch"].max())
                parts += [
                    (name, stage, epochs, method, lr, value, bool(rates.get(method) == lr))
                    for method, lr, value in means.itertuples(index=False)
                ]
    columns = ["experiment", "stage", "epochs", "method", "lr", "train_loss", "chosen"]
    return pd.DataFrame(parts, columns=columns)


def _text(evidence: Evidence, table: pd.DataFrame, found: list[Verdict]) -> str:
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    world = jinja2.Environment(loader=loader, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    world.filters |= {"label": label, "title": _title, "p": _p}
    spent, outcomes = minutes(evidence.runs), _outcomes(evidence, table)
    return world.get_template("reproduction.md.jinja").render(
        panels=evidence.panels,
        total=len(PANELS),
        every=len(PANELS) * len(PAIRS),
        seeds=_seeds(evidence),
        least=f"2/{2 ** int(_seeds(evidence).split()[0])}",
        verdicts=found,
        outcomes=outcomes,
        summary=_summary(outcomes),
        pairs=PAIRS,
        rows=_table_rows(evidence, table),
        counts=_counts(table),
        rates=_rates(evidence),
        methods=_methods(),
        close=_close(evidence),
        others=_without_the_chooser(evidence),
        moved=_moved(evidence),
        costs=_costs(evidence.costs),
        spent=spent,
        whole=sum(spent.values()),
        runs=len(evidence.runs),
        quick={run.config.get("dataset") for run in evidence.runs} == {"digits"},
        environment={name: value for name, value in evidence.all.environment.items() if value},
        margins=(LOSS_MARGIN, ACCURACY_MARGIN),
        figures=sorted({panel.figure for panel in evidence.panels}),
        walks=bool(evidence.walks),
    )


def _p(p: float) -> str:
    return "–" if not np.isfinite(p) else f"{p:.2f}" if p >= 0.01 else f"{p:.0e}".replace("e-0", "e-") if p else "0"


def _outcomes(evidence: Evidence, table: Any) -> list[dict[str, Any]]:
    """For each panel the means of all methods, and how WADA stands to the best baseline."""
    outcomes = []
    for panel in evidence.panels:
        ranks: Any = stats.ranking(evidence.of(panel.experiment), panel.metric)
        order = best(ranks, panel.metric) or _methods()  # whoever diverged less often is better
        first = next((name for name in order if name in BASELINES), BASELINES[0])
        found = {row["method"]: row for row in ranks.to_dict("records")}
        cell = table[(table["panel"] == panel.name) & (table["ours"] == "wada") & (table["baseline"] == first)]
        outcomes.append(
            {
                "panel": panel,
                "means": {name: _mean(found[name], panel.metric) for name in _methods()},
                "first": order[0],
                "best": first,
                "shown": cell["shown"].item(),
                "difference": _relative(cell["difference"].item(), found[first]["mean"], panel.metric),
                "p": cell["paired_holm"].item(),
            }
        )
    return outcomes


def _mean(row: dict[str, Any], metric: str) -> str:
    lost = f" ({row['diverged']} of {row['n'] + row['diverged']} diverged)" if row["diverged"] else ""
    if not row["n"]:
        return f"–{lost}"
    return (f"{100 * row['mean']:.2f} %" if metric.endswith("accuracy") else f"{row['mean']:.4f}") + lost


def _relative(difference: float, to: float, metric: str) -> str:
    if not np.isfinite(difference):
        return "–"
    return f"{100 * difference:+.2f} pp" if metric.endswith("accuracy") else f"{100 * difference / to:+.1f} %"


def _summary(outcomes: list[dict[str, Any]]) -> str:
    """How WADA stands to the best baseline of each panel, counted."""
    where = {
        kind: [f"{row['panel'].name}" for row in outcomes if row["shown"] == kind] for kind in ("ours", "baseline")
    }
    named = {kind: f"{len(names)} ({', '.join(names)})" if names else "none" for kind, names in where.items()}
    left = len(outcomes) - sum(map(len, where.values()))
    return (
        f"Of the {len(outcomes)} panels that were run (the paper has {len(PANELS)}), WADA is shown to be better than "
        f"the best baseline in {named['ours']}, worse in {named['baseline']}; in {left} no difference is shown."
    )


def _table_rows(evidence: Evidence, table: Any) -> list[dict[str, Any]]:
    """The paper's table: for each panel a cell for each pair, ours beside theirs."""
    if table.empty:
        return []
    cells = {(row["panel"], row["ours"], row["baseline"]): row for row in table.to_dict("records")}
    return [{"panel": panel, "cells": [cells[panel.name, *pair] for pair in PAIRS]} for panel in evidence.panels]


def _counts(table: Any) -> dict[str, int]:
    """How often what is the case, over all cells that were run."""
    if table.empty:
        return {"cells": 0}
    printed, student = table["printed"] < _ALPHA, table["student"] < _ALPHA
    ours, late = table["ahead"] == "ours", table["last_epochs"] < _ALPHA
    shown = {f"shown_{who}": int((table["shown"] == who).sum()) for who in ("ours", "baseline")}
    holm = {f"{name}_holm": int((table[f"{name}_holm"] < _ALPHA).sum()) for name in ("welch", "permutation", "paired")}
    return shown | holm | {
        "cells": len(table), "printed": int(printed.sum()), "student": int(student.sum()),
        "agree": int(table["agrees"].sum()), "both": int((printed & student).sum()),
        "both_ours": int((printed & student & ours).sum()), "late": int(late.sum()),
        "late_alone": int((late & ~student).sum()), "stated": int((table["stated"] == "better").sum()),
        "stated_ahead": int(((table["stated"] == "better") & ours).sum()),
        "stated_shown": int(((table["stated"] == "better") & (table["shown"] == "ours")).sum()),
        "stated_against": int(((table["stated"] == "better") & (table["shown"] == "baseline")).sum()),
    }  # fmt: skip


def _rates(evidence: Evidence) -> dict[str, list[str]]:
    """The chosen step sizes, a cell for each method; what is at the edge of what was tried is marked."""
    found = {}
    for name, rates in evidence.chosen.items():
        tried: Any = evidence.of(f"{name}, fine").groupby("method")["lr"]
        ends = {method: {min(lrs), max(lrs)} for method, lrs in tried}
        found[name] = [
            f"{rates[method]:g}{' (at an edge)' if rates[method] in ends.get(method, ()) else ''}"
            if method in rates
            else "–"
            for method in _methods()
        ]
    return found


def _close(evidence: Evidence) -> tuple[int, int]:
    """In how many of all searches the next best step size was within the standard deviation of seeds."""
    table: Any = _rates_table(evidence)
    close = every = 0
    for (name, method), rows in table[table["stage"] == "fine"].groupby(["experiment", "method"]):
        losses = np.sort(rows["train_loss"].to_numpy())
        ends: Any = stats.finals(evidence.of(str(name)), "train_loss")
        deviation = ends.loc[ends["method"] == method, "value"].std()
        every += 1
        close += bool(len(losses) > 1 and losses[1] - losses[0] < deviation)
    return close, every


def _without_the_chooser(evidence: Evidence) -> dict[str, int]:
    """What is shown by the seeds that had no part in the choice of step sizes."""
    searched = {run.config["seed"] for run in evidence.runs if _experiment(run.experiment) != run.experiment}
    left = evidence.finals[~evidence.finals["seed"].isin(searched)]
    counts = {"ours": 0, "baseline": 0}
    for metric in ("train_loss", "test_accuracy"):
        names = {panel.experiment for panel in evidence.panels if panel.metric == metric}
        curves = left[left["experiment"].isin(names)]
        if len(curves):
            better = stats.significance(curves, metric, pairs=PAIRS)["better"].tolist()
            counts["ours"] += better.count("a")
            counts["baseline"] += better.count("b")
    return counts | {"seeds": left["seed"].nunique()}


def _moved(evidence: Evidence) -> list[str]:
    """Where runs of full length chose quite another step size than the short ones had: why length matters here."""
    moved = []
    for name, rates in evidence.chosen.items():
        coarse, fine = evidence.of(f"{name}, coarse"), evidence.of(f"{name}, fine")
        if len(coarse) and len(fine) and coarse["epoch"].max() < fine["epoch"].max():
            best: Any = stats.best_rates(coarse).set_index("method")["lr"]
            far = [
                f"{label(method)} {best[method]:g} → {lr:g}"
                for method, lr in rates.items()
                if not 0.6 < lr / best[method] < 1.7
            ]
            if far:
                moved.append(f"{_title(name)}: {', '.join(far)}")
    return moved


def _costs(costs: Any) -> list[dict[str, Any]]:
    found = []
    for model, rows in costs.groupby("model", sort=False):
        times = dict(zip(rows["method"], rows["ms"], strict=True))
        spread = max(times.values()) / min(times.values())
        found.append(
            {"model": _MODELS.get(model, model), "times": times, "spread": spread, "device": rows["device"].iloc[0]}
        )
    return found
