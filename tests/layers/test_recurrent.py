"""Recurrent stacks against PyTorch's, whole and in parts; layers/alignment.py by its formulas."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.tiny import draw
from transformer_lab.layers.alignment import KINDS, Alignment
from transformer_lab.layers.recurrent import RecurrentConfig, RecurrentStack

TORCH = np.load(Path(__file__).parents[1] / "fixtures" / "torch_recurrent.npz")
MASK = np.arange(6) < np.array([[6], [2], [5]])
X = np.asarray(TORCH["x"])
CONFIG = RecurrentConfig(layers=2, width=4)


def stack(params=None, **changes):
    module = RecurrentStack(replace(CONFIG, **changes), X.shape[-1])
    params = {"params": params} if params else draw(module, X)
    run = jax.jit(lambda params, x, *args, **options: module.apply(params, x, *args, **options))
    return lambda *args, **options: jax.device_get(run(params, *args, **options))


def from_torch(weights, config):
    """The parameters of a stack from a state_dict of PyTorch's nn.RNN, nn.GRU or nn.LSTM.

    Its kernels are [blocks H, in], its blocks stand in our order (input, forget, new, output;
    reset, update, new), and its two biases, after the input's product and after the state's, are
    one here: but for the new value of a GRU, whose reset gate scales the second one.
    """
    params = {}
    for i in range(config.layers):
        for direction, end in zip(config.directions, ("", "_reverse"), strict=False):
            name = f"l{i}{end}"
            first, second = weights[f"bias_ih_{name}"], weights[f"bias_hh_{name}"].copy()
            own = params.setdefault(f"layer_{i}", {})[direction] = {
                "input_kernel": weights[f"weight_ih_{name}"].T,
                "recurrent_kernel": weights[f"weight_hh_{name}"].T,
            }
            if config.cell == "gru":
                own["recurrent_bias"] = second[-config.width :].copy()
                second[-config.width :] = 0.0
            own["bias"] = first + second
    return params


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("cell", ["lstm", "gru", "elman"])
def test_agrees_with_pytorch(cell, both):
    name = f"{cell}_both" if both else cell
    weights = {k.split("/")[-1]: TORCH[k] for k in TORCH if k.startswith(f"{name}/weights/")}
    config = replace(CONFIG, cell=cell, bidirectional=both)
    run = stack(from_torch(weights, config), cell=cell, bidirectional=both)
    out, last = run(X, MASK)
    np.testing.assert_allclose(out[MASK], TORCH[f"{name}/outputs"][MASK], atol=1e-5)
    for part, key in enumerate("hc"[: len(last[0][0])]):
        found = [state[part] for layer in last for state in layer]
        np.testing.assert_allclose(np.stack(found), TORCH[f"{name}/{key}"], atol=1e-5)


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_carried_states_go_on_where_they_stopped(cell):
    run = stack(cell=cell, residual=True)
    whole, end = run(X)
    first, states = run(X[:, :4])
    rest, last = run(X[:, 4:], None, states)
    np.testing.assert_allclose(np.concatenate([first, rest], axis=1), whole, atol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), last, end)


def test_a_row_alone_equals_itself_padded_in_both_directions():
    run = stack(bidirectional=True, residual=True)
    out, last = run(X, MASK)
    alone, ends = run(X[1:2, :2])
    np.testing.assert_allclose(out[1, :2], alone[0], atol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a[1], b[0], atol=1e-6), last, ends)


def test_a_residual_adds_the_input_where_the_widths_agree():
    one, (first,) = stack(layers=1)(X)
    both = stack(residual=True)
    out, last = both(X)
    assert one.shape == out.shape
    params = draw(RecurrentStack(replace(CONFIG, residual=True), 5), X)
    inner = stack({"layer_0": params["params"]["layer_0"]}, layers=1)(X)[0]
    np.testing.assert_allclose(out[:, -1] - last[1][0][0], inner[:, -1], atol=1e-6)


def test_dropout_falls_between_layers_only():
    key = jax.random.key(3)
    single = stack(layers=1, dropout=0.5)
    np.testing.assert_array_equal(single(X, dropout_key=key)[0], single(X)[0])
    run = stack(dropout=0.5)
    first = np.asarray(run(X, dropout_key=key)[0])
    assert (first != run(X)[0]).any()
    np.testing.assert_array_equal(first, run(X, dropout_key=key)[0])


@pytest.mark.parametrize("cell", ["elman", "gated", "gru", "lstm"])
def test_recurrent_blocks_start_orthogonal_and_forget_gates_at_their_bias(cell):
    module = RecurrentStack(replace(CONFIG, cell=cell, forget_bias=2.0), 5)
    params = jax.device_get(jax.jit(module.init)(jax.random.key(0), X)["params"])
    own = params["layer_1"]["forward"]
    for block in np.split(own["recurrent_kernel"], own["bias"].size // 4, axis=1):
        np.testing.assert_allclose(block @ block.T, np.eye(4), atol=1e-6)
    want = {"elman": [0], "gated": [2, 0], "gru": [0] * 3, "lstm": [0, 2, 0, 0]}[cell]
    np.testing.assert_array_equal(own["bias"], np.repeat(want, 4))


@pytest.mark.parametrize("kind", KINDS)
def test_alignments_are_their_formulas(kind):
    width = 6
    rng = np.random.default_rng(1)
    states = np.float32(rng.normal(size=(2, 3, width if kind != "additive" else 5)))
    query = np.float32(rng.normal(size=(2, 4, width)))
    mask = np.array([[True, True, True], [True, False, True]])
    module = Alignment(kind, width, jnp.dtype("float32"))
    both = lambda m, s, q, mask: m(q, m.memory(s, mask))  # noqa: E731
    params = draw(module, states, query, mask, method=both)
    run = jax.jit(partial(module.apply, method=both))
    context, weights = run(params, states, query, mask)
    p = jax.device_get(params.get("params", {}))
    s, q = np.asarray(states, np.float64), np.asarray(query, np.float64)
    read = lambda name, x: x @ p[name]["kernel"] + p[name].get("bias", 0.0)  # noqa: E731
    values = read("value", s) if kind == "scaled_dot" else s
    for b in range(2):
        for t in range(4):
            if kind == "additive":
                hidden = np.tanh(read("query", q[b, t]) + read("key", s[b]))
                scores = hidden @ p["score_scale"]
            elif kind == "scaled_dot":
                scores = read("key", s[b]) @ read("query", q[b, t]) / 6**0.5
            else:
                keys = read("key", s[b]) if kind == "general" else s[b]
                scores = keys @ q[b, t] / (6**0.5 if kind == "plain" else 1)
            e = np.where(mask[b], np.exp(scores), 0)
            np.testing.assert_allclose(weights[b, t], e / e.sum(), atol=1e-5)
            np.testing.assert_allclose(context[b, t], (e / e.sum()) @ values[b], atol=1e-5)
