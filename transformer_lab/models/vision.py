"""The Vision Transformer (Dosovitskiy 2021): an encoder over the patches of an image."""

from dataclasses import dataclass, replace

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from transformer_lab.errors import LabError
from transformer_lab.layers.basic import dense, norm
from transformer_lab.layers.config import CHOICES, StackConfig
from transformer_lab.layers.embedding import enter
from transformer_lab.layers.pooling import AttentionPool
from transformer_lab.layers.positions import PositionVectors
from transformer_lab.layers.stack import Stack
from transformer_lab.models.model import Model
from transformer_lab.ops.activations import ACTIVATIONS
from transformer_lab.ops.patches import grid_sinusoids, patch_grid, resize_positions, to_patches

OWN = {
    "positions": (*CHOICES["positions"], "sincos2d"),
    "pooling": ("class", "mean", "class_mean", "attention"),
    "distillation": ("none", "token", "heads"),
    "head": ("none", "classes"),
    "pre_logits_activation": tuple(ACTIVATIONS),
}


@dataclass(frozen=True)
class VisionConfig(StackConfig):
    """Settings of a stack over patches and the tokens before them; the defaults are ViT-B/16's."""

    layers: int = 12
    width: int = 768
    heads: int = 12
    feed_forward_width: int = 3072
    activation: str = "gelu"
    norm_place: str = "pre"
    dropout: float = 0.0
    positions: str = "learned"  # or sincos2d; those of a sequence count the patches row by row
    image_size: tuple[int, int] = (224, 224)  # height, width
    patch_size: tuple[int, int] = (16, 16)  # pixels of a patch, rows and columns
    channels: int = 3  # colours of an image: 3, or 1 for grey
    patch_bias: bool = True  # the patches' product adds a bias
    embedding_norm: bool = False  # a norm before the first layer, as in CLIP
    # class: a token of its own; mean: of the patches; class_mean: both, one after the other (Oquab
    # 2023); attention (Zhai 2022)
    pooling: str = "class"
    # token: a second token before the patches (Touvron 2021); heads: with its own classifier
    distillation: str = "none"
    pre_logits: int = 0  # width of a layer after pooling; 0: none
    pre_logits_activation: str = "tanh"  # after the layer before the logits
    head: str = "classes"  # classes; none: features for another head
    classes: int = 1000  # of the classifier

    def __post_init__(self):
        super().__post_init__()
        self.reads_both_ways("a stack over patches")
        for name in ("image_size", "patch_size"):
            if len(getattr(self, name)) != 2:
                raise LabError(f"model.{name} = {getattr(self, name)} must be (height, width)")
        patch_grid(self.image_size, self.patch_size)
        if min(self.channels, self.classes) < 1 or self.pre_logits < 0:
            raise LabError("model.channels and classes must be at least 1, pre_logits 0 or more")
        if self.positions == "sincos2d" and self.width % 4:
            raise LabError(f'model.width = {self.width}: positions = "sincos2d" needs fours')
        if self.distillation != "none" and self.pooling != "class":
            raise LabError(f'model.distillation = "{self.distillation}" needs pooling = "class"')
        if self.distillation == "heads" and (self.head == "none" or self.pre_logits):
            raise LabError('model.distillation = "heads" needs head = "classes", pre_logits = 0')

    def choices(self) -> dict[str, tuple[str, ...]]:
        return CHOICES | OWN

    @property
    def grid(self) -> tuple[int, int]:
        """The number of rows and columns of patches."""
        return patch_grid(self.image_size, self.patch_size)

    @property
    def extra(self) -> int:
        """The number of tokens before the patches."""
        return self.pooling.startswith("class") + (self.distillation != "none")

    @property
    def tokens(self) -> int:
        """The length of the sequence: patches and the tokens before them."""
        return self.extra + self.grid[0] * self.grid[1]


class Vision(Model):
    """Maps images to states of tokens and patches, pooled features, and logits of classes."""

    config: VisionConfig

    def setup(self):
        cfg = self.config
        self.patch_embedding = dense(cfg, cfg.width, cfg.patch_bias)
        init = nn.initializers.normal(cfg.init_std)
        names = ("class_token", "distillation_token")[: cfg.extra]
        self.first = [self.param(name, init, (cfg.width,)) for name in names]
        self.positions = PositionVectors(replace(cfg, max_length=cfg.tokens))
        if cfg.embedding_norm:
            self.embedding_norm = norm(cfg)
        self.encoder = Stack(cfg, cfg.layers)
        if cfg.pooling == "attention":
            self.pool = AttentionPool(cfg)
        if cfg.pre_logits:
            self.pre_logits = dense(cfg, cfg.pre_logits, True)
        if cfg.head == "classes":
            self.classifier = dense(cfg, cfg.classes, True)
        if cfg.distillation == "heads":
            self.distilled_classifier = dense(cfg, cfg.classes, True)

    def __call__(
        self,
        images: Float[Array, "b h w c"],
        dropout_key: Key[Array, ""] | None = None,
        rows: Bool[Array, "b"] | None = None,
    ) -> dict[str, Float[Array, "b ..."]]:
        """`hidden` [b t d], `features` [b d], and as configured `logits` [b classes].

        Images of another size are read with resized positions. With distillation heads there are
        `distilled` logits too, and without a dropout key, in evaluation, `logits` are the mean of
        both heads (Touvron 2021, section 4). `rows`, which marks real images, changes nothing here:
        no image sees another.
        """
        cfg = self.config
        if self.is_initializing():  # shapes are the config's, whatever the example
            images = jnp.zeros((1, *cfg.image_size, cfg.channels))
        keys = (None,) * 2 if dropout_key is None else jax.random.split(dropout_key)
        hidden = self._hidden(images, keys)
        features = {
            "class": lambda: hidden[:, 0],
            "mean": lambda: hidden.mean(axis=1),
            "class_mean": lambda: jnp.concatenate([hidden[:, 0], hidden[:, 1:].mean(axis=1)], 1),
            "attention": lambda: self.pool(hidden),
        }[cfg.pooling]()
        if cfg.pre_logits:
            features = ACTIVATIONS[cfg.pre_logits_activation](self.pre_logits(features))
        out = {"hidden": hidden, "features": features}
        if cfg.head == "classes":
            out["logits"] = self.classifier(features).astype(jnp.float32)
        if cfg.distillation == "heads":
            out["distilled"] = self.distilled_classifier(hidden[:, 1]).astype(jnp.float32)
            if dropout_key is None:
                out["logits"] = (out["logits"] + out["distilled"]) / 2
        return out

    def _hidden(self, images, keys):
        cfg = self.config
        if images.shape[3] != cfg.channels:
            raise LabError(
                f"an image has {images.shape[3]} channels, model.channels = {cfg.channels}"
            )
        patches = to_patches(images.astype(cfg.compute_dtype), cfg.patch_size)
        x = self.patch_embedding(patches)
        if cfg.extra:
            first = jnp.stack(self.first).astype(x.dtype)
            x = jnp.concatenate([jnp.broadcast_to(first, (len(x), *first.shape)), x], axis=1)
        vectors = self._vectors(patch_grid(images.shape[1:3], cfg.patch_size))
        norm = self.embedding_norm if cfg.embedding_norm else None
        x, added = enter(cfg, x, vectors, norm, keys[0])
        return self.encoder(x, dropout_key=keys[1], added=added)

    def _vectors(self, grid):
        """The position vectors [1, t, d] of a grid of patches; None if there are none. With
        sincos2d, the tokens before the patches get zeros."""
        cfg = self.config
        if cfg.positions == "sincos2d":
            vectors = grid_sinusoids(grid, cfg.width).astype(cfg.compute_dtype)
            return jnp.pad(vectors, ((cfg.extra, 0), (0, 0)))[None]
        vectors = self.positions(jnp.arange(cfg.tokens)[None])
        if vectors is None:
            return None
        return resize_positions(vectors[0], cfg.grid, grid, cfg.extra)[None]


def example_inputs() -> tuple[Array, ...]:
    """The arguments of `init`, which takes the image's size from the config."""
    return (jnp.zeros((1, 1, 1, 1)),)


VIEW = "vision"  # the reader of its attention, in viewing/capture.py
CONFIG = VisionConfig
build = Vision
STACKS = {"encoder": "layers"}
RULES = ((r"(patch_embedding|pre_logits|classifier)/kernel$|_token$", ()),)
