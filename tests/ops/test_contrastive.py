"""Contrastive losses: closed forms, brute force, padding, and any number of devices."""

import math
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from transformer_lab.ops.contrastive import (
    START,
    chunked_softmax_loss,
    scale_of,
    sigmoid_loss,
    softmax_loss,
)
from transformer_lab.ops.layout import ROW_AXES
from transformer_lab.ops.pooling import normalize
from transformer_lab.training.config import MeshConfig
from transformer_lab.training.mesh import make_mesh

ONES = jnp.ones(4, bool)


def vectors(n=16, d=5):
    images, texts = np.random.default_rng(0).normal(size=(2, n, d)).astype(np.float32)
    return normalize(jnp.asarray(images)), normalize(jnp.asarray(texts))


def with_gradients(loss, mask):
    return jax.value_and_grad(lambda a, b, s: loss(a, b, s, mask)[0], (0, 1, 2))


@cache
def wanted(scale):
    """The loss of all rows of `vectors` but some, and its gradients, on one device."""
    mask = jnp.arange(16) % 5 != 3
    return mask, jax.jit(with_gradients(softmax_loss, mask))(*vectors(), np.float32(scale))


def test_case_9_identity_vectors():
    total, weight = softmax_loss(jnp.eye(4), jnp.eye(4), jnp.float32(1), ONES)
    assert float(total / weight) == pytest.approx(0.743668, abs=1e-6) and weight == 4


@pytest.mark.parametrize("sizes", [(1, 1, 1), (2, 1, 1), (2, 2, 1), (2, 2, 2), (8, 1, 1)])
def test_case_9_the_same_loss_and_gradients_on_any_devices_in_blocks(sizes):
    images, texts = vectors()
    mask, want = wanted(3)
    mesh = make_mesh(MeshConfig(*sizes), math.prod(sizes))

    def run(*arguments):
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return with_gradients(chunked_softmax_loss, mask)(*arguments)

    rows = NamedSharding(mesh, P(ROW_AXES))
    compiled = jax.jit(run, in_shardings=(rows, rows, NamedSharding(mesh, P())))
    found = compiled(images, texts, jnp.float32(3))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=5e-6), found, want)
    if sizes == (8, 1, 1):  # forward and backward
        text = compiled.lower(images, texts, jnp.float32(3)).compile().as_text()
        assert "f32[2,2]" in text and "[16,16]" not in text and "[2,16]" not in text


def test_padding_rows_are_no_negatives_and_get_no_gradient():
    images, texts = vectors()
    real = np.arange(16) < 11
    junk = np.where(real[:, None], images, np.float32(1e3))
    for loss in (
        softmax_loss,
        lambda a, b, s, m: sigmoid_loss(a, b, s, jnp.float32(-1), m),
    ):
        run, three = jax.jit(loss), np.float32(3)
        short = run(images[:11], texts[:11], three, real[:11])
        np.testing.assert_allclose(run(junk, texts, three, real), short, rtol=1e-6)
        found = jax.jit(jax.grad(lambda *a: loss(*a)[0]))(images, texts, three, real)  # noqa: B023
        found = np.asarray(found)
        assert np.abs(found[:11]).max() > 0.01 and np.all(found[11:] == 0)
        assert run(images, texts, three, real & False) == (0, 0)


def test_sigmoid_loss_equals_the_sum_over_pairs():
    images, texts = vectors(4)
    cosines, want = np.asarray(images) @ np.asarray(texts).T, 0.0
    for i in range(4):
        for j in range(4):
            logit = (10 * float(cosines[i, j]) - 10) * (1 if i == j else -1)
            want += math.log1p(math.exp(-logit))
    total, weight = sigmoid_loss(images, texts, jnp.float32(10), jnp.float32(-10), ONES)
    assert float(total) == pytest.approx(want, rel=1e-5) and weight == 4


def test_case_11_the_scale_starts_at_14_and_stays_below_100():
    assert pytest.approx(2.659260, abs=1e-6) == START
    assert float(scale_of(jnp.float32(START), 100.0)) == pytest.approx(14.2857, abs=1e-4)
    assert float(scale_of(jnp.float32(9.0), 100.0)) == pytest.approx(100.0, rel=1e-6)
    assert float(scale_of(jnp.float32(5.0), 0.0)) == pytest.approx(math.exp(5.0), rel=1e-6)


def test_case_11_a_restored_larger_scale_can_fall_and_does_not_rise():
    slope = lambda sign: float(jax.grad(lambda x: sign * scale_of(x, 100.0))(jnp.float32(5.0)))  # noqa: E731
    assert slope(1.0) == pytest.approx(100.0, rel=1e-5) and slope(-1.0) == 0.0
    below = jax.grad(lambda x: -scale_of(x, 100.0))(jnp.float32(2.0))
    assert float(below) == pytest.approx(-math.exp(2.0), rel=1e-6)
