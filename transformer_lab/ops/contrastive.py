"""Contrastive losses tell an image's own text from the batch's others; (sum, weight) pairs.

`images` [N, D] and `texts` [N, D] are vectors of length 1; row i of one belongs to row i of the
other. A row whose mask is False is padding: it adds no loss and is nobody's negative.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float

from transformer_lab.ops.losses import Pair, masked_sum

START = math.log(1 / 0.07)  # the initial log of the scale (Radford 2021, section 2.5)
FAR = -1e30  # a finite -infinity: differences of two of them are no NaN


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def scale_of(raw: Float[Array, ""], largest: float) -> Float[Array, ""]:
    """The factor exp(raw) by which cosines are multiplied, at most `largest` (0: no bound).

    Beyond the bound the gradient may still lower raw, but never raise it.
    """
    return jnp.exp(jnp.minimum(raw, math.log(largest)) if largest else raw)


def _scale_forward(raw, largest):
    scale = scale_of(raw, largest)
    return scale, (raw, scale)


def _scale_backward(largest, saved, gradient):
    raw, scale = saved
    # A negative gradient would raise raw in the next step.
    held = (raw >= math.log(largest)) & (gradient < 0) if largest else False
    return (jnp.where(held, 0.0, gradient * scale),)


scale_of.defvjp(_scale_forward, _scale_backward)


def softmax_loss(
    images: Float[Array, "n d"],
    texts: Float[Array, "n d"],
    scale: Float[Array, ""],
    mask: Bool[Array, "n"],
) -> Pair:
    """The mean of the cross-entropies image to text and text to image (Radford 2021, figure 3)."""
    logits = scale * images @ texts.T
    rows = jax.nn.logsumexp(jnp.where(mask[None], logits, FAR), axis=1)
    columns = jax.nn.logsumexp(jnp.where(mask[:, None], logits, FAR), axis=0)
    # -log softmax of the diagonal, by rows (image to text) and by columns (text to image).
    right = scale * (images * texts).sum(axis=1)  # the diagonal, without a gather
    return masked_sum((rows + columns) / 2 - right, mask)


def sigmoid_loss(
    images: Float[Array, "n d"],
    texts: Float[Array, "n d"],
    scale: Float[Array, ""],
    bias: Float[Array, ""],
    mask: Bool[Array, "n"],
) -> Pair:
    """The loss of deciding for each of the N x N combinations by itself whether image and text
    belong together (Zhai 2023, equation 1): sum of softplus(-sign * logit), and N as its weight."""
    logits = scale * images @ texts.T + bias
    signs = 2.0 * jnp.eye(len(logits)) - 1.0
    nats = jnp.where(mask[None], jax.nn.softplus(-signs * logits), 0.0).sum(axis=1)
    return masked_sum(nats, mask)


def chunked_softmax_loss(
    images: Float[Array, "n d"],
    texts: Float[Array, "n d"],
    scale: Float[Array, ""],
    mask: Bool[Array, "n"],
    axes: tuple[str, ...] = ("data", "fsdp"),
) -> Pair:
    """`softmax_loss` on a mesh, without the whole N x N logits on any device.

    Each device computes one block of (N / devices) x (N / devices) logits at a time, forward and
    backward. The texts travel round the ring of devices together with the sums of their columns,
    and are home again after as many steps. N must be a multiple of the devices along `axes`.
    """

    def block(images, scale, mask, own, state):
        """One block of logits: adds to the images' sums, which stay, and the texts', which move."""
        texts, seen, columns, rows = state
        logits = scale * images @ texts.T
        more = jax.nn.logsumexp(jnp.where(seen[None], logits, FAR), axis=1)
        rows = jnp.logaddexp(rows, more)
        more = jax.nn.logsumexp(jnp.where(mask[:, None], logits, FAR), axis=0)
        columns = jnp.logaddexp(columns, more)
        turn = lambda x: jax.lax.ppermute(x, axes, own)  # noqa: E731
        return turn(texts), turn(seen), turn(columns), rows

    def local(images, texts, scale, mask):
        devices = jax.lax.axis_size(axes)
        ring = [(i, (i + 1) % devices) for i in range(devices)]
        none = jnp.full_like(images[:, 0], FAR)
        start = texts, mask, none, none
        # Checkpointed, so that the backward pass holds one block of logits at a time as well.
        step = jax.checkpoint(lambda state, _: (block(images, scale, mask, ring, state), None))
        (_, _, columns, rows), _ = jax.lax.scan(step, start, length=devices)
        right = scale * (images * texts).sum(axis=1)
        pair = masked_sum((rows + columns) / 2 - right, mask)
        return jax.lax.psum(pair, axes)

    rows = P(axes)
    return jax.shard_map(local, in_specs=(rows, rows, P(), rows), out_specs=P())(
        images, texts, scale, mask
    )
