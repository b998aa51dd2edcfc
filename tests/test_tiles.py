"""The sweep of the kernels' cuts: a bad one harms no other, and what layers share is chosen for all of them."""

import importlib.util
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from wagmf.lab import convolutions

PATH = Path(__file__).parent.parent / "benchmarks" / "tiles.py"
SCRIPT = runpy.run_path(str(PATH))
LAYERS, IN_USE, cuts = (SCRIPT[name] for name in ("LAYERS", "IN_USE", "cuts"))

BAD_AND_GOOD = f"""
import sys
sys.path.insert(0, {str(PATH.parent)!r})
import tiles
from wagmf.lab import convolutions
[layer] = [each for each in tiles.LAYERS if each.name == "forward-64-64"]
now = tiles.IN_USE[layer]
told = [tiles.tried(layer, now._replace(tiles=now.tiles._replace(block=block))) for block in (48, 16)]
lay = convolutions._laid
convolutions._laid = lambda *given: lay(*given) * (1 + (convolutions._CONVOLVE[64] != now.tiles))
told.append(tiles.tried(layer, now._replace(tiles=now.tiles._replace(block=32))))
convolutions._laid, plain = lay, tiles.convolve
def sums_off(*given, **options):
    images, sums = plain(*given, **options)
    return images, sums * (1 + (convolutions._CONVOLVE[64] != now.tiles))
tiles.convolve = sums_off
told.append(tiles.tried(layer, now._replace(tiles=now.tiles._replace(block=32))))
print(told)
assert "power of 2" in told[0] and told[1] == "" and told[3] == "1 away" and "away" in told[2]
assert convolutions._CONVOLVE[64] == now.tiles
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_a_cut_that_cannot_be_or_is_wrong_is_told_of_and_harms_no_other():
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    ended = subprocess.run([sys.executable, "-c", BAD_AND_GOOD], env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr[-3000:]


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.name)
def test_every_cut_may_be_compiled_and_the_one_in_use_is_among_them(layer):
    found = cuts(layer)
    assert IN_USE[layer] in found
    assert len(found) == len(set(found)) > 3
    for cut in found:
        cells = convolutions._cells(3, 1 + layer.widens, cut.tiles, layer.back)
        many = cells.rows if layer.kind == "weights" else cells.columns
        assert many % cut.tiles.together == 0


def test_the_layers_are_those_of_the_network():
    """Nineteen convolutions but the stem: each forwards, for its weights' gradient, and one of two ways back."""
    for kinds in (("forward",), ("weights",), ("inner", "outer")):
        assert sum(layer.times for layer in LAYERS if layer.kind in kinds) == 18


def test_layers_that_share_a_table_get_the_cut_that_is_best_for_all_of_them():
    forward, back = (next(each for each in LAYERS if each.name == name) for name in ("forward-16-16", "outer-16-16"))
    a, b = (128, 4, 3, 1, 2, 2, 4), (64, 4, 3, 1, 2, 2, 4)
    found = SCRIPT["tables"]({forward: {a: 10.0, b: 9.0}, back: {a: 10.0, b: 15.0}})
    assert found == {("_CONVOLVE", 16): (a, 6 * 10.0 + 3 * 10.0)}


def test_where_images_are_halved_cells_have_a_shape_of_their_own():
    """A cut of the table is the same to such a layer, whatever the shape of its cells; so any may be the best."""
    forward, wide, outer = (
        next(each for each in LAYERS if each.name == name) for name in ("forward-32-32", "forward-32-64", "outer-16-32")
    )
    now, best = (128, 4, 3, 1, 2, 4, 4), (128, 4, 3, 2, 2, 4, 4)
    took = {forward: {now: 9.0, best: 5.0}, wide: {now: 3.0}, outer: {(128, 4, 3, 1, 2, 2, 4): 2.0}}
    assert SCRIPT["tables"](took) == {("_CONVOLVE", 32): (best, 5 * 5.0 + 3.0 + 2.0)}
    assert SCRIPT["tables"]({}) == {}


def test_gradients_of_weights_have_one_number_of_splits():
    one, other = (next(each for each in LAYERS if each.name == name) for name in ("weights-16-16", "weights-32-32"))
    few, many = (32, 4, 3, 2, 2, 4, 4), (32, 4, 3, 2, 2, 4, 8)
    found = SCRIPT["tables"]({one: {few: 10.0, many: 5.0}, other: {few: 10.0, many: 20.0}})
    assert {cut[-1] for cut, _ in found.values()} == {4}  # 110 beside 130


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["--out", "/nowhere/x.json"], "no such folder"), (["--report", "no.json"], "no such file")],
)
def test_what_cannot_be_written_or_read_is_refused_first(arguments, words):
    ended = subprocess.run([sys.executable, str(PATH), *arguments], capture_output=True, text=True)
    assert ended.returncode == 2
    assert words in ended.stderr
