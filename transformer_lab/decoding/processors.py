"""Rules applied between a model's logits and the choice of a token, the same for every search.

Greedy search, sampling and beam search call `prepare` on each step's logits: it bans tokens,
penalises repeated ones, keeps a least length, and forces tokens.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from transformer_lab.decoding.config import DecodeConfig
from transformer_lab.errors import LabError

IMPOSSIBLE = -jnp.inf  # the score of a dead beam, of a missing hypothesis, of a banned token
NOTHING = -1  # the id that pads earlier tokens


def refuse_unknown(config: DecodeConfig, eos_id: int, size: int) -> None:
    """LabError for a token named by the settings that a vocabulary of `size` does not have."""
    first = () if config.first_token is None else (config.first_token,)
    first += config.first_banned_tokens
    for token in (eos_id, *first, *config.banned_tokens, *config.end_tokens):
        if token >= size:
            raise LabError(f"token {token} is outside the model's vocabulary of {size}")


def one_end(tokens: Int[Array, "*rows"], config: DecodeConfig, eos_id: int) -> Int[Array, "*rows"]:
    """The tokens with each of `config.end_tokens` replaced by the one end token of the search."""
    if not config.end_tokens:
        return tokens
    return jnp.where(jnp.isin(tokens, np.asarray(config.end_tokens)), eos_id, tokens)


def prepare(logits, config: DecodeConfig, eos_id: int, said, before, i, at_limit):
    """Applies the settings to the logits [..., V] of the i-th new token (i = 0, 1, ...).

    Args:
        logits: [..., V], in float32.
        said: [..., T], the tokens that the model has read and made, `NOTHING` where padded before a
            shorter text; columns from `before` + i on are not read.
        before: how many columns of `said` come before the new tokens.
        at_limit: whether this token is the last one that fits, one value or one for each text.

    Returns: logits to choose by, in which banned tokens are `IMPOSSIBLE`; logits that count for the
    chosen one; and what to subtract for log-probabilities, [...]. Log-probabilities are the model's
    own, unless `config.renormalize`; a forced token costs nothing. In a beam search the logits to
    choose by count, with the penalty (as in Hugging Face's search).

    Raises: LabError for a token outside the vocabulary.
    """
    size = logits.shape[-1]
    refuse_unknown(config, eos_id, size)
    own = allowed = logits
    log_norm = jax.nn.logsumexp(logits, axis=-1)
    if config.repetition_penalty != 1.0:
        if config.beam_size > 1:
            allowed, log_norm = logits - log_norm[..., None], jnp.zeros_like(log_norm)
        seen, penalty = _seen(said, before + i, size), config.repetition_penalty
        rarer = jnp.where(allowed < 0, allowed * penalty, allowed / penalty)
        allowed = jnp.where(seen, rarer, allowed)
    if config.banned_tokens:
        banned = np.isin(np.arange(size), config.banned_tokens)
        allowed = jnp.where(banned, IMPOSSIBLE, allowed)
    if config.min_new_tokens:
        end = np.isin(np.arange(size), [eos_id, *config.end_tokens])
        allowed = jnp.where(end & (i < config.min_new_tokens), IMPOSSIBLE, allowed)
    if config.no_repeat_ngram:
        again = _repeats(said, before + i, config.no_repeat_ngram, size)
        allowed = jnp.where(again, IMPOSSIBLE, allowed)
    if config.first_banned_tokens:
        banned = np.isin(np.arange(size), config.first_banned_tokens)
        allowed = jnp.where(banned & (i == 0), IMPOSSIBLE, allowed)
    if config.zero_time is not None:
        wrong = _out_of_time(allowed, config, eos_id, said, before, i)
        allowed = jnp.where(wrong, IMPOSSIBLE, allowed)
    if config.renormalize:
        own, log_norm = allowed, jax.nn.logsumexp(allowed, axis=-1)
    forced = [] if config.first_token is None else [(config.first_token, i == 0)]
    forced += [(eos_id, at_limit)] * config.force_eos
    for token, now in forced:
        alone, now = jnp.where(np.arange(size) == token, 0.0, IMPOSSIBLE), jnp.asarray(now)
        allowed, own = (jnp.where(now[..., None], alone, x) for x in (allowed, own))
        log_norm = jnp.where(now, 0.0, log_norm)
    return allowed, own, log_norm


def log_prob_of(tokens: Int[Array, "b"], allowed, own, log_norm):
    """The chosen tokens' log-probabilities [b], from `prepare`'s results for one token each."""
    pick = lambda x: jnp.take_along_axis(x, tokens[:, None], axis=-1)[:, 0]  # noqa: E731
    return jnp.where(pick(allowed) == IMPOSSIBLE, IMPOSSIBLE, pick(own)) - log_norm


def _out_of_time(allowed, config: DecodeConfig, eos_id: int, said, before, i):
    """The tokens [..., V] that would break the order of times and texts.

    An output is a time, a text, a time, and again a time if more text follows: two times in a row
    are an end and a beginning. No time is before an earlier one, and none after a text equals the
    time at its beginning. Where all times together are likelier than the likeliest other token, a
    time must come.
    """
    zero, ids, place = config.zero_time, np.arange(allowed.shape[-1]), np.arange(said.shape[-1])
    time, text = ids >= zero, (ids < zero) & (ids != eos_id)
    made = (place >= before) & (place < before + i)
    latest = jnp.where(made & (said >= zero), said, NOTHING).max(axis=-1)[..., None]
    recent = [jnp.take(said, before + i - k, axis=-1, mode="clip") >= zero for k in (1, 2)]
    last, second = ((i >= 1) & recent[0])[..., None], ((i < 2) | recent[1])[..., None]
    lowest = jnp.where(last & ~second, latest, latest + 1)
    wrong = (last & second & time) | (last & ~second & text) | (ids == zero - 1)
    wrong |= time & (latest != NOTHING) & (ids < lowest)
    wrong |= (i == 0) & (~time | (ids > zero + config.latest_start))
    left = jnp.where(wrong, IMPOSSIBLE, allowed)
    times = jax.nn.logsumexp(jnp.where(time, left, IMPOSSIBLE), axis=-1)
    due = times > jnp.where(time, IMPOSSIBLE, left).max(axis=-1)
    return wrong | (due[..., None] & ~time)


def _seen(tokens: Int[Array, "*rows t"], count, size: int) -> Bool[Array, "*rows v"]:
    """Which tokens occur among the first `count` of each text (Keskar 2019, section 4.1)."""
    rows = tokens.reshape(-1, tokens.shape[-1])
    real = (jnp.arange(rows.shape[-1]) < count) & (rows != NOTHING)
    found = jnp.zeros((len(rows), size), bool)
    found = found.at[jnp.arange(len(rows))[:, None], rows].max(real, mode="drop")
    return found.reshape(*tokens.shape[:-1], size)


def _repeats(tokens: Int[Array, "*rows t"], count, n: int, size: int) -> Bool[Array, "*rows v"]:
    """Which tokens would complete an n-gram that is already among a text's first `count` tokens."""
    windows = tokens.shape[-1] - n + 1
    if windows < 1:
        return jnp.zeros((*tokens.shape[:-1], size), bool)
    rows = tokens.reshape(-1, tokens.shape[-1])
    last = jnp.take(rows, count - n + 1 + jnp.arange(n - 1), axis=1, mode="clip")
    same = jnp.arange(windows) + n - 1 < count
    for k in range(n - 1):
        same = same & (rows[:, k : k + windows] == last[:, k, None])
    same = jnp.broadcast_to(same, (len(rows), windows)) & (rows[:, n - 1 :] != NOTHING)
    again = jnp.zeros((len(rows), size), bool)
    again = again.at[jnp.arange(len(rows))[:, None], rows[:, n - 1 :]].max(same, mode="drop")
    return again.reshape(*tokens.shape[:-1], size)
