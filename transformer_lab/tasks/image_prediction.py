"""Images from images: through a few codes (VQ-VAE), or larger than they were (super-resolution)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from transformer_lab.data.images import pixels
from transformer_lab.errors import at_least
from transformer_lab.models.making import ImageMaker
from transformer_lab.ops.image_quality import WINDOW, psnr, ssim
from transformer_lab.ops.losses import Pair, masked_sum
from transformer_lab.tasks import pictures
from transformer_lab.tasks.base import Batch, Params, Place, Scores


@dataclass(frozen=True)
class ImagePredictionConfig:
    """Settings of the prediction of images, the config section `task`."""

    shrink: int = 1  # images are given this many times smaller, and enlarged again (bicubic)
    samples: int = 8  # images shown at the end: as they are given, made, and wanted

    def __post_init__(self):
        at_least(self, "task", 1, "shrink")
        at_least(self, "task", 0, "samples")


SECTIONS = {"task": ImagePredictionConfig, **pictures.IMAGES}


class ImagePrediction(pictures.OnImages):
    """Makes images from what is given of them: themselves, or smaller copies.

    A model for smaller copies makes what is to be added to the enlarged image. Two grey images of
    2 x 2 pixels:

        image  [[[[0], [80]], [[160], [0]]], [[[0], [80]], [[160], [240]]]]
        mask   [1, 1]
    """

    NEEDS = ImageMaker

    def fit(self, model_config: Any) -> Any:
        """The model's settings as they are: no size of it follows from the data."""
        return model_config

    def given(self, clean: Float[Array, "b h w c"]) -> Float[Array, "b h w c"]:
        """What the model sees of images."""
        n, h, w, c = clean.shape
        if self.config.shrink == 1:
            return clean
        small = n, h // self.config.shrink, w // self.config.shrink, c
        return jax.image.resize(jax.image.resize(clean, small, "cubic"), clean.shape, "cubic")

    def made(self, params: Params, batch: Batch, dropout_key=None) -> dict[str, Array]:
        """The model's outputs, with the `given` and `clean` images and those that it makes, from
        -1 to 1."""
        clean = self.clean(batch)
        given = self.given(clean)
        out = self.model.apply({"params": params}, given, dropout_key, batch["mask"])
        added = out["images"] if self.config.shrink == 1 else out["images"] + given
        return {**out, "given": given, "images": added, "clean": clean}

    def sums(self, params: Params, batch: Batch, dropout_key, training: bool) -> dict[str, Pair]:
        """The mean squared error of pixels from -1 to 1; an evaluation adds PSNR, and SSIM where
        images have room for its windows, and those of the enlarged images as `.._given`."""
        out = self.made(params, batch, dropout_key)
        clean, mask = out["clean"], batch["mask"]
        found = {"loss": jnp.square(out["images"] - clean).mean(axis=(1, 2, 3))}
        if not training:
            share = lambda x: jnp.clip((x + 1) / 2, 0, 1)  # noqa: E731
            ends = {"": "images"} if self.config.shrink == 1 else {"": "images", "_given": "given"}
            for end, name in ends.items():
                pair = share(out[name]), share(clean)
                found[f"psnr{end}"] = psnr(*pair)
                if min(self.size) >= WINDOW:
                    found[f"ssim{end}"] = ssim(*pair)
        return {name: masked_sum(values, mask) for name, values in found.items()}

    @cached_property
    def _made(self) -> Callable[[Params, Batch], dict[str, Array]]:
        return jax.jit(self.made)

    def score(self, params: Params, split: str, place: Place, final: bool) -> Scores:
        """For a trained model: how many codes a split uses, and their perplexity, and a picture of
        the first images: as given, as made, and as they are."""
        if not final or not len(self.examples(split)):
            return Scores()
        values, shown, codes = {"num_examples": float(len(self.examples(split)))}, [], []
        for batch in self.eval_batches(split):
            out = {k: np.asarray(v) for k, v in self._made(params, place(batch)).items()}
            real = batch["mask"]
            rows = np.stack([out[name] for name in ("given", "images", "clean")], axis=1)
            shown += list(rows[real])[: self.config.samples - len(shown)]
            codes += [out["codes"][real].reshape(-1)] if "codes" in out else []
        if codes:
            shares = np.bincount(np.concatenate(codes)) / sum(map(len, codes))
            used = shares[shares > 0]
            values |= {"codes_used": float(len(used))}
            values |= {"code_perplexity": float(np.exp(-(used * np.log(used)).sum()))}
        if not shown:
            return Scores(values)
        sheet = np.rint((np.clip(shown, -1, 1) + 1) * 127.5).astype(np.uint8)
        return Scores(values, files={"made.png": pixels.grid(sheet.swapaxes(0, 1))})


build = ImagePrediction
