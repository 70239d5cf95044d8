"""Tags of words by counts: a hidden Markov model of tags, and each word's most frequent one."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

import jax
import numpy as np
from jaxtyping import Float

from transformer_lab.data.labelled import Tagged
from transformer_lab.ops import hmm
from transformer_lab.tasks.building import parts_of

SUFFIX, RARE, ROWS = 4, 10, 64  # characters; the most occurrences of a rare word; sentences at once


class CountedTags:
    """Counts of tags: after each other, of words, and of the suffixes of rare words (Brants 2000).

    A word has the tags' shares among its occurrences, mixed with one more occurrence that has those
    of its longest suffix, which are mixed likewise with those of the next shorter one.
    """

    def __init__(self, rows: Sequence[Tagged]):
        self.tags = sorted({tag for row in rows for tag in row.tags})
        number, k = {tag: i for i, tag in enumerate(self.tags)}, len(self.tags)
        self.words, self.suffixes = (defaultdict(lambda: np.zeros(k)) for _ in range(2))
        start, moves = np.ones(k), np.zeros((k, k))
        for row in rows:
            ids = [number[tag] for tag in row.tags]
            start[ids[0]] += 1
            for before, after in pairwise(ids):
                moves[before, after] += 1
            for word, i in zip(row.words, ids, strict=True):
                self.words[word][i] += 1
        for word, counts in self.words.items():
            for n in range(SUFFIX + 1) if counts.sum() <= RARE else ():
                self.suffixes[word[len(word) - n :]] += counts
        share = sum(self.words.values()) / sum(map(np.sum, self.words.values()))
        self.share, self.start = np.log(share), np.log(start / start.sum())
        self.moves = np.log((moves + share) / (moves.sum(axis=1, keepdims=True) + 1))

    def shares(self, word: str) -> Float[np.ndarray, "k"]:
        """The probability of each tag, given the word alone."""
        found = np.exp(self.share)
        for n in range(min(SUFFIX, len(word)) + 1):
            counts = self.suffixes.get(word[len(word) - n :], 0.0)
            found = (counts + found) / (np.sum(counts) + 1)
        counts = self.words.get(word, 0.0)
        return (counts + found) / (np.sum(counts) + 1)

    def commonest(self, sentences: Sequence[Sequence[str]]) -> list[list[str]]:
        """The likeliest tag of each word by itself."""
        return [[self.tags[self.shares(w).argmax()] for w in words] for words in sentences]

    def likeliest(self, sentences: Sequence[Sequence[str]]) -> list[list[str]]:
        """The likeliest tags of whole sentences: p(word | tag) is p(tag | word) / p(tag) but for a
        factor of the word, and each tag follows the one before it."""
        run = jax.jit(jax.vmap(hmm.viterbi, (None, None, 0, 0)))
        found: list[list[str]] = [[] for _ in sentences]
        order = sorted(range(len(sentences)), key=lambda i: len(sentences[i]))
        for ids, count in parts_of(np.array(order), ROWS):
            longest = -(-max(len(sentences[i]) for i in ids) // 32) * 32  # few shapes to compile
            emitted = np.zeros((ROWS, longest, len(self.tags)), np.float32)
            for row, i in enumerate(ids):
                for t, word in enumerate(sentences[i]):
                    emitted[row, t] = np.log(self.shares(word)) - self.share
            lengths = np.array([len(sentences[i]) for i in ids])
            paths = run(self.start, self.moves, emitted, np.arange(longest) < lengths[:, None])[0]
            for i, path in zip(ids[:count], np.asarray(paths), strict=False):
                found[i] = [self.tags[tag] for tag in path[: len(sentences[i])]]
        return found
