"""Word vectors: skip-gram and continuous bag of words by negative sampling (Mikolov 2013)."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from transformer_lab import text
from transformer_lab.data import documents
from transformer_lab.data.batching import BatchPlan, RowCount
from transformer_lab.data.ragged import Ragged
from transformer_lab.data.word_windows import WindowConfig, Windows
from transformer_lab.errors import LabError
from transformer_lab.models.base import WordModel
from transformer_lab.ops.losses import Pair, masked_sum
from transformer_lab.ops.word_vectors import nearest, negative_sampling
from transformer_lab.tasks.base import Batch, HostBatch, Params, Place, Scores, Task
from transformer_lab.tasks.building import Shapes, shapes_of


@dataclass(frozen=True)
class WordVectorsConfig:
    """Settings of word vectors, the config section `task`."""

    cbow: bool = False  # predict the word from its neighbours' mean; else each neighbour from it
    lowercase: bool = True  # words are read in lower case
    samples: int = 12  # words shown with their nearest at the end


@dataclass(frozen=True)
class WordsConfig(RowCount):
    """The number of words in a batch; how many neighbours each has follows from the windows."""

    rows: int = 512  # words, with their windows, over all devices and micro-batches


SECTIONS = {
    "task": WordVectorsConfig,
    "data": documents.DocumentsConfig,
    "windows": WindowConfig,
    "batch": WordsConfig,
    "tokenizer": text.TokenizerConfig,
}


class WordVectors(Task):
    """Predicts the words near a word, whose vectors are the result.

    A batch is one of `data.word_windows.Windows`: `inputs`, a word, or with `task.cbow` its
    neighbours; `outputs`, each word to find, then its random negative words; masks; and
    `counted`, True where there is a word to find. The last "." (4) of "the dog sat ." and of "a
    cat ." finds "sat" (9) and "cat" (6), each against two random words, and nothing after it:

        inputs        [[4], [4]]
        inputs_mask   [[1], [1]]
        outputs       [[[9, 7, 4], [5, 6, 4]], [[6, 8, 5], [4, 9, 8]]]
        outputs_mask  [[[1, 1, 1], [1, 1, 1]], [[1, 1, 1], [1, 1, 1]]]
        counted       [[1, 0], [1, 0]]
    """

    NEEDS, COUNTED, load_data = WordModel, "documents", documents.load_documents

    def train_texts(self) -> Iterator[str]:
        return self.texts("train")

    def texts(self, split: str) -> Iterator[str]:
        """The documents of a split, in lower case unless the config says otherwise."""
        return (t.lower() if self.config.lowercase else t for t in self.examples(split))

    def sums(self, params: Params, batch: Batch, dropout_key, training: bool) -> dict[str, Pair]:
        """The negative sampling loss in nats: each true neighbour against the words drawn."""
        inputs = batch["inputs"], batch["inputs_mask"], batch["outputs"]
        logits = self.model.apply({"params": params}, *inputs)
        nats = negative_sampling(logits, batch["outputs_mask"])
        return {"loss": masked_sum(nats, batch["counted"])}

    @cached_property
    def _train_ids(self) -> Ragged:
        return Ragged.from_lists(self.tokenizer.encode_batch(self.texts("train")))

    def windows(self, split: str) -> Windows:
        """The windows of a split; drawing and dropping follow the training set's word counts."""
        ids = self._train_ids
        if split != "train":
            ids = Ragged.from_lists(self.tokenizer.encode_batch(self.texts(split)))
        counts = np.bincount(self._train_ids.values, minlength=self.tokenizer.vocab_size)
        first = max(self.tokenizer.special_ids) + 1
        return Windows(ids, counts, self.sections["windows"], self.config.cbow, first)

    @cached_property
    def _train_windows(self) -> Windows:
        return self.windows("train")

    @cached_property
    def train_plan(self) -> BatchPlan:
        return self._train_windows.plan(self.sections["batch"].rows, self.seed)

    def load_train(self, ids: np.ndarray, shape: tuple[int, ...]) -> HostBatch:
        return self._train_windows.load(ids, shape)

    def eval_batches(self, split: str) -> Iterator[HostBatch]:
        if self.examples(split):
            windows = self.windows(split)
            for _, ids in windows.plan(self.sections["batch"].rows, self.seed):
                yield windows.load(ids, (1,))

    def abstract_batch(self) -> Shapes:
        rows, config = self.sections["batch"].rows, self.sections["windows"]
        inputs, outputs = (2 * config.window, 1) if self.config.cbow else (1, 2 * config.window)
        return {
            **shapes_of((rows, inputs), inputs=np.int32, inputs_mask=bool),
            **shapes_of((rows, outputs, 1 + config.negatives), outputs=np.int32, outputs_mask=bool),
            **shapes_of((rows, outputs), counted=bool),
        }

    def sizes(self, batch: HostBatch) -> dict[str, int]:
        return {"pairs": int(batch["counted"].sum())}

    def score(self, params: Params, split: str, place: Place, final: bool) -> Scores:
        """Samples of a trained model: words from frequent to rare, with their nearest words."""
        last = min(self.tokenizer.vocab_size - 1, 4000)
        first, count = max(self.tokenizer.special_ids) + 50, self.shown(final)
        ids = np.geomspace(first, last, count).astype(int)
        words = [self.tokenizer.piece(i) for i in sorted(set(ids.tolist())) if i <= last]
        rows = [(word, ", ".join(w for w, _ in self.nearest(params, word, 6))) for word in words]
        return Scores({}, rows)

    def details(self) -> list[str]:
        tokens = len(self._train_ids.values)
        return [f"vocabulary: {self.tokenizer.vocab_size:,} words of {tokens:,}"]

    # What the vectors say.

    def nearest(self, params: Params, query: str, count: int = 10) -> list[tuple[str, float]]:
        """The words of greatest cosine with "word" or "a - b + c", those named left out.

        Each vector of a sum is scaled to norm 1. Raises: LabError for an unknown word."""
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
    """The signs and words of a sum: "a - b + c" gives [(1, "a"), (-1, "b"), (1, "c")]."""
    terms = re.split(r"(?:^|\s+)([+-])\s+", f"+ {query.strip()}")[1:]
    if not all(terms):
        raise LabError(f'"{query}": give a word, or "a - b + c"')
    return [(1.0 if s == "+" else -1.0, w) for s, w in zip(terms[::2], terms[1::2], strict=True)]


build = WordVectors
