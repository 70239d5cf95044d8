"""A detector without a set: each cell of the image's grid finds the object whose centre is in it.

The plain convolutional detector beside DETR, after Redmon 2016 (section 2, one box a cell).
"""

from dataclasses import dataclass

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from transformer_lab.errors import at_least
from transformer_lab.models.cnn import CNN, CNNConfig, ReadsMaps
from transformer_lab.models.cnn import RULES as CNN_RULES
from transformer_lab.models.model import Model
from transformer_lab.models.vision import example_inputs as example_inputs


@dataclass(frozen=True)
class CellsConfig(ReadsMaps):
    """Settings of the net, and of the two convolutions that read its last map."""

    backbone: CNNConfig = CNNConfig(head="none")
    width: int = 256  # channels between the two convolutions
    labels: int = 91  # classes of objects; the classifier has one output more, for none

    def __post_init__(self):
        at_least(self, "model", 1, "width", "labels")
        self.check_backbone()

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of cells."""
        return self.backbone.map_size(self.image_size)

    @property
    def queries(self) -> int:
        """The number of cells."""
        return self.grid[0] * self.grid[1]


class Cells(Model):
    """Maps images to the class (the last: none) and the box that each cell found."""

    config: CellsConfig

    @nn.compact
    def __call__(
        self,
        images: Float[Array, "b h w c"],
        dropout_key: Key[Array, ""] | None = None,
        rows: Bool[Array, "b"] | None = None,
        real: Bool[Array, "b h w"] | None = None,
    ) -> dict[str, Float[Array, "..."]]:
        """`logits` [b cells labels + 1] and `boxes` [b cells 4], cells row by row, and both again
        as those of a single layer. A box's centre is in its cell, which is a share of the padded
        image; the box is in shares of the real one."""
        cfg = self.config
        x = CNN(cfg.backbone, name="backbone")(images, dropout_key, rows)["map"]
        if self.is_initializing():
            x = x[:1]
        x = nn.relu(nn.Conv(cfg.width, (3, 3), dtype=x.dtype, name="conv")(x))
        x = nn.Conv(cfg.labels + 5, (1, 1), dtype=x.dtype, name="out")(x).astype(jnp.float32)
        b, h, w, _ = x.shape
        logits = x[..., :-4].reshape(b, h * w, cfg.labels + 1)
        place = jnp.stack(jnp.meshgrid(jnp.arange(w), jnp.arange(h)), axis=-1)
        shares = nn.sigmoid(x[..., -4:])
        centre = (place + shares[..., :2]) / jnp.array([w, h])
        if real is not None:  # the padded image, measured by the real one
            sides = jnp.stack([real.any(axis=1).sum(axis=1), real.any(axis=2).sum(axis=1)], axis=-1)
            whole = jnp.array([real.shape[2], real.shape[1]])
            centre = centre * (whole / jnp.maximum(sides, 1))[:, None, None]
        boxes = jnp.concatenate([centre, shares[..., 2:]], axis=-1).reshape(b, h * w, 4)
        out = {"logits": logits, "boxes": boxes}
        return out | {"layer_logits": logits[None], "layer_boxes": boxes[None]}


CONFIG = CellsConfig
build = Cells
RULES = CNN_RULES
