"""Bottleneck adapters in the block: their formula, their place, and the cache."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.tiny import draw
from transformer_lab import models
from transformer_lab.errors import LabError
from transformer_lab.layers.adapter import Adapter
from transformer_lab.layers.config import StackConfig
from transformer_lab.layers.stack import Block
from transformer_lab.models.decoder import DecoderConfig, build
from transformer_lab.models.encoder_decoder import EncoderDecoderConfig
from transformer_lab.training.sources import leaves

CONFIG = StackConfig(
    layers=1, width=16, heads=2, head_dim=6, feed_forward_width=20, dropout=0.0, adapter_width=3
)
X = jnp.asarray(np.random.default_rng(1).normal(size=(2, 5, 16)), jnp.float32)


@pytest.mark.parametrize(("activation", "inner"), [("relu", jax.nn.relu), ("swiglu", jax.nn.silu)])
def test_an_adapter_is_x_plus_up_of_act_of_down(activation, inner):
    module = Adapter(replace(CONFIG, activation=activation))
    params = draw(module, X)["params"]
    down, up = params["down"], params["up"]
    assert down["kernel"].shape == (16, 3) and up["kernel"].shape == (3, 16)
    want = X + inner(X @ down["kernel"] + down["bias"]) @ up["kernel"] + up["bias"]
    np.testing.assert_allclose(jax.jit(module.apply)({"params": params}, X), want, atol=1e-5)


@pytest.mark.parametrize("place", ["pre", "post", "parallel"])
def test_adapters_follow_each_sub_layer_before_the_residual(place):
    """With zero sub-layers what is left of a block is its residuals and its adapters."""
    places = {"norm_place": "pre", "block": "parallel"} if place == "parallel" else {}
    config = replace(CONFIG, norm="none", **(places or {"norm_place": place}))
    params = draw(Block(config), X)["params"]
    for name in ("attention", "feed_forward"):
        params[name] = jax.tree.map(np.zeros_like, params[name])

    @jax.jit
    def both(params):
        adapt = lambda name: Adapter(config).apply({"params": params[name]}, 0 * X)  # noqa: E731
        want = X + adapt("attention_adapter") + adapt("feed_forward_adapter")
        return Block(config).apply({"params": params}, X), want

    np.testing.assert_allclose(*both(params), atol=1e-5)


def test_a_block_starts_near_the_one_without_adapters():
    @jax.jit
    def both():
        params = Block(CONFIG).init(jax.random.key(0), X)["params"]
        plain = {name: leaf for name, leaf in params.items() if "adapter" not in name}
        base = Block(replace(CONFIG, adapter_width=0)).apply({"params": plain}, X)
        return Block(CONFIG).apply({"params": params}, X), base

    assert 0 < np.abs(np.subtract(*both())).max() < 0.02


def test_cached_decoding_agrees_with_one_pass():
    config = DecoderConfig(
        layers=2, width=16, heads=2, head_dim=6, feed_forward_width=20, adapter_width=3,
        vocab_size=11, max_length=8, dropout=0.0,
    )  # fmt: skip
    model = build(config)
    tokens = jnp.array([[3, 7, 1, 9, 4]])
    params = draw(model, tokens)

    @jax.jit
    def both(params):
        got, cache = model.apply(params, tokens[:, :3], None, 5, method="prefill")
        rest, _ = model.apply(params, tokens[:, 3:], cache, method="step")
        return model.apply(params, tokens), got, rest

    want, got, rest = both(params)
    np.testing.assert_allclose(jnp.concatenate([got, rest], axis=1), want, atol=1e-4)


def test_both_stacks_have_them_and_the_decoder_one_more_after_cross_attention():
    config = EncoderDecoderConfig(
        layers=1, width=16, heads=2, head_dim=6, feed_forward_width=20, adapter_width=3,
        vocab_size=11, max_length=8,
    )  # fmt: skip
    paths = leaves(models.parameter_shapes("encoder_decoder", config))
    found = {path.split("_adapter/")[0] for path in paths if "_adapter/" in path}
    assert found == {
        "encoder/layer_0/attention", "encoder/layer_0/feed_forward", "decoder/layer_0/attention",
        "decoder/layer_0/cross_attention", "decoder/layer_0/feed_forward",
    }  # fmt: skip


def test_a_negative_width_is_refused():
    with pytest.raises(LabError, match="model.adapter_width = -1"):
        replace(CONFIG, adapter_width=-1)
