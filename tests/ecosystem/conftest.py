"""Clusters that tests start are known to these tests alone: Ray notes in a folder where there is one to join."""

import os
import shutil
import tempfile

_FOLDER = tempfile.mkdtemp(prefix="wagmf", dir="/tmp")  # sockets want short names
os.environ["RAY_TMPDIR"] = _FOLDER


def pytest_unconfigure():
    shutil.rmtree(_FOLDER, ignore_errors=True)
