"""Both computations of a mixture of experts are its definition, also on a mesh."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_lab.ops import experts
from transformer_lab.ops.layout import AXES, ROW_AXES
from transformer_lab.training import hlo

B, T, E, D, F = 8, 6, 4, 4, 6
RNG = np.random.default_rng(0)
X, UP, GATE, DOWN = (
    jnp.asarray(RNG.normal(size=s), jnp.float32)
    for s in ((B, T, D), (E, D, F), (E, D, F), (E, F, D))
)
PROBABILITIES = jax.nn.softmax(jnp.asarray(RNG.normal(size=(B, T, E)) * 2, jnp.float32))
REAL = jnp.asarray(RNG.random((B, T)) < 0.8)
# The same for the definitions, which are plain numpy.
x, ups, gates, downs, shares, real = jax.device_get((X, UP, GATE, DOWN, PROBABILITIES, REAL))


def act(up, gate):
    return jax.nn.silu(gate) * up


def expert(e, x):
    """Expert e on one token."""
    up, gate = x @ ups[e], x @ gates[e]
    return (gate / (1 + np.exp(-gate)) * up) @ downs[e]


def token_choice(k, capacity, renormalize):
    """The definition: first choices of all tokens of a row in order, then the second ones."""
    out, dropped = np.zeros((B, T, D)), 0
    for b in range(B):
        taken = [0] * E
        order = np.argsort(-shares[b], axis=-1, kind="stable")
        for choice in range(k):
            for t in range(T):
                if not real[b, t]:
                    continue
                e = order[t, choice]
                if capacity is not None and taken[e] >= capacity:
                    dropped += 1
                    continue
                taken[e] += 1
                all_of_them = shares[b, t, order[t, :k]].sum() if renormalize else 1.0
                out[b, t] += shares[b, t, e] / all_of_them * expert(e, x[b, t])
    return out, dropped


@pytest.mark.parametrize(
    ("k", "capacity", "renormalize"),
    [(1, 2, False), (2, 3, True), (2, None, True), (3, 1, False)],
    ids=["switch", "gshard", "mixtral", "tight"],
)
def test_tokens_choose_experts_as_the_definition_has_it(k, capacity, renormalize):
    expected, dropped = token_choice(k, capacity, renormalize)

    @jax.jit
    def both(x):
        routes = experts.choose_experts(PROBABILITIES, k, capacity, REAL, renormalize=renormalize)
        weights = experts.places(routes, E, capacity or T)
        found = experts.by_places(x, weights, UP, GATE, DOWN, act)
        return found, experts.sorted_by_expert(x, routes, UP, GATE, DOWN, act), routes.weight > 0

    by_places, by_expert, kept = map(np.asarray, both(X))
    np.testing.assert_allclose(by_expert, expected, atol=1e-5)
    np.testing.assert_allclose(by_places, expected, atol=1e-5)
    assert real.sum() * k - kept.sum() == dropped


def test_experts_choose_tokens_as_the_definition_has_it():
    expected = np.zeros((B, T, D))
    for b in range(B):
        for e in range(E):
            scores = np.where(real[b], shares[b, :, e], 0)
            for t in np.argsort(-scores, kind="stable")[:2]:
                if scores[t] > 0:
                    expected[b, t] += scores[t] * expert(e, x[b, t])
    weights = jax.jit(experts.choose_tokens, static_argnums=1)(PROBABILITIES, 2, REAL)
    assert weights.shape == (B, T, E, 2)
    found = jax.jit(lambda x: experts.by_places(x, weights, UP, GATE, DOWN, act))(X)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_an_even_router_has_balance_one_and_the_entropy_of_all_experts():
    balance_of = jax.jit(experts.balance_of)
    logits = np.zeros((2, 3, E), np.float32)
    asked = np.eye(E, dtype=np.float32)[[[0, 1, 1], [3, 3, 3]]]
    taken = asked.copy()
    taken[1, 2] = 0.0
    found = balance_of(logits, np.full((2, 3, E), 1 / E, np.float32), taken, asked, None)
    assert found.tokens == 6
    np.testing.assert_allclose(found.balance / 6, 1.0, rtol=1e-6)
    np.testing.assert_allclose(found.z / 6, np.log(E) ** 2, rtol=1e-6)
    np.testing.assert_allclose(found.entropy / 6, np.log(E), rtol=1e-6)
    load = np.asarray([1, 2, 0, 2])
    np.testing.assert_allclose(found.variation / 6, load.std() / load.mean(), rtol=1e-6)
    assert found.dropped == 1
    # All tokens at one expert, surely: the worst balance is E.
    asked = np.eye(E, dtype=np.float32)[np.full((2, 3), 2)]
    found = balance_of(40.0 * asked, asked, asked, asked, None)
    np.testing.assert_allclose(found.balance / 6, E, rtol=1e-6)


def test_places_are_an_even_share_times_the_factor():
    assert experts.capacity_of(512, 64, 1, 1.25) == 10
    assert experts.capacity_of(512, 8, 2, 2.0) == 256
    assert experts.capacity_of(4, 64, 1, 1.0) == 1
    assert experts.capacity_of(4, 2, 2, 9.0) == 4


def mesh_of(sizes):
    shape = tuple(sizes.get(axis, 1) for axis in AXES)
    return jax.make_mesh(shape, AXES, axis_types=(jax.sharding.AxisType.Auto,) * len(AXES))


@pytest.mark.parametrize("sizes", [{"fsdp": 2, "expert": 2, "data": 2}, {"data": 4, "fsdp": 2}])
def test_gradients_of_float32_kernels_are_summed_over_devices_in_float32(sizes):
    """Each device's part, of one row or of two, is exact in bfloat16, and their sum, 2 (256 + 5),
    is not: bfloat16 has no number between 520 and 524."""
    rows = np.array([256, 1, 0, 1, 1, 1, 1, 0])
    x = jnp.asarray(np.tile(rows[:, None, None], (1, 2, 2)), jnp.bfloat16)
    chosen = jnp.asarray(np.tile(np.eye(2, dtype=np.float32), (8, 1, 1)))  # one token an expert

    @jax.jit
    def gradients(up, down):
        def loss(kernels, way):
            routes = experts.choose_experts(chosen, 1, 1, renormalize=False)
            rest = kernels[0], None, kernels[1], lambda up, gate: up
            if way == "sorted":
                return experts.sorted_by_expert(x, routes, *rest).sum()
            return experts.by_places(x, experts.places(routes, 2, 1), *rest).sum()

        return [jax.grad(loss)((up, down), way) for way in ("sorted", "places")]

    with jax.set_mesh(mesh_of(sizes)):
        found = gradients(np.ones((2, 2, 4), np.float32), np.full((2, 4, 2), 1.0, np.float32))
    for gradient in jax.tree.leaves(found):
        np.testing.assert_array_equal(gradient, 522.0)


@pytest.mark.parametrize("way", ["places", "sorted"])
@pytest.mark.parametrize("sizes", [{"data": 2, "expert": 4}, {"fsdp": 2, "expert": 2, "tensor": 2}])
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
    with jax.set_mesh(mesh_of(sizes)):
        found = jax.jit(partial(of))(*arguments)
    for ours, theirs in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("sizes", [{"data": 2, "expert": 4}, {"fsdp": 2, "expert": 2, "data": 2}])
def test_places_go_over_the_mesh_by_two_exchanges_of_the_bytes_by_hand(sizes):
    """A device sends its rows' places of all experts, E x C x D numbers a row, and gets them back;
    no tokens of other devices are gathered."""
    rows, places = 16, 3
    mesh = mesh_of(sizes)
    on = lambda *axes: jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes))  # noqa: E731
    row = on(tuple(axis for axis in ROW_AXES if sizes.get(axis, 1) > 1))
    laid = row, row, on("expert"), on("expert"), on("expert")
    x, weights = jnp.ones((rows, T, D)), jnp.ones((rows, T, E, places))
    with jax.set_mesh(mesh):
        call = jax.jit(partial(experts.by_places, act=act), in_shardings=laid, out_shardings=row)
        text = call.lower(x, weights, UP, GATE, DOWN).compile().as_text()
    each = rows // 8 * E * places * D * 4
    assert hlo.parse(text).collectives() == {"all-to-all": {"count": 2, "bytes": 2 * each}}
