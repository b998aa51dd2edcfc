"""The command line: parses, calls, prints."""

import importlib.util
import math
import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

try:
    import typer
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.table import Table
    from rich.text import Text
except ModuleNotFoundError as missing:
    raise SystemExit(f"The command line needs {missing.name}: pip install 'wagmf[cli]'") from None

import numpy as np

import wagmf
from wagmf.arguments import Refused, integer, one_of, real, refuse
from wagmf.lab.walks import Record, Walks, best_rate, pack_walks, unpack_walks
from wagmf.methods import METHODS, PAPER_METHODS, markdown_table, method
from wagmf.online import SETTINGS, Task, simulate_all
from wagmf.rule import Rule
from wagmf.theory import certify
from wagmf.weights import Weights

__all__ = ["app", "main"]

_EXAMPLES = """
Weighted adaptive gradient methods: one rule, seventeen methods, the paper's experiments.

[bold]Examples[/bold]

  wagmf methods                       the methods and what each averages
  wagmf certify wada                  does its convergence condition hold?
  wagmf certify --weights polynomial:2 --p2 6
                                      … and for weights of my own?
  wagmf online                        Figure 1: Adam fails, WADA does not
  wagmf online --methods all --T 1e6 --seeds 3 -o quick
                                      … all methods, shorter, into quick/
  wagmf compare mlp --data digits -o out
                                      which optimizer trains this model best?
  wagmf compare mine:Net --data mine.npz --methods adam,wada,torch.optim.SGD
                                      … and my own, on my data?
  wagmf sweep experiments/demo.toml   run what is missing of an experiment
  wagmf report runs.db -o report.html
                                      the page that shows it
  wagmf runs runs.db --export runs.csv
                                      what was run
  wagmf reproduce --quick             the whole paper in small, on digits
  wagmf reproduce --no-train          its figures, tables and verdicts again
  wagmf study experiments/beyond --no-train
                                      what a folder of experiments answers
"""

app = typer.Typer(
    help=_EXAMPLES, rich_markup_mode="rich", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
)
_out = Console()
_err = Console(stderr=True)


@app.callback(invoke_without_command=True)
def _top(version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False) -> None:
    if version:
        _out.print(wagmf.__version__)
        raise typer.Exit


@app.command("methods")
def _methods(
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table as README has it.")] = False,
) -> None:
    """The methods: what each averages, in a sentence, and where it is from."""
    if markdown:
        print(markdown_table())
        return
    wide = _out.width >= 130
    headings = ["method", "weights", "divides by", "in a sentence", *(["steps along", "reference"] if wide else [])]
    table = Table(*headings, show_lines=True)
    table.columns[0].no_wrap = True
    for row in METHODS.values():
        more = [row.phi, row.reference] if wide else []
        table.add_row(row.name, row.rule.weights.text, row.psi, row.summary, *more)
    _out.print(table, highlight=False)


@app.command("certify")
def _certify(
    name: Annotated[str | None, typer.Argument(help="A method of the table, such as wada.", show_default=False)] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            help=r"equal, linear, latest, polynomial:ETA or exponential:BETA\[:steady].",
            show_default=False,
        ),
    ] = None,
    p2: Annotated[float | None, typer.Option(help="The root taken of v.", show_default=False)] = None,
    decay: Annotated[
        float | None,
        typer.Option(help=r"Ask about α_t = α·t^-decay.  \[default: the method's own, else 0.5]", show_default=False),
    ] = None,
    monotone: Annotated[bool, typer.Option("--monotone", help="With the running maximum of AMSGrad.")] = False,
    horizon: Annotated[str, typer.Option(help="How far to look where no formula is known.")] = "1e6",
) -> None:
    """Does the convergence condition hold, and if not, from which step on? Exits with 1 if it does not.

    A named method, or weights of your own:

      wagmf certify adam

      wagmf certify --weights polynomial:2 --p2 6
    """
    if name is not None:
        if weights is not None or p2 is not None or monotone:
            refuse("arguments", name, "name a method or give --weights, --p2 and --monotone, not both")
        rule = method(name).rule
    elif weights is None or p2 is None:
        refuse("arguments", "", "name a method (wagmf methods lists them), or give both --weights and --p2")
    else:
        rule = Rule(Weights.parse(weights), p2=p2, monotone=monotone)
    certificate = certify(rule, decay=decay, horizon=_number("horizon", horizon))
    _out.print(str(certificate), style="green" if certificate else "red", highlight=False)
    if certificate.caveat:
        _out.print(certificate.caveat, highlight=False)
    raise typer.Exit(0 if certificate else 1)


_LRS = "0.003,0.01,0.03,0.1,0.3,1,3,10"


@app.command("online")
def _online(
    T: Annotated[str, typer.Option("--T", help="How many steps.")] = "1e7",
    seeds: Annotated[int, typer.Option(help="How many seeds, from 0.")] = 8,
    methods: Annotated[str, typer.Option(help="Names, separated by commas, or all.")] = ",".join(PAPER_METHODS),
    lrs: Annotated[str, typer.Option(help="Step sizes α, separated by commas.")] = _LRS,
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder for records, picture and page.")] = Path(
        "figure1"
    ),
    jobs: Annotated[int | None, typer.Option(help=r"Threads.  \[default: one a core]", show_default=False)] = None,
    points: Annotated[int, typer.Option(help="How many points to log, evenly spaced in log t.")] = 100,
) -> None:
    """Figure 1 of the paper: average regret and iterates on the synthetic problem, stochastic and online.

    Every finished run is kept in OUT/walks.jsonl: stop with Ctrl-C when you like, and run again to continue.
    """
    tasks = _tasks(T, seeds, methods, lrs, points)
    if jobs is not None:
        integer("jobs", jobs, least=1, most=1024)
    walks = Walks(_writable(out) / "walks.jsonl")
    stopped = _simulate(tasks, walks, jobs)
    records = walks.find(tasks)
    if records:
        from wagmf.lab.plots import figure1_page, figure1_picture  # only now: they take a second to import

        picture, page = figure1_picture(records, out / "figure1.png"), figure1_page(records, out / "figure1.html")
        _out.print(_summary(records))
        _say(f"Picture   {picture}\nPage      {page}\nRecords   {walks.path}")
    if stopped:
        _err.print(f"Stopped: {len(records)} of {len(tasks)} runs are done and kept; the same command continues.")
        raise typer.Exit(130)


_Records = Annotated[
    Path, typer.Option("--records", "-r", help="The file of runs; what it holds is not trained again.")
]
_Device = Annotated[
    str | None, typer.Option(help=r"cpu or cuda.  \[default: the GPU if there is one]", show_default=False)
]
_Every = Annotated[int, typer.Option(help="Save the running stack every so many epochs.")]
_Criterion = Annotated[
    str, typer.Option(help="By what methods are compared, and their step sizes chosen: train_loss or test_accuracy.")
]


@app.command("sweep")
def _sweep(
    files: Annotated[list[Path], typer.Argument(help="Experiments, as TOML.", show_default=False)],
    records: _Records = Path("runs.db"),
    report: Annotated[
        Path | None, typer.Option("--report", "-o", help="Write the page, too.", show_default=False)
    ] = None,
    device: _Device = None,
    every: _Every = 5,
    criterion: _Criterion = "train_loss",
    stack: Annotated[
        int | None,
        typer.Option(
            help=r"Train at most so many replicas together.  \[default: what suits the device]", show_default=False
        ),
    ] = None,
    engine: Annotated[str, typer.Option(help="Where stacks are trained: here, or on a cluster by ray.")] = "here",
    address: Annotated[
        str | None,
        typer.Option(
            help=r"Of the Ray cluster.  \[default: RAY_ADDRESS, or that of ray start, or one for this sweep]",
            show_default=False,
        ),
    ] = None,
    checkpoints: Annotated[
        str | None,
        typer.Option(
            help=r"Where the cluster saves stacks: a shared path, or a URL for fsspec.  \[default: beside the records]",
            show_default=False,
        ),
    ] = None,
    cpus: Annotated[
        int | None, typer.Option(help=r"Of the cluster, for each stack.  \[default: 1]", show_default=False)
    ] = None,
    gpus: Annotated[
        float | None,
        typer.Option(
            help=r"Of the cluster, for each stack, where there are any; 0.5: two share one.  \[default: 1]",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run what is missing of experiments, and say which method was best.

    Stop with Ctrl-C when you like, or kill it: what is finished is in the file of records, the running stack goes on
    from where it was last saved, and the same command continues. Several sweeps on one file share the work.
    """
    _need_the_lab()
    from wagmf.lab.planning import prepare
    from wagmf.lab.spec import read

    experiments = [each for path in files for each in read(path)]
    rerun = f"wagmf sweep {' '.join(map(shlex.quote, map(str, files)))}"
    for name, value in (("every", every), ("stack", 1 if stack is None else stack)):
        integer(name, value, least=1)  # before a cluster is started
    given = {"address": address, "checkpoints": checkpoints, "cpus": cpus, "gpus": gpus}
    with _engine(engine, device, {name: value for name, value in given.items() if value is not None}) as trains:
        ready = prepare(experiments, device or trains.device, memory=trains.memory, stack=stack)
        _run_all(ready, records, report, every, criterion, rerun, trains)


def _engine(name: str, device: str | None, given: dict[str, Any]) -> Any:
    """Who trains the stacks; what is given is for a cluster alone."""
    from wagmf.lab.cluster import Cluster
    from wagmf.lab.sweep import Engine

    if one_of("engine", name, ("here", "ray")) == "ray":
        return Cluster(**given, device=device, told=_err.print)
    for option, value in given.items():
        refuse(option, value, "it is for a cluster: add --engine ray")
    return Engine()


@app.command("compare")
def _compare(
    model: Annotated[str, typer.Argument(help="softmax, mlp, cnn, resnet20, or module:factory.", show_default=False)],
    data: Annotated[str, typer.Option(help="digits, mnist, cifar10, cifar100, or an .npz file.")] = "digits",
    methods: Annotated[
        str, typer.Option(help="Names, separated by commas; dotted ones as in torch.optim.AdamW.")
    ] = ",".join(PAPER_METHODS),
    lrs: Annotated[
        str | None, typer.Option(help=r"Step sizes, separated by commas.  \[default: 1e-4 … 0.1]", show_default=False)
    ] = None,
    seeds: Annotated[int, typer.Option(help="How many seeds, from 0.")] = 3,
    epochs: Annotated[int, typer.Option(help="How many passes over the training set.")] = 20,
    batch: Annotated[int, typer.Option(help="Examples a step.")] = 128,
    width: Annotated[int | None, typer.Option(help="Of the mlp.", show_default=False)] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder for records and report.")] = Path("comparison"),
    device: _Device = None,
    every: _Every = 5,
    criterion: _Criterion = "train_loss",
) -> None:
    """Which optimizer trains this model best? Every method at every step size from every seed, and a report.

    Your own model is MODULE:FACTORY, the factory being a class or function without arguments that gives a
    torch.nn.Module, which takes a batch and gives logits. Your own data are an .npz file with x_train, y_train, x_test
    and y_test.
    """
    _need_the_lab()
    from wagmf.lab.compare import LRS, prepare_comparison

    rates = LRS if lrs is None else [_number("lrs", lr) for lr in lrs.split(",")]
    names = [name.strip() for name in methods.split(",")]
    options: dict[str, Any] = {} if width is None else {"width": width}
    prepared = prepare_comparison(
        model, data, methods=names, lrs=rates, seeds=seeds, epochs=epochs, batch=batch, device=device, **options
    )
    rerun = shlex.join(["wagmf", *sys.argv[1:]])
    _run_all(prepared, out / "runs.db", out / "report.html", every, criterion, rerun)


@app.command("runs")
def _runs(
    records: Annotated[Path, typer.Argument(help="The file of runs.")] = Path("runs.db"),
    export: Annotated[
        Path | None, typer.Option("--export", "-o", help="Write all curves: .csv or .parquet.", show_default=False)
    ] = None,
    every_run: Annotated[bool, typer.Option("--all", help="List every run, not a line for each method.")] = False,
) -> None:
    """List the runs of a file of records, or export them."""
    _need_the_lab()
    from wagmf.lab.records import Records, tables
    from wagmf.lab.records import export as write

    kept = Records(records, create=False)
    found = tables(kept.runs(), kept.names())
    listed: Any = found.runs
    if export is not None:
        _say(f"{len(found.runs)} runs into {write(found, export)}")
        return
    keys = ["experiment", "method", *(["lr", "seed"] if every_run else [])]
    table = Table(*keys, *(["key"] if every_run else ["step sizes", "seeds", "runs"]), "diverged")
    for values, runs in listed.groupby(keys, sort=False):
        named = [Text(f"{value:g}" if isinstance(value, float) else str(value)) for value in values]
        counted = [str(runs["lr"].nunique()), str(runs["seed"].nunique()), str(len(runs))]
        diverged = str(runs["diverged"].notna().sum() or "")
        table.add_row(*named, *([runs["key"].iloc[0]] if every_run else counted), diverged)
    _out.print(table, highlight=False)


@app.command("report")
def _report(
    records: Annotated[Path, typer.Argument(help="The file of runs.")] = Path("runs.db"),
    out: Annotated[Path, typer.Option("--out", "-o", help="The page.")] = Path("report.html"),
    pictures: Annotated[
        Path | None, typer.Option(help="Also draw every figure as PNG and SVG into this folder.", show_default=False)
    ] = None,
    criterion: _Criterion = "train_loss",
    title: Annotated[str | None, typer.Option(help="The page's title.", show_default=False)] = None,
) -> None:
    """Write the report of a file of records: one page that needs no network."""
    _need_the_lab()
    from wagmf.lab.records import Records, tables
    from wagmf.lab.report import pictures as draw
    from wagmf.lab.report import report as write

    kept = Records(records, create=False)
    found = tables(kept.runs(), kept.names())
    _say(f"Report    {write(found, _beside(out), title=title, criterion=criterion)}")
    if pictures is not None:
        drawn = draw(found, _folder(pictures), criterion=criterion)
        _say(f"Pictures  {len(drawn)} in {pictures}")


@app.command("reproduce")
def _reproduce(
    ctx: typer.Context,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="Only experiments with this in their name, synthetic, or costs; may be repeated.", show_default=False
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="On digits, in a few epochs: does everything work?")] = False,
    train: Annotated[bool, typer.Option(help="Without it, write what follows from the records.")] = True,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help=r"The folder.  \[default: reproduction]", show_default=False)
    ] = None,
    experiments: Annotated[Path, typer.Option(help="Where the experiments are described.")] = Path("experiments/paper"),
    device: _Device = None,
    every: _Every = 20,
) -> None:
    """The paper: train what is missing of it, then write its figures, tables and verdicts from the records.

    Stop with Ctrl-C when you like: what is finished is kept in OUT/records, and the same command continues.
    """
    _need_the_lab()
    from wagmf.lab.paper_runs import STUDY, check_page
    from wagmf.lab.reproduction import rebuild

    check_page(_check_training(ctx, train, every, only, experiments))
    out = out or Path("reproduction-quick" if quick else "reproduction")
    if (out / STUDY).exists():
        refuse("out", str(out), "it is the folder of a study, which has a page of its own")
    folder = _place(out, train)
    _train_and_write(
        folder,
        partial(_train_paper, folder, experiments, only or [], quick, device, every) if train else None,
        partial(rebuild, folder),
    )


@app.command("study")
def _study(
    ctx: typer.Context,
    experiments: Annotated[Path, typer.Argument(help="A folder of experiments with a study.toml.", show_default=False)],
    only: Annotated[
        list[str] | None,
        typer.Option(help="Train only experiments with this in their name; may be repeated.", show_default=False),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small data, few epochs: does everything work?")] = False,
    train: Annotated[bool, typer.Option(help="Without it, write what follows from the records.")] = True,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help=r"The folder for records and page.  \[default: the same]", show_default=False),
    ] = None,
    device: _Device = None,
    every: _Every = 20,
) -> None:
    """A study of your own: train what is missing of a folder of experiments, then answer what its study.toml asks.

    Runs that archives of other experiments have, in the folders that study.toml calls known, are used again. Stop with
    Ctrl-C when you like: what is finished is kept in OUT/records, and the same command continues.
    """
    _need_the_lab()
    from wagmf.lab.questions import read_study
    from wagmf.lab.study import check_questions, rebuild_study

    study = read_study(experiments)
    _check_training(ctx, train, every, only, experiments)
    check_questions(study, experiments)
    folder = _place(out or (Path(f"{experiments.resolve().name}-quick") if quick else experiments), train)

    def trained() -> None:
        for each in study.known:
            if not any(each.rglob("*.jsonl.gz")):
                _say(f"Known     no runs: there are no archives in {each}")
        _train_some(_prepared(experiments, only or [], quick, device), folder, every, study.archives)

    _train_and_write(folder, trained if train else None, partial(rebuild_study, experiments, folder))


def _check_training(ctx: typer.Context, train: bool, every: int, only: list[str] | None, experiments: Path) -> Any:
    """Refuse what can be refused before there is a folder for what comes of it; returns what is to be trained."""
    from wagmf.lab.paper_runs import paper_experiments

    integer("every", every, least=1)
    if train:
        return paper_experiments(experiments, only or [])
    for name in _typed(ctx, "only", "device", "every", "experiments"):
        value = ctx.params[name]
        refuse(
            name, str(value) if isinstance(value, Path) else value, "it is for training, and --no-train trains nothing"
        )
    return []


def _typed(ctx: typer.Context, *names: str) -> list[str]:
    """Which of these options somebody has typed, be it as they are by default."""
    options = {each.name for each in ctx.command.params if each.param_type_name == "option"}
    sources = {name: ctx.get_parameter_source(name) for name in names if name in options}
    return [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]


def _place(path: Path, train: bool) -> Path:
    """The folder for records and what follows from them, if it is one of ours, or becomes one.

    A page of somebody's own would be overwritten: `--out "$UNSET"` is the folder that one is in.
    """
    if not path.exists() or path.is_dir():
        there = any((path / "records").glob("*.jsonl.gz"))
        if not train and not there:
            raise Refused(f"{path / 'records'}: there are no records in it")
        if not there and (page := path / "README.md").exists():
            told = "it is not of records that are here, and would be overwritten"
            raise Refused(f"{page}: {told} (use another --out, or move it away)")
    return _folder(path)


def _train_and_write(folder: Path, train: Callable[[], None] | None, write: Callable[[], list[Path]]) -> None:
    """Train, if that is asked for, until it is done or somebody stops it; then write what follows from the records."""
    stopped = False
    try:
        if train is not None:
            train()
    except KeyboardInterrupt:
        stopped = True
    if any((folder / "records").glob("*.gz")):
        for path in write():
            _say(f"Wrote     {path}")
    elif not stopped:
        _say(f"Page      none yet: in {folder / 'records'} there are neither runs nor walks")
    if stopped:
        _err.print("Stopped: what was finished is kept; the same command continues.", highlight=False)
        raise typer.Exit(130)


def _prepared(experiments: Path, only: list[str], quick: bool, device: str | None) -> Any:
    """The experiments of a folder, or some of them, as they are or in small, with their data."""
    from wagmf.lab.paper_runs import fewer, paper_experiments, quickly
    from wagmf.lab.planning import prepare

    found = paper_experiments(experiments, only)
    return prepare(map(quickly, found), device, sources=fewer(found)) if quick else prepare(found, device)


def _train_some(prepared: Any, folder: Path, every: int, known: Iterable[Path] = ()) -> None:
    """Train what is missing, behind a live view."""
    from wagmf.lab.live import LiveView
    from wagmf.lab.paper_runs import train

    by = {each.experiment.name: each.experiment.tuning.by for each in prepared if each.experiment.tuning}
    with LiveView(_err, by=by) as view:
        train(prepared, folder / "runs.db", _folder(folder / "records"), known=known, every=every, watch=view)


def _train_paper(folder: Path, experiments: Path, only: list[str], quick: bool, device: str | None, every: int) -> None:
    """Simulate, train and time what is missing."""
    from wagmf.lab.paper_runs import COSTS, SYNTHETIC

    prepared = _prepared(experiments, only, quick, device)
    archives = _folder(folder / "records")
    if not only or SYNTHETIC in only:
        tasks = _tasks("1e5" if quick else "1e7", 3 if quick else 8, ",".join(PAPER_METHODS), _LRS, 100)
        _walk(tasks, folder / "walks.jsonl", archives / "walks.jsonl.gz")
    _train_some(prepared, folder, every)
    if not only or COSTS in only:
        _time(archives / "costs.csv", device, quick, asked=COSTS in only)


def _time(path: Path, device: str | None, quick: bool, *, asked: bool) -> None:
    """Time a step of every network, unless that was done: what was measured elsewhere is not to be lost."""
    from wagmf.lab.costs import measure

    if not path.exists():
        _say("Timing a step of every network with every method ...")
        measure(path, device, quick=quick)
    elif asked:
        _say(f"Costs     are in {path} already: remove it to time every method again.")


def _walk(tasks: list[tuple[str, Task]], path: Path, archive: Path) -> None:
    """Simulate what the archive does not have, and put it there."""
    have = {(record.method, record.task) for record in unpack_walks(archive)} if archive.exists() else set()
    if have.issuperset(tasks):
        return
    if not have <= {*tasks}:
        raise Refused(f"{archive}: it holds walks other than those, which would be lost (use another --out)")
    walks = Walks(path)
    if _simulate(tasks, walks, None):
        raise KeyboardInterrupt
    pack_walks(walks.find(tasks), archive)
    path.unlink(missing_ok=True)


def _run_all(
    prepared: Any, path: Path, page: Path | None, every: int, criterion: str, rerun: str, engine: Any = None
) -> None:
    """Train what is missing behind a live view, then print what came out."""
    from wagmf.lab.compare import compared, searched_by
    from wagmf.lab.live import LiveView
    from wagmf.lab.planning import addresses
    from wagmf.lab.records import Records
    from wagmf.lab.stats import CRITERIA
    from wagmf.lab.tuning import carry_out

    one_of("criterion", criterion, CRITERIA)
    integer("every", every, least=1)
    if page is not None:
        _beside(page)
    stopped, searched = False, searched_by(prepared)
    with LiveView(_err, criterion) as view:
        try:
            prepared = carry_out(prepared, path, every=every, watch=view, engine=engine)
        except KeyboardInterrupt:
            stopped, searched = True, {}  # what there is may be of the search itself
    wanted = set(addresses(prepared))
    result = compared(prepared, Records(path), wanted, criterion, searched)
    done = len(result.records.runs)
    if done:
        for table in _outcomes(result):
            _out.print(table, highlight=False)
        _say("±: 95 % interval of the mean. ≤, ≥: the best step size is at the edge of the grid.")
        for way in result.ways:
            _say(f"Trained   {way}")
        if page is not None:
            _say(f"Report    {result.report(page, rerun=rerun)}")
        _say(f"Records   {path}")
    if stopped:
        _err.print(f"Stopped: {done} of {len(wanted)} runs are recorded; the same command continues.", highlight=False)
        raise typer.Exit(130)


def _outcomes(result: Any) -> Iterator[Table]:
    """For each experiment the methods at their best step size, best first."""
    from wagmf.lab import stats

    edges: Any = result.rates.set_index(["experiment", "method"])["edge"]
    finals: Any = stats.finals(result.records.curves, "test_accuracy")
    hits = finals.groupby(["experiment", "method", "lr"])["value"].mean()
    order = stats.ranking(result.records.curves, result.criterion, rates=result.rates)[["experiment", "method"]]
    ranks: Any = stats.ranking(result.records.curves, "train_loss", rates=result.rates)
    ranks = order.merge(ranks, on=["experiment", "method"])
    for name, rows in ranks.groupby("experiment", sort=False):
        table = Table(title=Text(f"{name}, each method at its best step size"), title_justify="left")
        for heading in ("method", "best α", "seeds", "training loss", "test accuracy", "beats others"):
            table.add_column(heading, justify="left" if heading == "method" else "right", no_wrap=True)
        for row in rows.itertuples():
            edge = {"low": "≤ ", "high": "≥ "}.get(edges[name, row.method], "")
            loss = f"{row.mean:.4g} ± {(row.high - row.low) / 2:.1g}" if row.n > 1 else f"{row.mean:.4g}"
            seeds = f"{row.n}" + (f" of {row.n + row.diverged}" if row.diverged else "")
            accuracy = f"{hits[name, row.method, row.lr]:.2%}"
            beats = "–" if math.isnan(row.improves) else f"{row.improves:.0%}"
            table.add_row(Text(row.method), f"{edge}{row.lr:g}", seeds, loss, accuracy, beats)
        yield table


def _need_the_lab() -> None:
    for name in ("torch", "pandas", "scipy", "jinja2", "filelock", "sklearn"):
        if importlib.util.find_spec(name) is None:
            refuse("installation", name, "it is missing, and the lab needs it: pip install 'wagmf[lab]'")


def _say(text: str) -> None:
    """Print what may hold names of the user's as it is."""
    _out.print(Text(text), soft_wrap=True)


def _beside(path: Path) -> Path:
    """The path of a file, in a folder that was made and tried before any work is done for it."""
    if path.is_dir():
        refuse("out", str(path), "it is a folder; name a file")
    _folder(path.parent)
    return path


def _folder(path: Path) -> Path:
    """The folder, made and tried before any work is done for it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        refuse("out", str(path), f"it must be a folder that can be written: {error.strerror}")
    return path


def _tasks(T: str, seeds: int, methods: str, lrs: str, points: int) -> list[tuple[str, Task]]:
    """Every (method name, task) asked for; all is checked before anything is written."""
    names = list(METHODS) if methods.strip().lower() == "all" else [name.strip() for name in methods.split(",")]
    rates = tuple(real("lr", _number("lrs", lr), above=0, what="learning rate") for lr in lrs.split(","))
    steps = integer("T", _number("T", T), least=1, most=10**12)
    integer("seeds", seeds, least=1, most=10**5)
    integer("points", points, least=2, most=10**5)
    return [
        # α/√t, the theory's step size, unless the method's definition has its own.
        (name, Task(rule.with_decay(rule.decay or 0.5), steps, tuple(sorted(set(rates))), seed, setting, points))
        for name, rule in ((name, method(name).rule) for name in dict.fromkeys(names))
        for setting in SETTINGS
        for seed in range(seeds if setting == "stochastic" else 1)
    ]


def _simulate(tasks: list[tuple[str, Task]], walks: Walks, jobs: int | None) -> bool:
    """Run what is missing behind a progress bar, and keep each run as it finishes; true if it was stopped."""
    kept = walks.find(tasks)
    have = {(record.method, record.task) for record in kept}
    left: dict[Task, list[str]] = {}  # with α/√t two names may be one rule (adagrad, rmsprop_nc): simulate it once
    for name, task in tasks:
        if (name, task) not in have:
            left.setdefault(task, []).append(name)
    if kept:
        _out.print(f"{len(kept)} of {len(tasks)} runs were done before.", highlight=False)
    done = len(kept)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=_err, transient=True) as progress:
        bar = progress.add_task(f"{done}/{len(tasks)} runs", total=sum(task.T for task in left))
        finished = simulate_all(left, jobs=jobs, progress=lambda steps: progress.advance(bar, steps))
        try:
            for task, walk in finished:
                for name in left[task]:
                    walks.add(Record(name, task, walk))
                    done += 1
                progress.update(bar, description=f"{done}/{len(tasks)} runs, last {left[task][-1]}")
        except KeyboardInterrupt:
            return True
        finally:
            finished.close()
    return False


def _writable(out: Path) -> Path:
    """The folder, made and tried before any work is done for it."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / "walks.jsonl").open("ab").close()
    except OSError as error:
        refuse("out", str(out), f"--out must be a folder that can be written: {error.strerror}")
    return out


def _summary(records: list[Record]) -> Table:
    T, seeds = records[0].task.T, len({r.task.seed for r in records})
    table = Table(
        title=f"After {T:,} steps, medians of {seeds} seed{'s' * (seeds > 1)} (online: one run)",
        caption="Optimal: x = -1. ≤, ≥: at the edge of the grid. Condition: wagmf certify.",
    )
    for heading in ("", "method", "best α", "R(T)/T", "last x", "last x, all α", "condition"):
        table.add_column(heading, justify="left" if heading in ("", "method") else "right", no_wrap=True)
    for setting in SETTINGS:
        for name in METHODS:
            same = [r for r in records if r.task.setting == setting and r.method == name]
            if same:
                k = best_rate(same)
                x = np.median([r.walk.x[:, -1] for r in same], axis=0)
                regret = np.median([r.walk.regret[k, -1] for r in same])
                lrs, rule = same[0].task.lrs, same[0].task.rule
                edge = "≤ " if k == 0 < len(lrs) - 1 else "≥ " if 0 < k == len(lrs) - 1 else ""
                spread = f"{x.min():+.2f} … {x.max():+.2f}"
                holds = "holds" if certify(rule) else "fails"
                table.add_row(setting, name, f"{edge}{lrs[k]:g}", f"{regret:.3f}", f"{x[k]:+.3f}", spread, holds)
        table.add_section()
    return table


def _number(name: str, text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        refuse(name, text, f"{name} must be a number")


def main() -> None:
    """Run the command line; a refused value is one line on standard error and exit status 2.

    >>> import subprocess
    >>> subprocess.run([sys.executable, "-m", "wagmf", "certify", "wada"], capture_output=True).returncode
    0
    """
    try:
        app()
    except BrokenPipeError:  # whoever read our output has seen enough; all files are written before we print
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (Refused, OSError) as error:
        _err.print(Text(str(error), style="red"))
        raise SystemExit(2) from None
