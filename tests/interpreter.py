"""Triton's interpreter, which runs kernels on the CPU: mended where it is wrong, and where it takes its time."""

import functools
from dataclasses import replace

import numpy as np
import torch


@functools.cache
def mend():
    """It cuts bfloat16 off, where the hardware and torch round to nearest; and half of its time may be saved."""
    from triton.language import bfloat16
    from triton.runtime.interpreter import InterpretedFunction, InterpreterBuilder, TensorHandle, interpreter_builder

    cut = InterpreterBuilder.cast_impl

    def cast(self, src, dst_type):
        if dst_type.scalar == bfloat16 and src.data.dtype == np.float32:
            src = TensorHandle(torch.from_numpy(np.array(src.data)).bfloat16().float().numpy(), src.dtype)
        return cut(self, src, dst_type)

    InterpreterBuilder.cast_impl = cast
    first, known = InterpretedFunction.__call__, set()

    def call(self, *args, **kwargs):
        """Our own functions find the triton.language that the kernel has patched; Triton's patch their own for good."""
        if not self.fn.__module__.startswith("triton.") or self.fn in known:
            return self.rewrite()(*args, **kwargs)
        known.add(self.fn)
        return first(self, *args, **kwargs)

    InterpretedFunction.__call__ = call
    # Sums and products of integers are computed once more in 64 bits: tensors of a few thousand numbers need them not.
    interpreter_builder.options = replace(interpreter_builder.options, sanitize_overflow=False)
