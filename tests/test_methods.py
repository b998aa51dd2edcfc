"""The table of methods."""

import math

import pytest

from wagmf.methods import METHODS, PAPER_METHODS, markdown_table, method
from wagmf.weights import Linear

NAMES = [
    "wada",
    "wada_v3",
    "wada_v4",
    "adam",
    "amsgrad",
    "adamnc",
    "nosadam",
    "padam",
    "nadam",
    "adagrad",
    "sc_adagrad",
    "rmsprop",
    "rmsprop_nc",
    "sc_rmsprop",
    "signsgd",
    "momentum",
    "ogd",
]


def test_the_table_has_the_seventeen_methods():
    assert list(METHODS) == NAMES
    assert all(row.name == name for name, row in METHODS.items())
    assert set(PAPER_METHODS) < set(NAMES)


def test_no_two_rows_are_the_same_method():
    assert len({row.rule for row in METHODS.values()}) == len(NAMES)
    assert len({row.title for row in METHODS.values()}) == len(NAMES)


def test_step_sizes_are_constant_unless_the_definition_says_otherwise():
    own = {"adagrad": 0.5, "sc_adagrad": 1.0, "sc_rmsprop": 1.0}
    assert {name: row.rule.decay for name, row in METHODS.items() if row.rule.decay} == own


def test_the_wadas_differ_in_the_power_alone():
    rules = [METHODS[name].rule for name in ("wada", "wada_v3", "wada_v4")]
    assert [rule.p1 for rule in rules] == [2, 3, 4]
    assert all(rule.weights == Linear() and rule.p2 == 4 for rule in rules)
    assert method("padam").rule.p2 == 8
    assert method("ogd").rule.p2 == method("momentum").rule.p2 == math.inf


@pytest.mark.parametrize("row", METHODS.values(), ids=METHODS)
def test_every_row_is_told(row):
    assert row.summary.endswith(".")
    assert len(row.summary) < 110
    assert all((row.phi, row.psi, row.reference, row.title))
    assert f"| `{row.name}` |" in markdown_table()


@pytest.mark.parametrize("row", METHODS.values(), ids=METHODS)
def test_psi_is_what_the_rule_computes(row):
    powers = {1: ("g",), 2: ("g_i²",), 3: ("|g_i|³",), 4: ("g_i⁴",)}
    roots = {1: "", 2: "^(1/2)", 4: "^(1/4)", 8: "^(1/8)"}
    weights = {
        "equal": ("g_i",),
        "linear": ("i·",),
        "polynomial": ("i^-0.1·",),
        "exponential": ("β2^(",),
        "latest": ("g_t",),
    }
    if not row.rule.adapts:
        assert row.psi == "I"
        return
    assert any(power in row.psi for power in powers[row.rule.p1])
    assert roots[row.rule.p2] in row.psi
    assert ("^(1/" in row.psi) == (row.rule.p2 > 1)
    assert any(weight in row.psi for weight in weights[row.rule.weights.kind])
    assert ("max_" in row.psi) == row.rule.monotone
    assert ("α_t" in row.psi) == (row.rule.decay > 0)
    assert (row.phi == "g_t") == (row.rule.beta1 == 0)


def test_the_table_is_well_formed_markdown():
    columns = {line.replace(r"\|", "").count("|") for line in markdown_table().splitlines()}
    assert columns == {6}


@pytest.mark.parametrize(("name", "near"), [("wada-v3", "wada_v3"), ("Adam", "adam"), ("adamn", "adam")])
def test_an_unknown_method_is_refused_with_the_nearest(name, near):
    with pytest.raises(ValueError, match=f"Invalid method: '{name}'.*did you mean '{near}"):
        method(name)


def test_a_hopeless_name_gets_the_list():
    with pytest.raises(ValueError, match="choose from wada, wada_v3"):
        method("zzz")
    with pytest.raises(ValueError, match="Invalid method: None"):
        method(None)
