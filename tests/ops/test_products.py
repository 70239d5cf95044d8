"""Products whose inputs are rounded to 8 bits, beside the same rounding written out with NumPy."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from transformer_lab.ops.products import product


def rounded(array, axis, kind):
    """The array in 8 bits, with one scale for all numbers along the axis, and back."""
    most = np.abs(array).max(axis, keepdims=True)
    if kind == "int8":
        return np.round(array / (most / 127.5)).clip(-128, 127) * (most / 127.5)
    scale = most / float(ml_dtypes.finfo(kind).max)
    return (array / scale).astype(kind).astype(np.float32) * scale


@pytest.mark.parametrize(
    ("numbers", "read", "grads"),
    [("int8", "int8", None), ("fp8", ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)],
)
def test_eight_bit_products_round_rows_and_columns_and_leave_the_kernel_gradient_whole(
    numbers, read, grads
):
    rng = np.random.default_rng(0)
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    x, kernel, back = draw(2, 3, 8), draw(8, 5), draw(2, 3, 5)
    x[..., 0] = kernel[0] = 4  # the greatest are positive: -127.5 lies between two whole numbers
    run = lambda x, kernel: product(x, kernel, (None, None), None, numbers)  # noqa: E731
    found, pull = jax.vjp(run, jnp.asarray(x), jnp.asarray(kernel))
    of_x, of_kernel = pull(jnp.asarray(back))
    exact = rounded(x, -1, read) @ rounded(kernel, 0, read)
    np.testing.assert_allclose(found, exact, atol=2e-5)
    assert np.abs(exact - x @ kernel).max() > 1e-3  # there is something to see
    if grads is None:
        np.testing.assert_allclose(of_x, back @ kernel.T, atol=1e-5)
    else:
        np.testing.assert_allclose(
            of_x, rounded(back, -1, grads) @ rounded(kernel.T, 0, read), atol=2e-5
        )
    np.testing.assert_allclose(of_kernel, np.einsum("bti,bto->io", x, back), atol=1e-5)
