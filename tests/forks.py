"""Processes of their own that cost next to nothing.

On Linux they are forked from a server that has imported all that takes seconds to import, but not the package: each
imports that for itself. Elsewhere the system's own libraries may not survive a fork, and every process is a fresh one.
"""

import contextlib
import gc
import importlib
import multiprocessing
import os
import runpy
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from unittest import mock

import numba
import pytest
from hypothesis import Phase, settings

TESTS = Path(__file__).parent
# Not the package, nor what imports it, nor Keras, which would have its back end for good: what else Keras imports.
# Torch imports its compiler, torch._dynamo, for the first optimizer that is made.
# Neither scikit-learn nor pandas, which start a thread.
HEAVY = ["jax", "jinja2", "matplotlib.pyplot", "mpmath", "numpy", "optax", "scipy.optimize", "scipy.stats", "torch",
         "torch._dynamo.testing"]  # fmt: skip
multiprocessing.set_forkserver_preload(["forks"])
if "WAGMF_FORKS" in os.environ:  # this is the server
    for name in HEAVY:
        importlib.import_module(name)
    numba.njit(lambda x: x)(1.0)  # for the first function it compiles, Numba imports the rest of itself


@dataclass(frozen=True)
class Ended:
    """The exit code of a process, and all that it printed."""

    code: int
    said: str


def unmeasured() -> dict[str, str]:
    """The environment for a process that is no part of this run of pytest, nor of its coverage."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("COV", "PYTEST_"))}


@contextlib.contextmanager
def untraced():
    """Without the look that coverage takes at every call and line, for what is compiled, of which it would see nothing.

    Compilers that are written in Python, as torch's and Numba's are, take almost twice as long under it.
    """
    trace = sys.gettrace()
    sys.settrace(None)
    try:
        yield
    finally:
        sys.settrace(trace)


@dataclass(frozen=True)
class Running:
    """A process that has been started, what it calls, and the file of what it prints."""

    process: multiprocessing.process.BaseProcess
    call: str
    said: IO[str]

    def wait(self, limit: float) -> Ended:
        """Until it has ended, or the test fails after so many seconds."""
        self.process.join(limit)
        if self.process.exitcode is None:
            pytest.fail(f"{self.call} took longer than {limit} s:\n{self.said.read()[-4000:]}")
        return Ended(self.process.exitcode, self.said.read())


@contextlib.contextmanager
def started(target: Callable, *arguments, fresh: bool = False, **environment: str) -> Iterator[Running]:
    """Call ``target`` in a process of its own, a ``fresh`` one if need be, with these variables of the environment."""
    fresh = fresh or sys.platform != "linux"
    # A fork has one thread only, whatever the others held; and it takes no more than to import NumPy to start some.
    single = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    special = environment if fresh else {"PYTHONPATH": str(TESTS), "WAGMF_FORKS": "1"}
    with tempfile.NamedTemporaryFile("r") as said:
        context = multiprocessing.get_context("spawn" if fresh else "forkserver")
        process = context.Process(target=_run, args=(said.name, environment, target, arguments))
        with mock.patch.dict(os.environ, unmeasured() | single | special, clear=True):
            process.start()
        try:
            yield Running(process, f"{target.__name__}{arguments}", said)
        finally:
            process.kill()
            process.join()


def run(target: Callable, *arguments, fresh: bool = False, limit: float = 300, **environment: str) -> Ended:
    """The same, up to its end."""
    with started(target, *arguments, fresh=fresh, **environment) as running:
        return running.wait(limit)


def _run(said: str, environment: dict[str, str], target: Callable, arguments: tuple) -> None:
    with open(said, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ.pop("WAGMF_FORKS", None)
    os.environ |= environment
    numba.config.reload_config()
    gc.freeze()  # what was imported is no garbage, and need not be searched for some
    target(*arguments)


def program(text: str, folder: Path = TESTS.parent) -> None:
    """For ``run``: what ``python -c`` does, from the root of the project or from another folder."""
    os.chdir(folder)
    exec(text, {"__name__": "__main__"})


def script(path: Path, *arguments: str) -> None:
    """For ``run``: what ``python`` does with a script, from the root of the project."""
    os.chdir(TESTS.parent)
    sys.argv = [str(path), *arguments]
    sys.path[0] = str(path.parent)
    runpy.run_path(str(path), run_name="__main__")


def module(name: str, *arguments: str) -> None:
    """For ``run``: what ``python -m`` does, from the root of the project."""
    os.chdir(TESTS.parent)
    sys.argv[1:] = arguments
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def tests_on(folder: Path, options: list[str]) -> None:
    """For ``run``: pytest on the copy of the package in ``folder``, and on no other."""
    os.chdir(TESTS.parent)
    os.environ |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(folder)}
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(folder))
    # A failure is all that is asked for: neither a smaller one, nor to be remembered against the package itself.
    settings.register_profile("trial", phases=[Phase.explicit, Phase.generate], database=None)
    settings.load_profile("trial")
    code = pytest.main(options)
    tested = getattr(sys.modules.get("wagmf"), "__file__", "nothing")
    if not Path(tested).is_relative_to(folder):
        print(f"tested {tested}, not the copy in {folder}")
        code = pytest.ExitCode.INTERNAL_ERROR
    sys.exit(code)
