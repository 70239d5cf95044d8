"""The encoder-only Transformer (Devlin 2019) with its pre-training and fine-tuning heads."""

from dataclasses import dataclass
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from transformer_lab.errors import LabError, at_least, chosen
from transformer_lab.layers.basic import dense, norm
from transformer_lab.layers.biaffine import ArcHead
from transformer_lab.layers.config import StackConfig
from transformer_lab.layers.embedding import Embedding, check_length, enter
from transformer_lab.layers.positions import PositionVectors
from transformer_lab.layers.stack import Stack
from transformer_lab.models.decoder import example_inputs as example_inputs
from transformer_lab.models.model import Model
from transformer_lab.ops.activations import ACTIVATIONS
from transformer_lab.ops.dropout import dropout
from transformer_lab.ops.losses import TokenScores
from transformer_lab.ops.visibility import Visible


@dataclass(frozen=True)
class EncoderConfig(StackConfig):
    """Settings of a stack that reads in both directions; the defaults are those of BERT base."""

    layers: int = 12
    width: int = 768
    heads: int = 12
    feed_forward_width: int = 3072
    activation: str = "gelu"
    norm_epsilon: float = 1e-12
    kernel_init: str = "normal"
    positions: str = "learned"
    max_length: int = 512
    attention_dropout: float = 0.1
    vocab_size: int | None = None  # None: the tokenizer's
    types: int = 2  # segments that have a vector: BERT's A and B; 0: none
    embedding_norm: bool = True  # a norm after the sum of the embeddings
    pooler: bool = True  # a dense layer on the first token's state
    pooler_activation: str = "tanh"  # of the pooler
    # mlm: masked tokens; mlm_nsp: and next sentence; classes: of a text; tokens: of each token;
    # span: where an answer starts and ends; arcs: which word each word depends on, and how
    head: str = "none"
    mlm_activation: str = "gelu"  # of the masked words' head
    labels: int = 2  # outputs of the heads classes, tokens and arcs; 1 class is a regression
    head_dropout: float = 0.1  # before the heads classes and tokens, and in the head arcs
    arc_width: int = 500  # of the head arcs: its vectors for arcs (Dozat 2017, table 1)
    label_width: int = 100  # and for labels

    HEADS: ClassVar = ("none", "mlm", "mlm_nsp", "classes", "tokens", "span", "arcs")

    def __post_init__(self):
        super().__post_init__()
        self.reads_both_ways("an encoder")
        names = dict.fromkeys(("pooler_activation", "mlm_activation"), ACTIVATIONS)
        chosen(self, "model", {"head": self.HEADS, **names})
        if self.head == "mlm_nsp" and not self.pooler:
            raise LabError('model.head = "mlm_nsp" needs model.pooler = True')
        at_least(self, "model", 1, "labels", "arc_width", "label_width")
        at_least(self, "model", 0, "types")


class Encoder(Model):
    """Maps tokens to states, and computes the output of the config's head."""

    config: EncoderConfig

    def setup(self):
        cfg = self.config
        self.embedding = Embedding(cfg.vocab_size, cfg.width, cfg.init_std, cfg.compute_dtype)
        self.positions = PositionVectors(cfg)
        if cfg.types:
            self.type_embedding = Embedding(cfg.types, cfg.width, cfg.init_std, cfg.compute_dtype)
        if cfg.embedding_norm:
            self.embedding_norm = norm(cfg)
        self.encoder = Stack(cfg, cfg.layers)
        if cfg.pooler:
            self.pooler = dense(cfg, cfg.width, True)
        if cfg.head in ("mlm", "mlm_nsp"):
            self.mlm_transform = dense(cfg, cfg.width, True)
            self.mlm_norm = norm(cfg)
            self.mlm_bias = self.param("mlm_bias", nn.initializers.zeros, (cfg.vocab_size,))
        if cfg.head == "mlm_nsp":
            self.nsp = dense(cfg, 2, True)
        if cfg.head == "arcs":
            widths = cfg.arc_width, cfg.label_width
            self.classifier = ArcHead(cfg, *widths, cfg.labels, cfg.head_dropout)
        if cfg.head in ("classes", "tokens", "span"):
            self.classifier = dense(cfg, 2 if cfg.head == "span" else cfg.labels, True)

    def __call__(
        self,
        tokens: Int[Array, "b t"],
        mask: Bool[Array, "b t"] | None = None,
        types: Int[Array, "b t"] | None = None,
        dropout_key: Key[Array, ""] | None = None,
        places: Int[Array, "b p"] | None = None,
        labels: Int[Array, "b p"] | None = None,
    ) -> dict[str, Float[Array, "..."] | TokenScores]:
        """`states` [b t d], and as configured `pooled` [b d], `mlm`, `nsp` [b 2], `logits`.

        `mlm` [b p v] is computed at the positions `places` (None: at all); given labels, it is the
        labels' scores. `logits` are [b labels], [b t labels], or [b t 2] for start and end of an
        answer. The head arcs gives `arcs` [b t t], the logits of each token's head, and `logits`
        [b t labels] of the arcs whose heads are `places` [b t]. The mask is True at real tokens:
        nothing attends to others.
        """
        cfg = self.config
        keys = (None,) * 3 if dropout_key is None else jax.random.split(dropout_key, 3)
        out = {"states": self._states(tokens, mask, types, keys[:2])}
        drop = lambda x: dropout(x, cfg.head_dropout, keys[2])  # noqa: E731
        if cfg.pooler:
            pooled = self.pooler(out["states"][:, 0])
            out["pooled"] = ACTIVATIONS[cfg.pooler_activation](pooled)
        if cfg.head in ("mlm", "mlm_nsp"):
            out["mlm"] = self._mlm(out["states"], places, labels)
        if cfg.head == "mlm_nsp":
            out["nsp"] = self.nsp(out["pooled"]).astype(jnp.float32)
        if cfg.head == "arcs":
            out["arcs"], out["logits"] = self.classifier(out["states"], places, keys[2])
        elif cfg.head == "classes":
            first = out["pooled"] if cfg.pooler else out["states"][:, 0]
            out["logits"] = self.classifier(drop(first)).astype(jnp.float32)
        elif cfg.head in ("tokens", "span"):
            states = drop(out["states"]) if cfg.head == "tokens" else out["states"]
            out["logits"] = self.classifier(states).astype(jnp.float32)
        return out

    def _states(self, tokens, mask, types, keys):
        cfg = self.config
        check_length(cfg, tokens.shape[1])
        vectors = self.positions(jnp.arange(tokens.shape[1])[None])

        def settled(x):
            if cfg.types:
                x = x + self.type_embedding(jnp.zeros_like(tokens) if types is None else types)
            return self.embedding_norm(x) if cfg.embedding_norm else x

        x, added = enter(cfg, self.embedding(tokens), vectors, settled, keys[0])
        return self.encoder(x, Visible(keys=mask), dropout_key=keys[1], added=added)

    def _mlm(self, states, places, labels):
        """The head of masked language modelling (Devlin 2019, section 3.1): a dense layer, a norm,
        and the embedding table as output layer."""
        if places is not None:
            states = jnp.take_along_axis(states, places[..., None], axis=1)
        hidden = self.mlm_norm(ACTIVATIONS[self.config.mlm_activation](self.mlm_transform(states)))
        return self.embedding.logits(hidden, labels, self.mlm_bias)


VIEW = "encoder"  # the reader of its attention, in viewing/capture.py
CONFIG = EncoderConfig
build = Encoder
STACKS = {"encoder": "layers"}
RULES = ((r"(pooler|mlm_transform|nsp|classifier(/\w+)?)/kernel$", ()),)
