"""What a user's code is, apart from where it stands: runs of another version must not be taken for its own.

Compiled code is told, not text, so that comments, line numbers and the rest of a file make no difference. What it calls
is followed through the user's own files; installed packages are not looked into. What ``module:name`` means is looked
up here, too.
"""

import importlib
import inspect
import re
import site
import subprocess
import sys
import sysconfig
import types
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import wagmf
from wagmf.arguments import Refused, refuse

__all__ = ["commit", "first_line", "is_own", "look_here", "named", "told"]

_INSTALLED = (*site.getsitepackages(), site.getusersitepackages(), sysconfig.get_path("stdlib"))
_PLACE = re.compile(r" at 0x[0-9a-fA-F]+")  # in memory, which is another each time
_PLAIN = (int, float, complex, str, bytes, bool, tuple, frozenset, type(None))


def look_here() -> None:
    """Let modules of the working folder be imported, too, as a script that lies there could.

    >>> look_here()
    """
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))


def named(what: str, name: str, right: str) -> Any:
    """What can be called under ``module:name``; modules of the working folder are found, too.

    ``what`` it should be is named if it cannot be imported, and ``right``, if it is no such thing.

    >>> named("model", "torch.nn:Identity", "a module")()
    Identity()
    """
    where, _, attribute = name.partition(":")
    if not where or not attribute:
        refuse(what, name, right)
    look_here()
    try:
        found: Any = importlib.import_module(where)
        for part in attribute.split("."):
            found = getattr(found, part)
    except Exception as error:  # whatever the user's code may raise
        raise Refused(f"Invalid {what}: {name!r} (it cannot be imported: {first_line(error)})") from error
    return found if callable(found) else refuse(what, name, right)


def first_line(error: BaseException) -> str:
    """What an error says first, or its kind where it says nothing.

    >>> first_line(KeyError())
    'KeyError'
    """
    said = str(error).strip() or type(error).__name__
    return said.splitlines()[0].strip()[:300]


def told(*things: Any) -> list[str]:
    """All that is known of functions and classes without calling them, in a stable order.

    >>> told(lambda: 1) == told(lambda: 1) != told(lambda: 2)
    True
    """
    seen: dict[int, list[str]] = {}
    for thing in things:
        _tell(thing, seen)
    return [_PLACE.sub("", line) for lines in seen.values() for line in lines]


def _tell(thing: Any, seen: dict[int, list[str]]) -> None:
    if id(thing) in seen:
        return
    lines = seen.setdefault(id(thing), [])
    if isinstance(thing, partial):
        lines.append(repr((thing.args, sorted(thing.keywords.items()))))
        _tell(thing.func, seen)
    elif isinstance(thing, type):
        lines.append(thing.__qualname__)
        for name, value in sorted(vars(thing).items()):
            value = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
            if inspect.isfunction(value):
                _tell(value, seen)
            elif isinstance(value, _PLAIN) and not name.startswith("__"):
                lines.append(f"{name} = {value!r}")
        for base in thing.__bases__:
            if is_own(base):
                _tell(base, seen)
    elif inspect.isfunction(thing):
        thing = inspect.unwrap(thing)
        lines += _code(thing.__code__)
        lines.append(repr((thing.__defaults__, thing.__kwdefaults__)))
        for name, value in _referred(thing):
            if isinstance(value, _PLAIN):
                lines.append(f"{name} = {value!r}")
            elif callable(value) and is_own(value):
                _tell(value, seen)
            elif not callable(value) and not isinstance(value, types.ModuleType):
                lines.append(f"{name} = {value!r}")


def _code(code: types.CodeType) -> list[str]:
    """What a compiled function does, without the lines it stands in."""
    lines = [code.co_code.hex(), repr((code.co_names, code.co_varnames, code.co_freevars))]
    for constant in code.co_consts:
        lines += _code(constant) if isinstance(constant, types.CodeType) else [repr(constant)]
    return lines


def _referred(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """What a function has from outside: closures, globals, and what it takes from modules among them."""
    try:
        names = inspect.getclosurevars(function)
    except ValueError:  # a variable that has no value yet
        return
    for name, value in sorted({**names.globals, **names.nonlocals}.items()):
        yield name, value
        if isinstance(value, types.ModuleType):
            for each in function.__code__.co_names:
                found = getattr(value, each, None)
                if inspect.isfunction(found) or isinstance(found, type):
                    yield f"{name}.{each}", found


def is_own(thing: Any) -> bool:
    """Whether it is the user's, and not part of Python or of an installed package.

    >>> import json
    >>> is_own(json)
    False
    """
    try:
        return not inspect.getfile(thing).startswith(_INSTALLED)
    except (TypeError, OSError):  # built in; or typed in, as in a notebook
        return getattr(thing, "__module__", "builtins") == "__main__"


def commit() -> str:
    """The commit of this package's own code, marked where it was changed since; nothing if it is in no repository.

    >>> commit() == "" or len(commit().removesuffix("-dirty")) == 40
    True
    """
    here = Path(wagmf.__file__).parent
    git = ["git", "-C", str(here), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    try:
        tracked = subprocess.run(["git", "-C", str(here), "ls-files", "__init__.py"], capture_output=True, timeout=10)
        # A package that lies in somebody else's repository, in a virtual environment say, is not part of it.
        return subprocess.run(git, capture_output=True, text=True, timeout=10).stdout.strip() if tracked.stdout else ""
    except (OSError, subprocess.TimeoutExpired):
        return ""
