"""Scores of the arcs between the words of a sentence, and of their labels (Dozat 2017)."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from transformer_lab.layers.basic import dense
from transformer_lab.layers.config import StackConfig
from transformer_lab.ops.dropout import dropout


class Biaffine(nn.Module):
    """x^T U y for each pair of vectors, where x and y end in a 1 for the terms of one of them alone
    (Dozat 2017, eq. 3): U is a float32 parameter [outputs, x + 1, y + 1], at first zero."""

    outputs: int
    pairs: str  # the pairs in einsum's letters: "bxi,oij,byj->bxyo" for all

    @nn.compact
    def __call__(
        self, x: Float[Array, "b t i"], y: Float[Array, "b t j"]
    ) -> Float[Array, "b t *more"]:
        x, y = (jnp.pad(z, ((0, 0), (0, 0), (0, 1)), constant_values=1) for z in (x, y))
        shape = self.outputs, x.shape[-1], y.shape[-1]
        kernel = self.param("kernel", nn.initializers.zeros, shape)
        return jnp.einsum(self.pairs, x, kernel.astype(x.dtype), y).astype(jnp.float32)


class ArcHead(nn.Module):
    """Two vectors of each state, as a dependant and as a head, in two sizes: for arcs and labels.

    `rate` is that of dropout on these vectors."""

    config: StackConfig
    arc_width: int
    label_width: int
    labels: int
    rate: float

    def setup(self):
        width = self.arc_width + self.label_width
        self.dependant, self.head = (dense(self.config, width, True) for _ in range(2))
        self.arc = Biaffine(1, "bti,oij,bsj->btso")
        self.label = Biaffine(self.labels, "bti,oij,btj->bto")

    def __call__(
        self,
        states: Float[Array, "b t d"],
        heads: Int[Array, "b t"] | None,
        dropout_key: Key[Array, ""] | None,
    ) -> tuple[Float[Array, "b t t"], Float[Array, "b t labels"]]:
        """The logits of each position's head being each position, and of its label given its head
        in `heads` (None: the likeliest). Leaky rectifiers come before the products."""
        keys = (None, None) if dropout_key is None else jax.random.split(dropout_key)
        words, over = (
            dropout(jax.nn.leaky_relu(layer(states), 0.1), self.rate, key)
            for layer, key in zip((self.dependant, self.head), keys, strict=True)
        )
        cut = self.arc_width
        arcs = self.arc(words[..., :cut], over[..., :cut])[..., 0]
        heads = arcs.argmax(axis=-1) if heads is None else heads
        chosen = jnp.take_along_axis(over[..., cut:], heads[..., None], axis=1)
        return arcs, self.label(words[..., cut:], chosen)
