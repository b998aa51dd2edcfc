"""Random numbers by place: the same by both ways of computing them, and as random as numbers should look."""

import numpy as np
import pytest
import torch
from scipy import stats

from wagmf.lab import noise
from wagmf.lab.noise import Noise, bits, key, mix

SEEDS = torch.tensor([0, 1, 2, 7, 12345, 2**31 - 1])


@pytest.fixture
def by_tensors(monkeypatch):
    """The way of a GPU, on a CPU: what a compiler would trace."""
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)


def plain_bits(seed, step, stream, place):
    """One number, by Python's integers: two rounds of the mixer, written out."""

    def mixed(x):
        x ^= x >> 16
        x = x * 0x7FEB352D % 2**32
        x ^= x >> 15
        x = x * 0x846CA68B % 2**32
        return x ^ x >> 16

    first = mixed((seed * 0x9E3779B1 + stream * 0x85EBCA77 + 1) % 2**32)
    first = mixed((first + step * 0xC2B2AE3D) % 2**32)
    second = mixed(((first ^ 0x9E3779B1) + stream) % 2**32)
    return mixed((mixed(place ^ first) + second) % 2**32)


def test_the_mixer_is_the_published_one():
    """lowbias32 is a bijection of 32 bits; 0 goes to 0."""
    assert mix(0) == 0
    some = torch.arange(2**16, dtype=torch.int64) * 65_537 % 2**32
    assert len(set(mix(some).tolist())) == 2**16
    assert [mix(x) for x in some[:100].tolist()] == mix(some[:100]).tolist()
    assert int(mix(some).min()) >= 0
    assert int(mix(some).max()) < 2**32


@pytest.mark.parametrize("step", [0, 1, 2, 1000, 10**6, 2**31 - 1])
@pytest.mark.parametrize("stream", [0, 1, 2, 1001, 1003])
def test_both_ways_are_the_formula_to_the_bit(step, stream, monkeypatch):
    compiled = bits(SEEDS, torch.tensor(step), stream, 50)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    traced = bits(SEEDS, torch.tensor(step), stream, 50)
    assert compiled.dtype == traced.dtype == torch.int64
    assert torch.equal(compiled, traced)
    for s, seed in enumerate(SEEDS.tolist()):
        assert compiled[s].tolist() == [plain_bits(seed, step, stream, place) for place in range(50)]


def test_both_ways_agree_far_out(by_tensors):
    traced = bits(SEEDS, torch.tensor(77), 3, 200_000)
    numbers = np.empty((len(SEEDS), 200_000), np.uint32)
    first, second = (half.numpy().astype(np.uint32) for half in key(SEEDS, torch.tensor(77), 3))
    noise._fill(first, second, numbers)
    np.testing.assert_array_equal(traced.numpy(), numbers)


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5, 0.9, 1 / 3, 0.999, 0.0])
def test_masks_are_the_same_in_every_precision_and_way(rate, monkeypatch):
    some = Noise(SEEDS, torch.tensor(5))
    single = some.keep(1, (1, 7, 30), rate, torch.float32)
    double = some.keep(1, (1, 7, 30), rate, torch.float64)
    half = some.keep(1, (1, 7, 30), rate, torch.bfloat16)
    assert single.shape == (len(SEEDS), 1, 7, 30)
    assert torch.equal(single, double.float())
    assert torch.equal(half, double.bfloat16())
    drawn = bits(SEEDS, torch.tensor(5), 1, 210).view_as(single)
    by_hand = torch.where(drawn < round((1 - rate) * 2**32), 1 / (1 - rate), 0.0)
    assert torch.equal(single, by_hand)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert torch.equal(some.keep(1, (1, 7, 30), rate, torch.float32), single)


def test_a_mask_keeps_the_mean_and_drops_its_share():
    count, rate = 200_000, 0.3
    kept = Noise(SEEDS, torch.tensor(9)).keep(2, (count,), rate, torch.float32)
    share = (kept == 0).double().mean(1)
    assert ((share - rate).abs() < 5 * (rate * (1 - rate) / count) ** 0.5).all()
    assert set(kept.unique().tolist()) == {0.0, float(np.float32(1 / 0.7))}


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 256])
def test_integers_below_a_limit_are_even(limit):
    drawn = Noise(SEEDS, torch.tensor(4)).below(1001, 20_000, limit)
    assert drawn.shape == (len(SEEDS), 20_000)
    for row in drawn.numpy():
        counts = np.bincount(row, minlength=limit)
        assert len(counts) == limit
        if limit > 1:
            assert stats.chisquare(counts).pvalue > 1e-6


def test_every_byte_is_even():
    drawn = bits(SEEDS, torch.tensor(123), 1, 100_000).numpy()
    for row in drawn:
        for shift in (0, 8, 16, 24):
            assert stats.chisquare(np.bincount(row >> shift & 255, minlength=256)).pvalue > 1e-6
    first = bits(torch.arange(100_000), torch.tensor(0), 1, 1).numpy()[:, 0]  # across seeds, at one place
    later = np.array([int(bits(SEEDS[:1], torch.tensor(step), 1, 1)) for step in range(5_000)])  # and across steps
    for numbers in (first, later):
        for shift in (0, 8, 16, 24):
            assert stats.chisquare(np.bincount(numbers >> shift & 255, minlength=256)).pvalue > 1e-6


def test_nothing_is_correlated():
    """Seeds, steps, streams and neighbours: six deviations of what n independent pairs would give, 1/√n, at most."""
    count = 50_000
    place = dict.fromkeys((0, 1, 2, 3, 100))
    rows = {
        (seed, step, stream): bits(torch.tensor([seed]), torch.tensor(step), stream, count)[0].double().numpy() / 2**32
        for seed in (*place, 2**31 - 1)
        for step, stream in ((0, 1), (1, 1), (2, 1), (0, 2), (1, 2), (1000, 1001), (0, 1002))
    }
    together = np.corrcoef(list(rows.values()))
    np.fill_diagonal(together, 0)
    assert np.abs(together).max() < 6 / count**0.5
    for row in rows.values():
        assert abs(row.mean() - 0.5) < 6 / (12 * count) ** 0.5
        for lag in (1, 2, 12, 128):
            assert abs(np.corrcoef(row[lag:], row[:-lag])[0, 1]) < 6 / count**0.5


def test_masks_of_other_seeds_steps_and_streams_are_others():
    def mask(seed, step, stream):
        return Noise(torch.tensor([seed]), torch.tensor(step)).keep(stream, (1000,), 0.5, torch.float32)

    places = [(seed, step, stream) for seed in range(5) for step in range(5) for stream in range(5)]
    masks = torch.cat([mask(*place) for place in places]) > 0
    assert len({tuple(row) for row in masks.tolist()}) == len(places)
    alike = (masks[:, None] == masks[None]).double().mean(2).fill_diagonal_(0.5)
    assert ((alike - 0.5).abs() < 6 * 0.5 / 1000**0.5).all()
    assert torch.equal(mask(3, 4, 2), mask(3, 4, 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_seed_draws_the_same_whoever_is_beside_it(dtype):
    step = torch.tensor(11)
    among, alone = Noise(torch.tensor([0, 1, 2]), step), Noise(torch.tensor([1]), step)
    assert torch.equal(among.keep(1, (4, 5), 0.4, dtype)[1], alone.keep(1, (4, 5), 0.4, dtype)[0])
    assert torch.equal(among.below(1001, 30, 9)[1], alone.below(1001, 30, 9)[0])
    assert torch.equal(bits(among.seeds, step, 3, 10)[1], bits(alone.seeds, step, 3, 10)[0])
    # A longer row begins as a shorter one.
    assert torch.equal(bits(alone.seeds, step, 3, 100)[:, :10], bits(alone.seeds, step, 3, 10))


def test_keys_of_numbers_are_those_of_tensors():
    for seed, step, stream in ((0, 0, 0), (5, 9, 1), (2**31 - 1, 10**6, 1003)):
        halves = key(torch.tensor([seed]), torch.tensor(step), stream)
        assert [int(half) for half in halves] == list(key(seed, step, stream))


def test_what_is_compiled_is_what_is_written(monkeypatch):
    """The compiled loops, interpreted."""
    written = {name: getattr(noise, name).py_func for name in ("_draw", "_fill", "_mask")}
    compiled = bits(SEEDS, torch.tensor(3), 1, 20), Noise(SEEDS, torch.tensor(3)).keep(1, (20,), 0.3, torch.float32)
    for name, function in written.items():
        monkeypatch.setattr(noise, name, function)
    with np.errstate(over="ignore"):
        interpreted = (
            bits(SEEDS, torch.tensor(3), 1, 20),
            Noise(SEEDS, torch.tensor(3)).keep(1, (20,), 0.3, torch.float32),
        )
    for one, other in zip(compiled, interpreted, strict=True):
        assert torch.equal(one, other)
