"""The loss by blocks of the vocabulary equals the loss of whole logits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_lab.ops.losses import ratio, token_metrics
from transformer_lab.ops.vocabulary_loss import blockwise_scores


def inputs(rows=37):
    rng = np.random.default_rng(0)
    make = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)  # noqa: E731
    labels = jnp.asarray(rng.integers(0, 33, (2, 5))).at[0, 1].set(-100)
    return make(2, 5, 6), make(rows, 6), make(rows), labels, labels >= 0


@pytest.mark.parametrize("block", [8, 11, 64])  # 33 pieces: a rest, none, one block alone
@pytest.mark.parametrize(("with_bias", "smoothing"), [(False, 0.0), (True, 0.1)])
def test_values_and_gradients_equal_those_of_whole_logits(block, with_bias, smoothing):
    states, table, bias, labels, mask = inputs()
    bias = bias if with_bias else jnp.zeros(len(bias))

    def whole(states, table, bias):
        logits = (states @ table.T + bias)[..., :33]
        return token_metrics(logits, labels, mask, smoothing)

    def blocks(states, table, bias):
        bias = bias if with_bias else None
        scores = blockwise_scores(states, table, labels, bias, size=33, block=block)
        return token_metrics(scores, labels, mask, smoothing)

    @jax.jit
    def both(*inputs):
        ways = blocks, whole
        losses = [lambda *x, f=f: ratio(f(*x)["loss"]) for f in ways]
        gradients = [jax.grad(loss, argnums=(0, 1, 2))(*inputs) for loss in losses]
        return [f(*inputs) for f in ways], gradients

    values, gradients = jax.device_get(both(states, table, bias))
    for got, want in zip(*map(jax.tree.leaves, values), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)
    for got, want in zip(*gradients, strict=True):
        if got is not gradients[0][2] or with_bias:
            np.testing.assert_allclose(got, want, atol=1e-7)
    assert (gradients[0][1][33:] == 0).all()


def test_of_equal_logits_the_first_is_the_best_across_blocks():
    states, table, _, labels, mask = inputs(33)
    best = jax.jit(lambda bias: blockwise_scores(states * 0, table, labels, bias, block=8).best)
    assert (best(None) == 0).all()
    assert (best(np.float32(np.isin(np.arange(33), (9, 20)))) == 9).all()


def test_no_array_of_tokens_by_vocabulary_stands_in_memory():
    make = lambda *shape, dtype=jnp.float32: jax.ShapeDtypeStruct(shape, dtype)  # noqa: E731

    def loss(states, table, labels):
        scores = blockwise_scores(states, table, labels, block=512)
        return token_metrics(scores, labels, labels >= 0)["loss"][0]

    arguments = make(4, 512, 8), make(16384, 8), make(4, 512, dtype=jnp.int32)
    compiled = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(*arguments).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 2048 * 16384 * 4 / 10
