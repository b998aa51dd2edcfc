"""Training for the reproduction, or any study: which experiments, what is missing, the archives that outlive it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from wagmf.arguments import Refused, refuse
from wagmf.lab.data import Dataset, load
from wagmf.lab.models import MODELS
from wagmf.lab.planning import Prepared, Work
from wagmf.lab.records import Records, Run, archive, restore, shortened
from wagmf.lab.spec import Experiment, read
from wagmf.lab.sweep import Epoch, Watch
from wagmf.lab.tuning import carry_out, recorded, search
from wagmf.methods import PAPER_METHODS

__all__ = ["COSTS", "STUDY", "SYNTHETIC", "archive_of", "check_page", "fewer", "paper_experiments", "quickly", "train"]

SYNTHETIC: str = "synthetic"
"""What the one experiment is called that trains nothing: the synthetic problem of Figure 1."""

COSTS: str = "costs"
"""What timing the methods is called."""

STUDY: str = "study.toml"
"""The file among experiments that describes none, but what is asked of them."""

_MODELS = ("softmax", "mlp", "cnn", "resnet20")  # in the order of the figures, which is also that of their cost


def paper_experiments(folder: Path, only: Sequence[str] = ()) -> list[Experiment]:
    """The experiments of a folder that are tuned, or of those the ones that ``only`` names, wholly or in part.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> text = 'dataset = "digits"\\nmodel = "mlp"\\nmethods = ["wada"]\\nlrs = [0.1]\\n[tuning]\\nseeds = 1\\n'
    >>> _ = (folder / "mlp.toml").write_text(text)
    >>> [each.name for each in paper_experiments(folder)]
    ['mlp on digits']
    """
    files = [path for path in sorted(folder.glob("*.toml")) if path.name != STUDY]
    found = [each for path in files for each in read(path) if each.tuning is not None]
    if not found:
        raise Refused(f"{folder}: there are no experiments in it (run this where the project was cloned to)")
    names = [each.name for each in found]
    if only:
        chosen = {name for word in only for name in _named(word, names)}
        found = [each for each in found if each.name in chosen]
    return sorted(found, key=lambda each: _MODELS.index(each.problem.model) if each.problem.model in _MODELS else 9)


def _named(word: str, names: list[str]) -> list[str]:
    """The experiment of that name, or else all that have it in theirs."""
    if word in (SYNTHETIC, COSTS):
        return []
    found = [name for name in names if name == word] or [name for name in names if word in name]
    return found or refuse("only", word, f"a part of one of these names: {', '.join([SYNTHETIC, COSTS, *names])}")


def check_page(experiments: Iterable[Experiment]) -> None:
    """Refuse experiments that the page of the reproduction has no words for.

    >>> from wagmf.lab.spec import experiment
    >>> table = {"dataset": "digits", "model": "mlp", "methods": ["ogd"], "lrs": [0.1], "tuning": {}}
    >>> check_page([experiment(table)])
    Traceback (most recent call last):
    wagmf.arguments.Refused: Invalid methods: 'ogd' (mlp on digits must have those of the paper alone: adam, ...
    """
    for each in experiments:
        if each.tuning is not None and each.tuning.by != "train_loss":
            right = f"{each.name} must be tuned by train_loss, as the page says; wagmf study takes any metric"
            refuse("by of tuning", each.tuning.by, right)
        for arm in each.arms:
            if arm.method not in PAPER_METHODS:
                right = f"{each.name} must have those of the paper alone: {', '.join(PAPER_METHODS)}"
                refuse("methods", arm.method, f"{right}; wagmf study takes any")


def quickly(experiment: Experiment) -> Experiment:
    """The same on digits in a few epochs: to see that everything works, not to learn something.

    A module of one's own is for data of its own: it keeps them, and :func:`fewer` of them will do.

    >>> from wagmf.lab.spec import experiment
    >>> table = {"dataset": "mnist", "model": "mlp", "methods": ["wada"], "lrs": [0.1], "epochs": 200, "tuning": {}}
    >>> quickly(experiment(table)).problem.epochs
    5
    """
    if experiment.tuning is None:
        refuse("tuning", None, f"{experiment.name} does not say how its step sizes are searched for")
    problem = experiment.problem.lasting(5)
    if problem.model in MODELS:
        problem = replace(problem, dataset="digits", precision="auto")
    tuning = replace(experiment.tuning, epochs=1, fine_epochs=1, seeds=(0,))
    return replace(experiment, problem=problem, seeds=(0, 1), tuning=tuning)


def fewer(experiments: Iterable[Experiment], count: int = 64) -> dict[str, Dataset]:
    """The first examples of data that quick experiments do not take from digits, by the name of these.

    >>> from wagmf.lab.spec import experiment
    >>> fewer([experiment({"dataset": "digits", "model": "mlp", "methods": ["wada"], "lrs": [0.1]})])
    {}
    """
    names = {each.problem.dataset for each in experiments if each.problem.model not in MODELS}
    return {name: _fewer(load(name), count) for name in names}


def _fewer(data: Dataset, count: int) -> Dataset:
    """The first, and the one with the largest label, or token, so that there are as many classes."""
    largest = [part.reshape(len(part), -1).max(1) for part in (data.y_train, *([data.x_train] * data.tokens))]
    rows = np.unique([*range(min(count, len(data.y_train))), *(int(each.argmax()) for each in largest)])
    return replace(
        data,
        x_train=data.x_train[rows],
        y_train=data.y_train[rows],
        x_test=data.x_test[:count],
        y_test=data.y_test[:count],
    )


def archive_of(folder: Path, name: str) -> Path:
    """Where the runs of an experiment are kept.

    >>> archive_of(Path("records"), "mlp on mnist").name
    'mlp-on-mnist.jsonl.gz'
    >>> archive_of(Path("records"), "growth, mlp on mnist").name
    'growth-mlp-on-mnist.jsonl.gz'
    """
    return folder / f"{name.replace(', ', '-').replace(' ', '-')}.jsonl.gz"


def train(
    prepared: list[Prepared],
    path: Path,
    archives: Path,
    *,
    known: Iterable[Path] = (),
    every: int = 20,
    watch: Watch | None = None,
) -> None:
    """Run what is missing of experiments: first the search of their step sizes, then all seeds at what it has chosen.

    Runs that the archives have are not trained again, those in their folder ``anew`` included, nor those of ``known``,
    archives of other experiments. After every stack the archives have what is recorded by then.

    >>> import tempfile
    >>> from wagmf.lab.spec import experiment
    >>> from wagmf.lab.planning import prepare
    >>> table = {"dataset": "digits", "model": "softmax", "methods": ["wada"], "lrs": [0.1], "epochs": 1, "tuning": {}}
    >>> folder = Path(tempfile.mkdtemp())
    >>> train(prepare([experiment(table)]), folder / "runs.db", folder)
    >>> len(restore(folder / "softmax-on-digits.jsonl.gz")[0]) > 5
    True
    """
    records = Records(path)
    for each in prepared:
        for folder in (archives, archives / "anew"):
            _reuse(each, records, archive_of(folder, each.experiment.name))
    digests = {each.data.digest for each in prepared}
    for one in known:
        _add([run for run in restore(one)[0] if run.config.get("data") in digests], records, one)
    for each in prepared:
        carry_out([each], path, every=every, watch=_Keeping(each, records, archives, watch or Watch()))
        _keep(each, records, archives)


def _reuse(each: Prepared, records: Records, path: Path) -> None:
    """Put what an archive has into the records; refuse to mix it with what is not of its kind."""
    if not path.exists():
        return
    runs, names = restore(path)
    for run in runs:
        if names[run.key] and run.config.get("data") != each.data.digest:
            raise Refused(
                f"{path}: it holds runs on other data than {each.experiment.problem.dataset} (use another --out)"
            )
    _add(runs, records, path)


def _add(runs: list[Run], records: Records, path: Path) -> None:
    """Put runs of an archive into the records, if those that are there already are the same."""
    there = {run.key: shortened(run).curves for run in records.runs([run.key for run in runs])}
    for run in runs:
        if there.get(run.key, run.curves) != run.curves:
            raise Refused(f"{path}: run {run.key} is not the one that {records.path} has (remove one of the files)")
    records.add(runs)


class _Keeping(Watch):
    """Tells a watch what happens, and writes the archive whenever runs were recorded: a kill may follow."""

    def __init__(self, each: Prepared, records: Records, archives: Path, watch: Watch) -> None:
        self._kept, self._watch = (each, records, archives), watch

    def planned(self, works: list[Work], done: int) -> None:
        self._watch.planned(works, done)

    def begun(self, work: Work, epoch: int) -> None:
        self._watch.begun(work, epoch)

    def trained(self, work: Work, epoch: Epoch) -> None:
        self._watch.trained(work, epoch)

    def finished(self, work: Work, runs: list[Run]) -> None:
        self._watch.finished(work, runs)
        _keep(*self._kept)

    def told(self, text: str) -> None:
        self._watch.told(text)


def _keep(each: Prepared, records: Records, archives: Path) -> None:
    """Write what is recorded of an experiment: the names say which runs are of its search, and which are its own.

    Its own are so called when all of them are there. Runs of another search or of another problem, which the experiment
    was before somebody changed its file, are kept without a name. As long as what was whole then is not whole now, it
    stays as it is, and what is new is kept apart, in the folder ``anew``, until all of it has a name.
    """
    name, names = each.experiment.name, _names(each, records)
    path, apart = archive_of(archives, name), archive_of(archives / "anew", name)
    before, called = restore(path) if path.exists() else ([], {})
    aside, meant = restore(apart) if apart.exists() else ([], {})
    replaced = _is_whole(name, called) and not _is_whole(name, names)
    over = all(key in names for key, several in meant.items() if several)
    kept = (aside if replaced or over else []), ([] if replaced else before), records.runs(names)
    runs = {run.key: run for several in kept for run in several if not (replaced and called.get(run.key))}
    if runs:
        to = apart if replaced else path
        to.parent.mkdir(parents=True, exist_ok=True)
        archive(runs.values(), {key: sorted(names.get(key, [])) for key in runs}, to)
    if over and not replaced:
        apart.unlink(missing_ok=True)


def _is_whole(name: str, names: Mapping[str, list[str]]) -> bool:
    return any(name in several for several in names.values())


def _names(each: Prepared, records: Records) -> dict[str, list[str]]:
    """The runs that are recorded and belong to the experiment as it is described now, and what they are to it."""
    name, found = each.experiment.name, search(each, recorded(records))
    names: dict[str, list[str]] = {}
    for stage, tried in ((found.stages[0], found.coarse), (found.stages[1], found.fine)):
        for arm in each.experiment.arms:
            for lr in tried.get(arm.label, ()):
                for key in Work(stage, (replace(arm, lr=lr),), stage.experiment.seeds).keys:
                    names.setdefault(key, []).append(stage.experiment.name)
    if found.chosen is not None:
        own = Work(found.chosen, found.chosen.experiment.arms, found.chosen.experiment.seeds).keys
        whole = len(records.find(own)) == len(own)
        for key in own:
            names.setdefault(key, []).append(name if whole else f"{name}, unfinished")
    there = records.find(names)
    return {key: sorted(set(several)) for key, several in names.items() if key in there}
