"""Small inputs of every kind that a kernel must agree on with `attend`, and that comparison."""

import jax
import jax.numpy as jnp
import numpy as np

from transformer_lab.ops.attention import attend
from transformer_lab.ops.visibility import Visible

T, S = 22, 22
SEGMENTS = np.asarray([[1] * 9 + [2] * 10 + [0] * 3, [0] * 4 + [3] * 7 + [5] * 11])
REAL = np.asarray([[True] * 17 + [False] * 5, [False] * 3 + [True] * 19])
packed = {"query_segments": jnp.asarray(SEGMENTS), "key_segments": jnp.asarray(SEGMENTS)}
CASES = {
    "all": {},
    "causal": {"causal": True},
    "window": {"window": 5},
    "causal window": {"causal": True, "window": 6},
    "packed": packed,
    "causal packed": {"causal": True, **packed},
    "causal packed window": {"causal": True, "window": 4, **packed},
    "real keys": {"keys": jnp.asarray(REAL)},
    "causal real keys": {"causal": True, "keys": jnp.asarray(REAL)},
    "prefix": {"causal": True, "prefix": jnp.arange(S)[None] < jnp.asarray([[6], [11]]), **packed},
    "other packed": {
        "query_segments": jnp.asarray(SEGMENTS),
        "key_segments": jnp.asarray(np.roll(SEGMENTS, 2, axis=1) % 5),  # 5 finds no key
    },
    "any mask": {
        "mask": jnp.asarray(np.random.default_rng(5).random((2, 4, T, S)) < 0.5),
        "causal": True,
    },
}


def arrays(b=2, n=4, k=2, t=T, s=S, h=8, dtype=jnp.float32):
    """Query, key, value."""
    rng = np.random.default_rng(0)
    make = lambda *shape: jnp.asarray(rng.normal(size=shape), dtype)  # noqa: E731
    return make(b, n, t, h), make(b, k, s, h), make(b, k, s, h)


def plain(visible: Visible):
    """(query, key, value) -> the output of `attend` with this visibility."""

    def run(query, key, value):
        places = jnp.arange(query.shape[2]), jnp.arange(key.shape[2])
        return attend(query, key, value, visible.dense(*places))[0]

    return run


def assert_equal(found, wanted, inputs, tolerance=1e-5):
    """Outputs and the three gradients."""

    def both(run):
        out, back = jax.vjp(run, *inputs)
        return out, *back(jnp.sin(jnp.arange(out.size, dtype=out.dtype)).reshape(out.shape))

    for got, want in zip(jax.jit(lambda: both(found))(), both(wanted), strict=True):
        np.testing.assert_allclose(got, want, atol=tolerance, rtol=tolerance)
