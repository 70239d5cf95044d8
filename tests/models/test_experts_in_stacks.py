"""Experts in every kind of stack: equal ones are a dense feed-forward; what towers tell."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict

from tests.tiny import draw
from transformer_lab.errors import LabError
from transformer_lab.layers.block_config import ExpertsConfig, MixerConfig
from transformer_lab.models import family, listened
from transformer_lab.models.decoder import DecoderConfig
from transformer_lab.models.encoder import EncoderConfig
from transformer_lab.models.encoder_decoder import EncoderDecoderConfig
from transformer_lab.models.two_towers import TwoTowersConfig
from transformer_lab.models.vision import VisionConfig

SIZES = {"layers": 2, "width": 12, "heads": 2, "head_dim": 6, "feed_forward_width": 10}
SIZES |= {"dropout": 0.0, "feed_forward_bias": False}
SPARSE = {"layer_kinds": ("attention/dense", "attention/experts"), "experts": ExpertsConfig(3)}
TOKENS = jnp.asarray(np.random.default_rng(1).integers(1, 11, (2, 5)))
REAL = jnp.asarray(np.arange(5) < np.array([[5], [3]]))
IMAGES = jnp.asarray(np.random.default_rng(2).normal(size=(2, 8, 8, 3)), jnp.float32)
PATCHES = {"image_size": (8, 8), "patch_size": (4, 4)}
CASES = {
    "encoder": (EncoderConfig(vocab_size=11, attention_dropout=0.0, **SIZES), (TOKENS, REAL)),
    "encoder_decoder": (EncoderDecoderConfig(vocab_size=11, **SIZES), (TOKENS, REAL, TOKENS)),
    "vision": (VisionConfig(classes=4, **PATCHES, **SIZES), (IMAGES,)),
}


@pytest.mark.each_run("encoder_decoder")
@pytest.mark.parametrize("kind", CASES)
def test_equal_experts_are_one_feed_forward(kind):
    """The weights of a token's experts sum to 1, and each makes the same of it."""
    config, inputs = CASES[kind]
    dense, sparse = (family(kind).build(c) for c in (config, replace(config, **SPARSE)))
    params = draw(dense, *family(kind).example_inputs(), size=0.3)["params"]
    flat, moved = flatten_dict(params), 0
    for path in list(flat):
        if path[-4:-2] == ("layer_1", "feed_forward"):
            moved += 1
            flat[path[:-1]] = np.tile(flat.pop(path), (3, 1, 1))
            router = np.float32(np.random.default_rng(3).normal(size=(12, 3)))
            flat[*path[:-2], "router"] = router
    assert moved == (4 if kind == "encoder_decoder" else 2)
    both = jax.jit(lambda a, b: (dense.apply(a, *inputs), listened(sparse.apply)(b, *inputs)))
    computed = both({"params": params}, {"params": unflatten_dict(flat)})
    want, (found, told) = jax.device_get(computed)
    if kind == "encoder":  # where padding goes nowhere
        found, want = found["states"][REAL], want["states"][REAL]
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-5), found, want)
    tokens = {"encoder": 8, "encoder_decoder": 8 + 10, "vision": 2 * 5}[kind]
    assert told["losses"]["expert_balance"][1] == tokens
    assert told["losses"]["expert_dropped"][0] == 0


def test_towers_tell_their_entropies_by_their_names():
    """LIMoE (Mustafa 2022, eq. 2-3): the mean of entropies, and minus the entropy of the mean."""
    experts = ExpertsConfig(3, local_entropy=0.5, global_entropy=0.25, enough_entropy=2.0)
    sizes = SIZES | {"layers": 1, "feed_forward": "experts", "experts": experts}
    config = TwoTowersConfig(
        image=VisionConfig(head="none", **PATCHES, **sizes),
        text=DecoderConfig(vocab_size=11, max_length=5, **sizes),
        projection=4,
        eos_id=7,
    )
    model = family("two_towers").build(config)
    variables = jax.device_get(draw(model, IMAGES[:1], TOKENS[:1], size=0.3))
    routers = {"image": "image/encoder", "text": "text/decoder"}
    flat = flatten_dict(variables, sep="/")
    for place in routers.values():
        router = f"params/{place}/layer_0/feed_forward/router"
        flat[router] = 7.0 * flat[router]
    variables = unflatten_dict(flat, sep="/")

    normed = lambda module, _: module.name == "feed_forward_norm"  # noqa: E731

    def call(variables):
        _, kept = model.apply(variables, IMAGES, TOKENS, capture_intermediates=normed)
        return listened(model.apply)(variables, IMAGES, TOKENS)[1]["losses"], kept

    told, kept = jax.device_get(jax.jit(call)(variables))
    for tower, place in routers.items():
        stack = place.split("/")[1]
        states = kept["intermediates"][tower][stack]["layer_0"]["feed_forward_norm"]["__call__"][0]
        logits = states @ flat[f"params/{place}/layer_0/feed_forward/router"]
        shares = np.exp(logits).reshape(10, 3)
        shares /= shares.sum(axis=1, keepdims=True)
        entropy = lambda p: -(p * np.log(p)).sum(axis=-1)  # noqa: E731
        total, weight, scaled = told[f"{tower}_router_entropy"]
        np.testing.assert_allclose(total / weight, entropy(shares).mean(), rtol=1e-4)
        np.testing.assert_allclose(scaled, 0.5 * total, rtol=1e-5)
        total, weight, scaled = told[f"{tower}_router_spread"]
        np.testing.assert_allclose(total / weight, 2.0 - entropy(shares.mean(axis=0)), rtol=1e-4)
        np.testing.assert_allclose(scaled, 0.25 * total, rtol=1e-5)
    assert not {"router_entropy", "router_spread", "expert_balance"} & told.keys()


@pytest.mark.parametrize("config", [case[0] for case in CASES.values()], ids=CASES)
@pytest.mark.parametrize(
    "settings", [{"mixer": MixerConfig("mamba")}, {"layer_kinds": ("attention", "rwkv/shifted")}]
)
def test_a_stack_that_reads_both_ways_refuses_mixers(config, settings):
    with pytest.raises(LabError, match="reads from left to right"):
        replace(config, **settings)


def test_a_decoder_side_may_have_layers_of_its_own():
    config = replace(CASES["encoder_decoder"][0], decoder_layer_kinds=("mamba/none", "attention"))
    kinds = [(one.mixer.kind, one.feed_forward) for one in config.decoder.each_layer()]
    assert kinds == [("mamba", "none"), ("attention", "dense")]
    assert {one.mixer.kind for one in config.each_layer()} == {"attention"}
