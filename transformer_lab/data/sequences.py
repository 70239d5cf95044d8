"""Generated sequences with targets at some positions, which test a model's memory."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from jaxtyping import Bool, Integer

from transformer_lab.data.images.sources import ImageConfig
from transformer_lab.data.splits import SOURCES, SPLITS, SourceConfig, Splits, read
from transformer_lab.errors import LabError, at_least
from transformer_lab.kinds import kind


@dataclass(frozen=True)
class SequencesConfig(SourceConfig):
    """Settings of sequences: the source, the length, how many there are, and their difficulty."""

    source: str = "mqar"  # mqar | selective_copying | induction_heads | listops | pixels
    length: int = 64  # tokens of a sequence; for listops the most, for pixels height x width
    train_size: int = 20_000  # sequences of each split; for pixels the most (0: all)
    validation_size: int = 1000  # sequences held out
    test_size: int = 1000  # sequences for the final scores
    other_size: int = 256  # test sequences of each of `task.other_lengths`
    vocabulary: int = 0  # size of the vocabulary; 0: as in the source's paper
    pairs: int = 4  # for mqar: pairs of a key and its value in a sequence
    gap_power: float = 0.01  # for mqar: a gap g before a query has chances as g^(gap_power - 1)
    remembered: int = 16  # for selective_copying: tokens to repeat
    images: str = "fashion_mnist"  # for pixels: the source of images
    path: str = ""  # for pixels: a local copy of the images
    seed: int = 0  # another number makes others

    KIND = "sequences"

    def __post_init__(self):
        super().__post_init__()
        at_least(self, "config.data", 0, "vocabulary", "seed")
        at_least(self, "config.data", 1, "length", "other_size", "pairs", "remembered")
        if self.source == "pixels":
            ImageConfig(source=self.images, path=self.path)
        else:
            at_least(self, "config.data", 1, *(f"{split}_size" for split in SPLITS))


@dataclass(frozen=True)
class Sequences(Sequence):
    """Sequences of one length: tokens, targets, and a mask of the positions with a target.

    Shorter sequences end with zeros, and positions without a target are masked."""

    tokens: Integer[np.ndarray, "n t"]
    targets: Integer[np.ndarray, "n t"]  # 0 where the mask is False
    mask: Bool[np.ndarray, "n t"]  # True at positions with a target

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        """One sequence: its tokens, its targets, and the mask of positions with targets."""
        names = "tokens", "targets", "mask"
        return {name: getattr(self, name)[index] for name in names}

    def take(self, rows: Integer[np.ndarray, "m"] | Bool[np.ndarray, "n"]) -> "Sequences":
        """The sequences with these indices, or where the array is True."""
        return Sequences(self.tokens[rows], self.targets[rows], self.mask[rows])

    def contents(self) -> Iterator[bytes]:
        """The tokens of each sequence as bytes, by which duplicates are found."""
        return map(partial(np.ndarray.tobytes), self.tokens)


@dataclass(frozen=True)
class SequenceSplits(Splits):
    """The generated sequences of each split, and the counts for a report."""

    content: str = ""  # SHA-256 of all sequences

    def fingerprint(self) -> str:
        return self.content


def vocabulary_of(config: SequencesConfig) -> int:
    """The size of the vocabulary, which is known before any sequence is made."""
    module = kind(SOURCES, f"def {config.KIND}", "config.data.source", config.source)
    return config.vocabulary or module.VOCABULARY


def make(config: SequencesConfig, split: str, length: int, size: int) -> Sequences:
    """The sequences of a split, always the same; each split and length has its own stream."""
    stream = 0 if length == config.length else length
    draw = np.random.default_rng((config.seed, SPLITS.index(split), stream))
    found = read(config, split, length, size, draw)
    dtype = np.min_scalar_type(vocabulary_of(config) - 1)
    return Sequences(found.tokens.astype(dtype), found.targets.astype(dtype), found.mask)


def load_sequences(config: SequencesConfig) -> SequenceSplits:
    """The splits of a config, always the same; no held-out sequence is trained on."""
    sizes = {split: getattr(config, f"{split}_size") for split in SPLITS}
    rows = {split: make(config, split, config.length, size) for split, size in sizes.items()}
    held = {key for split in SPLITS[1:] for key in rows[split].contents()}
    new = np.array([key not in held for key in rows["train"].contents()], bool)
    if not new.any():
        raise LabError("there are too few sequences to hold some out: raise config.data.length")
    report = {} if new.all() else {"in_another_split": int((~new).sum())}
    rows["train"] = rows["train"].take(new)
    digest = hashlib.sha256()
    for split in SPLITS:
        for array in (rows[split].tokens, rows[split].targets, rows[split].mask):
            digest.update(repr((split, array.shape)).encode() + array.tobytes())
    report |= {split: len(rows[split]) for split in SPLITS}
    licence = "that of the images" if config.source == "pixels" else "none needed (generated)"
    return SequenceSplits(**rows, report=report, licence=licence, content=digest.hexdigest())


def distinct(
    draw: np.random.Generator, low: int, high: int, shape: tuple[int, int]
) -> Integer[np.ndarray, "n k"]:
    """Rows of k different numbers from `low` to `high` - 1, each such row equally likely."""
    if shape[1] > high - low:
        raise LabError(
            f"config.data.vocabulary has no {shape[1]} different tokens for a sequence: raise it"
        )
    found = draw.integers(low, high, shape)
    while (again := (np.diff(np.sort(found, axis=1), axis=1) == 0).any(axis=1)).any():
        found[again] = draw.integers(low, high, (int(again.sum()), shape[1]))
    return found


def at_end(tokens: Integer[np.ndarray, "n t"], answers: Integer[np.ndarray, "n k"]) -> Sequences:
    """Sequences whose targets are the answers to the last k positions."""
    targets, mask = np.zeros_like(tokens), np.zeros(tokens.shape, bool)
    targets[:, -answers.shape[1] :], mask[:, -answers.shape[1] :] = answers, True
    return Sequences(tokens, targets, mask)
