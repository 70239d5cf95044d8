"""Drawing codes: in order from a cache, and in parallel by the schedule written out."""

import jax
import jax.numpy as jnp
import numpy as np

from transformer_lab.decoding.codes import in_order, in_parallel, lowest, masked_share

KEYS = jax.vmap(jax.random.key)(jnp.arange(3))


def likeliest(logits, keys):
    return logits.argmax(axis=-1).astype(jnp.int32)


def test_codes_in_order_are_those_that_each_code_before_makes_likeliest():
    table = jnp.asarray(np.random.default_rng(0).normal(size=(5, 5)))
    step = lambda codes, cache: (table[codes] + cache, cache + 0.1 * jnp.arange(5.0))  # noqa: E731
    first = jnp.asarray(np.random.default_rng(1).normal(size=(3, 5)))
    found = in_order(first, jnp.zeros(5), step, likeliest, KEYS, 4)
    for row, logits in zip(np.asarray(found), np.asarray(first), strict=True):
        wanted = [int(logits.argmax())]
        for i in range(3):
            scores = np.asarray(table)[wanted[-1]] + i * 0.1 * np.arange(5)
            wanted.append(int(scores.argmax()))
        assert row.tolist() == wanted


def test_hidden_codes_are_settled_by_the_cosine_schedule_the_surest_first():
    count, steps = 8, 4
    assert masked_share(jnp.array([0.0, 1 / 3, 1.0])).tolist() == [1.0, 0.5, 0.0] or np.allclose(
        masked_share(jnp.array([0.0, 2 / 3, 1.0])), [1.0, 0.5, 0.0], atol=1e-6
    )

    def predict(codes):  # the number of hidden codes, the surer the further to the right
        hidden = (codes == 20).sum(axis=1)
        sure = 5.0 + jnp.arange(count)
        return jax.nn.one_hot(hidden, 20)[:, None] * sure[:, None]

    found = np.asarray(in_parallel(predict, likeliest, KEYS, count, steps, 20))
    # Hidden at first: 8, then floor(8 cos(pi i / 8)) = 7, 5 and 3.
    assert found.tolist() == [[3, 3, 3, 5, 5, 7, 7, 8]] * 3
    noisy = np.asarray(in_parallel(predict, likeliest, KEYS, count, steps, 20, noise=100.0))
    assert np.sort(noisy, axis=1).tolist() == np.sort(found, axis=1).tolist()  # the same numbers
    assert len({tuple(row) for row in noisy.tolist()}) == 3  # at other places in each picture


def test_all_at_once_draws_each_code_from_its_own_distribution():
    logits = jnp.log(jnp.array([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]]))
    predict = lambda codes: jnp.broadcast_to(logits, (*codes.shape, 3))  # noqa: E731
    draw = lambda rows, keys: jax.vmap(jax.random.categorical)(keys, rows).astype(jnp.int32)  # noqa: E731
    keys = jax.random.split(jax.random.key(1), 4000)
    found = np.asarray(in_parallel(predict, draw, keys, 2, 1, 3))
    shares = [[(found[:, i] == k).mean() for k in range(3)] for i in range(2)]
    np.testing.assert_allclose(shares, np.exp(logits), atol=0.03)
    wanted = [[False, True, True], [True, True, False]]
    assert lowest(jnp.array([[3.0, 1, 2], [0, 0, 0]]), jnp.array([2])).tolist() == wanted
