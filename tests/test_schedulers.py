"""Every scheduler of torch: it sets what it sets for AdamW, the steps use it, and resuming is exact."""

import inspect
import io
from types import SimpleNamespace

import pytest
import torch
from torch.optim import AdamW, lr_scheduler, swa_utils

from wagmf.torch import WADA

STEPS, HALF = 12, 5  # a checkpoint after HALF of them lies between two turns of most schedules
LR = 0.1


def chained(optimizer):
    return lr_scheduler.ChainedScheduler(
        [lr_scheduler.LinearLR(optimizer, 0.5, total_iters=3), lr_scheduler.ExponentialLR(optimizer, 0.9)]
    )


def in_turn(optimizer):
    warm_up, rest = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4), lr_scheduler.CosineAnnealingLR(optimizer, 8)
    return lr_scheduler.SequentialLR(optimizer, [warm_up, rest], [4])


# What each is tried with. Momentum is cycled where they can cycle it, and left alone once.
SETTINGS = {
    "LambdaLR": [lambda o: lr_scheduler.LambdaLR(o, lambda t: 0.9**t)],
    "MultiplicativeLR": [lambda o: lr_scheduler.MultiplicativeLR(o, lambda t: 1 - 1 / (t + 3))],
    "StepLR": [lambda o: lr_scheduler.StepLR(o, 2, 0.5)],
    "MultiStepLR": [lambda o: lr_scheduler.MultiStepLR(o, [2, 7], 0.5)],
    "ConstantLR": [lambda o: lr_scheduler.ConstantLR(o, 0.25, total_iters=7)],
    "LinearLR": [lambda o: lr_scheduler.LinearLR(o, 0.1, total_iters=9)],
    "ExponentialLR": [lambda o: lr_scheduler.ExponentialLR(o, 0.8)],
    "PolynomialLR": [lambda o: lr_scheduler.PolynomialLR(o, 11, 2.0)],
    "CosineAnnealingLR": [lambda o: lr_scheduler.CosineAnnealingLR(o, STEPS)],
    "CosineAnnealingWarmRestarts": [lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 4)],
    "SequentialLR": [in_turn],
    "ChainedScheduler": [chained],
    "ReduceLROnPlateau": [lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1, factor=0.5)],
    "CyclicLR": [
        lambda o: lr_scheduler.CyclicLR(o, 0.01, LR, step_size_up=4),
        lambda o: lr_scheduler.CyclicLR(o, 0.01, LR, step_size_up=4, cycle_momentum=False),
    ],
    "OneCycleLR": [
        lambda o: lr_scheduler.OneCycleLR(o, LR, total_steps=STEPS + 1),
        lambda o: lr_scheduler.OneCycleLR(o, LR, total_steps=STEPS + 1, cycle_momentum=False),
    ],
    "SWALR": [lambda o: swa_utils.SWALR(o, 0.01, anneal_epochs=5)],
}
SCHEDULES = {f"{name} {k}": make for name, made in SETTINGS.items() for k, make in enumerate(made)}
CYCLING = {"CyclicLR 0", "OneCycleLR 0"}


def schedulers_of(*modules):
    """The schedulers that modules offer: what derives from the base class, but for that itself and private ones."""
    found = {name: thing for module in modules for name, thing in vars(module).items() if inspect.isclass(thing)}
    base = lr_scheduler.LRScheduler
    return {name for name, thing in found.items() if issubclass(thing, base) and name[0] != "_" and thing is not base}


def test_every_scheduler_has_settings():
    assert schedulers_of(lr_scheduler, swa_utils) == set(SETTINGS), "torch has others than before: add what it has"


def test_a_new_scheduler_would_be_seen():
    class NewLR(lr_scheduler.LRScheduler): ...

    assert schedulers_of(SimpleNamespace(NewLR=NewLR, _OldLR=NewLR, base=lr_scheduler.LRScheduler)) == {"NewLR"}


def problem():
    return torch.linspace(-1.0, 1.0, 6).requires_grad_()


def go_on(x, optimizer, scheduler, first, last):
    """Steps along gradients that depend on x and t; what the scheduler had set for each of them."""
    used = []
    for t in range(first, last):
        group = optimizer.param_groups[0]
        used.append((group["lr"], group["betas"][0] if "betas" in group else group["momentum"]))
        x.grad = torch.sin(3 * x.detach() + t)
        optimizer.step()
        if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
            scheduler.step(1.0 if t > 1 else 2.0)  # a loss that stops falling
        elif scheduler is not None:
            scheduler.step()
    return used


def trained(make, optimizer_of=WADA):
    x = problem()
    optimizer = optimizer_of([x], lr=LR)
    return x, go_on(x, optimizer, make(optimizer), 0, STEPS)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_they_set_what_they_set_for_adamw(schedule):
    ours, theirs = trained(SCHEDULES[schedule])[1], trained(SCHEDULES[schedule], AdamW)[1]
    assert ours == theirs
    assert len({lr for lr, _ in ours}) > 1, "a schedule that never changes lr shows nothing"
    assert (len({beta1 for _, beta1 in ours}) > 1) == (schedule in CYCLING)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_steps_use_what_they_set(schedule):
    """The same parameters, to the bit, as with the same numbers set by hand."""
    x, used = trained(SCHEDULES[schedule])
    by_hand, still = problem(), problem()
    optimizer = WADA([by_hand], lr=0.0)
    for t, (lr, beta1) in enumerate(used):
        optimizer.param_groups[0].update(lr=lr, momentum=beta1)
        go_on(by_hand, optimizer, None, t, t + 1)
    go_on(still, WADA([still], lr=LR), None, 0, STEPS)
    assert torch.equal(x, by_hand)
    assert not torch.equal(x, still)


def resumed(make, *, forget=False):
    """Half of the steps, a checkpoint that is loaded into new objects, and the other half."""
    x = problem()
    optimizer = WADA([x], lr=LR)
    scheduler = make(optimizer)
    go_on(x, optimizer, scheduler, 0, HALF)
    file = io.BytesIO()
    torch.save({"x": x.detach(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    if forget:
        saved["optimizer"]["state"] = {}
    x = saved["x"].requires_grad_()
    optimizer = WADA([x], lr=LR)
    scheduler = make(optimizer)
    optimizer.load_state_dict(saved["optimizer"])
    scheduler.load_state_dict(saved["scheduler"])
    go_on(x, optimizer, scheduler, HALF, STEPS)
    return x


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_resuming_is_exact_and_would_not_be_without_the_state(schedule):
    x, _ = trained(SCHEDULES[schedule])
    assert torch.equal(resumed(SCHEDULES[schedule]), x)
    assert not torch.equal(resumed(SCHEDULES[schedule], forget=True), x)


def test_another_beta1_is_another_rule_unless_a_scheduler_cycles_it():
    x = problem()
    saved = WADA([x], beta1=0.5).state_dict()
    with pytest.raises(ValueError, match=r"beta1 0\.5 there, 0\.9 here"):
        WADA([x]).load_state_dict(saved)
    cycled = WADA([x], beta1=0.5)
    lr_scheduler.OneCycleLR(cycled, LR, total_steps=STEPS)
    second = WADA([x])
    second.load_state_dict(cycled.state_dict())
    assert second.param_groups[0]["momentum"] == 0.95
