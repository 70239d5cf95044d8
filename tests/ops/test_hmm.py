"""Hidden Markov models against the sum over all paths, and against values of hmmlearn 0.3.3."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_lab.ops import hmm
from transformer_lab.ops.hmm import HMM

START = np.array([0.6, 0.3, 0.1])
MOVES = np.array([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.3, 0.3, 0.4]])
TABLE = np.array([[0.5, 0.3, 0.1, 0.1], [0.1, 0.2, 0.6, 0.1], [0.2, 0.1, 0.1, 0.6]])
SYMBOLS = HMM(*map(jnp.asarray, (START, MOVES, TABLE)))
LONG, SHORT = [0, 1, 0, 2, 2, 3, 3, 0, 1, 2], [3, 3, 2, 0, 1]
ROWS = jnp.array([LONG, SHORT + [0] * 5])
REAL = jnp.arange(10) < jnp.array([[10], [5]])
NEAR = {"rtol": 2e-5, "atol": 1e-6}


def test_forward_backward_and_viterbi_are_the_sums_and_maxima_over_all_paths():
    symbols = [0, 3, 2, 1, 3]
    weights = {}
    for path in itertools.product(range(3), repeat=5):
        p = START[path[0]] * TABLE[path[0], symbols[0]]
        for t in range(1, 5):
            p *= MOVES[path[t - 1], path[t]] * TABLE[path[t], symbols[t]]
        weights[path] = p
    total = sum(weights.values())
    states, moves = np.zeros((5, 3)), np.zeros((3, 3))
    for path, p in weights.items():
        for t, state in enumerate(path):
            states[t, state] += p / total
            if t:
                moves[path[t - 1], state] += p / total
    x, real = jnp.array([*symbols, 1, 2]), jnp.arange(7) < 5  # two steps of padding
    value, first, found_moves, found = jax.jit(hmm.expected)(SYMBOLS, x, real)
    np.testing.assert_allclose(value, np.log(total), **NEAR)
    np.testing.assert_allclose(found[:5], states, **NEAR)
    np.testing.assert_array_equal(found[5:], 0)
    np.testing.assert_allclose(found_moves, moves, **NEAR)
    np.testing.assert_allclose(first, states[0], **NEAR)
    logs = hmm.log(SYMBOLS.start), hmm.log(SYMBOLS.moves), hmm.emissions(SYMBOLS, x)
    path, best = hmm.viterbi(*logs, real)
    assert tuple(path[:5].tolist()) == max(weights, key=weights.get) and path[5] == path[4]
    np.testing.assert_allclose(best, np.log(max(weights.values())), **NEAR)


def test_symbols_give_what_hmmlearn_gives():
    new, values = jax.jit(hmm.baum_welch, static_argnums=3)(SYMBOLS, ROWS, REAL, 4)
    assert values[0] == pytest.approx(-20.758078185957476, rel=1e-6)
    assert (np.diff(values) > 0).all()
    new, _ = hmm.baum_welch(SYMBOLS, ROWS, REAL, 1)
    moves = [[0.63725, 0.294752, 0.067997], [0.097938, 0.550141, 0.351921],
             [0.308145, 0.260425, 0.43143]]  # fmt: skip
    table = [[0.464042, 0.321138, 0.110283, 0.104538], [0.111208, 0.162459, 0.592515, 0.133819],
             [0.159147, 0.0606, 0.09476, 0.685494]]  # fmt: skip
    np.testing.assert_allclose(new.start, [0.585576, 0.136768, 0.277655], **NEAR)
    np.testing.assert_allclose(new.moves, moves, **NEAR)
    np.testing.assert_allclose(new.emission, table, **NEAR)
    logs = hmm.log(SYMBOLS.start), hmm.log(SYMBOLS.moves), hmm.emissions(SYMBOLS, jnp.array(LONG))
    path, best = hmm.viterbi(*logs, jnp.ones(10, bool))
    assert path.tolist() == [0, 0, 0, 1, 1, 2, 2, 0, 0, 1]
    assert float(best) == pytest.approx(-15.676303513904065, rel=1e-6)


def test_gaussians_give_what_hmmlearn_gives():
    first = [[0.1, 1.0], [0.3, 1.2], [2.0, -1.0], [2.2, -0.7], [1.9, -1.3], [0.0, 0.8], [0.2, 1.1],
             [2.1, -0.9]]  # fmt: skip
    second = [[2.0, -1.1], [0.1, 0.9], [0.4, 1.3]]
    x = jnp.array([first, second + [[9.0, 9.0]] * 5])
    real = jnp.arange(8) < jnp.array([[8], [3]])
    model = HMM(
        jnp.array([0.5, 0.5]), jnp.array([[0.8, 0.2], [0.3, 0.7]]),
        jnp.array([[[0.0, 0.5], [1.0, -0.5]], [[1.0, 0.5], [0.7, 1.0]]]),
    )  # fmt: skip
    new, values = jax.jit(hmm.baum_welch, static_argnums=3)(model, x, real, 4)
    expected = [-30.97909207204228, -18.598147332952134, 0.9059585457835195, 3.3685659818544975]
    np.testing.assert_allclose(values, expected, rtol=1e-4)
    np.testing.assert_allclose(new.emission[0], [[0.183333, 1.05], [2.04, -1.0]], **NEAR)
    variances = [[0.01805556, 0.02916667], [0.0104, 0.04]]
    np.testing.assert_allclose(new.emission[1], variances, rtol=1e-4)
    np.testing.assert_allclose(new.moves, [[0.6, 0.4], [0.5, 0.5]], rtol=1e-4)
    logs = hmm.log(model.start), hmm.log(model.moves), hmm.emissions(model, x[0])
    path, best = hmm.viterbi(*logs, real[0])
    assert path.tolist() == [0, 0, 1, 1, 1, 0, 0, 1]
    assert float(best) == pytest.approx(-23.86971936825166, rel=1e-5)
