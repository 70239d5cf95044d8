"""What the experiment on experts says of a routing, against values worked out by hand."""

import numpy as np
import pytest

from tests.entry import ROOT
from transformer_lab.sweeps.experiment import load_module


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
    module = load_module(str(ROOT / "experiments" / "experts.py"))
    found = module.work_of_experts(np.array(shares))
    assert found["load_variation"] == pytest.approx(variation, abs=1e-12)
    assert found["information"] == pytest.approx(information, abs=1e-12)
