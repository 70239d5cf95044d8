"""Sinusoids against the paper's formula."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from transformer_lab.ops.positions import sinusoids


@pytest.mark.parametrize("width", [6, 7])
def test_interleaved_as_published_and_halved_as_in_marian(width):
    got = sinusoids(jnp.arange(9), width)
    halved = sinusoids(jnp.arange(9), width, halves=True)
    sines = math.ceil(width / 2)
    for pos in range(9):
        for dim in range(width):
            angle = pos / 10_000 ** (2 * (dim // 2) / width)
            want = math.cos(angle) if dim % 2 else math.sin(angle)
            assert abs(float(got[pos, dim]) - want) < 1e-5
            column = sines + dim // 2 if dim % 2 else dim // 2
            assert abs(float(halved[pos, column]) - want) < 1e-5


def test_a_shift_is_one_fixed_rotation():
    table = np.asarray(sinusoids(jnp.arange(50), 8), np.float64)
    pairs = table.reshape(50, 4, 2)
    for i in range(4):
        angle = 3 / 10_000 ** (2 * i / 8)
        rotation = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
        np.testing.assert_allclose(pairs[:-3, i] @ rotation.T, pairs[3:, i], atol=1e-5)
