"""Pooling by the mean's query, from the published equations."""

import jax
import numpy as np

from tests.tiny import draw
from transformer_lab.layers.config import StackConfig
from transformer_lab.layers.pooling import MeanQueryPool


def test_the_mean_asks_itself_and_all_places():
    cfg = StackConfig(width=5, heads=2, head_dim=3)  # of states of another width, 6
    states = np.float32(np.random.default_rng(1).normal(size=(2, 4, 6)))
    pool = MeanQueryPool(cfg)
    params = draw(pool, states)["params"]
    found = jax.jit(pool.apply)({"params": params}, states)
    x = np.concatenate([states.mean(axis=1, keepdims=True), states], axis=1) + params["positions"]
    of = params["attention"]
    read = lambda name, x: x @ of[name]["kernel"] + of[name]["bias"]  # noqa: E731
    query, key, value = read("query", x[:, 0]), read("key", x), read("value", x)
    heads = []
    for h in (slice(0, 3), slice(3, 6)):
        scores = np.einsum("bh,bsh->bs", query[:, h], key[..., h]) / np.sqrt(3)
        weights = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
        heads.append(np.einsum("bs,bsh->bh", weights, value[..., h]))
    want = read("out", np.concatenate(heads, axis=1))
    assert found.shape == (2, 5)
    np.testing.assert_allclose(found, want, atol=1e-5)
