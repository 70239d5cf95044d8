"""Attention over positions that are split over devices equals attention on one."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from tests.ops.visible_cases import arrays, assert_equal, on_mesh, plain
from transformer_lab.ops.ring import ring_attend, ring_holds
from transformer_lab.ops.visibility import Visible

T = 32
SEGMENTS = jnp.asarray([[1] * 9 + [2] * 15 + [0] * 8, [0] * 4 + [3] * 17 + [5] * 11])
packed = {"query_segments": SEGMENTS, "key_segments": SEGMENTS}
CASES = {
    "all": {},
    "causal": {"causal": True},
    "causal packed": {"causal": True, **packed},
    "causal window": {"causal": True, "window": 10},
    "causal window packed": {"causal": True, "window": 3, **packed},
    "window": {"window": 7},
    "real keys": {"keys": jnp.arange(T)[None] >= jnp.asarray([[3], [20]])},
    "prefix": {"causal": True, "prefix": jnp.arange(T)[None] < jnp.asarray([[6], [11]]), **packed},
}


@pytest.mark.each_run("causal packed", "window", "real keys")
@pytest.mark.parametrize("case", CASES)
def test_the_ring_equals_one_device_in_values_and_gradients(case):
    visible = Visible(**CASES[case])
    _, wrap, place = on_mesh((1, 1, 1, 1, 4, 1))
    run = wrap(lambda *x: ring_attend(*x, visible, block=4))
    assert_equal(run, plain(visible), place(arrays(t=T, s=T)))


def test_rows_and_heads_are_split_beside_the_positions():
    visible = Visible(**CASES["causal packed"])
    _, wrap, place = on_mesh((1, 1, 2, 1, 2, 2))
    assert_equal(wrap(lambda *x: ring_attend(*x, visible)), plain(visible), place(arrays(t=T, s=T)))


def test_queries_of_one_length_attend_to_keys_of_another():
    _, wrap, place = on_mesh((1, 1, 1, 1, 4, 1))
    assert_equal(wrap(ring_attend), plain(Visible()), place(arrays(t=24, s=40)))


def test_it_is_for_positions_that_the_mesh_splits_evenly():
    query, key, _ = arrays(t=T, s=T)
    assert not ring_holds(query, key, Visible())
    _, wrap, _ = on_mesh((1, 1, 1, 1, 4, 1))
    holds = wrap(ring_holds)
    assert holds(query, key, Visible())
    assert not holds(query[:, :, :20], key, Visible())
    assert not holds(query, key, Visible(mask=jnp.ones((1, 1, T, T), bool)))


def test_a_devices_memory_shrinks_with_the_number_of_devices():
    shape = jax.ShapeDtypeStruct((1, 2, 4096, 8), jnp.float32)
    visible = Visible(causal=True)

    def temporaries(devices):
        mesh, wrap, _ = on_mesh((1, 1, 1, 1, devices, 1))
        where = NamedSharding(mesh, P(None, None, "sequence"))
        loss = wrap(lambda *x: ring_attend(*x, visible, block=64).sum())
        gradient = jax.jit(
            jax.grad(loss, argnums=(0, 1, 2)), in_shardings=where, out_shardings=where
        )
        compiled = gradient.lower(shape, shape, shape).compile()
        assert "all-gather" not in compiled.as_text()
        return compiled.memory_analysis().temp_size_in_bytes

    assert temporaries(8) < 0.6 * temporaries(2)
