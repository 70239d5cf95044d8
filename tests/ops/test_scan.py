"""The three ways of a linear recurrence are the recurrence, in values and gradients."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_lab.errors import LabError
from transformer_lab.ops.scan import WAYS, convolve, max_plus, recurrence, step

RECURRENCE = jax.jit(recurrence, static_argnames=("way", "chunk"))


def reference(query, key, value, log_decay, initial, fresh):
    """The definition, in float64, one step after the other."""
    (b, t, h, _), k = value.shape, key.shape[-1]
    query, key = (np.broadcast_to(x, (b, t, h, k)) for x in (query, key))
    decay = np.broadcast_to(np.exp(np.asarray(log_decay)), (b, t, h, k))
    state, out = np.array(initial), np.zeros((b, t, h, value.shape[-1]), value.dtype)
    for i in range(t):
        state = np.where(np.asarray(fresh)[:, i, None, None, None], 0, state)
        state = decay[:, i, :, :, None] * state + key[:, i, :, :, None] * value[:, i, :, None]
        out[:, i] = np.einsum("bhk,bhkp->bhp", query[:, i], state)
    return out, state


def drawn(rng, t, decays, b=2, h=3, k=4, p=5, keys=3):
    """Random inputs of a recurrence whose decays are one a head, one a key's entry, or complex,
    and whose queries and keys are those of each head (`keys` = h) or of all (1)."""
    normal = lambda *shape: rng.normal(size=shape)  # noqa: E731
    kind = {"head": (b, t, h, 1), "key": (b, t, h, k), "constant": (1, t, h, 1)}
    log_decay = -np.abs(normal(*kind.get(decays, (b, t, h, k)))) * rng.choice([0.01, 1.0, 30.0])
    arrays = [normal(b, t, keys, k), normal(b, t, keys, k), normal(b, t, h, p), log_decay]
    arrays.append(normal(b, h, k, p))
    if decays == "complex":
        arrays[3] = arrays[3] + 1j * normal(b, t, h, k)
        arrays[4] = arrays[4] + 1j * normal(b, h, k, p)
        arrays[2] = arrays[2].astype(complex)
    return [*arrays, rng.random((b, t)) < 0.15]


@settings(max_examples=16, deadline=None)
@given(
    st.integers(0, 2**31),
    st.sampled_from([1, 5, 16, 23]),
    st.sampled_from(["head", "key", "constant", "complex"]),
    st.sampled_from([1, 3]),
    st.sampled_from([1, 5]),
    st.booleans(),
)
def test_every_way_is_the_recurrence_with_documents_and_an_initial_state(
    seed, t, decays, keys, values, with_poles
):
    rng = np.random.default_rng(seed)
    inputs = drawn(rng, t, decays, p=values, keys=keys)
    poles = np.abs(rng.normal(size=(3, 4))) if with_poles and decays != "key" else None
    whole = list(inputs)
    whole[3] = inputs[3] if poles is None else inputs[3] * poles
    with jax.enable_x64():
        expected, arrays = reference(*whole), jax.tree.map(jnp.asarray, (*inputs, poles))
        for way in WAYS:
            found = RECURRENCE(*arrays, way=way, chunk=8)
            for ours, theirs in zip(found, expected, strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-11, err_msg=way)


@pytest.mark.parametrize(("decays", "values"), [("head", 5), ("key", 5), ("head", 1)])
def test_gradients_of_every_way_are_those_of_the_steps(decays, values):
    rng = np.random.default_rng(3)
    inputs = drawn(rng, 21, decays, p=values, keys=1 if decays == "head" else 3)
    fresh = jnp.asarray(inputs.pop())
    if values == 1:
        inputs += [fresh, np.abs(rng.normal(size=(3, 4)))]
    with jax.enable_x64():
        arrays = tuple(map(jnp.asarray, (*inputs[:5], *inputs[6:])))

        def gradient(way):
            def loss(arrays):
                out, last = recurrence(*arrays[:5], fresh, *arrays[5:], way=way, chunk=8)
                return jnp.sin(out).sum() + jnp.cos(last).sum()

            return jax.jit(jax.grad(loss))(arrays)

        expected = gradient("steps")
        for way in WAYS[1:]:
            for ours, theirs in zip(gradient(way), expected, strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-10, err_msg=way)
                assert np.isfinite(ours).all()


def test_a_state_carried_over_a_cut_and_single_steps_give_the_whole():
    query, key, value, log_decay, initial, _ = drawn(np.random.default_rng(5), 12, "key")
    arrays = [np.float32(x) for x in (query, key, value, log_decay)]
    run, one = jax.jit(partial(recurrence, chunk=4)), jax.jit(step)
    whole, last = run(*arrays, np.float32(initial))
    first, state = run(*(x[:, :7] for x in arrays), np.float32(initial))
    np.testing.assert_allclose(first, whole[:, :7], atol=1e-5)
    for i in range(7, 12):
        state, out = one(state, *(x[:, i] for x in arrays))
        np.testing.assert_allclose(out, whole[:, i], atol=1e-5)
    np.testing.assert_allclose(state, last, atol=1e-5)


def test_padding_with_zero_keys_leaves_the_state():
    query, key, value, log_decay, initial, _ = drawn(np.random.default_rng(6), 9, "head")
    key[:, :4], log_decay[:, :4] = 0.0, 0.0
    arrays = [np.float32(x) for x in (query, key, value, log_decay)]
    run = jax.jit(partial(recurrence, chunk=4))
    out, last = run(*arrays)
    alone, end = run(*(x[:, 4:] for x in arrays))
    np.testing.assert_allclose(out[:, 4:], alone, atol=1e-6)
    np.testing.assert_allclose(last, end, atol=1e-6)
    assert not np.asarray(out[:, :4]).any()


def test_max_plus_is_its_loop():
    rng = np.random.default_rng(7)
    log_key, log_decay = rng.normal(size=(2, 9, 3)) * 50, -np.exp(rng.normal(size=(2, 9, 3)))
    m, expected = np.full((2, 3), -1e38), []
    for i in range(9):
        m = np.maximum(m + log_decay[:, i], log_key[:, i])
        expected.append(m)
    arrays = log_key, log_decay, np.full((2, 3), -1e38)
    found = jax.jit(max_plus)(*map(np.float32, arrays))
    np.testing.assert_allclose(found, np.stack(expected, 1), rtol=1e-5)


def test_a_convolution_is_numpys_stops_at_documents_and_goes_on_from_its_last_inputs():
    rng = np.random.default_rng(8)
    x, kernel = (np.float32(rng.normal(size=s)) for s in ((2, 10, 3), (4, 3)))
    run = jax.jit(convolve)
    out, last = run(x, kernel)
    for b in range(2):
        for d in range(3):
            expected = np.convolve(x[b, :, d], kernel[::-1, d])[:10]
            np.testing.assert_allclose(out[b, :, d], expected, atol=1e-5)
    np.testing.assert_array_equal(last, x[:, -3:])
    first, state = run(x[:, :6], kernel)
    more, _ = run(x[:, 6:], kernel, state)
    np.testing.assert_allclose(np.concatenate([first, more], 1), out, atol=1e-6)
    cut, _ = run(x, kernel, None, np.tile(np.arange(10) == 6, (2, 1)))
    alone, _ = run(x[:, 6:], kernel)
    np.testing.assert_allclose(cut[:, 6:], alone, atol=1e-6)
    np.testing.assert_allclose(cut[:, :6], out[:, :6], atol=1e-6)


def test_an_unknown_way_is_refused_by_name():
    inputs = map(jnp.asarray, drawn(np.random.default_rng(0), 4, "head"))
    with pytest.raises(LabError, match="chunks"):
        recurrence(*inputs, way="chunk")
