"""Whisper: its window, its cache, the positions of its frames, and what it costs."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from transformer_lab.errors import LabError
from transformer_lab.models import parameter_shapes
from transformer_lab.models.whisper import WhisperConfig, build, training_flops

CONFIG = WhisperConfig(
    layers=2, decoder_layers=1, width=16, heads=4, decoder_heads=2, head_dim=4,
    decoder_head_dim=6, feed_forward_width=24, vocab_size=23, max_length=12, bins=5, frames=14,
)  # fmt: skip
FEATURES = jax.random.normal(jax.random.key(1), (2, 14, 5))
TARGET = jax.random.randint(jax.random.key(2), (2, 6), 0, 23)
MODEL = build(CONFIG)


@pytest.fixture(scope="module")
def params():
    params = jax.jit(MODEL.init)(jax.random.key(0), FEATURES, TARGET)
    draw = lambda x: x + 0.2 * jax.random.normal(jax.random.key(x.size), x.shape)  # noqa: E731
    return jax.tree.map(draw, params)


@pytest.fixture(scope="module")
def logits(params):
    return jax.jit(MODEL.apply)(params, FEATURES, TARGET)


@pytest.mark.each_run("2")
@pytest.mark.parametrize("chunk", [1, 2, 6])
def test_steps_over_a_cache_give_the_logits_of_the_whole(params, logits, chunk):
    @jax.jit
    def run(params):
        cache, found = MODEL.apply(params, FEATURES, 8, method="init_cache"), []
        for i in range(0, 6, chunk):
            some, cache = MODEL.apply(params, TARGET[:, i : i + chunk], cache, method="step")
            found.append(some)
        return jnp.concatenate(found, axis=1)

    np.testing.assert_allclose(run(params), logits, atol=2e-5)


def test_padding_before_a_prompt_changes_no_logit(params, logits):
    @jax.jit
    def run(params):
        cache = MODEL.apply(params, FEATURES, 9, method="init_cache")
        tokens = jnp.pad(TARGET, ((0, 0), (3, 0)), constant_values=7)
        cache["start"] = jnp.array([3, 3])
        first, cache = MODEL.apply(params, tokens[:, :5], cache, method="step")
        more, _ = MODEL.apply(params, tokens[:, 5:], cache, method="step")
        return jnp.concatenate([first, more], axis=1)[:, 3:]

    np.testing.assert_allclose(run(params), logits, atol=2e-5)


def test_every_frame_counts_a_later_token_does_not_and_rows_are_apart(params, logits):
    apply = jax.jit(MODEL.apply)
    for frame in range(14):
        moved = apply(params, FEATURES.at[1, frame].add(1.0), TARGET)
        np.testing.assert_array_equal(moved[0], logits[0])
        assert np.abs(moved[1] - logits[1]).max(axis=-1).min() > 1e-4, frame
    later = apply(params, FEATURES, TARGET.at[:, 4].add(1) % 23)
    np.testing.assert_allclose(later[:, :4], logits[:, :4], atol=1e-6)
    assert np.abs(later - logits)[:, 4:].max() > 1e-3


def test_frames_stand_at_sinusoids_that_no_gradient_moves(params):
    narrow = build(replace(CONFIG, width=4))
    found = jax.jit(narrow.init)(jax.random.key(0), FEATURES, TARGET)["params"]
    place = np.arange(7)[:, None]
    rates = np.array([1.0, 1e-4])  # the ends of the range of wavelengths
    want = np.concatenate([np.sin(place * rates), np.cos(place * rates)], axis=1)
    np.testing.assert_allclose(found["frame_positions"], want, atol=1e-6)
    loss = lambda params: jnp.square(MODEL.apply(params, FEATURES, TARGET)).sum()  # noqa: E731
    gradient = jax.jit(jax.grad(loss))(params)["params"]
    assert not np.any(gradient.pop("frame_positions"))
    assert all(np.any(leaf) for leaf in jax.tree.leaves(gradient))


def test_a_key_has_no_bias(params):
    names = {name for path in flatten_dict(params["params"]) for name in ["/".join(path[-2:])]}
    assert {"query/bias", "value/bias", "out/bias"} <= names and "key/bias" not in names


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"frames": 13}, "model.frames = 13 .* must be even"),
        ({"bins": 0}, "model.bins = 0"),
        ({"positions": "rope"}, "model.positions"),
        ({"tie_source_target": False}, "model.tie_source_target"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes, words):
    with pytest.raises(LabError, match=words):
        replace(CONFIG, **changes)


def test_a_window_of_another_shape_is_refused(params):
    with pytest.raises(LabError, match="14 frames of 6 bands.*model.frames = 14 of model.bins = 5"):
        MODEL.apply(params, jnp.zeros((1, 14, 6)), TARGET[:1])


def test_flops_are_those_of_every_product():
    """Each kernel multiplies the positions of its side; each score is a product and a sum."""
    flat = flatten_dict(parameter_shapes("whisper", CONFIG), sep="/")
    tokens, states, total = 5, 7, 0
    for path, leaf in flat.items():
        places = tokens if path.startswith("decoder/") else states
        if "cross_attention/key" in path or "cross_attention/value" in path:
            places = states
        if path == "convolution_1/kernel":
            places = 14
        if path.endswith("kernel"):
            total += 6 * leaf.size * places
    total += 6 * 23 * 16 * tokens  # the head, which is the table
    total += 12 * (2 * 4 * 4 * states * states + 2 * 6 * tokens * (tokens + states))
    assert training_flops(CONFIG, tokens) == total // tokens
