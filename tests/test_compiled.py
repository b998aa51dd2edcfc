"""What networks launch on a GPU, compiled for one: the interpreter runs much that the compiler refuses.

No GPU is needed for that, but time: `make kernels` runs these tests.
"""

import functools
import importlib.util
import os

import pytest
import torch

from wagmf.lab import launching, trunks
from wagmf.lab.convolutions import convolve, correlate
from wagmf.lab.engine import _replicas
from wagmf.lab.layers import blend
from wagmf.lab.models import zoo
from wagmf.lab.noise import Noise

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed"),
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="TRITON_INTERPRET is set"),
]


class Driver:
    """In the place of a GPU's, since there is none."""

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0

    def get_current_target(self):
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)


class Compiled:
    """A kernel that is compiled where it would be launched."""

    def __init__(self, kernel):
        self.kernel, self.texts = kernel, []

    def __getitem__(self, grid):
        return functools.partial(self.compile, grid=grid)

    def compile(self, *arguments, **options):
        self.texts.append(self.kernel.warmup(*arguments, **options).asm["ptx"])


@pytest.fixture
def launched(tmp_path, monkeypatch):
    """The kernels that would have been launched, by name, compiled for an H100 or H200."""
    from triton.runtime import driver

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(driver, "_active", Driver())
    found, compiled = {}, launching._compiled
    monkeypatch.setattr(
        launching, "_compiled", lambda kernel: found.setdefault(kernel.__name__, Compiled(compiled(kernel)))
    )
    return found


def test_the_kernels_compile_into_wide_loads_and_tensor_core_products(launched):
    """Narrow loads would be several times slower."""
    x = torch.zeros(2, 2, 32, 32, 16, dtype=torch.bfloat16)
    convolve(x, torch.zeros(2, 16, 16, 3, 3), back=(32, 32), skip=x, gate=x, beside=x, summed=True)
    correlate(x, x, 3)
    blend(x, x, torch.zeros(2, 3, 16), relu=True)
    texts = {name: text for name, kernel in launched.items() for text in kernel.texts}
    assert list(texts) == ["_lay", "_convolve", "_correlate", "_gather", "_blend"]
    for name, text in texts.items():
        if name in ("_convolve", "_correlate"):
            assert "wgmma.mma_async" in text
            assert "cp.async.cg" in text  # 16 bytes at once
        if name in ("_convolve", "_correlate", "_blend"):
            assert "ld.global.b16" not in text
            assert "st.global.b16" not in text


@pytest.mark.parametrize("kind", ["cnn", "resnet20"])
def test_all_that_a_network_launches_compiles(kind, launched, monkeypatch):
    """In training, of images as they are in CIFAR-10; evaluation launches the same without sums, as the CNN does."""
    monkeypatch.setattr(trunks, "fit", lambda x: True)
    model = zoo(kind, (3, 32, 32), 10)
    p, b = _replicas(model, [0], 2, torch.device("cpu"), torch.float32)
    x = torch.zeros(1, 2, 3, 32, 32, dtype=torch.bfloat16)
    logits = model.logits(p, b, x, Noise(torch.tensor([0]), torch.tensor(0)))
    torch.autograd.grad(logits.sum(), list(p.values()))
    between = {"cnn": {"_pool", "_unpool"}, "resnet20": {"_settle", "_blend", "_spread", "_settle_back"}}[kind]
    assert {*launched} == {"_lay", "_convolve", "_correlate", "_gather"} | between
