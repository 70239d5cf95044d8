"""A decoder whose layers mix without attention: one call, any cut into calls, packed and padded
rows give the same numbers, in every kind and in hybrids."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.tiny import draw
from transformer_lab.errors import LabError
from transformer_lab.layers.block_config import KINDS, MixerConfig, mixer_of
from transformer_lab.models.decoder import Decoder, DecoderConfig
from transformer_lab.ops.stacked import stack_layers

MIXER = {
    "inner_width": 12, "state": 4, "step_rank": 3, "state_heads": 3, "gate_rank": 5, "value_dim": 6,
    "convolution": 3, "chunk": 5,
}  # fmt: skip
SIZES = {
    "layers": 2, "width": 8, "heads": 2, "head_dim": 4, "feed_forward_width": 10, "max_length": 16,
    "vocab_size": 11, "positions": "none", "norm_place": "pre", "dropout": 0.0,
}  # fmt: skip
HYBRID = ("mamba/none", "attention", "full", "rwkv/shifted")


def decoder(kind, **more):
    """A decoder of one kind of mixer, or the hybrid, with a window for its attention."""
    settings = dict(SIZES)
    if kind == "hybrid":
        settings |= {"layer_kinds": HYBRID, "layers": 4, "window": 3}
    elif kind == "rwkv":
        settings |= {"feed_forward": "shifted"}
    mixer = MixerConfig(kind="attention" if kind == "hybrid" else kind, **MIXER)
    return Decoder(DecoderConfig(**settings, mixer=mixer, **more))


ALL = [*KINDS[1:], "hybrid"]
TOKENS = np.random.default_rng(0).integers(0, 11, (3, 12))
CHANGED = np.where(np.arange(12) == 7, (TOKENS + 1) % 11, TOKENS)


@cache
def whole(kind):
    """A model, its parameters, and the logits of TOKENS and of CHANGED, all rows in one call."""
    model = decoder(kind)
    params = draw(model, TOKENS, size=0.4)
    logits = jax.jit(model.apply)(params, np.concatenate([TOKENS, CHANGED]))
    return model, params, np.asarray(logits)


@pytest.mark.each_run("mamba2", "rwkv")
@pytest.mark.parametrize("kind", ALL)
def test_prompts_of_unequal_length_and_any_cut_give_the_logits_of_the_whole(kind):
    model, params, want = whole(kind)
    # The same texts, padded on the left by 0, 2 and 5 places; then three more calls.
    lengths = [8, 6, 3]
    prompts, segments = np.zeros((2, 3, 8), np.int32)
    for row, n in enumerate(lengths):
        prompts[row, 8 - n :], segments[row, 8 - n :] = TOKENS[row, :n], 1
    empty = jax.jit(partial(model.apply, method="init_cache"), static_argnums=(1, 2))
    prefill = jax.jit(partial(model.apply, method="prefill"), static_argnums=3)
    step = jax.jit(partial(model.apply, method="step"))
    logits, filled = prefill(params, prompts, segments, 16)
    for row, n in enumerate(lengths):
        np.testing.assert_allclose(logits[row, 8 - n :], want[row, :n], atol=2e-5)
    for at, state in ((np.asarray(lengths), filled), (np.zeros(3, int), empty(params, 3, 16))):
        for size in (1, 2, 1):
            places = at[:, None] + np.arange(size)
            more = np.take_along_axis(TOKENS, places, axis=1)
            logits, state = step(params, more, state)
            expected = np.take_along_axis(want[:3], places[..., None], axis=1)
            np.testing.assert_allclose(logits, expected, atol=2e-5)
            at = at + size


@pytest.mark.each_run("mamba", "hybrid")
@pytest.mark.parametrize("kind", ALL)
def test_documents_of_a_packed_row_and_scanned_layers_change_nothing(kind):
    model, params, want = whole(kind)
    row = jnp.asarray(np.concatenate([TOKENS[0, :5], TOKENS[1, :4], TOKENS[2, :3]])[None])
    segments = jnp.asarray(np.repeat([1, 2, 0], [5, 4, 3])[None])

    def loss(params, model):
        logits = model.apply(params, row, None, segments)
        return jnp.square(logits[0, :9]).sum(), logits

    @jax.jit
    def both(params):
        models = model, decoder(kind, scan_layers=True, remat="dots")
        return [jax.value_and_grad(loss, has_aux=True)(params, model) for model in models]

    ((value, logits), gradient), ((same, _), gradients) = both(params)
    # What each document gives alone are the first logits of the text that it begins.
    np.testing.assert_allclose(logits[0, :5], want[0, :5], atol=2e-5)
    np.testing.assert_allclose(logits[0, 5:9], want[1, :4], atol=2e-5)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradient))
    np.testing.assert_allclose(same, value, rtol=1e-5)
    for ours, theirs in zip(*map(jax.tree.leaves, (gradients, gradient)), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-3 * max(1.0, np.abs(theirs).max()))


@pytest.mark.parametrize("kind", KINDS[1:])
def test_no_later_token_changes_a_logit(kind):
    before, after = np.split(whole(kind)[2], 2)
    np.testing.assert_allclose(before[:, :7], after[:, :7], atol=1e-6)
    assert np.abs(before[:, 7:] - after[:, 7:]).max() > 1e-3


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"mixer": {"kind": "mamba3"}}, "mamba"),
        ({"mixer": {"kind": "mamba2", "inner_width": 10, "state_heads": 3}}, "inner_width"),
        (
            {"mixer": {"kind": "mamba2", "inner_width": 12, "state_heads": 3, "state_groups": 2}},
            "state_groups",
        ),
        ({"mixer": {"state": 0}}, "state"),
        ({"mixer": {"step_min": 0.2}}, "step_min"),
        ({"layer_kinds": ("mambo",)}, "layer_kinds"),
        ({"layer_kinds": ("mamba/nothing",)}, "none"),
        ({"layer_kinds": ("mamba/none",), "block": "parallel"}, "feed-forward in every layer"),
        ({"layer_kinds": ("mamba",), "mask": "prefix"}, "from left to right"),
    ],
)
def test_settings_that_no_mixer_has_are_refused_by_name(settings, words):
    with pytest.raises(LabError, match=words):
        settings = dict(settings)
        mixer = MixerConfig(**settings.pop("mixer", {}))
        DecoderConfig(**SIZES, mixer=mixer, **settings)


def test_stacked_layers_of_local_and_full_attention_stay_in_their_order():
    kinds = {"layer_kinds": ("attention", "full"), "window": 3, "layers": 4}
    plain, scanned = (
        Decoder(DecoderConfig(**SIZES | kinds, scan_layers=scan)) for scan in (False, True)
    )
    params = draw(plain, TOKENS, size=0.4)
    stacked = stack_layers(params, scanned.config)
    assert "layers" in stacked["params"]["decoder"]  # all are of one size, as a run trains them
    alike = Decoder(DecoderConfig(**SIZES | kinds | {"layer_kinds": ()}))  # a window in all layers

    @jax.jit
    def run(params, stacked, tokens):
        others = alike.apply(params, tokens), scanned.apply(stacked, tokens)
        return plain.apply(params, tokens), *others

    expected, windows, found = map(np.asarray, run(params, stacked, TOKENS))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert np.abs(windows - expected).max() > 1e-3


def test_state_spaces_start_as_their_papers_and_torchs_convolutions_have_it():
    sizes = {"inner_width": 4000, "state": 6, "state_heads": 5, "convolution": 4}

    @jax.jit
    def init():
        found = {}
        for kind in ("s4d", "mamba", "mamba2"):
            config = DecoderConfig(**SIZES, mixer=MixerConfig(kind, **sizes))
            params = mixer_of(kind)(config).init(jax.random.key(0), jnp.zeros((1, 2, 8)))
            found[kind] = params["params"]
        return found

    found = jax.device_get(init())
    # Uniform within 1 / sqrt(taps): a deviation of that over sqrt(3).
    kernel = found["mamba"]["convolution_kernel"]
    assert np.abs(kernel).max() <= 0.5
    np.testing.assert_allclose(kernel.std(), 0.5 / 3**0.5, rtol=0.02)
    # Poles: -1/2 + i pi n (Gu 2022); -1, ..., -N of each channel (Gu 2023); those of heads.
    one = found["s4d"]
    np.testing.assert_allclose(-np.exp(one["log_real"]), -0.5, rtol=1e-6)
    np.testing.assert_allclose(one["imaginary"], np.tile(np.pi * np.arange(3), (8, 1)), rtol=1e-6)
    poles = np.exp(found["mamba"]["log_poles"])
    np.testing.assert_allclose(poles, np.tile(np.arange(1, 7), (4000, 1)), rtol=1e-5)
    np.testing.assert_allclose(np.exp(found["mamba2"]["log_poles"]), np.arange(1, 6), rtol=1e-5)
    # Step sizes from step_min to step_max, even in their logarithm.
    steps = np.log1p(np.exp(found["mamba"]["step_bias"].astype(np.float64)))
    for some in (steps, np.log1p(np.exp(found["mamba2"]["step_bias"])), np.exp(one["log_step"])):
        assert some.min() >= 1e-3 * 0.999 and some.max() <= 0.1 * 1.001
    np.testing.assert_allclose(np.log(steps).mean(), np.log(1e-2), atol=0.1)
