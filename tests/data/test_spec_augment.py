"""SpecAugment: how much it hides, and what its stripes follow from."""

import numpy as np
import pytest

from transformer_lab.data.spec_augment import SpecAugmentConfig, hide_stripes
from transformer_lab.errors import LabError

ONES = np.ones((100, 40), np.float32)


def test_stripes_are_whole_bands_and_frames_no_wider_than_their_limits():
    config = SpecAugmentConfig(1, 6, 1, 0.05)
    widths = []
    for draw in range(300):
        hidden = hide_stripes(ONES, draw, config) == 0
        bands, frames = hidden.all(axis=0), hidden.all(axis=1)
        np.testing.assert_array_equal(hidden, bands[None] | frames[:, None])
        for line in (bands, frames):  # one stripe each
            assert np.abs(np.diff(np.pad(line.astype(int), 1))).sum() in (0, 2)
        widths.append((bands.sum(), frames.sum()))
    widths = np.array(widths)
    assert widths.min() == 0 and tuple(widths.max(axis=0)) == (6, 5)
    assert abs(widths.mean(axis=0) - (3, 2.5)).max() < 0.4  # even from 0 to the limit


def test_the_same_draw_hides_the_same_and_the_input_stays():
    config = SpecAugmentConfig()
    first, again, other = (hide_stripes(ONES, draw, config) for draw in (7, 7, 8))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any() and (ONES == 1).all()
    nothing = hide_stripes(ONES, 7, SpecAugmentConfig(0, 27, 0, 0.05))
    np.testing.assert_array_equal(nothing, ONES)


def test_limits_wider_than_the_spectrum_are_its_size():
    small = np.ones((3, 2), np.float32)
    assert hide_stripes(small, 1, SpecAugmentConfig(5, 27, 5, 1.0)).shape == (3, 2)


@pytest.mark.parametrize(("name", "value"), [("time_share", 1.5), ("time_masks", -1)])
def test_impossible_settings_are_refused(name, value):
    with pytest.raises(LabError, match=f"augment.{name} = {value}"):
        SpecAugmentConfig(**{name: value})
