"""Which program computes attention, by device and shape; what is said about a wrong choice."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.cudnn import fused_attention_stablehlo

from tests.ops.visible_cases import CASES, arrays, assert_equal, on_mesh, plain
from transformer_lab.errors import LabError
from transformer_lab.ops import kernels
from transformer_lab.ops.kernels import attention, choose
from transformer_lab.ops.visibility import Visible

SEGMENTS = jax.ShapeDtypeStruct((2, 2048), jnp.int32)
CAUSAL, WINDOW = Visible(causal=True), Visible(causal=True, window=256)
PACKED = Visible(causal=True, query_segments=SEGMENTS, key_segments=SEGMENTS)
PREFIX = Visible(causal=True, prefix=SEGMENTS)


def shapes(t=2048, s=2048, h=64, dtype=jnp.bfloat16):
    return jax.ShapeDtypeStruct((2, 4, t, h), dtype), jax.ShapeDtypeStruct((2, 2, s, h), dtype)


@pytest.mark.parametrize(
    ("where", "inputs", "seen", "wanted"),
    [
        ("tpu", shapes(), CAUSAL, "splash"),
        ("tpu", shapes(), PACKED, "splash"),
        ("tpu", shapes(), WINDOW, "splash"),
        ("tpu", shapes(), PREFIX, "chunked"),
        ("tpu", shapes(256, 256), CAUSAL, "own"),
        ("gpu", shapes(), CAUSAL, "cudnn"),
        ("gpu", shapes(), PACKED, "cudnn"),
        ("gpu", shapes(8192, 8192), CAUSAL, "cudnn"),
        ("gpu", shapes(8192, 8192), PACKED, "chunked"),
        ("gpu", shapes(h=192), CAUSAL, "chunked"),
        ("gpu", shapes(dtype=jnp.float32), CAUSAL, "chunked"),
        ("cpu", shapes(), CAUSAL, "chunked"),
        ("cpu", shapes(1023, 1023), CAUSAL, "own"),
        ("cpu", shapes(), WINDOW, "local"),
        ("cpu", shapes(1, 4096), Visible(), "own"),
    ],
)
def test_auto_is_by_device_length_and_what_is_seen(monkeypatch, where, inputs, seen, wanted):
    monkeypatch.setattr(kernels, "platform", lambda: where)
    assert choose("auto", *inputs, seen) == wanted
    assert choose("auto", *inputs, seen, biased=True) == "own"
    assert choose("auto", *inputs, seen, drops=True) == "own"


def test_what_was_chosen_is_noted_with_its_lengths_while_somebody_asks():
    query, key, value = arrays(t=5, s=7)
    attention(query, key, value, Visible())
    with kernels.chosen() as names:
        attention(query, key, value, Visible())
        attention(query, key, value, Visible(), implementation="chunked")
    attention(query, key, value, Visible(), implementation="xla")
    assert names == {"own (5 x 7)", "chunked (5 x 7)"}


def test_a_mesh_that_splits_positions_takes_the_ring_and_says_what_it_is_made_of():
    _, wrap, _ = on_mesh((1, 1, 1, 1, 4, 1))
    assert wrap(lambda: choose("auto", *shapes(), PACKED))() == "ring"
    assert wrap(kernels.platform)() == "cpu"


@pytest.mark.parametrize("name", ["splash", "cudnn"])
def test_a_kernel_without_its_device_is_refused_in_one_line(name):
    with pytest.raises(LabError, match=f'"{name}" needs an? [^\\n]*"auto" takes it'):
        choose(name, *shapes(), CAUSAL)
    assert choose(name, *shapes(t=1), CAUSAL) == "own"


@pytest.mark.parametrize("name", ["auto", "own", "chunked", "xla"])
@pytest.mark.parametrize("case", ["causal packed window", "prefix"])
def test_all_that_run_anywhere_give_the_same(name, case):
    seen = Visible(**CASES[case])
    run = lambda *x: attention(*x, seen, implementation=name)  # noqa: E731
    assert_equal(run, plain(seen), arrays())


@pytest.mark.parametrize("seen", [CAUSAL, WINDOW, PACKED], ids=["causal", "window", "packed"])
def test_cudnn_lowers_with_its_gradient(monkeypatch, seen):
    monkeypatch.setattr(fused_attention_stablehlo, "check_cudnn_version", lambda: 91000)
    monkeypatch.setattr(kernels, "platform", lambda: "gpu")

    def loss(query, key, seen):
        return attention(query, key, key, seen).astype(jnp.float32).sum()

    traced = jax.jit(jax.grad(loss, argnums=(0, 1))).trace(*shapes(), seen)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert "__cudnn$fmhaSoftmaxBackward" in text or "__cudnn$fmhaScaleBiasSoftmaxBackward" in text


def test_a_step_of_decoding_keeps_its_numbers_whatever_is_asked():
    query, key, value = arrays(t=1)
    mask = jnp.asarray(np.random.default_rng(3).random((2, 1, 1, 22)) < 0.5)
    seen = Visible(mask=mask)
    for name in ("auto", "chunked", "splash"):
        got = attention(query, key, value, seen, implementation=name)
        np.testing.assert_array_equal(got, plain(seen)(query, key, value))
