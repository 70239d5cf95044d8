"""Recurrent stacks against PyTorch's, whole and in parts; layers/alignment.py by its formulas."""

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.layers.torch_recurrent import from_torch, to_torch
from transformer_lab.errors import LabError
from transformer_lab.layers.alignment import KINDS, Alignment
from transformer_lab.layers.recurrent import RecurrentConfig, RecurrentStack

TORCH = np.load(Path(__file__).parents[1] / "fixtures" / "torch_recurrent.npz")
MASK = jnp.arange(6) < jnp.array([[6], [2], [5]])
X = jnp.asarray(TORCH["x"])
CONFIG = RecurrentConfig(layers=2, width=4)


def stack(params=None, **changes):
    module = RecurrentStack(replace(CONFIG, **changes), X.shape[-1])
    given = {"params": jax.tree.map(jnp.asarray, params)}
    params = given if params else jax.jit(module.init)(jax.random.key(0), X)
    return jax.jit(lambda x, *args, **options: module.apply(params, x, *args, **options))


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("cell", ["lstm", "gru", "elman"])
def test_agrees_with_pytorch_and_its_weights_return(cell, both):
    name = f"{cell}_both" if both else cell
    weights = {k.split("/")[-1]: TORCH[k] for k in TORCH if k.startswith(f"{name}/weights/")}
    config = replace(CONFIG, cell=cell, bidirectional=both)
    params = from_torch(weights, config)
    run = stack(params, cell=cell, bidirectional=both)
    out, last = run(X, MASK)
    np.testing.assert_allclose(out[MASK], TORCH[f"{name}/outputs"][MASK], atol=1e-5)
    for part, key in enumerate("hc"[: len(last[0][0])]):
        found = [state[part] for layer in last for state in layer]
        np.testing.assert_allclose(jnp.stack(found), TORCH[f"{name}/{key}"], atol=1e-5)
    back = to_torch(params, config)
    assert {k: v.shape for k, v in back.items()} == {k: v.shape for k, v in weights.items()}
    for key, value in weights.items():  # of two biases that are added only the sum is told
        other = key.replace("_ih_", "_hh_") if "_ih_" in key else key.replace("_hh_", "_ih_")
        pair = (weights, back) if "bias" in key else None
        sums = [w[key] + w[other] for w in pair] if pair else [value, back[key]]
        np.testing.assert_allclose(*sums, atol=1e-6)
    again = from_torch(back, config)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), again, params)


def test_other_conventions_have_no_layer_in_pytorch():
    with pytest.raises(LabError, match="reset = after"):
        to_torch({}, replace(CONFIG, cell="gru", reset="before"))


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_carried_states_go_on_where_they_stopped(cell):
    run = stack(cell=cell, residual=True)
    whole, end = run(X)
    first, states = run(X[:, :4])
    rest, last = run(X[:, 4:], None, states)
    np.testing.assert_allclose(jnp.concatenate([first, rest], axis=1), whole, atol=1e-6)
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
    params = RecurrentStack(replace(CONFIG, residual=True), 5).init(jax.random.key(0), X)
    inner = stack({"layer_0": params["params"]["layer_0"]}, layers=1)(X)[0]
    np.testing.assert_allclose(out[:, -1] - last[1][0][0], inner[:, -1], atol=1e-6)


def test_dropout_falls_between_layers_only():
    key = jax.random.key(3)
    single = stack(layers=1, dropout=0.5)
    np.testing.assert_array_equal(single(X, dropout_key=key)[0], single(X)[0])
    run = stack(dropout=0.5)
    assert (run(X, dropout_key=key)[0] != run(X)[0]).any()
    np.testing.assert_array_equal(run(X, dropout_key=key)[0], run(X, dropout_key=key)[0])


@pytest.mark.parametrize("cell", ["elman", "gated", "gru", "lstm"])
def test_recurrent_blocks_start_orthogonal_and_forget_gates_at_their_bias(cell):
    module = RecurrentStack(replace(CONFIG, cell=cell, forget_bias=2.0), 5)
    own = module.init(jax.random.key(0), X)["params"]["layer_1"]["forward"]
    blocks = jnp.split(own["recurrent_kernel"], own["bias"].size // 4, axis=1)
    for block in blocks:
        np.testing.assert_allclose(block @ block.T, jnp.eye(4), atol=1e-6)
    want = {"elman": [0], "gated": [2, 0], "gru": [0] * 3, "lstm": [0, 2, 0, 0]}[cell]
    np.testing.assert_array_equal(own["bias"], np.repeat(want, 4))


@pytest.mark.parametrize("kind", KINDS)
def test_alignments_are_their_formulas(kind):
    width = 6
    states = jax.random.normal(jax.random.key(1), (2, 3, width if kind != "additive" else 5))
    query = jax.random.normal(jax.random.key(2), (2, 4, width))
    mask = jnp.array([[True, True, True], [True, False, True]])
    module = Alignment(kind, width, jnp.dtype("float32"))
    both = lambda m, s, q, mask: m(q, m.memory(s, mask))  # noqa: E731
    params = module.init(jax.random.key(0), states, query, mask, method=both)
    context, weights = module.apply(params, states, query, mask, method=both)
    p = jax.tree.map(np.asarray, params.get("params", {}))
    s, q = np.asarray(states, np.float64), np.asarray(query, np.float64)
    values = s @ p["value"]["kernel"] if kind == "scaled_dot" else s
    for b in range(2):
        for t in range(4):
            if kind == "additive":
                hidden = np.tanh(q[b, t] @ p["query"]["kernel"] + s[b] @ p["key"]["kernel"])
                scores = hidden @ p["score_scale"]
            elif kind == "scaled_dot":
                scores = (s[b] @ p["key"]["kernel"]) @ (q[b, t] @ p["query"]["kernel"]) / 6**0.5
            else:
                keys = s[b] @ p["key"]["kernel"] if kind == "general" else s[b]
                scores = keys @ q[b, t] / (6**0.5 if kind == "plain" else 1)
            e = np.where(mask[b], np.exp(scores), 0)
            np.testing.assert_allclose(weights[b, t], e / e.sum(), atol=1e-5)
            np.testing.assert_allclose(context[b, t], (e / e.sum()) @ values[b], atol=1e-5)
