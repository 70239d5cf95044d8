"""Attention rollout in closed form."""

import jax.numpy as jnp
import numpy as np

from transformer_lab.ops.rollout import rollout


def test_layers_multiply_from_the_lowest_up_after_the_mean_over_heads():
    first = jnp.array([[[[1.0, 0.0], [1.0, 0.0]], [[0.0, 1.0], [1.0, 0.0]]]])  # two heads
    second = jnp.array([[[[0.2, 0.8], [0.5, 0.5]]]])
    below = np.array([[0.75, 0.25], [0.5, 0.5]])
    above = np.array([[0.6, 0.4], [0.25, 0.75]])
    np.testing.assert_allclose(rollout([first])[0], below, rtol=1e-6)
    np.testing.assert_allclose(rollout([first, second])[0], above @ below, rtol=1e-6)


def test_without_residual_it_is_the_weights_own_product_and_a_masked_row_stays_itself():
    weights = jnp.array([[[[0.3, 0.7], [0.9, 0.1]]]])
    want = np.asarray(weights[0, 0]) @ np.asarray(weights[0, 0])
    np.testing.assert_allclose(rollout([weights, weights], residual=0.0)[0], want, rtol=1e-6)
    masked = weights.at[:, :, 1].set(0.0)
    np.testing.assert_allclose(rollout([masked])[0], [[0.65, 0.35], [0.0, 1.0]], rtol=1e-6)
