"""Files that are written whole or not at all."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

__all__ = ["write_whole"]


def write_whole(path: Path, write: Callable[[Path], object]) -> Path:
    """Let ``write`` make a file beside ``path``, then move it there in one step: nobody ever sees half of it.

    >>> folder = Path(tempfile.mkdtemp())
    >>> write_whole(folder / "note.txt", lambda new: new.write_text("done")).read_text()
    'done'
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix)
    os.close(handle)
    new = Path(name)
    try:
        write(new)
        umask = os.umask(0)
        os.umask(umask)
        new.chmod(0o666 & ~umask)  # mkstemp makes it private; a figure is for whoever may read the folder
        return new.replace(path)
    finally:
        new.unlink(missing_ok=True)
