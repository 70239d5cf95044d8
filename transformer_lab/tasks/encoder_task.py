"""Tasks of a text encoder: [CLS] A [SEP] B [SEP], the model's head, its outputs for many texts."""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from transformer_lab.data import labelled
from transformer_lab.data.batching import BatchConfig
from transformer_lab.data.ragged import Ragged
from transformer_lab.data.splits import SPLITS
from transformer_lab.errors import LabError
from transformer_lab.models.base import TextEncoder
from transformer_lab.tasks.base import Batch, Params, Place
from transformer_lab.tasks.bucketed import Bucketed, Columns, Fields
from transformer_lab.tasks.labels import Labelled
from transformer_lab.text import TokenizerConfig

TEXTS = {  # the sections of a task on labelled texts, besides its own
    "data": labelled.LabelledConfig,
    "batch": BatchConfig,
    "tokenizer": TokenizerConfig,
}
Compute = Callable[[Params, Batch], Array]


class EncoderTask(Bucketed):
    """A batch holds `tokens` (int32 [rows, length]) and `tokens_mask`, and what a task adds."""

    NEEDS, HEAD = TextEncoder, "none"
    cut = 0  # the number of texts that were cut to fit
    load_data = labelled.load_labelled

    def fit(self, model_config: Any) -> Any:
        """With the task's head, which has an output for each class if it has classes."""
        fitted = replace(super().fit(model_config), head=self.HEAD)
        labelled = isinstance(self, Labelled)
        return replace(fitted, labels=max(len(self.labels), 1)) if labelled else fitted

    @cached_property
    def limit(self) -> int:
        """The most tokens of an encoded text, special tokens included."""
        return min(self.row_limit(), self.model_config.max_length)

    def row_limit(self) -> int:
        """The length of the longest batch row that the config allows, in tokens."""
        return self.sections["batch"].max_length

    def encode(self, first: Sequence[int], second: Sequence[int] | None = None) -> list[int]:
        """Ids between the special tokens; of two texts the longer is cut until both fit."""
        tok, double = self.tokenizer, self.model_config.types < 2
        between = [tok.eos_id] * (2 if double else 1)  # RoBERTa puts two between texts
        if second is None:
            self.cut += len(first) > self.limit - 2
            return [tok.bos_id, *first[: self.limit - 2], tok.eos_id]
        room = self.limit - 2 - len(between)
        self.cut += len(first) + len(second) > room
        a = min(len(first), max(room - len(second), room - room // 2))
        return [tok.bos_id, *first[:a], *between, *second[: room - a], tok.eos_id]

    def apply(self, params: Params, batch: Batch, dropout_key: Any = None, **more: Any) -> dict:
        """The model's outputs. Tokens of a second text get type 1 if the model has token types."""
        tokens, mask = batch["tokens"], batch["tokens_mask"]
        types = None
        if self.model_config.types > 1:
            ends = ((tokens == self.tokenizer.eos_id) & mask).astype(jnp.int32)
            types = jnp.minimum(jnp.cumsum(ends, axis=1) - ends, 1) * mask
        return self.model.apply({"params": params}, tokens, mask, types, dropout_key, **more)

    @cached_property
    def _outputs(self) -> Callable[[Params, Batch], dict[str, Array]]:
        return jax.jit(lambda params, batch: self.apply(params, batch))

    def outputs(
        self, params: Params, fields: Fields, columns: Columns, place: Place, name: str = "logits"
    ) -> list[np.ndarray]:
        """The model's output `name` for each example, in the given order, without padding."""
        compute = lambda params, batch: self._outputs(params, batch)[name]  # noqa: E731
        return self.each(compute, params, fields, columns, place)

    def each(
        self, compute: Compute, params: Params, fields: Fields, columns: Columns, place: Place
    ) -> list[np.ndarray]:
        """The float32 result of `compute` for each example, in the given order, without padding."""
        lengths = fields["tokens"].lengths()
        found: list[np.ndarray] = [np.zeros(0)] * len(lengths)
        for ids, batch in self.in_order(fields, columns):
            values = np.asarray(compute(params, place(batch)), np.float32)
            for row, i in zip(values, ids.tolist(), strict=True):
                if i >= 0:
                    found[i] = row[: lengths[i]] if values.ndim == 3 else row
        return found

    def eval_shapes(self) -> list[tuple[int, ...]]:
        """Powers of two up to the limit, which need no training data to be known."""
        sizes = [2**i for i in range(4, 20) if 2**i < self.limit]
        return [(size,) for size in (*sizes, self.limit)]

    def classes(self) -> Mapping[str, Set[str]]:
        return {s: set(labelled.labels_of(self.examples(s))) for s in SPLITS}

    def details(self) -> list[str]:
        lines = [
            f"vocabulary: {self.tokenizer.vocab_size:,} pieces; at most {self.limit} tokens",
            *self.describe_batches(),  # which encodes the training set
        ]
        if self.cut:
            lines.append(f"texts of the training set that were cut to fit: {self.cut:,}")
        return lines


class WordTask(EncoderTask):
    """A task on the words of a text, each of which may be several tokens."""

    def encode_words(self, words: Sequence[str]) -> tuple[list[int], list[int]]:
        """Token ids, and the index of each word's first token; a word without tokens gets [UNK]."""
        tok = self.tokenizer
        pieces = [ids or [tok.unk_id] for ids in tok.encode_words(words)]
        firsts = (1 + np.cumsum([0, *map(len, pieces)])[:-1]).tolist()
        return [tok.bos_id, *(i for ids in pieces for i in ids), tok.eos_id], firsts

    def encode_lines(self, texts: Sequence[str]) -> list[tuple[list[int], list[int]]]:
        """`encode_words` of each text's words, divided at white space. Raises: LabError for a text
        that is longer than the model takes."""
        encoded = [self.encode_words(line.split()) for line in texts]
        limit = self.model_config.max_length
        for line, (ids, _) in zip(texts, encoded, strict=True):
            if len(ids) > limit:
                raise LabError(f"{len(ids)} tokens exceed model.max_length = {limit}: {line[:60]}")
        return encoded


def ragged(rows: Sequence[Sequence[int]]) -> Fields:
    """Encoded examples as the only field, `tokens`, of a split."""
    return {"tokens": Ragged.from_lists(rows)}
