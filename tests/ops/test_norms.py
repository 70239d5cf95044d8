"""LayerNorm's closed-form gradient against differentiation, in the digits that matter."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_lab.ops.norms import layer_norm


def plain(x, scale, bias, epsilon):
    x = x.astype(jnp.float32)
    centred = x - x.mean(-1, keepdims=True)
    variance = jnp.square(centred).mean(-1, keepdims=True)
    return centred / jnp.sqrt(variance + epsilon) * scale + bias


@pytest.mark.parametrize(("epsilon", "size"), [(1e-6, 1.0), (1e-5, 1e-3), (1e-12, 1e-3)])
def test_value_and_gradient_equal_differentiation(epsilon, size):
    rng = np.random.default_rng(0)
    normal = lambda *shape: np.float32(rng.normal(size=shape))  # noqa: E731
    x, weights = normal(3, 4, 10) * size + 0.1 * size, normal(3, 4, 10)

    @jax.jit
    def both(*inputs):
        losses = [lambda *a, f=f: (f(*a, epsilon) * weights).sum() for f in (layer_norm, plain)]
        return [jax.value_and_grad(loss, argnums=(0, 1, 2))(*inputs) for loss in losses]

    (value, gradients), (want, wanted) = both(np.float32(x), normal(10), normal(10))
    np.testing.assert_allclose(value, want, rtol=1e-5, atol=1e-5)
    for got, expected in zip(gradients, wanted, strict=True):
        limit = 2e-5 * np.abs(expected).max()
        np.testing.assert_allclose(got, expected, atol=limit)


def test_bfloat16_in_and_out_with_float32_statistics():
    x = (jax.random.normal(jax.random.key(0), (5, 64)) + 8).astype(jnp.bfloat16)
    out = layer_norm(x, jnp.ones(64), jnp.zeros(64), 1e-6)
    assert out.dtype == jnp.bfloat16
    want = plain(x, jnp.ones(64), jnp.zeros(64), 1e-6)
    np.testing.assert_allclose(out.astype(jnp.float32), want, atol=1e-2)
