"""Norms in the digits that matter, tanh in their place, and DeepNorm's two constants."""

import jax
import numpy as np
import pytest

from tests.tiny import draw
from transformer_lab.layers.basic import DyT, norm
from transformer_lab.layers.config import StackConfig
from transformer_lab.layers.stack import Block, Stack
from transformer_lab.models.decoder import DecoderConfig
from transformer_lab.models.presets import DECODERS

RNG = np.random.default_rng(0)


def run(layer, x):
    return jax.jit(layer.init_with_output)(jax.random.key(0), np.float32(x))


@pytest.mark.parametrize(
    ("config", "epsilon", "centred"),
    [
        (DecoderConfig(), 1e-5, True),
        (DECODERS["gpt2_small"].config, 1e-5, True),
        (DECODERS["llama_7b"].config, 1e-6, False),
    ],
    ids=["default", "gpt2", "llama"],
)
def test_the_epsilon_is_the_models_on_an_input_of_std_1e_3(config, epsilon, centred):
    """There the epsilon of another family would change the result by 10 % and more."""
    x = (RNG.normal(size=(4, 48)) * 1e-3 + 5e-4).astype(np.float32).astype(np.float64)
    moved = x - x.mean(-1, keepdims=True) if centred else x
    square = np.square(moved).mean(-1, keepdims=True)
    got, params = run(norm(config), x)
    np.testing.assert_allclose(got, moved / np.sqrt(square + epsilon), atol=1e-5)
    assert ("bias" in params["params"]) is centred
    other = moved / np.sqrt(square + (1e-6 if centred else 1e-5))
    assert np.abs(got - other).max() > 0.1


@pytest.mark.parametrize("use_bias", [True, False])
def test_dyt_is_a_scaled_tanh_without_statistics(use_bias):
    x = RNG.normal(size=(3, 5)) * 4
    layer = DyT(0.5, use_bias)
    start, params = run(layer, x)
    np.testing.assert_allclose(start, np.tanh(0.5 * x), atol=1e-6)
    assert set(params["params"]) == {"alpha", "scale"} | ({"bias"} if use_bias else set())
    drawn = draw(layer, np.float32(x))
    p = {"bias": 0.0, **drawn["params"]}
    apply = jax.jit(layer.apply)
    got = apply(drawn, np.float32(x))
    np.testing.assert_allclose(got, np.tanh(p["alpha"] * x) * p["scale"] + p["bias"], atol=1e-5)
    # A number's result does not depend on its neighbours.
    alone = apply(drawn, np.float32(x * np.eye(3, 5)))
    np.testing.assert_allclose(np.diag(alone), np.diag(got), atol=1e-6)


def test_dyt_stands_where_the_norms_would_with_its_own_start():
    config = StackConfig(
        layers=1, width=8, heads=2, head_dim=4, feed_forward_width=12, norm="dyt",
        norm_place="pre", dyt_alpha=0.8,
    )  # fmt: skip
    init = jax.jit(Stack(config, 1).init)
    params = init(jax.random.key(0), np.ones((1, 2, 8), np.float32))["params"]
    norms = [params["final_norm"], params["layer_0"]["attention_norm"]]
    np.testing.assert_allclose([n["alpha"] for n in norms], 0.8, rtol=1e-6)


def test_deep_norm_scales_residuals_and_starts_by_the_papers_constants():
    """Wang 2022, figure 2(b), decoder of N layers: alpha = (2 N)^(1/4), beta = (8 N)^(-1/4)."""
    sizes = {"layers": 6, "width": 64, "heads": 4, "head_dim": 16, "feed_forward_width": 96}
    deep, post = (StackConfig(**sizes, norm_place=place) for place in ("deep", "post"))
    alpha, beta = 12**0.25, 48**-0.25
    x = np.float32(RNG.normal(size=(2, 3, 64)))
    inits = (jax.jit(Block(config).init) for config in (deep, post))
    trees = [jax.device_get(init(jax.random.key(0), x)["params"]) for init in inits]
    for kind, name, gain in [
        *(("attention", name, 1.0) for name in ("query", "key")),
        *(("attention", name, beta) for name in ("value", "out")),
        *(("feed_forward", name, beta) for name in ("up", "down")),
    ]:
        ours, plain = (tree[kind][name]["kernel"] for tree in trees)
        np.testing.assert_allclose(ours, gain * plain, rtol=1e-5)
    # Sub-layers that put out nothing leave norm(alpha x), which forgets alpha; a constant does not.
    quiet = jax.tree.map(np.zeros_like, trees[0])
    quiet["attention"]["out"]["bias"] += np.arange(64.0, dtype=np.float32)
    for name in ("attention_norm", "feed_forward_norm"):
        quiet[name]["scale"] += 1.0
    want = alpha * np.asarray(x, np.float64) + np.arange(64.0)
    want = (want - want.mean(-1, keepdims=True)) / want.std(-1, keepdims=True)
    np.testing.assert_allclose(jax.jit(Block(deep).apply)({"params": quiet}, x), want, atol=1e-4)
