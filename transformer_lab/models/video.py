"""The Video Vision Transformer (Arnab 2021): an encoder over the tubelets of a clip."""

from dataclasses import dataclass, fields, replace

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from transformer_lab.errors import LabError, at_least
from transformer_lab.layers.basic import dense
from transformer_lab.layers.config import CHOICES
from transformer_lab.layers.embedding import enter
from transformer_lab.layers.positions import PositionVectors
from transformer_lab.layers.stack import Stack
from transformer_lab.models.model import Model
from transformer_lab.models.vision import Vision, VisionConfig
from transformer_lab.ops.patches import to_groups

OWN = {
    "positions": CHOICES["positions"],
    "time": ("factorised", "joint"),
    "pooling": ("class", "mean", "attention"),
    "distillation": ("none",),
}


@dataclass(frozen=True)
class VideoConfig(VisionConfig):
    """Settings of the spatial stage, which are a Vision Transformer's, and of time beside them; the
    defaults are those of the factorised encoder of ViViT-B/16x2 (Arnab 2021, section 4.1)."""

    frames: int = 32  # of a clip
    tubelet: int = 2  # frames of a tubelet, whose pixels become one token
    # factorised: a stack over each group of `tubelet` frames, then one over the groups' vectors
    # (Arnab 2021, model 2); joint: one stack, in which all tubelets attend to all (model 1)
    time: str = "factorised"
    temporal_layers: int = 4  # of the stack over the groups; 0: the mean of their vectors

    def __post_init__(self):
        super().__post_init__()
        at_least(self, "model", 1, "frames", "tubelet")
        at_least(self, "model", 0, "temporal_layers")
        if self.frames % self.tubelet:
            raise LabError(f"model.frames = {self.frames} is no multiple of model.tubelet")
        if self.pre_logits:
            raise LabError("model.pre_logits: a model of clips has no such layer, use 0")

    def choices(self) -> dict[str, tuple[str, ...]]:
        return super().choices() | OWN

    @property
    def groups(self) -> int:
        """Groups of `tubelet` frames in a clip."""
        return self.frames // self.tubelet

    @property
    def spatial(self) -> VisionConfig:
        """The settings of the stack over tubelets, which reads a group of frames as one image with
        the channels of all its frames, and with joint attention all groups below each other."""
        own = {field.name: getattr(self, field.name) for field in fields(VisionConfig)}
        height, width = self.image_size
        size = height * (self.groups if self.time == "joint" else 1), width
        form = {"image_size": size, "channels": self.channels * self.tubelet, "head": "none"}
        return VisionConfig(**own | form)


class Video(Model):
    """Maps clips to a vector of each group of frames, features of the clip, and logits of classes.

    The linear map of a tubelet's pixels is a convolution in three dimensions whose stride is its
    kernel's size (Arnab 2021, section 3.2); here it is the Vision Transformer's own map of patches.
    """

    config: VideoConfig

    def setup(self):
        cfg = self.config
        self.spatial = Vision(cfg.spatial)
        if cfg.time == "factorised" and cfg.temporal_layers:
            if cfg.pooling == "class":
                init = nn.initializers.normal(cfg.init_std)
                self.temporal_token = self.param("temporal_token", init, (cfg.width,))
            stage = replace(cfg, max_length=1 + cfg.groups)
            self.temporal_positions = PositionVectors(stage)
            self.temporal = Stack(stage, cfg.temporal_layers)
        if cfg.head == "classes":
            self.classifier = dense(cfg, cfg.classes, True)

    def __call__(
        self,
        images: Float[Array, "b f h w c"],
        dropout_key: Key[Array, ""] | None = None,
        rows: Bool[Array, "b"] | None = None,
    ) -> dict[str, Float[Array, "b ..."]]:
        """`features` [b d], as configured `logits` [b classes], and with factorised attention
        `groups` [b g d], the spatial stage's vector of each group of frames.

        `rows`, which marks real clips, changes nothing here: no clip sees another.
        """
        cfg = self.config
        if self.is_initializing():  # one group, from which all shapes of parameters follow
            images = jnp.zeros((1, cfg.tubelet, *cfg.image_size, cfg.channels))
        elif images.ndim != 5 or images.shape[1] != cfg.frames:
            raise LabError(f"a clip has {cfg.frames} frames (model.frames), got {images.shape}")
        keys = (None,) * 2 if dropout_key is None else jax.random.split(dropout_key)
        groups = to_groups(images, cfg.tubelet)
        b, g, h, w, c = groups.shape
        if cfg.time == "joint":
            out = {"features": self.spatial(groups.reshape(b, g * h, w, c), keys[0])["features"]}
        else:
            vectors = self.spatial(groups.reshape(b * g, h, w, c), keys[0])["features"]
            vectors = vectors.reshape(b, g, cfg.width)
            out = {"groups": vectors, "features": self._over_time(vectors, keys[1])}
        if cfg.head == "classes":
            out["logits"] = self.classifier(out["features"]).astype(jnp.float32)
        return out

    def _over_time(self, x, key):
        """Features [b d] of the groups' vectors [b g d]."""
        cfg = self.config
        if not cfg.temporal_layers:
            return x.mean(axis=1)
        if cfg.pooling == "class":
            first = jnp.broadcast_to(self.temporal_token.astype(x.dtype), x[:, :1].shape)
            x = jnp.concatenate([first, x], axis=1)
        keys = (None,) * 2 if key is None else jax.random.split(key)
        vectors = self.temporal_positions(jnp.arange(x.shape[1])[None])
        x, added = enter(cfg, x, vectors, None, keys[0])
        x = self.temporal(x, dropout_key=keys[1], added=added)
        return x[:, 0] if cfg.pooling == "class" else x.mean(axis=1)


def example_inputs() -> tuple[Array, ...]:
    """The arguments of `init`, which takes the clip's size from the config."""
    return (jnp.zeros((1, 1, 1, 1, 1)),)


CONFIG = VideoConfig
build = Video
STACKS = {}  # which stacks there are depends on the config: all is traced, and counted
