"""Both computations of a mixture of experts are its definition, also on a mesh."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_lab.ops import experts
from transformer_lab.ops.layout import AXES, ROW_AXES
from transformer_lab.training import hlo

B, T, E, D, F = 8, 6, 4, 3, 5
RNG = np.random.default_rng(0)
X, UP, GATE, DOWN = (
    jnp.asarray(RNG.normal(size=s), jnp.float32)
    for s in ((B, T, D), (E, D, F), (E, D, F), (E, F, D))
)
PROBABILITIES = jax.nn.softmax(jnp.asarray(RNG.normal(size=(B, T, E)), jnp.float32) * 2)
REAL = jnp.asarray(RNG.random((B, T)) < 0.8)


def act(up, gate):
    return jax.nn.silu(gate) * up


def expert(e, x):
    """Expert e on one token."""
    up, gate = x @ UP[e], x @ GATE[e]
    return np.asarray((jax.nn.silu(gate) * up) @ DOWN[e])


def token_choice(k, capacity, renormalize):
    """The definition: first choices of all tokens of a row in order, then the second ones."""
    out, dropped = np.zeros((B, T, D)), 0
    for b in range(B):
        taken = [0] * E
        order = np.argsort(-np.asarray(PROBABILITIES[b]), axis=-1, kind="stable")
        for choice in range(k):
            for t in range(T):
                if not REAL[b, t]:
                    continue
                e = order[t, choice]
                if capacity is not None and taken[e] >= capacity:
                    dropped += 1
                    continue
                taken[e] += 1
                all_of_them = PROBABILITIES[b, t, order[t, :k]].sum() if renormalize else 1.0
                out[b, t] += PROBABILITIES[b, t, e] / all_of_them * expert(e, X[b, t])
    return out, dropped


@pytest.mark.parametrize(
    ("k", "capacity", "renormalize"),
    [(1, 2, False), (2, 3, True), (2, None, True), (3, 1, False)],
    ids=["switch", "gshard", "mixtral", "tight"],
)
def test_tokens_choose_experts_as_the_definition_has_it(k, capacity, renormalize):
    expected, dropped = token_choice(k, capacity, renormalize)
    routes = experts.choose_experts(PROBABILITIES, k, capacity, REAL, renormalize=renormalize)
    found = experts.sorted_by_expert(X, routes, UP, GATE, DOWN, act)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    weights = experts.places(routes, E, capacity or T)
    found = experts.by_places(X, weights, UP, GATE, DOWN, act)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    kept = np.asarray(routes.weight > 0)
    assert REAL.sum() * k - kept.sum() == dropped


def test_experts_choose_tokens_as_the_definition_has_it():
    expected = np.zeros((B, T, D))
    for b in range(B):
        for e in range(E):
            scores = np.where(REAL[b], PROBABILITIES[b, :, e], 0)
            for t in np.argsort(-scores, kind="stable")[:2]:
                if scores[t] > 0:
                    expected[b, t] += scores[t] * expert(e, X[b, t])
    weights = experts.choose_tokens(PROBABILITIES, 2, REAL)
    assert weights.shape == (B, T, E, 2)
    found = experts.by_places(X, weights, UP, GATE, DOWN, act)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_an_even_router_has_balance_one_and_the_entropy_of_all_experts():
    logits = jnp.zeros((2, 3, E))
    asked = jax.nn.one_hot(jnp.asarray([[0, 1, 1], [3, 3, 3]]), E)
    taken = asked.at[1, 2].set(0.0)
    found = experts.balance_of(logits, jax.nn.softmax(logits), taken, asked, None)
    assert found.tokens == 6
    np.testing.assert_allclose(found.balance / 6, 1.0, rtol=1e-6)
    np.testing.assert_allclose(found.z / 6, np.log(E) ** 2, rtol=1e-6)
    np.testing.assert_allclose(found.entropy / 6, np.log(E), rtol=1e-6)
    load = np.asarray([1, 2, 0, 2])
    np.testing.assert_allclose(found.variation / 6, load.std() / load.mean(), rtol=1e-6)
    assert found.dropped == 1
    # All tokens at one expert, surely: the worst balance is E.
    sure = jnp.zeros((2, 3, E)).at[..., 2].set(40.0)
    asked = jax.nn.one_hot(jnp.full((2, 3), 2), E)
    found = experts.balance_of(sure, jax.nn.softmax(sure), asked, asked, None)
    np.testing.assert_allclose(found.balance / 6, E, rtol=1e-6)


def test_places_are_an_even_share_times_the_factor():
    assert experts.capacity_of(512, 64, 1, 1.25) == 10
    assert experts.capacity_of(512, 8, 2, 2.0) == 256
    assert experts.capacity_of(4, 64, 1, 1.0) == 1
    assert experts.capacity_of(4, 2, 2, 9.0) == 4


@pytest.mark.parametrize("way", ["places", "sorted"])
@pytest.mark.parametrize("sizes", [{"data": 2, "expert": 4}, {"fsdp": 2, "expert": 2, "data": 2}])
def test_values_and_gradients_on_a_mesh_are_those_of_one_device(way, sizes):
    def loss(arrays, probabilities):
        x, up, gate, down = arrays
        routes = experts.choose_experts(probabilities, 2, 3, REAL, renormalize=True)
        if way == "sorted":
            out = experts.sorted_by_expert(x, routes, up, gate, down, act)
        else:
            out = experts.by_places(x, experts.places(routes, E, 3), up, gate, down, act)
        return jnp.square(out).sum()

    of = jax.value_and_grad(loss, (0, 1))
    arguments = (X, UP, GATE, DOWN), PROBABILITIES
    expected = jax.jit(of)(*arguments)
    shape = tuple(sizes.get(axis, 1) for axis in AXES)
    mesh = jax.make_mesh(shape, AXES, axis_types=(jax.sharding.AxisType.Auto,) * len(AXES))
    with jax.set_mesh(mesh):
        found = jax.jit(partial(of))(*arguments)
    for ours, theirs in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("sizes", [{"data": 2, "expert": 4}, {"fsdp": 2, "expert": 2, "data": 2}])
def test_places_go_over_the_mesh_by_two_exchanges_of_the_bytes_by_hand(sizes):
    """A device sends its rows' places of all experts, E x C x D numbers a row, and gets them back;
    no tokens of other devices are gathered."""
    rows, places = 16, 3
    shape = tuple(sizes.get(axis, 1) for axis in AXES)
    mesh = jax.make_mesh(shape, AXES, axis_types=(jax.sharding.AxisType.Auto,) * len(AXES))
    on = lambda *axes: jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes))  # noqa: E731
    row = on(tuple(axis for axis in ROW_AXES if sizes.get(axis, 1) > 1))
    laid = row, row, on("expert"), on("expert"), on("expert")
    x, weights = jnp.ones((rows, T, D)), jnp.ones((rows, T, E, places))
    with jax.set_mesh(mesh):
        call = jax.jit(partial(experts.by_places, act=act), in_shardings=laid, out_shardings=row)
        text = call.lower(x, weights, UP, GATE, DOWN).compile().as_text()
    each = rows // 8 * E * places * D * 4
    assert hlo.parse(text).collectives() == {"all-to-all": {"count": 2, "bytes": 2 * each}}
