"""The recurrent encoder-decoder, without attention (Sutskever 2014) or with it (Bahdanau 2015)."""

from dataclasses import dataclass, replace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from transformer_lab.errors import LabError, at_least, chosen
from transformer_lab.layers.alignment import KINDS, Alignment
from transformer_lab.layers.basic import Dense
from transformer_lab.layers.embedding import Embedding, check_length
from transformer_lab.layers.recurrent import RecurrentConfig, RecurrentStack
from transformer_lab.models.encoder_decoder import example_inputs as example_inputs
from transformer_lab.models.model import Model
from transformer_lab.ops.dropout import dropout
from transformer_lab.ops.losses import TokenScores

Cache = dict[str, Any]


@dataclass(frozen=True)
class RecurrentSeq2SeqConfig(RecurrentConfig):
    """Settings of both stacks; `layers` is the decoder's, `width` also that of the embeddings."""

    vocab_size: int | None = None  # None: the tokenizer's
    source_vocab_size: int | None = None  # None: one vocabulary for both languages
    tie_source_target: bool = True  # one embedding for both languages
    tie_head: bool = True  # the output head is the target embedding
    max_length: int = 256  # the longest source and target
    encoder_layers: int = 1  # layers of the encoder
    encoder_width: int = 128  # units of each direction
    encoder_bidirectional: bool = True  # the encoder reads both ways
    # none, or a score of `layers.alignment`; additive takes the state before a step as query, and
    # its context goes into the cell (Bahdanau 2015); the others the state after it (Luong 2015)
    attention: str = "additive"
    input_feeding: bool = False  # the head's input also enters the next step (Luong 2015, 3.3)

    def __post_init__(self):
        super().__post_init__()
        chosen(self, "model", {"attention": ("none", *KINDS)})
        at_least(self, "model", 1, "max_length")
        if self.bidirectional or self.truncate:
            raise LabError(
                "model.bidirectional and model.truncate do not go with a decoder: for the encoder "
                "set model.encoder_bidirectional"
            )
        if self.tie_source_target and self.source_vocab_size not in (None, self.vocab_size):
            raise LabError(
                "model.tie_source_target = True needs one vocabulary: unset model.source_vocab_size"
            )
        if self.attention in ("dot", "plain") and self.encoder.out_width != self.width:
            raise LabError(
                f'model.attention = "{self.attention}" multiplies states: the encoder\'s '
                f"{self.encoder.out_width} (model.encoder_width of each direction) must be as many "
                f"as model.width = {self.width}"
            )

    @property
    def encoder(self) -> RecurrentConfig:
        """The settings of the encoder stack."""
        fields = {f: getattr(self, f) for f in RecurrentConfig.__dataclass_fields__}
        both = RecurrentConfig(**fields)
        return replace(
            both,
            layers=self.encoder_layers,
            width=self.encoder_width,
            bidirectional=self.encoder_bidirectional,
        )

    @property
    def context_width(self) -> int:
        """The width of the vector that attention returns; 0 without attention."""
        if self.attention == "none":
            return 0
        return self.width if self.attention == "scaled_dot" else self.encoder.out_width


class RecurrentSeq2Seq(Model):
    """Maps source and target to logits, with the interface of `models.encoder_decoder`.

    The alignment of each target position is sown as `intermediates/weights` [b 1 t s].
    """

    config: RecurrentSeq2SeqConfig

    def setup(self):
        cfg, std = self.config, self.config.width**-0.5
        table = lambda size: Embedding(size, cfg.width, std, cfg.compute_dtype)  # noqa: E731
        self.target_embedding = table(cfg.vocab_size)
        if not cfg.tie_source_target:
            self.source_embedding = table(cfg.source_vocab_size or cfg.vocab_size)
        if not cfg.tie_head:
            self.head = table(cfg.vocab_size)
        self.encoder = RecurrentStack(cfg.encoder, cfg.width)
        self.bridge = nn.Dense(cfg.layers * cfg.recurrence.parts * cfg.width)
        fed = cfg.context_width if cfg.attention == "additive" else 0
        fed += cfg.width if cfg.input_feeding else 0
        self.decoder = RecurrentStack(cfg, cfg.width + fed)
        if cfg.attention != "none":
            self.alignment = Alignment(cfg.attention, cfg.width, cfg.compute_dtype)
        self.readout = Dense(cfg.width)

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
        keys = (None, None) if dropout_key is None else jax.random.split(dropout_key)
        memory, layers = self.encode(source, source_mask, keys[0])
        return self._decode(target, layers, memory, keys[1], labels)[0]

    def encode(
        self,
        source: Int[Array, "b s"],
        source_mask: Bool[Array, "b s"],
        dropout_key: Key[Array, ""] | None = None,
    ) -> tuple[dict[str, Array], dict[str, Any]]:
        """The memory that attention reads, and the decoder's first states.

        The states are computed from the last ones of the encoder's top layer (Bahdanau 2015,
        A.2.2).
        """
        cfg = self.config
        keys = (None,) * 3 if dropout_key is None else jax.random.split(dropout_key, 3)
        table = self.target_embedding if cfg.tie_source_target else self.source_embedding
        x = dropout(self._embed(source, table), cfg.dropout, keys[0])
        states, last = self.encoder(x, source_mask, dropout_key=keys[1])
        states = dropout(states, cfg.dropout, keys[2])
        ends = jnp.concatenate([part for state in last[-1] for part in state], axis=-1)
        first = jnp.split(jnp.tanh(self.bridge(ends)), cfg.layers * cfg.recurrence.parts, axis=-1)
        parts = cfg.recurrence.parts
        layers = {
            "states": [[tuple(first[i * parts : (i + 1) * parts])] for i in range(cfg.layers)],
            "read": jnp.zeros((len(source), cfg.width)),
        }
        memory = {"mask": source_mask}
        if cfg.attention != "none":
            memory = self.alignment.memory(states, source_mask)
        return memory, layers

    def init_cache(
        self, source: Int[Array, "b s"], source_mask: Bool[Array, "b s"], length: int
    ) -> Cache:
        """Encodes the source; a recurrent decoder needs no room. `layers` changes at each step."""
        memory, layers = self.encode(source, source_mask)
        return {"layers": layers, "memory": memory}

    def step(self, tokens: Int[Array, "b t"], cache: Cache) -> tuple[Float[Array, "b t v"], Cache]:
        """Logits after each of the next t target tokens, and the cache after these tokens."""
        logits, layers = self._decode(tokens, cache["layers"], cache["memory"], None)
        return logits, {"layers": layers, "memory": cache["memory"]}

    def _decode(self, tokens, layers, memory, dropout_key, labels=None):
        """Logits [B, T, V] or the labels' scores, and the decoder's states after them."""
        cfg = self.config
        keys = (None,) * 3 if dropout_key is None else jax.random.split(dropout_key, 3)
        x = dropout(self._embed(tokens, self.target_embedding), cfg.dropout, keys[0])
        if cfg.attention == "additive" or cfg.input_feeding:
            read, weights, layers = self._one_by_one(x, layers, memory, keys[1])
        else:
            x, states = self.decoder(x, None, layers["states"], dropout_key=keys[1])
            read, weights = self._read(x, memory)
            layers = {"states": states, "read": read[:, -1]}
        if weights is not None:
            self.sow("intermediates", "weights", weights[:, None])
        head = self.target_embedding if cfg.tie_head else self.head
        read = dropout(read, cfg.dropout, keys[2])
        return head.logits(read, labels), layers

    def _one_by_one(self, x, layers, memory, dropout_key):
        """Runs the decoder step by step, where a step's input depends on the step before. Returns
        the head's inputs, the alignment, and the last states."""
        cfg = self.config

        def body(module, carry, xs):
            x, key = xs
            states, read = carry["states"], carry["read"]
            fed, weights, context = [read] if cfg.input_feeding else [], None, None
            if cfg.attention == "additive":
                before = states[-1][0][0][:, None]  # the top layer's output
                context, weights = module.alignment(before, memory)
                fed.append(context[:, 0])
            x = jnp.concatenate([x, *fed], axis=-1)[:, None]
            x, states = module.decoder(x, None, states, dropout_key=key)
            read, found = module._read(x, memory, context)
            weights = found if weights is None else weights
            out = read[:, 0], None if weights is None else weights[:, 0]
            return {"states": states, "read": read[:, 0]}, out

        keys = None if dropout_key is None else jax.random.split(dropout_key, x.shape[1])
        over_time = nn.scan(body, variable_broadcast="params", split_rngs={"params": False})
        layers, (read, weights) = over_time(self, layers, (jnp.swapaxes(x, 0, 1), keys))
        swap = lambda x: None if x is None else jnp.swapaxes(x, 0, 1)  # noqa: E731
        return swap(read), swap(weights), layers

    def _read(self, states, memory, context=None):
        """The head's input tanh(W [context; state]) (Luong 2015, eq. 5), and the weights."""
        weights = None
        if context is None and self.config.attention != "none":
            context, weights = self.alignment(states, memory)
        both = states if context is None else jnp.concatenate([context, states], axis=-1)
        return jnp.tanh(self.readout(both)), weights

    def _embed(self, ids, table):
        check_length(self.config, ids.shape[1])
        return table(ids)


VIEW = "recurrent_seq2seq"  # the reader of its attention, in viewing/capture.py
CONFIG = RecurrentSeq2SeqConfig
build = RecurrentSeq2Seq
RULES = ((r"(bridge|readout)/kernel$", ("fsdp",)),)
