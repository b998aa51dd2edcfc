"""Imports what the tests need and what takes seconds, but not the package: see ``forks.py``."""

import importlib

import numba

# torch imports its compiler, torch._dynamo, when the first of its optimizers is made.
for name in ["hypothesis", "jax", "mpmath", "numpy", "pytest", "scipy.optimize", "torch", "torch._dynamo.testing"]:
    importlib.import_module(name)
numba.njit(lambda x: x)(1.0)  # for the first function it compiles, Numba imports the rest of itself
