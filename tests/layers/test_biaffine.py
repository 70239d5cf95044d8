"""Scores of arcs and labels against the formula written out for each pair of words."""

import jax
import jax.numpy as jnp
import numpy as np

from transformer_lab.layers.biaffine import ArcHead
from transformer_lab.models.encoder import EncoderConfig


def test_the_scores_are_the_formula_for_each_pair_of_words():
    config = EncoderConfig(layers=1, width=6, heads=1, head_dim=6)
    head = ArcHead(config, 4, 3, labels=5, rate=0.5)
    states = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 6)), jnp.float32)
    params = head.init(jax.random.key(0), states, None, None)
    leaves, tree = jax.tree.flatten(params)
    draw = np.random.default_rng(1)
    leaves = [jnp.asarray(draw.normal(size=leaf.shape), jnp.float32) for leaf in leaves]
    params = jax.tree.unflatten(tree, leaves)
    values = jax.tree.map(np.asarray, params["params"])
    assert values["arc"]["kernel"].shape == (1, 5, 5)
    assert values["label"]["kernel"].shape == (5, 4, 4)

    heads = jnp.array([[1, 1, 0], [2, 0, 1]])
    arcs, labels = head.apply(params, states, heads, None)
    word, over = (
        (lambda x: np.where(x > 0, x, 0.1 * x))(
            np.asarray(states) @ layer["kernel"] + layer["bias"]
        )
        for layer in (values["dependant"], values["head"])
    )
    one = np.ones(1, np.float32)
    for b in range(2):
        for t in range(3):
            for s in range(3):
                x, y = np.append(word[b, t, :4], one), np.append(over[b, s, :4], one)
                expected = x @ values["arc"]["kernel"][0] @ y
                np.testing.assert_allclose(arcs[b, t, s], expected, rtol=1e-4, atol=1e-4)
            x, y = np.append(word[b, t, 4:], one), np.append(over[b, heads[b, t], 4:], one)
            expected = [x @ kernel @ y for kernel in values["label"]["kernel"]]
            np.testing.assert_allclose(labels[b, t], expected, rtol=1e-4, atol=1e-4)

    _, likeliest = head.apply(params, states, None, None)
    _, given = head.apply(params, states, arcs.argmax(axis=-1), None)
    np.testing.assert_array_equal(likeliest, given)
    dropped, _ = head.apply(params, states, heads, jax.random.key(3))
    assert np.abs(dropped - arcs).max() > 0.1
