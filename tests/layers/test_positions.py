"""Each kind of positions against its formula, and what the table of kinds measures of them."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.tiny import draw
from transformer_lab.layers import position_table
from transformer_lab.layers.attention import Attention
from transformer_lab.layers.config import CHOICES, StackConfig
from transformer_lab.layers.positions import Places, PositionVectors
from transformer_lab.layers.stack import Stack
from transformer_lab.ops.positions import (
    alibi_slopes,
    binary_code,
    rope_frequencies,
    rotate,
    sinusoids,
    t5_buckets,
)

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("kind", CHOICES["positions"])
def test_an_encoder_sees_order_with_every_kind_and_none_without(kind):
    config = StackConfig(
        layers=1, width=12, heads=2, head_dim=4, feed_forward_width=20, max_length=9,
        positions=kind,
    )  # fmt: skip
    x, order = np.float32(RNG.normal(size=(1, 7, 12))), [3, 0, 6, 1, 5, 2, 4]
    stack, table = Stack(config, 1), PositionVectors(config)
    params = draw(stack, x), draw(table, np.arange(7))

    @jax.jit
    def run(params, rows):
        vectors = table.apply(params[1], jnp.arange(7))
        return stack.apply(params[0], rows if vectors is None else rows + vectors)

    moved, still = np.asarray(run(params, np.concatenate([x[:, order], x])))
    change = np.abs(moved - still[order]).max()
    assert change < 1e-5 if kind == "none" else change > 1e-2


def test_sinusoids_are_unique_to_10_000():
    table = np.asarray(sinusoids(jnp.arange(10_000), 16))
    assert len(np.unique(table, axis=0)) == 10_000


@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize("k", [1, 5, 100])
def test_a_shift_of_sinusoids_is_one_fixed_rotation(k, halves):
    width = 8
    rotation = np.zeros((width, width))
    for i in range(width // 2):
        angle = k / 10_000 ** (2 * i / width)
        pair = (i, i + width // 2) if halves else (2 * i, 2 * i + 1)
        cos, sin = math.cos(angle), math.sin(angle)
        rotation[np.ix_(pair, pair)] = [[cos, sin], [-sin, cos]]
    table = np.asarray(sinusoids(jnp.arange(200), width, halves=halves), np.float64)
    np.testing.assert_allclose(rotation @ rotation.T, np.eye(width), atol=1e-12)
    np.testing.assert_allclose(table[:-k] @ rotation.T, table[k:], atol=2e-5)


def test_the_binary_code_is_the_number_in_base_2():
    code = np.asarray(binary_code(jnp.arange(300), 9), int)
    for p in range(300):
        assert "".join(str(bit) for bit in code[p, ::-1]) == format(p, "b").zfill(9)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dims", [8, 4])
def test_rope_scores_depend_on_the_distance_alone(interleaved, dims):
    q, k = np.float32(RNG.normal(size=(2, 1, 1, 1, 8)))
    frequencies = rope_frequencies(dims)
    turn = jax.jit(lambda x, at: rotate(x, at, frequencies, interleaved=interleaved))

    def score(p, s):
        return float((np.asarray(turn(q, np.array([p]))) * turn(k, np.array([s]))).sum())

    for distance in (0, 1, 6):
        same = [score(first + distance, first) for first in (0, 3, 50)]
        np.testing.assert_allclose(same, same[0], atol=1e-4)
    assert len({round(score(d, 0), 3) for d in range(6)}) == 6


@pytest.mark.parametrize("interleaved", [False, True])
def test_rope_is_a_product_of_complex_numbers(interleaved):
    x = RNG.normal(size=(2, 3, 5, 10))
    frequencies = rope_frequencies(6)  # partial: the last 4 dims stay
    parts = (x[..., 0:6:2], x[..., 1:6:2]) if interleaved else (x[..., :3], x[..., 3:6])
    turned = (parts[0] + 1j * parts[1]) * np.exp(1j * np.arange(5)[:, None] * frequencies)
    want = x.copy()
    if interleaved:
        want[..., 0:6:2], want[..., 1:6:2] = turned.real, turned.imag
    else:
        want[..., :3], want[..., 3:6] = turned.real, turned.imag
    got = rotate(jnp.asarray(x, jnp.float32), jnp.arange(5), frequencies, interleaved=interleaved)
    np.testing.assert_allclose(got, want, atol=1e-5)


def test_linear_and_llama3_frequencies():
    dims, base, factor, length, low, high = 64, 500_000.0, 8.0, 8192, 1.0, 4.0
    plain = [base ** (-2 * i / dims) for i in range(dims // 2)]
    want = []
    for f in plain:
        wavelength = 2 * math.pi / f
        if wavelength < length / high:
            want.append(f)
        elif wavelength > length / low:
            want.append(f / factor)
        else:
            smooth = (length / wavelength - low) / (high - low)
            want.append((1 - smooth) * f / factor + smooth * f)
    settings = {"factor": factor, "original_length": length, "low": low, "high": high}
    got = rope_frequencies(dims, base, scaling="llama3", **settings)
    np.testing.assert_allclose(got, want, rtol=1e-6)
    assert (
        len({round(w / f, 6) for w, f in zip(want, plain, strict=True)}) > 3
    )  # all three branches
    got = rope_frequencies(dims, base, scaling="linear", factor=factor)
    np.testing.assert_allclose(got, np.array(plain) / factor, rtol=1e-6)


def test_yarn_keeps_fast_pairs_interpolates_slow_ones_and_ramps_between():
    dims, base, factor, length, slow, fast = 64, 10_000.0, 4.0, 2048, 1.0, 32.0
    plain = np.array([base ** (-2 * i / dims) for i in range(dims // 2)])
    turns = length * plain / (2 * math.pi)
    first = max(i for i in range(dims // 2) if turns[i] >= fast)  # the last pair kept whole
    last = min(i for i in range(dims // 2) if turns[i] <= slow)  # the first scaled whole
    want = []
    for i, f in enumerate(plain):
        ramp = min(max((i - first) / (last - first), 0.0), 1.0)
        want.append(f / factor * ramp + f * (1 - ramp))
    settings = {"factor": factor, "original_length": length, "low": slow, "high": fast}
    got = rope_frequencies(dims, base, scaling="yarn", **settings)
    np.testing.assert_allclose(got, want, rtol=1e-6)
    assert 0 < first < last < dims // 2 - 1


def test_alibi_slopes_of_8_heads_and_of_no_power_of_two():
    np.testing.assert_array_equal(alibi_slopes(8), [2.0**-i for i in range(1, 9)])
    np.testing.assert_array_equal(alibi_slopes(6), [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125])


def test_t5_buckets_of_near_and_far_keys_on_both_sides():
    distances = jnp.array([-64, -9, 1, 16, 128])
    sizes = {"buckets": 32, "max_distance": 128}
    both = t5_buckets(distances, bidirectional=True, **sizes)
    causal = t5_buckets(distances, bidirectional=False, **sizes)
    assert both.tolist() == [14, 8, 17, 26, 31] and causal.tolist() == [26, 9, 0, 0, 0]


def test_transformer_xl_scores_are_the_four_terms_of_each_pair():
    config = StackConfig(width=12, heads=2, head_dim=5, positions="transformer_xl")
    x = jnp.asarray(RNG.normal(size=(1, 6, 12)), jnp.float32)
    places = Places(jnp.arange(6), jnp.arange(6))
    attention = Attention(config)
    tree = draw(attention, x, places=places)

    @jax.jit
    def weights(tree):
        """Of all queries, and of one query over a cache's keys."""
        keys = attention.apply(tree, x, places.key, method="keys_and_values")
        last = Places(places.query[-1:], places.key)
        calls = (x, None, places), (x[:, -1:], keys, last)
        return [
            attention.apply(tree, x, keys, places=at, mutable="intermediates")[1]["intermediates"]
            for x, keys, at in calls
        ]

    got, alone = (np.asarray(found["weights"][0][0]) for found in weights(tree))
    weight = jax.tree.map(lambda a: np.asarray(a, np.float64), tree["params"])
    project = lambda name, h: h @ weight[name]["kernel"] + weight[name].get("bias", 0)  # noqa: E731
    q = project("query", np.asarray(x[0], np.float64)).reshape(6, 2, 5)
    k = project("key", np.asarray(x[0], np.float64)).reshape(6, 2, 5)
    u, v = weight["content_bias"], weight["position_bias"]
    scores = np.zeros((2, 6, 6))
    for n in range(2):
        for i in range(6):
            for j in range(6):
                angles = (i - j) / 10_000 ** (np.arange(0, 12, 2) / 12)
                r = np.concatenate([np.sin(angles), np.cos(angles)])
                r = project("position", r).reshape(2, 5)[n]
                scores[n, i, j] = q[i, n] @ k[j, n] + q[i, n] @ r + u[n] @ k[j, n] + v[n] @ r
    want = np.exp(scores / math.sqrt(5))
    np.testing.assert_allclose(got, want / want.sum(-1, keepdims=True), atol=1e-5)
    np.testing.assert_allclose(alone[:, 0], got[:, -1], atol=1e-5)


MEASURED = {  # acts, parameters, unique, a shift is one map, any length, odd width, least width
    "learned": ("vectors", 64 * 10_000, True, False, False, True, None),
    "sinusoidal": ("vectors", 0, True, True, True, True, None),
    "binary": ("vectors", 0, True, False, True, True, math.ceil(math.log2(10_000))),
    "rope": ("scores", 0, True, True, True, False, None),
    "t5": ("scores", 32 * 8, False, True, True, True, None),
}


@pytest.mark.each_run("rope", "t5")
@pytest.mark.parametrize("kind", MEASURED)
def test_the_table_measures_what_is_known_of_a_kind(kind):
    acts, parameters, unique, shift, any_length, odd_width, least = MEASURED[kind]
    found = position_table.measure(kind)
    assert (found.acts, found.parameters, found.unique) == (acts, parameters, unique)
    assert (found.shift_error < 1e-4) is shift
    assert (found.any_length, found.odd_width) == (any_length, odd_width)
    assert least is None or found.least_width == least


@pytest.mark.parametrize("kind", ["index", "index_scaled"])
def test_an_index_added_to_every_feature_is_lost_in_a_layer_norm_and_not_in_an_rms_norm(kind):
    change = {}
    for name in ("layer_norm", "rms_norm"):
        config = StackConfig(
            layers=2, width=12, heads=2, head_dim=6, feed_forward_width=20, max_length=9,
            positions=kind, norm_place="pre", norm=name,
        )  # fmt: skip
        x = np.float32(RNG.normal(size=(1, 7, 12)))
        vectors = np.asarray(PositionVectors(config).apply({}, jnp.arange(7)))
        stack = Stack(config, 2, causal=True)
        rows = np.concatenate([x + vectors, x])
        change[name] = np.abs(np.subtract(*jax.jit(stack.apply)(draw(stack, x), rows))).max()
    assert change["layer_norm"] < 1e-4 and change["rms_norm"] > 1e-2
