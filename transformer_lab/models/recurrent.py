"""Recurrent nets as language models, and as classifiers of texts or tokens."""

from dataclasses import dataclass
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from transformer_lab.errors import LabError, at_least, chosen
from transformer_lab.layers.embedding import Embedding, check_length
from transformer_lab.layers.recurrent import RecurrentConfig, RecurrentStack
from transformer_lab.models.decoder import example_inputs as example_inputs
from transformer_lab.models.model import Model
from transformer_lab.ops.dropout import dropout
from transformer_lab.ops.losses import TokenScores
from transformer_lab.ops.pooling import POOLINGS, pool

Cache = dict[str, Any]
Keys = tuple[Key[Array, ""] | None, ...]


@dataclass(frozen=True)
class RecurrentNetConfig(RecurrentConfig):
    """Settings of a recurrent stack with an embedding and a head, which the task chooses."""

    embedding_width: int = 256  # of a token's vector
    vocab_size: int | None = None  # None: the tokenizer's
    max_length: int = 1024  # the most tokens; the recurrence itself has no limit
    # next: logits of the next token; classes: of a text; tokens: of each token; none: states
    head: str = "next"
    labels: int = 2  # outputs of the heads classes and tokens; 1 class is a regression
    pooling: str = "last"  # for classes: each direction's last state, or mean, max or cls of all
    tie_head: bool = False  # for next: the output head is the embedding

    types: ClassVar[int] = 0  # texts of a pair have no vectors of their own
    HEADS: ClassVar = ("next", "classes", "tokens", "none")

    def __post_init__(self):
        super().__post_init__()
        chosen(self, "model", {"head": self.HEADS, "pooling": ("last", *POOLINGS)})
        at_least(self, "model", 1, "embedding_width", "max_length", "labels")
        if self.tie_head and self.embedding_width != self.width:
            raise LabError(
                f"model.tie_head = True needs model.embedding_width = model.width = {self.width}"
            )


class _Net(Model):
    """The part that all recurrent nets share: embedding, recurrent stack, output layer."""

    config: RecurrentNetConfig

    def setup(self):
        cfg = self.config
        std = cfg.embedding_width**-0.5
        self.embedding = Embedding(cfg.vocab_size, cfg.embedding_width, std, cfg.compute_dtype)
        self.encoder = RecurrentStack(cfg, cfg.embedding_width)
        if cfg.head == "next" and not cfg.tie_head:
            self.head = Embedding(cfg.vocab_size, cfg.width, cfg.width**-0.5, cfg.compute_dtype)
        if cfg.head in ("classes", "tokens"):
            self.classifier = nn.Dense(cfg.labels)

    def run(self, tokens, mask=None, states=None, fresh=None, keys: Keys = (None,) * 3):
        """The states [B, T, D] after the head's dropout, and the last states of each layer."""
        cfg = self.config
        check_length(cfg, tokens.shape[1])
        x = dropout(self.embedding(tokens), cfg.dropout, keys[0])
        x, states = self.encoder(x, mask, states, fresh, keys[1])
        return dropout(x, cfg.dropout, keys[2]), states


class RecurrentDecoder(_Net):
    """Maps tokens to logits of the next token, with the interface of `models.decoder`.

    `segments` number the documents packed into one sequence: each begins with zero states; 0 is
    padding.
    """

    def __call__(
        self,
        tokens: Int[Array, "b t"],
        dropout_key: Key[Array, ""] | None = None,
        segments: Int[Array, "b t"] | None = None,
        labels: Int[Array, "b t"] | None = None,
    ) -> Float[Array, "b t v"] | TokenScores:
        """Logits after all positions at once; given labels, the labels' scores instead."""
        return self.logits(self._segmented(tokens, segments, keys_of(dropout_key))[0], labels)

    def logits(
        self, states: Float[Array, "b t d"], labels: Int[Array, "b t"] | None = None
    ) -> Float[Array, "b t v"] | TokenScores:
        """float32 logits, or the labels' scores that a loss needs."""
        head = self.embedding if self.config.tie_head else self.head
        return head.logits(states, labels)

    def init_cache(self, batch: int, length: int) -> Cache:
        """The zero states before a text; their size does not depend on `length`."""
        return {"layers": self.encoder.zero_states(batch)}

    def prefill(
        self, tokens: Int[Array, "b t"], segments: Int[Array, "b t"] | None, length: int
    ) -> tuple[Float[Array, "b t v"], Cache]:
        """The prompts in one pass: logits after each token, and the states to continue from."""
        x, states = self._segmented(tokens, segments, (None,) * 3)
        return self.logits(x), {"layers": states}

    def step(self, tokens: Int[Array, "b t"], cache: Cache) -> tuple[Float[Array, "b t v"], Cache]:
        """Logits after each of the next t tokens, and the states after them."""
        x, states = self.run(tokens, states=cache["layers"])
        return self.logits(x), {"layers": states}

    def _segmented(self, tokens, segments, keys):
        if segments is None:
            return self.run(tokens, keys=keys)
        before = jnp.pad(segments[:, :-1], ((0, 0), (1, 0)))
        return self.run(tokens, segments != 0, None, segments != before, keys)


class RecurrentEncoder(_Net):
    """Maps tokens to states and the head's logits, with the interface of `models.encoder`."""

    def __call__(
        self,
        tokens: Int[Array, "b t"],
        mask: Bool[Array, "b t"] | None = None,
        types: None = None,
        dropout_key: Key[Array, ""] | None = None,
    ) -> dict[str, Float[Array, "..."]]:
        """`states` [b t d] and, as configured, `logits` ([b labels] or [b t labels])."""
        cfg = self.config
        keys = keys_of(dropout_key)
        x, last = self.run(tokens, mask, keys=keys)
        out = {"states": x}
        if cfg.head == "tokens":
            out["logits"] = self.classifier(x)
        elif cfg.head == "classes" and cfg.pooling == "last":
            ends = jnp.concatenate([state[0] for state in last[-1]], axis=-1)
            out["logits"] = self.classifier(dropout(ends, cfg.dropout, keys[2]))
        elif cfg.head == "classes":
            real = jnp.ones(tokens.shape, bool) if mask is None else mask
            out["logits"] = self.classifier(pool(x, real, cfg.pooling))
        return out


def keys_of(dropout_key: Key[Array, ""] | None) -> Keys:
    """The dropout keys of embeddings, layers and head; all None without a key."""
    return (None,) * 3 if dropout_key is None else tuple(jax.random.split(dropout_key, 3))


def build(config: RecurrentNetConfig) -> RecurrentDecoder | RecurrentEncoder:
    """The module that the config's head needs: a decoder for "next", else an encoder."""
    if config.head != "next":
        return RecurrentEncoder(config)
    if config.bidirectional:
        raise LabError("a language model sees no later token: unset model.bidirectional")
    return RecurrentDecoder(config)


CONFIG = RecurrentNetConfig
RULES = ((r"classifier/kernel$", ()),)
