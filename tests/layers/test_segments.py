"""Segment-level recurrence: equal to masked attention, to cached segments and to decoding."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.tiny import draw
from transformer_lab.errors import LabError
from transformer_lab.layers.config import StackConfig
from transformer_lab.layers.positions import Places
from transformer_lab.layers.stack import Stack
from transformer_lab.models.decoder import Decoder, DecoderConfig
from transformer_lab.ops.attention import attend, attend_nearest
from transformer_lab.ops.segments import as_rows
from transformer_lab.ops.visibility import Visible, recallable, recent

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


def test_attention_to_the_nearest_keys_is_that_of_a_sorted_list():
    """By NumPy, key by key; of as many as there are it is attention under the mask."""
    rng = np.random.default_rng(2)
    query = rng.normal(size=(2, 4, 3, 5)).astype(np.float32)
    key, value = rng.normal(size=(2, 2, 2, 6, 5)).astype(np.float32)
    mask = rng.random((2, 1, 3, 6)) < 0.7
    mask[0, 0, 0] = False
    expected = np.zeros_like(query)
    for b, n, t in np.ndindex(query.shape[:3]):
        scores = key[b, n // 2] @ query[b, n, t] / np.sqrt(5)
        best = sorted(np.flatnonzero(mask[b, 0, t]), key=lambda i: -scores[i])[:2]
        if best:
            weights = np.exp(scores[best])
            expected[b, n, t] = weights @ value[b, n // 2][best] / weights.sum()
    arrays = tuple(map(jnp.asarray, (query, key, value, mask)))
    np.testing.assert_allclose(attend_nearest(*arrays, 2), expected, atol=1e-5)
    np.testing.assert_allclose(attend_nearest(*arrays, 6), attend(*arrays)[0], atol=1e-6)


def test_a_recalling_layer_mixes_what_is_near_with_what_is_far():
    """With a gate of -inf it is the plain model; with one of +inf, queries that have a memory
    attend to it alone. No gradient flows into it."""
    positions = "rope"
    rng = np.random.default_rng(3)
    x = jnp.asarray(rng.normal(size=(1, 8, 8)), jnp.float32)
    sizes = {"segment": 2, "memory": 1, "recall_layer": 0}
    plain = stack(positions, segment=2, memory=1)
    found = stack(positions, recall=8, recall_length=3, **sizes)
    params = draw(found, x)
    attention = params["params"]["layer_0"]["attention"]
    assert attention["recall_gate"].shape == (2,)
    assert "recall_gate" not in params["params"]["layer_1"]["attention"]

    compiled = cache(lambda model: jax.jit(model.apply))

    def run(gate, model=found):
        attention["recall_gate"] = jnp.full((2,), gate)
        return compiled(model)(params, x)

    np.testing.assert_allclose(run(-jnp.inf), compiled(plain)(params, x), atol=1e-6)
    assert np.abs(run(0.0) - run(-jnp.inf))[0, 4:].max() > 1e-2
    np.testing.assert_allclose(run(jnp.inf)[:, :2], run(-jnp.inf)[:, :2], atol=1e-6)  # none is far
    order = jnp.arange(8)
    far = recallable(order, order, jnp.zeros(1, jnp.int32), 2, 1, 3)[0]
    assert far[7].tolist() == [0, 0, 1, 1, 1, 0, 0, 0] and far[3].tolist() == [1, *[0] * 7]
    near = recent(order, order, jnp.zeros(1, jnp.int32), 2, 1)[0]
    bound = stack(positions).bind(params).layer[0].attention
    places = Places(order, order)

    @jax.jit
    def mixed(x):
        all_far = bound(x, None, Visible(mask=far[None, None]), places=places)
        local = bound(x, None, Visible(causal=True, mask=near[None, None]), places=places)
        return jnp.where(far.any(axis=1)[:, None], all_far, local)

    attention["recall_gate"] = jnp.full((2,), jnp.inf)
    own = found.bind(params).layer[0].attention
    mine = jax.jit(lambda x: own(x))
    np.testing.assert_allclose(mine(x), mixed(x), atol=1e-5)
    gradient = jax.jit(jax.grad(lambda x: own(x)[0, 7].sum()))(x)
    assert np.abs(gradient[0, 7]).max() > 1e-3 and not np.asarray(gradient)[0, :7].any()
    one = run(1.0, stack(positions, recall=1, recall_length=3, **sizes))
    assert np.abs(one - run(1.0))[0, 4:].max() > 1e-3  # the nearest alone is not all of them


def test_texts_are_decoded_as_they_were_read():
    """A prompt at once, and tokens one by one, see what a row in training sees; also behind padding
    on the left, and next to other documents of a packed row."""
    config = DecoderConfig(
        **SIZES, positions="transformer_xl", segment=SEGMENT, memory=1, vocab_size=11,
        recall=1, recall_length=2, recall_layer=1,
    )  # fmt: skip
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
        ({"recall": 2}, "set model.segment"),
        ({"recall": 2, "segment": 2, "recall_layer": 6}, "is none of model.layers = 6"),
        ({"segment": 2, "window": 4}, "does not go with model.window"),
    ):
        with pytest.raises(LabError, match=words):
            StackConfig(**settings)
    with pytest.raises(LabError, match="model.segment is for decoders"):
        StackConfig(segment=2).reads_both_ways("an encoder")
