"""Word vectors: skip-gram and the continuous bag of words, by negative sampling (Mikolov 2013)."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Array, Key

from transformer_lab import models, text
from transformer_lab.data import documents
from transformer_lab.data.batching import check_rows
from transformer_lab.data.pipeline import Batches
from transformer_lab.data.ragged import Ragged
from transformer_lab.data.splits import Splits, remarks
from transformer_lab.data.word_windows import WindowConfig, Windows
from transformer_lab.errors import LabError
from transformer_lab.ops.losses import Pair, masked_sum
from transformer_lab.ops.word_vectors import nearest, negative_sampling
from transformer_lab.tasks.base import Batch, HostBatch, Params, Place, Scores, table_size


@dataclass(frozen=True)
class WordVectorsConfig:
    """The objective's own settings."""

    cbow: bool = False  # the neighbours' mean finds the word; else the word finds each neighbour
    lowercase: bool = True
    samples: int = 12  # words shown with their nearest at the end


@dataclass(frozen=True)
class WordsConfig:
    """How batches are made."""

    rows: int = 512  # words, with their windows, over all devices and micro-batches

    def __post_init__(self):
        if self.rows < 1:
            raise LabError(f"batch.rows = {self.rows} must be at least 1")


SECTIONS = {
    "task": WordVectorsConfig,
    "data": documents.DocumentsConfig,
    "windows": WindowConfig,
    "batch": WordsConfig,
    "tokenizer": text.TokenizerConfig,
}


class WordVectors:
    """A batch is that of `data.word_windows.Windows`."""

    def __init__(
        self,
        model_kind: str,
        model_config: Any,
        sections: dict[str, Any],
        assets: dict[str, bytes] | None = None,
        seed: int = 0,
        rows_multiple: int = 1,
    ):
        if model_kind != "word_vectors":
            raise LabError(f'model.kind = "{model_kind}" does not go with this task')
        self.config, self.sections, self.seed = sections["task"], sections, seed
        check_rows("rows", sections["batch"].rows, rows_multiple)
        if assets is None:
            self.tokenizer = text.train(sections["tokenizer"], self.texts("train"), seed)
        else:
            self.tokenizer = text.load(assets)
        size = table_size(model_config.vocab_size, self.tokenizer.vocab_size)
        self.model_config = replace(model_config, vocab_size=size)
        self.family = models.family(model_kind)
        self.model = self.family.build(self.model_config)

    @cached_property
    def data(self) -> Splits:
        return documents.load_documents(self.sections["data"])

    def texts(self, split: str) -> Iterator[str]:
        for whole in getattr(self.data, split):
            yield whole.lower() if self.config.lowercase else whole

    # What the trainer asks for.

    def init(self, key: Key[Array, ""]) -> Params:
        return self.model.init(key, *self.family.example_inputs())["params"]

    def loss(self, params: Params, batch: Batch, dropout_key) -> dict[str, Pair]:
        return self.metrics(params, batch)

    def metrics(self, params: Params, batch: Batch) -> dict[str, Pair]:
        """Nats of a true word with those drawn against it."""
        inputs = batch["inputs"], batch["inputs_mask"], batch["outputs"]
        logits = self.model.apply({"params": params}, *inputs)
        nats = negative_sampling(logits, batch["outputs_mask"])
        return {"loss": masked_sum(nats, batch["counted"])}

    @cached_property
    def _train_ids(self) -> Ragged:
        return Ragged.from_lists(self.tokenizer.encode_batch(self.texts("train")))

    def windows(self, split: str) -> Windows:
        """Of a split; what is drawn and dropped goes by the training documents' counts."""
        ids = self._train_ids
        if split != "train":
            ids = Ragged.from_lists(self.tokenizer.encode_batch(self.texts(split)))
        counts = np.bincount(self._train_ids.values, minlength=self.tokenizer.vocab_size)
        first = max(self.tokenizer.special_ids) + 1
        return Windows(ids, counts, self.sections["windows"], self.config.cbow, first)

    @cached_property
    def _train(self):
        windows = self.windows("train")
        return windows, windows.plan(self.sections["batch"].rows, self.seed)

    def steps_per_epoch(self) -> int:
        return self._train[1].batches_per_epoch

    def train_batches(self) -> Batches:
        windows, plan = self._train
        return Batches(plan, windows.load)

    def eval_batches(self, split: str) -> Iterator[HostBatch]:
        if getattr(self.data, split):
            windows = self.windows(split)
            for _, ids in windows.plan(self.sections["batch"].rows, self.seed):
                yield windows.load(ids, (1,))

    def score(self, params: Params, split: str, place: Place, final: bool) -> Scores:
        """Of the finished model: words of rising rank with their nearest."""
        some = self.config.samples if final else 0
        last = min(self.tokenizer.vocab_size - 1, 4000)
        ids = np.geomspace(max(self.tokenizer.special_ids) + 50, last, some).astype(int)
        words = [self.tokenizer.piece(i) for i in sorted(set(ids.tolist())) if i <= last]
        rows = [(word, ", ".join(w for w, _ in self.nearest(params, word, 6))) for word in words]
        return Scores({}, rows, {})

    def sizes(self, batch: HostBatch) -> dict[str, int]:
        return {"pairs": int(batch["counted"].sum())}

    def fingerprint(self) -> str:
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        return self.data.fingerprint()

    def assets(self) -> dict[str, bytes]:
        return self.tokenizer.to_files()

    def report(self) -> list[str]:
        counts = ", ".join(f"{name} {count:,}" for name, count in self.data.report.items())
        return [
            f"documents: {counts}; licence: {self.data.licence}",
            *remarks(self.data.report, self.sections["data"]),
            f"vocabulary: {self.tokenizer.vocab_size:,} words of {len(self._train_ids.values):,}",
        ]

    # What the vectors say.

    def nearest(self, params: Params, query: str, count: int = 10) -> list[tuple[str, float]]:
        """Words of greatest cosine with "word" or "a - b + c", which are not among them.

        The words of a sum count with their vectors at length 1.
        Raises: LabError for a word that is not in the vocabulary.
        """
        table = np.asarray(params["embedding"]["embedding"])[: self.tokenizer.vocab_size].copy()
        table[sorted(self.tokenizer.special_ids)] = 0.0
        table /= np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-12)
        terms = parse(query.lower() if self.config.lowercase else query)
        ids = [self._word(word) for _, word in terms]
        vector = sum(sign * table[i] for (sign, _), i in zip(terms, ids, strict=True))
        found = zip(*nearest(table, vector, count + len(ids)), strict=True)
        words = [(self.tokenizer.piece(i), float(c)) for i, c in found if i not in ids]
        return words[:count]

    def _word(self, word: str) -> int:
        ids = self.tokenizer.encode(word)
        if len(ids) != 1 or ids[0] in self.tokenizer.special_ids:
            raise LabError(f'"{word}" is not among the {self.tokenizer.vocab_size:,} words')
        return ids[0]


def parse(query: str) -> Sequence[tuple[float, str]]:
    """[(1, "a"), (-1, "b"), (1, "c")] of "a - b + c"; the signs stand apart from the words."""
    terms = re.split(r"(?:^|\s+)([+-])\s+", f"+ {query.strip()}")[1:]
    if not all(terms):
        raise LabError(f'"{query}": give a word, or "a - b + c"')
    return [(1.0 if s == "+" else -1.0, w) for s, w in zip(terms[::2], terms[1::2], strict=True)]


build = WordVectors
