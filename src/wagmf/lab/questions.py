"""What a study asks, and how its records answer: one method beside others, over several experiments, by a stated rule.

A study is a folder of experiments with a file ``study.toml``:

    title = "Beyond the paper"
    known = ["../reproduction/records"]     # archives of runs that are not to be trained again

    [[question]]
    name = "growth"                         # asked of experiments whose names begin with it
    asks = "Is linear the right growth?"
    metrics = ["train_loss", "test_accuracy"]
    reference = "wada"                      # the method in question
    scope = "seven of the paper's ten tasks"    # said beside the answer
    [question.methods]                      # what methods are called, where it is not their name
    "nosadam(eta=2, p2=6)" = "η = 2"

**The rule.** Every other method is compared with the reference by the last epoch, paired over seeds; a difference is
shown if the paired t-test has p < 0.05 after Holm, over all comparisons of the question by that metric. The other is
*better* or *worse* if that is shown; else *level* if the whole 95 % interval is within the margins of claims.py, and
*open* if not. A difference in training loss, or in what has chosen step sizes, is shown only if the method behind could
not make it good at a step size between those that were tried, and intervals are wider by as much (grids.py). The answer
is

- *no* if another method is better somewhere and worse nowhere,
- *yes* if every other method is worse somewhere and better nowhere,
- *it depends* if neither, but some method is better somewhere and worse elsewhere,
- *open* if nothing of this is shown,
- *not run* where there are no records.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from wagmf.arguments import Refused, one_of, refuse
from wagmf.lab.claims import margin_of
from wagmf.lab.grids import Row, Slacks, beyond_the_grid
from wagmf.lab.paper_runs import STUDY
from wagmf.lab.spec import METRICS
from wagmf.lab.stats import significance

__all__ = ["ANSWERS", "Beside", "Question", "Study", "answer_of", "besides", "read_study", "standing"]

ANSWERS: tuple[str, ...] = ("no", "yes", "it depends", "open", "not run")
"""What can become of a question."""


@dataclass(frozen=True)
class Question:
    """Is ``reference`` the right one of the methods, by these metrics, in the experiments whose names begin so?

    ``methods`` says what methods are called where that is not their name, ``scope`` what the answer is about.

    >>> Question("growth", "Is linear right?", ("train_loss",), "wada", {"wada": "linear"}).called("wada")
    'linear'
    """

    name: str
    asks: str
    metrics: tuple[str, ...]
    reference: str
    methods: Mapping[str, str] = field(default_factory=dict)
    text: str = ""
    scope: str = ""

    def called(self, method: str) -> str:
        """What a method is called here."""
        return self.methods.get(method, method)

    def asked_of(self, experiment: str) -> bool:
        """Whether it is asked of the experiment."""
        return experiment.startswith(f"{self.name}, ")


@dataclass(frozen=True)
class Study:
    """What a folder of experiments is for; ``known`` are folders of further archives, and so are the folders in them.

    >>> Study("Mine", "", (), ()).questions
    ()
    """

    title: str
    text: str
    known: tuple[Path, ...]
    questions: tuple[Question, ...]

    @property
    def archives(self) -> list[Path]:
        """Those of runs in the known folders, also of searches that are not over."""
        return [
            path for each in self.known for path in sorted(each.rglob("*.jsonl.gz")) if path.name != "walks.jsonl.gz"
        ]


def read_study(folder: Path) -> Study:
    """The study that a folder of experiments describes; whatever is wrong is refused with the file, key and value.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "study.toml").write_text('title = "Mine"\\nknwn = []')
    >>> read_study(folder)
    Traceback (most recent call last):
    wagmf.arguments.Refused: .../study.toml: Invalid key: 'knwn' (did you mean 'known'? choose from title, ...)
    """
    path = folder / STUDY
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Refused(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:  # of TOML, of UTF-8
        raise Refused(f"{path}: is not TOML: {error}") from None
    try:
        return _study(content, folder)
    except Refused as error:
        raise Refused(f"{path}: {error}") from None


def _study(content: Mapping[str, Any], folder: Path) -> Study:
    for name in content:
        one_of("key", name, ("title", "text", "known", "question"))
    asked = content.get("question")
    if not isinstance(asked, list) or not asked or not all(isinstance(each, dict) for each in asked):
        refuse("question", asked, "write [[question]] above each of them")
    known = content.get("known", [])
    if not isinstance(known, list) or not all(isinstance(each, str) and (folder / each).is_dir() for each in known):
        refuse("known", known, "it must be a list of folders with archives of runs, relative to this file")
    questions = tuple(map(_question, asked))
    _once("name", [each.name for each in questions])
    words = {name: _word(name, content.get(name, "")) for name in ("title", "text")}
    return Study(**words, known=tuple(folder / each for each in known), questions=questions)


def _question(table: Mapping[str, Any]) -> Question:
    for name in table:
        one_of("key of question", name, Question.__dataclass_fields__)
    for name in ("name", "asks", "metrics", "reference"):
        if not table.get(name):
            refuse(name, table.get(name), "the question must say it")
    if not isinstance(table["metrics"], list):
        refuse("metrics", table["metrics"], "metrics must be a list")
    metrics = tuple(one_of("metric", each, METRICS) for each in table["metrics"])
    _once("metric", metrics)
    methods = table.get("methods", {})
    if not isinstance(methods, Mapping) or not all(isinstance(each, str) and each for each in methods.values()):
        refuse("methods", methods, "methods must be a table with what each is called")
    words = {name: _word(name, table.get(name, "")) for name in ("name", "asks", "reference", "text", "scope")}
    for name, told in (*(("method", called) for called in methods.values()), ("asks", words["asks"])):
        if "|" in told or "\n" in told:
            refuse(name, told, "it stands in tables, whose cells hold neither | nor the end of a line")
    return Question(**words, metrics=metrics, methods=dict(methods))


def _once(what: str, values: Sequence[str]) -> None:
    for value in values:
        if values.count(value) > 1:
            refuse(what, value, "it stands there twice")


def _word(name: str, value: Any) -> str:
    return value.strip() if isinstance(value, str) else refuse(name, value, f"{name} must be text")


# ------------------------------------------------------------------ what the records say


@dataclass(frozen=True)
class Beside:
    """A method beside the reference in an experiment: ``outcome`` is "better", "worse", "level" or "open".

    ``difference`` is its mean less the reference's over ``n`` seeds, from ``low`` to ``high`` its 95 % interval, ``p``
    that of the paired t-test after Holm, ``effect`` is Hedges' g; ``margin`` is what matters, ``slack`` what the method
    that is behind might gain between the step sizes that were tried.

    >>> Beside("e", "train_loss", "adam", "better", -0.02, -0.03, -0.01, 0.001, -3.0, 8, 0.01).matters
    True
    """

    experiment: str
    metric: str
    method: str
    outcome: str
    difference: float
    low: float
    high: float
    p: float
    effect: float
    n: int
    margin: float
    slack: float = 0.0  # of the method that is behind

    @property
    def matters(self) -> bool:
        """Whether the difference is shown, and as large as matters."""
        return self.outcome in ("better", "worse") and abs(self.difference) >= self.margin


def besides(question: Question, curves: pd.DataFrame, slacks: Slacks | None = None) -> list[Beside]:
    """Every method beside the reference, by every metric, in every experiment of ``curves``.

    ``curves`` has of each method the one step size that was chosen, ``slacks`` what its grid leaves open; methods are
    as the question calls them.

    >>> rows = [("growth, e", method, 0.1, seed, 1, loss + seed % 3 / 100 * loss)
    ...         for method, loss in (("adam", 0.5), ("wada", 0.4)) for seed in range(8)]
    >>> curves = pd.DataFrame(rows, columns=["experiment", "method", "lr", "seed", "epoch", "train_loss"])
    >>> [each.outcome for each in besides(Question("growth", "?", ("train_loss",), "wada"), curves)]
    ['worse']
    """
    if curves.empty:
        return []
    frame: Any = curves
    rates = frame[["experiment", "method", "lr"]].drop_duplicates()  # two step sizes of a method would be refused
    reference = question.called(question.reference)
    pairs = [(method, reference) for method in dict.fromkeys(frame["method"]) if method != reference]
    found = []
    for metric in question.metrics:
        table: Any = significance(frame, metric, rates=rates, pairs=pairs)
        found += [_beside(row, metric, slacks or {}) for row in table.to_dict("records")]
    return found


def _beside(row: Row, metric: str, slacks: Slacks) -> Beside:
    margin, wide = margin_of(metric, row["mean_b"]), beyond_the_grid(row, metric, slacks)
    within = bool(wide["low"] >= -margin and wide["high"] <= margin) and row["diverged_a"] == row["diverged_b"]
    outcome = {"a": "better", "b": "worse"}.get(wide["better"], "level" if within else "open")
    slack = row["low"] - wide["low"] if row["difference"] > 0 else wide["high"] - row["high"]
    interval = {name: row[name] for name in ("difference", "low", "high", "n")}
    named = {"experiment": row["experiment"], "metric": metric, "method": row["a"], "outcome": outcome}
    return Beside(**named, p=row["paired_holm"], effect=row["hedges_g"], margin=margin, slack=slack, **interval)


def standing(cells: Sequence[Beside], *, large: bool = False) -> dict[str, dict[str, int]]:
    """How often each method came out how beside the reference; ``large`` counts only differences that matter as shown.

    >>> cell = Beside("e", "train_loss", "adam", "better", -0.001, -0.002, -0.0005, 0.001, -3.0, 8, 0.01)
    >>> standing([cell])["adam"]["better"], standing([cell], large=True)["adam"]["better"]
    (1, 0)
    """
    found: dict[str, dict[str, int]] = {}
    for cell in cells:
        counts = found.setdefault(cell.method, dict.fromkeys(("better", "worse", "level", "open"), 0))
        shown = cell.outcome in ("better", "worse")
        counts["level" if large and shown and not cell.matters else cell.outcome] += 1
    return found


def answer_of(stands: Mapping[str, Mapping[str, int]]) -> str:
    """The answer to a question, given how the other methods stand to the reference.

    >>> answer_of({"adam": {"better": 2, "worse": 0}, "adamnc": {"better": 1, "worse": 1}})
    'no'
    >>> answer_of({"adam": {"better": 0, "worse": 1}, "adamnc": {"better": 1, "worse": 1}})
    'it depends'
    """
    if not stands:
        return "not run"
    ahead = [bool(each["better"]) and not each["worse"] for each in stands.values()]
    behind = [bool(each["worse"]) and not each["better"] for each in stands.values()]
    both = [bool(each["worse"]) and bool(each["better"]) for each in stands.values()]
    return "no" if any(ahead) else "yes" if all(behind) else "it depends" if any(both) else "open"
