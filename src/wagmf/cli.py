"""The command line: parses, calls, prints."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any

try:
    import typer
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.table import Table
except ModuleNotFoundError as missing:
    raise SystemExit(f"The command line needs {missing.name}: pip install 'wagmf[cli]'") from None

import numpy as np

import wagmf
from wagmf.arguments import Refused, integer, real, refuse
from wagmf.lab.walks import Record, Walks, best_rate
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


@app.command("online")
def _online(
    T: Annotated[str, typer.Option("--T", help="How many steps.")] = "1e7",
    seeds: Annotated[int, typer.Option(help="How many seeds, from 0.")] = 8,
    methods: Annotated[str, typer.Option(help="Names, separated by commas, or all.")] = ",".join(PAPER_METHODS),
    lrs: Annotated[str, typer.Option(help="Step sizes α, separated by commas.")] = "0.003,0.01,0.03,0.1,0.3,1,3,10",
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
        _out.print(f"Picture   {picture}\nPage      {page}\nRecords   {walks.path}", highlight=False)
    if stopped:
        _err.print(f"Stopped: {len(records)} of {len(tasks)} runs are done and kept; the same command continues.")
        raise typer.Exit(130)


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
        _err.print(str(error), style="red", markup=False, highlight=False)
        raise SystemExit(2) from None
