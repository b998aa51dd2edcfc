"""The report of a comparison: one offline HTML page, or pictures. Functions of records only."""

import base64
import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jinja2
import pandas as pd
from jinja2.utils import htmlsafe_json_dumps

from wagmf.arguments import one_of, refuse
from wagmf.lab import plots, stats
from wagmf.lab.answers import ALPHA, Answer, answer, difference, number, overall, p_value
from wagmf.lab.figures import best, improvement, matrix, measured, rows, sensitivity, training
from wagmf.lab.files import write_whole
from wagmf.lab.grids import Slacks, beyond_the_grid
from wagmf.lab.looks import QUANTITIES, Cell, Shown, Style, label, styles
from wagmf.lab.records import Tables
from wagmf.lab.traces import dots_figure, panel_figure

__all__ = ["pictures", "report"]

_HERE = Path(__file__).parent
_SHOWN = ("train_loss", "test_accuracy")
_TESTS = ("permutation", "permutation_holm", "permutation_joint", "paired_holm", "welch_holm", "student_holm")
_TOP = ("device", "torch", "wagmf")  # of the environment, what stands in the first lines
_LAST = 8  # epochs of one run on which the paper's p-values rest
_MEANING = {
    "running": "the mean over the epoch’s batches while the model trains, each batch before its own step, with dropout "
    "and augmentation as in training",
    "clean": "the loss on the whole clean training set after the epoch, without dropout and augmentation",
}
_ELSEWHERE = "elsewhere"  # the grid of a search, which the records shown here do not have
_CRITERION = {
    "train_loss": "the lowest training loss of the last epoch, mean over seeds",
    "test_accuracy": "the highest test accuracy of any epoch, mean over seeds",
}


def report(
    records: Tables,
    path: Path,
    *,
    title: str | None = None,
    criterion: str = "train_loss",
    rerun: str = "",
    searched: Mapping[str, str] | None = None,
    slacks: Slacks | None = None,
    more: Sequence[Shown] = (),
) -> Path:
    """Write the comparison as one HTML page that needs nothing else, no network included.

    ``criterion`` is what the headline compares, and chooses every method's step size, but for experiments in which a
    search has chosen them before: ``searched`` says by which metric, for each. ``rerun`` is the command that makes the
    same records again; ``slacks`` has what finer grids of step sizes might change
    (:func:`wagmf.lab.grids.grid_slack`): such differences are not shown. ``more`` is shown after the experiments. The
    same records give the same bytes.

    >>> import tempfile
    >>> from types import SimpleNamespace
    >>> keys = {"experiment": "mlp", "method": ["adam", "wada"], "lr": 0.1, "seed": 0}
    >>> metrics = dict.fromkeys(["train_loss", "train_accuracy", "test_loss", "test_accuracy"], [0.5, 0.25])
    >>> curves = pd.DataFrame({**keys, "epoch": 1, **metrics})
    >>> more = {"diverged": pd.NA, "step_ms": 1.0, "way": "one at a time", "loss": "clean"}
    >>> runs = pd.DataFrame({**keys, **more, "model": "mlp", "dataset": "digits", "batch": 64})
    >>> records = SimpleNamespace(curves=curves, runs=runs, experiments={}, environment={})
    >>> page = report(records, Path(tempfile.mkdtemp()) / "report.html").read_text()
    >>> "No method is shown to be better." in page
    True
    """
    one_of("criterion", criterion, stats.CRITERIA)
    _something(records)
    page = _render(
        _contents(records, title or "Comparison of optimizers", criterion, rerun, searched or {}, slacks or {}, more)
    )
    return write_whole(path, lambda new: new.write_text(page, encoding="utf-8"))


def pictures(
    records: Tables, folder: Path, *, formats: Sequence[str] = ("png", "svg"), criterion: str = "train_loss"
) -> list[Path]:
    """Write every figure as a picture: curves, step-size sensitivity and significance of every experiment.

    >>> import tempfile
    >>> from types import SimpleNamespace
    >>> keys = {"experiment": "mlp", "method": ["adam", "wada"], "lr": 0.1, "seed": 0}
    >>> metrics = dict.fromkeys(["train_loss", "train_accuracy", "test_loss", "test_accuracy"], [0.5, 0.25])
    >>> records = SimpleNamespace(curves=pd.DataFrame({**keys, "epoch": 1, **metrics}))
    >>> [path.name for path in pictures(records, Path(tempfile.mkdtemp()), formats=["svg"])]
    ['1-mlp-curves.svg', '1-mlp-sensitivity.svg', '1-mlp-significance.svg']
    """
    one_of("criterion", criterion, stats.CRITERIA)
    _something(records)
    for ending in formats:
        one_of("format", ending, ("png", "svg", "pdf"))
    folder.mkdir(parents=True, exist_ok=True)
    parts, written = _parts(records.curves, criterion), []
    for k, part in enumerate(parts, start=1):
        seen = [metric for metric in part.tests if measured(part.curves, metric)]
        panels = [training(part.curves, metric, part.lrs) for metric in _SHOWN if metric in seen]
        drawn = {
            "curves": (
                panels,
                f"{_short(part.name)}: mean over seeds with 95 % bands, each method at its best step size",
            ),
            "sensitivity": (
                [sensitivity(part.curves, criterion, part.lrs)] if criterion in seen else [],
                _short(part.name),
            ),
        }
        found = [matrix(part.tests[metric], metric) for metric in seen] if len(part.methods) > 1 else []
        stem = f"{k:0{len(str(len(parts)))}d}-{_slug(part.name)}"
        for ending in formats:
            written += [
                plots.panel_picture(shown, folder / f"{stem}-{kind}.{ending}", title=title, methods=part.methods)
                for kind, (shown, title) in drawn.items()
                if shown
            ]
            if found:
                path = folder / f"{stem}-significance.{ending}"
                written.append(plots.matrix_picture(found, path, title=_short(part.name)))
    return written


# ------------------------------------------------------------------ what the page says


@dataclass(frozen=True)
class _Part:
    """One experiment: its curves, and what the statistics say of them; ``tests`` and ``ranks`` by metric."""

    name: str
    curves: Any
    rates: Any
    tests: dict[str, Any]
    ranks: dict[str, Any]
    family: int

    @property
    def methods(self) -> list[str]:
        return list(styles(self.curves["method"].unique()))

    @property
    def lrs(self) -> dict[str, float]:
        return {row["method"]: row["lr"] for row in rows(self.rates)}

    def answer(self, metric: str) -> Answer:
        # A run that diverged has no value of any metric: if none has, nothing tells what would have been measured.
        known = measured(self.curves, metric) or not any(measured(self.curves, name) for name in QUANTITIES)
        return answer(self.ranks[metric], self.tests[metric], self.rates, metric, family=self.family, known=known)


def _parts(
    curves: Any, criterion: str, searched: Iterable[str] = (), slacks: Slacks = MappingProxyType({})
) -> list[_Part]:
    """The experiments; metrics are the criterion and then the other one, each with an adjustment of its own."""
    metrics = [criterion, *(metric for metric in _SHOWN if metric != criterion)]
    rates = stats.best_rates(curves, criterion)
    rates.loc[rates["experiment"].isin(list(searched)) & (rates["edge"] == "only"), "edge"] = _ELSEWHERE
    tests: dict[str, Any] = {metric: stats.significance(curves, metric, rates=rates, alpha=ALPHA) for metric in metrics}
    for metric, table in tests.items():
        table["better"] = [beyond_the_grid(row, metric, slacks)["better"] for row in rows(table)]
    ranks = {metric: stats.ranking(curves, metric, rates=rates) for metric in metrics}
    return [
        _Part(
            str(name),
            _of(curves, name),
            _of(rates, name),
            {metric: _of(table, name) for metric, table in tests.items()},
            {metric: _of(table, name) for metric, table in ranks.items()},
            len(tests[criterion]),
        )
        for name in curves["experiment"].unique()
    ]


def _contents(
    records: Tables,
    title: str,
    criterion: str,
    rerun: str,
    searched: Mapping[str, str],
    slacks: Slacks,
    more: Sequence[Shown],
) -> dict[str, Any]:
    """Everything the template shows, as plain values."""
    curves, runs, parts = records.curves, records.runs, _parts(records.curves, criterion, searched, slacks)
    drawn = [line.method for each in more for views in each.panels for line in views[0].lines]
    looks = styles([*curves["method"].unique(), *dict.fromkeys(drawn)])
    sections = [
        _section(f"e{k}", part, _of(runs, part.name), criterion, list(looks)) for k, part in enumerate(parts, start=1)
    ]
    metrics = list(parts[0].tests)
    common = _common([section["answer"].alarms for section in sections])
    return {
        "title": title,
        "facts": _facts(curves, runs),
        "made_with": ", ".join(f"{key} {records.environment[key]}" for key in _TOP if key in records.environment),
        "criterion": _CRITERION[criterion],
        "quantity": QUANTITIES[criterion],
        "overall": overall([section["answer"] for section in sections]),
        "common": common,
        "looks": [_look(k, name, style) for k, (name, style) in enumerate(looks.items())],
        "palette": _json([[style.colour, style.dark] for style in looks.values()]),
        "sections": sections,
        "rates": [row for part in parts for row in _rate_rows(part, criterion)],
        "tests": [row for metric in metrics for part in parts for row in _test_rows(part.tests[metric], metric)],
        "family": {QUANTITIES[metric]: sum(len(part.tests[metric]) for part in parts) for metric in metrics},
        "meanings": _meanings(runs),
        "paper": [row for part in parts for row in _paper_rows(part)],
        "last": _LAST,
        "alpha": f"{ALPHA:g}",
        "environment": {str(key): str(value) for key, value in records.environment.items()},
        "configurations": {
            part.name: json.dumps(records.experiments[part.name], indent=2, default=str, ensure_ascii=False)
            for part in parts
            if part.name in records.experiments
        },
        "rerun": rerun,
        "searched": _searched(searched, [part.name for part in parts]),
        "whole": all(part.name in searched for part in parts),
        "slack": any(slacks.values()),
        "more": [_more(f"m{k}", each, list(looks)) for k, each in enumerate(more, start=1)],
    }


def _searched(searched: Mapping[str, str], names: Sequence[str]) -> list[tuple[str, str]]:
    """By which quantities searches have chosen, and in which of the experiments where that is not the same for all."""
    found: dict[str, list[str]] = {}
    for name, metric in searched.items():
        found.setdefault(one_of("searched", metric, QUANTITIES), []).append(one_of("searched", name, names))
    return [(QUANTITIES[metric], ", ".join(some) if len(some) < len(names) else "") for metric, some in found.items()]


def _more(anchor: str, each: Shown, methods: list[str]) -> dict[str, Any]:
    """What is shown besides the experiments, as a section without tables."""
    drawn = {line.method for views in each.panels for line in views[0].lines}
    return {
        "anchor": anchor,
        "name": each.title,
        "words": each.words,
        "methods": [k for k, name in enumerate(methods) if name in drawn],
        "choices": each.choices,
        "figures": {
            f"{anchor}-{k}": _figure(views[0].title, "", panel_figure(views, methods))
            for k, views in enumerate(each.panels)
        },
    }


def _common(alarms: list[tuple[str, ...]]) -> list[str]:
    """What is to be said of all experiments is said once."""
    return [alarm for alarm in alarms[0] if len(alarms) > 1 and all(alarm in others for others in alarms)]


def _section(anchor: str, part: _Part, runs: Any, criterion: str, methods: list[str]) -> dict[str, Any]:
    """One experiment: its answers, its figures as data, its tables."""
    other = next(metric for metric in part.tests if metric != criterion)
    return {
        "anchor": anchor,
        "name": part.name,
        "facts": _section_facts(part.curves, runs),
        "answer": part.answer(criterion),
        "second": part.answer(other),
        "secondary": QUANTITIES[other],
        "methods": [methods.index(method) for method in part.methods],
        "choices": ["best of each method", *(f"{lr:g}" for lr in _grid(part.curves))],
        "figures": {f"{anchor}-{key}": figure for key, figure in _figures(part, criterion, methods).items()},
        "ranking": _rank_rows(part.ranks[criterion], runs, methods, criterion),
        "matrices": [
            matrix(table, metric)
            for metric, table in part.tests.items()
            if measured(part.curves, metric) and len(part.methods) > 1
        ],
        "diverged": _diverged_rows(runs),
        "lost": int(runs["diverged"].notna().sum()),
        "runs": len(runs),
        "ways": sorted({str(way) for way in runs["way"].dropna()}),
    }


def _figures(part: _Part, criterion: str, methods: list[str]) -> dict[str, dict[str, Any]]:
    figures = {}
    views = [part.lrs, *(dict.fromkeys(methods, lr) for lr in _grid(part.curves))]
    for metric in _SHOWN:
        if measured(part.curves, metric):
            panels = [training(part.curves, metric, view) for view in views]
            words = "Mean over seeds and its 95 % band."
            figures[metric] = _figure(panels[0].title, words, panel_figure(panels, methods))
    if measured(part.curves, criterion):
        if _grid(part.curves):
            panel = sensitivity(part.curves, criterion, part.lrs)
            words = f"Final {QUANTITIES[criterion]} by step size; ring: chosen, cross: seeds diverged."
            figures["sensitivity"] = _figure(panel.title, words, panel_figure([panel], methods))
        dots = improvement(part.ranks[criterion])
        if dots.methods:
            words = f"Of a run over a run of another method, by final {QUANTITIES[criterion]}; 95 % intervals."
            figures["improvement"] = _figure(dots.title, words, dots_figure(dots, methods))
    return figures


def _grid(curves: Any) -> list[float]:
    """The step sizes that one may choose from: none where every method has but its own."""
    return _tried(curves) if curves.groupby("method")["lr"].nunique().max() > 1 else []


def _tried(curves: Any) -> list[float]:
    return sorted(float(lr) for lr in curves["lr"].unique())


def _figure(title: str, words: str, figure: dict[str, Any]) -> dict[str, Any]:
    return {"title": title, "words": words, "json": _json(figure)}


def _json(value: Any) -> Any:
    """JSON that can stand inside a script element, whatever names are in it."""
    return htmlsafe_json_dumps(value, separators=(",", ":"), allow_nan=False)


def _facts(curves: Any, runs: Any) -> str:
    """What was run; a method may have step sizes of its own, so that they are counted for each."""
    counts = {"experiment": curves["experiment"].nunique(), "method": curves["method"].nunique()}
    counts["step size"] = curves.groupby(["experiment", "method"])["lr"].nunique().max()
    counts["seed"] = curves["seed"].nunique()
    return f"{' × '.join(_count(int(count), noun) for noun, count in counts.items())}; {_ran(runs)}"


def _section_facts(curves: Any, runs: Any) -> str:
    parts = [" on ".join(_texts(runs[column]) for column in ("model", "dataset"))]
    parts += [_count(int(curves["epoch"].max()), "epoch"), f"batches of {_texts(runs['batch'])}"]
    return ", ".join([*parts, _count(curves["seed"].nunique(), "seed"), _ran(runs)])


def _ran(runs: Any) -> str:
    return f"{_count(len(runs), 'run')}, {int(runs['diverged'].notna().sum()) or 'none'} diverged"


def _texts(column: Any) -> str:
    return "/".join(str(value) for value in column.dropna().unique())


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def _meanings(runs: Any) -> list[dict[str, Any]]:
    """What the training loss is, and in which experiments it is that."""
    return [
        {
            "words": f"{kind}, {_MEANING[kind]}" if kind in _MEANING else str(kind),
            "names": [str(name) for name in group["experiment"].unique()],
        }
        for kind, group in runs.groupby("loss", sort=True)
    ]


def _look(k: int, name: str, style: Style) -> dict[str, Any]:
    return {
        "k": k,
        "label": label(name),
        "colour": style.colour,
        "dark": style.dark,
        "dash": " ".join(f"{length:g}" for length in style.dash),
    }


def _rank_rows(ranks: Any, runs: Any, methods: list[str], metric: str) -> list[dict[str, Any]]:
    """Methods from best to worst, those without a finished run last, with what a step of each takes."""
    found = {row["method"]: row for row in rows(ranks)}
    order = best(ranks, metric)
    took = runs.groupby("method")["step_ms"].median().to_dict()
    return [
        {
            "k": methods.index(name),
            "label": label(name),
            "lr": f"{row['lr']:g}",
            "n": row["n"] + row["diverged"],
            "diverged": row["diverged"],
            "mean": number(row["mean"], metric),
            "interval": _between(number(row["low"], metric), number(row["high"], metric)),
            "rank": _two(row["rank_mean"]),
            "improves": _two(row["improves"]),
            "chance": _between(_two(row["improves_low"]), _two(row["improves_high"])),
            "ms": f"{took[name]:.3g}" if took.get(name, 0) > 0 else "–",
        }
        for name, row in ((name, found[name]) for name in [*order, *(name for name in found if name not in order)])
    ]


def _two(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else "–"


def _between(low: str, high: str) -> str:
    return "–" if "–" in (low, high) else f"{low} … {high}"


def _diverged_rows(runs: Any) -> list[dict[str, str]]:
    """Diverged runs, the seeds of one method and step size in one row."""
    found = []
    for (method, lr), group in runs.groupby(["method", "lr"], sort=True):
        lost = [row for row in rows(group) if not pd.isna(row["diverged"])]
        if lost:
            seeds = ", ".join(f"{row['seed']} (epoch {row['diverged']})" for row in lost)
            count = f"{len(lost)} of {len(group)}"
            found.append({"method": label(method), "lr": f"{lr:g}", "count": count, "seeds": seeds})
    return found


def _rate_rows(part: _Part, criterion: str) -> list[dict[str, Any]]:
    words = {"": "inside", "low": "smallest tried", "high": "largest tried", "only": "the only one", _ELSEWHERE: "–"}
    grids = {method: _tried(group) for method, group in part.curves.groupby("method")}
    return [
        {
            "experiment": part.name,
            "method": label(row["method"]),
            "lr": f"{row['lr']:g}",
            "value": number(row["value"], criterion),
            "sort": _sort(row["value"]),
            "n": row["n"],
            "diverged": row["diverged"],
            "edge": words[row["edge"]],
            "warn": row["edge"] not in ("", _ELSEWHERE),
            "grid": "–" if row["edge"] == _ELSEWHERE else ", ".join(f"{lr:g}" for lr in grids[row["method"]]),
        }
        for row in rows(part.rates)
    ]


def _sort(value: float) -> str:
    """What a column is sorted by; nothing for what is missing."""
    return f"{value:.9g}" if math.isfinite(value) else ""


def _test_rows(table: Any, metric: str) -> list[dict[str, Any]]:
    return [
        {
            "experiment": row["experiment"],
            "metric": QUANTITIES[metric],
            "a": label(row["a"]),
            "b": label(row["b"]),
            "numbers": [{"text": text, "value": _sort(row[name])} for name, text in _test_texts(row, metric).items()],
            "better": label(row[row["better"]]) if row["better"] else "",
        }
        for row in rows(table)
    ]


def _test_texts(row: dict[str, Any], metric: str) -> dict[str, str]:
    """The numbers of a comparison as they are printed, in the order of the table's columns."""
    return {
        "lr_a": f"{row['lr_a']:g}",
        "lr_b": f"{row['lr_b']:g}",
        "n": str(row["n"]),
        "mean_a": number(row["mean_a"], metric),
        "mean_b": number(row["mean_b"], metric),
        **{name: difference(row[name], metric) for name in ("difference", "low", "high")},
        "hedges_g": number(row["hedges_g"]),
        **{name: p_value(row[name]).removeprefix("= ") for name in _TESTS},
        "detectable": difference(row["detectable"], metric).lstrip("+"),
    }


def _paper_rows(part: _Part) -> list[dict[str, str]]:
    table = stats.paper_significance(part.curves, "train_loss", rates=part.rates, last=_LAST)
    return [
        {
            "experiment": part.name,
            "a": label(row["a"]),
            "b": label(row["b"]),
            "p": f"{row['p']:.2g}" if math.isfinite(row["p"]) else "–",
            "value": _sort(row["p"]),
        }
        for row in rows(table)
    ]


# ------------------------------------------------------------------ what all of them need


def _something(records: Tables) -> None:
    if not len(records.curves):
        refuse("records", "no runs", "there must be at least one finished run to report")


def _of(table: Any, experiment: str) -> Any:
    return table[table["experiment"] == experiment]


def _tint(cell: Cell) -> str:
    """The class of a cell: colour says what its text says, too."""
    if cell.shown:
        return "better" if cell.shown > 0 else "worse"
    return "up" if cell.effect > 0 else "down" if cell.effect < 0 else ""


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40] or "experiment"


def _short(name: str) -> str:
    return name if len(name) <= 60 else f"{name[:59]}…"


def _render(contents: dict[str, Any]) -> str:
    """The page. Its policy names the two scripts by their hashes: no other script, and no request, is ever allowed."""
    scripts = [plots.plotly_js(), (_HERE / "report.js").read_text(encoding="utf-8")]
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    rooms = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    rooms.filters |= {
        "label": label,
        "tint": _tint,
        "mark": lambda cell: {1: "▲ ", -1: "▼ ", 0: ""}[cell.shown],
        "signed": lambda value: f"{value:+.2f}".replace("-", "−") if math.isfinite(value) else "–",
        "p": lambda value: f"p {p_value(value).removeprefix('= ')}",
    }
    template = rooms.get_template("report.html.jinja")
    return template.render(contents, scripts=scripts, hashes=hashes)
