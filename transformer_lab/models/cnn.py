"""Convolutional nets: LeNet (LeCun 1998), residual nets (He 2016) and CLIP's (Radford 2021)."""

from dataclasses import dataclass, replace

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from transformer_lab.errors import LabError, chosen, fractions
from transformer_lab.layers.config import StackConfig
from transformer_lab.layers.pooling import MeanQueryPool
from transformer_lab.layers.told import BatchNorm
from transformer_lab.models.model import Model
from transformer_lab.models.vision import example_inputs as example_inputs

CHOICES = {
    "net": ("lenet", "resnet"),
    "block": ("basic", "bottleneck"),
    "stem": ("large", "small", "deep"),
    "pooling": ("mean", "attention"),
    "head": ("none", "classes"),
    "dtype": ("float32", "bfloat16"),
}
EXPANSION = {"basic": 1, "bottleneck": 4}
_kernel_init = nn.initializers.variance_scaling(2.0, "fan_out", "normal")  # He 2015, eq. 14


@dataclass(frozen=True)
class CNNConfig:
    """Settings of convolutional nets; the defaults are ResNet-18's. LeNet uses only the image size,
    channels, classes, head and dtype."""

    net: str = "resnet"  # resnet | lenet
    block: str = "basic"  # basic | bottleneck
    stages: tuple[int, ...] = (2, 2, 2, 2)  # blocks; later ones halve the image
    width: int = 64  # channels of the first stage; each later one doubles them
    stem_width: int = 0  # channels before the first stage; 0: width
    # large: 7x7 with stride 2, then pooling; small: 3x3 (He 2016, section 4.2); deep: 3x3 with
    # stride 2, 3x3, 3x3 and average pooling (Radford 2021, section 2.4, after He 2019)
    stem: str = "large"
    antialias: bool = False  # an average of 2x2 instead of a stride of 2 (Zhang 2019)
    pooling: str = "mean"  # or attention of the mean to all (Radford 2021, 2.4)
    pool_heads: int = 32  # heads of that attention, together as wide as its input
    pool_width: int = 1024  # width of the features that attention pooling gives
    momentum: float = 0.9  # the share of the old value in BatchNorm's running statistics
    norm_epsilon: float = 1e-5  # added to the variance
    image_size: tuple[int, int] = (224, 224)  # height, width
    channels: int = 3  # colours of an image: 3, or 1 for grey
    head: str = "classes"  # classes; none: features for another head
    classes: int = 1000  # of the classifier
    dtype: str = "float32"  # the compute type; parameters, statistics and loss are float32

    def __post_init__(self):
        chosen(self, "model", CHOICES)
        fractions(self, "model", "momentum", "norm_epsilon")
        sizes = (*self.stages, *self.image_size, self.width, self.channels, self.classes)
        sizes += (self.pool_heads, self.pool_width)
        if self.stem_width < 0:
            raise LabError(f"model.stem_width = {self.stem_width} must be 0 or more")
        if min(sizes) < 1 or not self.stages or len(self.image_size) != 2:
            raise LabError(
                "model.stages, width, image_size = (height, width), channels, classes, pool_heads "
                "and pool_width must be at least 1"
            )
        if self.pooling == "attention" and self.last_width % self.pool_heads:
            raise LabError(
                f"model.pool_heads = {self.pool_heads} does not divide the last stage's "
                f"{self.last_width} channels"
            )
        if self.net == "lenet" and min(self.image_size) < 12:
            raise LabError(f'model.image_size = {self.image_size}: net = "lenet" needs 12 or more')

    @property
    def last_width(self) -> int:
        """The number of channels of the last stage."""
        return self.width * 2 ** (len(self.stages) - 1) * EXPANSION[self.block]

    def map_size(self, size: tuple[int, int]) -> tuple[int, int]:
        """Rows and columns of a residual net's last map, for images of this height and width."""
        stem = 0 if self.stem == "small" else 2
        for halving in range(stem + len(self.stages) - 1):
            # Strides pad, so that an odd side is rounded up; averages of 2 x 2 cut the rest off.
            averaged = self.antialias if halving >= stem else (self.stem == "deep" and halving)
            size = tuple(side // 2 if averaged else -(-side // 2) for side in size)
        return size

    @property
    def features(self) -> int:
        """The width of the feature vector of an image."""
        if self.net == "lenet":
            return 84
        return self.pool_width if self.pooling == "attention" else self.last_width

    @property
    def pool(self) -> StackConfig:
        """The settings of the attention that pools the last stage."""
        head_dim = self.last_width // self.pool_heads
        return StackConfig(width=self.pool_width, heads=self.pool_heads, head_dim=head_dim,
                           dtype=self.dtype)  # fmt: skip


class ReadsMaps:
    """What the settings of models share that read the last map of a residual net, `backbone`."""

    backbone: CNNConfig

    def check_backbone(self) -> None:
        """Raises: LabError if the net has no map, or a head of its own."""
        if self.backbone.net != "resnet" or self.backbone.head != "none":
            raise LabError('model.backbone needs net = "resnet" and head = "none"')

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width of the images that a run is made for."""
        return self.backbone.image_size

    @property
    def channels(self) -> int:
        """The numbers of a pixel, such as 3 for RGB."""
        return self.backbone.channels

    def of_size(self, size: tuple[int, int], labels: int) -> "ReadsMaps":
        """The same settings for images of this height and width, and so many classes."""
        return replace(self, labels=labels, backbone=replace(self.backbone, image_size=size))


class ConvNorm(nn.Module):
    """A convolution without bias, padded so that stride 1 keeps the size, followed by BatchNorm."""

    config: CNNConfig
    features: int
    size: int
    step: int = 1

    @nn.compact
    def __call__(
        self, x: Float[Array, "b h w c"], training: bool, rows: Bool[Array, "b"] | None
    ) -> Float[Array, "b i j d"]:
        cfg = self.config
        dtype, pad = jnp.dtype(cfg.dtype), self.size // 2
        x = nn.Conv(
            self.features,
            (self.size, self.size),
            self.step,
            [(pad, pad), (pad, pad)],
            use_bias=False,
            dtype=dtype,
            kernel_init=_kernel_init,
            name="conv",
        )(x)
        return BatchNorm(cfg.momentum, cfg.norm_epsilon, dtype, name="norm")(x, training, rows)


class Residual(nn.Module):
    """relu(x + f(x)), f two convolutions, or three with the middle one narrow (He 2016, figure 5).

    The stride is that of the 3x3 convolution; where the shape changes, x passes a 1x1 convolution.
    With antialiasing, an average replaces the stride: after the 3x3, and before the 1x1.
    """

    config: CNNConfig
    width: int
    step: int

    @nn.compact
    def __call__(
        self, x: Float[Array, "b h w c"], training: bool, rows: Bool[Array, "b"] | None
    ) -> Float[Array, "b i j d"]:
        cfg = self.config
        out = self.width * EXPANSION[cfg.block]
        step = 1 if cfg.antialias else self.step
        average = lambda x: mean_pool(x, self.step) if cfg.antialias else x  # noqa: E731
        sizes = {
            "basic": [(self.width, 3, step), (out, 3, 1)],
            "bottleneck": [(self.width, 1, 1), (self.width, 3, step), (out, 1, 1)],
        }[cfg.block]
        h = x
        for i, size in enumerate(sizes):
            if i:
                h = nn.relu(h)
            if i == len(sizes) - 1:
                h = average(h)
            h = ConvNorm(cfg, *size, name=f"part_{i}")(h, training, rows)
        if x.shape[-1] != out or self.step != 1:
            x = ConvNorm(cfg, out, 1, step, name="shortcut")(average(x), training, rows)
        return nn.relu(x + h)


def mean_pool(x: Float[Array, "b h w c"], step: int) -> Float[Array, "b i j c"]:
    """The means of squares of step x step pixels; what is left over at the edges is cut off."""
    return x if step == 1 else nn.avg_pool(x, (step, step), (step, step))


class CNN(Model):
    """Maps images to features and logits of classes; residual blocks are layer_0, layer_1, ..."""

    config: CNNConfig

    @nn.compact
    def __call__(
        self,
        images: Float[Array, "b h w c"],
        dropout_key: Key[Array, ""] | None = None,
        rows: Bool[Array, "b"] | None = None,
    ) -> dict[str, Float[Array, "b ..."]]:
        """`features` [b d] and, with a head, `logits` [b classes]; of residual nets also `map`
        [b h w c], what they are pooled of. A key means training."""
        cfg = self.config
        if self.is_initializing():  # shapes are the config's, whatever the example
            images = jnp.zeros((1, *cfg.image_size, cfg.channels))
        x = images.astype(jnp.dtype(cfg.dtype))
        if cfg.net == "lenet":
            out = {"features": self._lenet(x)}
        else:
            out = self._resnet(x, dropout_key is not None, rows)
        features = out["features"]
        if cfg.head == "classes":
            logits = nn.Dense(cfg.classes, dtype=x.dtype, name="classifier")(features)
            out["logits"] = logits.astype(jnp.float32)
        return out

    def _lenet(self, x):
        for i, (features, padding) in enumerate(((6, "SAME"), (16, "VALID"))):
            conv = nn.Conv(features, (5, 5), padding=padding, dtype=x.dtype, name=f"conv_{i}")
            x = nn.max_pool(nn.relu(conv(x)), (2, 2), (2, 2))
        x = x.reshape(len(x), -1)
        for i, features in enumerate((120, 84)):
            x = nn.relu(nn.Dense(features, dtype=x.dtype, name=f"hidden_{i}")(x))
        return x

    def _resnet(self, x, training, rows):
        cfg = self.config
        width = cfg.stem_width or cfg.width
        half = width // 2
        stem = {
            "large": {"stem": (width, 7, 2)},
            "small": {"stem": (width, 3, 1)},
            "deep": {"stem_0": (half, 3, 2), "stem_1": (half, 3, 1), "stem_2": (width, 3, 1)},
        }[cfg.stem]
        for name, size in stem.items():
            x = nn.relu(ConvNorm(cfg, *size, name=name)(x, training, rows))
        if cfg.stem == "large":
            x = nn.max_pool(x, (3, 3), (2, 2), ((1, 1), (1, 1)))
        elif cfg.stem == "deep":
            x = mean_pool(x, 2)
        layers = [(s, i) for s, blocks in enumerate(cfg.stages) for i in range(blocks)]
        for number, (stage, i) in enumerate(layers):
            step = 2 if stage and i == 0 else 1
            block = Residual(cfg, cfg.width * 2**stage, step, name=f"layer_{number}")
            x = block(x, training, rows)
        features = x.mean(axis=(1, 2))
        if cfg.pooling == "attention":
            features = MeanQueryPool(cfg.pool, name="pool")(x.reshape(len(x), -1, x.shape[-1]))
        return {"features": features, "map": x}


CONFIG = CNNConfig
build = CNN
RULES = (
    (r"conv\w*/kernel$", (None, None, None, "fsdp")),
    (r"(hidden_\d|classifier)/kernel$", ()),
)
