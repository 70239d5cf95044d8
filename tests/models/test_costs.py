"""Costs against what the model's own graph, cache and optimizer hold, and against papers."""

import math

import jax
import jax.numpy as jnp
import pytest

from transformer_lab.errors import LabError
from transformer_lab.models import costs, decoder, parameter_shapes
from transformer_lab.models.decoder import Decoder, DecoderConfig
from transformer_lab.models.presets import DECODERS

SMALL = {"layers": 3, "width": 24, "heads": 4, "head_dim": 6, "feed_forward_width": 40}
VARIANTS = {
    "gpt2": {},
    "gated_grouped": {"activation": "swiglu", "kv_heads": 2, "positions": "rope"},
    "narrow_untied": {"embedding_width": 7, "tie_head": False, "vocab_multiple": 8},
    "parallel_window": {"block": "parallel", "kv_heads": 1, "window": 3, "positions": "alibi"},
}


def config_of(variant):
    return DecoderConfig(**SMALL, **VARIANTS[variant], vocab_size=31, max_length=9)


def matmul_flops(jaxpr):
    """2 M N K over all matrix products of a graph, nested ones too."""
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            shape = equation.invars[0].aval.shape
            inner = math.prod(shape[axis] for axis in contracted)
            total += 2 * inner * equation.outvars[0].aval.size
        for value in jax.tree.leaves(equation.params, is_leaf=lambda x: hasattr(x, "eqns")):
            inner = getattr(value, "jaxpr", value)
            total += matmul_flops(inner) if hasattr(inner, "eqns") else 0
    return total


@pytest.mark.parametrize("variant", VARIANTS)
def test_training_flops_are_those_of_the_gradients_graph(variant):
    config = config_of(variant)
    model, tokens = Decoder(config), jnp.zeros((2, 9), jnp.int32)
    loss = lambda params: model.apply({"params": params}, tokens).sum()  # noqa: E731
    graph = jax.make_jaxpr(jax.grad(loss))(parameter_shapes("decoder", config))
    assert matmul_flops(graph.jaxpr) == decoder.training_flops(config) * tokens.size


def test_palms_flops_give_the_utilisation_that_its_paper_states():
    """238.3 thousand tokens a second on 6,144 chips of 275 TFLOP/s: 46.2 % (Chowdhery, table 3)."""
    flops = decoder.training_flops(DECODERS["palm_540b"].config)
    assert abs(flops * 238.3e3 / (6144 * 275e12) - 0.462) < 0.001


@pytest.mark.parametrize("variant", VARIANTS)
def test_cache_bytes_are_those_of_the_cache_and_a_window_bounds_them(variant):
    config = config_of(variant)
    empty = lambda p: Decoder(config).apply({"params": p}, 1, 8, method="init_cache")  # noqa: E731
    cache = jax.eval_shape(empty, parameter_shapes("decoder", config))["layers"]
    held = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(cache))
    assert decoder.cache_bytes(config, 8, "float32") == held
    assert decoder.cache_bytes(config) == 2 * 3 * config.key_value_heads * 6 * 2


def test_device_days_in_closed_form():
    device_days, days = costs.device_days(6e9, 86_400e6, 8, 1e12, 0.25)
    assert device_days == pytest.approx(24_000) and days == pytest.approx(3000)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((1e12, 0.0, 4, 1e12, 0.4), "tokens"),
        ((1e12, 1e9, 4, 1e12, 40.0), r"utilisation = 40.0 is not"),
    ],
)
def test_impossible_plans_are_refused(arguments, words):
    with pytest.raises(LabError, match=words):
        costs.device_days(*arguments)
