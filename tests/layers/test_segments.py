"""Segment-level recurrence: equal to masked attention, to cached segments and to decoding."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.tiny import draw
from transformer_lab.errors import LabError
from transformer_lab.layers.config import StackConfig
from transformer_lab.layers.stack import Stack
from transformer_lab.models.decoder import Decoder, DecoderConfig
from transformer_lab.ops.segments import as_rows
from transformer_lab.ops.visibility import Visible, recent

SIZES = {"layers": 2, "width": 8, "heads": 2, "head_dim": 4, "feed_forward_width": 12,
         "dropout": 0.0, "norm_place": "pre", "init_std": 0.5}  # fmt: skip
T, SEGMENT, MEMORY = 7, 3, 2


def stack(positions="none", **more):
    config = StackConfig(**SIZES, positions=positions, **more)
    return Stack(config, config.layers, causal=True)


@pytest.mark.each_run("transformer_xl")
@pytest.mark.parametrize("positions", ["transformer_xl", "rope", "alibi"])
def test_segments_see_themselves_and_the_memory_alone(positions):
    """All at once, the recurrence is attention with a mask; in its gradient the memory is fixed."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(2, T, 8)), jnp.float32)
    cut, whole = stack(positions, segment=SEGMENT, memory=MEMORY), stack(positions)
    params = draw(whole, x)
    order = jnp.arange(T)
    mask = recent(order, order, jnp.zeros(1, jnp.int32), SEGMENT, MEMORY)
    expected = jax.jit(whole.apply)(params, x, Visible(mask=mask[:, None]))
    np.testing.assert_allclose(jax.jit(cut.apply)(params, x), expected, atol=2e-5)
    gradient = jax.jit(jax.grad(lambda x: cut.apply(params, x)[0, 3:6].sum()))(x)
    assert (np.abs(gradient[0, 3:6]).max(axis=1) > 1e-4).all()
    assert not np.asarray(gradient)[0, [0, 1, 2, 6]].any()
    moved = jax.jit(cut.apply)(params, x.at[0, 2, 0].add(1.0)) - expected
    assert np.abs(moved[0, 3]).max() > 1e-3  # yet the memory is seen
    alone = jax.jit(stack(positions, segment=SEGMENT).apply)(params, x)[:, 3:6]  # no memory
    expected = jax.jit(whole.apply)(params, x[:, 3:6])
    np.testing.assert_allclose(alone, expected, atol=2e-5)


def test_one_segment_after_the_other_over_cached_states_is_the_same():
    """By hand, as in Dai 2019, equations 1 to 3: a layer's keys are made of the cached inputs of
    the segment before, and its own."""
    rng = np.random.default_rng(1)
    x = jnp.asarray(rng.normal(size=(1, 6, 8)), jnp.float32)
    cut, whole = stack(segment=3, memory=3), stack()
    params = draw(whole, x)
    bound, outs, cached = whole.bind(params), [], {}
    for first in (0, 3):
        h = x[:, first : first + 3]
        for i, layer in enumerate(bound.layer):
            both = jnp.concatenate([cached.get(i, h[:, :0]), h], axis=1)
            order = jnp.arange(both.shape[1])
            seen = Visible(mask=(order[None] <= order[-3:, None])[None, None])
            norm = layer.attention_norm
            keys = layer.attention.keys_and_values(norm(both))
            cached[i], h = h, h + layer.attention(norm(h), keys, seen)
            h = h + layer.feed_forward(layer.feed_forward_norm(h), None)
        outs.append(bound.final_norm(h))
    found = jax.jit(cut.apply)(params, x)
    np.testing.assert_allclose(found, jnp.concatenate(outs, axis=1), atol=2e-5)


def test_texts_are_decoded_as_they_were_read():
    """A prompt at once, and tokens one by one, see what a row in training sees; also behind padding
    on the left, and next to other documents of a packed row."""
    config = DecoderConfig(
        **SIZES, positions="transformer_xl", segment=SEGMENT, memory=MEMORY, vocab_size=11
    )
    model, tokens = Decoder(config), jnp.asarray([[4, 3, 9, 2, 7, 5, 8, 1]])
    params = draw(model, tokens)
    whole = jax.jit(model.apply)(params, tokens)
    padded = jnp.concatenate([jnp.zeros((1, 2), jnp.int32), tokens[:, :4]], axis=1)
    real = (jnp.arange(6) >= 2).astype(jnp.int32)[None]
    prefill = jax.jit(partial(model.apply, method="prefill"), static_argnums=3)
    logits, cache = prefill(params, padded, real, 10)
    np.testing.assert_allclose(logits[:, 2:], whole[:, :4], atol=3e-5)
    step = jax.jit(lambda token, cache: model.apply(params, token, cache, method="step"))
    for i in range(4, 8):
        logits, cache = step(tokens[:, i : i + 1], cache)
        np.testing.assert_allclose(logits[:, 0], whole[:, i], atol=3e-5)
    packed = jnp.concatenate([tokens[:, :3], tokens[:, :4]], axis=1)
    numbers = jnp.asarray([[1, 1, 1, 2, 2, 2, 2]])
    found = jax.jit(model.apply)(params, packed, None, numbers)
    np.testing.assert_allclose(found[:, 3:], whole[:, :4], atol=3e-5)


def test_parts_become_rows():
    x = jnp.arange(6).reshape(2, 3)
    assert as_rows(x, jnp.arange(2), 2, 1).tolist() == [[0, 1], [1, 2], [3, 4], [4, 5]]


def test_settings_that_do_not_go_with_segments_are_refused():
    for settings, words in (
        ({"memory": 2}, "set model.segment"),
        ({"segment": 2, "window": 4}, "does not go with model.window"),
    ):
        with pytest.raises(LabError, match=words):
            StackConfig(**settings)
    with pytest.raises(LabError, match="model.segment is for decoders"):
        StackConfig(segment=2).reads_both_ways("an encoder")
