"""Losses and metrics: closed forms and the (sum, weight) rule."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_lab.errors import fits
from transformer_lab.layers.told import added
from transformer_lab.ops.losses import (
    cross_entropy,
    masked_sum,
    perplexity,
    ratio,
    token_metrics,
)


def test_a_perplexity_of_a_model_that_has_diverged_is_still_a_number_of_a_report():
    assert perplexity(np.log(8)) == pytest.approx(8)
    assert perplexity(7e4) == perplexity(230.0) > 7e99
    assert fits(perplexity(7e4), float)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
def test_smoothed_cross_entropy_is_the_one_against_the_mixed_distribution(smoothing):
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(5, 11)) * 3, rng.integers(0, 11, 5)
    target = np.full((5, 11), smoothing / 11)
    target[np.arange(5), labels] += 1 - smoothing
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    got = cross_entropy(jnp.asarray(logits, jnp.float32), jnp.asarray(labels), smoothing)
    np.testing.assert_allclose(got, -(target * log_probs).sum(-1), rtol=2e-6)


@pytest.mark.parametrize("label", [-100, -1, 0, 11])
def test_masked_labels_of_any_value_give_finite_losses_and_gradients(label):
    logits = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 11)), jnp.float32)
    labels = jnp.full((2, 3), label).at[0, 0].set(4)
    mask = jnp.zeros((2, 3), bool).at[0, 0].set(True)

    def loss(logits):
        return ratio(token_metrics(logits, labels, mask, 0.1)["loss"])

    value, gradient = jax.value_and_grad(loss)(logits)
    assert np.isfinite(value) and np.isfinite(gradient).all()
    assert (gradient[~np.asarray(mask)] == 0).all()
    np.testing.assert_allclose(value, cross_entropy(logits[0, 0], labels[0, 0], 0.1), rtol=1e-6)


def test_perplexity_divides_sums_once_not_means_of_means():
    first = masked_sum(jnp.array([1.0, 2.0, 3.0]), jnp.ones(3, bool))
    second = masked_sum(jnp.array([9.0, jnp.nan, jnp.inf]), jnp.array([True, False, False]))
    mean = ratio(added({"loss": first}, {"loss": second})["loss"])
    assert mean == 3.75
    np.testing.assert_allclose(np.exp(mean), 42.521, atol=5e-4)


def test_all_zero_logits_have_the_vocabulary_as_perplexity():
    labels = jnp.arange(6).reshape(2, 3)
    metrics = token_metrics(jnp.zeros((2, 3, 37)), labels, jnp.ones((2, 3), bool))
    np.testing.assert_allclose(np.exp(ratio(metrics["nll"])), 37.0, rtol=1e-5)


def test_nothing_counted_is_zero_not_nan():
    assert ratio(masked_sum(jnp.ones(3), jnp.zeros(3, bool))) == 0


def test_accuracy_counts_under_the_mask_only():
    logits = jax.nn.one_hot(jnp.array([[1, 2, 3]]), 5)
    mask = jnp.array([[True, True, False]])
    total, weight = token_metrics(logits, jnp.array([[1, 0, 3]]), mask)["accuracy"]
    assert (total, weight) == (1, 2)
