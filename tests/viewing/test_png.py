"""Pictures for papers: what is drawn where."""

import io

import numpy as np
import pytest
from PIL import Image

from tests.viewing.test_page import random_map
from transformer_lab.viewing import png as png_module
from transformer_lab.viewing.png import class_token_maps, png
from transformer_lab.viewing.words import cosines, draw


def pictured():
    """A class token and 2 x 3 patches."""
    picture = np.zeros((20, 30, 3), np.uint8)
    return random_map(rows=7, columns=7, picture=picture, grid=(2, 3))


def heard():
    picture = np.zeros((4, 10, 3), np.uint8)
    return random_map(rows=3, columns=5, picture=picture, seconds=0.02)


def test_the_class_tokens_maps_are_its_weights_their_mean_and_the_rollout():
    found = pictured()
    maps = class_token_maps(found, 1)
    assert maps.shape == (3 + 2, 2, 3)
    assert maps[2][1, 0] == found.weights[1, 2, 0, 1 + 3]
    np.testing.assert_allclose(maps[3], found.weights[1].mean(axis=0)[0, 1:].reshape(2, 3))
    mixed = [(layer.mean(axis=0) + np.eye(7)) / 2 for layer in found.weights]
    np.testing.assert_allclose(maps[4], (mixed[1] @ mixed[0])[0, 1:].reshape(2, 3), rtol=1e-5)


def test_without_a_token_of_its_own_the_maps_are_means_over_the_patches():
    found = random_map(rows=6, columns=6, grid=(2, 3))
    want = found.weights[0, 1].mean(axis=0).reshape(2, 3)
    np.testing.assert_allclose(class_token_maps(found, 0)[1], want, rtol=1e-5)


def test_patches_lie_over_their_part_of_the_picture():
    figure = png_module.Figure()
    ax = figure.add_subplot()
    png_module.lay_over(ax, pictured(), np.zeros((2, 3), np.float32))
    assert [image.get_extent() for image in ax.images] == [[0, 30, 20, 0]] * 2


@pytest.mark.filterwarnings("error:constrained_layout")
@pytest.mark.parametrize("choice", [(None, None), (1, None), (None, 2), (1, 2)])
@pytest.mark.parametrize("made", [random_map, pictured, heard])
def test_a_png_is_written_for_one_head_or_many(made, choice):
    found = made()
    found.rows[1] = "$a^$"  # no formula: as one it could not be set
    image = Image.open(io.BytesIO(png(found, *choice)))
    assert image.format == "PNG" and len(np.unique(np.asarray(image))) > 2


VECTORS = np.array([[3.0, 4.0], [4.0, -3.0], [6.0, 8.0]])


def test_cosines_of_vectors_at_known_angles():
    np.testing.assert_allclose(cosines(VECTORS), [[1, 0, 1], [0, 1, 0], [1, 0, 1]], atol=1e-12)


def test_distances_in_the_plane_are_those_of_the_vectors():
    """Two dimensions lose nothing; the static vector is the last cosine."""
    figure = draw(VECTORS, np.array([0.0, 5.0]), ["a $x", "b", "c"], "w")
    left, right = figure.axes[0], figure.axes[1]
    np.testing.assert_allclose(left.images[0].get_array()[-1], [0.8, -0.6, 0.8, 1], atol=1e-12)
    points = right.collections[0].get_offsets()
    apart = lambda x: np.linalg.norm(x[:, None] - x[None], axis=-1)  # noqa: E731
    np.testing.assert_allclose(apart(points), apart(VECTORS), atol=1e-9)
