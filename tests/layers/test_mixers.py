"""A decoder whose layers mix without attention: one call, any cut into calls, packed and padded
rows give the same numbers, in every kind and in hybrids."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_lab.errors import LabError
from transformer_lab.layers.block_config import KINDS, MixerConfig
from transformer_lab.models.decoder import Decoder, DecoderConfig
from transformer_lab.ops.stacked import stack_layers

MIXER = {
    "inner_width": 12, "state": 4, "step_rank": 3, "state_heads": 3, "gate_rank": 5, "value_dim": 6,
    "convolution": 3, "chunk": 4,
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


def start(model):
    """Parameters that are random everywhere."""
    params = jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, 2), jnp.int32))
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    moved = [x + 0.3 * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys, strict=True)]
    return jax.tree.unflatten(tree, moved)


TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, 11, (3, 12)))


@pytest.mark.parametrize("kind", [*KINDS[1:], "hybrid"])
def test_prompts_of_unequal_length_and_any_cut_give_the_logits_of_the_whole(kind):
    model = decoder(kind)
    params = start(model)
    whole = jax.jit(model.apply)(params, TOKENS)
    # The same texts, padded on the left by 0, 2 and 5 places; then three more calls.
    lengths = [8, 6, 3]
    prompts = np.zeros((3, 8), np.int32)
    segments = np.zeros((3, 8), np.int32)
    for row, n in enumerate(lengths):
        prompts[row, 8 - n :], segments[row, 8 - n :] = TOKENS[row, :n], 1
    prefill = jax.jit(partial(model.apply, method="prefill"), static_argnums=3)
    step = jax.jit(partial(model.apply, method="step"))
    logits, cache = prefill(params, prompts, segments, 16)
    for row, n in enumerate(lengths):
        np.testing.assert_allclose(logits[row, 8 - n :], whole[row, :n], atol=2e-5)
    at = np.asarray(lengths)
    for size in (1, 2, 1):
        more = np.stack([TOKENS[row, n : n + size] for row, n in enumerate(at)])
        logits, cache = step(params, more, cache)
        for row, n in enumerate(at):
            np.testing.assert_allclose(logits[row], whole[row, n : n + size], atol=2e-5)
        at += size
    empty = model.apply(params, 3, 16, method="init_cache")
    logits, _ = step(params, TOKENS[:, :4], empty)
    np.testing.assert_allclose(logits, whole[:, :4], atol=2e-5)


@pytest.mark.parametrize("kind", [*KINDS[1:], "hybrid"])
def test_documents_of_a_packed_row_and_scanned_layers_change_nothing(kind):
    model = decoder(kind)
    params = start(model)
    row = jnp.concatenate([TOKENS[0, :5], TOKENS[1, :4], TOKENS[2, :3]])[None]
    segments = jnp.repeat(jnp.asarray([1, 2, 0]), jnp.asarray([5, 4, 3]))[None]

    def loss(params, model):
        logits = model.apply(params, row, None, segments)
        return jnp.square(logits[0, :9]).sum(), logits

    (value, logits), gradient = jax.jit(
        jax.value_and_grad(partial(loss, model=model), has_aux=True)
    )(params)
    for n, size, first in ((0, 5, 0), (1, 4, 5)):
        alone = jax.jit(model.apply)(params, TOKENS[n : n + 1, :size])
        np.testing.assert_allclose(logits[:, first : first + size], alone, atol=2e-5)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradient))
    scanned = decoder(kind, scan_layers=True, remat="dots")
    (same, _), gradients = jax.jit(jax.value_and_grad(partial(loss, model=scanned), has_aux=True))(
        params
    )
    np.testing.assert_allclose(same, value, rtol=1e-5)
    for ours, theirs in zip(*map(jax.tree.leaves, (gradients, gradient)), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-3 * max(1.0, np.abs(theirs).max()))


@pytest.mark.parametrize("kind", KINDS[1:])
def test_no_later_token_changes_a_logit(kind):
    model = decoder(kind)
    params = start(model)

    changed = TOKENS.at[:, 7].add(1) % 11
    apply = jax.jit(model.apply)
    before, after = apply(params, TOKENS), apply(params, changed)
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
    params = start(plain)
    stacked = stack_layers(params, scanned.config)
    assert "layers" in stacked["params"]["decoder"]  # all are of one size, as a run trains them
    expected = jax.jit(plain.apply)(params, TOKENS)
    np.testing.assert_allclose(jax.jit(scanned.apply)(stacked, TOKENS), expected, atol=1e-5)
    alike = DecoderConfig(**SIZES | kinds | {"layer_kinds": ()})  # the window in all layers
    assert np.abs(jax.jit(Decoder(alike).apply)(params, TOKENS) - expected).max() > 1e-3


def test_a_convolution_starts_as_torchs_does_whatever_the_number_of_channels():
    config = DecoderConfig(**SIZES, mixer=MixerConfig("mamba", inner_width=4000, convolution=4))
    params = jax.jit(Decoder(config).init)(jax.random.key(0), jnp.zeros((1, 2), jnp.int32))
    kernel = params["params"]["decoder"]["layer_0"]["mixer"]["convolution_kernel"]
    # Uniform within 1 / sqrt(taps): a deviation of that over sqrt(3).
    assert np.abs(kernel).max() <= 0.5
    np.testing.assert_allclose(kernel.std(), 0.5 / 3**0.5, rtol=0.02)
