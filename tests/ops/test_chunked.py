"""Attention by blocks equals attention over all keys at once, and never holds their square."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.ops.visible_cases import CASES, arrays, assert_equal, plain
from transformer_lab.ops.chunked import chunked_attend, seen_blocks
from transformer_lab.ops.visibility import Visible


@pytest.mark.each_run("causal", "causal packed window", "real keys", "prefix")
@pytest.mark.parametrize("case", CASES)
def test_blocks_equal_all_keys_at_once_in_values_and_gradients(case):
    visible = Visible(**CASES[case])
    run = lambda *x: chunked_attend(*x, visible, block=8)  # noqa: E731
    assert_equal(run, plain(visible), arrays())


@pytest.mark.parametrize(("t", "s", "block"), [(5, 13, 4), (13, 5, 8), (3, 7, 512)])
def test_lengths_that_no_block_divides_may_differ(t, s, block):
    inputs = arrays(t=t, s=s)
    run = lambda *x: chunked_attend(*x, scale=8**-0.5, block=block)  # noqa: E731
    assert_equal(run, plain(Visible()), inputs)


def test_only_blocks_that_somebody_sees_are_computed():
    places = np.arange(64), np.arange(64)
    count = lambda **v: seen_blocks(Visible(**v), *places, 8, 8).sum()  # noqa: E731
    assert count() == 64
    assert count(causal=True) == 8 * 9 / 2
    assert count(causal=True, window=8) == 8 + 7
    assert count(window=9) == 8 + 7 + 7
    assert count(window=10) == 8 + 7 + 7 + 6 + 6
    assert count(causal=True, prefix=jnp.zeros((1, 64), bool)) == 64


def test_no_array_of_queries_by_keys_stands_in_memory_forward_or_backward():
    shapes = [jax.ShapeDtypeStruct((1, 2, 4096, 8), jnp.float32)] * 3
    visible = Visible(causal=True)

    @jax.checkpoint
    def loss(*x):
        return chunked_attend(*x, visible, block=256).sum()

    compiled = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(*shapes).compile()
    square = 2 * 4096 * 4096 * 4
    assert compiled.memory_analysis().temp_size_in_bytes < square / 20


def test_under_bfloat16_the_statistics_stay_float32():
    query, key, value = arrays(t=40, s=600)
    low = [np.asarray(x, jnp.bfloat16) for x in (query, key, np.ones_like(value))]
    out = jax.jit(lambda *x: chunked_attend(*x, block=16))(*low)
    assert out.dtype == jnp.bfloat16
    np.testing.assert_array_equal(out, jnp.ones_like(out))
