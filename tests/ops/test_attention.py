"""Attention against the written-out formula."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.ops.visible_cases import CASES, assert_equal, plain
from tests.ops.visible_cases import arrays as few_heads
from transformer_lab.ops.attention import attend, fused_attend, local_attend, local_holds
from transformer_lab.ops.visibility import Visible, visible


def arrays(b=2, n=6, k=3, t=5, s=7, h=4, seed=0):
    rng = np.random.default_rng(seed)
    make = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)  # noqa: E731
    return make(b, n, t, h), make(b, k, s, h), make(b, k, s, h)


def by_hand(query, key, value, mask, scale):
    """One query at a time, in float64."""
    query, key, value = (np.asarray(x, np.float64) for x in (query, key, value))
    b, n, t, _ = query.shape
    group = n // key.shape[1]
    out = np.zeros_like(query)
    for i in np.ndindex(b, n, t):
        row, head, place = i
        keys = np.flatnonzero(mask[row, head % mask.shape[1], place])
        if len(keys) == 0:
            continue
        scores = key[row, head // group, keys] @ query[i] * scale
        weights = np.exp(scores - scores.max())
        out[i] = weights / weights.sum() @ value[row, head // group, keys]
    return out


@pytest.mark.parametrize("kv_heads", [1, 2, 6])
@pytest.mark.parametrize("implementation", ["own", "xla"])
def test_every_head_count_equals_the_formula(kv_heads, implementation):
    query, key, value = arrays(k=kv_heads)
    mask = np.random.default_rng(1).random((2, 1, 5, 7)) < 0.6
    mask[0, 0, 3] = False
    want = by_hand(query, key, value, mask, 0.5)
    if implementation == "own":
        got, weights = attend(query, key, value, jnp.asarray(mask))
        expected = np.broadcast_to(mask.any(-1), weights.shape[:3])
        np.testing.assert_allclose(weights.sum(-1), expected, atol=1e-6)
    else:
        got = fused_attend(query, key, value, Visible(mask=jnp.asarray(mask)))
    np.testing.assert_allclose(got, want, atol=2e-6)


@pytest.mark.parametrize("implementation", ["own", "xla"])
def test_a_row_without_keys_is_zero_and_leaves_the_others_bit_equal(implementation):
    query, key, value = arrays(k=6)
    run = {
        "own": lambda q, m: attend(q, key, value, m)[0],
        "xla": lambda q, m: fused_attend(q, key, value, Visible(mask=m)),
    }[implementation]
    full = jnp.ones((2, 1, 5, 7), bool)
    empty = full.at[1, 0, 2].set(False)
    out, gradient = jax.value_and_grad(lambda q: run(q, empty).sum())(query)
    got = run(query, empty)
    assert (got[1, :, 2] == 0).all()
    others = np.ones((2, 5), bool)
    others[1, 2] = False
    same = np.asarray(jnp.swapaxes(got == run(query, full), 1, 2))
    assert same[others].all()
    assert np.isfinite(out) and np.isfinite(gradient).all()
    assert (gradient[1, :, 2] == 0).all()


def test_a_causal_query_sees_no_later_key_and_an_offset_moves_it():
    lower = np.tril(np.ones((7, 7), bool))
    whole = Visible(causal=True).dense(jnp.arange(7), jnp.arange(7))
    np.testing.assert_array_equal(whole[0, 0], lower)
    np.testing.assert_array_equal(
        visible(4 + jnp.arange(2), jnp.arange(7), causal=True), lower[4:6]
    )


@pytest.mark.parametrize("case", CASES)
def test_jax_own_function_equals_plain_attention_in_values_and_gradients(case):
    seen = Visible(**CASES[case])
    inputs = few_heads()
    assert_equal(lambda *x: fused_attend(*x, seen), plain(seen), inputs)


def test_bias_and_scale_enter_the_scores():
    query, key, value = arrays(k=6)
    bias = jnp.asarray(np.random.default_rng(2).normal(size=(1, 6, 5, 7)), jnp.float32)
    _, weights = attend(query, key, value, scale=0.3, bias=bias)
    scores = 0.3 * np.einsum("bnth,bnsh->bnts", query, key) + bias
    np.testing.assert_allclose(weights, jax.nn.softmax(scores, axis=-1), atol=1e-6)


def test_scores_and_softmax_stay_float32_under_bfloat16():
    query, key, value = (x.astype(jnp.bfloat16) for x in arrays(k=6))
    out, weights = attend(query * 8, key * 8, value)
    assert out.dtype == jnp.bfloat16 and weights.dtype == jnp.float32
    np.testing.assert_allclose(weights.sum(-1), 1.0, atol=1e-6)


NARROW = [case for case in CASES if local_holds(*few_heads()[:2], Visible(**CASES[case]))]


@pytest.mark.parametrize("case", NARROW)
def test_a_window_by_blocks_equals_its_mask_over_all_keys(case):
    seen = Visible(**CASES[case])
    assert_equal(lambda *x: local_attend(*x, seen), plain(seen), few_heads())


def test_a_window_by_blocks_is_for_short_windows_and_what_it_knows():
    assert set(NARROW) == {case for case in CASES if "window" in case}
    query, key, _ = few_heads()
    assert not local_holds(query, key, Visible(window=12))  # longer than half the row
    assert not local_holds(query, key[:, :, :20], Visible(window=5))


def test_a_windows_cost_grows_with_the_length_and_not_with_its_square():
    def operations(t, **window):
        shapes = [jax.ShapeDtypeStruct((1, 2, t, 8), jnp.float32)] * 3
        run = lambda *x: local_attend(*x, Visible(**window)) if window else attend(*x)[0]  # noqa: E731
        return jax.jit(run).lower(*shapes).cost_analysis()["flops"]

    assert operations(1024, window=16) / operations(512, window=16) == pytest.approx(2, rel=0.02)
    assert operations(1024) / operations(512) == pytest.approx(4, rel=0.02)
    assert operations(1024, window=16) < operations(1024) / 15
