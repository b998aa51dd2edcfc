"""Searches that are done again: what methods have come to in them. For pages see test_reproduction.py."""

import math

from wagmf.lab.anew import Best, bests
from wagmf.lab.records import Run


def made(lr, seed, loss, share, **more):
    curves = {"train_loss": [9.0, loss], "test_accuracy": [0.0, share]}
    return Run(f"{lr} {seed}", "mine, fine", {"method": "wada", "lr": lr, "seed": seed}, None, curves, **more)


def test_a_step_size_that_seeds_have_not_tried_is_not_the_best():
    whole = [made(0.1, 0, 0.5, 0.8), made(0.1, 1, 0.7, 0.7), made(0.2, 0, 0.8, 0.9), made(0.2, 1, 0.8, 0.9)]
    assert bests([*whole, made(0.3, 1, 0.1, 0.99)], 2) == {"wada": Best(0.1, 0.6, 0.75, 0.2, 0.8, 0.9, 2)}
    assert bests([made(0.3, 1, 0.1, 0.99)], 2) == {}


def test_what_has_no_value_is_no_number():
    assert math.isnan(made(0.1, 0, None, 0.8).end("train_loss"))
    assert made(0.1, 0, None, 0.8).end("test_accuracy") == 0.8
