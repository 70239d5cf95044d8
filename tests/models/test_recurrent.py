"""Recurrent language models and readers: causality, caches, padding, segments."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_lab.decoding import DecodeConfig, Generator
from transformer_lab.errors import LabError
from transformer_lab.models.recurrent import RecurrentNetConfig, build
from transformer_lab.ops.recurrence import BLOCKS

CONFIG = RecurrentNetConfig(layers=2, width=6, embedding_width=5, vocab_size=17, max_length=24)
TOKENS = jax.random.randint(jax.random.key(1), (3, 7), 4, 17)
MASK = jnp.arange(7) < jnp.array([[7], [4], [6]])


def make(**changes):
    """Model, variables and the compiled call."""
    model = build(replace(CONFIG, **changes))
    variables = jax.jit(model.init)(jax.random.key(0), TOKENS)
    return model, variables, jax.jit(partial(model.apply, variables))


@pytest.mark.parametrize("cell", BLOCKS)
def test_28_changing_a_token_changes_no_logit_before_it_and_both_sides_of_a_reader(cell):
    changed = TOKENS.at[:, 3].set(5)
    _, _, run = make(cell=cell)
    moved = (run(TOKENS) != run(changed)).any(axis=(0, 2))
    assert moved.tolist() == [False] * 3 + [True] * 4
    _, _, run = make(cell=cell, head="tokens", bidirectional=True)
    a, b = (run(ids)["logits"] for ids in (TOKENS, changed))
    assert (a != b).any(axis=(0, 2)).all()


@pytest.mark.parametrize("chunks", [(1, 1, 5), (2, 5), (7,)])
def test_cached_decoding_equals_the_full_forward_in_any_chunks(chunks):
    model, variables, run = make(residual=True)
    step = jax.jit(partial(model.apply, variables, method="step"))
    cache, at, found = model.apply(variables, 3, 7, method="init_cache"), 0, []
    for size in chunks:
        out, cache = step(TOKENS[:, at : at + size], cache)
        found.append(out)
        at += size
    np.testing.assert_allclose(jnp.concatenate(found, axis=1), run(TOKENS), atol=1e-5)


def test_segments_of_a_row_do_not_see_each_other_and_left_padding_is_never_read():
    model, variables, run = make()
    segments = jnp.array([[0, 0, 1, 1, 1, 2, 2]])
    logits = run(TOKENS[:1], None, segments)[0]
    for first, end in ((2, 5), (5, 7)):
        alone = run(TOKENS[:1, first:end])[0]
        np.testing.assert_allclose(logits[first:end], alone, atol=1e-6)
    padded = jnp.pad(TOKENS[:1], ((0, 0), (3, 0)))
    left = jnp.pad(jnp.ones((1, 7), int), ((0, 0), (3, 0)))
    prefill = jax.jit(partial(model.apply, variables, length=10, method="prefill"))
    (out, cache), (want, plain) = prefill(padded, left), prefill(TOKENS[:1], None)
    np.testing.assert_allclose(out[:, 3:], want, atol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), cache, plain)


def test_generation_is_the_likeliest_token_each_time_and_beams_are_not_worse():
    model, variables, run = make()
    prompts = [TOKENS[0].tolist(), TOKENS[1, :3].tolist()]
    settings = DecodeConfig(max_new_tokens=6, alpha=0.0)
    greedy = Generator(model, settings, eos_id=1)(variables["params"], prompts)
    beams = Generator(model, replace(settings, beam_size=3), eos_id=1)(variables["params"], prompts)
    for prompt, (found,), (best, *_) in zip(prompts, greedy, beams, strict=True):
        likeliest = run(jnp.array([prompt + found.ids]))[0].argmax(axis=-1).tolist()
        assert likeliest[len(prompt) - 1 :][: len(found.ids)] == found.ids
        assert sum(best.log_probs) >= sum(found.log_probs) - 1e-5


@pytest.mark.parametrize(
    ("head", "pooling"), [("tokens", "last"), ("classes", "last"), ("classes", "mean")]
)
def test_38_a_text_alone_and_padded_gives_equal_states_and_logits(head, pooling):
    _, _, run = make(head=head, bidirectional=True, pooling=pooling, labels=3)
    out, other = run(TOKENS, MASK), run(jnp.where(MASK, TOKENS, 9), MASK)
    np.testing.assert_array_equal(out["states"][MASK], other["states"][MASK])
    for row, length in enumerate((7, 4, 6)):
        alone = run(TOKENS[row : row + 1, :length])
        np.testing.assert_allclose(out["states"][row, :length], alone["states"][0], atol=1e-6)
        mine = out["logits"][row, :length] if head == "tokens" else out["logits"][row]
        np.testing.assert_allclose(mine, alone["logits"][0], atol=1e-6)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"bidirectional": True}, "language model sees no later"),
        ({"tie_head": True}, "embedding_width"),
        ({"pooling": "avg"}, "model.pooling"),
        ({"cell": "gruu"}, "model.cell"),
        ({"recurrent_init": "zero"}, "model.recurrent_init"),
        ({"head": "classes", "bidirectional": True, "truncate": 4}, "model.truncate"),
    ],
)
def test_impossible_settings_are_refused(change, words):
    with pytest.raises(LabError, match=words):
        build(replace(CONFIG, **change))
