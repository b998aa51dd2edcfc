"""Bad values are refused where they enter, by name and value, with what would be right."""

import difflib
import math
from collections.abc import Iterable
from typing import Any, NoReturn

__all__ = ["integer", "one_of", "real", "refuse"]


def refuse(what: str, value: Any, right: str) -> NoReturn:
    """Raise the ValueError every room raises: what was wrong, its value, what would be right.

    >>> refuse("learning rate", -1.0, "lr must be a finite number >= 0")
    Traceback (most recent call last):
    ValueError: Invalid learning rate: -1.0 (lr must be a finite number >= 0)
    """
    raise ValueError(f"Invalid {what}: {value!r} ({right})")


def real(
    name: str,
    value: Any,
    *,
    least: float | None = None,
    above: float | None = None,
    below: float | None = None,
    infinite: bool = False,
    what: str | None = None,
) -> float:
    """Return ``value`` as a float, or refuse it by name unless it lies where it should.

    >>> real("beta1", 0.9, least=0, below=1)
    0.9
    >>> real("beta1", 1.5, least=0, below=1)
    Traceback (most recent call last):
    ValueError: Invalid beta1: 1.5 (beta1 must be a finite number >= 0 and < 1)
    """
    limits = [f"{sign} {limit:g}" for sign, limit in ((">=", least), (">", above), ("<", below)) if limit is not None]
    kind = "a number" if infinite else "a finite number"
    right = f"{name} must be {kind} {' and '.join(limits)}".rstrip()
    try:
        number = math.nan if isinstance(value, bool | str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if (
        math.isnan(number)
        or (math.isinf(number) and not infinite)
        or (least is not None and number < least)
        or (above is not None and number <= above)
        or (below is not None and number >= below)
    ):
        refuse(what or name, value, right)
    return number


def integer(name: str, value: Any, *, least: int) -> int:
    """Return ``value`` as an int no smaller than ``least``; ``1e7`` counts as an integer.

    >>> integer("T", 1e7, least=1)
    10000000
    >>> integer("T", 2.5, least=1)
    Traceback (most recent call last):
    ValueError: Invalid T: 2.5 (T must be an integer >= 1)
    """
    try:
        number = real(name, value, least=least)
        if number == int(number):
            return value if isinstance(value, int) else int(number)
    except ValueError:
        pass
    refuse(name, value, f"{name} must be an integer >= {least}")


def one_of(name: str, value: Any, choices: Iterable[str]) -> str:
    """Return ``value`` if it is one of ``choices``; else refuse it and suggest the nearest.

    >>> one_of("method", "wadda", ["wada", "adam"])
    Traceback (most recent call last):
    ValueError: Invalid method: 'wadda' (did you mean 'wada'? choose from wada, adam)
    """
    known = list(choices)
    if isinstance(value, str) and value in known:
        return value
    near = difflib.get_close_matches(str(value).lower(), known, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    refuse(name, value, f"{hint}choose from {', '.join(known)}")
