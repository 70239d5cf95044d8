"""Windows of words and negative samples for word vectors (Mikolov 2013b, 2.2 and 2.3)."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int, Int64

from transformer_lab.data.batching import RowPlan
from transformer_lab.data.buckets import Shape
from transformer_lab.data.ragged import Ragged
from transformer_lab.errors import LabError, at_least

Batch = dict[str, np.ndarray]


@dataclass(frozen=True)
class WindowConfig:
    """Settings of word windows: their size, the negative samples, and subsampling."""

    window: int = 5  # most words on each side; the number is random for each word
    negatives: int = 5  # random words drawn for each true neighbour
    subsample: float = 1e-3  # a word of frequency f stays with probability sqrt(this / f); 0: all
    power: float = 0.75  # words are drawn with probability proportional to count to this power

    def __post_init__(self):
        at_least(self, "windows", 1, "window", "negatives")
        at_least(self, "windows", 0, "subsample")


class Windows:
    """Batches of a word with its neighbours, a function of (seed, step); ids below `first` are no
    words.

    A word dropped by subsampling leaves a gap: windows do not grow over it (the "clean" variant of
    Levy 2015, section 3.1). `counts` are those of the training documents."""

    def __init__(
        self,
        documents: Ragged,
        counts: Int[np.ndarray, "vocab"],
        config: WindowConfig,
        cbow: bool,
        first: int,
    ):
        self.config, self.cbow, self.first, self.tokens = config, cbow, first, documents.values
        self.document = np.repeat(np.arange(len(documents)), documents.lengths())
        counts = np.where(np.arange(len(counts)) < first, 0, counts)
        if not counts.any():
            raise LabError("no word of the training documents is in the tokenizer's vocabulary")
        self.kept = keep_probabilities(counts, config.subsample)
        weights = counts.astype(np.float64) ** config.power * (counts > 0)
        self.cumulative = np.cumsum(weights / weights.sum())
        self.cumulative[-1] = 1.0  # exactly 1 despite rounding

    def plan(self, rows: int, seed: int) -> RowPlan:
        """A plan in which each token is the middle of a window once in each epoch."""
        name = f"windows {self.config} {self.cbow} True"
        return RowPlan(name, np.ones(len(self.tokens), np.int64), 1, rows, seed)

    def load(self, ids: Int64[np.ndarray, "rows draw"], shape: Shape) -> Batch:
        """`inputs` and `inputs_mask` [rows, I]; `outputs` [rows, O, 1 + K], the true word first,
        with `outputs_mask`, and `counted` [rows, O]. Skip-gram has I = 1, CBOW O = 1."""
        rng = np.random.default_rng(ids[:, 1])
        size, rows = self.config.window, len(ids)
        offsets = np.array([*range(-size, 0), *range(1, size + 1)])
        positions = ids[:, :1] + offsets
        inside = (positions >= 0) & (positions < len(self.tokens))
        positions, middle = np.clip(positions, 0, len(self.tokens) - 1), np.maximum(ids[:, 0], 0)
        word, around = self.tokens[middle][:, None], self.tokens[positions]
        inside &= self.document[positions] == self.document[middle][:, None]
        inside &= np.abs(offsets) <= rng.integers(1, size + 1, (rows, 1))
        inside &= self._stays(around, rng)
        inside &= self._stays(word, rng) & (ids[:, :1] >= 0)
        inputs, true = (around, word) if self.cbow else (word, around)
        counted = inside.any(axis=1, keepdims=True) if self.cbow else inside
        drawn = np.searchsorted(
            self.cumulative, rng.random((*true.shape, self.config.negatives)), side="right"
        )
        outputs = np.concatenate([true[..., None], drawn], axis=-1).astype(np.int32)
        real = outputs != true[..., None]  # a drawn word that equals the true one does not count
        real[..., 0] = True
        return {
            "inputs": inputs,
            "inputs_mask": inside if self.cbow else np.ones_like(inputs, bool),
            "outputs": outputs,
            "outputs_mask": real,
            "counted": counted,
        }

    def _stays(self, words, rng) -> np.ndarray:
        return (words >= self.first) & (rng.random(words.shape) < self.kept[words])


def keep_probabilities(
    counts: Int[np.ndarray, "vocab"], subsample: float
) -> Float[np.ndarray, "vocab"]:
    """min(1, sqrt(subsample / frequency)) for each word (Mikolov 2013b, eq. 5)."""
    frequency = np.maximum(counts, 1) / max(counts.sum(), 1)
    return np.minimum(1.0, np.sqrt(subsample / frequency)) if subsample else np.ones(len(counts))
