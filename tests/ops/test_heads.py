"""What heads do, on weights whose numbers are known."""

import jax.numpy as jnp
import numpy as np
import pytest

from transformer_lab.ops.heads import (
    entropy,
    induction_score,
    mean_distance,
    previous_token_score,
)

UNIFORM, ONE = jnp.full((5, 5), 0.2), jnp.eye(5)


def shifted(length, back):
    """Each query attends to the key so far back, the first ones to the first key."""
    return jnp.eye(length)[np.maximum(np.arange(length) - back, 0)]


def test_entropy_is_that_of_the_mean_row_and_a_row_without_keys_has_none():
    rows = jnp.array([[0.5, 0.5, 0, 0], [0.25] * 4, [1, 0, 0, 0], [0.0] * 4])
    found = entropy(jnp.stack([rows, jnp.full((4, 4), 0.25)]))
    np.testing.assert_allclose(found, [3 * np.log(2) / 4, np.log(4)], rtol=1e-6)


def test_distance_is_in_tokens_or_between_the_places_given():
    by_pairs = np.mean([[abs(i - j) for j in range(5)] for i in range(5)])
    found = mean_distance(jnp.stack([UNIFORM, ONE, shifted(5, 4)]))
    np.testing.assert_allclose(found, [by_pairs, 0.0, 10 / 5], rtol=1e-6)
    square = jnp.array([[0.0, 0.0], [3.0, 0.0], [0.0, 4.0], [3.0, 4.0]])
    across = jnp.eye(4)[::-1]  # each to the opposite corner
    assert float(mean_distance(across, square)) == pytest.approx(5.0)
    assert float(mean_distance(across / 3, square)) == pytest.approx(5.0)  # a part of the weight


def test_the_previous_token_is_one_back():
    found = previous_token_score(jnp.stack([shifted(5, 1), ONE, UNIFORM]))
    np.testing.assert_allclose(found, [1.0, 0.0, 0.2], rtol=1e-6)


def test_induction_attends_to_what_followed_last_time():
    """Of 2 x 4 tokens, query 4 + i attends to key i + 1; period and neighbours score nothing."""
    found = induction_score(jnp.stack([shifted(8, back) for back in (2, 3, 4)]), 4)
    np.testing.assert_allclose(found, [0.0, 1.0, 0.0])
    second_half = jnp.where(jnp.arange(8)[:, None] < 4, 0.0, shifted(8, 3))
    assert float(induction_score(second_half, 4)) == 1.0  # the first round does not count
