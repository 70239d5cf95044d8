"""CTC's loss against the sum over all alignments, written out."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_lab.decoding.ctc import collapsed
from transformer_lab.ops.ctc import ctc_nats, states_needed

STATES, TOKENS = 5, 4
TEXTS = [(), (1,), (1, 2), (1, 1), (2, 2, 3), (3, 1, 3, 1), (1, 2, 3, 1, 2)]


def every_text(log_probs, blank=0):
    """The log-probability of each text that some alignment gives."""
    states, tokens = log_probs.shape
    found = {}
    for path in product(range(tokens), repeat=states):
        total = sum(log_probs[i, token] for i, token in enumerate(path))
        text = tuple(collapsed(np.array(path), blank))
        found[text] = np.logaddexp(found.get(text, -np.inf), total)
    return found


def test_the_loss_and_its_gradient_are_those_of_the_sum_over_alignments():
    """Empty texts, repeats, a text that needs all states, and rows of other lengths at once."""
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 2, (len(TEXTS), STATES, TOKENS)).astype(np.float32)
    sizes = [5, 1, 3, 4, 5, 4, 5]
    logits, real = jnp.asarray(logits), np.arange(STATES) < np.array(sizes)[:, None]
    target, mask = np.full((len(TEXTS), 6), -1), np.zeros((len(TEXTS), 6), bool)
    for i, text in enumerate(TEXTS):
        target[i, : len(text)], mask[i, : len(text)] = text, True

    @jax.jit
    def run(logits):
        return ctc_nats(logits, jnp.array(real), jnp.array(target), jnp.array(mask), 0)

    gradient, nats = jax.jit(jax.grad(lambda x: (run(x).sum(), run(x)), has_aux=True))(logits)
    for i, (text, size) in enumerate(zip(TEXTS, sizes, strict=True)):
        log_probs = np.asarray(jax.nn.log_softmax(logits[i, :size]), np.float64)
        np.testing.assert_allclose(nats[i], -every_text(log_probs)[text], rtol=1e-5, atol=1e-5)
        assert not np.asarray(gradient[i, size:]).any()  # padding has no gradient
    slopes = run(logits + 0.01 * logits) - run(logits - 0.01 * logits)  # along the logits
    expected = (gradient * logits).sum(axis=(1, 2))
    np.testing.assert_allclose(slopes / 0.02, expected, rtol=5e-3, atol=5e-3)


def test_probabilities_of_all_texts_sum_to_one():
    logits = jnp.asarray(np.random.default_rng(1).normal(0, 1, (4, 3)), jnp.float32)
    texts = [text for text in every_text(np.zeros((4, 3))) if states_needed(text) <= 4]
    target, mask = np.zeros((len(texts), 4), int), np.zeros((len(texts), 4), bool)
    for i, text in enumerate(texts):
        target[i, : len(text)], mask[i, : len(text)] = text, True
    whole = jnp.broadcast_to(logits, (len(texts), 4, 3))
    nats = ctc_nats(whole, jnp.ones((len(texts), 4), bool), jnp.array(target), jnp.array(mask), 0)
    assert np.exp(-np.asarray(nats)).sum() == pytest.approx(1, abs=1e-5)


def test_states_needed_count_blanks_between_repeats():
    assert [states_needed(text) for text in TEXTS] == [0, 1, 2, 3, 4, 4, 5]
    shortest = min(
        n for n in range(1, 6)
        if any(collapsed(np.array(p), 0) == [2, 2, 3] for p in product(range(4), repeat=n))
    )  # fmt: skip
    assert shortest == states_needed((2, 2, 3))
