"""Word vectors (Mikolov 2013): one vector for each word, and one for it as a neighbour."""

from dataclasses import dataclass

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer_lab.errors import at_least
from transformer_lab.models.model import Model


@dataclass(frozen=True)
class WordVectorsConfig:
    """Settings of the two tables, each of vocab_size x width numbers."""

    width: int = 100  # of a word's vector
    vocab_size: int | None = None  # None: the tokenizer's

    def __post_init__(self):
        at_least(self, "model", 1, "width")


class WordVectors(Model):
    """Scores output words by their dot products with the mean of the input words' vectors."""

    config: WordVectorsConfig

    @nn.compact
    def __call__(
        self, inputs: Int[Array, "b i"], mask: Bool[Array, "b i"], outputs: Int[Array, "b o k"]
    ) -> Float[Array, "b o k"]:
        """The logits of the output words; only inputs under the mask count. The vectors to use
        afterwards are those of `embedding`."""
        size, width = self.config.vocab_size, self.config.width
        # As in the authors' program: small random inputs, and zeros as outputs.
        small = lambda key, shape, dtype: jax.random.uniform(  # noqa: E731
            key, shape, dtype, -0.5 / width, 0.5 / width
        )
        vectors = nn.Embed(size, width, embedding_init=small, name="embedding")(inputs)
        beside = nn.Embed(size, width, embedding_init=nn.initializers.zeros, name="output")(outputs)
        mean = jnp.where(mask[..., None], vectors, 0.0).sum(axis=1)
        mean = mean / jnp.maximum(mask.sum(axis=1, keepdims=True), 1)
        return jnp.einsum("bd,bokd->bok", mean, beside)


CONFIG = WordVectorsConfig
build = WordVectors


def example_inputs() -> tuple[Array, ...]:
    """The arguments of a smallest call, for `init` and for shapes."""
    return jnp.zeros((1, 1), jnp.int32), jnp.ones((1, 1), bool), jnp.zeros((1, 1, 1), jnp.int32)
