"""Recurrent cells against one row written out in numpy, and what the scan does with time."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_lab.errors import LabError
from transformer_lab.ops.recurrence import Cell, gradient_norms, scan, zero_state

B, T, H = 3, 5, 4
ELMANS = [Cell("elman", activation=name) for name in ("tanh", "relu", "sigmoid")]
GRUS = [Cell("gru", reset=r, gate_keeps=k) for r, k in product(("before", "after"), (True, False))]
CELLS = [*ELMANS, Cell("gated"), *GRUS, Cell("lstm"), Cell("lstm_peephole")]
MASK = jnp.asarray(np.arange(T) < np.array([[5], [2], [4]]))


def draw(cell, seed=0):
    """x [T, B, G], weights and a state."""
    rng = np.random.default_rng(seed)
    normal = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)  # noqa: E731
    weights = {"kernel": normal(H, cell.blocks * H)}
    if cell.kind == "gru" and cell.reset == "after":
        weights["bias"] = normal(H)
    if cell.kind == "lstm_peephole":
        weights["peephole"] = normal(3, H)
    state = tuple(normal(B, H) for _ in range(cell.parts))
    return normal(T, B, cell.blocks * H), weights, state


def reference(cell, x, weights, state):
    """The same for one row, unit by unit, as the papers' formulas have it."""
    sig = lambda v: 1 / (1 + np.exp(-v))  # noqa: E731
    u = np.split(weights["kernel"], cell.blocks, axis=1)
    x = np.split(x, cell.blocks)
    h = state[0]
    if cell.kind == "elman":
        act = {"tanh": np.tanh, "relu": lambda v: np.maximum(v, 0), "sigmoid": sig}
        return (act[cell.activation](x[0] + h @ u[0]),)
    if cell.kind == "gated":
        f = sig(x[0] + h @ u[0])
        return (f * h + (1 - f) * np.tanh(x[1] + h @ u[1]),)
    if cell.kind == "gru":
        r, z = sig(x[0] + h @ u[0]), sig(x[1] + h @ u[1])
        inner = (r * h) @ u[2] if cell.reset == "before" else r * (h @ u[2] + weights["bias"])
        new = np.tanh(x[2] + inner)
        return (z * h + (1 - z) * new,) if cell.gate_keeps else ((1 - z) * h + z * new,)
    p = weights.get("peephole", np.zeros((3, H)))
    i, f = sig(x[0] + h @ u[0] + p[0] * state[1]), sig(x[1] + h @ u[1] + p[1] * state[1])
    c = f * state[1] + i * np.tanh(x[2] + h @ u[2])
    return sig(x[3] + h @ u[3] + p[2] * c) * np.tanh(c), c


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_a_scan_is_the_formula_over_real_inputs_alone(cell):
    x, weights, state = jax.device_get(draw(cell))
    wild = np.where(MASK.T[:, :, None], x, np.inf)  # padding that would show

    @jax.jit
    def both(*inputs):
        return [scan(cell, *inputs, MASK, reverse=reverse) for reverse in (False, True)]

    for reverse, (out, last) in enumerate(jax.device_get(both(weights, wild, state))):
        for row, length in enumerate(MASK.sum(axis=1).tolist()):
            now = tuple(part[row] for part in state)
            for t in range(length)[:: -1 if reverse else 1]:
                now = reference(cell, x[t, row], weights, now)
                np.testing.assert_allclose(out[t, row], now[0], atol=1e-5)
            for part, want in zip(last, now, strict=True):
                np.testing.assert_allclose(part[row], want, atol=1e-5)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("mask", [None, MASK, MASK.at[0].set(False)])
def test_an_lstms_written_out_gradient_is_that_of_the_steps_program(mask, reverse):
    """Peepholes of zeros make the same function, whose gradient JAX derives."""
    x, weights, state = draw(Cell("lstm"))
    rng = np.random.default_rng(1)
    pulls = np.float32(rng.normal(size=(T, B, H))), tuple(np.float32(rng.normal(size=(2, B, H))))

    @jax.jit
    def pulled(inputs):
        found = []
        for kind, more in (("lstm", {}), ("lstm_peephole", {"peephole": jnp.zeros((3, H))})):
            run = lambda w, *a: scan(Cell(kind), w | more, *a, mask, reverse=reverse)  # noqa: E731, B023
            out, pull = jax.vjp(run, *inputs)
            found.append((out, pull(pulls)))
        return found

    ours, theirs = pulled((weights, x, state))
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_a_fresh_step_starts_from_zeros(kind):
    cell = Cell(kind)
    x, weights, state = draw(cell)
    fresh = jnp.zeros((B, T), bool).at[1, 2].set(True)

    @jax.jit
    def run(x):
        calls = (x, state, fresh), (x, state, None), (x[2:], zero_state(cell, B, H), None)
        return [scan(cell, weights, x, start, fresh=fresh)[0] for x, start, fresh in calls]

    out, plain, again = map(np.asarray, run(x))
    np.testing.assert_allclose(out[2:, 1], again[:, 1], atol=1e-6)
    np.testing.assert_array_equal(out[:, [0, 2]], plain[:, [0, 2]])


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_truncation_changes_no_value_and_stops_the_gradient_at_its_multiples(kind):
    cell = Cell(kind)
    x, weights, state = draw(cell)

    def last(x, truncate):
        return scan(cell, weights, x, state, truncate=truncate)[0][-1].sum()

    @jax.jit
    def run(x):
        """Values and gradients; and of the steps that are left, as if the state were a constant."""
        middle = scan(cell, weights, x[:3], state)[1]
        alone = jax.grad(lambda x: scan(cell, weights, x, middle)[0][-1].sum())(x[3:])
        return *jax.value_and_grad(last)(x, 3), last(x, 0), alone

    cut, gradient, whole, alone = map(np.asarray, run(x))
    assert cut == whole
    moved = np.abs(gradient).sum(axis=(1, 2)) > 0
    assert moved.tolist() == [False, False, False, True, True]
    np.testing.assert_allclose(gradient[3:], alone, atol=1e-6)


@pytest.mark.parametrize("factor", [0.5, 1.0, 1.5])
def test_gradient_norms_of_a_linear_recurrence_are_powers_of_its_factor(factor):
    weights = {"kernel": factor * jnp.eye(H)}
    state = (jnp.ones((B, H)),)

    def outputs(x):
        cell = Cell("elman", activation="relu")
        return jnp.swapaxes(scan(cell, weights, jnp.swapaxes(x, 0, 1), state)[0], 0, 1)

    norms = np.asarray(jax.jit(lambda x: gradient_norms(outputs, x))(np.ones((B, T, H))))
    np.testing.assert_allclose(norms / norms[-1], factor ** np.arange(T)[::-1], rtol=1e-5)
    assert abs(norms[-1] / H**0.5 - 1) < 0.2  # the Frobenius norm of the identity


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "lstn"}, 'model.cell = "lstn" is unknown .did you mean "lstm"'),
        ({"activation": "gelu"}, "model.activation"),
        ({"reset": "never"}, "model.reset"),
    ],
)
def test_an_unknown_choice_is_refused(change, words):
    with pytest.raises(LabError, match=words):
        Cell(**change)
