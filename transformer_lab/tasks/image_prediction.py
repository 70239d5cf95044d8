"""Images from images: through a few codes (VQ-VAE), larger than they were (super-resolution), or
frames between two others."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from transformer_lab.data.images import pixels
from transformer_lab.errors import LabError, at_least
from transformer_lab.models.making import ImageMaker
from transformer_lab.ops import frames
from transformer_lab.ops.image_quality import WINDOW, psnr, ssim
from transformer_lab.ops.losses import Pair, masked_sum
from transformer_lab.tasks import pictures
from transformer_lab.tasks.base import Batch, Params, Place, Scores


@dataclass(frozen=True)
class ImagePredictionConfig:
    """Settings of the prediction of images, the config section `task`."""

    shrink: int = 1  # images are given this many times smaller, and enlarged again (bicubic)
    # Of clips of three frames the middle one is made from the others, by kernels of so many pixels
    # that each pixel has of its own (see `ops.frames`). 0: images, not clips
    between: int = 0
    samples: int = 8  # images shown at the end: as they are given, made, and wanted

    def __post_init__(self):
        at_least(self, "task", 1, "shrink")
        at_least(self, "task", 0, "samples", "between")
        if self.between and (self.shrink > 1 or self.between % 2 == 0):
            raise LabError(f"task.between = {self.between} must be odd, with task.shrink = 1")


SECTIONS = {"task": ImagePredictionConfig, **pictures.IMAGES}


class ImagePrediction(pictures.OnImages):
    """Makes images from what is given of them: themselves, smaller copies, or their neighbours.

    A model for smaller copies makes what is to be added to the enlarged image; one for frames makes
    kernels, which at first leave the mean of both neighbours. Two grey images of 2 x 2 pixels:

        image  [[[[0], [80]], [[160], [0]]], [[[0], [80]], [[160], [240]]]]
        mask   [1, 1]
    """

    NEEDS = ImageMaker

    def check(self, model_kind: str, model_config: Any) -> None:
        super().check(model_kind, model_config)
        count, wanted = self.sections["data"].frames, 3 if self.config.between else 0
        if count != wanted:
            raise LabError(
                f"config.data.frames = {count}: task.between = {self.config.between} needs {wanted}"
            )

    def fit(self, model_config: Any) -> Any:
        """The model's settings, for frames with two images to read and the kernels to make."""
        if not self.config.between:
            return model_config
        return replace(model_config, frames=2, outputs=frames.numbers_of(self.config.between))

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
        if self.config.between:
            first, clean, last = (clean[:, i] for i in range(3))
            seen, given = jnp.concatenate([first, last], axis=-1), (first + last) / 2
        else:
            seen = given = self.given(clean)
        out = self.model.apply({"params": params}, seen, dropout_key, batch["mask"])
        if self.config.between:
            out["images"] = frames.between(first, last, out["images"], self.config.between)
        elif self.config.shrink > 1:
            out["images"] += given
        return {**out, "given": given, "clean": clean}

    def errors(self, out: dict[str, Array], training: bool) -> dict[str, Float[Array, "b"]]:
        """Of each image the mean squared error of pixels from -1 to 1; an evaluation adds PSNR, and
        SSIM where images have room for its windows, and those of the enlarged images, or of the
        mean of both neighbours, as `.._given`."""
        cfg, clean = self.config, out["clean"]
        found = {"loss": jnp.square(out["images"] - clean).mean(axis=(1, 2, 3))}
        if training:
            return found
        share = lambda x: jnp.clip((x + 1) / 2, 0, 1)  # noqa: E731
        compared = cfg.shrink > 1 or cfg.between
        ends = {"": "images", "_given": "given"} if compared else {"": "images"}
        for end, name in ends.items():
            pair = share(out[name]), share(clean)
            found[f"psnr{end}"] = psnr(*pair)
            if min(self.size) >= WINDOW:
                found[f"ssim{end}"] = ssim(*pair)
        return found

    def sums(self, params: Params, batch: Batch, dropout_key, training: bool) -> dict[str, Pair]:
        """The mean of each of the `errors` over images."""
        found = self.errors(self.made(params, batch, dropout_key), training)
        return {name: masked_sum(values, batch["mask"]) for name, values in found.items()}

    @cached_property
    def _made(self) -> Callable[[Params, Batch], dict[str, Array]]:
        """What `made` gives, with the errors of an evaluation."""

        def made(params, batch):
            out = self.made(params, batch)
            return out | self.errors(out, False)

        return jax.jit(made)

    def by_class(self, labels: list[int], errors: dict[str, list]) -> dict[str, float]:
        """PSNR by the mean squared error over all of a class's images, and the mean SSIM."""
        found, which = {}, np.array(labels)
        for name, parts in errors.items():
            each = np.concatenate(parts)
            for label in np.unique(which):
                mine = each[which == label]
                if name.startswith("psnr"):
                    mine = -10 * np.log10(np.mean(10 ** (-mine / 10)))
                found[f"{self.data.labels[label]}_{name}"] = float(np.mean(mine))
        return found

    def score(self, params: Params, split: str, place: Place, final: bool) -> Scores:
        """For a trained model: how many codes a split uses, and their perplexity, and a picture of
        the first images: as given, as made, and as they are. For frames also the errors by class,
        such as by video."""
        if not final or not len(self.examples(split)):
            return Scores()
        values, shown, codes = {"num_examples": float(len(self.examples(split)))}, [], []
        errors: dict[str, list] = {}
        for batch in self.eval_batches(split):
            out = {k: np.asarray(v) for k, v in self._made(params, place(batch)).items()}
            real = batch["mask"]
            rows = np.stack([out[name] for name in ("given", "images", "clean")], axis=1)
            shown += list(rows[real])[: self.config.samples - len(shown)]
            for name in out if self.config.between else ():
                if name.startswith(("psnr", "ssim")):
                    errors.setdefault(name, []).append(out[name][real])
            codes += [out["codes"][real].reshape(-1)] if "codes" in out else []
        if codes:
            shares = np.bincount(np.concatenate(codes)) / sum(map(len, codes))
            used = shares[shares > 0]
            values |= {"codes_used": float(len(used))}
            values |= {"code_perplexity": float(np.exp(-(used * np.log(used)).sum()))}
        if errors and len(self.data.labels) > 1:
            values |= self.by_class(self.examples(split).labels, errors)
        if not shown:
            return Scores(values)
        sheet = np.rint((np.clip(shown, -1, 1) + 1) * 127.5).astype(np.uint8)
        return Scores(values, files={"made.png": pixels.grid(sheet.swapaxes(0, 1))})


build = ImagePrediction
