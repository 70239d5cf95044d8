"""Drafted texts against the large model's own distribution, exactly, and its greedy texts."""

import itertools
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from tests.decoding.toy import EOS
from tests.decoding.toy_decoder import CONFIG, NEW, PROMPTS, Model
from transformer_lab.decoding import DecodeConfig
from transformer_lab.decoding.speculative import Speculator, judge
from transformer_lab.errors import LabError


def test_the_first_tokens_have_exactly_the_large_models_distribution():
    """Every draft and every way to accept it, over three tokens, for models that look back."""
    v, draw = 3, np.random.default_rng(0)
    chances = lambda *shape: draw.dirichlet(np.full(v, 0.6), shape)  # noqa: E731
    p1, p2, p3, q1, q2 = chances(), chances(v), chances(v, v), chances(), chances(v)
    q2[1], p2[2, 0] = p2[1], 0.0  # where both agree, and a token that may not come
    p2[2] /= p2[2].sum()
    found = np.zeros((v, v))
    for a, b in itertools.product(range(v), repeat=2):
        p, q = jnp.stack([p1, p2[a], p3[a, b]]), jnp.stack([q1, q2[a]])
        accepted, after = map(np.asarray, judge(p, q, jnp.array([a, b])))
        drafted = q1[a] * q2[a, b]
        np.testing.assert_allclose(after.sum(axis=1), 1, atol=1e-6)
        # The first draft is refused, and the next round begins after the other token; or the second
        # is refused; or both stay.
        found += drafted * (1 - accepted[0]) * after[0][:, None] * p2
        found[a] += drafted * accepted[0] * (1 - accepted[1]) * after[1]
        found[a, b] += drafted * accepted[0] * accepted[1]
    np.testing.assert_allclose(found, p1[:, None] * p2, atol=1e-6)


def test_a_case_worked_by_hand():
    p, q = jnp.array([[0.5, 0.5], [0.1, 0.9]]), jnp.array([[0.75, 0.25]])
    for draft, chance in ((0, 2 / 3), (1, 1.0)):
        accepted, after = judge(p, q, jnp.array([draft]))
        np.testing.assert_allclose(accepted, [chance], rtol=1e-6)
        np.testing.assert_allclose(after, [[0, 1], p[1]], rtol=1e-6)


def speculator(model, draft, **settings):
    decode = DecodeConfig(**{"max_new_tokens": NEW, **settings})
    return Speculator(model.model, decode, (draft.model, draft.params), eos_id=EOS, drafted=3)


@pytest.fixture(scope="module")
def models():
    large = Model(replace(CONFIG, layers=2))
    return large, Model(replace(CONFIG, width=8, heads=1, positions="rope"))


def test_greedy_texts_are_those_of_the_large_model_whatever_the_draft(models):
    large, small = models
    rules = {"banned_tokens": (0,), "no_repeat_ngram": 2}
    want = large.generator(**rules)(large.params, PROMPTS)
    found = speculator(large, small, **rules)
    for (one,), (other,) in zip(found(large.params, PROMPTS), want, strict=True):
        assert (one.ids, one.ended) == (other.ids, other.ended)
        np.testing.assert_allclose(one.log_probs, other.log_probs, atol=1e-4)
    assert found.tokens == sum(len(one.log_probs) for (one,) in want)
    assert found.tokens / 4 <= found.rounds <= found.tokens
    assert found.compilations == 2


def test_drawn_texts_follow_from_the_seed_with_the_large_models_log_probabilities(models):
    """With the large model's own drafts, which are all accepted: each round makes four tokens."""
    large, _ = models
    drawn = speculator(large, large, temperature=1.2, top_k=5, banned_tokens=(EOS,))
    first = drawn(large.params, PROMPTS, samples=2, seed=3)
    assert (drawn.tokens, drawn.rounds) == (10 * NEW, 10 * -(-NEW // 4))
    assert first == drawn(large.params, PROMPTS, samples=2, seed=3)
    assert first != drawn(large.params, PROMPTS, samples=2, seed=4)
    for prompt, two in zip(PROMPTS, first, strict=True):
        assert two[0].ids != two[1].ids
        for one in two:
            want = large.log_probs(large.params, [*prompt, *one.ids], prompt)[len(prompt) - 1 : -1]
            got = want[np.arange(NEW), one.ids]
            np.testing.assert_allclose(one.log_probs, got, atol=1e-4)
            allowed = np.delete(want, EOS, axis=1)
            assert (np.sort(allowed, axis=1)[:, -5] <= got).all()


def test_models_that_cannot_take_tokens_back_and_other_vocabularies_are_refused(models):
    large, _ = models
    window = Model(replace(CONFIG, window=3))
    with pytest.raises(LabError, match="drafts need models that can take tokens back"):
        speculator(large, window)(large.params, PROMPTS[:1])
    with pytest.raises(LabError, match="both must read the same tokens"):
        speculator(large, Model(replace(CONFIG, vocab_size=14)))
