"""On a GPU: the kernel as Triton compiles it, CUDA graphs, gradient scaling, streams; skipped where there is none."""

import math

import pytest
import torch
from tables import RULES

from wagmf.feasible import Box
from wagmf.torch import OGD, WADA, WAGMF, Adam, watch

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode", "ignore::DeprecationWarning:torch"),
]

F64, F32, BF16, F16 = torch.float64, torch.float32, torch.bfloat16, torch.float16
SHAPES = [(3,), (), (0,), (7, 5), (2048,), (40_000,), (4100, 3)]


def made(shapes=SHAPES, dtype=F32, device="cuda", seed=0):
    random = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=random).to(device, dtype).requires_grad_() for shape in shapes]


def give(params, t, layout=torch.empty_like):
    """Gradients that depend on t alone, in new memory."""
    for i, x in enumerate(params):
        at = torch.arange(x.numel(), dtype=F64).reshape(x.shape)
        x.grad = layout(x).copy_(torch.sin(at * (i + 1) + 3 * t))


def walk(optimizer, params, T=5, first=1):
    for t in range(first, first + T):
        give(params, t)
        optimizer.step()
    return params


def off(mine, right):
    """The largest difference, relative to the number or, where that is smaller, to a typical one of its tensor."""
    worst = 0.0
    for a, b in zip(mine, right, strict=True):
        if a.numel():
            a, b = a.detach().double().cpu(), b.detach().double().cpu()
            assert torch.equal(a.isnan(), b.isnan())
            size = torch.maximum(b.abs(), b.abs().mean() + 1e-30)
            worst = max(worst, ((a - b).abs() / size).nan_to_num(0.0).max().item())
    return worst


def both(rule, dtype=F32, state_dtype=None, **options):
    """The kernel and the plain path from the same start."""
    settings = {"lr": 0.01, "rule": rule, "state_dtype": state_dtype, **options}
    fused, plain = made(dtype=dtype), made(dtype=dtype)
    optimizer = WAGMF(fused, fused=True, **settings)
    walk(optimizer, fused)
    assert optimizer.paths == [f"group 0: {len(SHAPES)} parameters by fused"]
    walk(WAGMF(plain, fused=False, foreach=False, **settings), plain)
    return off(fused, plain)


@pytest.mark.parametrize("name", RULES)
def test_every_rule(name):
    assert both(RULES[name], F64) < 1e-12
    assert both(RULES[name], F32) < (1e-4 if name == "wada, all" else 1e-5)


@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("name", ["wada", "adam", "amsgrad", "signsgd"])
def test_low_precision(name, capturable):
    assert both(RULES[name], BF16, capturable=capturable) < 2**-6
    assert both(RULES[name], BF16, BF16, capturable=capturable) < 2**-4
    assert both(RULES[name], F16, capturable=capturable) < 2**-9


OPTIONS = {
    "L2": {"weight_decay": 0.1},
    "decoupled": {"weight_decay": 0.1, "decoupled_weight_decay": True},
    "maximize": {"maximize": True},
    "box": {"feasible": Box(-0.5, 0.25)},
    "no eps": {"eps": 0.0},
    "lr on the device": {"lr": torch.tensor(0.01, dtype=F64)},
}


@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("name", OPTIONS)
def test_every_option(name, capturable):
    given = {key: x.cuda() if isinstance(x, torch.Tensor) else x for key, x in OPTIONS[name].items()}
    assert both(RULES["wada, all"], F64, capturable=capturable, **given) < 1e-12


def test_it_is_what_fused_none_chooses_and_agrees_with_the_cpu():
    here, there = made(), made(device="cpu")
    optimizer = WADA(here, 0.01)
    walk(optimizer, here)
    assert optimizer.paths == [f"group 0: {len(SHAPES)} parameters by fused"]
    walk(WADA(there, 0.01), there)
    assert off(here, there) < 1e-5


def test_layouts_and_devices_in_one_optimizer():
    shapes = [(4, 3, 5, 5), (30, 17), (64,)]
    devices = ("cuda", "cuda", "cpu")
    runs = []
    for options in ({}, {"fused": False, "foreach": False}):
        params = [x.detach().to(device) for x, device in zip(made(shapes, F64), devices, strict=True)]
        params = [params[0].to(memory_format=torch.channels_last), params[1].t(), params[2]]
        params = [x.requires_grad_() for x in params]
        runs.append(walk(WADA(params, 0.01, **options), params))
    assert off(*runs) < 1e-12


def test_one_step_size_for_each_replica():
    lr = torch.tensor([0.1, 0.01, 0.0], device="cuda")
    runs = []
    for fused in (True, False):
        params = made([(3,), (3, 2, 5), (3, 5000)])
        runs.append(walk(WADA(params, lr, weight_decay=0.1, decoupled_weight_decay=True, fused=fused), params))
    assert off(*runs) < 1e-5


@pytest.mark.parametrize("capturable", [False, True])
def test_a_step_does_not_wait_for_the_device_and_makes_nothing_new(capturable):
    params = made()
    optimizer = WADA(params, 0.01, fused=True, capturable=capturable)
    walk(optimizer, params, T=2)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.set_sync_debug_mode("error")
    try:
        optimizer.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.cuda.max_memory_allocated() - before < 64 * 1024  # clocks and tables, but no tensor of the size of x


def test_the_host_may_be_many_steps_ahead():
    """The device sleeps, while new gradients come in new places; tables on their way must not be overwritten."""
    runs = []
    for fused in (True, False):
        params = made([(1000,), (33,)])
        optimizer, held = WADA(params, 0.01, fused=fused), []
        torch.cuda._sleep(200_000_000)
        for t in range(1, 101):
            for i, x in enumerate(params):
                x.grad = torch.full_like(x, math.sin(t + i))
            held = [*held[-2:], [x.grad for x in params]] if t % 3 else []
            optimizer.step()
        runs.append(params)
    assert off(*runs) < 1e-4


def test_streams():
    runs = []
    for fused in (True, False):
        params = made([(5000,)])
        optimizer = WADA(params, 0.01, fused=fused)
        for t in range(1, 5):
            give(params, t)
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                optimizer.step()
            torch.cuda.current_stream().wait_stream(stream)
        runs.append(params)
    assert off(*runs) < 1e-5


class Told(dict):
    def add_scalar(self, tag, value, step):
        assert isinstance(value, float)
        self.setdefault(step, {})[tag] = value


@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("path", [{"fused": True}, {"foreach": True}, {"fused": False, "foreach": False}], ids=str)
def test_watching_changes_nothing_and_waits_only_where_it_tells(path, capturable):
    runs, told = [], {}
    for device in ("cuda", "cuda", "cpu"):
        params = made(device=device)
        optimizer = WAGMF(params, 0.01, rule=RULES["amsgrad"], capturable=capturable and device == "cuda", **path)
        if runs:
            watch(optimizer, told.setdefault(device, Told()), every=2)
        walk(optimizer, params, T=4)
        give(params, 5)
        torch.cuda.set_sync_debug_mode("error" if path.get("fused") else "default")
        try:
            optimizer.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        runs.append(params)
    assert all(torch.equal(x, y) for x, y in zip(*runs[:2], strict=True))
    assert list(told["cuda"]) == [2, 4]
    for step, said in told["cuda"].items():
        assert said == pytest.approx(told["cpu"][step], rel=1e-3)


def test_a_captured_step_is_not_told_of():
    params, told = made(), Told()
    optimizer = WADA(params, 0.01, fused=True, capturable=True)
    walk(optimizer, params, T=2)
    watch(optimizer, told, every=1)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step()
    graph.replay()
    assert not told
    optimizer.step()
    assert list(told) == [4]


@pytest.mark.parametrize("name", ["adam", "wada", "wada, all"])
@pytest.mark.parametrize("fused", [True, False])
def test_a_cuda_graph_holds_the_step(name, fused):
    """Replayed steps, with steps outside the graph in between that have gradients elsewhere."""
    captured, eager = made(dtype=F64), made(dtype=F64)
    settings = {"lr": 0.01, "rule": RULES[name], "foreach": False}
    optimizer = WAGMF(captured, capturable=True, fused=fused, **settings)
    reference = WAGMF(eager, fused=False, **settings)
    walk(optimizer, captured, T=2)
    walk(reference, eager, T=2)
    give(captured, 7)
    own = [x.grad for x in captured]
    optimizer.step()
    give(eager, 7)
    reference.step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step()
    for k in range(6):
        graph.replay()
        give(eager, 7)
        reference.step()
        if k % 2:
            give(captured, 20 + k)
            optimizer.step()
            give(eager, 20 + k)
            reference.step()
        for x, g in zip(captured, own, strict=True):
            x.grad = g
    assert off(captured, eager) < 1e-11
    assert {optimizer.state[x]["step"].item() for x in captured} == {12.0}
    for x, y in zip(captured, eager, strict=True):
        assert float(optimizer.state[x]["window"]) == pytest.approx(float(reference.state[y]["window"]), rel=1e-13)


@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("fused", [None, False, True])
def test_grad_scaler_skips_a_step_with_infinities(fused, capturable):
    x = torch.ones(2, device="cuda", requires_grad=True)
    plain = torch.ones(2, requires_grad=True)
    optimizer, reference = WADA([x], 0.1, fused=fused, capturable=capturable), WADA([plain], 0.1)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
    for factor in (1.0, math.inf, 2.0):
        optimizer.zero_grad()
        scaler.scale((factor * x).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        if math.isfinite(factor):
            plain.grad = torch.full((2,), factor)
            reference.step()
    assert optimizer.state[x]["step"].item() == 2
    assert optimizer.state[x]["window"].item() == reference.state[plain]["window"].item()
    assert off([x], [plain]) < 1e-6


def test_scaled_steps_do_not_wait_for_the_device():
    params = made()
    optimizer, scaler = Adam(params, 0.1, fused=True, capturable=True), torch.amp.GradScaler("cuda")
    for t in (1, 2, 3):
        give(params, t)
        scaler.scale(torch.ones((), device="cuda"))
        torch.cuda.set_sync_debug_mode("error" if t == 3 else "default")
        try:
            scaler.step(optimizer)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        scaler.update()
    assert {optimizer.state[x]["step"].item() for x in params} == {3.0}


@pytest.mark.parametrize("capturable", [False, True])
def test_state_moves_between_devices(capturable):
    whole = made(dtype=F64, device="cpu")
    walk(WADA(whole, 0.01), whole, T=9)
    params, state, first = made(dtype=F64, device="cpu"), None, 1
    for device in ("cpu", "cuda", "cpu"):
        params = [x.detach().to(device).requires_grad_() for x in params]
        optimizer = WADA(params, 0.01, capturable=capturable and device == "cuda")
        if state is not None:
            state["param_groups"][0]["capturable"] = optimizer.param_groups[0]["capturable"]
            optimizer.load_state_dict(state)
        walk(optimizer, params, T=3, first=first)
        state, first = optimizer.state_dict(), first + 3
    assert off(params, whole) < 1e-12


def test_resuming_is_bit_exact():
    whole, halves = made(), made()
    walk(WADA(whole, 0.01), whole, T=10)
    first = WADA(halves, 0.01)
    walk(first, halves, T=5)
    second = WADA(halves, 0.01)
    second.load_state_dict(first.state_dict())
    walk(second, halves, T=5, first=6)
    assert all(map(torch.equal, whole, halves))


def test_stochastic_rounding_is_right_on_average():
    n, torch_seed = 1 << 20, torch.manual_seed(0)
    assert torch_seed is not None
    x = torch.ones(n, dtype=BF16, device="cuda", requires_grad=True)
    x.grad = torch.full((n,), -1.0, dtype=BF16, device="cuda")
    OGD([x], 2.0**-9, stochastic_rounding=True, fused=True).step()
    assert set(x.tolist()) == {1.0, 1 + 2.0**-7}
    up = (x > 1).double()
    assert abs(up.mean().item() - 0.25) < 5 * math.sqrt(0.25 * 0.75 / n)
    for lag in (1, 2, 4, 32, 1024, 2048, 4096):  # neighbours, threads, warps and programs are rounded independently
        together = (up[:-lag] * up[lag:]).mean().item()
        assert abs(together - 1 / 16) < 5 * math.sqrt(1 / 16 * 15 / 16 / n) * 2


def test_compiled_steps_do_not_recompile():
    import torch._dynamo

    torch._dynamo.reset()
    params, eager = made([(30,), (7, 5)]), made([(30,), (7, 5)])
    optimizer, reference = WADA(params, torch.tensor(0.1, device="cuda"), capturable=True), WADA(eager, 0.1)
    walk(optimizer, params, T=1)
    walk(reference, eager, T=1)
    compiled = torch.compile(optimizer.step)
    for t in range(2, 6):
        give(params, t)
        with torch._dynamo.config.patch(error_on_recompile=t > 2):
            compiled()
        walk(reference, eager, T=1, first=t)
    assert off(params, eager) < 1e-5
