"""Recurrent language models and readers: causality, caches, padding, segments."""

from dataclasses import replace
from functools import cache, partial

import jax
import numpy as np
import pytest

from tests.tiny import draw
from transformer_lab.decoding import DecodeConfig, Generator
from transformer_lab.errors import LabError
from transformer_lab.models.recurrent import RecurrentNetConfig, build
from transformer_lab.ops.recurrence import BLOCKS

CONFIG = RecurrentNetConfig(layers=2, width=6, embedding_width=5, vocab_size=17, max_length=24)
TOKENS = np.random.default_rng(1).integers(4, 17, (3, 7))
MASK = np.arange(7) < np.array([[7], [4], [6]])


@cache
def make(**changes):
    """Model, variables and the compiled call."""
    model = build(replace(CONFIG, **changes))
    variables = jax.jit(model.init)(jax.random.key(0), TOKENS)
    return model, variables, jax.jit(partial(model.apply, variables))


@pytest.mark.parametrize("cell", BLOCKS)
def test_28_changing_a_token_changes_no_logit_before_it_and_both_sides_of_a_reader(cell):
    other = (TOKENS + 1) % 17
    changed = np.where(np.arange(7) == 3, other, TOKENS)
    reader = {"head": "tokens", "bidirectional": True}
    models = [build(replace(CONFIG, cell=cell, **more)) for more in ({}, reader)]
    params = [draw(model, TOKENS, size=0.3) for model in models]

    @jax.jit
    def run(params, ids):
        logits, read = (m.apply(p, ids) for m, p in zip(models, params, strict=True))
        return logits, read["logits"]

    pairs = zip(*(run(params, ids) for ids in (TOKENS, changed)), strict=True)
    moved, read = ((np.asarray(a) != b).any(axis=(0, 2)) for a, b in pairs)
    assert moved.tolist() == [False] * 3 + [True] * 4
    assert read.all()


def test_cached_decoding_equals_the_full_forward_in_any_chunks():
    model, variables, run = make(residual=True)
    step = jax.jit(partial(model.apply, variables, method="step"))
    empty = jax.jit(lambda: model.apply(variables, 3, 7, method="init_cache"))()
    for chunks in ((1, 1, 5), (2, 5), (7,)):
        state, found = empty, []
        for part in np.split(TOKENS, np.cumsum(chunks)[:-1], axis=1):
            out, state = step(part, state)
            found.append(out)
        np.testing.assert_allclose(np.concatenate(found, axis=1), run(TOKENS), atol=1e-5)


def test_segments_of_a_row_do_not_see_each_other_and_left_padding_is_never_read():
    model, variables, run = make()
    segments = np.array([[0, 0, 1, 1, 1, 2, 2]])
    logits = run(TOKENS[:1], None, segments)[0]
    for first, end in ((2, 5), (5, 7)):
        alone = run(TOKENS[:1, first:end])[0]
        np.testing.assert_allclose(logits[first:end], alone, atol=1e-6)
    padded = np.pad(TOKENS[:1], ((0, 0), (3, 0)))
    left = np.pad(np.ones((1, 7), int), ((0, 0), (3, 0)))
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
        ids = prompt + found.ids  # with padding on the right, which no logit before it sees
        logits = np.asarray(run(np.array([ids + [0] * (13 - len(ids))])))[0]
        likeliest = logits.argmax(axis=-1).tolist()
        assert likeliest[len(prompt) - 1 :][: len(found.ids)] == found.ids
        assert sum(best.log_probs) >= sum(found.log_probs) - 1e-5


@pytest.mark.each_run("tokens-last")
@pytest.mark.parametrize(
    ("head", "pooling"), [("tokens", "last"), ("classes", "last"), ("classes", "mean")]
)
def test_38_a_text_alone_and_padded_gives_equal_states_and_logits(head, pooling):
    _, _, run = make(head=head, bidirectional=True, pooling=pooling, labels=3)
    found = (run(TOKENS, MASK), run(np.where(MASK, TOKENS, 9), MASK))
    out, other = map(jax.device_get, found)
    np.testing.assert_array_equal(out["states"][MASK], other["states"][MASK])
    for row, length in enumerate((7, 4, 6)):
        alone = jax.device_get(run(TOKENS[row : row + 1, :length]))
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
