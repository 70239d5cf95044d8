"""Losses of alignment: pairs of a better and a worse answer, and rewards of answers drawn.

Log-probabilities and rewards are float32. Dimensions are n pairs, or b texts of t tokens, of which
a mask, True at an answer's tokens, says what counts.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from transformer_lab.ops.losses import masked_sum


def answer_log_probs(
    token_log_probs: Float[Array, "*batch t"], mask: Bool[Array, "*batch t"]
) -> Float[Array, "*batch"]:
    """The log-probability of each answer given what stands before it: the sum over its tokens."""
    return jnp.where(mask, token_log_probs, 0.0).sum(axis=-1)


# Offline: pairs of answers.


def dpo(gain: Float[Array, "n"], beta: float = 0.1, smoothing: float = 0.0) -> Float[Array, "n"]:
    """-(1 - e) log s(beta g) - e log s(-beta g), s the logistic function (Rafailov 2023, eq. 7).

    `gain` is how much more than in the reference the better answer is preferred, in nats: log
    p(better) - log p(worse), less the same of the reference. With a smoothing e each preference is
    taken to be wrong with that probability. A gain of 0 gives ln 2.
    """
    agrees, differs = jax.nn.log_sigmoid(beta * gain), jax.nn.log_sigmoid(-beta * gain)
    return -(1.0 - smoothing) * agrees - smoothing * differs


def ipo(gain: Float[Array, "n"], beta: float = 0.1) -> Float[Array, "n"]:
    """(g - 1 / (2 beta))^2, which has its least value at a finite gain (Azar 2023, eq. 17)."""
    return (gain - 1.0 / (2.0 * beta)) ** 2


def bradley_terry(
    better: Float[Array, "n"], worse: Float[Array, "n"], margin: Float[Array, "n"] | float = 0.0
) -> Float[Array, "n"]:
    """-log s(r_better - r_worse - margin): the better answer wins by its reward, and by a margin
    where one is given (Touvron 2023, eq. 2)."""
    return -jax.nn.log_sigmoid(better - worse - margin)


# Online: answers that the model drew.


def clipped_objective(
    log_probs: Float[Array, "b t"],
    old: Float[Array, "b t"],
    advantages: Float[Array, "b #t"],
    epsilon: float = 0.2,
) -> Float[Array, "b t"]:
    """-min(r A, clip(r, 1 - e, 1 + e) A) with r = p / p_old, as a loss (Schulman 2017, eq. 7).

    A ratio of 1.5 with e = 0.2 gives -1.2 for an advantage of 1 and 1.5 for one of -1.
    """
    ratio = jnp.exp(log_probs - old)
    clipped = jnp.clip(ratio, 1.0 - epsilon, 1.0 + epsilon)
    return -jnp.minimum(ratio * advantages, clipped * advantages)


def clipped_value_loss(
    values: Float[Array, "b t"],
    old: Float[Array, "b t"],
    returns: Float[Array, "b t"],
    epsilon: float = 0.2,
) -> Float[Array, "b t"]:
    """max((v - R)^2, (v' - R)^2) / 2, where v' is v no further than e from the old value."""
    near = jnp.clip(values, old - epsilon, old + epsilon)
    return 0.5 * jnp.maximum((values - returns) ** 2, (near - returns) ** 2)


def generalized_advantages(
    rewards: Float[Array, "b t"],
    values: Float[Array, "b t"],
    mask: Bool[Array, "b t"],
    discount: float = 1.0,
    decay: float = 0.95,
) -> Float[Array, "b t"]:
    """A_t = d_t + (g l) A_{t+1} with d_t = r_t + g V_{t+1} - V_t (Schulman 2016, eq. 16), g the
    discount and l the decay; 0 outside of the mask. `values` are V at the state before each token.

    A text's masked tokens stand side by side, and nothing has a value after the last of them.
    """
    rewards, values = (jnp.where(mask, x, 0.0) for x in (rewards, values))
    following = jnp.pad(values[:, 1:], ((0, 0), (0, 1)))
    surprises = rewards + discount * following - values

    def back(later, surprise):
        advantage = surprise + discount * decay * later
        return advantage, advantage

    _, found = jax.lax.scan(back, jnp.zeros(len(rewards)), surprises.T, reverse=True)
    return jnp.where(mask, found.T, 0.0)


def whiten(values: Float[Array, "b t"], mask: Bool[Array, "b t"]) -> Float[Array, "b t"]:
    """The values with mean 0 and deviation 1 (of a sample) over the whole mask; 0 outside of it."""
    total, count = masked_sum(values, mask)
    mean = total / jnp.maximum(count, 1.0)
    squares, _ = masked_sum((values - mean) ** 2, mask)
    variance = squares / jnp.maximum(count - 1.0, 1.0)
    return jnp.where(mask, (values - mean) * jax.lax.rsqrt(variance + 1e-8), 0.0)


def kl_estimate(
    log_probs: Float[Array, "b t"], reference: Float[Array, "b t"]
) -> Float[Array, "b t"]:
    """q / p - 1 - log(q / p) of each token, q the reference: the estimator k3 of KL(p, q) from
    tokens drawn from p (Shao 2024, eq. 4). It is never negative and its mean is the divergence."""
    ratio = reference - log_probs
    return jnp.exp(ratio) - ratio - 1.0


def group_advantages(rewards: Float[Array, "prompts samples"]) -> Float[Array, "prompts samples"]:
    """(r - mean) / deviation of a prompt's samples (Shao 2024, section 4.1.2), the deviation that
    of a sample plus 1e-4, so that equal rewards give 0."""
    centred = rewards - rewards.mean(axis=1, keepdims=True)
    return centred / (rewards.std(axis=1, ddof=1, keepdims=True) + 1e-4)
