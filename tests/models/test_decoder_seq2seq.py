"""A decoder that translates: what it reads, padding, cache, beams."""

from dataclasses import replace
from functools import cache, partial

import jax
import numpy as np
import pytest

from transformer_lab.decoding.batch import SequenceDecoder
from transformer_lab.decoding.config import DecodeConfig
from transformer_lab.models.decoder_seq2seq import DecoderSeq2SeqConfig, build

CONFIG = DecoderSeq2SeqConfig(
    layers=2, width=12, heads=4, head_dim=6, feed_forward_width=20, vocab_size=23, max_length=8,
    dropout=0.0, init_std=0.5,
)  # fmt: skip
SOURCE = np.array([[5, 17, 9, 20, 11], [8, 6, 19, 0, 0]])
MASK = SOURCE != 0
TARGET = np.array([[2, 7, 13, 4], [2, 21, 5, 16]])


@cache
def make(**changes):
    """A model, its parameters, and what it compiles: the whole pass, an empty cache, a step."""
    model = build(replace(CONFIG, **changes))
    params = jax.jit(model.init)(jax.random.key(0), SOURCE, MASK, TARGET)
    empty = lambda source: model.apply(params, source, source != 0, 4, method="init_cache")  # noqa: E731
    step = partial(model.apply, params, method="step")
    return model, params, *map(jax.jit, (partial(model.apply, params), empty, step))


@pytest.mark.parametrize("mask", ["prefix", "causal"])
def test_a_target_token_moves_no_logit_before_it_and_the_source_all(mask):
    _, _, run, empty, _ = make(mask=mask, positions="learned")
    full = run(SOURCE, MASK, TARGET)
    for i in range(4):
        other = run(SOURCE, MASK, TARGET + (np.arange(4) == i))
        moved = np.abs(other - full).max(axis=(0, 2)) > 1e-6
        np.testing.assert_array_equal(moved, np.arange(4) >= i)
    other = run(SOURCE + (np.arange(5) == 0), MASK, TARGET)
    assert (np.abs(other - full).max(axis=-1) > 1e-6).all()
    # By its prefix mask alone a source is read both ways: with the last source token changed, what
    # the second layer caches of the first changes.
    caches = empty(SOURCE), empty(SOURCE + np.outer([1, 0], np.arange(5) == 4))
    keys = [np.asarray(one["layers"]["layer_1"][0])[0, :, 0] for one in caches]
    assert (np.abs(np.subtract(*keys)).max() > 1e-6) == (mask == "prefix")


@pytest.mark.each_run("t5-causal")
@pytest.mark.parametrize("mask", ["prefix", "causal"])
@pytest.mark.parametrize("positions", ["learned", "rope", "t5"])
def test_cached_steps_equal_the_whole_pass_and_padding_is_never_read(mask, positions):
    _, _, run, empty, step = make(mask=mask, positions=positions)
    full = run(SOURCE, MASK, TARGET)
    state, parts = empty(SOURCE), []
    for i in range(4):
        out, state = step(TARGET[:, i : i + 1], state)
        parts.append(out)
    np.testing.assert_allclose(np.concatenate(parts, axis=1), full, atol=1e-4)
    alone = run(SOURCE[1:, :3], MASK[1:, :3], TARGET[1:])
    np.testing.assert_allclose(alone[0], full[1], atol=1e-5)
    two = (0, 0), (0, 2)
    other = run(np.pad(SOURCE, two, constant_values=9), np.pad(MASK, two), TARGET)
    np.testing.assert_allclose(other, full, atol=1e-5)


def test_beams_find_what_is_likelier_than_greedy_or_the_same():
    model, params, *_ = make(mask="prefix", positions="learned")
    found = {}
    for beams in (1, 4):
        config = DecodeConfig(beam_size=beams, batch_size=2, max_new_tokens=4, alpha=0.0)
        decoder = SequenceDecoder(model, config, eos_id=1, pad_id=0, start_id=2, buckets=[5])
        found[beams] = [best[0].log_prob for best in decoder(params, [[5, 17, 9, 20, 11], [8, 6]])]
    assert all(b >= g - 1e-4 for b, g in zip(found[4], found[1], strict=True))
