"""The house: which room may import which, what importing costs, and that every public name is documented."""

import ast
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import back_ends
import forks
import pytest

SRC = Path(importlib.import_module("wagmf").__file__).parent

# A room imports only from rooms above it; "wagmf" is the package itself, which offers the rooms above it by name.
ORDER = [
    "wagmf.arguments",
    "wagmf.weights",
    "wagmf.rule",
    "wagmf.methods",
    "wagmf.feasible",
    "wagmf.theory",
    "wagmf.online",
    "wagmf",
    "wagmf.torch.batch",
    "wagmf.torch.plain",
    "wagmf.torch.foreach",
    "wagmf.torch.triton",
    "wagmf.torch.cpu",
    "wagmf.torch.paths",
    "wagmf.torch.teams",
    "wagmf.torch.optimizer",
    "wagmf.torch.named",
    "wagmf.torch.groups",
    "wagmf.torch.watching",
    "wagmf.torch",
    "wagmf.optax.transform",
    "wagmf.optax.named",
    "wagmf.optax",
    "wagmf.keras.torch",
    "wagmf.keras.optimizer",
    "wagmf.keras.named",
    "wagmf.keras",
    "wagmf.lab",
    "wagmf.lab.files",
    "wagmf.lab.sources",
    "wagmf.lab.walks",
    "wagmf.lab.looks",
    "wagmf.lab.plots",
    "wagmf.lab.traces",
    "wagmf.lab.data",
    "wagmf.lab.spec",
    "wagmf.lab.stats",
    "wagmf.lab.noise",
    "wagmf.lab.batches",
    "wagmf.lab.launching",
    "wagmf.lab.convolutions",
    "wagmf.lab.layers",
    "wagmf.lab.trunks",
    "wagmf.lab.models",
    "wagmf.lab.plain",
    "wagmf.lab.modules",
    "wagmf.lab.engine",
    "wagmf.lab.environment",
    "wagmf.lab.planning",
    "wagmf.lab.checkpoints",
    "wagmf.lab.records",
    "wagmf.lab.sweep",
    "wagmf.lab.cluster",
    "wagmf.lab.tuning",
    "wagmf.lab.paper_runs",
    "wagmf.lab.live",
    "wagmf.lab.grids",
    "wagmf.lab.paper",
    "wagmf.lab.claims",
    "wagmf.lab.questions",
    "wagmf.lab.costs",
    "wagmf.lab.figures",
    "wagmf.lab.answers",
    "wagmf.lab.evidence",
    "wagmf.lab.anew",
    "wagmf.lab.retold",
    "wagmf.lab.report",
    "wagmf.lab.reproduction",
    "wagmf.lab.study",
    "wagmf.lab.compare",
    "wagmf.cli",
    "wagmf.__main__",
]
FRAMEWORKS = {"torch", "jax", "optax", "keras", "tensorflow", "ray"}
BESIDES = {"optax": {"jax"}}  # what a front end is written with, besides the framework whose name it carries
TRAINING = {
    f"wagmf.lab.{name}"
    for name in (
        "noise",
        "batches",
        "launching",
        "convolutions",
        "layers",
        "trunks",
        "models",
        "plain",
        "modules",
        "engine",
        "environment",
        "planning",
        "checkpoints",
        "sweep",
        "cluster",
        "live",
        "costs",
    )
}
PLOTTING = {"matplotlib", "plotly"}


def room_of(path: Path) -> str:
    parts = path.relative_to(SRC.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(source: str) -> set[str]:
    """Every module that the source imports, at the top or inside a function."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            base = str(node.module)
            submodules = {f"{base}.{alias.name}" for alias in node.names} & set(ORDER)
            found |= submodules or {base}
    return found


def frameworks_of(room: str) -> set[str]:
    """Those whose name the room carries, and what comes with them."""
    carried = FRAMEWORKS & ({*room.split("."), "torch"} if room in TRAINING else set(room.split(".")))
    return carried.union(*(BESIDES.get(name, set()) for name in carried))


def violations(room: str, source: str) -> list[str]:
    """What ``room`` imports that it may not."""
    wrong = []
    for name in imports_of(source):
        top = name.partition(".")[0]
        if top == "wagmf":
            inside = room == "wagmf" and ORDER.index(name) < ORDER.index("wagmf")
            if not inside and ORDER.index(name) >= ORDER.index(room):
                wrong.append(name)
        elif top in FRAMEWORKS - frameworks_of(room) or (top in PLOTTING and room != "wagmf.lab.plots"):
            wrong.append(name)
    return wrong


ROOMS = {room_of(path): path for path in sorted(SRC.rglob("*.py"))}


def test_every_room_is_in_the_order():
    assert set(ROOMS) == set(ORDER)


@pytest.mark.parametrize("room", ORDER)
def test_rooms_import_only_from_rooms_above(room):
    assert violations(room, ROOMS[room].read_text()) == []


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("wagmf.weights", "from wagmf.rule import Rule"),
        ("wagmf.rule", "from wagmf import online"),
        ("wagmf.theory", "def f():\n    import torch"),
        ("wagmf.online", "import matplotlib.pyplot as plt"),
        ("wagmf.optax.named", "import torch"),
        ("wagmf.lab.walks", "from wagmf.lab.plots import figure1_page"),
    ],
)
def test_a_wrong_import_would_be_seen(room, source):
    assert violations(room, source)


def modules_after(statement: str) -> set[str]:
    """The packages that a statement imports."""
    code = f"import sys; old = set(sys.modules); {statement}; print(*(set(sys.modules) - old))"
    command, environment = [sys.executable, "-c", code], forks.unmeasured()
    told = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    return {name.partition(".")[0] for name in told.split()}


def test_importing_wagmf_pulls_in_nothing_but_numpy():
    heavy = {"torch", "jax", "keras", "tensorflow", "matplotlib", "plotly", "numba", "typer", "scipy"}
    assert not heavy & modules_after("import wagmf")


def test_importing_a_front_end_pulls_in_no_other_framework():
    assert not {"torch", "tensorflow", "keras"} & modules_after("import wagmf.optax")
    assert not {"jax", "tensorflow", "keras"} & modules_after("import wagmf.torch")


@pytest.mark.parametrize("name", [pytest.param(name, marks=back_ends.mark(name)) for name in back_ends.BACK_ENDS])
def test_keras_is_imported_with_any_back_end(name, back_end):
    found = back_end(name).imported
    assert "wagmf.keras" in found
    assert not {"tensorflow", "jax", "torch"} & {module.partition(".")[0] for module in found}


def public_names():
    for room in ORDER:
        if room == "wagmf.lab":
            continue
        module = importlib.import_module(room)
        for name in module.__all__:
            yield pytest.param(module, name, id=f"{room}.{name}")


@pytest.mark.parametrize(("module", "name"), list(public_names()))
def test_every_public_name_has_a_docstring_with_an_example(module, name):
    thing = getattr(module, name)
    if not (inspect.isclass(thing) or inspect.isroutine(thing)):
        # A value cannot hold a docstring of its own: a string literal follows it, as documentation tools expect.
        if module.__name__ != "wagmf" and name != "app":
            assert f"\n{name}: " in inspect.getsource(module)
            assert '\n"""' in inspect.getsource(module).split(f"\n{name}: ")[1].split("\n\n")[0]
        return
    assert ">>>" in (inspect.getdoc(thing) or ""), "a docstring with a runnable example"


@pytest.mark.parametrize("room", ORDER)
def test_everything_public_is_listed(room):
    tree = ast.parse(ROOMS[room].read_text())
    listed = getattr(importlib.import_module(room), "__all__", [])
    defined = {n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef) and n.name[0] != "_"}
    assert defined <= set(listed)
