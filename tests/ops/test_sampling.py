"""Restricting and sampling against plain numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_lab.ops.sampling import restrict, sample

V = 9
RESTRICT = jax.jit(restrict)
SAMPLE = jax.jit(sample, static_argnames="restricted")


def allowed(row, k, p):
    """The tokens that stay, one after the other from the likeliest."""
    order = np.argsort(-row, kind="stable")
    order = order[: k if 0 < k <= len(row) else len(row)]
    likely = np.exp(row[order] - row[order[0]])
    likely /= likely.sum()
    count, total = 0, 0.0
    while count < len(order) and (count == 0 or total < p or p == 1.0):
        total += likely[count]
        count += 1
    # Whether the last one is in is a matter of rounding if the sum before it is p.
    sums = np.cumsum(likely)
    clear = p in (0.0, 1.0) or np.abs(sums - p).min() > 1e-5
    return set(np.flatnonzero(row >= row[order[count - 1]])), clear


rows = st.lists(
    st.one_of(  # ties, too; XLA takes subnormal numbers for zeros
        st.floats(-6, 6, width=32, allow_subnormal=False), st.sampled_from([-2.0, 0.5, 3.0])
    ),
    min_size=V,
    max_size=V,
)
shares = st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.floats(0, 1))


@settings(max_examples=150, deadline=None)
@given(rows, rows, st.integers(0, V + 3), shares)
def test_restricting_equals_brute_force(first, second, k, p):
    logits = np.array([first, second], np.float32)
    got = np.asarray(RESTRICT(logits, np.int32(k), np.float32(p)))
    for row, out in zip(logits, got, strict=True):
        want, clear = allowed(row.astype(np.float64), k, float(np.float32(p)))
        kept = set(np.flatnonzero(np.isfinite(out)))
        assert not clear or kept == want
        assert int(row.argmax()) in kept
        np.testing.assert_array_equal(out[sorted(kept)], row[sorted(kept)])


def test_banned_tokens_stay_banned_and_top_k_above_v_equals_none():
    logits = jnp.array([[1.0, -jnp.inf, 3.0, -jnp.inf, 2.0]])
    for k, p in ((0, 1.0), (4, 1.0), (99, 1.0), (99, 0.99999)):
        np.testing.assert_array_equal(RESTRICT(logits, jnp.int32(k), jnp.float32(p)), logits)


def draw(logits, count, temperature=1.0, k=0, p=1.0, **options):
    keys = jax.random.split(jax.random.key(0), count)
    controls = jnp.float32(temperature), jnp.int32(k), jnp.float32(p)
    return np.asarray(SAMPLE(jnp.tile(logits, (count, 1)), keys, *controls, **options))


@pytest.mark.parametrize(
    ("temperature", "k", "p"), [(1.0, 0, 1.0), (0.5, 0, 1.0), (2.0, 3, 1.0), (1.0, 0, 0.8)]
)
def test_frequencies_are_those_of_the_restricted_softmax(temperature, k, p):
    logits = np.array([0.3, 2.0, -1.0, 1.2, 0.9, -3.0], np.float32)
    kept, _ = allowed(logits / temperature, k, p)
    want = np.where([i in kept for i in range(6)], np.exp(logits / temperature), 0.0)
    want /= want.sum()
    found = np.bincount(draw(jnp.asarray(logits), 8000, temperature, k, p), minlength=6)
    assert not found[want == 0].any()
    expected = 8000 * want[want > 0]
    # Chi-square with at most 5 degrees of freedom: above 25 once in 7,000 keys.
    assert ((found[want > 0] - expected) ** 2 / expected).sum() < 25


def test_without_restriction_a_row_draws_the_same():
    logits = jnp.array([0.3, 2.0, -1.0, 1.2, 0.0])
    np.testing.assert_array_equal(draw(logits, 40), draw(logits, 40, restricted=False))
    assert len(set(draw(logits, 40))) > 2


@pytest.mark.parametrize("temperature", [1e-3, 1e-30, 1e-38, 1e-45, 0.0])
def test_a_temperature_near_0_is_greedy_not_token_0(temperature):
    logits = jnp.array([-90.0, 50.0, 80.0, -40.0, 79.0])
    for k, p in ((0, 1.0), (2, 0.9)):
        assert set(draw(logits, 40, temperature, k, p)) == {2}
    assert set(draw(logits, 40, temperature, restricted=False)) == {2}


def test_top_1_and_top_p_0_are_greedy():
    logits = jnp.array([0.1, 0.2, 0.15, 0.1, 0.1])
    assert set(draw(logits, 40, k=1)) == set(draw(logits, 40, p=0.0)) == {1}
