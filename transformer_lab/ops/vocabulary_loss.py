"""The statistics of logits that a loss needs, without the logits [tokens, vocabulary] in memory.

The output table is read block by block. Blocks of the vocabulary and not of the tokens, so that a
table that is split over devices is gathered once a step, and its gradient scattered once.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jaxtyping import Array, Float, Int

from transformer_lab.ops.chunked import repeat
from transformer_lab.ops.layout import constrain, current_mesh, split_of
from transformer_lab.ops.losses import TokenScores
from transformer_lab.ops.products import kernel_gradient

PIECES = 8192  # from so many tokens in the vocabulary on ...
LOGITS = 2**27  # ... and from so many bytes of float32 logits on each device, blocks are worth it
TOKENS = ("rows", "length", "vocabulary")
STORED = (None, "columns")  # how the table and its gradient lie: any block of rows is local
APART = ("vocabulary", "parts")  # the layout between the stored one and the product's


def worth_blocks(rows: int, length: int, pieces: int) -> bool:
    """Whether whole logits would be so large that computing them twice, a third more time, pays."""
    shape, mesh = (rows, length, pieces), current_mesh()
    if mesh is not None:
        shape = NamedSharding(mesh, split_of(TOKENS, shape, mesh)).shard_shape(shape)
    return pieces >= PIECES and 4 * math.prod(shape) >= LOGITS


def blockwise_scores(
    states: Float[Array, "b t d"],
    table: Float[Array, "v d"],
    labels: Int[Array, "b t"],
    bias: Float[Array, "v"] | None = None,
    *,
    size: int | None = None,
    block: int = 4096,
) -> TokenScores:
    """`losses.token_scores` of the logits states table^T + bias, of which the first `size` count.

    Products are made in the states' type and summed in float32; all other numbers are float32.
    """
    size = len(table) if size is None else size
    labels = jnp.clip(labels, 0, size - 1)
    return TokenScores(*_scores((size, min(block, size)), states, table, labels, bias))


def _over_blocks(sizes, step, carry):
    """Folds step(carry, start, rows) over the table's blocks; the last one may be smaller."""
    size, block = sizes
    whole = size // block
    carry = repeat(whole, lambda i, c: step(c, i * block, block), carry)
    return step(carry, whole * block, size % block) if size % block else carry


def _logits(states, table, bias, start, rows):
    """A block of the table in the states' type, and the float32 logits that it gives."""
    part = jax.lax.dynamic_slice_in_dim(table, start, rows).astype(states.dtype)
    for names in (STORED, APART, ("vocabulary", None)):
        part = constrain(part, *names)
    logits = constrain(_product(states, part.T), *TOKENS)
    if bias is not None:
        logits = logits + jax.lax.dynamic_slice_in_dim(bias, start, rows)
    return part, logits


def _flat(x):
    """All tokens as one matrix [tokens, D] on one device; on a mesh x as it is."""
    return x if current_mesh() is not None else x.reshape(-1, x.shape[-1])


def _product(x, matrix):
    out = jnp.matmul(_flat(x), matrix, preferred_element_type=jnp.float32)
    return out.reshape(*x.shape[:-1], -1)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _scores(sizes, states, table, labels, bias):
    return _forward(sizes, states, table, labels, bias)[0]


def _forward(sizes, states, table, labels, bias):
    def step(carry, start, rows):
        top, total, chosen, sums, best = carry
        _, logits = _logits(states, table, bias, start, rows)
        mine = labels[..., None] - start == jnp.arange(rows)
        highest = logits.max(axis=-1)
        # A running logsumexp: sums are scaled anew whenever a block has a greater logit
        new = jnp.maximum(top, highest)
        total = total * jnp.exp(top - new) + jnp.exp(logits - new[..., None]).sum(axis=-1)
        chosen = chosen + jnp.where(mine, logits, 0.0).sum(axis=-1)
        best = jnp.where(highest > top, start + logits.argmax(axis=-1), best)
        return new, total, chosen, sums + logits.sum(axis=-1), best

    zeros = jnp.zeros(labels.shape, jnp.float32)
    carry = zeros - jnp.inf, zeros, zeros, zeros, jnp.zeros(labels.shape, jnp.int32)
    top, total, chosen, sums, best = _over_blocks(sizes, step, carry)
    logsumexp = top + jnp.log(total)
    return (logsumexp, chosen, sums / sizes[0], best), (states, table, labels, bias, logsumexp)


def _backward(sizes, kept, gradients):
    states, table, labels, bias, logsumexp = kept
    of_logsumexp, of_chosen, of_mean, _ = (g[..., None] for g in gradients)

    def step(carry, start, rows):
        to_states, to_table, to_bias = carry
        part, logits = _logits(states, table, bias, start, rows)
        # Derivatives by a logit: softmax (logsumexp), 1 / size (mean), 1 at the label (chosen)
        slopes = of_logsumexp * jnp.exp(logits - logsumexp[..., None]) + of_mean / sizes[0]
        mine = labels[..., None] - start == jnp.arange(rows)
        slopes = slopes + jnp.where(mine, of_chosen, 0.0)
        put = lambda x, new: jax.lax.dynamic_update_slice_in_dim(x, new, start, 0)  # noqa: E731
        if bias is not None:
            to_bias = put(to_bias, slopes.sum(axis=(0, 1)))
        slopes = constrain(slopes.astype(states.dtype), *TOKENS)
        found = constrain(kernel_gradient(slopes, states, APART, jnp.float32), *STORED)
        return to_states + _product(slopes, part), put(to_table, found), to_bias

    zeros = lambda x: None if x is None else jnp.zeros(x.shape, jnp.float32)  # noqa: E731
    carry = zeros(states), constrain(zeros(table), *STORED), zeros(bias)
    to_states, to_table, to_bias = _over_blocks(sizes, step, carry)
    return to_states.astype(states.dtype), to_table.astype(table.dtype), None, to_bias


_scores.defvjp(_forward, _backward)
