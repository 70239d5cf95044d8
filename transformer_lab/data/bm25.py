"""BM25, the ranking by words that a trained retriever has to beat (Robertson 2009, section 3)."""

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float


class BM25:
    """Scores documents by the words that they share with a query.

    A word of the query adds idf * f (k1 + 1) / (f + k1 (1 - b + b * length / mean length)) to a
    document that has it f times, where idf = log(1 + (N - n + 1/2) / (n + 1/2)) for a word in n of
    the N documents. Case does not matter, and a word is a run of letters and digits."""

    def __init__(self, documents: Sequence[str], k1: float = 1.5, b: float = 0.75):
        self.size = len(documents)
        counts = [Counter(words(text)) for text in documents]
        lengths = np.array([count.total() for count in counts], np.float32)
        penalties = k1 * (1 - b + b * lengths / max(lengths.mean(), 1e-9))
        found: dict[str, list[tuple[int, float]]] = {}
        for i, count in enumerate(counts):
            for word, f in count.items():
                found.setdefault(word, []).append((i, f * (k1 + 1) / (f + penalties[i])))
        self._weights = {}  # of each word, the documents that have it, and what it adds to them
        for word, some in found.items():
            idf = np.log1p((self.size - len(some) + 0.5) / (len(some) + 0.5))
            ids, shares = zip(*some, strict=True)
            self._weights[word] = np.array(ids), np.array(shares) * idf

    def scores(self, queries: Sequence[str]) -> Float[np.ndarray, "queries documents"]:
        """The score of each document for each query; 0 where they share no word."""
        scores = np.zeros((len(queries), self.size), np.float32)
        for row, query in zip(scores, queries, strict=True):
            for word in words(query):
                if word in self._weights:
                    ids, weights = self._weights[word]
                    row[ids] += weights
        return scores


def words(text: str) -> list[str]:
    """The words of a text, in lower case."""
    return re.findall(r"\w+", text.lower())
