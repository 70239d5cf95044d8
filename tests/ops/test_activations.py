"""The GELUs that checkpoints disagree about."""

import jax.numpy as jnp
import pytest

from transformer_lab.ops.activations import ACTIVATIONS, GATED


@pytest.mark.parametrize(
    ("name", "value"), [("gelu_tanh", 0.8411920), ("gelu", 0.8413447), ("gelu_quick", 0.8457958)]
)
def test_each_gelu_is_the_one_its_name_says(name, value):
    assert abs(float(ACTIVATIONS[name](jnp.float32(1.0))) - value) < 2e-7


def test_every_gate_is_an_activation():
    assert set(GATED.values()) <= set(ACTIVATIONS)
