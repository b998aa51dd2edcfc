"""Files that are written whole or not at all, and archives: small files of JSON lines."""

import errno
import gzip
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["pack", "single", "unpack", "write_whole"]


def write_whole(path: Path, write: Callable[[Path], object]) -> Path:
    """Let ``write`` make a file beside ``path``, then move it there in one step: nobody ever sees half of it.

    >>> folder = Path(tempfile.mkdtemp())
    >>> write_whole(folder / "note.txt", lambda new: new.write_text("done")).read_text()
    'done'
    """
    target = path.resolve()  # a link goes on leading to its file
    if target.exists() and not target.is_file():
        raise OSError(errno.EINVAL, "it is there, and no ordinary file", str(path))
    new = None
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{path.stem}-", suffix=path.suffix)
        os.close(handle)
        new = Path(name)
        write(new)
        umask = os.umask(0)
        os.umask(umask)
        new.chmod(0o666 & ~umask)  # mkstemp makes it private; a figure is for whoever may read the folder
        new.replace(target)
        return path
    except OSError as error:  # which may name the new file, or none
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error
    finally:
        if new is not None:
            new.unlink(missing_ok=True)


def pack(lines: Iterable[Mapping[str, Any]], path: Path) -> Path:
    """Write an archive; the same lines, in whatever order, give the same bytes.

    >>> unpack(pack([{"b": 2, "a": 1}], Path(tempfile.mkdtemp()) / "made.jsonl.gz"))
    [{'a': 1, 'b': 2}]
    """
    texts = sorted(json.dumps(line, sort_keys=True, allow_nan=False, separators=(",", ":")) + "\n" for line in lines)
    packed = gzip.compress("".join(texts).encode(), compresslevel=9, mtime=0)
    return write_whole(path, lambda new: new.write_bytes(packed))


def unpack(path: Path) -> list[Any]:
    """The lines of an archive; OSError, EOFError, ValueError or zlib.error if it is none.

    >>> unpack(pack([], Path(tempfile.mkdtemp()) / "made.jsonl.gz"))
    []
    """
    return [json.loads(line) for line in gzip.decompress(path.read_bytes() or b"empty").decode().splitlines()]


def single(value: float) -> float:
    """The number in single precision, with as few digits as that takes.

    >>> single(1 / 3)
    0.33333334
    """
    return float(str(np.float32(value)))
