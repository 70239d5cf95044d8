"""Small inputs of every kind on which a kernel must agree with `attend`, and that comparison."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from transformer_lab.ops.attention import attend
from transformer_lab.ops.layout import AXES
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
    """Outputs and the three gradients; `found` runs compiled, where its inputs lie."""

    def both(run, *inputs):
        out, back = jax.vjp(run, *inputs)
        return out, *back(jnp.sin(jnp.arange(out.size, dtype=out.dtype)).reshape(out.shape))

    got, want = (
        jax.jit(partial(both, found))(*inputs),
        jax.jit(partial(both, wanted))(*map(np.asarray, inputs)),
    )
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, atol=tolerance, rtol=tolerance)


def on_mesh(sizes):
    """A mesh of simulated devices; what runs a function on it; what lays arrays on it whole."""
    devices = jax.devices()[: int(np.prod(sizes))]
    mesh = jax.make_mesh(sizes, AXES, axis_types=(AxisType.Auto,) * len(AXES), devices=devices)

    def wrap(function):
        def run(*x):
            with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
                return function(*x)

        return run

    return mesh, wrap, lambda x: jax.device_put(x, NamedSharding(mesh, P()))
