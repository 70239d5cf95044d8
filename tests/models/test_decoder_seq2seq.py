"""A decoder that translates: what it reads, padding, cache, beams."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_lab.decoding.batch import SequenceDecoder
from transformer_lab.decoding.config import DecodeConfig
from transformer_lab.models.decoder_seq2seq import DecoderSeq2SeqConfig, build

CONFIG = DecoderSeq2SeqConfig(
    layers=2, width=12, heads=4, head_dim=6, feed_forward_width=20, vocab_size=23, max_length=8,
    dropout=0.0, init_std=0.5,
)  # fmt: skip
SOURCE = jnp.array([[5, 17, 9, 20, 11], [8, 6, 19, 0, 0]])
MASK = SOURCE != 0
TARGET = jnp.array([[2, 7, 13, 4], [2, 21, 5, 16]])


def make(**changes):
    model = build(replace(CONFIG, **changes))
    return model, model.init(jax.random.key(0), SOURCE, MASK, TARGET)


@pytest.mark.parametrize("mask", ["prefix", "causal"])
def test_a_target_token_moves_no_logit_before_it_and_the_source_all(mask):
    model, params = make(mask=mask)
    run = jax.jit(model.apply)
    full = run(params, SOURCE, MASK, TARGET)
    for i in range(4):
        other = run(params, SOURCE, MASK, TARGET.at[:, i].add(1))
        moved = np.abs(other - full).max(axis=(0, 2)) > 1e-6
        np.testing.assert_array_equal(moved, np.arange(4) >= i)
    other = run(params, SOURCE.at[:, 0].add(1), MASK, TARGET)
    assert (jnp.abs(other - full).max(axis=-1) > 1e-6).all()


def test_by_its_prefix_mask_alone_a_source_is_read_both_ways():
    """With the last source token changed, what the second layer caches of the first changes."""
    for mask in ("prefix", "causal"):
        model, params = make(mask=mask)

        def first_key(source, model=model, params=params):
            cache = model.apply(params, source, MASK, 3, method="init_cache")
            return cache["layers"]["layer_1"][0][0, :, 0]

        moved = jnp.abs(first_key(SOURCE.at[0, 4].add(1)) - first_key(SOURCE)).max() > 1e-6
        assert moved == (mask == "prefix")


@pytest.mark.parametrize("mask", ["prefix", "causal"])
@pytest.mark.parametrize("positions", ["learned", "rope", "t5"])
def test_cached_steps_equal_the_whole_pass_and_padding_is_never_read(mask, positions):
    model, params = make(mask=mask, positions=positions)
    full = model.apply(params, SOURCE, MASK, TARGET)
    cache = model.apply(params, SOURCE, MASK, 4, method="init_cache")
    parts = []
    for i in range(4):
        out, cache = model.apply(params, TARGET[:, i : i + 1], cache, method="step")
        parts.append(out)
    np.testing.assert_allclose(jnp.concatenate(parts, axis=1), full, atol=1e-4)
    alone = model.apply(params, SOURCE[1:, :3], MASK[1:, :3], TARGET[1:])
    np.testing.assert_allclose(alone[0], full[1], atol=1e-5)
    wider = [jnp.pad(x, ((0, 0), (0, 2))) for x in (SOURCE + 1, MASK)]
    other = model.apply(params, wider[0] - 1, wider[1], TARGET)
    np.testing.assert_allclose(other, full, atol=1e-5)


def test_beams_find_what_is_likelier_than_greedy_or_the_same():
    model, params = make()
    found = {}
    for beams in (1, 4):
        config = DecodeConfig(beam_size=beams, batch_size=2, max_new_tokens=4, alpha=0.0)
        decoder = SequenceDecoder(model, config, eos_id=1, pad_id=0, start_id=2, buckets=[5])
        found[beams] = [best[0].log_prob for best in decoder(params, [[5, 17, 9, 20, 11], [8, 6]])]
    assert all(b >= g - 1e-4 for b, g in zip(found[4], found[1], strict=True))
