"""The reproduction of the paper, written from its records alone: figures, tables, verdicts, and the report of it all.

A folder has ``records/`` (archives of runs, of walks, and the cost per batch); :func:`rebuild` writes the rest beside
it. Nothing is trained here, and the same records give the same files.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pandas as pd

from wagmf.arguments import Refused
from wagmf.lab import plots, stats
from wagmf.lab.anew import Again, longest, searched_again
from wagmf.lab.answers import ALPHA
from wagmf.lab.claims import ACCURACY_MARGIN, LOSS_MARGIN, Verdict, verdicts
from wagmf.lab.evidence import (
    STAGES,
    TRIED,
    Evidence,
    experiment_of,
    gather,
    minutes,
    shares,
    significance_table,
    stack_of,
    tried_rates,
    without_seeds,
)
from wagmf.lab.figures import best, sensitivity, training
from wagmf.lab.files import write_whole
from wagmf.lab.grids import TUNED, Row, beyond_the_grid, losses_by_rate
from wagmf.lab.looks import MODEL_TITLES, QUANTITIES, Leads, Panel, label, styles, title_of
from wagmf.lab.paper import BASELINES, OURS, PAIRS, PANELS, Printed
from wagmf.lab.records import Tables, environment_of, write_csv
from wagmf.lab.report import report
from wagmf.lab.retold import counted, retold, so_far, told_nowhere
from wagmf.lab.tuning import FINE, next_rates, same_rate

__all__ = ["rebuild"]

_COLUMNS = {2: 3, 3: 3, 4: 3, 5: 2, 6: 2}  # panels in a row, as the paper has them
_STANDING = "WADA and the best baseline of each panel (in brackets), 95 % intervals; right of 0 WADA is ahead"
_RESNET = {  # what is known of ResNet-20 on CIFAR-10
    0.9125: "He et al. 2016, SGD with momentum",
    0.9216: "the Keras example which the paper follows: Adam, batches of 32",
}
_WHO = {"a": "ours", "b": "baseline", "": ""}  # who the two of a comparison are


# ------------------------------------------------------------------ figures


def _figures(evidence: Evidence, outcomes: list[dict[str, Any]], anew: Mapping[str, Again], folder: Path) -> list[Path]:
    folder.mkdir(exist_ok=True)
    drawn = []
    if evidence.walks:
        drawn += [plots.figure1_picture(evidence.walks, folder / f"figure1.{ending}") for ending in ("png", "svg")]
    for number, columns in _COLUMNS.items():
        panels = [_panel(evidence, panel) for panel in evidence.panels if panel.figure == number]
        title = f"Figure {number}, reproduced: mean of {_seeds(evidence)} seeds with 95 % bands"
        path = folder / f"figure{number}"
        drawn += plots.panel_pictures(panels, path, title=title, methods=_methods(), columns=columns)
    drawn += plots.leads_pictures(_leads(outcomes), folder / "standing", title=_STANDING) if outcomes else []
    names = [name for name in evidence.chosen if len(evidence.of(f"{name}, {STAGES[1]}"))]
    title = "The search for step sizes, its second stage: what was chosen is ringed"
    searched = _searched(evidence, names, "train_loss", anew)
    drawn += plots.panel_pictures(searched, folder / "step-sizes", title=title, methods=_methods(), columns=3)
    known = {panel.experiment for panel in evidence.panels if panel.metric == "test_accuracy"}
    title = "How the same networks test: ringed is what trains best"
    tested = _searched(evidence, [name for name in names if name in known], "test_accuracy", anew)
    return drawn + plots.panel_pictures(tested, folder / "tested", title=title, methods=_methods(), columns=3)


def _leads(outcomes: list[dict[str, Any]]) -> list[Leads]:
    """By how much WADA is ahead of the best baseline: what is good is to the right, whatever is measured."""
    sides = []
    for metric, across, margin in (
        ("train_loss", "training loss: lower by so many %", 100 * LOSS_MARGIN),
        ("test_accuracy", "test accuracy: higher by so many points", 100 * ACCURACY_MARGIN),
    ):
        own = [row for row in outcomes if row["panel"].metric == metric and np.isfinite(row["cell"]["difference"])]
        cells = [row["cell"] for row in own]
        per = [-100 / cell["mean_baseline"] if metric == "train_loss" else 100.0 for cell in cells]
        ends = [sorted((cell["low"] * k, cell["high"] * k)) for cell, k in zip(cells, per, strict=True)]
        sides.append(
            Leads(
                across,
                tuple(f"{title_of(row['panel'].experiment)} ({label(row['best'])})" for row in own),
                np.array([cell["difference"] * k for cell, k in zip(cells, per, strict=True)]),
                np.array([low for low, _ in ends]),
                np.array([high for _, high in ends]),
                tuple({"ours": 1, "baseline": -1}.get(row["shown"], 0) for row in own),
                margin,
            )
        )
    return [side for side in sides if side.names]


def _panel(evidence: Evidence, panel: Printed) -> Panel:
    drawn = training(evidence.of(panel.experiment), panel.metric, evidence.chosen[panel.experiment])
    title = f"({panel.letter}) {title_of(panel.experiment)}: {QUANTITIES[panel.metric]}"
    return replace(drawn, title=title, zoom=0.8 * max(float(line.x[-1]) for line in drawn.lines))


def _searched(evidence: Evidence, names: Iterable[str], metric: str, anew: Mapping[str, Again]) -> list[Panel]:
    """The second stage of searches; after each the one that is done again, if that is over."""
    found = []
    over = {name: again for name, again in anew.items() if again.over}
    for name in names:
        curves, title = evidence.of(f"{name}, {STAGES[1]}"), title_of(name)
        found.append(_second_stage(curves, metric, evidence.chosen[name], title))
        if name in over:
            rates = {method: one.lr for method, one in over[name].best.items()}
            found.append(_second_stage(over[name].curves, metric, rates, f"{title}, searched again"))
    return found


def _second_stage(curves: Any, metric: str, rates: Mapping[str, float], title: str) -> Panel:
    return replace(sensitivity(curves, metric, rates), title=f"{title}, {curves['epoch'].max()} epochs")


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
    others = _by_other_seeds(evidence)
    outcomes = _outcomes(evidence, table, others)
    anew = searched_again(evidence)
    drawn = _figures(evidence, outcomes, anew, folder / "figures")
    written = [
        write_csv(table, folder / "significance.csv"),
        write_csv(_claims_table(found), folder / "claims.csv"),
        write_csv(_tried(evidence, anew), folder / "step-sizes.csv"),
    ]
    text = _text(evidence, table, found, outcomes, others, anew)
    readme = write_whole(folder / "README.md", lambda new: new.write_text(text, encoding="utf-8"))
    page = []
    if len(evidence.finals):
        more = [plots.figure1_shown(evidence.walks)] if evidence.walks else []
        names = _with_panels(evidence)
        slacks = {(names[name], by, method): slack for (name, by, method), slack in evidence.slacks.items()}
        words = {"title": "Adam revisited, reproduced", "searched": dict.fromkeys(names.values(), TUNED)}
        page = [report(_only_finals(evidence, names), folder / "report.html", slacks=slacks, more=more, **words)]
    return [readme, *written, *drawn, *page]


def _only_finals(evidence: Evidence, names: Mapping[str, str]) -> Tables:
    """The experiments themselves, as the paper has them in order, under these names."""
    order = {name: place for place, name in enumerate(names)}
    curves = evidence.finals.sort_values("experiment", key=lambda column: column.map(order), kind="stable")
    runs: Any = evidence.all.runs
    runs = runs[runs["experiment"].isin(names)]
    return replace(
        evidence.all,
        curves=curves.assign(experiment=curves["experiment"].map(names)).reset_index(drop=True),
        runs=runs.assign(experiment=runs["experiment"].map(names)).reset_index(drop=True),
        experiments={names[name]: told for name, told in evidence.all.experiments.items() if name in names},
    )


def _with_panels(evidence: Evidence) -> dict[str, str]:
    """What the experiments are called, with the panels of the paper that they are shown in."""
    own = {name: [panel.name for panel in PANELS if panel.experiment == name] for name in evidence.chosen}
    return {name: f"{title_of(name)} ({', '.join(panels)})" for name, panels in own.items()}


def _claims_table(found: list[Verdict]) -> pd.DataFrame:
    rows = [{"claim": each.id, "verdict": each.verdict, **asdict(cell)} for each in found for cell in each.cells]
    return pd.DataFrame(rows)


def _tried(evidence: Evidence, anew: Mapping[str, Again]) -> pd.DataFrame:
    """Every step size that was tried, also in searches that are done again, whose second stage alone is told."""
    found = [evidence.tried]
    for name, again in anew.items():
        there = {f"{name}, {STAGES[1]}": again.curves}
        rates = {method: one.lr for method, one in again.best.items()} if again.over else {}
        rows = tried_rates(lambda stage, there=there: there.get(stage, ()), name, rates)
        found.append(pd.DataFrame(rows, columns=TRIED).assign(stage=f"{STAGES[1]}, again"))
    return pd.concat(found, ignore_index=True)


def _text(
    evidence: Evidence,
    table: pd.DataFrame,
    found: list[Verdict],
    outcomes: list[dict[str, Any]],
    others: Mapping[tuple[str, str, str], Row],
    anew: Mapping[str, Again],
) -> str:
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    world = jinja2.Environment(loader=loader, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    world.filters |= {"label": label, "title": title_of, "p": _p}
    spent = _spent(evidence)
    return world.get_template("reproduction.md.jinja").render(
        panels=evidence.panels,
        total=len(PANELS),
        every=len(PANELS) * len(PAIRS),
        seeds=_seeds(evidence),
        least=f"2/{2 ** int(_seeds(evidence).split()[0])}",
        verdicts=found,
        outcomes=outcomes,
        summary=_summary(outcomes, _early(evidence), _at_other_rates(evidence, outcomes), so_far(evidence, anew)),
        pairs=PAIRS,
        rows=_table_rows(evidence, table),
        counts=_counts(table),
        rates=_rates(evidence),
        methods=_methods(),
        close=_close(evidence, anew),
        accuracies=_accuracies(evidence, anew),
        known=_known(evidence),
        others=Counter(_WHO[row["better"]] for row in others.values()),
        left={int(row["n"]) for row in others.values()},
        plain=_without_the_grid(evidence, found) if evidence.slacks else [],
        moved=_moved(evidence),
        shorter=_shorter(evidence),
        twice=_twice(evidence),
        anew=retold(evidence, anew),
        aside=told_nowhere(evidence, anew),
        uncounted=(len(evidence.anew), sum(minutes(evidence.anew).values())),
        onward=_onward(evidence),
        penalties=_penalties(evidence),
        walks_commits=evidence.walks_commits,
        costs=_costs(evidence.costs),
        spent=spent,
        whole=sum(row["minutes"] for row in spent),
        in_one_go=_in_one_go(evidence),
        runs=len(evidence.runs),
        quick={run.config.get("dataset") for run in evidence.runs} == {"digits"},
        environment={name: value for name, value in environment_of([*evidence.runs, *evidence.anew]).items() if value},
        margins=(LOSS_MARGIN, ACCURACY_MARGIN),
        figures=sorted({panel.figure for panel in evidence.panels}),
        walks=bool(evidence.walks),
    )


def _p(p: float) -> str:
    """In two digits, or as many as it takes to see on which side of the threshold it is."""
    if not np.isfinite(p) or p < 0.01:
        return "–" if not np.isfinite(p) else f"{p:.0e}".replace("e-0", "e-") if p else "0"
    return next(text for text in (f"{p:.{digits}f}" for digits in range(2, 20)) if float(text) != ALPHA or p == ALPHA)


def _outcomes(evidence: Evidence, table: Any, others: Mapping[tuple[str, str, str], Row]) -> list[dict[str, Any]]:
    """For each panel the means of all methods, and how WADA stands to the best baseline; by the other seeds, too."""
    outcomes = []
    for panel in evidence.panels:
        ranks: Any = stats.ranking(evidence.of(panel.experiment), panel.metric)
        order = best(ranks, panel.metric) or _methods()  # whoever diverged less often is better
        first = next((name for name in order if name in BASELINES), BASELINES[0])
        found = {row["method"]: row for row in ranks.to_dict("records")}
        cell = table[(table["panel"] == panel.name) & (table["ours"] == "wada") & (table["baseline"] == first)]
        alone = others.get((panel.name, "wada", first), {})
        outcomes.append(
            {
                "panel": panel,
                "means": {name: _mean(found[name], panel.metric) for name in _methods()},
                "first": order[0],
                "best": first,
                "shown": cell["shown"].item(),
                "difference": _relative(cell["difference"].item(), found[first]["mean"], panel.metric),
                "p": cell["paired_holm"].item(),
                "others": alone.get("paired_holm", np.nan),
                "stands": _WHO.get(alone.get("better", ""), "") == cell["shown"].item(),
                "cell": cell.iloc[0].to_dict(),
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
    unit, size = ("pp", difference) if metric.endswith("accuracy") else ("%", difference / to)
    return f"{100 * size:+.2f} {unit}".replace("-0.00", "±0.00").replace("+0.00", "±0.00")


def _summary(outcomes: list[dict[str, Any]], early: list[str], others: list[str], again: list[str]) -> str:
    """How WADA stands to the best baseline of each panel, in plain words."""
    kinds = {kind: [row for row in outcomes if row["shown"] == kind] for kind in ("ours", "baseline", "")}
    small = [_called(row) for row in kinds[""] if row["p"] < ALPHA]
    weak = [_called(row) for row in outcomes if row["shown"] and not row["stands"]]
    of = "all" if len(outcomes) == len(PANELS) else f"the {len(outcomes)} that were run"
    sized = {kind: [f"{_called(row)} ({row['difference']}{_hardly(row)})" for row in kinds[kind]] for kind in kinds}
    lines = [
        f"Beside the best baseline of each panel, in {of} of the paper's {len(PANELS)}, WADA is shown to be",
        "",
        f"- **better in {len(kinds['ours']) or 'none'}**{_listed(sized['ours'])};",
        f"- **worse in {len(kinds['baseline']) or 'none'}**{_listed(sized['baseline'])};",
        f"- in {len(kinds['']) or 'none'} no difference is shown"
        + (
            f" (in {len(small)} of them p is small, but step sizes between those tried may undo it{_listed(small)})"
            if small
            else ""
        )
        + ".",
        "",
        f"(What hardly matters: less than {100 * LOSS_MARGIN:g} % of the loss or {100 * ACCURACY_MARGIN:g} pp.)"
        + (" To be read with care:" if weak or others or early or again else ""),
    ]
    cares = {
        "not shown by those seeds alone that had no part in choosing step sizes": weak,
        "accuracies are those of step sizes chosen by training loss; at others that were tried": others,
        "step sizes were chosen by shorter runs, and are not the best, or not shown to be": early,
    }
    told = [f"- {words}{_listed(names)}." for words, names in cares.items() if names]
    told += [f"- {each}" for each in again]
    lines += ["", *told] if told else []
    return "\n".join(lines)


def _at_other_rates(evidence: Evidence, outcomes: list[dict[str, Any]]) -> list[str]:
    """Where a difference in accuracy is shown: how near the method behind came at another step size of the search."""
    found = []
    for row in outcomes:
        if row["panel"].metric != "test_accuracy" or not row["shown"]:
            continue
        own = evidence.tried["experiment"] == row["panel"].experiment
        fine: Any = evidence.tried[own & (evidence.tried["stage"] == "fine")].dropna(subset="test_accuracy")
        ahead, behind = ("wada", BASELINES) if row["shown"] == "ours" else (row["best"], ("wada",))
        there = fine[fine["method"].isin(behind) & ~fine["chosen"]].sort_values("test_accuracy")
        taken = fine[(fine["method"] == ahead) & fine["chosen"]]
        if len(there) and len(taken):
            near, task = there.iloc[-1], title_of(row["panel"].experiment)
            found.append(
                f"{label(near['method'])} came to {100 * near['test_accuracy']:.2f} % in {task}, "
                f"beside {label(ahead)}'s {100 * taken['test_accuracy'].item():.2f} % (one seed)"
            )
    return found


def _hardly(row: dict[str, Any]) -> str:
    """What is to be said of a difference that is shown, and small."""
    cell, metric = row["cell"], row["panel"].metric
    margin = LOSS_MARGIN * abs(cell["mean_baseline"]) if metric == "train_loss" else ACCURACY_MARGIN
    return ", which hardly matters" if abs(cell["difference"]) < margin else ""


def _early(evidence: Evidence) -> list[str]:
    """The experiments whose step sizes were chosen by shorter runs."""
    return [title_of(each["experiment"]) for each in _shorter(evidence)]


def _called(row: dict[str, Any]) -> str:
    return f"{title_of(row['panel'].experiment)}, {QUANTITIES[row['panel'].metric]}"


def _listed(names: list[str]) -> str:
    return f": {'; '.join(names)}" if names else ""


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


def _close(evidence: Evidence, anew: Mapping[str, Again]) -> tuple[int, int]:
    """In how many of all searches the next best step size was within the standard deviation of seeds."""
    fine = evidence.tried[evidence.tried["stage"] == STAGES[1]]
    tried = [
        (name, method, list(rows["train_loss"])) for (name, method), rows in fine.groupby(["experiment", "method"])
    ]
    tried += [
        (name, method, [loss for loss, _ in means.values()])
        for name, again in anew.items()
        if again.over
        for method, means in again.means.items()
    ]
    gaps = [(np.diff(np.sort(losses)[:2]), evidence.between_seeds(name, method)) for name, method, losses in tried]
    return sum(bool((gap < deviation).any()) for gap, deviation in gaps), len(gaps)


def _accuracies(evidence: Evidence, anew: Mapping[str, Again]) -> list[dict[str, Any]]:
    """The test accuracy in the second stage at what was chosen, a cell for each method, and the best that was seen.

    After an experiment comes the search of it that is done again, once that is over.
    """
    names = {panel.experiment for panel in evidence.panels if panel.metric == "test_accuracy"}
    fine = evidence.tried[(evidence.tried["stage"] == "fine") & evidence.tried["experiment"].isin(names)]
    found = []
    for name, rows in fine.groupby("experiment", sort=False):
        title = title_of(str(name))
        cells = {method: _accuracy_cell(tried) for method, tried in rows.groupby("method")}
        found.append({"title": title, "epochs": rows["epochs"].max(), "cells": cells})
        again = anew.get(str(name))
        if again is not None and again.over:
            cells = {method: _shares_told(one.accuracy, one.top, one.top_lr) for method, one in again.best.items()}
            found.append({"title": f"{title}, searched again", "epochs": again.epochs, "cells": cells})
    return [row | {"cells": [row["cells"].get(method, "–") for method in _methods()]} for row in found]


def _accuracy_cell(tried: Any) -> str:
    ends = tried.dropna(subset="test_accuracy").set_index("lr")["test_accuracy"]
    (taken,) = tried.loc[tried["chosen"], "lr"]
    if taken not in ends:  # it diverged
        return "–"
    return _shares_told(ends[taken], ends.max(), ends.idxmax())


def _shares_told(share: float, top: float, at: float) -> str:
    return f"{100 * share:.2f} %" + (f", {100 * top:.2f} % at {at:g}" if top > share else "")


def _known(evidence: Evidence) -> dict[str, Any] | None:
    """What there is to hold beside the accuracies known for ResNet-20 on CIFAR-10: at what was chosen, and elsewhere.

    The latter is from the longest runs that a search was made with, also from one that is done again.
    """
    name = "resnet20 on cifar10"
    epochs, seeds, best = longest(evidence, name)
    if not best or name not in {panel.experiment for panel in evidence.panels}:
        return None
    ranks: Any = stats.ranking(evidence.of(name), "test_accuracy")
    rates = sorted({one.rates for one in best.values()})
    counts = [sum(one.top >= share for one in best.values()) for share in _RESNET]
    return {
        "means": [_mean(row, "test_accuracy") for row in ranks.sort_values("mean").to_dict("records") if row["n"]],
        "epochs": epochs,
        "seeds": counted(seeds),
        "rates": " to ".join(f"{count}" for count in dict.fromkeys((rates[0], rates[-1]))),
        "shares": " or ".join(f"{100 * share:.2f} % ({who})" for share, who in _RESNET.items()),
        "reached": [_explained(count, len(best), share) for share, count in zip(_RESNET, counts, strict=True)],
        "told": [
            f"{100 * one.top:.2f} % ({label(method)} at {one.top_lr:g}, with a training loss of {one.top_loss:.3f})"
            for method, one in sorted(best.items(), key=lambda item: -item[1].top)
        ],
    }


def _explained(count: int, of: int, share: float) -> str:
    """What is known by how many reach an accuracy at another step size."""
    if count == of:
        cause = "what keeps accuracies here below that is that step sizes are chosen by training loss"
        return f"All {of} reach {100 * share:.2f} %: {cause}."
    reach = f"{count or 'None'} of {of} {'reach' if count > 1 else 'reaches'} {100 * share:.2f} %"
    lack = "what the others lack to that" if count else "what they lack to that"
    return f"{reach}: {lack} the choice by training loss does not explain, or not alone."


def _by_other_seeds(evidence: Evidence) -> dict[tuple[str, str, str], Row]:
    """The comparisons of the table, by those seeds alone that had no part in the choice of step sizes."""
    chose: dict[str, set[int]] = {}
    for run in evidence.runs:
        if experiment_of(run.experiment) != run.experiment:
            chose.setdefault(experiment_of(run.experiment), set()).add(run.config["seed"])
    left = without_seeds(evidence.finals, chose)
    found = {}
    for metric in ("train_loss", "test_accuracy"):
        names = {panel.experiment: panel.name for panel in evidence.panels if panel.metric == metric}
        curves = left[left["experiment"].isin(name for name in names if {*OURS, *BASELINES} <= _methods_of(left, name))]
        if len(curves):
            for row in stats.significance(curves, metric, pairs=PAIRS).to_dict("records"):
                found[names[row["experiment"]], row["a"], row["b"]] = beyond_the_grid(row, metric, evidence.slacks)
    return found


def _methods_of(curves: Any, name: str) -> set[str]:
    return set(curves.loc[curves["experiment"] == name, "method"])


def _without_the_grid(evidence: Evidence, found: list[Verdict]) -> list[str]:
    """What claims would have come to if nothing were said of finer grids of step sizes."""
    plain = verdicts(evidence.finals, evidence.walks, evidence.costs)
    return [
        f"{one.id} {other.verdict} ({_hits(other)} of {len(other.cells)})"
        for one, other in zip(found, plain, strict=True)
        if (one.verdict, _hits(one)) != (other.verdict, _hits(other))
    ]


def _hits(found: Verdict) -> int:
    return sum(cell.outcome == "hit" for cell in found.cells)


def _shorter(evidence: Evidence) -> list[dict[str, Any]]:
    """The experiments whose step sizes were chosen by shorter runs than their own."""
    lengths = {
        name: (int(fine["epoch"].max()), int(evidence.of(name)["epoch"].max()))
        for name in evidence.chosen
        if len(fine := evidence.of(f"{name}, fine"))
    }
    panels = {name: [panel.name for panel in evidence.panels if panel.experiment == name] for name in lengths}
    return [
        {"experiment": name, "panels": panels[name], "fine": fine, "own": own}
        for name, (fine, own) in lengths.items()
        if fine < own
    ]


def _onward(evidence: Evidence) -> list[str]:
    """Where losses still fall towards an edge: by an earlier rule, or after as many steps beyond it as there may be."""
    found = []
    for name in evidence.chosen:
        fine = evidence.of(f"{name}, {STAGES[1]}")
        for method, losses in (losses_by_rate(fine, TUNED) if len(fine) else {}).items():
            found += [f"{label(method)} to {lr:g} in {title_of(name)}" for lr in next_rates(losses, losses, FINE)]
    return found


def _twice(evidence: Evidence) -> list[dict[str, Any]]:
    """The experiments that were searched twice: how long runs of the earlier second stage were, what it had chosen."""
    found = []
    for name, rates in evidence.chosen.items():
        unnamed = evidence.unnamed(name)
        tried = [run for run in unnamed if run.experiment == f"{name}, fine" and not run.diverged]
        tried.sort(key=lambda run: run.end("train_loss"), reverse=True)
        before = {run.config["method"]: run.config["lr"] for run in tried}  # of each method the last, which is the best
        moved = [
            f"{label(method)} {_at(evidence, name, method, before[method])} → {_at(evidence, name, method, lr)}"
            for method, lr in rates.items()
            if method in before and not same_rate(lr, before[method])
        ]
        if before:
            epochs = max(run.config["epochs"] for run in tried)
            found.append({"experiment": name, "epochs": epochs, "moved": moved, "runs": len(unnamed)})
    return found


def _at(evidence: Evidence, name: str, method: str, lr: float) -> str:
    """A step size, and in brackets the training loss that runs of full length came to at it, where there are any."""
    epochs = evidence.of(name)["epoch"].max()
    ends = [
        run.end("train_loss")
        for run in evidence.runs
        if experiment_of(run.experiment) == name
        and (run.config["method"], run.config["lr"], run.config["epochs"]) == (method, lr, epochs)
        and not run.diverged
    ]
    return f"{lr:g} ({np.mean(ends):.4f})" if ends else f"{lr:g}"


def _penalties(evidence: Evidence) -> dict[str, float]:
    """The λ of softmax regression, by the data."""
    configs = [run.config for run in evidence.runs if run.config.get("model") == "softmax"]
    return {config["dataset"]: config["l2"] for config in configs if config.get("l2")}


def _moved(evidence: Evidence) -> list[str]:
    """Where the longer runs chose quite another step size than the short ones had: why length matters here."""
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


def _in_one_go(evidence: Evidence) -> tuple[float, float]:
    """The minutes of the whole paper in one go, without what searches had trained that others have replaced.

    Those if stacks gain nothing by sharing the device, and at most: all stacks from begin to end, added up.
    """
    named = Counter(stack_of(run) for run in evidence.runs if evidence.names.get(run.key))
    every = Counter(map(stack_of, evidence.runs))
    parts = [(seconds, stack[2], named[stack] / every[stack]) for stack, seconds in shares(evidence.runs).items()]
    return sum(own * part for own, _, part in parts) / 60, sum(took * part for _, took, part in parts) / 60


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
