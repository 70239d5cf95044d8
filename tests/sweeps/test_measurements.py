"""What experiments compute beside their trainings, against values worked out by hand."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.entry import ROOT
from transformer_lab.sweeps.experiment import load_module


def module(name):
    return load_module(str(ROOT / "experiments" / f"{name}.py"))


@pytest.mark.parametrize(
    ("shares", "variation", "information"),
    [
        # Each of two domains has an expert of its own: the expert tells the domain, one bit.
        ([[[1.0, 0.0]], [[0.0, 1.0]]], 0.0, 1.0),
        # Both domains go to one expert of two: mean 1/2, standard deviation 1/2, nothing told.
        ([[[1.0, 0.0]], [[1.0, 0.0]]], 1.0, 0.0),
        # The mean of a layer of each kind.
        ([[[1.0, 0.0], [1.0, 0.0]], [[0.0, 1.0], [1.0, 0.0]]], 0.5, 0.5),
        # One domain goes to both experts alike, the other to the first: expert 1 has 3/4 of all,
        # and the information is (log2(2/3) + log2 2) / 4 + log2(4/3) / 2.
        ([[[0.5, 0.5]], [[1.0, 0.0]]], 0.5, (np.log2(2 / 3) + 1) / 4 + np.log2(4 / 3) / 2),
    ],
)
def test_loads_and_information_of_experts_are_those_of_their_definitions(
    shares, variation, information
):
    found = module("experts").work_of_experts(np.array(shares))
    assert found["load_variation"] == pytest.approx(variation, abs=1e-12)
    assert found["information"] == pytest.approx(information, abs=1e-12)


@pytest.mark.parametrize(
    ("kind", "reach", "steps"),
    [
        ("self_attention", math.inf, 0),
        ("window", 63, 0),  # a window of 64 holds the token itself
        ("convolution", 1, 0),  # a kernel of three
        ("squares", math.nan, 0),
        ("recurrence", math.inf, 3),  # a product, a sum and a tanh, one token after the other
    ],
)
def test_what_waits_in_a_layer_and_how_far_it_reaches_are_those_of_table_1(kind, reach, steps):
    table1 = module("complexity_table1")

    def chain(length):
        x, weights = jnp.ones((length, 64)), jnp.ones((3, 64, 64))
        return table1.waiting(jax.make_jaxpr(lambda x: table1.layer(kind, x, weights))(x).jaxpr)

    assert table1.reach(kind, 64) == pytest.approx(reach, nan_ok=True)
    assert chain(256) - chain(128) == 128 * steps


def test_a_scaling_law_is_found_again_in_losses_without_noise(monkeypatch):
    """Hoffmann 2022's own constants (its equation 10), at sizes of this table."""
    law, tokens = module("scaling_law"), np.geomspace(2e5, 3e6, 8)
    monkeypatch.setattr(law, "DRAWS", 10)
    runs = [
        np.array([np.full(8, n), tokens, 1.69 + 406.4 / n**0.34 + 410.7 / tokens**0.28])
        for n in (1e5, 3e5, 1e6, 5e6)
    ]
    found, (low, high) = law.intervals(runs)
    np.testing.assert_allclose(
        found, [1.69, math.log(406.4), math.log(410.7), 0.34, 0.28], rtol=1e-2
    )
    assert (low[3:] <= found[3:] + 1e-2).all() and (found[3:] <= high[3:] + 1e-2).all()
