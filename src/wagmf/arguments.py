"""Bad values are refused where they enter, by name and value, with what would be right."""

import difflib
import math
from collections.abc import Iterable
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

__all__ = ["Refused", "array", "flag", "integer", "one_of", "real", "refuse"]


class Refused(ValueError):
    """A value that was refused by name; everything :func:`refuse` raises.

    >>> issubclass(Refused, ValueError)
    True
    """


def refuse(what: str, value: Any, right: str) -> NoReturn:
    """Raise the error every room raises: what was wrong, its value, what would be right.

    >>> refuse("learning rate", -1.0, "lr must be a finite number >= 0")
    Traceback (most recent call last):
    wagmf.arguments.Refused: Invalid learning rate: -1.0 (lr must be a finite number >= 0)
    """
    raise Refused(f"Invalid {what}: {value!r} ({right})")


def real(
    name: str,
    value: Any,
    *,
    least: float | None = None,
    above: float | None = None,
    below: float | None = None,
    most: float | None = None,
    infinite: bool = False,
    what: str | None = None,
) -> float:
    """Return ``value`` as a float, or refuse it by name unless it lies where it should.

    >>> real("beta1", 0.9, least=0, below=1)
    0.9
    >>> real("beta1", 1.5, least=0, below=1)
    Traceback (most recent call last):
    wagmf.arguments.Refused: Invalid beta1: 1.5 (beta1 must be a finite number >= 0 and < 1)
    """
    bounds = ((">=", least), (">", above), ("<", below), ("<=", most))
    limits = [f"{sign} {limit:g}" for sign, limit in bounds if limit is not None]
    kind = "a number" if infinite else "a finite number"
    right = f"{name} must be {kind} {' and '.join(limits)}".rstrip()
    try:
        number = math.nan if isinstance(value, str | bytes) or "bool" in type(value).__name__ else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if (
        math.isnan(number)
        or (math.isinf(number) and not infinite)
        or (least is not None and number < least)
        or (above is not None and number <= above)
        or (below is not None and number >= below)
        or (most is not None and number > most)
    ):
        refuse(what or name, value, right)
    return number


def integer(name: str, value: Any, *, least: int, most: int | None = None) -> int:
    """Return ``value`` as an int no smaller than ``least``; ``1e7`` counts as an integer.

    >>> integer("T", 1e7, least=1)
    10000000
    >>> integer("T", 2.5, least=1)
    Traceback (most recent call last):
    wagmf.arguments.Refused: Invalid T: 2.5 (T must be an integer >= 1)
    """
    try:
        number = real(name, value, least=least, most=most)
        if number == int(number):
            return value if isinstance(value, int) else int(number)
    except ValueError:
        pass
    refuse(name, value, f"{name} must be an integer >= {least}" + (f" and <= {most:,}" if most else ""))


def flag(name: str, value: Any) -> bool:
    """Return ``value`` if it is True or False, and refuse everything else: 1, "no" and None included.

    >>> flag("maximize", "no")
    Traceback (most recent call last):
    wagmf.arguments.Refused: Invalid maximize: 'no' (maximize must be True or False)
    """
    if not isinstance(value, bool):
        refuse(name, value, f"{name} must be True or False")
    return value


def array(name: str, value: Any, *, infinite: bool = False, finite: bool = True) -> NDArray[np.float64]:
    """Return a float64 copy of ``value``, or refuse it by name unless it holds numbers.

    They must be finite; ``infinite=True`` allows infinities, ``finite=False`` leaves it to the caller to look.

    >>> array("x0", ["1"])
    Traceback (most recent call last):
    wagmf.arguments.Refused: Invalid x0: ['1'] (x0 must be a number or an array of numbers)
    """
    try:
        numbers = np.array(value)
        if numbers.dtype.kind not in "iuf":
            raise TypeError
        numbers = numbers.astype(np.float64)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        refuse(name, value, f"{name} must be a number or an array of numbers")
    if finite and not np.all(~np.isnan(numbers) if infinite else np.isfinite(numbers)):
        refuse(name, value, f"{name} must hold {'numbers, no NaN' if infinite else 'finite numbers'}")
    return numbers


def one_of(name: str, value: Any, choices: Iterable[str]) -> str:
    """Return ``value`` if it is one of ``choices``; else refuse it and suggest the nearest.

    >>> one_of("method", "wadda", ["wada", "adam"])
    Traceback (most recent call last):
    wagmf.arguments.Refused: Invalid method: 'wadda' (did you mean 'wada'? choose from wada, adam)
    """
    known = list(choices)
    if isinstance(value, str) and value in known:
        return value
    near = difflib.get_close_matches(str(value).lower(), known, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    refuse(name, value, f"{hint}choose from {', '.join(known)}")
