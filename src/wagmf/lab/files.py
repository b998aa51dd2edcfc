"""Files that are written whole or not at all."""

import errno
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
