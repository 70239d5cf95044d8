"""Batches of images: the same from any number of processes, and their place is kept."""

import numpy as np
import pytest

from transformer_lab.data.images.augment import AugmentConfig
from transformer_lab.data.images.batches import (
    ImageBatchConfig,
    in_order,
    load,
    train_batches,
    train_plan,
)
from transformer_lab.data.images.sources import Images
from transformer_lab.errors import LabError

PIXELS = np.random.default_rng(0).integers(256, size=(10, 6, 5), dtype=np.uint8)
LABELS = np.arange(10) % 3
IMAGES = Images(PIXELS, LABELS, np.arange(10), 1)
EVERYTHING = AugmentConfig(crop_padding=1, flip=0.5, operations=1, erase=0.3, cutmix=1.0)


def some_batches(workers=0, seed=0, config=EVERYTHING):
    return train_batches(train_plan(IMAGES, 4, seed), IMAGES, config, 3, workers)


def take(batches, count):
    return [{k: v.tobytes() for k, v in next(batches).items()} for _ in range(count)]


def test_batches_are_the_same_from_threads_and_processes():
    with some_batches() as alone:
        expected = take(alone, 7)
    with some_batches(workers=2) as batches:
        assert take(batches, 4) == expected[:4]
        state = batches.get_state()
    assert state["next_index"] == 4
    with some_batches() as resumed:  # and with another number of processes
        resumed.restore(state)
        assert take(resumed, 3) == expected[4:]


def test_a_resumed_order_is_that_of_the_whole_run_and_epochs_differ():
    with some_batches() as whole, some_batches(seed=1) as other:
        expected = take(whole, 9)
        assert take(other, 9) != expected
    assert len({batch["image"] for batch in expected}) == 9
    for stop in (1, 3, 5):  # within an epoch of three batches, at its edge, beyond
        with some_batches() as first, some_batches() as second:
            found = take(first, stop)
            second.restore(first.get_state())
            assert found + take(second, 9 - stop) == expected


def test_without_augmentation_each_image_comes_once_an_epoch_as_it_is():
    with some_batches(config=AugmentConfig()) as batches:
        epoch = [next(batches) for _ in range(3)]
    assert sorted(int(batch["mask"].sum()) for batch in epoch) == [2, 4, 4]
    seen = {
        image.tobytes(): int(label)
        for batch in epoch
        for image, label, real in zip(*batch.values(), strict=True)
        if real
    }
    assert seen == {
        image.tobytes(): label for image, label in zip(PIXELS, LABELS.tolist(), strict=True)
    }


def test_in_order_each_image_comes_once_and_filler_is_masked():
    for rows in (1, 4, 10, 16):
        found = list(in_order(IMAGES, rows))
        assert {batch["image"].shape for batch in found} == {(rows, 6, 5, 1)}
        real = np.concatenate([batch["mask"] for batch in found])
        assert real.sum() == 10 and real[:10].all()
        labels = np.concatenate([batch["label"] for batch in found])
        np.testing.assert_array_equal(labels[real], LABELS)
        images = np.concatenate([batch["image"] for batch in found])
        np.testing.assert_array_equal(images[real][..., 0], PIXELS)
        assert (images[~real] == 0).all()


def test_filler_rows_are_mixed_with_nothing():
    ids = np.asarray([[3, 77], [-1, 5], [8, 9]])
    batch = load(ids, (1,), IMAGES, AugmentConfig(mixup=1.0), 3)
    assert batch["mask"].tolist() == [True, False, True]
    assert batch["label"].dtype == np.float32
    np.testing.assert_allclose(batch["label"].sum(axis=1), [1, 0, 1], rtol=1e-6)
    assert (batch["image"][1] == 0).all()
    assert (batch["label"][[0, 2]][:, 1] == 0).all()  # rows 3 and 8 are of the classes 0 and 2


def test_what_cannot_be_is_refused():
    with pytest.raises(LabError, match="batch.rows = 0"):
        ImageBatchConfig(rows=0)
    with pytest.raises(LabError, match="batch.rows = 6 is not divided by .* = 4"):
        ImageBatchConfig(rows=6).check(4)
    with pytest.raises(LabError, match="no image to train on"):
        train_plan(Images(PIXELS, LABELS, np.arange(0), 1, (6, 5)), 4, 0)
