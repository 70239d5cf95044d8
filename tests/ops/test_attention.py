"""Attention against the written-out formula."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_lab.ops.attention import attend, causal_mask, fused_attend, local_attend, visible


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
        got = fused_attend(query, key, value, jnp.asarray(mask), implementation="xla")
    np.testing.assert_allclose(got, want, atol=2e-6)


@pytest.mark.parametrize("implementation", ["own", "xla"])
def test_a_row_without_keys_is_zero_and_leaves_the_others_bit_equal(implementation):
    query, key, value = arrays(k=6)
    run = {
        "own": lambda q, m: attend(q, key, value, m)[0],
        "xla": lambda q, m: fused_attend(q, key, value, m, implementation="xla"),
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


def test_causal_equals_its_mask_and_an_offset_moves_it():
    query, key, value = arrays(k=6, t=7)
    mask = causal_mask(7, 7)[None, None]
    np.testing.assert_array_equal(mask[0, 0], np.tril(np.ones((7, 7), bool)))
    np.testing.assert_array_equal(causal_mask(2, 7, 4), np.tril(np.ones((7, 7), bool))[4:6])
    explicit, _ = attend(query, key, value, mask)
    flagged, _ = attend(query, key, value, causal=True)
    np.testing.assert_array_equal(explicit, flagged)
    fused = fused_attend(query, key, value, causal=True, implementation="xla")
    np.testing.assert_allclose(fused, explicit, atol=2e-6)


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


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("t", "window", "masked"),
    [(10, 3, None), (12, 4, (2, 1, 1)), (11, 5, (2, 1, 11)), (7, 1, None), (9, 2, (1, 6, 9))],
)
def test_a_window_by_blocks_equals_its_mask_over_all_keys(t, window, masked, causal):
    inputs = arrays(t=t, s=t)
    near = visible(jnp.arange(t), jnp.arange(t), causal=causal, window=window)[None, None]
    mask = None
    if masked is not None:
        mask = jnp.asarray(np.random.default_rng(1).random((*masked, t)) < 0.6)

    def whole(*inputs):
        return attend(*inputs, near if mask is None else near & mask)[0]

    def by_blocks(*inputs):
        return local_attend(*inputs, mask, window=window, causal=causal)

    np.testing.assert_allclose(by_blocks(*inputs), whole(*inputs), atol=1e-6)
    gradients = [
        jax.grad(lambda *x: jnp.sin(f(*x)).sum(), argnums=(0, 1, 2))(*inputs)  # noqa: B023
        for f in (by_blocks, whole)
    ]
    for got, want in zip(*gradients, strict=True):
        np.testing.assert_allclose(got, want, atol=2e-6)


def test_a_windows_cost_grows_with_the_length_and_not_with_its_square():
    def operations(t, **window):
        shapes = [jax.ShapeDtypeStruct((1, 2, t, 8), jnp.float32)] * 3
        run = lambda *x: local_attend(*x, **window) if window else attend(*x)[0]  # noqa: E731
        return jax.jit(run).lower(*shapes).cost_analysis()["flops"]

    assert operations(1024, window=16) / operations(512, window=16) == pytest.approx(2, rel=0.02)
    assert operations(1024) / operations(512) == pytest.approx(4, rel=0.02)
    assert operations(1024, window=16) < operations(1024) / 15
