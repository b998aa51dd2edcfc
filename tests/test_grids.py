"""What a grid of step sizes leaves open: by any metric, and also where something else has chosen."""

import math

import numpy as np
import pytest

from wagmf.lab.grids import beyond_the_grid, grid_slack

STEP = math.log(1.5)


def parabola(bottom, curved, places=(-1, 0, 1)):
    """Losses at step sizes that are a factor of 1.5 apart; the one in the middle is 1."""
    return {1.5**k: curved * ((k - bottom) * STEP) ** 2 + 3.0 for k in places}


@pytest.mark.parametrize("bottom", np.linspace(-0.5, 0.5, 11))
def test_the_bottom_of_a_parabola_is_never_lower_than_the_slack_says(bottom):
    losses = parabola(bottom, 2.0)
    slack = grid_slack(losses, 1.0)
    assert slack == pytest.approx(2.0 * (STEP / 2) ** 2)
    assert losses[1.0] - 3.0 <= slack * (1 + 1e-9)


@pytest.mark.parametrize("bottom", [-4.0, -1.5, -0.6, 0.6, 1.5, 4.0])
def test_where_something_else_chose_it_is_how_far_losses_fall_in_half_a_step_or_fell(bottom):
    losses = parabola(bottom, 2.0)
    towards = 1.0 if bottom > 0 else -1.0
    near = 2.0 * ((0.5 * towards - bottom) * STEP) ** 2 + 3.0
    most = max(losses[1.0] - near, losses[1.0] - min(losses.values()), 2.0 * (STEP / 2) ** 2)
    assert grid_slack(losses, 1.0) == pytest.approx(most)
    assert grid_slack(losses | {100.0: 1.0}, 1.0) == pytest.approx(max(most, losses[1.0] - 1.0)), "a valley elsewhere"


def test_on_top_of_a_hill_losses_fall_to_both_sides():
    assert grid_slack(parabola(0.0, -2.0), 1.0) == pytest.approx(2.0 * STEP**2), "as they did"


@pytest.mark.parametrize("lost", [math.inf, math.nan])
def test_beside_one_that_diverged_nothing_is_known(lost):
    assert grid_slack(parabola(0.0, 2.0) | {1.5: lost}, 1.0) == math.inf


@pytest.mark.parametrize(
    ("metric", "better", "low", "high"),
    [("train_loss", "b", 0.01 - 0.002, 0.03 + 0.015), ("test_accuracy", "a", 0.01 - 0.015, 0.03 + 0.002)],
)
def test_either_method_may_come_to_be_better_by_its_slack(metric, better, low, high):
    row = {"experiment": "e", "a": "wada", "b": "adam", "better": better, "difference": 0.02, "low": 0.01, "high": 0.03}
    row |= {"diverged_a": 0, "diverged_b": 0}
    slacks = {("e", metric, "wada"): 0.002, ("e", metric, "adam"): 0.015}
    wide = beyond_the_grid(row, metric, slacks)
    assert (wide["low"], wide["high"]) == pytest.approx((low, high))
    assert wide["better"] == better, "neither slack makes good what is behind"
    behind = "wada" if better == "b" else "adam"
    assert beyond_the_grid(row, metric, slacks | {("e", metric, behind): 0.02})["better"] == ""
    ahead = "adam" if better == "b" else "wada"
    assert beyond_the_grid(row, metric, slacks | {("e", metric, ahead): 0.5})["better"] == better
    other = {"train_loss": "test_accuracy", "test_accuracy": "train_loss"}[metric]
    assert beyond_the_grid(row, other, slacks)["low"] == row["low"], "what is known of one metric is not of another"
