"""The states of stacks that are being trained: in a folder, or wherever fsspec can write."""

import io
import uuid
from pathlib import Path
from typing import Any

import fsspec
import torch

from wagmf.arguments import Refused
from wagmf.lab.files import write_whole
from wagmf.lab.sources import first_line

__all__ = ["Checkpoints"]


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
        self._guarded(lambda: self._files.makedirs(str(self._root), exist_ok=True), "cannot be written")

    def save(self, name: str, state: Any) -> None:
        """Keep a state under a name, in place of what was kept under it."""
        why = "the checkpoint cannot be written"
        more = " (make room there and run the same command: what is recorded is kept)"
        self._guarded(lambda: self._write(name, state), why, more)

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
        for place in self._files.glob(f"{self._root}/.{name}-*"):
            self._files.rm_file(place)

    def names(self) -> set[str]:
        """What is kept."""
        return {Path(place).stem for place in self._files.glob(f"{self._root}/*.pt") if Path(place).name[0] != "."}

    def _place(self, name: str) -> str:
        return f"{self._root}/{name}.pt"

    def _write(self, name: str, state: Any) -> None:
        if self._local:
            write_whole(Path(self._place(name)), lambda new: torch.save(state, new))
            return
        file, new = io.BytesIO(), f"{self._root}/.{name}-{uuid.uuid4().hex}.pt"
        torch.save(state, file)
        self._files.pipe_file(new, file.getvalue())
        self._files.mv(new, self._place(name))

    def _guarded(self, act: Any, why: str, more: str = "") -> Any:
        """Say where something went wrong: the errors of a place far away may not."""
        try:
            return act()
        except (OSError, RuntimeError, ValueError, ImportError) as error:
            said = (isinstance(error, OSError) and error.strerror) or first_line(error)
            raise Refused(f"{self.where}: {why}: {said}{more}") from error
