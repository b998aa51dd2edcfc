"""A study, written from its records alone: tables, figures, and answers to what it asks (see questions.py).

A folder has ``records/`` (archives of runs, one for each experiment); :func:`rebuild_study` writes the rest beside it.
Nothing is trained here, and the same records give the same files. What was not run is named.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pandas as pd

from wagmf.arguments import Refused
from wagmf.lab import plots, stats
from wagmf.lab.answers import difference, number, p_value
from wagmf.lab.claims import ACCURACY_MARGIN, LOSS_MARGIN
from wagmf.lab.evidence import STAGES, TRIED, Evidence, experiment_of, gather, minutes, tried_rates, without_seeds
from wagmf.lab.figures import sensitivity, training
from wagmf.lab.files import write_whole
from wagmf.lab.grids import TUNED, grid_slacks, losses_by_rate
from wagmf.lab.looks import QUANTITIES, label, styles, title_of
from wagmf.lab.paper_runs import STUDY, paper_experiments
from wagmf.lab.questions import Beside, Question, Study, answer_of, besides, read_study, standing
from wagmf.lab.records import restore, tables, write_csv
from wagmf.lab.spec import METRICS, Experiment

__all__ = ["check_questions", "rebuild_study"]

_ROUNDING = 1e-6  # of the numbers in archives


@dataclass(frozen=True)
class _Asked:
    """A question with its experiments, and what is recorded of them; methods are called as the question calls them."""

    question: Question
    experiments: list[Experiment]
    all: Any  # curves, of searches and of what is unfinished, too

    def of(self, name: str) -> Any:
        """The curves of an experiment, or of a stage of its search."""
        return self.all[self.all["experiment"] == name].reset_index(drop=True)

    def methods(self, one: Experiment) -> list[str]:
        """The methods of an experiment, in its order."""
        return list(dict.fromkeys(self.question.called(arm.label) for arm in one.arms))

    @property
    def whole(self) -> list[Experiment]:
        """The experiments of which every method was run with every seed; others are not named so in archives.

        Nor is one whole whose step sizes another metric has chosen than its file says now.
        """
        run = [one for one in self.experiments if set(self.of(one.name)["method"]) >= {*self.methods(one)}]
        return [one for one in run if not self.mischosen(one)]

    def mischosen(self, one: Experiment) -> list[str]:
        """The methods whose step size is not the best that the second stage of the search has tried."""
        fine, chosen = self.of(f"{one.name}, {STAGES[1]}"), self.chosen(one.name)
        losses = losses_by_rate(fine, _by(one)) if len(fine) else {}
        known = [method for method in self.methods(one) if chosen.get(method) in losses.get(method, ())]
        return [each for each in known if losses[each][chosen[each]] > min(losses[each].values()) + _ROUNDING]

    @property
    def missing(self) -> list[Experiment]:
        return [one for one in self.experiments if one not in self.whole]

    @property
    def finals(self) -> Any:
        """The curves of whole experiments: every method at the step size that was chosen, all seeds."""
        return self.all[self.all["experiment"].isin([one.name for one in self.whole])].reset_index(drop=True)

    def chosen(self, name: str) -> dict[str, float]:
        """The step size of each method in an experiment."""
        return dict(self.of(name)[["method", "lr"]].drop_duplicates().itertuples(index=False, name=None))

    @property
    def slacks(self) -> dict[tuple[str, str, str], float]:
        """What the grids of step sizes leave open: of the training loss, and of what has chosen."""
        found = {}
        for one in self.whole:
            fine, chosen = self.of(f"{one.name}, {STAGES[1]}"), self.chosen(one.name)
            for metric in {TUNED, _by(one)}:
                slacks = grid_slacks(fine, chosen, metric)
                found |= {(one.name, metric, name): slack for name, slack in slacks.items()}
        return found

    def title(self, one: Experiment) -> str:
        """What the experiment is called among those of the question."""
        return title_of(one.name.removeprefix(f"{self.question.name}, "))


def rebuild_study(experiments: Path, folder: Path) -> list[Path]:
    """Write everything that follows from the records of a folder, and return what was written, README.md first.

    Args:
        experiments: the folder that describes the experiments and, in ``study.toml``, what is asked of them.
        folder: the one that has ``records/``, which may be the same.

    >>> import tempfile
    >>> rebuild_study(Path(tempfile.mkdtemp()), Path(tempfile.mkdtemp()))
    Traceback (most recent call last):
    wagmf.arguments.Refused: .../study.toml: cannot be read: No such file or directory
    """
    study, found, evidence = read_study(experiments), paper_experiments(experiments), gather(folder)
    curves = tables(evidence.runs, evidence.names).curves
    asked = [_asked(question, found, curves) for question in study.questions]
    for one in found:
        if not any(one in each.experiments for each in asked):
            raise Refused(f"{experiments / STUDY}: no question is asked of {one.name}")
    if not evidence.runs:
        raise Refused(f"{folder / 'records'}: there are no records in it")
    cells = {each.question.name: besides(each.question, each.finals, each.slacks) for each in asked}
    drawn = [path for each in asked for path in _figures(each, folder / "figures")]
    every = [asdict(cell) for each in asked for cell in cells[each.question.name]]
    written = [
        write_csv(pd.DataFrame(every, columns=[*Beside.__dataclass_fields__]), folder / "comparisons.csv"),
        write_csv(_rates(asked), folder / "step-sizes.csv"),
    ]
    beside = {run.key: run for path in study.archives for run in restore(path)[0]}  # what kept the device busy, too
    took = minutes((beside | {run.key: run for run in evidence.runs}).values())
    world = _world()
    text = world.get_template("study.md.jinja").render(
        study=study,
        questions=[_told(each, cells[each.question.name]) for each in asked],
        missing=[_lacking(each, one, evidence) for each in asked for one in each.missing],
        total=len(found),
        spent=[row for each in asked for row in _spent(each, evidence, took)],
        short=_short(asked),
        chosen=_chosen_by(found),
        margins=(LOSS_MARGIN, ACCURACY_MARGIN),
        command=f"wagmf study {_from_here(experiments)}",
        environment={name: told for name, told in tables(evidence.runs).environment.items() if told},
    )
    readme = write_whole(folder / "README.md", lambda new: new.write_text(text, encoding="utf-8"))
    return [readme, *written, *drawn]


def _by(one: Experiment) -> str:
    """By which metric the step sizes of an experiment are chosen."""
    return one.tuning.by if one.tuning else TUNED


def _chosen_by(experiments: Sequence[Experiment]) -> str:
    """By what step sizes were chosen, in words; where the metrics are several, of which experiments."""
    names: dict[str, list[str]] = {}
    for one in experiments:
        names.setdefault(QUANTITIES[_by(one)], []).append(f"*{one.name}*")
    first, *others = sorted(names, key=lambda name: -len(names[name]))
    apart = "; ".join(f"in {_listed(names[name])} by {name}" for name in others)
    return f"by {first}" + (f" ({apart})" if apart else "")


def _from_here(path: Path) -> str:
    """The path as one would type it in the working folder: the page is the same wherever that lies."""
    here, whole = Path.cwd(), path.resolve()
    return (whole.relative_to(here) if whole.is_relative_to(here) else path).as_posix()


def check_questions(study: Study, experiments: Path) -> None:
    """Refuse a question that cannot be asked of the experiments in the folder, before any of them is trained.

    >>> from wagmf.lab.questions import read_study
    >>> folder = Path("experiments/beyond")
    >>> check_questions(read_study(folder), folder)
    """
    found = paper_experiments(experiments)
    for question in study.questions:
        _own(question, found)


def _own(question: Question, experiments: Sequence[Experiment]) -> list[Experiment]:
    """The experiments that a question is asked of, with the methods that it names."""
    own = [one for one in experiments if question.asked_of(one.name)]
    if not own:
        names = ", ".join(repr(one.name) for one in experiments)
        right = f"experiments must be called '{question.name}, …'; there are {names}"
        raise Refused(f"{STUDY}: Invalid name: {question.name!r} ({right})")
    for one in own:
        if question.reference not in {arm.label for arm in one.arms}:
            raise Refused(f"{STUDY}: Invalid reference: {question.reference!r} (it is no method of {one.name})")
    known = {arm.label for one in own for arm in one.arms}
    for name in question.methods:
        if name not in known:
            raise Refused(f"{STUDY}: Invalid method: {name!r} ({question.name} has {', '.join(sorted(known))})")
    return own


def _asked(question: Question, experiments: Sequence[Experiment], curves: pd.DataFrame) -> _Asked:
    own = _own(question, experiments)
    return _Asked(question, own, curves.assign(method=[question.called(name) for name in curves["method"]]))


def _world() -> jinja2.Environment:
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    world = jinja2.Environment(loader=loader, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    world.filters |= {"label": label, "listed": _listed}
    return world


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)


# ------------------------------------------------------------------ figures


def _figures(asked: _Asked, folder: Path) -> list[Path]:
    """The curves of every experiment, by every metric, and the second stage of its search."""
    if not asked.whole:
        return []
    folder.mkdir(exist_ok=True)
    name, metrics = asked.question.name, asked.question.metrics
    methods = list(styles({method for one in asked.whole for method in asked.methods(one)}))
    panels = [_panel(asked, one, metric) for one in asked.whole for metric in metrics]
    fine = [(one, asked.of(f"{one.name}, {STAGES[1]}")) for one in asked.whole]
    searched = [
        replace(sensitivity(curves, _by(one), asked.chosen(one.name)), title=asked.title(one))
        for one, curves in fine
        if len(curves)
    ]
    asks = f"{asked.question.asks} Means with 95 % bands"
    search = "Second stage of the search: the chosen are ringed"  # as wide as one panel
    return [
        *plots.panel_pictures(panels, folder / name, title=asks, methods=methods, columns=len(metrics)),
        *plots.panel_pictures(searched, folder / f"{name}-step-sizes", title=search, methods=methods, columns=3),
    ]


def _panel(asked: _Asked, one: Experiment, metric: str) -> Any:
    drawn = training(asked.of(one.name), metric, asked.chosen(one.name))
    last = max(float(line.x[-1]) for line in drawn.lines)
    return replace(drawn, title=f"{asked.title(one)}: {QUANTITIES[metric]}", zoom=0.8 * last if last > 10 else None)


# ------------------------------------------------------------------ words


def _told(asked: _Asked, cells: list[Beside]) -> dict[str, Any]:
    """All that the page says of a question."""
    question, stands = asked.question, standing(cells)
    fresh = besides(question, _without_the_chooser(asked), asked.slacks)
    return {
        "question": question,
        "answer": answer_of(stands),
        "words": _words(question, stands),
        "stands": [(name, counts, sum(counts.values())) for name, counts in stands.items()],
        "large": answer_of(standing(cells, large=True)),
        "fresh": answer_of(standing(fresh)),
        "fresh_seeds": sorted({cell.n for cell in fresh}),
        "seeds": sorted({cell.n for cell in cells}),
        "family": {metric: sum(cell.metric == metric for cell in cells) for metric in question.metrics},
        "quantities": [QUANTITIES[metric] for metric in question.metrics],
        "missing": [asked.title(one) for one in asked.missing],
        "asked": len(asked.experiments),
        "reference": question.called(question.reference),
        "outcomes": [_outcome(asked, one) for one in asked.whole],
        "comparisons": [_comparison(asked, one, cells) for one in asked.whole],
        "edges": _edges(asked),
    }


def _words(question: Question, stands: dict[str, dict[str, int]]) -> str:
    """Why the answer is what it is."""
    ahead = [label(name) for name, each in stands.items() if each["better"] and not each["worse"]]
    both = [label(name) for name, each in stands.items() if each["better"] and each["worse"]]
    reference = label(question.called(question.reference))
    return {
        "no": f"{_listed(ahead)} {_is(ahead)} shown to be better than {reference} somewhere, and worse nowhere",
        "yes": f"every other is shown to be worse than {reference} somewhere, and better nowhere",
        "it depends": f"{_listed(both)} {_is(both)} shown to be better than {reference} in one place, worse in another",
        "open": f"no other is shown to be better than {reference}, nor is every other shown to be worse",
        "not run": "there are no complete records",
    }[answer_of(stands)]


def _is(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _without_the_chooser(asked: _Asked) -> Any:
    """The curves of the seeds that had no part in the choice of step sizes."""
    used = {one.name: one.tuning.seeds if one.tuning else () for one in asked.experiments}
    return without_seeds(asked.finals, used)


def _outcome(asked: _Asked, one: Experiment) -> dict[str, Any]:
    """For each method its step size, and the mean and standard deviation of every metric over seeds."""
    curves, rows = asked.of(one.name), []
    chosen = asked.chosen(one.name)
    ends: dict[str, Any] = {metric: stats.finals(curves, metric) for metric in asked.question.metrics}
    for method in asked.methods(one):
        values = {metric: end.loc[end["method"] == method, "value"].to_numpy() for metric, end in ends.items()}
        cells = [_spread(each, metric) for metric, each in values.items()]
        rows.append(
            {"method": method, "lr": f"{chosen[method]:g}", "n": len(next(iter(values.values()))), "cells": cells}
        )
    return {"title": asked.title(one), "rows": rows}


def _spread(values: Any, metric: str) -> str:
    """Mean and standard deviation, of those that did not diverge."""
    known = values[np.isfinite(values)]
    lost = f" ({len(values) - len(known)} of {len(values)} diverged)" if len(known) < len(values) else ""
    if not len(known):
        return f"–{lost}"
    times, digits, unit = (100, 2, " %") if metric.endswith("accuracy") else (1, 4, "")
    deviation = f" ± {times * known.std(ddof=1):.{digits}f}" if len(known) > 1 else ""
    return f"{times * known.mean():.{digits}f}{deviation}{unit}{lost}"


def _comparison(asked: _Asked, one: Experiment, cells: list[Beside]) -> dict[str, Any]:
    rows = [
        {
            "quantity": QUANTITIES[cell.metric],
            "method": cell.method,
            "difference": difference(cell.difference, cell.metric),
            "interval": f"{difference(cell.low, cell.metric)} to {difference(cell.high, cell.metric)}",
            "p": p_value(cell.p).removeprefix("= "),
            "slack": difference(cell.slack, cell.metric).removeprefix("+") if cell.metric in (TUNED, _by(one)) else "–",
            "effect": number(cell.effect),
            "n": cell.n,
            "outcome": cell.outcome + (", and it matters" if cell.matters else ""),
        }
        for cell in cells
        if cell.experiment == one.name
    ]
    return {"title": asked.title(one), "rows": rows}


def _edges(asked: _Asked) -> list[str]:
    """Step sizes that are at an edge of what the second stage has tried."""
    found = []
    for one in asked.whole:
        tried: Any = asked.of(f"{one.name}, {STAGES[1]}").groupby("method")["lr"]
        ends = {method: {min(lrs), max(lrs)} for method, lrs in tried}
        found += [
            f"{label(method)} ({lr:g}) in {asked.title(one)}"
            for method, lr in asked.chosen(one.name).items()
            if lr in ends.get(method, ())
        ]
    return found


def _rates(asked: Sequence[_Asked]) -> pd.DataFrame:
    """Every step size that was tried in the searches, what it came to, and by what it was judged."""
    rows = []
    for each in asked:
        for one in each.whole:
            by = _by(one)
            for row in tried_rates(each.of, one.name, each.chosen(one.name)):
                means = stats.mean_finals(each.of(f"{one.name}, {row['stage']}"), by)
                rows.append(row | {"by": by, by: means[row["method"], row["lr"]]})
    others = [metric for metric in METRICS if metric not in TRIED and any(metric in row for row in rows)]
    return pd.DataFrame(rows, columns=[*TRIED, "by", *others])


def _lacking(asked: _Asked, one: Experiment, evidence: Evidence) -> dict[str, str]:
    """What there is of an experiment that is not whole."""
    names = {one.name, *(f"{one.name}, {stage}" for stage in STAGES), f"{one.name}, unfinished"}
    count = sum(not names.isdisjoint(evidence.names[run.key]) for run in evidence.runs)
    there = {method for name in names for method in asked.of(name)["method"]}
    none = [label(method) for method in asked.methods(one) if method not in there]
    words = f"{count} runs are recorded, those of its search for step sizes included" if count else ""
    words += f"; of {_listed(none)} there is none" if count and none else ""
    wrong = [label(method) for method in asked.mischosen(one)]
    best = f"the best by {QUANTITIES[_by(one)]}, by which its file has it chosen"
    words += f"; the step size of {_listed(wrong)} is not {best}" if wrong else ""
    words = words or "nothing is recorded under its name yet"
    return {"name": one.name, "words": words}


def _spent(asked: _Asked, evidence: Evidence, took: Mapping[str, float]) -> list[dict[str, Any]]:
    """What each experiment consists of: runs of its own, and runs that others had trained."""
    rows = []
    for one in asked.whole:
        stages = {one.name, *(f"{one.name}, {stage}" for stage in STAGES)}
        runs = [run for run in evidence.runs if stages & {*evidence.names[run.key]}]
        own = [run for run in runs if experiment_of(run.experiment) == one.name]
        data = sorted({str(run.config.get("data", "")) for run in runs})
        rows.append(
            {
                "name": one.name,
                "runs": len(runs),
                "again": len(runs) - len(own),
                "minutes": took.get(one.name, 0.0),
                "data": ", ".join(data),
            }
        )
    return rows


def _short(asked: Sequence[_Asked]) -> bool:
    """Whether something was run in fewer epochs than its experiment has: the pipeline was tried out."""
    return any(each.of(one.name)["epoch"].max() < one.problem.epochs for each in asked for one in each.whole)
