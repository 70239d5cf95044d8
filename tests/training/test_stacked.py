"""Layers that train as one array a parameter are the same layers."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.tiny import make_trainer, tiny_config
from transformer_lab import models
from transformer_lab.models.decoder import DecoderConfig
from transformer_lab.ops.stacked import stack_layers, unstack_layers
from transformer_lab.training.config import OptimizerConfig
from transformer_lab.training.optimizer import make_optimizer, schedule
from transformer_lab.training.sources import leaves

MODEL = DecoderConfig(
    layers=3, width=8, heads=2, head_dim=4, feed_forward_width=12, vocab_size=11, scan_layers=True
)
SHAPES = models.parameter_shapes("decoder", MODEL)


def drawn(seed):
    rng = np.random.default_rng(seed)
    draw = lambda x: jnp.asarray(rng.normal(size=x.shape), jnp.float32)  # noqa: E731
    return jax.tree.map(draw, SHAPES)


def equal(a, b, **tolerance):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, **tolerance), a, b)


def test_stacking_is_undone_and_leaves_alone_what_does_not_scan():
    params = drawn(0)
    stacked = stack_layers(params, MODEL)
    assert stacked["decoder"]["layers"]["attention"]["query"]["kernel"].shape == (3, 8, 8)
    equal(unstack_layers(stacked), params, rtol=0)
    equal(stack_layers(params, replace(MODEL, scan_layers=False)), params, rtol=0)
    assert {p.split("/layer_")[0] for p in leaves(params)} >= {"decoder", "embedding/embedding"}


@pytest.mark.each_run("adam", "muon")
@pytest.mark.parametrize("name", ["adam", "sgd", "lion", "muon"])
def test_an_optimizer_moves_stacked_layers_as_it_moves_each(name):
    """With decay and multipliers that tell the layers apart."""
    config = OptimizerConfig(
        name=name,
        schedule="constant",
        warmup_steps=1,
        weight_decay=0.1,
        weight_decay_pattern="layer_[02]/.*kernel$",
        multipliers="layer_1/=3",
        layer_decay=0.5,
        clip_norm=1.0,
    )
    optimizer, found = make_optimizer(config, schedule(config, 5)), []
    for form in (lambda tree: tree, lambda tree: stack_layers(tree, MODEL)):
        params, gradient = form(drawn(0)), form(drawn(1))
        step = jax.jit(lambda g, p: optimizer.update(g, optimizer.init(p), p))
        updates, state = step(gradient, params)
        found.append((unstack_layers(updates), unstack_layers(state)))
    equal(*found, rtol=2e-5, atol=1e-7)


def test_the_first_state_is_the_same_and_goes_to_disk_layer_by_layer():
    plain = make_trainer(tiny_config(model__layers=2), 1)
    scan = make_trainer(tiny_config(model__layers=2, model__scan_layers=True), 1)
    state = scan.init()
    assert "layers" in state.params["encoder"] and "layers" in state.opt_state[0].mu["decoder"]
    equal(scan.canonical(state), plain.init(), rtol=0)
    equal(scan.stack(scan.canonical(state)), state, rtol=0)
    equal(scan.whole(state), plain.init().params, rtol=0)
