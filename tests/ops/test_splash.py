"""The TPU's kernel, interpreted on a CPU, equals plain attention; and it lowers for a TPU."""

import jax
import jax.numpy as jnp
import pytest

from tests.ops.visible_cases import CASES, arrays, assert_equal, on_mesh, plain
from transformer_lab.ops.splash import block_size, splash_attend, splash_holds
from transformer_lab.ops.visibility import Visible

KNOWN = [case for case in CASES if splash_holds(*arrays()[:2], Visible(**CASES[case]))]


@pytest.mark.each_run("causal", "causal packed window", "real keys")
@pytest.mark.parametrize("case", KNOWN)
def test_the_kernel_equals_plain_attention_in_values_and_gradients(case):
    visible = Visible(**CASES[case])
    assert_equal(lambda *x: splash_attend(*x, visible, interpret=True), plain(visible), arrays())


def test_a_prefix_and_any_other_mask_are_not_for_the_kernel():
    assert set(CASES) - set(KNOWN) == {"prefix", "any mask"}
    query, key, _ = arrays(s=13)
    assert splash_holds(query, key, Visible())
    assert not splash_holds(query, key, Visible(causal=True))


def test_blocks_leave_little_to_fill_up():
    sizes = {2048: 512, 1024: 512, 256: 256, 100: 128, 640: 128, 768: 384, 5: 128}
    assert {length: block_size(length) for length in sizes} == sizes


def test_on_a_mesh_each_device_takes_its_rows_and_heads():
    _, wrap, place = on_mesh((1, 1, 2, 1, 1, 2))
    visible = Visible(**CASES["causal packed"])
    run = wrap(lambda *x: splash_attend(*x, visible, interpret=True))
    assert_equal(run, plain(visible), place(arrays()))


@pytest.mark.parametrize("head_dim", [64, 128])
def test_it_lowers_for_a_tpu_with_its_gradient(head_dim):
    query = jax.ShapeDtypeStruct((2, 4, 2048, head_dim), jnp.bfloat16)
    key = jax.ShapeDtypeStruct((2, 2, 2048, head_dim), jnp.bfloat16)
    segments = jax.ShapeDtypeStruct((2, 2048), jnp.int32)

    def loss(query, key, value, segments):
        visible = Visible(True, 0, segments, segments)
        return splash_attend(query, key, value, visible).astype(jnp.float32).sum()

    traced = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).trace(query, key, key, segments)
    text = traced.lower(lowering_platforms=("tpu",)).as_text()
    assert text.count("tpu_custom_call") >= 3  # forward, and the gradients of query and of key
