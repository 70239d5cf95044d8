"""Pixels as levels and texts, the blind guess, and what a sheet shows where."""

import io

import numpy as np
import pytest
from PIL import Image

from transformer_lab.data.images.pixels import blind_bits, sheet, to_levels, to_texts
from transformer_lab.errors import LabError


def test_levels_are_equal_steps_of_the_means_of_squares_and_read_as_a_text():
    every = np.arange(256, dtype=np.uint8).reshape(1, 16, 16)
    np.testing.assert_array_equal(to_levels(every, 1, 16).ravel(), np.arange(256) // 16)
    np.testing.assert_array_equal(to_levels(every, 1, 2).ravel(), np.arange(256) >= 128)
    four = np.array([[[255, 255, 0, 31], [255, 255, 16, 17], [64, 64, 0, 63], [64, 60, 0, 1]]])
    found = to_levels(four.astype(np.uint8), 2, 16)
    # Means 255, 16, 63, 16: a mean is not rounded before its step is found.
    np.testing.assert_array_equal(found, [[[15, 1], [3, 1]]])
    with pytest.raises(LabError, match="task.shrink = 3 does not divide images of 4 x 4"):
        to_levels(four.astype(np.uint8), 3, 16)
    # A text reads an image from left to right and then downwards.
    levels = np.array([[[0, 9, 10], [15, 1, 35]]], np.uint8)
    assert to_texts(levels) == ["09af1z"]


def test_the_blind_guess_is_the_frequency_of_a_level_at_its_place():
    train = np.array([[[0, 1]], [[0, 1]], [[0, 0]]], np.uint8)
    held = np.array([[[0, 1]], [[1, 1]]], np.uint8)
    # With one more of each: 4 of 5 and 1 of 5 at the first place, 3 of 5 at the second.
    want = -np.log2([4 / 5, 3 / 5, 1 / 5, 3 / 5]).mean()
    assert blind_bits(train, held, 2) == pytest.approx(want)


def test_a_sheet_shows_levels_as_grey_and_what_is_missing_as_white():
    rows = np.array([[[[0.0, np.nan]], [[3.0, 5.0]]]])  # a row of two images of 1 x 2
    image = np.asarray(Image.open(io.BytesIO(sheet(rows, 6))))
    assert image.shape == (4 + 8, 2 * (4 + 16))
    row = image[8]
    assert [row[i] for i in (0, 6, 14, 22, 26, 36)] == [255, 0, 255, 255, 153, 255]
    assert (image[:4] == 255).all()
