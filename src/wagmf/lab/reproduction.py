"""The reproduction of the paper, written from its records alone: figures, tables, verdicts, and the report of it all.

A folder has ``records/`` (archives of runs, of walks, and the cost per batch); :func:`rebuild` writes the rest beside
it. Nothing is trained here, and the same records give the same files.
"""

from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pandas as pd

from wagmf.arguments import Refused
from wagmf.lab import plots, stats
from wagmf.lab.answers import ALPHA
from wagmf.lab.claims import ACCURACY_MARGIN, LOSS_MARGIN, Verdict, verdicts
from wagmf.lab.evidence import Evidence, experiment_of, gather, minutes, significance_table
from wagmf.lab.figures import QUANTITIES, best, sensitivity, training
from wagmf.lab.files import write_whole
from wagmf.lab.grids import beyond_the_grid
from wagmf.lab.looks import MODEL_TITLES, Panel, label, styles, title_of
from wagmf.lab.paper import BASELINES, OURS, PAIRS, PANELS, Printed
from wagmf.lab.records import Tables, write_csv
from wagmf.lab.report import report

__all__ = ["rebuild"]

_COLUMNS = {2: 3, 3: 3, 4: 3, 5: 2, 6: 2}  # panels in a row, as the paper has them


# ------------------------------------------------------------------ figures


def _figures(evidence: Evidence, folder: Path) -> list[Path]:
    folder.mkdir(exist_ok=True)
    drawn = []
    if evidence.walks:
        drawn += [plots.figure1_picture(evidence.walks, folder / f"figure1.{ending}") for ending in ("png", "svg")]
    for number, columns in _COLUMNS.items():
        panels = [_panel(evidence, panel) for panel in evidence.panels if panel.figure == number]
        title = f"Figure {number}, reproduced: mean of {_seeds(evidence)} seeds with 95 % bands"
        path = folder / f"figure{number}"
        drawn += plots.panel_pictures(panels, path, title=title, methods=_methods(), columns=columns)
    searched = [_searched(evidence, name) for name in evidence.chosen if len(evidence.of(f"{name}, fine"))]
    title = "The search for step sizes, its second stage: what was chosen is ringed"
    path = folder / "step-sizes"
    return drawn + plots.panel_pictures(searched, path, title=title, methods=_methods(), columns=3)


def _panel(evidence: Evidence, panel: Printed) -> Panel:
    drawn = training(evidence.of(panel.experiment), panel.metric, evidence.chosen[panel.experiment])
    title = f"({panel.letter}) {title_of(panel.experiment)}: {QUANTITIES[panel.metric]}"
    return replace(drawn, title=title, zoom=0.8 * max(float(line.x[-1]) for line in drawn.lines))


def _searched(evidence: Evidence, name: str) -> Panel:
    drawn = sensitivity(evidence.of(f"{name}, fine"), "train_loss", evidence.chosen[name])
    return replace(drawn, title=title_of(name))


def _methods() -> list[str]:
    return list(styles([*OURS, *BASELINES]))


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
    found = verdicts(evidence.finals, evidence.walks, evidence.costs, evidence.slacks)
    drawn = _figures(evidence, folder / "figures")
    written = [
        write_csv(table, folder / "significance.csv"),
        write_csv(_claims_table(found), folder / "claims.csv"),
        write_csv(evidence.tried, folder / "step-sizes.csv"),
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


def _claims_table(found: list[Verdict]) -> pd.DataFrame:
    rows = [{"claim": each.id, "verdict": each.verdict, **asdict(cell)} for each in found for cell in each.cells]
    return pd.DataFrame(rows)


def _text(evidence: Evidence, table: pd.DataFrame, found: list[Verdict]) -> str:
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    world = jinja2.Environment(loader=loader, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    world.filters |= {"label": label, "title": title_of, "p": _p}
    spent, outcomes = _spent(evidence), _outcomes(evidence, table)
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
        accuracies=_accuracies(evidence),
        known=_known(evidence, outcomes),
        others=_without_the_chooser(evidence),
        moved=_moved(evidence),
        costs=_costs(evidence.costs),
        spent=spent,
        whole=sum(row["minutes"] for row in spent),
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
    return f"{100 * difference:+.2f} pp" if metric.endswith("accuracy") else f"{100 * difference / to:+.2f} %"


def _summary(outcomes: list[dict[str, Any]]) -> str:
    """How WADA stands to the best baseline of each panel, counted."""
    where = {
        kind: [f"{row['panel'].name}" for row in outcomes if row["shown"] == kind] for kind in ("ours", "baseline")
    }
    named = {kind: f"{len(names)} ({', '.join(names)})" if names else "none" for kind, names in where.items()}
    left = len(outcomes) - sum(map(len, where.values()))
    small = [row["panel"].name for row in outcomes if not row["shown"] and row["p"] < ALPHA]
    beside = f" (in {', '.join(small)} there is one that a finer grid of step sizes might change)" if small else ""
    whole = len(outcomes) == len(PANELS)
    of = (
        f"paper's {len(PANELS)} panels"
        if whole
        else f"{len(outcomes)} panels that were run (the paper has {len(PANELS)})"
    )
    return (
        f"Of the {of}, WADA is shown to be better than the best baseline in {named['ours']}, worse in "
        f"{named['baseline']}; in {left} no difference is shown{beside}."
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
    printed, student = table["printed"] < ALPHA, table["student"] < ALPHA
    ours, late = table["ahead"] == "ours", table["last_epochs"] < ALPHA
    shown = {f"shown_{who}": int((table["shown"] == who).sum()) for who in ("ours", "baseline")}
    holm = {f"{name}_holm": int((table[f"{name}_holm"] < ALPHA).sum()) for name in ("welch", "permutation", "paired")}
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
    close = every = 0
    for (name, method), rows in evidence.tried[evidence.tried["stage"] == "fine"].groupby(["experiment", "method"]):
        losses = np.sort(rows["train_loss"].to_numpy())
        ends: Any = stats.finals(evidence.of(str(name)), "train_loss")
        deviation = ends.loc[ends["method"] == method, "value"].std()
        every += 1
        close += bool(len(losses) > 1 and losses[1] - losses[0] < deviation)
    return close, every


def _accuracies(evidence: Evidence) -> dict[str, list[str]]:
    """The test accuracy in the second stage at what was chosen, a cell for each method, and the best that was seen."""
    names = {panel.experiment for panel in evidence.panels if panel.metric == "test_accuracy"}
    fine = evidence.tried[(evidence.tried["stage"] == "fine") & evidence.tried["experiment"].isin(names)]
    found: dict[str, list[str]] = {}
    for name, rows in fine.groupby("experiment", sort=False):
        cells = {method: _accuracy_cell(tried) for method, tried in rows.groupby("method")}
        found[str(name)] = [cells.get(method, "–") for method in _methods()]
    return found


def _accuracy_cell(tried: Any) -> str:
    ends = tried.dropna(subset="test_accuracy").set_index("lr")["test_accuracy"]
    (taken,) = tried.loc[tried["chosen"], "lr"]
    if taken not in ends:  # it diverged
        return "–"
    cell = f"{100 * ends[taken]:.2f} %"
    return cell if ends[taken] == ends.max() else f"{cell}, {100 * ends.max():.2f} % at {ends.idxmax():g}"


def _known(evidence: Evidence, outcomes: list[dict[str, Any]]) -> dict[str, Any] | None:
    """What there is to hold beside the accuracies known for ResNet-20 on CIFAR-10."""
    name = "resnet20 on cifar10"
    means = [
        row["means"] for row in outcomes if (row["panel"].experiment, row["panel"].metric) == (name, "test_accuracy")
    ]
    fine = evidence.tried[(evidence.tried["experiment"] == name) & (evidence.tried["stage"] == "fine")]
    fine = fine.sort_values("test_accuracy").dropna()
    return {"means": sorted(means[0].values()), "top": fine.iloc[-1].to_dict()} if means and len(fine) else None


def _without_the_chooser(evidence: Evidence) -> dict[str, int]:
    """What is shown by the seeds that had no part in the choice of step sizes."""
    searched = {run.config["seed"] for run in evidence.runs if experiment_of(run.experiment) != run.experiment}
    left = evidence.finals[~evidence.finals["seed"].isin(searched)]
    counts = {"ours": 0, "baseline": 0}
    for metric in ("train_loss", "test_accuracy"):
        names = {panel.experiment for panel in evidence.panels if panel.metric == metric}
        curves = left[left["experiment"].isin(names)]
        if len(curves):
            rows: Any = stats.significance(curves, metric, pairs=PAIRS).to_dict("records")
            better = [beyond_the_grid(row, metric, evidence.slacks)["better"] for row in rows]
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
                moved.append(f"{title_of(name)}: {', '.join(far)}")
    return moved


def _spent(evidence: Evidence) -> list[dict[str, Any]]:
    """What each experiment took, and the panels that came of it."""
    runs = Counter(experiment_of(run.experiment) for run in evidence.runs)
    return [
        {
            "experiment": name,
            "panels": [panel.name for panel in evidence.panels if panel.experiment == name],
            "runs": runs[name],
            "minutes": each,
        }
        for name, each in minutes(evidence.runs).items()
    ]


def _costs(costs: Any) -> list[dict[str, Any]]:
    found = []
    for model, rows in costs.groupby("model", sort=False):
        times = dict(zip(rows["method"], rows["ms"], strict=True))
        spread, title = max(times.values()) / min(times.values()), MODEL_TITLES.get(model, model)
        found.append(
            {
                "model": title,
                "times": times,
                "spread": spread,
                "device": rows["device"].iloc[0],
            }
        )
    return found
