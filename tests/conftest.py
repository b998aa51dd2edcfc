"""What all tests share: Keras's back ends, and the table of how far the front ends are from the oracle."""

import functools
import importlib.util
import os
import signal

import back_ends
import pytest

os.environ.setdefault("KERAS_BACKEND", "jax")  # the others have processes of their own
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=2")  # so that arrays can be sharded
os.environ.setdefault("OMP_NUM_THREADS", "1")  # a test for each core: threads would only wait for each other
os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}  # tests build their models, and download none
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell does for what runs behind it: Ctrl-C is tried here
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Keras imports TensorFlow to fit a model. If Triton is imported after it, as torch does for its first optimizer, their
# two LLVMs clash and end the process.
if importlib.util.find_spec("triton"):
    importlib.import_module("triton")


def pytest_configure(config):
    """Planted errors are tried without pytest-xdist, to whom this mark is known."""
    config.addinivalue_line("markers", "xdist_group(name): all of a group are run by one worker")


@pytest.fixture(scope="session")
def back_end(tmp_path_factory):
    """What the process of one of Keras's back ends has found, run when it is first asked for."""
    return functools.cache(lambda name: back_ends.ask(name, tmp_path_factory.mktemp(name)))


def pytest_terminal_summary(terminalreporter):
    """Print the worst difference of every method in every front end, as tests/test_parity.py has recorded them."""
    found = {}
    for report in terminalreporter.getreports("passed") + terminalreporter.getreports("failed"):
        for key, value in report.user_properties:
            if key == "difference":
                dtype, front_end, method, worst = value
                found.setdefault(dtype, {}).setdefault(method, {})[front_end] = worst
    for dtype, rows in sorted(found.items(), reverse=True):
        columns = sorted({front_end for row in rows.values() for front_end in row})
        terminalreporter.section(f"worst difference from the float64 oracle, {dtype}")
        terminalreporter.write_line(" " * 12 + "".join(f"{name:>17}" for name in columns))
        for method, row in rows.items():
            cells = "".join(f"{row[name]:17.1e}" if name in row else f"{'':17}" for name in columns)
            terminalreporter.write_line(f"{method:12}{cells}")
