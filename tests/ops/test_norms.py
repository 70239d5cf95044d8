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
    keys = jax.random.split(jax.random.key(0), 4)
    x = jax.random.normal(keys[0], (3, 4, 10)) * size + 0.1 * size
    scale, bias = jax.random.normal(keys[1], (10,)), jax.random.normal(keys[2], (10,))
    weights = jax.random.normal(keys[3], x.shape)
    of = lambda f: jax.value_and_grad(  # noqa: E731
        lambda *a: (f(*a, epsilon) * weights).sum(), argnums=(0, 1, 2)
    )(x, scale, bias)
    (value, gradients), (want, wanted) = of(layer_norm), of(plain)
    np.testing.assert_allclose(value, want, rtol=1e-5, atol=1e-5)
    for got, expected in zip(gradients, wanted, strict=True):
        limit = 2e-5 * float(jnp.abs(expected).max())
        np.testing.assert_allclose(got, expected, atol=limit)


def test_bfloat16_in_and_out_with_float32_statistics():
    x = (jax.random.normal(jax.random.key(0), (5, 64)) + 8).astype(jnp.bfloat16)
    out = layer_norm(x, jnp.ones(64), jnp.zeros(64), 1e-6)
    assert out.dtype == jnp.bfloat16
    want = plain(x, jnp.ones(64), jnp.zeros(64), 1e-6)
    np.testing.assert_allclose(out.astype(jnp.float32), want, atol=1e-2)
