"""Where runs are made: the device, and what records say of it all."""

import hashlib
import platform
from functools import cache
from importlib import metadata
from pathlib import Path

import torch

import wagmf
from wagmf.lab.sources import commit

__all__ = ["code_hash", "default_device", "environment"]


def default_device() -> str:
    """The GPU if there is one.

    >>> default_device() in ("cpu", "cuda")
    True
    """
    return "cuda" if torch.cuda.is_available() else "cpu"


@cache
def environment(device: str) -> dict[str, str]:
    """What runs are made with, as records keep it.

    >>> environment("cpu")["wagmf"] == wagmf.__version__
    True
    """
    told = {"wagmf": wagmf.__version__, "commit": commit(), "source": code_hash(), "python": platform.python_version()}
    told |= {name: metadata.version(name) for name in ("torch", "numpy", "numba")}
    hardware = torch.cuda.get_device_name(device) if device.startswith("cuda") else _processor()
    return told | {"system": platform.platform(), "device": hardware, "threads": str(torch.get_num_threads())}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def code_hash(package: Path = Path(wagmf.__file__).parent) -> str:
    """A hash of the code of this package, or of one that lies elsewhere: of another commit, say.

    >>> len(code_hash())
    16
    """
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(package.rglob("*.py")))).hexdigest()[:16]
