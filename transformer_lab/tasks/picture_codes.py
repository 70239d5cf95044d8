"""Texts to pictures by a VQ-VAE's codes: in order (Ramesh 2021), or hidden ones (Chang 2022)."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from transformer_lab.decoding.codes import in_order, in_parallel, lowest, masked_share
from transformer_lab.errors import within
from transformer_lab.models.making import CodeModel
from transformer_lab.ops.diffusion import guided
from transformer_lab.ops.losses import Pair, token_metrics
from transformer_lab.ops.sampling import sample
from transformer_lab.tasks import pictures
from transformer_lab.tasks.base import Batch, Params


@dataclass(frozen=True)
class CodeDrawingConfig(pictures.DrawingConfig):
    """How codes are drawn, the config section `decode`."""

    steps: int = 12  # calls of a model of hidden codes; one in order is called for each code
    temperature: float = 1.0  # logits are divided by it
    top_k: int = 0  # codes are drawn among so many likeliest; 0: among all
    noise: float = 4.5  # on the choice of which codes are hidden again; 0: the least probable

    def __post_init__(self):
        super().__post_init__()
        within("decode.temperature", self.temperature, 1e-3)
        within("decode.noise", self.noise, 0)


SECTIONS = {
    "task": pictures.PicturesConfig,
    **pictures.SECTIONS,
    "decode": CodeDrawingConfig,
}


class PictureCodes(pictures.Pictures):
    """Learns the codes of pictures given their texts; the VQ-VAE comes from `--init_from`.

    A batch is that of `tasks.diffusion`. Two grey images of the classes "a" and "b":

        image        [[[[0], [80]], [[160], [0]]], [[[0], [80]], [[160], [240]]]]
        tokens       [[4, 0], [5, 0]]
        tokens_mask  [[1, 0], [1, 0]]
        mask         [1, 1]
    """

    NEEDS = CodeModel

    def check(self, model_kind: str, model_config: Any) -> None:
        super().check(model_kind, model_config)
        given = self.assets_given or {}  # of a run's --init_from those of the VQ-VAE
        own = {name: x for name, x in given.items() if not name.startswith("image.")}
        self.assets_given = own or None

    def fit(self, model_config: Any) -> Any:
        """The model's settings with the number of the text's pieces."""
        return replace(model_config, text=super().fit(model_config.text))

    def apply(self, params: Params, *inputs: Any, method: str | None = None) -> Any:
        """A method of the model."""
        return self.model.apply({"params": params}, *inputs, method=method)

    def tokens(self, batch: Batch, mask: Array) -> Array:
        """The texts' tokens, with padding where the mask is False."""
        return jnp.where(mask, batch["tokens"], self.tokenizer.pad_id)

    def sums(self, params: Params, batch: Batch, dropout_key, training: bool) -> dict[str, Pair]:
        """The cross-entropy of codes: of all in order, or of a random share that is hidden. An
        evaluation hides the same ones again."""
        keys = jax.random.split(jax.random.key(0) if dropout_key is None else dropout_key, 4)
        codes = jax.lax.stop_gradient(self.apply(params, self.clean(batch), method="codes"))
        tokens = self.tokens(batch, self.kept(batch, keys[0] if training else None))
        asked, given = jnp.broadcast_to(batch["mask"][:, None], codes.shape), codes
        if not self.model_config.in_order:
            share = masked_share(jax.random.uniform(keys[1], (len(codes),)))
            counts = jnp.maximum(jnp.round(share * codes.shape[1]), 1).astype(jnp.int32)
            hidden = lowest(jax.random.uniform(keys[2], codes.shape), counts)
            asked, given = asked & hidden, jnp.where(hidden, self.model_config.image.codes, codes)
        logits = self.apply(params, tokens, given, keys[3] if training else None)
        found = token_metrics(logits, codes, asked)
        return {name: found[name] for name in ("loss", "accuracy")}

    def drawn(self, params: Params, keys: Key[Array, "b"], batch: Batch) -> Float[Array, "b h w c"]:
        how, model, rows = self.sections["decode"], self.model_config, len(keys)
        tokens = self.tokens(batch, batch["tokens_mask"])
        told = how.guidance != 1
        if told:  # each picture with its text, and without
            tokens = jnp.concatenate([tokens, jnp.full_like(tokens, self.tokenizer.pad_id)])

        def one(logits):
            return guided(logits[:rows], logits[rows:], how.guidance) if told else logits

        def twice(codes):
            return jnp.concatenate([codes, codes]) if told else codes

        def step(codes, cache):
            logits, cache = self.apply(params, twice(codes), cache, method="step")
            return one(logits), cache

        def predict(codes):
            return one(self.apply(params, tokens, twice(codes)))

        def choose(logits, keys):
            controls = jnp.float32(how.temperature), jnp.int32(how.top_k), jnp.float32(1.0)
            return sample(logits, keys, *controls, restricted=how.top_k > 0)

        if model.in_order:
            logits, cache = self.apply(params, tokens, method="start")
            codes = in_order(one(logits), cache, step, choose, keys, model.count)
        else:
            more = model.count, how.steps, model.image.codes, how.noise
            codes = in_parallel(predict, choose, keys, *more)
        return self.apply(params, codes, method="pictures")


build = PictureCodes
