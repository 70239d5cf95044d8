"""Quantised kernels against the paper's table and numpy."""

from statistics import NormalDist

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_lab.training.adapting import assemble, split
from transformer_lab.training.config import AdaptConfig
from transformer_lab.training.quantize import NF4, dequantize, quantize

RNG = np.random.default_rng(0)
KERNEL = RNG.normal(size=(192, 10)).astype(np.float32)
KERNEL[64:128, 3] = 0.0  # a block, and
KERNEL[:, 7] = 0.0  # a column that has no magnitude
# Half the widest gap between two levels, that from -1 to the next: 0.5 * (1 - 0.6962).
NF4_BOUND = (1 - 0.6961928009986877) / 2


def test_the_nf4_levels_are_the_quantiles_of_the_normal_distribution():
    """Dettmers 2023, section 3: 8 and 9 quantiles for the halves, normalised, with one zero."""
    quantile, offset = NormalDist().inv_cdf, 0.9677083
    upper = [quantile(p) for p in np.linspace(offset, 0.5, 9)[:-1]]
    lower = [-quantile(p) for p in np.linspace(offset, 0.5, 8)[:-1]]
    want = np.sort([0.0, *upper, *lower]) / max(upper)
    np.testing.assert_allclose(NF4, want, atol=2e-6)


def test_nf4_takes_the_nearest_level_of_each_block_of_64():
    blocks = KERNEL.reshape(3, 64, 10)
    absmax = np.abs(blocks).max(axis=1, keepdims=True)
    scaled = blocks / np.where(absmax > 0, absmax, 1)
    nearest = np.abs(scaled[..., None] - NF4).argmin(axis=-1)
    want = (NF4[nearest] * absmax).reshape(KERNEL.shape)
    packed = quantize(jnp.asarray(KERNEL), "nf4")
    got = np.asarray(dequantize(packed))
    np.testing.assert_array_equal(got, want)
    assert (np.abs(got - KERNEL).reshape(blocks.shape) <= NF4_BOUND * absmax + 1e-6).all()
    assert packed["nf4"].shape == (96, 10) and packed["nf4"].dtype == jnp.uint8


def test_int8_rounds_to_the_nearest_of_255_steps_of_each_column():
    absmax = np.abs(KERNEL).max(axis=0, keepdims=True)
    packed = quantize(jnp.asarray(KERNEL), "int8")
    got = np.asarray(dequantize(packed))
    assert (np.abs(got - KERNEL) <= absmax / 254 * (1 + 1e-4)).all()
    assert packed["int8"].dtype == jnp.int8 and np.abs(packed["int8"]).max() == 127
    np.testing.assert_array_equal(got[:, 7], 0.0)


@pytest.mark.parametrize("rows", [2, 64, 66, 130])
def test_a_last_block_may_be_short(rows):
    kernel = jnp.asarray(RNG.normal(size=(rows, 3)), jnp.float32)
    got = dequantize(quantize(kernel, "nf4"))
    assert got.shape == kernel.shape
    tail = kernel[rows // 64 * 64 :] if rows % 64 else kernel[-64:]
    error = np.abs(got - kernel)[-len(tail) :].max(axis=0)
    assert (error <= NF4_BOUND * np.abs(tail).max(axis=0) + 1e-6).all()


@pytest.mark.parametrize(
    ("base", "numbers"),
    [
        ("float32", 4 * (128 * 96 + 20 * 96 + 96)),
        ("bfloat16", 2 * (128 * 96 + 20 * 96) + 4 * 96),
        ("int8", 128 * 96 + 4 * 96 + 4 * (20 * 96 + 96)),
        ("nf4", 64 * 96 + 4 * 2 * 96 + 4 * (20 * 96 + 96)),
    ],
)
def test_a_frozen_tree_takes_the_bytes_of_its_kind_and_comes_back_near(base, numbers):
    params = {
        "up": {"kernel": KERNEL[:128, :1] @ np.ones((1, 96), np.float32), "bias": np.ones(96)},
        "embedding": {"embedding": np.ones((20, 96))},
        "query": {"kernel": np.ones((4, 4))},
    }
    params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), params)
    config = AdaptConfig(method="head", train="query", base=base)
    trained, frozen = split(params, config, jax.random.key(0))
    assert sum(x.nbytes for x in jax.tree.leaves(frozen)) == numbers
    whole = assemble(trained, frozen, config)
    assert jax.tree.structure(whole) == jax.tree.structure(params)
    assert {x.dtype.name for x in jax.tree.leaves(whole)} == {"float32"}
    bounds = {"float32": 0, "bfloat16": 2**-8, "int8": 1 / 254, "nf4": NF4_BOUND}
    scale = np.abs(params["up"]["kernel"]).max()
    error = np.abs(whole["up"]["kernel"] - params["up"]["kernel"]).max() / scale
    assert bounds[base] / 4 <= error <= bounds[base] * (1 + 1e-4)


def test_an_odd_number_of_inputs_stays_float32_in_nf4():
    params = {"up": {"kernel": jnp.ones((5, 4))}, "head": {"kernel": jnp.ones((2, 2))}}
    config = AdaptConfig(method="head", train="head/", base="nf4")
    _, frozen = split(params, config, jax.random.key(0))
    assert frozen["up"]["kernel"].dtype == jnp.float32
