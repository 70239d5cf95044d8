"""The Swin Transformer (Liu 2021): attention within windows of an image that shift by layers."""

from dataclasses import dataclass, replace
from functools import cached_property

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from transformer_lab.errors import LabError, at_least, chosen, fractions
from transformer_lab.layers.attention import Attention
from transformer_lab.layers.basic import FeedForward, dense, norm
from transformer_lab.layers.config import CHOICES, StackConfig
from transformer_lab.models.model import Model
from transformer_lab.models.vision import example_inputs as example_inputs
from transformer_lab.ops.dropout import drop_path, dropout
from transformer_lab.ops.patches import patch_grid, to_patches
from transformer_lab.ops.visibility import ALL, Visible

OWN = {
    "positions": ("none", "learned"),
    "window_bias": ("table", "log"),
    "norm_place": ("pre", "after"),
    "head": ("none", "classes"),
}
OUTER_EPSILON = 1e-5  # epsilon of the norms between the stages, whatever the layers' is
COSINE_START, COSINE_MOST = 10.0, 100.0  # first and greatest scale of cosines (Liu 2022, 3.2)
LOG_HIDDEN, LOG_RANGE, LOG_GAIN = 512, 8.0, 16.0  # for window_bias = "log" (Liu 2022, section 3.3)


@dataclass(frozen=True)
class SwinConfig:
    """The defaults are those of Swin-T; each later stage has half the side and twice the width."""

    image_size: tuple[int, int] = (224, 224)  # height, width
    patch_size: tuple[int, int] = (4, 4)  # pixels of a patch, rows and columns
    channels: int = 3  # colours of an image: 3, or 1 for grey
    width: int = 96  # channels of the first stage
    stages: tuple[int, ...] = (2, 2, 6, 2)  # layers; every second one's windows are shifted
    stage_heads: tuple[int, ...] = (3, 6, 12, 24)  # attention heads of each stage
    window: int = 7  # patches on a side of the square in which all attend to all
    feed_forward_ratio: float = 4.0  # hidden units divided by the width
    activation: str = "gelu"  # of the feed-forward
    positions: str = "none"  # learned: a vector is added to each patch before the first layer
    window_bias: str = "table"  # a parameter a distance; log: a small net of its log (Swin v2)
    cosine_attention: bool = False  # scores are scaled cosines (Swin v2)
    norm_place: str = "pre"  # after: behind the sub-layer, before the residual is added (Swin v2)
    norm_epsilon: float = 1e-5  # added to the variance
    qkv_bias: bool = True  # the products that make queries, keys and values add a bias
    dropout: float = 0.0  # rate, of sub-layers' outputs
    attention_dropout: float = 0.0  # rate, of attention weights
    drop_path: float = 0.1  # the last layer's rate; it grows by equal steps from 0 in the first
    head: str = "classes"  # classes; none: features for another head
    classes: int = 1000  # of the classifier
    kernel_init: str = "normal"  # normal | xavier_uniform
    init_std: float = 0.02  # of kernel_init = normal
    dtype: str = "float32"  # the compute type; parameters, norms, softmax and loss are float32

    def __post_init__(self):
        shared = {name: CHOICES[name] for name in ("activation", "kernel_init", "dtype")}
        chosen(self, "model", shared | OWN)
        rates = "dropout", "attention_dropout", "drop_path"
        fractions(self, "model", "norm_epsilon", *rates)
        at_least(self, "model", 1, "width", "channels", "window", "classes")
        counts = *self.stages, *self.stage_heads
        if len(self.stages) != len(self.stage_heads) or min(counts, default=0) < 1:
            raise LabError(
                f"model.stages = {self.stages} and model.stage_heads = {self.stage_heads} must "
                "have a number of layers and one of heads for each stage"
            )
        for stage in range(len(self.stages)):
            heads = self.stage_heads[stage]
            if (width := self.width << stage) % heads:
                raise LabError(
                    f"model.stage_heads = {self.stage_heads}: {heads} does not "
                    f"divide the width {width} of stage {stage}"
                )
        if min(self.grids[-1]) < self.window:
            raise LabError(
                f"model.window = {self.window} is larger than the last stage's "
                f"{self.grids[-1][0]}x{self.grids[-1][1]} places: choose a smaller window, fewer "
                "stages, smaller patches or larger images"
            )

    @cached_property
    def grids(self) -> list[tuple[int, int]]:
        """The (rows, columns) of positions in each stage."""
        found = [patch_grid(self.image_size, self.patch_size)]
        for _ in self.stages[1:]:  # 2 x 2 positions become one; odd sides are padded
            found.append((-(-found[-1][0] // 2), -(-found[-1][1] // 2)))
        return found

    @property
    def features(self) -> int:
        """The width of the feature vector of an image."""
        return self.width << (len(self.stages) - 1)

    @property
    def layers(self) -> int:
        """The number of layers in all stages together."""
        return sum(self.stages)

    def stage(self, number: int) -> StackConfig:
        """The settings of the layers in the stage with this number, from 0."""
        width, heads = self.width << number, self.stage_heads[number]
        return StackConfig(
            layers=self.layers,
            width=width,
            heads=heads,
            head_dim=width // heads,
            feed_forward_width=int(self.feed_forward_ratio * width),
            activation=self.activation,
            norm_epsilon=self.norm_epsilon,
            positions="none",
            qkv_bias=self.qkv_bias,
            scale_attention=not self.cosine_attention,
            dropout=self.dropout,
            attention_dropout=self.attention_dropout,
            kernel_init=self.kernel_init,
            init_std=self.init_std,
            dtype=self.dtype,
        )


class WindowAttention(Attention):
    """Attention within windows, with a bias for each query-key distance (Liu 2021, eq. 4)."""

    window: int = 7
    bias: str = "table"
    cosine: bool = False

    def setup(self):
        super().setup()
        heads, distances = self.config.heads, (2 * self.window - 1) ** 2
        if self.bias == "table":
            init = nn.initializers.truncated_normal(0.02)
            self.table = self.param("bias_table", init, (distances, heads))
        else:
            self.hidden = dense(self.config, LOG_HIDDEN, True)
            self.heads = dense(self.config, heads, False)
        if self.cosine:
            init = nn.initializers.constant(np.log(COSINE_START))
            self.scale = self.param("cosine_scale", init, (heads,))

    def biases(self) -> Float[Array, "1 n t t"]:
        """The scores' biases [1, heads, queries, keys]; positions of a window go row by row."""
        apart, index = _distances(self.window)
        table = self.table if self.bias == "table" else self._by_logarithm(apart)
        return jnp.moveaxis(table[index], -1, 0)[None]

    def _by_logarithm(self, apart):
        span = np.maximum(apart.max(), 1)
        places = np.sign(apart) * np.log2(1 + LOG_RANGE * np.abs(apart) / span) / np.log2(LOG_RANGE)
        hidden = nn.relu(self.hidden(jnp.asarray(places, self.config.compute_dtype)))
        return LOG_GAIN * nn.sigmoid(self.heads(hidden).astype(jnp.float32))

    def _queries(self, x, places):
        query = super()._queries(x, places)
        if not self.cosine:
            return query
        scale = jnp.exp(jnp.minimum(self.scale, np.log(COSINE_MOST)))
        return _unit(query) * scale[:, None, None].astype(query.dtype)

    def keys_and_values(self, x, positions=None):
        key, value = super().keys_and_values(x, positions)
        return (_unit(key) if self.cosine else key), value


def _unit(x):
    square = jnp.square(x.astype(jnp.float32)).sum(axis=-1, keepdims=True)
    return (x * jax.lax.rsqrt(jnp.maximum(square, 1e-12))).astype(x.dtype)


def _distances(window: int) -> tuple[Int[np.ndarray, "d 2"], Int[np.ndarray, "t t"]]:
    """All distances (down, across) within a window, from the smallest ((-1, -1) to (1, 1) for a
    window of 2), and the index among them of each query's distance to each key."""
    places = np.indices((window, window)).reshape(2, -1)
    down, across = places[:, :, None] - places[:, None, :] + window - 1
    side = 2 * window - 1
    every = np.indices((side, side)).reshape(2, -1).T - window + 1
    return every, down * side + across


class Layer(nn.Module):
    """Windowed attention and feed-forward, each with norm and residual (Liu 2021, eq. 3)."""

    config: SwinConfig
    stage: int
    shifted: bool
    drop_rate: float

    def setup(self):
        cfg, own = self.config, self.config.stage(self.stage)
        self.attention = WindowAttention(own, cfg.window, cfg.window_bias, cfg.cosine_attention)
        self.attention_norm, self.feed_forward_norm = norm(own), norm(own)
        self.feed_forward = FeedForward(own)

    def __call__(
        self, x: Float[Array, "b h w d"], dropout_key: Key[Array, ""] | None = None
    ) -> Float[Array, "b h w d"]:
        keys = (None,) * 4 if dropout_key is None else jax.random.split(dropout_key, 4)
        x = self._add(x, lambda h: self._attend(h, keys[0]), self.attention_norm, keys[1])
        b, h, w, d = x.shape
        forward = lambda y: self.feed_forward(y.reshape(b, h * w, d), keys[2]).reshape(x.shape)  # noqa: E731
        return self._add(x, forward, self.feed_forward_norm, keys[3])

    def _add(self, x, sublayer, norm_layer, key):
        before = self.config.norm_place == "pre"
        out = sublayer(norm_layer(x)) if before else norm_layer(sublayer(x))
        return x + drop_path(dropout(out, self.config.dropout, key), self.drop_rate, key)

    def _attend(self, x, key):
        """Attention in windows, after padding with zeros and a shift by half a window if asked for;
        what the shift brings together from opposite edges does not see each other."""
        b, h, w, d = x.shape
        side = self.config.window
        shift = side // 2 if self.shifted and min(h, w) > side else 0
        x = jnp.pad(x, ((0, 0), (0, -h % side), (0, -w % side), (0, 0)))
        x = jnp.roll(x, (-shift, -shift), axis=(1, 2))
        rows, columns = x.shape[1] // side, x.shape[2] // side
        parted = x.reshape(b, rows, side, columns, side, d).swapaxes(2, 3)
        seen = ALL
        if shift:
            regions = jnp.tile(_regions(rows, columns, side, shift), (b, 1))
            seen = Visible(query_segments=regions, key_segments=regions)
        windows = parted.reshape(b * rows * columns, side * side, d)
        out = self.attention(windows, None, seen, key, None, self.attention.biases())
        out = out.reshape(b, rows, columns, side, side, d).swapaxes(2, 3).reshape(x.shape)
        return jnp.roll(out, (shift, shift), axis=(1, 2))[:, :h, :w]


def _regions(rows: int, columns: int, side: int, shift: int) -> Int[np.ndarray, "n t"]:
    """From which region of the image each position of each window came (Liu 2021, figure 4)."""

    def along(windows):
        place = np.arange(windows * side)
        return (place >= (windows - 1) * side).astype(int) + (place >= windows * side - shift)

    regions = 1 + 3 * along(rows)[:, None] + along(columns)
    parted = regions.reshape(rows, side, columns, side).swapaxes(1, 2)
    return parted.reshape(rows * columns, side * side).astype(np.int32)


class Swin(Model):
    """Maps images to states of the last stage's positions, their mean, and logits of classes.

    Its cost grows as the number of patches, since windows have one size in all stages.
    """

    config: SwinConfig

    def setup(self):
        cfg = self.config
        first = cfg.stage(0)
        self.patch_embedding = dense(first, cfg.width, True)
        self.embedding_norm = norm(replace(first, norm_epsilon=OUTER_EPSILON))
        if cfg.positions == "learned":
            places = cfg.grids[0][0] * cfg.grids[0][1]
            init = nn.initializers.normal(cfg.init_std)
            self.positions = self.param("positions", init, (places, cfg.width))
        self.layer = [
            Layer(cfg, stage, i % 2 == 1, cfg.drop_path * number / max(cfg.layers - 1, 1))
            for number, (stage, i) in enumerate(
                (s, i) for s, layers in enumerate(cfg.stages) for i in range(layers)
            )
        ]
        later = [cfg.stage(s) for s in range(1, len(cfg.stages))]
        self.merge_norm = [norm(replace(stage, norm_epsilon=OUTER_EPSILON)) for stage in later]
        self.merge = [dense(stage, stage.width, False) for stage in later]
        self.final_norm = norm(cfg.stage(len(cfg.stages) - 1))
        if cfg.head == "classes":
            self.classifier = dense(first, cfg.classes, True)

    def __call__(
        self,
        images: Float[Array, "b h w c"],
        dropout_key: Key[Array, ""] | None = None,
        rows: Bool[Array, "b"] | None = None,
    ) -> dict[str, Float[Array, "b ..."]]:
        """`hidden` [b t d] of the last stage, `features` [b d], with a head `logits` [b classes].

        `rows`, which marks real images, changes nothing here: no image sees another.
        """
        cfg = self.config
        if self.is_initializing():  # shapes are the config's, whatever the example
            images = jnp.zeros((1, *cfg.image_size, cfg.channels))
        if images.shape[1:] != (*cfg.image_size, cfg.channels):
            raise LabError(
                f"an image is of {images.shape[1:]}, the model of model.image_size = "
                f"{cfg.image_size} and model.channels = {cfg.channels}"
            )
        keys = (None,) * (1 + cfg.layers)
        if dropout_key is not None:
            keys = jax.random.split(dropout_key, 1 + cfg.layers)
        patches = to_patches(images.astype(jnp.dtype(cfg.dtype)), cfg.patch_size)
        x = self.embedding_norm(self.patch_embedding(patches))
        if cfg.positions == "learned":
            x = x + self.positions.astype(x.dtype)
        x = dropout(x, cfg.dropout, keys[0]).reshape(len(x), *cfg.grids[0], cfg.width)
        ends = np.cumsum(cfg.stages)
        for number, layer in enumerate(self.layer):
            x = layer(x, keys[1 + number])
            if number + 1 in ends[:-1]:
                stage = int(np.searchsorted(ends, number + 1))
                x = self.merge[stage](self.merge_norm[stage](_neighbours(x)))
        hidden = self.final_norm(x.reshape(len(x), -1, x.shape[-1]))
        out = {"hidden": hidden, "features": hidden.mean(axis=1)}
        if cfg.head == "classes":
            out["logits"] = self.classifier(out["features"]).astype(jnp.float32)
        return out


def _neighbours(x: Float[Array, "b h w d"]) -> Float[Array, "b i j e"]:
    """Joins 2 x 2 positions into one of four times the width, column by column (Liu 2021, section
    3.1); odd sides are padded with zeros."""
    x = jnp.pad(x, ((0, 0), (0, x.shape[1] % 2), (0, x.shape[2] % 2), (0, 0)))
    b, h, w, d = x.shape
    squares = x.reshape(b, h // 2, 2, w // 2, 2, d).transpose(0, 1, 3, 4, 2, 5)
    return squares.reshape(b, h // 2, w // 2, 4 * d)


def training_flops(config: SwinConfig, length: int | None = None) -> float:
    """FLOPs of a training step for each patch of an image: three times the forward pass of its
    products, the scores within windows included (Liu 2021, eq. 2). `length` is ignored."""
    grids = config.grids
    total = grids[0][0] * grids[0][1] * config.width * np.prod(config.patch_size) * config.channels
    for number, (layers, grid) in enumerate(zip(config.stages, grids, strict=True)):
        stage, side = config.stage(number), config.window
        places = grid[0] * grid[1]
        padded = -(-grid[0] // side) * -(-grid[1] // side) * side**2
        attention = padded * (4 * stage.width**2 + 2 * side**2 * stage.width)
        total += layers * (attention + places * 2 * stage.width * stage.feed_forward_width)
        if number:
            total += places * 2 * stage.width**2
    if config.head == "classes":
        total += config.features * config.classes
    return 6.0 * float(total) / (grids[0][0] * grids[0][1])


CONFIG = SwinConfig
build = Swin
RULES = (
    (r"merge_\d+/kernel$", ("fsdp", "tensor")),
    (r"(patch_embedding|classifier|attention/heads|attention/hidden)/kernel$|bias_table$", ()),
    (r"^positions$|cosine_scale$", ()),
)
