"""Learning-rate multipliers by path, and their decay by layer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_lab import models
from transformer_lab.errors import LabError
from transformer_lab.models.encoder import EncoderConfig
from transformer_lab.training.config import OptimizerConfig
from transformer_lab.training.optimizer import (
    make_optimizer,
    parse_multipliers,
    rate_factors,
    schedule,
)
from transformer_lab.training.sources import leaves

MODEL = EncoderConfig(
    layers=3, width=16, heads=2, head_dim=8, feed_forward_width=24, vocab_size=23, head="classes"
)
SHAPES = models.parameter_shapes("encoder", MODEL)


def factors(multipliers="", decay=1.0):
    return leaves(rate_factors(SHAPES, parse_multipliers(multipliers), decay))


def test_layer_decay_counts_from_the_head_down_to_the_embeddings():
    found = factors(decay=0.5)
    by_top = {path.split("/layer_")[0].split("/")[0] for path in found}
    assert by_top == {
        "embedding", "positions", "type_embedding", "embedding_norm", "encoder", "pooler",
        "classifier",
    }  # fmt: skip
    for path, factor in found.items():
        top = path.split("/")[0]
        if top == "encoder":
            want = 0.5 ** (3 - int(path.split("layer_")[1][0]))
        else:
            want = 1.0 if top in ("pooler", "classifier") else 0.5**4
        assert factor == want, path


def test_the_first_multiplier_found_counts_and_joins_the_decay():
    found = factors("classifier/=10; bias$=0", 0.5)
    assert found["classifier/bias"] == 10 and found["pooler/bias"] == 0
    assert found["encoder/layer_2/attention/query/kernel"] == 0.5


def test_multipliers_scale_the_whole_update_and_nothing_is_added_without_them():
    params = {"up": {"kernel": jnp.ones((2, 2))}, "head": {"kernel": jnp.ones((2, 2))}}
    config = {"learning_rate": 0.1, "schedule": "constant", "warmup_steps": 1, "weight_decay": 0.3}
    updates = []
    for extra in ({}, {"multipliers": "head=3"}):
        made = OptimizerConfig(**config, **extra)
        optimizer = make_optimizer(made, schedule(made, 5))
        state = optimizer.init(params)
        updates.append(optimizer.update(jax.tree.map(jnp.ones_like, params), state, params)[0])
    plain, scaled = updates
    np.testing.assert_array_equal(scaled["up"]["kernel"], plain["up"]["kernel"])
    np.testing.assert_allclose(scaled["head"]["kernel"], 3 * plain["head"]["kernel"], rtol=1e-6)
    same = OptimizerConfig(**config)
    structure = jax.tree.structure(make_optimizer(same, schedule(same, 5)).init(params))
    assert len(jax.tree.leaves(state)) == structure.num_leaves


@pytest.mark.parametrize("name", ["adam", "muon"])
def test_the_factors_of_a_kernel_decay_and_step_as_the_kernel_would(name):
    draw = lambda *shape: jnp.asarray(np.random.default_rng(0).normal(size=shape), jnp.float32)  # noqa: E731
    factors = {"kernel": {"lora_a": draw(4, 2), "lora_b": draw(2, 3)}, "bias": draw(3)}
    params, updates = {"query": factors}, []
    for decay in (0.0, 0.5):
        config = OptimizerConfig(
            name=name, learning_rate=0.1, schedule="constant", warmup_steps=1, weight_decay=decay
        )
        optimizer = make_optimizer(config, schedule(config, 5))
        updates.append(optimizer.update(params, optimizer.init(params), params)[0]["query"])
    decayed = jax.tree.map(lambda a, b: b - a, *updates)
    np.testing.assert_array_equal(decayed["bias"], 0)
    for name in ("lora_a", "lora_b"):
        np.testing.assert_allclose(
            decayed["kernel"][name], -0.05 * factors["kernel"][name], atol=1e-6
        )


@pytest.mark.parametrize("text", ["clasifier=2", "head=2;nothing/here=1"])
def test_a_rule_that_is_found_nowhere_is_an_error_that_names_it(text):
    config = OptimizerConfig(multipliers=text)
    optimizer = make_optimizer(config, schedule(config, 5))
    named = text.split(";")[-1].split("=")[0]
    with pytest.raises(LabError, match=named):
        optimizer.init({"head": {"kernel": jnp.ones(2)}})


@pytest.mark.parametrize("text", ["head", "head=much", "=2", "head=-1", "head=inf", "head=nan"])
def test_a_rule_that_is_none_is_refused(text):
    with pytest.raises(LabError, match='is not "regex=factor"'):
        parse_multipliers(text)


@pytest.mark.parametrize("value", [0.0, 1.5])
def test_an_impossible_layer_decay_is_refused(value):
    with pytest.raises(LabError, match="layer_decay"):
        OptimizerConfig(layer_decay=value)
