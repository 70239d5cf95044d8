"""Masked language modelling: chooses the tokens of a row to hide, and what replaces them."""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int, Int64

from transformer_lab.errors import LabError
from transformer_lab.text import Tokenizer

Batch = dict[str, np.ndarray]


@dataclass(frozen=True)
class MaskingConfig:
    """How much is hidden, and how; the defaults are BERT's (Devlin 2019, section 3.1)."""

    rate: float = 0.15  # share of tokens that are chosen
    mask_share: float = 0.8  # share of the chosen tokens that become the mask token
    random_share: float = 0.1  # share that become a random token; the rest is unchanged
    whole_words: bool = False  # words are chosen with all their tokens

    def __post_init__(self):
        if not 0 < self.rate <= 1:
            raise LabError(f"masking rate = {self.rate} must be above 0 and at most 1")
        kept = 1 - self.mask_share - self.random_share
        if min(self.mask_share, self.random_share, kept) < -1e-9:
            raise LabError(
                f"masking mask_share = {self.mask_share} and random_share = {self.random_share}"
                " must be shares, 1 at most together"
            )


class Masker:
    """Hides tokens of a batch, as a pure function of the batch and a random seed for each row.

    Of n tokens (or words) that are not special, `rate * n` are chosen, randomly rounded up or down
    so that each is chosen with probability `rate`."""

    def __init__(self, tokenizer: Tokenizer, config: MaskingConfig):
        if tokenizer.mask_id is None:
            kind = tokenizer.config.kind
            raise LabError(f"a {kind} tokenizer has no mask token: train one of kind wordpiece")
        self.config, self.mask_id = config, tokenizer.mask_id
        ids = range(tokenizer.vocab_size)
        self._special = np.isin(ids, list(tokenizer.special_ids))
        self._ordinary = np.flatnonzero(~self._special).astype(np.int32)
        if not len(self._ordinary):
            raise LabError("the tokenizer has special tokens only: nothing can be hidden")
        self._continues = None
        if config.whole_words:
            self._continues = np.fromiter(map(tokenizer.continues, ids), bool, len(ids))

    def places(self, length: int) -> int:
        """P, the most tokens that are hidden in a row: `rate * length` rounded up.

        Whole words may have more tokens: P is larger by sqrt(length), about four standard
        deviations; words that exceed it are not chosen."""
        margin = math.isqrt(length) if self.config.whole_words else 0
        return min(length, math.ceil(self.config.rate * length) + margin)

    def __call__(self, batch: Batch, draws: Int64[np.ndarray, "rows"]) -> Batch:
        """The batch with hidden tokens, and what they were.

        Reads `tokens` (int32 [rows, length]) and `mask` (bool, True on the tokens). `tokens` is
        replaced by a copy; new are `places` (int32 [rows, P], positions in rising order), `labels`
        (int32 [rows, P], the original tokens there) and `chosen` (bool [rows, P]; where it is
        False, position and label are 0)."""
        tokens = batch["tokens"]
        rows, length = tokens.shape
        # A generator for each row, so that its masks do not depend on the batch; padding has -1.
        keys = np.maximum(draws, 0).tolist()
        uniform = np.stack([np.random.default_rng(key).random((3, length + 1)) for key in keys])
        order, action, other = uniform[:, :, :length].swapaxes(0, 1)
        open_ = batch["mask"] & ~self._special[tokens]
        width = self.places(length)
        if self._continues is None:
            picked = _pick(open_, order, uniform[:, 0, length], self.config.rate)
        else:
            word = _words(open_, self._continues[tokens])
            picked = _pick_words(word, order, uniform[:, 0, length], self.config.rate, width)
        row, column = np.nonzero(picked)
        rank = (picked.cumsum(axis=1) - 1)[row, column]
        places, labels = np.zeros((2, rows, width), np.int32)
        places[row, rank], labels[row, rank] = column, tokens[row, column]
        chosen = np.zeros((rows, width), bool)
        chosen[row, rank] = True
        new = {"tokens": self._replace(tokens, picked, action, other), "places": places}
        return {**batch, **new, "labels": labels, "chosen": chosen}

    def _replace(self, tokens, picked, action, other) -> Int[np.ndarray, "rows length"]:
        masked = action < self.config.mask_share
        random = ~masked & (action < self.config.mask_share + self.config.random_share)
        drawn = self._ordinary[(other * len(self._ordinary)).astype(np.int64)]
        hidden = np.where(picked & masked, np.int32(self.mask_id), tokens)
        return np.where(picked & random, drawn, hidden)


def _pick(
    open_: Bool[np.ndarray, "rows n"],
    order: Float[np.ndarray, "rows n"],
    chance: Float[np.ndarray, "rows"],
    rate: float,
) -> Bool[np.ndarray, "rows n"]:
    """Chooses a share of each row's open positions; `chance` decides how it is rounded."""
    count = np.floor(rate * open_.sum(axis=1) + chance)
    ranks = np.where(open_, order, 2.0).argsort(axis=1).argsort(axis=1)
    return open_ & (ranks < count[:, None])


def _words(
    open_: Bool[np.ndarray, "rows n"], continues: Bool[np.ndarray, "rows n"]
) -> Int64[np.ndarray, "rows n"]:
    """The number, from 0, of the word in its row that each token belongs to; -1 for none."""
    before = np.pad(open_[:, :-1], ((0, 0), (1, 0)))
    begins = open_ & ~(continues & before)
    return np.where(open_, begins.cumsum(axis=1) - 1, -1)


def _pick_words(word, order, chance, rate: float, width: int) -> Bool[np.ndarray, "rows n"]:
    """As `_pick`, but chooses whole words in a random order until `width` tokens are used."""
    rows, length = word.shape
    exists = np.arange(length) <= word.max(axis=1, initial=-1)[:, None]
    picked = _pick(exists, order, chance, rate)
    row = np.broadcast_to(np.arange(rows)[:, None], word.shape)[word >= 0]
    sizes = np.zeros((rows, length), np.int64)
    np.add.at(sizes, (row, word[word >= 0]), 1)
    sizes = np.where(picked, sizes, 0)
    ranks = np.where(picked, order, 2.0).argsort(axis=1)
    total = np.take_along_axis(sizes, ranks, axis=1).cumsum(axis=1)
    fits = np.zeros_like(picked)
    np.put_along_axis(fits, ranks, total <= width, axis=1)
    return (word >= 0) & np.take_along_axis(picked & fits, np.maximum(word, 0), axis=1)
