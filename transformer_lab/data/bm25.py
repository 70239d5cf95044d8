"""BM25, the ranking by words that a trained retriever has to beat (Robertson 2009, section 3)."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from sklearn.feature_extraction.text import CountVectorizer


class BM25:
    """Scores documents by the words that they share with a query.

    A word w of the query adds idf(w) * f (k1 + 1) / (f + k1 (1 - b + b * length / mean length)) to
    a document that has it f times, where idf(w) = log(1 + (N - n + 1/2) / (n + 1/2)) for a word in
    n of the N documents. Case does not matter, and a word is a run of letters and digits."""

    def __init__(self, documents: Sequence[str], k1: float = 1.5, b: float = 0.75):
        self._counter = CountVectorizer(token_pattern=r"\w+", dtype=np.float32)
        counts = self._counter.fit_transform(documents).tocsc()
        lengths = np.asarray(counts.sum(axis=1)).ravel()
        within = np.diff(counts.indptr)  # the number of documents with each word
        idf = np.log1p((len(documents) - within + 0.5) / (within + 0.5))
        penalty = k1 * (1 - b + b * lengths / max(lengths.mean(), 1e-9))
        f = counts.data
        counts.data = np.repeat(idf, within) * f * (k1 + 1) / (f + penalty[counts.indices])
        self._weights = counts.T.tocsr()  # [words, documents]

    def scores(self, queries: Sequence[str]) -> Float[np.ndarray, "queries documents"]:
        """The score of each document for each query; 0 where they share no word."""
        return (self._counter.transform(queries) @ self._weights).toarray().astype(np.float32)
