"""BERT's training examples: two segments for next-sentence prediction, or full sentences.

Where a row holds no token its ids are the padding's, and its mask is False."""

import hashlib
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Int32, Int64

from transformer_lab.data.batching import BatchPlan, Draws
from transformer_lab.data.buckets import Shape
from transformer_lab.errors import LabError
from transformer_lab.text import Tokenizer

Batch = dict[str, np.ndarray]

# A sentence ends before white space and a capital, a digit or an opening mark; not after an
# initial or a usual title.
_END = re.compile(
    r"(?:(?<=[.!?])|(?<=[.!?][\"')\]]))(?<!\b[A-Z]\.)(?<!\b(?:Mr|Dr|St)\.)(?<!\bMrs\.)"
    r"\s+(?=[\"'(\[]?[A-Z0-9])"
)
# Odd multipliers that hash the five numbers of an example to 64 bits.
_SPREAD = np.uint64(0x9E3779B97F4A7C15) ** np.arange(1, 6, dtype=np.uint64)


def split_sentences(text: str) -> list[str]:
    """The sentences of a text by a simple rule; each line break ends one, blank lines are none."""
    lines = (line.strip() for line in text.splitlines())
    return [sentence for line in lines if line for sentence in _END.split(line)]


@dataclass(frozen=True, eq=False)
class Sentences:
    """The sentences of all documents in a row, with an end token after each document.

    Sentence i is `tokens[starts[i] : ends[i]]`, and document d has the sentences `documents[d]` to
    `documents[d + 1] - 1`. Empty sentences and documents are left out."""

    tokens: Int32[np.ndarray, "tokens"]
    starts: Int64[np.ndarray, "sentences"]
    ends: Int64[np.ndarray, "sentences"]
    documents: Int64[np.ndarray, "documents_and_one"]

    @classmethod
    def from_lists(cls, documents: Iterable[Iterable[Sequence[int]]], eos: int) -> "Sentences":
        """The sentences of documents given as lists of sentences of token ids."""
        full = [[s for s in sentences if len(s)] for sentences in documents]
        full = [sentences for sentences in full if sentences]
        sizes = np.array([len(s) for d in full for s in d], np.int64)
        counts = np.array([len(d) for d in full], np.int64)
        ends = np.cumsum(sizes) + np.repeat(np.arange(len(full)), counts)  # end tokens before it
        tokens = [token for d in full for token in (*(t for s in d for t in s), eos)]
        bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        return cls(np.array(tokens, np.int32), ends - sizes, ends, bounds)

    @classmethod
    def encode(cls, documents: Iterable[Sequence[str]], tokenizer: Tokenizer) -> "Sentences":
        """The sentences of documents given as lists of sentences of text."""
        return cls.from_lists(map(tokenizer.encode_batch, documents), tokenizer.eos_id)


class PairPlan(BatchPlan):
    """The examples of every epoch, as a pure function of (seed, step).

    Ids are int64 [rows, 6]: start and end of segment A in the sentences' tokens, those of B, 1 if B
    is random (0: B follows A), and a random seed for masking. Padding rows are -1.

    With `next_sentence` (Devlin 2019, sections 3.1 and A.2) each epoch draws new examples. In a
    document, sentences are taken until they fill a row (in a share `short_probability` of the
    examples: until they reach a length drawn from 2 on) and are divided in two at random. Half of
    the examples keep what follows A as B; the others get a B that begins anywhere in another
    document, and A's unused sentences are taken again. A document of one sentence gives random
    examples only. Surplus tokens are cut off the longer segment, at its start or end at random. An
    epoch has as many examples as the first: later ones drop some or repeat some.

    Without (FULL-SENTENCES, Liu 2019, section 4.2) a row holds as many consecutive sentences as
    fit, with an end token between documents; B is empty, and epochs differ only in the order. A
    sentence longer than a row is cut.

    Masks differ in each step (dynamic masking), or are the same in all epochs (static). Raises:
    LabError without sentences, and for next sentences from a single document."""

    def __init__(
        self,
        sentences: Sentences,
        max_length: int,
        rows: int,
        seed: int = 0,
        next_sentence: bool = True,
        short_probability: float = 0.1,
        dynamic: bool = True,
    ):
        smallest = 5 if next_sentence else 3
        if rows < 1 or max_length < smallest or seed < 0:
            raise LabError(
                f"rows = {rows} must be at least 1, max_length = {max_length} at least {smallest}"
                f" and seed = {seed} not negative"
            )
        if not 0 <= short_probability <= 1:
            raise LabError(f"short_probability = {short_probability} must lie within 0 and 1")
        if next_sentence and len(sentences.documents) == 2:
            raise LabError(
                "one document has no random next sentence: give more, or set next_sentence = False"
            )
        self.sentences, self.max_length = sentences, max_length
        self.next_sentence, self.dynamic = next_sentence, dynamic
        self.short_probability = short_probability
        self._ends = sentences.ends.tolist()  # bisect is fast on a list
        self._starts, self._documents = sentences.starts.tolist(), sentences.documents.tolist()
        self.seed = seed
        first = self.examples(0) if len(self._ends) else np.zeros((0, 5), np.int64)
        lengths = first[:, 1] - first[:, 0] + first[:, 3] - first[:, 2] + 2 + int(next_sentence)
        super().__init__(lengths[:, None], [(max_length,)], rows * max_length, seed=seed)

    draws = Draws(2, 2**63, False)

    def _with_draws(self, ids: np.ndarray, step: int) -> Int64[np.ndarray, "rows 6"]:
        ids = ids.reshape(-1, 5)
        if self.dynamic:
            return np.column_stack([ids, super()._with_draws(ids[:, 0], step)[:, 1]])
        mixed = (ids + self.seed).astype(np.uint64) @ _SPREAD
        draws = (mixed >> np.uint64(1)).astype(np.int64)
        return np.column_stack([ids, np.where(ids[:, 0] < 0, -1, draws)])

    def examples(self, epoch: int) -> Int64[np.ndarray, "n 5"]:
        """The examples of an epoch in the order of the documents, before they are shuffled."""
        if not self.next_sentence:
            return self._rows_of_sentences()
        rng = np.random.default_rng((self.seed, epoch, 1))
        found = [e for d in range(len(self._documents) - 1) for e in self._pairs(d, rng)]
        return _trim(np.array(found, np.int64), self.max_length - 3, rng)

    def _pairs(self, document: int, rng: np.random.Generator) -> Iterable[tuple[int, ...]]:
        starts, ends, bounds = self._starts, self._ends, self._documents
        first, last = bounds[document], bounds[document + 1]
        capacity, at = self.max_length - 3, first
        while at < last:
            short = rng.random() < self.short_probability
            target = int(rng.integers(2, capacity + 1)) if short else capacity
            is_random = rng.random() < 0.5 or last - first == 1
            if is_random:
                stop = self._reach(at, target, last)
                split = int(rng.integers(at + 1, max(at + 2, stop)))
                other = int(rng.integers(len(bounds) - 2))
                other += other >= document  # any document but this one
                b = int(rng.integers(bounds[other], bounds[other + 1]))
                wanted = target - (ends[split - 1] - starts[at])
                b_stop, after = self._reach(b, wanted, bounds[other + 1]), split
            else:
                at = min(at, last - 2)  # the last sentence follows the one before it
                b_stop = after = max(at + 2, self._reach(at, target, last))
                b = split = int(rng.integers(at + 1, b_stop))
            yield starts[at], ends[split - 1], starts[b], ends[b_stop - 1], int(is_random)
            at = after

    def _reach(self, first: int, target: int, last: int) -> int:
        """The end of the sentences from `first` on, at least one, that hold `target` tokens."""
        return min(last, 1 + bisect_left(self._ends, self._starts[first] + target, first, last))

    def _rows_of_sentences(self) -> np.ndarray:
        capacity, rows = self.max_length - 2, []
        begin = end = 0
        for start, stop in zip(self._starts, self._ends, strict=True):
            if stop - begin > capacity:
                rows.append((begin, end))
                begin = start
            while stop - begin > capacity:
                rows.append((begin, begin + capacity))
                begin += capacity
            end = stop
        rows.append((begin, end))
        spans = np.array([(begin, end) for begin, end in rows if end > begin], np.int64)
        return np.pad(spans, ((0, 0), (0, 3)))

    def _make(self, epoch: int) -> list[tuple[int, np.ndarray]]:
        examples, count = self.examples(epoch), len(self.lengths)
        order = np.random.default_rng((self.seed, epoch)).permutation(len(examples))
        ids = np.full((len(self) * self.rows(0), 5), -1, np.int64)
        ids[:count] = examples[np.resize(order, count)]
        return [(0, batch) for batch in ids.reshape(len(self), -1)]

    @cached_property
    def _digest(self) -> str:
        parts = self.next_sentence, self.short_probability, self.dynamic, super()._digest
        digest = hashlib.sha256(repr(parts).encode())
        for array in (self.sentences.tokens, self.sentences.ends, self.sentences.documents):
            digest.update(array.astype("<i8").tobytes())
        return digest.hexdigest()


def _trim(examples: np.ndarray, capacity: int, rng: np.random.Generator) -> np.ndarray:
    """Cuts segments to fit: the longer one loses tokens until it is no longer than the other."""
    a0, a1, b0, b1, is_random = examples.T
    size = np.stack([a1 - a0, b1 - b0])
    half = np.array([[(capacity + 1) // 2], [capacity // 2]])
    lost = size - np.minimum(size, np.maximum(capacity - size[::-1], half))
    front = rng.binomial(lost, 0.5)
    back = lost - front
    return np.stack([a0 + front[0], a1 - back[0], b0 + front[1], b1 - back[1], is_random], axis=1)


def load_pairs(
    ids: Int64[np.ndarray, "rows 6"],
    shape: Shape,
    sentences: Sentences,
    tokenizer: Tokenizer,
    hide: Callable[[Batch, Int64[np.ndarray, "rows"]], Batch] | None = None,
) -> Batch:
    """The examples of a `PairPlan` as [CLS] A [SEP] B [SEP], or [CLS] A [SEP].

    `tokens` and `types` (1 from B's first token to the end token after it, else 0) are int32 [rows,
    length], `mask` is bool, True on the tokens, and `is_random` int32 [rows]; padding rows are 0
    there. `hide`, such as a `masking.Masker`, gets the batch and the rows' random seeds."""
    a0, a1, b0, b1, is_random, draws = ids.T[:, :, None]
    positions = np.arange(shape[0])
    a_end = a1 - a0 + 1  # where the end token of A stands
    end = np.where(b1 > b0, a_end + b1 - b0 + 1, a_end)
    in_a, types = positions < a_end, (positions > a_end) & (positions <= end)
    source = np.where(in_a, a0 + positions - 1, b0 + positions - a_end - 1)
    tokens = sentences.tokens.take(source, mode="clip")
    tokens[(positions == a_end) | (positions == end)] = tokenizer.eos_id
    tokens[:, 0] = tokenizer.bos_id
    mask = (positions <= end) & (a0 >= 0)
    batch = {
        "tokens": np.where(mask, tokens, np.int32(tokenizer.pad_id)),
        "types": (types & mask).astype(np.int32),
        "mask": mask,
        "is_random": np.maximum(is_random[:, 0], 0).astype(np.int32),
    }
    return batch if hide is None else hide(batch, draws[:, 0])
