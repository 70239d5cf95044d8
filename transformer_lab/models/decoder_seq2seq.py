"""A decoder alone that translates (Raffel 2020, section 3.2.1): source and target in sequence."""

from dataclasses import dataclass, replace

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from transformer_lab.models.decoder import Cache, Decoder, DecoderConfig
from transformer_lab.models.encoder_decoder import example_inputs as example_inputs
from transformer_lab.models.model import Model
from transformer_lab.ops.losses import TokenScores


@dataclass(frozen=True)
class DecoderSeq2SeqConfig(DecoderConfig):
    """Settings of the decoder; `max_length` limits source and target, each by itself.

    It is initialized as an encoder-decoder: with GPT-2's smaller values it learns far more slowly.
    """

    kernel_init: str = "xavier_uniform"
    depth_scaled_init: bool = False
    embedding_scale: bool = True
    max_length: int = 256
    mask: str = "prefix"  # the source is read both ways; causal: from left to right, as the target


class DecoderSeq2Seq(Model):
    """Maps source and target to logits, with the interface of `EncoderDecoder`.

    The source's padding, which comes last, is moved before its real tokens, so that the target
    follows them at once.
    """

    config: DecoderSeq2SeqConfig

    def setup(self):
        self.decoder = Decoder(replace(self.config, max_length=2 * self.config.max_length))

    def __call__(
        self,
        source: Int[Array, "b s"],
        source_mask: Bool[Array, "b s"],
        target: Int[Array, "b t"],
        dropout_key: Key[Array, ""] | None = None,
        labels: Int[Array, "b t"] | None = None,
    ) -> Float[Array, "b t v"] | TokenScores:
        """Logits after each target token, the first of which is the start token; given labels, the
        labels' scores instead."""
        source, real = _to_the_end(source, source_mask)
        tokens = jnp.concatenate([source, target], axis=1)
        prefix = jnp.concatenate([real, jnp.zeros(target.shape, bool)], axis=1)
        segments = jnp.concatenate([real, jnp.ones(target.shape, bool)], axis=1).astype(jnp.int32)
        prefix = prefix if self.config.mask == "prefix" else None
        states = self.decoder.states(tokens, dropout_key, segments, prefix)
        return self.decoder.logits(states[:, source.shape[1] :], labels)

    def init_cache(
        self, source: Int[Array, "b s"], source_mask: Bool[Array, "b s"], length: int
    ) -> Cache:
        """Encodes the source; returns a cache with room for `length` target positions."""
        source, real = _to_the_end(source, source_mask)
        segments = real.astype(jnp.int32)
        return self.decoder.prefill(source, segments, source.shape[1] + length)[1]

    def step(self, tokens: Int[Array, "b t"], cache: Cache) -> tuple[Float[Array, "b t v"], Cache]:
        """Logits after each of the next t target tokens, and the cache with these tokens added."""
        return self.decoder.step(tokens, cache)


def _to_the_end(tokens, mask):
    """Moves each text's padding from its end to its beginning; returns tokens and mask."""
    length = tokens.shape[1]
    places = jnp.arange(length) - (length - mask.sum(axis=1))[:, None]
    return jnp.take_along_axis(tokens, places % length, axis=1), places >= 0


VIEW = "decoder_seq2seq"  # the reader of its attention, in viewing/capture.py
CONFIG = DecoderSeq2SeqConfig
build = DecoderSeq2Seq
