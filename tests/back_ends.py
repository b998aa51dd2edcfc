"""Keras on one of its back ends: what importing wagmf.keras brings along, the checks of test_keras.py, and walks.

    KERAS_BACKEND=jax python tests/back_ends.py FOLDER

Keras has one back end per process, and takes seconds to import: whatever tests ask of a back end, one process answers.
"""

import importlib
import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BACK_ENDS = ("tensorflow", "jax", "torch")
CHECKS = Path(__file__).with_name("test_keras.py")


@dataclass(frozen=True)
class Answer:
    """How the checks ended and what they said, the packages that importing brought along, and walks by their names."""

    code: int
    said: str
    imported: set[str]
    walks: Any


def mark(back_end: str):
    """Of tests that ask a back end: one worker runs them all."""
    return pytest.mark.xdist_group(f"keras-{back_end}")


def ask(back_end: str, folder: Path) -> Answer:
    """Run the process of a back end; ``folder`` is its own."""
    environment = {**os.environ, "KERAS_BACKEND": back_end, "KERAS_HOME": str(folder), "TF_CPP_MIN_LOG_LEVEL": "2"}
    command = [sys.executable, __file__, folder]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    said = result.stdout[-6000:] + result.stderr[-4000:]
    assert (folder / "walks.npz").exists(), said
    imported = set(json.loads((folder / "imported.json").read_text()))
    return Answer(result.returncode, said, imported, np.load(folder / "walks.npz"))


def main(folder: Path) -> int:
    if importlib.util.find_spec("triton"):
        importlib.import_module("triton")  # before TensorFlow, see conftest.py
    importlib.import_module("keras")
    before = set(sys.modules)
    importlib.import_module("wagmf.keras")
    (folder / "imported.json").write_text(json.dumps([*sys.modules.keys() - before]))
    options = ["-q", "-n", "0", "-p", "no:cacheprovider", "-o", "python_functions=check_*"]
    code = pytest.main([*options, str(CHECKS)])
    # After the checks, which tell TensorFlow of its devices before it uses any.
    front_ends = importlib.import_module("front_ends")
    np.savez(folder / "walks.npz", **front_ends.walks(f"keras {os.environ['KERAS_BACKEND']}"))
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
