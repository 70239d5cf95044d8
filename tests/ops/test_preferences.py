"""Losses of alignment: beside TRL, and by counting out a language of two tokens."""

import itertools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_lab.ops import preferences as ops
from transformer_lab.ops.losses import masked_sum, ratio

BETA, EPSILON = 0.3, 0.2  # as in fixtures/make_trl.py
TEXTS = np.array(list(itertools.product((0, 1), repeat=2)))  # the four texts of two tokens
ALL = jnp.ones(TEXTS.shape, bool)
REWARD = np.array([0.3, -1.0, 2.0, 0.7], np.float32)


@pytest.fixture(scope="module")
def trl():
    with np.load(Path(__file__).parents[1] / "fixtures/trl.npz") as found:
        return {name: jnp.asarray(x) for name, x in found.items()}


def test_losses_of_pairs_are_those_of_trl(trl):
    gain = trl["chosen"] - trl["rejected"] - (trl["ref_chosen"] - trl["ref_rejected"])
    np.testing.assert_allclose(ops.dpo(gain, BETA), trl["dpo"], rtol=1e-5)
    np.testing.assert_allclose(ops.dpo(gain, BETA, 0.1), trl["smoothed"], rtol=1e-5)
    np.testing.assert_allclose(ops.ipo(gain, BETA), trl["ipo"], rtol=1e-5)


def test_losses_of_drawn_answers_are_those_of_trl(trl):
    mask, values = trl["mask"], trl["values"]
    gained = ops.generalized_advantages(trl["rewards"], values, mask, 0.9, 0.8)
    advantages = ops.whiten(gained, mask)
    returns = gained + jnp.where(mask, values, 0)
    np.testing.assert_allclose(returns, trl["returns"], atol=1e-5)
    np.testing.assert_allclose(advantages, trl["advantages"] * mask, atol=1e-5)
    now, old = trl["log_probs"], trl["old"]
    policy = ops.clipped_objective(now, old, advantages, EPSILON)
    value = ops.clipped_value_loss(trl["new_values"], values, returns, EPSILON)
    for name, loss in (("policy", policy), ("value", value)):
        np.testing.assert_allclose(ratio(masked_sum(loss, mask)), trl[name], rtol=1e-5)

    by_group = ops.group_advantages(trl["group_rewards"])
    np.testing.assert_allclose(by_group, trl["group_advantages"], atol=1e-5)
    policy = ops.clipped_objective(now, now, by_group.reshape(-1, 1), EPSILON)
    each = policy + BETA * ops.kl_estimate(now, trl["reference"])
    by_text = (each * mask).sum(axis=1) / mask.sum(axis=1)
    np.testing.assert_allclose(by_text.mean(), trl["grpo"], rtol=1e-5)


def token_log_probs(logits):
    """Of each of the four texts, by logits [3]: of 1 as the first token, after 0, and after 1."""
    chances = jnp.stack([jnp.broadcast_to(logits[0], 4), logits[1 + TEXTS[:, 0]]], axis=1)
    return jnp.where(TEXTS == 1, jax.nn.log_sigmoid(chances), jax.nn.log_sigmoid(-chances))


def log_probs(logits):
    return ops.answer_log_probs(token_log_probs(logits), ALL)


def logits_of(chances):
    """The logits of a distribution over the four texts."""
    second = chances[1] / chances[0], chances[3] / chances[2]
    return jnp.log(jnp.stack([(chances[2] + chances[3]) / (chances[0] + chances[1]), *second]))


def test_dpo_is_least_where_the_best_policy_is_by_enumeration():
    """Of all policies, reference x exp(reward / beta) maximises reward - beta KL (Rafailov 2023,
    eq. 4): its implied rewards differ as the rewards do, and dpo's gradient is zero there."""
    reference = jnp.array([0.4, -0.8, 0.2])
    np.testing.assert_allclose(jnp.exp(log_probs(reference)).sum(), 1, rtol=1e-6)
    best = jnp.exp(log_probs(reference) + REWARD / BETA)
    logits = logits_of(best / best.sum())
    first, second = np.array(list(itertools.permutations(range(4), 2))).T

    def gains(logits):
        more = log_probs(logits) - log_probs(reference)
        return more[first] - more[second]

    differences = REWARD[first] - REWARD[second]
    np.testing.assert_allclose(BETA * gains(logits), differences, atol=1e-5)
    wins = jax.nn.sigmoid(differences)  # how often a reader who knows the reward prefers the first
    loss = lambda logits: (wins * ops.dpo(gains(logits), BETA)).sum()  # noqa: E731
    np.testing.assert_allclose(jax.grad(loss)(logits), 0, atol=1e-5)
    assert abs(jax.grad(loss)(reference)).max() > 0.1
    # With smoothing, the same as preferences of which so many are turned round.
    gain = gains(reference)
    mixed = 0.8 * ops.dpo(gain, BETA) + 0.2 * ops.dpo(-gain, BETA)
    np.testing.assert_allclose(ops.dpo(gain, BETA, 0.2), mixed, rtol=1e-6)
    np.testing.assert_allclose(ops.ipo(jnp.array([1 / (2 * BETA)]), BETA), 0, atol=1e-12)


def test_the_mean_gradient_over_all_texts_is_that_of_the_expected_reward():
    logits, value = jnp.array([0.4, -0.8, 0.2]), 0.25
    old = jax.lax.stop_gradient(token_log_probs(logits))
    chances = jnp.exp(old.sum(axis=1))
    last = jnp.stack([jnp.zeros(4), REWARD], axis=1)  # the reward comes with the last token
    advantages = ops.generalized_advantages(last, jnp.full((4, 2), value), ALL, 1.0, 1.0)
    np.testing.assert_allclose(advantages, np.repeat(REWARD[:, None] - value, 2, 1), rtol=1e-6)

    def loss(logits):
        each = ops.clipped_objective(token_log_probs(logits), old, advantages, EPSILON)
        return chances @ each.sum(axis=1)

    expected = lambda logits: jnp.exp(log_probs(logits)) @ REWARD  # noqa: E731
    gradients = jax.grad(loss)(logits), jax.grad(expected)(logits)
    np.testing.assert_allclose(gradients[0], -gradients[1], atol=1e-6)
    # One probability 1.5 times as large as it was: nothing is gained beyond 1.2 times.
    now = jnp.log(jnp.full((1, 2), 1.5))
    sides = ops.clipped_objective(now, jnp.zeros((1, 2)), jnp.array([[1.0, -1.0]]), EPSILON)
    np.testing.assert_allclose(sides, [[-1.2, 1.5]], rtol=1e-6)


def test_the_mean_of_the_kl_estimate_is_the_divergence():
    p, q = jnp.array([0.4, -0.8, 0.2]), jnp.array([-0.3, 0.5, 1.0])
    (each,) = ops.kl_estimate(log_probs(p)[None], log_probs(q)[None])
    exact = jnp.exp(log_probs(p)) @ (log_probs(p) - log_probs(q))
    np.testing.assert_allclose(jnp.exp(log_probs(p)) @ each, exact, rtol=1e-5)
    assert (each >= 0).all()


def test_advantages_are_the_double_sum_of_their_definition():
    rng = np.random.default_rng(1)
    rewards, values = (rng.normal(size=(2, 6)).astype(np.float32) for _ in range(2))
    mask = np.array([[0, 1, 1, 1, 0, 0], [0, 0, 0, 1, 1, 1]], bool)  # after a prompt
    found = ops.generalized_advantages(*map(jnp.asarray, (rewards, values, mask)), 0.9, 0.7)
    for row, some in enumerate(mask):
        r, v = rewards[row, some], np.append(values[row, some], 0)
        surprise = r + 0.9 * v[1:] - v[:-1]
        for t in range(3):
            wanted = sum((0.9 * 0.7) ** k * surprise[t + k] for k in range(3 - t))
            np.testing.assert_allclose(found[row, some][t], wanted, rtol=1e-5)
    assert (np.asarray(found)[~mask] == 0).all()


def test_rewards_are_told_apart_by_margins_and_within_groups():
    better, worse = jnp.array([1.0, 0.0]), jnp.array([0.0, 0.0])
    loss = ops.bradley_terry(better, worse, jnp.array([0.0, 1.0]))
    np.testing.assert_allclose(loss, np.log1p(np.exp([-1.0, 1.0])), rtol=1e-6)
    found = ops.group_advantages(jnp.array([[0.0, 2.0], [3.0, 3.0]]))
    np.testing.assert_allclose(found, [[-1 / (2**0.5 + 1e-4), 1 / (2**0.5 + 1e-4)], [0, 0]])
