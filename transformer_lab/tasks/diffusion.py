"""Diffusion models of images: DDPM (Ho 2020) and flow matching (Lipman 2022), with guidance."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from transformer_lab.errors import known
from transformer_lab.models.making import Denoiser
from transformer_lab.ops import diffusion
from transformer_lab.ops.losses import Pair, masked_sum
from transformer_lab.tasks import pictures
from transformer_lab.tasks.base import Batch, Params


@dataclass(frozen=True)
class DiffusionConfig(pictures.PicturesConfig):
    """Settings of diffusion, the config section `task`."""

    process: str = "flow"  # flow: predicts the velocity from image to noise; ddpm: the noise

    def __post_init__(self):
        super().__post_init__()
        known("task.process = ", self.process, diffusion.PROCESSES)


SECTIONS = {"task": DiffusionConfig, **pictures.SECTIONS}


class Diffusion(pictures.Pictures):
    """Learns what is noise in images, and draws images from noise.

    A batch holds `image` (uint8 [rows, height, width, channels]), `tokens` of its text (int32
    [rows, model.max_length]), `tokens_mask` (True at real tokens) and `mask` (False at a row that
    only fills the batch). Two grey images of 2 x 2 pixels of the classes "a" and "b":

        image        [[[[0], [80]], [[160], [0]]], [[[0], [80]], [[160], [240]]]]
        tokens       [[4, 0], [5, 0]]
        tokens_mask  [[1, 0], [1, 0]]
        mask         [1, 1]
    """

    NEEDS = Denoiser

    def sums(self, params: Params, batch: Batch, dropout_key, training: bool) -> dict[str, Pair]:
        """The mean squared error of the prediction, each image at one time. An evaluation takes
        evenly spaced times and the same noise again, so that its numbers can be compared."""
        keys = jax.random.split(jax.random.key(0) if dropout_key is None else dropout_key, 4)
        clean, process = self.clean(batch), self.config.process
        times = (1.0 + jnp.arange(len(clean))) / len(clean)
        if training:
            times = diffusion.draw_times(process, keys[0], len(clean))
        noise = jax.random.normal(keys[1], clean.shape)
        noisy, target = diffusion.mixed(process, clean, noise, times)
        seen = self.kept(batch, keys[2] if training else None)
        inputs = noisy, times, batch["tokens"], seen, keys[3] if training else None
        found = self.model.apply({"params": params}, *inputs)
        errors = jnp.square(found - target).mean(axis=(1, 2, 3))
        return {"loss": masked_sum(errors, batch["mask"])}

    def drawn(self, params: Params, keys: Key[Array, "b"], batch: Batch) -> Float[Array, "b h w c"]:
        how, process = self.sections["decode"], self.config.process
        tokens, mask = batch["tokens"], batch["tokens_mask"]

        def predict(x, times):
            if how.guidance == 1:
                return self.model.apply({"params": params}, x, times, tokens, mask)
            twice = [jnp.concatenate([y, y]) for y in (x, times, tokens)]
            both = jnp.concatenate([mask, jnp.zeros_like(mask)])  # with the text, and without
            found = self.model.apply({"params": params}, *twice, both)
            return diffusion.guided(*jnp.split(found, 2), how.guidance)

        shape = *self.size, self.channels
        noise = jax.vmap(lambda key: jax.random.normal(key, shape))(keys)
        clip = 1.0 if process == "ddpm" else np.inf
        return diffusion.sample(process, predict, noise, how.steps, clip)


build = Diffusion
