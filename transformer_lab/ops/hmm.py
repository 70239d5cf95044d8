"""Hidden Markov models: likelihood, forward-backward, Baum-Welch and Viterbi (Rabiner 1989).

A state of K follows the one before with log probability `moves` [from, to], the first has `start`
[K], and emits what is seen at step t with log probability `emitted` [T, K]. Where `real` [T] is
False a step is padding. All functions work on one sequence, and on several under `jax.vmap`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Num

LEAST = 1e-30  # probabilities below it count as this, so that no logarithm is infinite
LEAST_VARIANCE = 1e-3  # a Gaussian state's, as the likelihood of a single point has no bound


class HMM(NamedTuple):
    """The parameters as probabilities, and those of the states' emissions: for symbols a table
    [K, symbols]; for vectors of D numbers means and variances, [2, K, D], of independent ones."""

    start: Float[Array, "k"]
    moves: Float[Array, "k k"]
    emission: Float[Array, "..."]


def log(p: Float[Array, "*s"]) -> Float[Array, "*s"]:
    """The logarithm of probabilities, of which those near 0 count as `LEAST`."""
    return jnp.log(jnp.maximum(p, LEAST))


def emissions(hmm: HMM, x: Num[Array, "t *d"]) -> Float[Array, "t k"]:
    """The log probability of each step in each state: of symbols [T], or of vectors [T, D]."""
    if x.ndim == 1:
        return log(hmm.emission).T[x]
    means, variances = hmm.emission
    squares = jnp.square(x[:, None] - means) / variances
    return -0.5 * (squares + jnp.log(2 * jnp.pi * variances)).sum(axis=-1)


def log_likelihood(
    start: Float[Array, "k"],
    moves: Float[Array, "k k"],
    emitted: Float[Array, "t k"],
    real: Bool[Array, "t"],
) -> Float[Array, ""]:
    """The log probability of a sequence by the forward algorithm; arguments are logarithms.

    alpha_t(j) = logsumexp_i(alpha_{t-1}(i) + moves(i, j)) + emitted_t(j)
    """

    def step(alpha, xs):
        now, real = xs
        new = jax.nn.logsumexp(alpha[:, None] + moves, axis=0) + now
        return jnp.where(real, new, alpha), None

    last, _ = jax.lax.scan(step, start + emitted[0], (emitted[1:], real[1:]))
    return jax.nn.logsumexp(last)


def expected(hmm: HMM, x: Num[Array, "t *d"], real: Bool[Array, "t"]):
    """The log likelihood, and expected counts given the sequence: of the first state [K], of moves
    [K, K], and of states at each step [T, K], which are the posteriors of forward-backward.

    They are the gradients of the log likelihood, whose backward pass is the backward algorithm
    (Eisner 2016, section 4).
    """
    logs = log(hmm.start), log(hmm.moves), jnp.where(real[:, None], emissions(hmm, x), 0)
    value, (start, moves, states) = jax.value_and_grad(log_likelihood, (0, 1, 2))(*logs, real)
    return value, start, moves, states


def viterbi(
    start: Float[Array, "k"],
    moves: Float[Array, "k k"],
    emitted: Float[Array, "t k"],
    real: Bool[Array, "t"],
) -> tuple[Int[Array, "t"], Float[Array, ""]]:
    """The likeliest states and their log probability; arguments are logarithms. States of padding
    at the end repeat the last real one."""

    def step(best, xs):
        now, real = xs
        paths = best[:, None] + moves
        new = paths.max(axis=0) + now
        stay = jnp.arange(len(best))
        return jnp.where(real, new, best), jnp.where(real, paths.argmax(axis=0), stay)

    best, before = jax.lax.scan(step, start + emitted[0], (emitted[1:], real[1:]))
    last = best.argmax()
    back = lambda state, before: (before[state], before[state])  # noqa: E731
    states = jax.lax.scan(back, last, before, reverse=True)[1]
    return jnp.append(states, last), best.max()


def baum_welch(
    hmm: HMM, x: Num[Array, "b t *d"], real: Bool[Array, "b t"], steps: int
) -> tuple[HMM, Float[Array, "steps"]]:
    """The model after so many steps of expectation and maximisation on several sequences, and the
    log likelihood of all of them before each step, which never falls (Baum 1970)."""

    def step(hmm, _):
        value, start, moves, states = jax.vmap(expected, (None, 0, 0))(hmm, x, real)
        share = lambda counts: counts / jnp.maximum(counts.sum(-1, keepdims=True), LEAST)  # noqa: E731
        states = jnp.where(real[..., None], states, 0)
        if x.ndim == 2:
            seen = jax.nn.one_hot(x, hmm.emission.shape[1])
            emission = share(jnp.einsum("btk,btv->kv", states, seen))
        else:
            weight = jnp.maximum(states.sum(axis=(0, 1)), LEAST)[:, None]
            means = jnp.einsum("btk,btd->kd", states, x) / weight
            apart = jnp.square(x[:, :, None] - means)
            variances = jnp.einsum("btk,btkd->kd", states, apart) / weight
            emission = jnp.stack([means, jnp.maximum(variances, LEAST_VARIANCE)])
        new = HMM(share(start.sum(axis=0)), share(moves.sum(axis=0)), emission)
        return new, value.sum()

    return jax.lax.scan(step, hmm, length=steps)
