"""DETR (Carion 2020): the objects of an image as a set, by a net, an encoder and a decoder."""

from dataclasses import dataclass, replace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from transformer_lab.errors import LabError, at_least
from transformer_lab.layers.attention import Attention
from transformer_lab.layers.basic import FeedForward, dense, norm
from transformer_lab.layers.config import CHOICES, StackConfig
from transformer_lab.models import cnn
from transformer_lab.models.cnn import CNN, CNNConfig, ReadsMaps
from transformer_lab.models.model import Model
from transformer_lab.ops.dropout import dropout
from transformer_lab.ops.positions import sinusoids
from transformer_lab.ops.visibility import ALL, Visible

GRIDS = ("sine", "learned")
LONGEST = 50  # the most rows and columns of a feature map that have learned vectors


@dataclass(frozen=True)
class DETRConfig(ReadsMaps, StackConfig):
    """Settings of the encoder, the decoder and the net; the defaults are those of DETR-R50."""

    width: int = 256
    head_dim: int = 32
    positions: str = "none"  # a sequence's; those of the image are `grid_positions`
    decoder_layers: int = 6  # blocks of the decoder
    decoder_heads: int = 8  # attention heads of the decoder
    decoder_feed_forward_width: int = 2048  # units of its feed-forwards
    norm_epsilon: float = 1e-5
    grid_positions: str = "sine"  # encodings of rows and columns: sine or learned
    queries: int = 100  # objects that can be found in an image
    labels: int = 91  # kinds of objects; the classifier has one output more, for none
    # The convolutional net that makes the encoder's input from an image
    backbone: CNNConfig = CNNConfig(block="bottleneck", stages=(3, 4, 6, 3), head="none")
    frozen_norms: bool = True  # the net's norms keep their statistics in training

    def __post_init__(self):
        super().__post_init__()
        at_least(self, "model", 1, "decoder_layers", "decoder_heads", "queries", "labels")
        if self.decoder_heads * (self.width // self.decoder_heads) != self.width:
            raise LabError(
                f"model.decoder_heads = {self.decoder_heads} does not divide model.width = "
                f"{self.width}"
            )
        if self.width % 4:
            raise LabError(f"model.width = {self.width}: positions of a grid need a multiple of 4")
        if self.norm_place != "post" or self.layer_kinds or self.mixer.kind != "attention":
            raise LabError('DETR\'s layers are of attention with model.norm_place = "post"')
        self.check_backbone()

    def choices(self) -> dict[str, tuple[str, ...]]:
        return CHOICES | {"positions": ("none",), "grid_positions": GRIDS}

    @property
    def grid(self) -> None:
        """None: queries are a set, and not the cells of a grid."""
        return None

    @property
    def decoder(self) -> StackConfig:
        """The settings of the decoder's layers."""
        return replace(
            self,
            layers=self.decoder_layers,
            heads=self.decoder_heads,
            head_dim=self.width // self.decoder_heads,
            feed_forward_width=self.decoder_feed_forward_width,
        )


class Layer(nn.Module):
    """Attention, in a decoder also to the image, and feed-forward, each with residual and norm.

    Position vectors are added to queries and keys but not to values, anew in each layer (Carion
    2020, figure 10).
    """

    config: StackConfig
    cross: bool = False

    def setup(self):
        cfg = self.config
        self.attention, self.attention_norm = Attention(cfg), norm(cfg)
        if self.cross:
            self.cross_attention, self.cross_attention_norm = Attention(cfg), norm(cfg)
        self.feed_forward, self.feed_forward_norm = FeedForward(cfg), norm(cfg)

    def __call__(
        self,
        x: Float[Array, "b t d"],
        places: Float[Array, "#b t d"],
        seen: Visible = ALL,
        memory: Float[Array, "b m d"] | None = None,
        memory_places: Float[Array, "b m d"] | None = None,
        memory_seen: Visible = ALL,
        dropout_key: Key[Array, ""] | None = None,
    ) -> Float[Array, "b t d"]:
        """The states after it; `places` are position vectors of x, `memory_places` of memory."""
        keys = (None,) * 6 if dropout_key is None else jax.random.split(dropout_key, 6)
        kept = lambda h, key: dropout(h, self.config.dropout, key)  # noqa: E731
        own = self.attention.keys_and_values(x, added=places)
        mixed = self.attention(x + places, own, seen, keys[0])
        x = self.attention_norm(x + kept(mixed, keys[1]))
        if self.cross:
            image = self.cross_attention.keys_and_values(memory, added=memory_places)
            mixed = self.cross_attention(x + places, image, memory_seen, keys[2])
            x = self.cross_attention_norm(x + kept(mixed, keys[3]))
        return self.feed_forward_norm(x + kept(self.feed_forward(x, keys[4]), keys[5]))


class DETR(Model):
    """Maps images to logits of the object that each query found (the last: none), and its box."""

    config: DETRConfig

    def setup(self):
        cfg = self.config
        self.backbone = CNN(cfg.backbone)
        self.projection = dense(cfg, cfg.width, True)
        normal = nn.initializers.normal(1.0)
        self.query_places = self.param("query_places", normal, (cfg.queries, cfg.width))
        if cfg.grid_positions == "learned":
            uniform, shape = nn.initializers.uniform(1.0), (LONGEST, cfg.width // 2)
            self.rows = self.param("row_places", uniform, shape)
            self.columns = self.param("column_places", uniform, shape)
        self.encoder = [Layer(cfg) for _ in range(cfg.layers)]
        self.decoder = [Layer(cfg.decoder, cross=True) for _ in range(cfg.decoder_layers)]
        self.decoder_norm = norm(cfg)
        self.classifier = dense(cfg, cfg.labels + 1, True)
        self.box = [dense(cfg, width, True) for width in (cfg.width, cfg.width, 4)]

    def __call__(
        self,
        images: Float[Array, "b h w c"],
        dropout_key: Key[Array, ""] | None = None,
        rows: Bool[Array, "b"] | None = None,
        real: Bool[Array, "b h w"] | None = None,
    ) -> dict[str, Float[Array, "..."]]:
        """`hidden` [b q d], `logits` [b q labels + 1], `boxes` [b q 4] of the last decoder layer.

        A box is the centre's column and row, width and height, as shares of the image.
        `layer_logits` and `layer_boxes` hold those of every decoder layer, the last included
        (Carion 2020, section 3.2). `real` is False at pixels that pad an image, which nothing
        attends to; images where `rows` is False are padding, and enter no running statistics.
        """
        cfg = self.config
        count = 1 + cfg.layers + cfg.decoder_layers
        keys = (None,) * count if dropout_key is None else jax.random.split(dropout_key, count)
        trained = None if cfg.frozen_norms else dropout_key
        found = self.backbone(images, trained, rows)["map"]
        if self.is_initializing():  # no parameter's shape depends on the image's
            found = found[:, :1, :1]
        b, h, w, _ = found.shape
        shown = jnp.ones((b, h, w), bool)
        if real is not None:  # the pixel at each position's upper left corner
            down, across = np.arange(h) * real.shape[1] // h, np.arange(w) * real.shape[2] // w
            shown = real[:, down][:, :, across]
        x = self.projection(found).reshape(b, h * w, cfg.width)
        places = self._places(shown).reshape(b, h * w, cfg.width).astype(x.dtype)
        seen = ALL if real is None else Visible(keys=shown.reshape(b, h * w))
        x = dropout(x, cfg.dropout, keys[0])
        for layer, key in zip(self.encoder, keys[1:], strict=False):
            x = layer(x, places, seen, dropout_key=key)
        own = self.query_places[None].astype(x.dtype)
        objects, states = jnp.zeros((b, cfg.queries, cfg.width), x.dtype), []
        for layer, key in zip(self.decoder, keys[1 + cfg.layers :], strict=True):
            objects = layer(objects, own, ALL, x, places, seen, key)
            states.append(self.decoder_norm(objects))
        states = jnp.stack(states)
        logits = self.classifier(states).astype(jnp.float32)
        boxes = states
        for i, layer in enumerate(self.box):
            boxes = layer(nn.relu(boxes) if i else boxes)
        boxes = nn.sigmoid(boxes.astype(jnp.float32))
        out = {"hidden": states[-1], "logits": logits[-1], "boxes": boxes[-1]}
        return out | {"layer_logits": logits, "layer_boxes": boxes}

    def _places(self, shown: Bool[Array, "b h w"]) -> Float[Array, "b h w d"]:
        """The position vectors of the feature map, half of each for the row, half for the column.

        Sine: sinusoids of 2 pi times the share of the real rows or columns; learned: learned
        vectors.
        """
        cfg, (b, h, w) = self.config, shown.shape
        if cfg.grid_positions == "learned":
            if max(h, w) > LONGEST:
                raise LabError(f"the image has {h} x {w} places, and {LONGEST} are learned")
            whole = jnp.broadcast_to(self.rows[:h, None], (h, w, cfg.width // 2))
            across = jnp.broadcast_to(self.columns[None, :w], whole.shape)
            return jnp.broadcast_to(jnp.concatenate([across, whole], -1), (b, h, w, cfg.width))
        parts = []
        for axis in (1, 2):
            place = jnp.cumsum(shown.astype(jnp.float32), axis=axis)
            last = jax.lax.slice_in_dim(place, place.shape[axis] - 1, None, axis=axis)
            share = place / (last + 1e-6) * (2 * np.pi)
            parts.append(sinusoids(share, cfg.width // 2))
        return jnp.concatenate(parts, axis=-1)


def example_inputs() -> tuple[Array, ...]:
    """The arguments of `init`, which takes the sizes from the config."""
    return (jnp.zeros((1, 1, 1, 1)),)


VIEW = "detr"  # the reader of its attention, in viewing/capture.py
CONFIG = DETRConfig
build = DETR
RULES = (
    *cnn.RULES,
    (r"(box_\d|projection)/kernel$|_places$", ()),
)
