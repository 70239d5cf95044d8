"""Embeddings: from tokens to vectors before a stack, and from states to logits after it."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from transformer_lab.errors import LabError
from transformer_lab.layers.config import StackConfig
from transformer_lab.ops.dropout import dropout
from transformer_lab.ops.layout import constrain
from transformer_lab.ops.losses import TokenScores, token_scores
from transformer_lab.ops.products import product
from transformer_lab.ops.vocabulary_loss import blockwise_scores, worth_blocks


class Embedding(nn.Module):
    """A float32 table [vocabulary, width], used in the compute type; also an output head."""

    vocab_size: int
    width: int
    std: float
    dtype: jnp.dtype = jnp.dtype("float32")

    def setup(self):
        init = nn.initializers.normal(self.std)
        self.embedding = self.param("embedding", init, (self.vocab_size, self.width))

    def __call__(self, ids: Array) -> Float[Array, "*ids d"]:
        if ids.ndim != 2:
            return jnp.take(self.embedding, ids, axis=0).astype(self.dtype)
        # Each device looks up its own columns for the examples of all devices that share the table;
        # then examples and columns are exchanged, and the table is never moved.
        x = jnp.take(self.embedding, constrain(ids, "copies", "length"), axis=0).astype(self.dtype)
        for row, column in (("copies", "columns"), ("copies", "parts"), ("rows", "width")):
            x = constrain(x, row, "length", column)
        return x

    def logits(
        self,
        x: Float[Array, "b t d"],
        labels: Int[Array, "b t"] | None = None,
        bias: Float[Array, "v"] | None = None,
        size: int | None = None,
    ) -> Float[Array, "b t _"] | TokenScores:
        """x E^T + bias over the first `size` rows of the table E, accumulated in float32.

        Given labels, the scores that a loss needs instead: large logits are then never whole in
        memory.
        """
        x, size = x.astype(self.dtype), size or self.vocab_size
        if labels is not None and worth_blocks(*labels.shape, size):
            return blockwise_scores(x, self.embedding, labels, bias, size=size)
        logits = product(x, self.embedding.T, (None, "vocabulary"), jnp.dtype(jnp.float32))
        logits = constrain(logits, "rows", "length", "vocabulary")
        logits = (logits if bias is None else logits + bias)[..., :size]
        return logits if labels is None else token_scores(logits, labels)


def check_length(config: Any, length: int) -> None:
    """Raises: LabError for a sequence of more tokens than the model's settings allow."""
    if length > config.max_length:
        raise LabError(
            f"a sequence of {length} tokens exceeds model.max_length = {config.max_length}"
        )


def enter(
    config: StackConfig,
    x: Float[Array, "b t d"],
    vectors: Float[Array, "#b t d"] | None,
    norm: Callable[[Array], Array] | None,
    dropout_key: Key[Array, ""] | None,
) -> tuple[Float[Array, "b t d"], Float[Array, "#b t d"] | None]:
    """The input of a stack: x with position vectors, a norm if there is one, and dropout.

    With `positions_every_layer` each layer adds the vectors, which are returned second; else None
    is.
    """
    added = vectors if config.positions_every_layer else None
    if vectors is not None and added is None:
        x = x + vectors
    x = x if norm is None else norm(x)
    return dropout(x, config.dropout, dropout_key), added


def scaled(config: StackConfig, x: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
    """Token vectors times the square root of the model's width (Vaswani 2017, section 3.4)."""
    return x * jnp.asarray(config.width**0.5, x.dtype)
