"""CLIP (Radford 2021) and SigLIP (Zhai 2023): an image tower and a text tower into one space."""

from dataclasses import dataclass, replace

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from transformer_lab.errors import LabError, chosen
from transformer_lab.layers.basic import dense
from transformer_lab.models import cnn, decoder, vision
from transformer_lab.models.cnn import CNN, CNNConfig
from transformer_lab.models.decoder import Decoder, DecoderConfig
from transformer_lab.models.model import Model
from transformer_lab.models.vision import Vision, VisionConfig
from transformer_lab.ops.contrastive import START, scale_of
from transformer_lab.ops.pooling import normalize

POOLS = ("eos", "highest", "last")
IMAGE_KINDS = ("vision", "cnn")


@dataclass(frozen=True)
class TwoTowersConfig:
    """Settings of the two towers; the defaults are those of CLIP ViT-B/32."""

    image: VisionConfig = VisionConfig(
        image_size=(224, 224),
        patch_size=(32, 32),
        layers=12,
        width=768,
        heads=12,
        feed_forward_width=3072,
        activation="gelu_quick",
        norm_epsilon=1e-5,
        patch_bias=False,
        embedding_norm=True,
        head="none",
    )
    text: DecoderConfig = DecoderConfig(
        layers=12,
        width=512,
        heads=8,
        feed_forward_width=2048,
        max_length=77,
        activation="gelu_quick",
        dropout=0.0,
    )
    projection: int | None = 512  # width of the common space; None: an image's features as they are
    text_bias: bool = False  # whether the text's projection has a bias
    # A text's vector: the state at its first end token, at its highest id (the first), or the last
    text_pool: str = "eos"
    eos_id: int = 1  # the tokenizer's end token
    scale: float = START  # the initial logarithm of the logits' scale, the inverse temperature
    largest_scale: float = 100.0  # 0: no bound
    bias: float | None = None  # the initial bias of the logits; None: they have none
    image_kind: str = "vision"  # or cnn: the image tower's settings are then `cnn`, not `image`
    cnn: CNNConfig = CNNConfig(  # CLIP's RN50, which needs projection = None
        block="bottleneck",
        stages=(3, 4, 6, 3),
        stem="deep",
        antialias=True,
        pooling="attention",
        head="none",
    )

    def __post_init__(self):
        chosen(self, "model", {"text_pool": POOLS, "image_kind": IMAGE_KINDS})
        if self.tower.head != "none":
            name = "image" if self.image_kind == "vision" else "cnn"
            raise LabError(f'model.{name}.head = "{self.tower.head}": a tower has none, use "none"')
        if self.largest_scale < 0 or (self.projection or 1) < 1:
            raise LabError("model.largest_scale must not be negative, model.projection at least 1")

    @property
    def tower(self) -> VisionConfig | CNNConfig:
        """The settings of the image tower, whichever kind it is."""
        return self.image if self.image_kind == "vision" else self.cnn

    @property
    def vocab_size(self) -> int | None:
        return self.text.vocab_size

    @property
    def dtype(self) -> str:
        """The type in which the text tower computes."""
        return self.text.dtype

    @property
    def max_length(self) -> int:
        """The most tokens of a text, with its start and end tokens."""
        return self.text.max_length

    @property
    def common_width(self) -> int:
        """The width of the vectors in the common space."""
        own = self.image.width if self.image_kind == "vision" else self.cnn.features
        return own if self.projection is None else self.projection


class TwoTowers(Model):
    """Maps images and texts to vectors of length 1, close together where image and text match.

    A text tower whose mask is "prefix" reads in both directions.
    """

    config: TwoTowersConfig

    def setup(self):
        cfg = self.config
        image, text = _labelled(cfg.image, "image_"), _labelled(cfg.text, "text_")
        self.image = Vision(image) if cfg.image_kind == "vision" else CNN(cfg.cnn)
        self.text = Decoder(text)
        if cfg.projection is not None:
            self.image_projection = dense(cfg.image, cfg.common_width, False)
        self.text_projection = dense(cfg.text, cfg.common_width, cfg.text_bias)
        self.scale = self.param("scale", nn.initializers.constant(cfg.scale), ())
        if cfg.bias is not None:
            self.bias = self.param("bias", nn.initializers.constant(cfg.bias), ())

    def __call__(
        self,
        images: Float[Array, "n h w c"],
        tokens: Int[Array, "m t"],
        dropout_key: Key[Array, ""] | None = None,
        seen: Bool[Array, "m t"] | None = None,
        rows: Bool[Array, "n"] | None = None,
    ) -> dict[str, Float[Array, "..."]]:
        """`image` [n d], `text` [m d], and the logits' `scale` and `bias`. Images where `rows` is
        False are padding, and enter no running statistics."""
        keys = (None, None) if dropout_key is None else jax.random.split(dropout_key)
        vectors = {
            "image": self.encode_images(images, keys[0], rows),
            "text": self.encode_texts(tokens, keys[1], seen),
        }
        return vectors | self.temperature()

    def temperature(self) -> dict[str, Float[Array, ""]]:
        """`scale` and `bias` of the logits, which are scale * image . text + bias."""
        cfg = self.config
        bias = jnp.zeros(()) if cfg.bias is None else self.bias
        return {"scale": scale_of(self.scale, cfg.largest_scale), "bias": bias}

    def encode_images(
        self,
        images: Float[Array, "n h w c"],
        dropout_key: Key[Array, ""] | None = None,
        rows: Bool[Array, "n"] | None = None,
    ) -> Float[Array, "n d"]:
        """The float32 vectors of the images, of length 1."""
        features = self.image(images, dropout_key=dropout_key, rows=rows)["features"]
        if self.config.projection is not None:
            features = self.image_projection(features)
        return normalize(features.astype(jnp.float32))

    def encode_texts(
        self,
        tokens: Int[Array, "m t"],
        dropout_key: Key[Array, ""] | None = None,
        seen: Bool[Array, "m t"] | None = None,
    ) -> Float[Array, "m d"]:
        """The float32 vectors of texts with start and end tokens, of length 1.

        A causal tower never reads padding after the end; one that reads in both directions does, as
        it was trained, unless `seen` hides it.
        """
        cfg = self.config
        both = jnp.ones(tokens.shape, bool) if cfg.text.mask == "prefix" else None
        states = self.text.states(tokens, dropout_key, prefix=both, real=seen)
        place = jnp.full(len(tokens), tokens.shape[1] - 1)
        if cfg.text_pool != "last":
            wanted = tokens == cfg.eos_id if cfg.text_pool == "eos" else tokens
            place = wanted.argmax(axis=1)  # the first of several
        pooled = jnp.take_along_axis(states, place[:, None, None], axis=1)[:, 0]
        return normalize(self.text_projection(pooled).astype(jnp.float32))


def _labelled(tower: VisionConfig | DecoderConfig, label: str) -> VisionConfig | DecoderConfig:
    """The tower with its experts labelled, so that their statistics name it (Mustafa 2022)."""
    return replace(tower, experts=replace(tower.experts, label=tower.experts.label or label))


def example_inputs() -> tuple[Array, ...]:
    """The arguments of a smallest call, for `init` and for shapes."""
    return (jnp.zeros((1, 1, 1, 1)), jnp.zeros((1, 2), jnp.int32))


VIEW = "two_towers"  # the reader of its attention, in viewing/capture.py
CONFIG = TwoTowersConfig
build = TwoTowers
RULES = (
    (r"(image|text)_projection/kernel$", ()),
    *decoder.RULES,
    *vision.RULES,
    *cnn.RULES,
)
