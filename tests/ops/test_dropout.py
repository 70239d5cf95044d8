"""Dropout: its rate, its scale, its key."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_lab.ops.dropout import drop_path, dropout


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_rate_and_mean_are_those_asked_for(rate):
    out = np.asarray(dropout(jnp.ones((400, 501)), rate, jax.random.key(0)))
    kept = (out != 0).mean()
    deviation = (rate * (1 - rate) / out.size) ** 0.5
    assert abs(kept - (1 - rate)) < 4 * deviation + 1e-5
    np.testing.assert_allclose(out[out != 0], 1 / (1 - rate), rtol=1e-4)
    assert abs((out != 0).mean(axis=0) - (1 - rate)).max() < 6 * (rate * (1 - rate) / 400) ** 0.5


def test_no_key_or_no_rate_is_the_identity_and_rate_one_is_zero():
    x = jnp.arange(6.0)
    np.testing.assert_array_equal(dropout(x, 0.5, None), x)
    np.testing.assert_array_equal(dropout(x, 0.0, jax.random.key(0)), x)
    np.testing.assert_array_equal(dropout(x, 1.0, jax.random.key(0)), 0 * x)


def test_neighbours_that_share_a_random_word_are_independent():
    out = np.asarray(dropout(jnp.ones((1000, 200)), 0.5, jax.random.key(3))) != 0
    for shift in (1, 2, 100):
        correlation = np.corrcoef(out[:, :-shift].ravel(), out[:, shift:].ravel())[0, 1]
        assert abs(correlation) < 4 / (1000 * (200 - shift)) ** 0.5


def test_the_mask_does_not_depend_on_the_mesh():
    devices = np.array(jax.devices()[:8])
    mesh = jax.sharding.Mesh(devices.reshape(4, 2), ("a", "b"))
    x = jnp.ones((8, 6, 10))
    want = dropout(x, 0.3, jax.random.key(1))
    spec = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("a", None, "b"))
    got = jax.jit(lambda x: dropout(x, 0.3, jax.random.key(1)))(jax.device_put(x, spec))
    np.testing.assert_array_equal(got, want)


def test_a_dropped_path_takes_whole_rows_and_the_others_grow():
    out = np.asarray(drop_path(jnp.ones((4000, 2, 3)), 0.25, jax.random.key(0)))
    kept = out[:, 0, 0] != 0
    assert abs(kept.mean() - 0.75) < 4 * (0.25 * 0.75 / 4000) ** 0.5
    np.testing.assert_allclose(out, np.where(kept, 4 / 3, 0.0)[:, None, None] * np.ones((2, 3)))
    np.testing.assert_array_equal(drop_path(jnp.ones((4, 2)), 0.5, None), np.ones((4, 2)))
