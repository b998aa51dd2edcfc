"""What a stack is shown: every seed its own order, its images moved and mirrored as an independent program does it."""

import numpy as np
import pytest
import torch
from twins import F32, F64, made_data, varied

from wagmf.arguments import Refused
from wagmf.lab import batches as room
from wagmf.lab.batches import Augmentation, Batches, order
from wagmf.lab.data import Dataset

SEEDS = [3, 8, 0]
BOTH = Augmentation(shift=0.25, flip=True)


def shown(augmentation, shape=(2, 5, 7), batch=16, dtype=F64, seeds=SEEDS, steps=7):
    """All that some steps show, across the border of an epoch."""
    data = made_data(shape)
    batches, seen = Batches(data, list(seeds), batch, augmentation, dtype=dtype), []
    for step in range(steps):
        if step % batches.steps == 0:
            batches.begin(1 + step // batches.steps)
        seen.append(batches.take(torch.tensor(step)))
    return data, batches, seen


def test_an_order_is_a_permutation_of_its_own_for_each_seed_and_epoch():
    orders = {(seed, epoch): order(seed, epoch, 50).tolist() for seed in range(4) for epoch in range(1, 5)}
    assert all(sorted(each) == list(range(50)) for each in orders.values())
    assert len(set(map(tuple, orders.values()))) == len(orders)
    assert order(2, 3, 50).tolist() == orders[2, 3]


def test_first_places_are_even():
    """Over many seeds and epochs each example is first as often as another."""
    first = np.bincount([order(seed, epoch, 8)[0] for seed in range(100) for epoch in range(1, 21)], minlength=8)
    assert np.all(np.abs(first - 250) < 5 * (250 * 7 / 8) ** 0.5)


def test_batches_follow_the_order_and_leave_out_the_rest():
    data, batches, seen = shown(None)
    normal = data.normalised().x_train
    assert (batches.steps, batches.batch) == (3, 16)
    for step, (x, y) in enumerate(seen):
        epoch, i = 1 + step // 3, step % 3
        for s, seed in enumerate(SEEDS):
            chosen = order(seed, epoch, 52)[16 * i : 16 * (i + 1)]
            np.testing.assert_array_equal(x[s].numpy(), normal[chosen].astype(np.float64))
            np.testing.assert_array_equal(y[s].numpy(), data.y_train[chosen])


@pytest.mark.parametrize("dtype", [F64, F32, torch.bfloat16])
@pytest.mark.parametrize("augmentation", [
    BOTH, Augmentation(shift=0.25), Augmentation(flip=True), Augmentation(shift=0.45), Augmentation(0.1, True)
], ids=str)  # fmt: skip
def test_images_are_moved_and_mirrored_as_by_padding_and_slicing(augmentation, dtype):
    """In float32 by the compiled loop, otherwise by the gather that a GPU has."""
    data, _, seen = shown(augmentation, dtype=dtype)
    normal, changed = data.normalised().x_train, 0
    for step, (x, y) in enumerate(seen):
        for s, seed in enumerate(SEEDS):
            chosen = order(seed, 1 + step // 3, 52)[16 * (step % 3) : 16 * (step % 3 + 1)]
            right = varied(normal[chosen], seed, step, augmentation.shift, augmentation.flip)
            right = torch.tensor(np.ascontiguousarray(right), dtype=dtype)
            assert torch.equal(x[s], right)
            assert y[s].tolist() == data.y_train[chosen].tolist()
            changed += not np.array_equal(right.double().numpy(), normal[chosen])
    # 0.1 of 5 or 7 pixels is none: then only mirrors change an image.
    assert (changed == 0) == (augmentation.shift == 0.1 and not augmentation.flip)


def test_one_image_by_hand():
    x = np.arange(6.0).reshape(1, 1, 2, 3).repeat(8, 0)
    data = Dataset("tiny", x, np.arange(8) % 2, x, np.arange(8) % 2)
    batches = Batches(data, [0], 8, Augmentation(shift=0.5, flip=True), dtype=F64)
    batches.begin(1)
    shown, _ = batches.take(torch.tensor(0))
    low, high = data.normalised().x_train.min(), data.normalised().x_train.max()
    back = (shown[0, :, 0].numpy() - low) / (high - low) * 5
    down, across, mirrored = (batches_noise(stream, limit) for stream, limit in ((1001, 3), (1002, 3), (1003, 2)))
    for image, row, column, flip in zip(back, down, across, mirrored, strict=True):
        rows = {0: [0, 0], 1: [0, 1], 2: [1, 1]}[row]
        columns = {0: [0, 0, 1], 1: [0, 1, 2], 2: [1, 2, 2]}[column]
        right = [[3 * r + c for c in (columns[::-1] if flip else columns)] for r in rows]
        np.testing.assert_allclose(image, right, atol=1e-6)
    assert len({(r, c, f) for r, c, f in zip(down, across, mirrored, strict=True)}) > 3


def batches_noise(stream, limit):
    return room.Noise(torch.tensor([0]), torch.tensor(0)).below(stream, 8, limit)[0].tolist()


def test_seeds_see_what_they_would_alone_and_steps_differ():
    _, _, among = shown(BOTH)
    _, _, alone = shown(BOTH, seeds=[8])
    for (x, y), (x_alone, y_alone) in zip(among, alone, strict=True):
        assert torch.equal(x[1], x_alone[0])
        assert torch.equal(y[1], y_alone[0])
        assert not torch.equal(x[0], x[1])
    assert not torch.equal(among[0][0], among[1][0])


def test_the_compiled_loop_is_what_is_written(monkeypatch):
    _, _, compiled = shown(BOTH, dtype=F32, steps=1)
    monkeypatch.setattr(room, "_vary", room._vary.py_func)
    _, _, interpreted = shown(BOTH, dtype=F32, steps=1)
    assert torch.equal(compiled[0][0], interpreted[0][0])


def test_test_data_are_normalised_by_the_training_set():
    data, batches, _ = shown(None, steps=0)
    mean, std = data.x_train.mean((0, 2, 3), keepdims=True), data.x_train.std((0, 2, 3), keepdims=True)
    np.testing.assert_allclose(batches.x_test.numpy(), (data.x_test - mean) / std, atol=1e-6)
    assert batches.y_test.tolist() == data.y_test.tolist()


def test_vectors_are_shown_as_they_are_but_cannot_be_varied():
    rows = np.arange(20.0).reshape(10, 2)
    data = Dataset("rows", rows, np.arange(10) % 2, rows, np.arange(10) % 2)
    batches = Batches(data, [0], 4)
    batches.begin(1)
    assert batches.take(torch.tensor(1))[0].shape == (1, 4, 2)
    assert Augmentation().reach((2,)) == (0, 0)
    assert not Augmentation()
    for augmentation in (Augmentation(shift=0.1), Augmentation(flip=True)):
        assert augmentation
        with pytest.raises(Refused, match=r"augmentation: \(2,\)"):
            Batches(data, [0], 4, augmentation)


def test_how_far_images_are_moved():
    assert Augmentation(shift=0.1).reach((3, 32, 40)) == (3, 4)
    assert Augmentation(flip=True).reach((3, 32, 32)) == (0, 0)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Augmentation(shift=1.0), ["shift", "1.0"]),
        (lambda: Augmentation(shift=-0.1), ["shift", "-0.1"]),
        (lambda: Augmentation(shift="a"), ["shift", "'a'"]),
        (lambda: Augmentation(flip=1), ["flip", "1"]),
        (lambda: Batches(made_data(), [0], batch=0), ["batch", "0"]),
        (lambda: Batches(made_data(), [0], batch=2.5), ["batch", "2.5"]),
    ],
)
def test_bad_values_are_refused_by_name_and_value(make, named):
    with pytest.raises(Refused) as refusal:
        make()
    assert all(word in str(refusal.value) for word in named), refusal.value
