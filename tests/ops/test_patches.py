"""Patches against a convolution, positions of a grid against their formula and PyTorch's resize."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_lab.errors import LabError
from transformer_lab.ops.patches import grid_sinusoids, patch_grid, resize_positions, to_patches


def test_a_linear_map_of_patches_is_a_convolution():
    images = jax.random.normal(jax.random.key(0), (2, 6, 8, 3))
    kernel = jax.random.normal(jax.random.key(1), (3, 2, 3, 5))
    want = jax.lax.conv_general_dilated(
        images, kernel, (3, 2), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    found = to_patches(images, (3, 2)) @ kernel.reshape(-1, 5)
    np.testing.assert_allclose(found, want.reshape(2, 8, 5), atol=1e-5)


def test_an_image_that_patches_do_not_cover_is_one_line_that_names_both():
    with pytest.raises(LabError, match=r"30x32.*16x16.*32x32") as info:
        patch_grid((30, 32), (16, 16))
    assert "\n" not in str(info.value)


def test_a_wide_grid_resizes_as_it_is_and_keeps_the_class_token_and_constants():
    assert patch_grid((256, 144), (16, 16)) == (16, 9)
    table = jnp.concatenate([jnp.full((1, 4), 7.0), jnp.full((144, 4), -0.5)])
    found = resize_positions(table, (16, 9), (12, 14), extra=1)
    assert found.shape == (1 + 12 * 14, 4)
    np.testing.assert_array_equal(found[0], table[0])
    np.testing.assert_allclose(found[1:], -0.5, rtol=1e-6)
    assert resize_positions(table, (16, 9), (16, 9), extra=1) is table


@pytest.mark.parametrize(
    ("new", "want"),
    [
        (
            (3, 5),
            [
                [0.263028, 0.721084, 1.739584, 3.485584, 4.692696],
                [4.596, 4.256, 3.5, 2.204, 1.308],
                [8.928972, 7.790913, 5.260416, 0.922418, -2.076694],
            ],
        ),
        ((1, 2), [[4.34375, 1.917969]]),
    ],
)
def test_resizing_equals_pytorchs_bicubic_interpolation(new, want):
    table = jnp.array([1.0, 2, 4, 8, 5, -1])[:, None]
    found = resize_positions(table, (2, 3), new)
    np.testing.assert_allclose(found[:, 0], np.ravel(want), atol=1e-5)


def test_half_of_a_places_sinusoids_say_its_column_and_half_its_row():
    found = np.asarray(grid_sinusoids((2, 3), 8))
    for place in range(6):
        want = []
        for position in (place % 3, place // 3):
            angles = [position, position / 100]  # 10000^(-2i / 4)
            want += [*np.sin(angles), *np.cos(angles)]
        np.testing.assert_allclose(found[place], want, atol=1e-6)
