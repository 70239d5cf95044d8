"""The encoder-decoder Transformer (Vaswani 2017); BART and T5 are settings of it."""

from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from transformer_lab.errors import LabError
from transformer_lab.layers.basic import norm
from transformer_lab.layers.config import StackConfig
from transformer_lab.layers.embedding import Embedding, check_length, enter, scaled
from transformer_lab.layers.positions import PositionVectors
from transformer_lab.layers.stack import Stack
from transformer_lab.models.decoder import positions_within
from transformer_lab.models.model import Model
from transformer_lab.ops.losses import TokenScores
from transformer_lab.ops.visibility import Visible

Cache = dict[str, Any]


@dataclass(frozen=True)
class EncoderDecoderConfig(StackConfig):
    """Settings of both stacks; a `decoder_` field that is None takes the encoder's value."""

    vocab_size: int | None = None  # None: the tokenizer's
    source_vocab_size: int | None = None  # None: one vocabulary for both languages
    embedding_scale: bool = True  # embeddings times sqrt(width)
    embedding_norm: bool = False  # a norm after the embeddings, as in BART
    tie_source_target: bool = True  # one embedding for both languages
    tie_head: bool = True  # the output head is the target embedding
    head_bias: bool = False  # the logits have a bias
    scale_output: bool = False  # states times width^-1/2 before the head, as in T5 with a tied head
    causal: bool = True  # False, a mistake to study: in training the decoder sees what comes next
    decoder_layers: int | None = None  # None: as many as the encoder; so the keys that follow
    decoder_heads: int | None = None  # attention heads of the decoder
    decoder_kv_heads: int | None = None  # key and value heads of the decoder
    decoder_head_dim: int | None = None  # the decoder's width of a head
    decoder_feed_forward_width: int | None = None  # units of the decoder's feed-forwards
    decoder_layer_kinds: tuple[str, ...] | None = None  # of the decoder's blocks, as layer_kinds

    def __post_init__(self):
        super().__post_init__()
        if self.norm_place == "deep":
            raise LabError('model.norm_place = "deep" is for a stack alone: use "pre" or "post"')
        if self.positions_every_layer:
            raise LabError("model.positions_every_layer is for a stack alone: unset it")
        if self.tie_source_target and self.source_vocab_size not in (None, self.vocab_size):
            raise LabError(
                "model.tie_source_target = True needs one vocabulary: unset model.source_vocab_size"
            )
        self.reads_both_ways("an encoder")
        _ = self.decoder  # refuses an impossible decoder as well

    @property
    def decoder(self) -> StackConfig:
        """The settings of the decoder stack."""
        fields = {f: getattr(self, f) for f in StackConfig.__dataclass_fields__}
        for name in (f for f in fields if hasattr(self, f"decoder_{f}")):
            own = getattr(self, f"decoder_{name}")
            fields[name] = fields[name] if own is None else own
        return StackConfig(**fields)


class EncoderDecoder(Model):
    """Maps source and target to logits; a call with a dropout key uses dropout.

    Segments number the source-target pairs packed into one sequence, from 1; 0 is padding. Both
    sides attend within their pair, and positions count from its first token.
    """

    config: EncoderDecoderConfig

    def setup(self):
        cfg = self.config
        std = cfg.width**-0.5 if cfg.embedding_scale else cfg.init_std
        table = lambda size: Embedding(size, cfg.width, std, cfg.compute_dtype)  # noqa: E731
        self.target_embedding = table(cfg.vocab_size)
        if not cfg.tie_source_target:
            self.source_embedding = table(cfg.source_vocab_size or cfg.vocab_size)
        if not cfg.tie_head:
            self.head = table(cfg.vocab_size)
        if cfg.head_bias:
            self.head_bias = self.param("head_bias", nn.initializers.zeros, (cfg.vocab_size,))
        self.source_positions, self.target_positions = PositionVectors(cfg), PositionVectors(cfg)
        if cfg.embedding_norm:
            self.source_norm, self.target_norm = norm(cfg), norm(cfg)
        self.encoder = Stack(cfg, cfg.layers)
        self.decoder = Stack(cfg.decoder, cfg.decoder.layers, causal=cfg.causal, cross=True)

    def __call__(
        self,
        source: Int[Array, "b s"],
        source_mask: Bool[Array, "b s"],
        target: Int[Array, "b t"],
        dropout_key: Key[Array, ""] | None = None,
        source_segments: Int[Array, "b s"] | None = None,
        target_segments: Int[Array, "b t"] | None = None,
        labels: Int[Array, "b t"] | None = None,
    ) -> Float[Array, "b t v"] | TokenScores:
        """Logits after each target token, the first of which is the start token; given labels, the
        labels' scores instead."""
        keys = (None, None) if dropout_key is None else jax.random.split(dropout_key)
        segments = source_segments, target_segments
        memory = self.encode(source, source_mask, keys[0], source_segments)
        return self.logits(self.decode(target, memory, source_mask, keys[1], *segments), labels)

    def encode(
        self,
        source: Int[Array, "b s"],
        source_mask: Bool[Array, "b s"],
        dropout_key: Key[Array, ""] | None = None,
        segments: Int[Array, "b s"] | None = None,
    ) -> Float[Array, "b s d"]:
        """The states of the source's tokens; the mask is True at real tokens."""
        keys = (None, None) if dropout_key is None else jax.random.split(dropout_key)
        x = self._embed(source, "source", positions_within(segments, source.shape[1]), keys[0])
        seen = Visible(query_segments=segments, key_segments=segments)
        if segments is None:
            seen = Visible(keys=source_mask)
        return self.encoder(x, seen, dropout_key=keys[1])

    def decode(
        self,
        target: Int[Array, "b t"],
        memory: Float[Array, "b s d"],
        memory_mask: Bool[Array, "b s"] | None,
        dropout_key: Key[Array, ""] | None = None,
        memory_segments: Int[Array, "b s"] | None = None,
        segments: Int[Array, "b t"] | None = None,
    ) -> Float[Array, "b t d"]:
        """The decoder's states at all target positions; without a mask all memory is real."""
        keys = (None, None) if dropout_key is None else jax.random.split(dropout_key)
        x = self._embed(target, "target", positions_within(segments, target.shape[1]), keys[0])
        seen = Visible(query_segments=segments, key_segments=segments)
        memory_seen = Visible(query_segments=segments, key_segments=memory_segments)
        if segments is None:
            memory_seen = Visible(keys=memory_mask)
        return self.decoder(x, seen, memory=memory, memory_seen=memory_seen, dropout_key=keys[1])

    def logits(
        self, states: Float[Array, "b t d"], labels: Int[Array, "b t"] | None = None
    ) -> Float[Array, "b t v"] | TokenScores:
        """float32 logits, or the labels' scores that a loss needs."""
        cfg = self.config
        head = self.target_embedding if cfg.tie_head else self.head
        if cfg.scale_output:
            states = states * jnp.asarray(cfg.width**-0.5, states.dtype)
        return head.logits(states, labels, self.head_bias if cfg.head_bias else None)

    def init_cache(
        self, source: Int[Array, "b s"], source_mask: Bool[Array, "b s"], length: int
    ) -> Cache:
        """Encodes the source; returns a cache with room for `length` target positions.

        `index` counts the positions written; `layers` changes at each step; `memory` never does.
        """
        check_length(self.config, length)
        memory = self.encode(source, source_mask)
        return self._cache(memory, source_mask[:, None, None, :], length)

    def _cache(self, memory, mask, length):
        return {
            "index": jnp.zeros((), jnp.int32),
            "layers": self.decoder.init_cache(len(memory), length),
            "memory": {"layers": self.decoder.cross_cache(memory), "mask": mask},
        }

    def step(self, tokens: Int[Array, "b t"], cache: Cache) -> tuple[Float[Array, "b t v"], Cache]:
        """Logits after each of the next t target tokens, and the cache with these tokens added.

        A cache may have `start` [b], the number of padding positions before each text's first
        token.
        """
        index, memory, start = cache["index"], cache["memory"], cache.get("start")
        positions = index + jnp.arange(tokens.shape[1])[None]
        positions = positions if start is None else jnp.maximum(positions - start[:, None], 0)
        x = self._embed(tokens, "target", positions, None)
        seen = Visible(mask=memory["mask"])
        x, layers = self.decoder.step(x, cache["layers"], index, memory["layers"], seen, start)
        return self.logits(x), {**cache, "index": index + tokens.shape[1], "layers": layers}

    def _embed(self, ids, side, positions, key):
        cfg = self.config
        check_length(cfg, ids.shape[1])
        table = "target" if cfg.tie_source_target else side
        x = getattr(self, f"{table}_embedding")(ids)
        x = scaled(cfg, x) if cfg.embedding_scale else x
        norm = getattr(self, f"{side}_norm") if cfg.embedding_norm else None
        return enter(cfg, x, getattr(self, f"{side}_positions")(positions), norm, key)[0]


def example_inputs() -> tuple[Array, ...]:
    """The arguments of a smallest call, for `init` and for shapes."""
    ids = jnp.zeros((1, 2), jnp.int32)
    return ids, ids == 0, ids


VIEW = "encoder_decoder"  # the reader of its attention, in viewing/capture.py
CONFIG = EncoderDecoderConfig
build = EncoderDecoder
STACKS = {"encoder": "layers", "decoder": "decoder_layers"}
