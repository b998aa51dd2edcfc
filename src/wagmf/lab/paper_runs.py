"""Training for the reproduction: which experiments, what is missing of them, and the archives that outlive it."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from wagmf.arguments import Refused, refuse
from wagmf.lab.records import Records, archive, restore
from wagmf.lab.spec import Experiment, read
from wagmf.lab.sweep import Prepared, Watch
from wagmf.lab.tuning import carry_out

__all__ = ["COSTS", "SYNTHETIC", "archive_of", "paper_experiments", "quickly", "train"]

SYNTHETIC: str = "synthetic"
"""What the one experiment is called that trains nothing: the synthetic problem of Figure 1."""

COSTS: str = "costs"
"""What timing the methods is called."""

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
    found = [each for path in sorted(folder.glob("*.toml")) for each in read(path) if each.tuning is not None]
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


def quickly(experiment: Experiment) -> Experiment:
    """The same on digits in a few epochs: to see that everything works, not to learn something.

    >>> from wagmf.lab.spec import experiment
    >>> table = {"dataset": "mnist", "model": "mlp", "methods": ["wada"], "lrs": [0.1], "epochs": 200, "tuning": {}}
    >>> quickly(experiment(table)).problem.epochs
    5
    """
    if experiment.tuning is None:
        refuse("tuning", None, f"{experiment.name} does not say how its step sizes are searched for")
    problem = replace(experiment.problem.lasting(5), dataset="digits")
    tuning = replace(experiment.tuning, epochs=1, fine_epochs=1, seeds=(0,))
    return replace(experiment, problem=problem, seeds=(0, 1), tuning=tuning)


def archive_of(folder: Path, name: str) -> Path:
    """Where the runs of an experiment are kept.

    >>> archive_of(Path("records"), "mlp on mnist").name
    'mlp-on-mnist.jsonl.gz'
    """
    return folder / f"{name.replace(' ', '-')}.jsonl.gz"


def train(prepared: list[Prepared], path: Path, archives: Path, *, every: int = 20, watch: Watch | None = None) -> None:
    """Run what is missing of experiments: first the search of their step sizes, then all seeds at what it has chosen.

    Runs that the archives have are not trained again. However this ends, they have afterwards what was recorded.

    >>> import tempfile
    >>> from wagmf.lab.spec import experiment
    >>> from wagmf.lab.sweep import prepare
    >>> table = {"dataset": "digits", "model": "softmax", "methods": ["wada"], "lrs": [0.1], "epochs": 1, "tuning": {}}
    >>> folder = Path(tempfile.mkdtemp())
    >>> train(prepare([experiment(table)]), folder / "runs.db", folder)
    >>> len(restore(folder / "softmax-on-digits.jsonl.gz")[0]) > 5
    True
    """
    records = Records(path)
    for each in prepared:
        kept = archive_of(archives, each.experiment.name)
        if kept.exists():
            runs, names = restore(kept)
            records.add(runs)
            records.enrol(names)
    for each in prepared:
        try:
            carry_out([each], path, every=every, watch=watch)
        finally:
            _keep(each, records, archives)


def _keep(each: Prepared, records: Records, archives: Path) -> None:
    """Write what is recorded of an experiment and its search; the names tell the two apart."""
    name = each.experiment.name
    own = {name, f"{name}, coarse", f"{name}, fine"}
    names = {key: sorted(own & set(several)) for key, several in records.names().items() if own & set(several)}
    runs = records.runs(names)
    if runs:
        archives.mkdir(parents=True, exist_ok=True)
        archive(runs, {run.key: names[run.key] for run in runs}, archive_of(archives, name))
