"""Augmentation: what it may do to an image, and that it depends on the draw alone."""

import numpy as np
import pytest
from PIL import Image

from transformer_lab.data.images.augment import OPERATIONS, AugmentConfig, augment, mix
from transformer_lab.errors import LabError

RNG = np.random.default_rng(0)
IMAGE = RNG.integers(1, 256, size=(5, 7, 3), dtype=np.uint8)
EVERYTHING = AugmentConfig(crop_padding=2, flip=0.5, operations=2, erase=0.5)


@pytest.mark.parametrize("channels", [1, 3])
def test_an_image_depends_on_its_draw_alone_and_the_original_stays(channels):
    image = IMAGE[..., :channels]
    before = image.copy()
    found = [augment(image, draw, EVERYTHING) for draw in range(40)]
    for draw, one in enumerate(found):
        assert one.shape == image.shape and one.dtype == np.uint8
        np.testing.assert_array_equal(one, augment(image, draw, EVERYTHING))
    np.testing.assert_array_equal(image, before)
    assert len({one.tobytes() for one in found}) > 30


def test_a_crop_is_a_window_of_the_padded_image_and_each_window_comes():
    padded = np.pad(IMAGE, ((1, 1), (1, 1), (0, 0)))
    windows = {padded[y : y + 5, x : x + 7].tobytes(): (y, x) for y in range(3) for x in range(3)}
    found = [windows[augment(IMAGE, d, AugmentConfig(crop_padding=1)).tobytes()] for d in range(99)]
    assert set(found) == set(windows.values())
    # Nothing is done by default.
    assert augment(IMAGE, 1, AugmentConfig()) is IMAGE


def test_a_flip_is_left_for_right_as_often_as_asked():
    flipped = sum(
        np.array_equal(augment(IMAGE, d, AugmentConfig(flip=0.3)), IMAGE[:, ::-1])
        for d in range(1000)
    )
    assert abs(flipped - 300) < 4 * (1000 * 0.3 * 0.7) ** 0.5
    np.testing.assert_array_equal(augment(IMAGE, 5, AugmentConfig(flip=1.0)), IMAGE[:, ::-1])


def test_erasing_puts_noise_in_one_rectangle():
    image = np.zeros((40, 40, 1), np.uint8)
    for draw in range(30):
        changed = augment(image, draw, AugmentConfig(erase=1.0))[..., 0] > 0
        rows, columns = np.flatnonzero(changed.any(1)), np.flatnonzero(changed.any(0))
        h, w = np.ptp(rows) + 1, np.ptp(columns) + 1
        assert changed[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].mean() > 0.9
        assert 0.015 < h * w / 1600 < 0.36


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_operations_of_no_strength_change_nothing(mode):
    picture = Image.fromarray(IMAGE[..., 0] if mode == "L" else IMAGE)
    for name in OPERATIONS.keys() - {"autocontrast", "equalize", "identity"}:
        same = np.asarray(OPERATIONS[name](picture, 0.0))
        np.testing.assert_array_equal(same, np.asarray(picture), err_msg=name)


def test_operations_do_what_they_are_called():
    apply = lambda name, s: np.asarray(OPERATIONS[name](Image.fromarray(IMAGE), s))  # noqa: E731
    np.testing.assert_array_equal(apply("solarize", 1.0), 255 - IMAGE)
    np.testing.assert_array_equal(apply("posterize", 1.0), IMAGE & 0xF0)
    dark = apply("brightness", -1.0).astype(int)
    assert np.abs(dark - 0.1 * IMAGE).max() <= 1
    shift = round(0.45 * 7)
    moved = apply("translate_x", shift / (0.45 * 7))
    np.testing.assert_array_equal(moved[:, :-shift], IMAGE[:, shift:])
    assert (moved[:, -shift:] == 0).all()
    grey = apply("color", -1 / 0.9)
    assert (grey[..., 0] == grey[..., 1]).all() and (grey[..., 1] == grey[..., 2]).all()
    stretched = apply("autocontrast", 1.0)
    assert (stretched.min((0, 1)) == 0).all() and (stretched.max((0, 1)) == 255).all()


LABELS = np.eye(4, dtype=np.float32)
DRAWS = np.arange(4) + 10


def test_mixup_gives_labels_the_shares_of_the_pixels():
    images = np.zeros((4, 3, 3, 4), np.uint8)
    images[np.arange(4), ..., np.arange(4)] = 255  # image i is 255 in channel i alone
    found, labels = mix(images, LABELS, DRAWS, AugmentConfig(mixup=1.0))
    np.testing.assert_allclose(found[:, 0, 0] / 255, labels, atol=0.5 / 255)
    np.testing.assert_allclose(labels.sum(axis=1), 1, rtol=1e-6)
    again, _ = mix(images, LABELS, DRAWS, AugmentConfig(mixup=1.0))
    np.testing.assert_array_equal(found, again)
    other, _ = mix(images, LABELS, DRAWS + 1, AugmentConfig(mixup=1.0))
    assert (other != found).any()


def test_cutmix_cuts_one_rectangle_and_labels_count_its_pixels():
    images = np.broadcast_to(np.arange(4)[:, None, None, None], (4, 6, 9, 1)).astype(np.uint8)
    areas = []
    for draw in range(30):
        found, labels = mix(images, LABELS, DRAWS * draw, AugmentConfig(cutmix=1.0))
        for row in range(4):
            shares = np.bincount(found[row].ravel(), minlength=4) / 54
            np.testing.assert_allclose(labels[row], shares, atol=1e-6)
            foreign = found[row, ..., 0] != row
            if foreign.any():
                box = np.ix_(foreign.any(1), foreign.any(0))
                assert foreign[box].all()
                areas.append(foreign.mean())
    assert 0.2 < np.mean(areas) < 0.5 and (images == np.arange(4)[:, None, None, None]).all()


def test_with_both_each_batch_takes_one_of_the_two():
    images = np.broadcast_to(200 * (np.arange(4) % 2)[:, None, None, None], (4, 8, 8, 1))
    images = images.astype(np.uint8)
    config = AugmentConfig(mixup=1.0, cutmix=1.0)
    blended = 0
    for draw in range(60):
        found, _ = mix(images, LABELS, DRAWS * draw, config)
        blended += bool(((found > 0) & (found < 200)).any())
    assert 8 < blended < 45  # a third of the batches pair equal images: they tell nothing


@pytest.mark.parametrize(
    "changes, words",
    [({"flip": 1.5}, "flip = 1.5"), ({"magnitude": 11.0}, "magnitude = 11.0"),
     ({"mixup": -1.0}, "mixup = -1.0"), ({"crop_padding": -1}, "crop_padding = -1")],
)  # fmt: skip
def test_impossible_settings_are_named(changes, words):
    with pytest.raises(LabError, match=f"config.augment.{words} is not within 0 and"):
        AugmentConfig(**changes)
