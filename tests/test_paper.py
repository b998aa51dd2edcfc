"""What the paper prints: the shape of its table, and some of its numbers, read off it by eye."""

import pytest

from wagmf.lab.paper import BASELINES, CLAIMS, OURS, PAIRS, PANELS, Printed
from wagmf.methods import PAPER_METHODS

BY_NAME = {panel.name: panel for panel in PANELS}


def p_value(panel, ours, baseline):
    return BY_NAME[panel].p[PAIRS.index((ours, baseline))]


def test_the_columns_are_the_papers():
    assert {*BASELINES, *OURS} == set(PAPER_METHODS)
    assert len(PAIRS) == len(set(PAIRS)) == 9
    assert PAIRS[:4] == (("wada", "adam"), ("wada_v3", "adam"), ("wada_v4", "adam"), ("wada", "amsgrad"))
    assert PAIRS[-1] == ("wada_v4", "adamnc")


def test_the_rows_are_the_papers():
    assert " ".join(BY_NAME) == "2a 2b 2c 3a 3b 3c 4a 4b 4c 5a 5b 5c 5d 6a 6b 6c 6d"
    assert all(len(panel.p) == 9 and all(0 <= p <= 1 for p in panel.p) for panel in PANELS)
    assert len({(panel.experiment, panel.metric) for panel in PANELS}) == 17


@pytest.mark.parametrize(
    ("panels", "model", "metric"),
    [
        ("2a 2b 2c", "softmax", "train_loss"),
        ("3a 3b 3c", "mlp", "train_loss"),
        ("4a 4b 4c", "mlp", "test_accuracy"),
        ("5a 5c", "cnn", "train_loss"),
        ("5b 5d", "cnn", "test_accuracy"),
        ("6a 6c", "resnet20", "train_loss"),
        ("6b 6d", "resnet20", "test_accuracy"),
    ],
)
def test_panels_show_what_their_captions_say(panels, model, metric):
    shown = [BY_NAME[name] for name in panels.split()]
    data = ("mnist", "cifar10", "cifar100")[-len(shown) :]
    assert [panel.experiment for panel in shown] == [f"{model} on {name}" for name in data]
    assert {panel.metric for panel in shown} == {metric}


@pytest.mark.parametrize(
    ("panel", "ours", "baseline", "p"),
    [
        ("2a", "wada", "adam", 6.79e-8),
        ("2a", "wada_v3", "amsgrad", 0.137),
        ("2b", "wada", "amsgrad", 0.0956),
        ("3b", "wada_v3", "adamnc", 0.158),
        ("4a", "wada", "amsgrad", 0.0),
        ("4c", "wada", "adam", 8.09e-29),
        ("5c", "wada", "adamnc", 0.965),
        ("5c", "wada_v3", "adamnc", 0.646),
        ("6a", "wada_v4", "amsgrad", 0.0969),
        ("6d", "wada_v4", "adamnc", 3.98e-17),
    ],
)
def test_cells_are_where_they_stand_in_print(panel, ours, baseline, p):
    assert p_value(panel, ours, baseline) == p


def test_as_many_are_significant_as_in_print():
    """18 are printed grey, and one black that should be."""
    small = {panel.name: sum(p < 0.05 for p in panel.p) for panel in PANELS}
    assert sum(small.values()) == 153 - 18 - 1
    assert {name for name, count in small.items() if count < 9} == {
        "2a",
        "2b",
        "3a",
        "3b",
        "3c",
        "5c",
        "5d",
        "6a",
        "6b",
    }
    assert (small["2a"], small["3a"], small["3b"]) == (6, 5, 4)


# Of every row of the paper's source, computed there.
SUMS = {
    "2a": (40.18, -51),
    "2b": (34.98, -67),
    "2c": (20.63, -73),
    "3a": (31.22, -14),
    "3b": (33.27, -27),
    "3c": (36.95, -75),
    "4a": (21.65, -67),
    "4b": (41.99, -151),
    "4c": (30.69, -201),
    "5a": (44.04, -58),
    "5b": (32.72, -141),
    "5c": (46.7, -64),
    "5d": (29.74, -127),
    "6a": (50.85, -89),
    "6b": (40.18, -105),
    "6c": (23.66, -149),
    "6d": (40.99, -135),
}


def test_no_digit_was_mistyped():
    """Sums of every row's mantissas and exponents: a number changed later, or moved to another row, would be seen."""
    texts = {panel.name: [f"{p:.2e}".split("e") for p in panel.p] for panel in PANELS}
    sums = {name: (round(sum(float(m) for m, _ in row), 2), sum(int(e) for _, e in row)) for name, row in texts.items()}
    assert sums == SUMS


def test_every_claim_is_a_sentence():
    assert list(CLAIMS) == [f"C{k}" for k in range(1, 14)]
    assert all(text[0].isupper() and text.endswith(".") and len(text) > 30 for text in CLAIMS.values())
    assert len(set(CLAIMS.values())) == 13


def test_a_panel_is_cited_by_figure_and_letter():
    assert Printed(6, "d", "resnet20 on cifar100", "test_accuracy", (0.5,) * 9).name == "6d"
