"""The picture of one word in several lines."""

import numpy as np

from transformer_lab.viewing.words import cosines, draw

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
