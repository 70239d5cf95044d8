"""The decoder-only Transformer: GPT and its successors as settings of one stack."""

from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from transformer_lab.errors import LabError, at_least, chosen
from transformer_lab.layers import costs
from transformer_lab.layers.basic import dense, norm
from transformer_lab.layers.config import StackConfig
from transformer_lab.layers.embedding import Embedding, check_length, enter, scaled
from transformer_lab.layers.positions import PositionVectors
from transformer_lab.layers.stack import Stack
from transformer_lab.models.model import Model
from transformer_lab.ops.losses import TokenScores
from transformer_lab.ops.visibility import Visible

MASKS = ("causal", "prefix")
Cache = dict[str, Any]


@dataclass(frozen=True)
class DecoderConfig(StackConfig):
    """Settings of a stack with an embedding and a head; the defaults are those of GPT-2."""

    activation: str = "gelu_tanh"
    norm_place: str = "pre"
    norm_epsilon: float = 1e-5
    kernel_init: str = "normal"
    depth_scaled_init: bool = True
    positions: str = "learned"
    max_length: int = 1024
    vocab_size: int | None = None  # None: the tokenizer's
    vocab_multiple: int = 1  # the tables' rows are padded to a multiple of it, for sharding
    mask: str = "causal"  # prefix: a prompt's tokens attend to each other both ways
    causal: bool = True  # False, a mistake to study: all positions at once see what comes next
    embedding_width: int | None = None  # narrower tables, projected (OPT 350M); None: width
    embedding_scale: bool = False  # embeddings times sqrt(width)
    embedding_norm: bool = False  # a norm after the embedding, as in BLOOM
    tie_head: bool = True  # the output head is the embedding
    head_bias: bool = False  # the logits have a bias

    def __post_init__(self):
        super().__post_init__()
        chosen(self, "model", {"mask": MASKS})
        at_least(self, "model", 1, "vocab_multiple")
        if self.mask == "prefix":
            self.reads_both_ways('model.mask = "prefix"')
        if self.mask == "prefix" and self.window:
            raise LabError('model.mask = "prefix" and model.window do not go together')

    @property
    def table_rows(self) -> int:
        """The rows of the embedding and head tables, padding included."""
        return -(-self.vocab_size // self.vocab_multiple) * self.vocab_multiple


class Decoder(Model):
    """Maps tokens to logits of the next token; a call with a dropout key uses dropout.

    `segments` number the documents packed into one sequence: tokens attend within theirs, and
    positions count from its first token; 0 is padding, on either side. `prefix` marks the tokens
    that all tokens of their segment may attend to, before them or after.
    """

    config: DecoderConfig

    def setup(self):
        cfg = self.config
        narrow = cfg.embedding_width or cfg.width
        std = cfg.width**-0.5 if cfg.embedding_scale else cfg.init_std
        table = lambda: Embedding(cfg.table_rows, narrow, std, cfg.compute_dtype)  # noqa: E731
        self.embedding = table()
        if not cfg.tie_head:
            self.head = table()
        if cfg.embedding_width is not None:
            self.embedding_in = dense(cfg, cfg.width, False)
            self.embedding_out = dense(cfg, narrow, False)
        if cfg.embedding_norm:
            self.embedding_norm = norm(cfg)
        if cfg.head_bias:
            self.head_bias = self.param("head_bias", nn.initializers.zeros, (cfg.table_rows,))
        self.positions = PositionVectors(cfg)
        self.decoder = Stack(cfg, cfg.layers, causal=cfg.causal)

    def __call__(
        self,
        tokens: Int[Array, "b t"],
        dropout_key: Key[Array, ""] | None = None,
        segments: Int[Array, "b t"] | None = None,
        prefix: Bool[Array, "b t"] | None = None,
        labels: Int[Array, "b t"] | None = None,
    ) -> Float[Array, "b t v"] | TokenScores:
        """Logits after all positions at once; given labels, the labels' scores instead."""
        return self.logits(self.states(tokens, dropout_key, segments, prefix), labels)

    def states(
        self,
        tokens: Int[Array, "b t"],
        dropout_key: Key[Array, ""] | None = None,
        segments: Int[Array, "b t"] | None = None,
        prefix: Bool[Array, "b t"] | None = None,
        real: Bool[Array, "b t"] | None = None,
    ) -> Float[Array, "b t d"]:
        """The stack's output, before the head; nothing attends to tokens that are not `real`."""
        keys = (None, None) if dropout_key is None else jax.random.split(dropout_key)
        x, added = self._embed(tokens, positions_within(segments, tokens.shape[1]), keys[0])
        seen = Visible(query_segments=segments, key_segments=segments, keys=real)
        return self.decoder(x, seen, dropout_key=keys[1], prefix=prefix, added=added)

    def logits(
        self, states: Float[Array, "b t d"], labels: Int[Array, "b t"] | None = None
    ) -> Float[Array, "b t v"] | TokenScores:
        """float32 logits, or the labels' scores that a loss needs; without the table's padding."""
        cfg = self.config
        head = self.embedding if cfg.tie_head else self.head
        if cfg.embedding_width is not None:
            states = self.embedding_out(states)
        bias = self.head_bias if cfg.head_bias else None
        return head.logits(states, labels, bias, cfg.vocab_size)

    @property
    def reads_prefix(self) -> bool:
        return self.config.mask == "prefix"

    def init_cache(self, batch: int, length: int) -> Cache:
        """An empty cache with room for `length` positions (or for a window, if that is shorter).

        `index` counts the positions written; `start` [b] is the first real one of each text.
        """
        check_length(self.config, length)
        return {
            "index": jnp.zeros((), jnp.int32),
            "start": jnp.zeros((batch,), jnp.int32),
            "layers": self.decoder.init_cache(batch, length),
        }

    def prefill(
        self, tokens: Int[Array, "b t"], segments: Int[Array, "b t"] | None, length: int
    ) -> tuple[Float[Array, "b t v"], Cache]:
        """The prompts in one pass: logits after each token, and a cache with room for `length`.

        Padding (segment 0) stands on the left, so that all texts continue at one position. `length`
        includes it, and may exceed max_length, which limits the real tokens: the caller ensures
        that.
        """
        t = tokens.shape[1]
        x, added = self._embed(tokens, positions_within(segments, t), None)
        real = jnp.ones(tokens.shape, bool) if segments is None else segments != 0
        seen = Visible(query_segments=segments, key_segments=segments)
        prefix = real if self.reads_prefix else None
        x, layers = self.decoder.prefill(x, seen, prefix, length, added)
        start = t - real.sum(axis=1, dtype=jnp.int32)
        cache = {"index": jnp.full((), t, jnp.int32), "start": start, "layers": layers}
        return self.logits(x), cache

    def step(self, tokens: Int[Array, "b t"], cache: Cache) -> tuple[Float[Array, "b t v"], Cache]:
        """Logits after each of the next t tokens, and the cache with these tokens added."""
        index, start = cache["index"], cache["start"]
        positions = index + jnp.arange(tokens.shape[1]) - start[:, None]
        x, added = self._embed(tokens, positions, None)
        x, layers = self.decoder.step(x, cache["layers"], index, start=start, added=added)
        return self.logits(x), {"index": index + tokens.shape[1], "start": start, "layers": layers}

    def _embed(self, ids, positions, key):
        """Token vectors, and position vectors for each layer if that is where they are added."""
        cfg = self.config
        check_length(cfg, ids.shape[1])
        x = self.embedding(ids)
        x = scaled(cfg, x) if cfg.embedding_scale else x
        x = x if cfg.embedding_width is None else self.embedding_in(x)
        norm = self.embedding_norm if cfg.embedding_norm else None
        return enter(cfg, x, self.positions(positions), norm, key)


def positions_within(segments: Int[Array, "b t"] | None, length: int) -> Int[Array, "#b t"]:
    """Each token's position in its segment, from 0; for padding any valid number. Segments 1 1 2 2
    2 give 0 1 0 1 2."""
    places = jnp.arange(length)[None]
    if segments is None:
        return places
    before = jnp.pad(segments[:, :-1], ((0, 0), (1, 0)), constant_values=-1)
    firsts = jnp.where(segments != before, places, 0)
    return places - jax.lax.cummax(firsts, axis=1)


def matmul_parameters(config: DecoderConfig) -> int:
    """The number of parameters that multiply a token's vector: all matrices, the head (a tied one
    too), and the experts that work for the token.

    Looking an embedding up costs nothing; Transformer-XL's projection of distances is the same for
    all tokens of a batch, and left out.
    """
    narrow = config.embedding_width
    ends = config.table_rows * (narrow or config.width) + 2 * config.width * (narrow or 0)
    return sum(map(costs.active_parameters, config.each_layer())) + ends


def training_flops(config: DecoderConfig, length: int | None = None) -> int:
    """FLOPs a token, forward and backward: 6 N + 12 L N_heads H T (Chowdhery 2022, appendix B),
    with L the layers of attention, and the states of other mixers.

    The backward pass costs twice the forward one, 2 N (Kaplan 2020, table 1). Attention counts its
    full square, though masks and windows leave half of it or less; recomputation is not counted.
    """
    length = config.max_length if length is None else length
    layers = config.each_layer()
    attention = 12 * sum(map(costs.attends, layers)) * config.heads * config.head_dim * length
    return 6 * matmul_parameters(config) + attention + sum(map(costs.recurrence_flops, layers))


def cache_bytes(config: DecoderConfig, length: int = 1, dtype: str = "bfloat16") -> int:
    """Bytes that `length` positions of one sequence take in a decoding cache.

    These are the keys and values of attention, whose number a window limits, and the float32 states
    of other mixers.
    """
    total = 0
    for layer in config.each_layer():
        if costs.attends(layer):
            held = min(length, layer.window) if layer.window else length
            a_position = 2 * layer.key_value_heads * layer.head_dim * jnp.dtype(dtype).itemsize
            total += held * a_position
        else:
            total += 4 * costs.state_numbers(layer)
    return total


def example_inputs() -> tuple[Array, ...]:
    """The arguments of a smallest call, for `init` and for shapes."""
    return (jnp.zeros((1, 2), jnp.int32),)


VIEW = "decoder"  # the reader of its attention, in viewing/capture.py
CONFIG = DecoderConfig
build = Decoder
STACKS = {"decoder": "layers"}
RULES = ((r"embedding_(in|out)/kernel$", ()),)
