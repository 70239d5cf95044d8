"""Losses and metrics as (sum, weight) pairs, which are added up and divided at the very end."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Num

Pair = tuple[Float[Array, ""], Float[Array, ""]]  # (sum, weight)
STATISTICS = "batch_stats"  # running statistics: a top key of parameters, which no gradient trains


def perplexity(nats: float) -> float:
    """The perplexity of a mean loss in nats; of a model that has diverged, beyond 230 nats, 8e99,
    which a report can still square."""
    return math.exp(min(nats, 230.0))


class TokenScores(NamedTuple):
    """What losses and accuracy need to know of each token's logits; the numbers are float32."""

    logsumexp: Float[Array, "*batch"]
    chosen: Float[Array, "*batch"]  # the label's logit
    mean: Float[Array, "*batch"]  # the mean of the logits
    best: Int[Array, "*batch"]  # the id of the highest logit


def token_scores(logits: Float[Array, "*batch vocab"], labels: Int[Array, "*batch"]) -> TokenScores:
    """The scores from whole logits; a label outside 0..vocab-1 gives any finite `chosen`."""
    logits = logits.astype(jnp.float32)
    inside = jnp.clip(labels, 0, logits.shape[-1] - 1)
    chosen = jnp.take_along_axis(logits, inside[..., None], axis=-1)[..., 0]
    best = logits.argmax(axis=-1)
    return TokenScores(jax.nn.logsumexp(logits, axis=-1), chosen, logits.mean(axis=-1), best)


def cross_entropy(
    logits: Float[Array, "*batch vocab"] | TokenScores,
    labels: Int[Array, "*batch"],
    smoothing: float = 0.0,
) -> Float[Array, "*batch"]:
    """-log softmax(logits)[label] in nats; with smoothing, against (1 - e) onehot + e / vocab.

    Smoothing as in Szegedy 2016, section 7. A label outside 0..vocab-1 gives a finite number that
    the caller must mask. Takes whole logits, or the scores that `ops.vocabulary_loss` computes
    without them.

    Logits (0, ln 3) and label 1 give -ln(3/4) = 0.288; with smoothing 0.1, 0.343.
    """
    scores = logits if isinstance(logits, TokenScores) else token_scores(logits, labels)
    # logsumexp - sum_i q_i logit_i with q = (1 - e) onehot + e / vocab, which takes the mean.
    target = (1.0 - smoothing) * scores.chosen
    if smoothing:
        target = target + smoothing * scores.mean
    return scores.logsumexp - target


def masked_sum(
    values: Float[Array, "*batch"],
    mask: Bool[Array, "*batch"],
    weights: Float[Array, "*batch"] | None = None,
) -> Pair:
    """The sum of the values under the mask and their number, or both weighted by `weights`. Values
    elsewhere may be NaN: they are replaced before the sum."""
    values = jnp.where(mask, values, 0.0)
    if weights is None:
        return values.sum(), mask.sum(dtype=jnp.float32)
    weights = jnp.where(mask, weights, 0.0)
    return (weights * values).sum(), weights.sum()


def weights_of(
    classes: Num[Array, "*batch"], weights: Float[np.ndarray, "classes"] | None
) -> Float[Array, "..."] | None:
    """The loss weight of each element's class, or the mean weight under class probabilities.

    `classes` are integer ids, or floats whose last axis runs over classes. None if all count alike.
    """
    if weights is None:
        return None
    if jnp.issubdtype(classes.dtype, jnp.floating):
        return classes @ weights
    return jnp.asarray(weights)[jnp.clip(classes, 0, len(weights) - 1)]


def token_metrics(
    logits: Float[Array, "*batch vocab"] | TokenScores,
    labels: Int[Array, "*batch"],
    mask: Bool[Array, "*batch"],
    smoothing: float = 0.0,
) -> dict[str, Pair]:
    """`loss` (smoothed), `nll` (never smoothed) and `accuracy` over the tokens under the mask."""
    scores = logits if isinstance(logits, TokenScores) else token_scores(logits, labels)
    metrics = {"loss": masked_sum(cross_entropy(scores, labels, smoothing), mask)}
    plain = cross_entropy(scores, labels) if smoothing else None
    metrics["nll"] = metrics["loss"] if plain is None else masked_sum(plain, mask)
    right = (scores.best == labels).astype(jnp.float32)
    metrics["accuracy"] = masked_sum(right, mask)
    return metrics


def ratio(pair: Pair) -> Float[Array, ""]:
    """The quotient sum / weight, and 0 where the weight is 0."""
    total, weight = pair
    return jnp.where(weight > 0, total / jnp.where(weight > 0, weight, 1.0), 0.0)
