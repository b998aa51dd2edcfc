"""The states of stacks that are being trained: in a folder, or wherever fsspec can write."""

import errno
import io
import tempfile
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import fsspec
import torch

from wagmf.arguments import Refused
from wagmf.lab.files import write_whole
from wagmf.lab.sources import first_line

__all__ = ["Checkpoints"]

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Checkpoints:
    """Files ``NAME.pt`` at a place, a folder or a URL such as ``s3://bucket/folder``, each whole or not there.

    >>> import tempfile
    >>> kept = Checkpoints(tempfile.mkdtemp())
    >>> kept.save("a", {"epoch": 3})
    >>> kept.names(), kept.load("a", "cpu")
    ({'a'}, {'epoch': 3})
    >>> kept.drop("a")
    >>> kept.load("a", "cpu") is None
    True
    """

    def __init__(self, where: str | Path) -> None:
        self.where = str(where)
        self._files, root = self._guarded(lambda: fsspec.core.url_to_fs(self.where), "is no place for checkpoints")
        self._local = "file" in self._files.protocol
        self._root = Path(root).resolve() if self._local else root
        self.where = str(self._root) if self._local else self.where  # as another process finds it, wherever it is
        self._guarded(self._try_out, "is no place for checkpoints")

    def _try_out(self) -> None:
        """Write, read and remove something: now, and not after hours of work."""
        self._files.makedirs(str(self._root), exist_ok=True)
        if self._local:
            with tempfile.TemporaryFile(dir=self._root) as file:  # of which nothing is left, even if we are killed now
                file.write(b"tried")
                file.flush()
            return
        place = f"{self._root}/.tried-{uuid.uuid4().hex}"
        self._files.pipe_file(place, b"tried")
        if self._files.cat_file(place) != b"tried":
            raise OSError("what is written there is not what can be read")
        self._files.rm_file(place)

    def save(self, name: str, state: Any) -> None:
        """Keep a state under a name, in place of what was kept under it."""
        self._guarded(lambda: self._write(name, state), "the checkpoint cannot be written", "run the same command")

    def load(self, name: str, device: str) -> Any:
        """What is kept under a name, None if nothing is; any error if it is damaged."""
        place = self._place(name)
        if not self._files.exists(place):
            return None
        with self._files.open(place, "rb") as file:
            return torch.load(file, weights_only=True, map_location=device)

    def drop(self, name: str) -> None:
        """Keep nothing under a name, nor half a checkpoint of a process that was killed."""
        self.clear(name)
        if self._files.exists(self._place(name)):
            self._files.rm_file(self._place(name))

    def clear(self, name: str) -> None:
        """Remove half a checkpoint of a process that was killed."""
        for found in self._there():
            if found.startswith(f".{name}-"):
                self._files.rm_file(f"{self._root}/{found}")

    def names(self) -> set[str]:
        """What is kept."""
        return {found.removesuffix(".pt") for found in self._there() if found.endswith(".pt") and found[0] != "."}

    def leave(self) -> None:
        """Give the place up, if nothing is kept there."""
        if not self._there():
            with suppress(OSError):  # where there are no folders, there is none to remove; or somebody has just come
                self._files.rmdir(str(self._root))

    def _there(self) -> list[str]:
        """The names of all files; not by a pattern, since a place may have brackets and stars in its own name."""
        self._files.invalidate_cache()
        try:
            return [Path(found).name for found in self._files.ls(str(self._root), detail=False)]
        except FileNotFoundError:  # another process has given the place up
            return []

    def _place(self, name: str) -> str:
        return f"{self._root}/{name}.pt"

    def _write(self, name: str, state: Any) -> None:
        self._files.makedirs(str(self._root), exist_ok=True)  # another process may have given the place up
        if self._local:
            write_whole(Path(self._place(name)), lambda new: torch.save(state, new))
            return
        file, new = io.BytesIO(), f"{self._root}/.{name}-{uuid.uuid4().hex}.pt"
        torch.save(state, file)
        self._files.pipe_file(new, file.getvalue())
        self._files.mv(new, self._place(name))

    def _guarded(self, act: Any, why: str, then: str = "") -> Any:
        """Say where something went wrong: the errors of a place far away may not, and may be of any kind."""
        try:
            return act()
        except Exception as error:
            said = (isinstance(error, OSError) and error.strerror) or first_line(error)
            full = not isinstance(error, OSError) or error.errno in _FULL  # torch has errors of its own for that
            mended = "make room there" if full else "mend that"
            advice = f" ({mended} and {then}: what is recorded is kept)" if then else ""
            raise Refused(f"{self.where}: {why}: {said}{advice}") from error
