"""Sentence vectors, trained to be near for the two texts of a pair and far within the batch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np

from transformer_lab.errors import LabError, known
from transformer_lab.ops.losses import Pair, cross_entropy, masked_sum
from transformer_lab.ops.pooling import POOLINGS, normalize, pool
from transformer_lab.tasks.base import Batch, Params, Place
from transformer_lab.tasks.bucketed import Columns, Fields
from transformer_lab.tasks.encoder_task import TEXTS, EncoderTask, ragged


@dataclass(frozen=True)
class SentenceEmbeddingConfig:
    """Settings of sentence embeddings, the config section `task`."""

    pooling: str = "mean"  # mean | cls | max
    normalize: bool = True  # vectors have length 1
    scale: float = 20.0  # factor of the cosine in the loss (default of Sentence-BERT)

    def __post_init__(self):
        known("task.pooling = ", self.pooling, POOLINGS)


SECTIONS = {"task": SentenceEmbeddingConfig, **TEXTS}


class SentenceEmbedding(EncoderTask):
    """Trains vectors of texts to be near for the two texts of a pair.

    A batch holds `tokens` and `pair`, with masks: row i of one belongs to row i of the other. "red"
    with "ball", before a row that only fills the batch:

        tokens       [[2, 7, 1, 0], [0, 0, 0, 0]]
        tokens_mask  [[1, 1, 1, 0], [0, 0, 0, 0]]
        pair         [[2, 4, 1], [0, 0, 0]]
        pair_mask    [[1, 1, 1], [0, 0, 0]]
    """

    FIELDS = ("tokens", "pair")

    def train_texts(self) -> Iterator[str]:
        return (part for row in self.data.train for part in (row.text, row.pair or ""))

    def encode_texts(self, texts: Sequence[str]) -> Fields:
        """The token ids of each text, with the special tokens around them."""
        return ragged([self.encode(ids) for ids in self.tokenizer.encode_batch(texts)])

    def encode_split(self, split: str) -> tuple[Fields, Columns]:
        rows = self.examples(split)
        if any(row.pair is None for row in rows):
            raise LabError("config.data: sentence embeddings are trained on pairs, one has no pair")
        first, second = (self.encode_texts([getattr(r, n) for r in rows]) for n in ("text", "pair"))
        return {"tokens": first["tokens"], "pair": second["tokens"]}, {}

    def vectors(self, params: Params, batch: Batch, dropout_key=None) -> jax.Array:
        """The sentence vectors [rows, width], pooled and normalised as configured."""
        states = self.apply(params, batch, dropout_key)["states"]
        found = pool(states, batch["tokens_mask"], self.config.pooling)
        return normalize(found) if self.config.normalize else found

    def sums(self, params: Params, batch: Batch, dropout_key, training: bool) -> dict[str, Pair]:
        """The cross-entropy of finding each row's partner among those of its (micro-)batch
        (Henderson 2017), padding rows left out."""
        keys = (None, None) if dropout_key is None else jax.random.split(dropout_key)
        other = {"tokens": batch["pair"], "tokens_mask": batch["pair_mask"]}
        first = normalize(self.vectors(params, batch, keys[0]))
        second = normalize(self.vectors(params, other, keys[1]))
        real = batch["tokens_mask"][:, 0]
        scores = self.config.scale * first @ second.T
        scores = jnp.where(real[None, :], scores, jnp.finfo(jnp.float32).min)
        rows = jnp.arange(len(scores))
        right = (scores.argmax(axis=-1) == rows).astype(jnp.float32)
        return {
            "loss": masked_sum(cross_entropy(scores, rows), real),
            "accuracy": masked_sum(right, real),
        }

    def embed(self, params: Params, texts: Sequence[str], place: Place) -> np.ndarray:
        """The vectors, float32 [texts, width], in the given order; too long texts are cut."""
        found = self.each(self._vectors, params, self.encode_texts(texts), {}, place)
        return np.asarray(found, np.float32).reshape(-1, self.model_config.width)

    def embed_word(
        self, params: Params, texts: Sequence[str], word: str, place: Place
    ) -> tuple[np.ndarray, np.ndarray]:
        """The vectors of a word in context, float32 [texts, width], and out of context, [width]:
        the mean state of its tokens where a text first has it, and the mean of their embeddings."""
        fields, ids = self.encode_texts(texts), self.tokenizer.encode(word)
        starts = [
            start_of(ids, line.tolist(), t) for line, t in zip(fields["tokens"], texts, strict=True)
        ]
        states = self.outputs(params, fields, {}, place, "states")
        found = [s[i : i + len(ids)].mean(axis=0) for s, i in zip(states, starts, strict=True)]
        return np.stack(found), np.asarray(params["embedding"]["embedding"])[ids].mean(axis=0)

    @cached_property
    def _vectors(self):
        return jax.jit(lambda params, batch: self.vectors(params, batch))


def start_of(word: Sequence[int], line: Sequence[int], text: str) -> int:
    """The index at which a word's tokens first occur in a line; LabError if nowhere."""
    size = len(word)
    starts = range(len(line) - size + 1 if size else 0)
    found = next((i for i in starts if list(line[i : i + size]) == list(word)), None)
    if found is None:
        raise LabError(f"--word does not stand in this line as a word of its own: {text[:60]}")
    return found


build = SentenceEmbedding
