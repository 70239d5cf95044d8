"""Retrieval: documents ranked for a query by vectors, by vectors of tokens, or read with it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from transformer_lab.data.bm25 import BM25
from transformer_lab.data.searches import Search, SearchesConfig, load_searches
from transformer_lab.errors import at_least, known
from transformer_lab.ops.losses import Pair, cross_entropy, masked_sum
from transformer_lab.ops.pooling import normalize
from transformer_lab.ops.retrieval import max_similarity
from transformer_lab.tasks.base import Batch, Joint, Params, Place, Scores
from transformer_lab.tasks.bucketed import Columns, Fields
from transformer_lab.tasks.encoder_task import TEXTS, ragged
from transformer_lab.tasks.scores import ranking
from transformer_lab.tasks.sentence_embedding import SentenceEmbedding, SentenceEmbeddingConfig

SCORINGS = ("vectors", "tokens", "cross")
Ranks = Float[np.ndarray, "queries documents"]


@dataclass(frozen=True)
class RetrievalConfig(SentenceEmbeddingConfig):
    """Settings of retrieval, the config section `task`."""

    # vectors: the cosine of one vector each (Karpukhin 2020); tokens: late interaction (Khattab
    # 2020); cross: the encoder reads query and document together (Nogueira 2019)
    scoring: str = "vectors"
    # A wrong document for each query is drawn from so many that BM25 ranks first; 0: from all
    hard: int = 30
    negatives: int = 1  # examples of each query and its document, each with another wrong one
    candidates: int = 20  # documents that cross ranks anew: BM25's first ones
    samples: int = 8  # queries shown at the end, with the documents found

    def __post_init__(self):
        super().__post_init__()
        known("task.scoring = ", self.scoring, SCORINGS)
        at_least(self, "task", 0, "hard", "samples")
        at_least(self, "task", 1, "negatives", "candidates")


SECTIONS = {**TEXTS, "task": RetrievalConfig, "data": SearchesConfig}


class Retrieval(SentenceEmbedding):
    """Trains scores of documents for queries to be highest for a document that fits.

    A batch holds `tokens` (queries), `pair` (a right document of each) and `negative` (a wrong
    one), with masks, and the documents' numbers `right` and `wrong` [rows]; all documents of a
    batch compete for each query. "red tea" with "a ball" and the wrong "a cup", before a row that
    only fills the batch:

        tokens         [[2, 8, 3, 1], [0, 0, 0, 0]]
        tokens_mask    [[1, 1, 1, 1], [0, 0, 0, 0]]
        pair           [[2, 4, 5, 1], [0, 0, 0, 0]]
        pair_mask      [[1, 1, 1, 1], [0, 0, 0, 0]]
        negative       [[2, 4, 6, 1], [0, 0, 0, 0]]
        negative_mask  [[1, 1, 1, 1], [0, 0, 0, 0]]
        right          [0, 0]
        wrong          [1, 0]

    With scoring = "cross", `tokens` and `negative` are query and document together, there is no
    `pair`, and only the two documents compete: [2, 8, 3, 1, 4, 5, 1] and [2, 8, 3, 1, 4, 6, 1].
    """

    COUNTED, load_data = "searches", load_searches
    PER_ROW = {"right": np.int32, "wrong": np.int32}

    @property
    def FIELDS(self) -> tuple[str, ...]:
        return ("tokens", "negative") if self.crosses else ("tokens", "pair", "negative")

    @property
    def HEAD(self) -> str:
        return "classes" if self.crosses else "none"

    @property
    def crosses(self) -> bool:
        """Whether the encoder reads query and document together."""
        return self.config.scoring == "cross"

    def fit(self, model_config: Any) -> Any:
        fitted = super().fit(model_config)
        return replace(fitted, labels=1) if self.crosses else fitted

    # Data.

    def train_texts(self) -> Iterator[str]:
        yield from (search.query for search in self.data.train)
        yield from self.data.documents

    @cached_property
    def bm25(self) -> BM25:
        """The ranking by words over the collection."""
        return BM25(self.data.documents)

    @cached_property
    def _document_ids(self) -> list[list[int]]:
        return self.tokenizer.encode_batch(list(self.data.documents))

    def encode_pairs(self, queries: Sequence[str], documents: Sequence[int]) -> Fields:
        """Token ids of each query together with the document of that number."""
        both = zip(self.tokenizer.encode_batch(queries), documents, strict=True)
        return ragged([self.encode(ids, self._document_ids[number]) for ids, number in both])

    def encode_split(self, split: str) -> tuple[Fields, Columns]:
        """Each query with each document that fits it, as often as `task.negatives` says."""
        rng = np.random.default_rng((self.seed, 7))
        rows = [
            (search.query, right, other)
            for search in self.examples(split)
            for right in search.documents
            for other in self._wrong(search, rng)
        ]
        queries = [row[0] for row in rows]
        right, wrong = (np.array([row[i] for row in rows], np.int32) for i in (1, 2))
        columns = {"right": right, "wrong": wrong}
        if self.crosses:
            read = [self.encode_pairs(queries, some.tolist())["tokens"] for some in (right, wrong)]
            return dict(zip(self.FIELDS, read, strict=True)), columns
        whole = ragged([self.encode(ids) for ids in self._document_ids])["tokens"]
        found = {"pair": whole.take(right), "negative": whole.take(wrong)}
        return self.encode_texts(queries) | found, columns

    def _wrong(self, search: Search, rng: np.random.Generator) -> np.ndarray:
        """`task.negatives` numbers of documents that do not fit a query."""
        scores = rng.random(len(self.data.documents), np.float32)
        if self.config.hard:
            scores = self.bm25.scores([search.query])[0]
        scores[list(search.documents)] = -1.0
        first = np.argsort(-scores, kind="stable")[: max(self.config.hard, self.config.negatives)]
        return rng.permutation(first)[: self.config.negatives]

    # What the trainer compiles.

    def _read(self, params: Params, batch: Batch, name: str, key: Any) -> jax.Array:
        """What a field is compared by: vectors [rows, d], states [rows, t, d] or scores [rows]."""
        own = {"tokens": batch[name], "tokens_mask": batch[f"{name}_mask"]}
        if self.config.scoring == "vectors":
            return self.vectors(params, own, key)
        out = self.apply(params, own, key)
        return out["logits"][:, 0] if self.crosses else normalize(out["states"])

    def _embed(self, params: Params, batch: Batch, dropout_key: Any = None) -> dict[str, jax.Array]:
        keys = (None,) * 3 if dropout_key is None else jax.random.split(dropout_key, 3)
        fields = zip(self.FIELDS, keys, strict=False)
        return {name: self._read(params, batch, name, key) for name, key in fields}

    def _compare(self, params: Params, found: dict, batch: Batch) -> dict[str, Pair]:
        """The cross-entropy of a query's own document among all of the batch; a copy of it that
        another row brought is no competitor."""
        real = batch["tokens_mask"][:, 0]
        rows = jnp.arange(len(real))
        if self.crosses:
            scores = jnp.stack([found["tokens"], found["negative"]], axis=1)
            place = jnp.zeros_like(rows)
        else:
            near = [self._near(found, batch, name) for name in ("pair", "negative")]
            scores, place = self.config.scale * jnp.concatenate(near, axis=1), rows
            numbers = jnp.concatenate([batch["right"], batch["wrong"]])
            copies = (numbers == batch["right"][:, None]).at[rows, rows].set(False)
            hidden = copies | ~jnp.concatenate([real, real])
            scores = jnp.where(hidden, jnp.finfo(jnp.float32).min, scores)
        right = (scores.argmax(axis=1) == place).astype(jnp.float32)
        return {
            "loss": masked_sum(cross_entropy(scores, place), real),
            "accuracy": masked_sum(right, real),
        }

    def _near(self, found, batch, name):
        """The similarities [queries, documents] of the queries and the documents of a field."""
        if self.config.scoring == "vectors":
            return found["tokens"] @ found[name].T
        masks = batch["tokens_mask"], batch[f"{name}_mask"]
        return max_similarity(found["tokens"], masks[0], found[name], masks[1])

    @cached_property
    def loss(self) -> Joint:
        """The loss of a whole batch, however many micro-batches it is computed in."""
        return Joint(self._embed, lambda *given: {"loss": self._compare(*given)["loss"]})

    def metrics(self, params: Params, batch: Batch) -> dict[str, Pair]:
        return self._compare(params, self._embed(params, batch), batch)

    # Scores.

    def rank(self, params: Params, queries: Sequence[str], place: Place) -> Ranks:
        """The score of each document of the collection for each query."""
        if self.crosses:
            return self._rank_again(params, queries, place)
        documents = ragged([self.encode(ids) for ids in self._document_ids])
        texts = self.encode_texts(queries)
        if self.config.scoring == "vectors":
            either = [self.each(self._vectors, params, x, {}, place) for x in (texts, documents)]
            return np.stack(either[0]) @ np.stack(either[1]).T
        states, each = (self._unit_states(params, x, place) for x in (texts, documents))
        starts = np.cumsum([0, *map(len, states)])[:-1]
        flat = np.concatenate(states)
        best = [np.add.reduceat((flat @ one.T).max(axis=1), starts) for one in each]
        return np.stack(best, axis=1) / np.array([len(x) for x in states], np.float32)[:, None]

    def _unit_states(self, params, fields, place) -> list[np.ndarray]:
        """The states of each text's tokens, of length 1."""
        states = self.outputs(params, fields, {}, place, "states")
        return [x / np.linalg.norm(x, axis=1, keepdims=True) for x in states]

    def _rank_again(self, params, queries, place) -> Ranks:
        """BM25's scores, but its first candidates in the order in which the encoder sees them."""
        scores = self.bm25.scores(queries)
        first = np.argsort(-scores, axis=1, kind="stable")[:, : self.config.candidates]
        repeated = [query for query in queries for _ in range(first.shape[1])]
        fields = self.encode_pairs(repeated, first.ravel().tolist())
        logits = np.stack(self.outputs(params, fields, {}, place))[:, 0].reshape(first.shape)
        above = scores.max() + 1 + logits - logits.min()
        np.put_along_axis(scores, first, above, axis=1)
        return scores

    def score(self, params: Params, split: str, place: Place, final: bool) -> Scores:
        """Recall, MRR and nDCG of the ranking; of BM25's, which it has to beat; and of both fused:
        the sum of 1 / (60 + rank) of the two (Cormack 2009)."""
        searches = self.examples(split) if final else []
        if not searches:
            return Scores()
        queries, right = [s.query for s in searches], [s.documents for s in searches]
        own, words = self.rank(params, queries, place), self.bm25.scores(queries)
        fused = sum(1 / (60 + ranks_of(scores)) for scores in (own, words))
        values: dict[str, float] = {}
        for prefix, scores in (("", own), ("bm25_", words), ("fused_", fused)):
            values |= ranking(scores, right, prefix)
        names, best = self.data.names, own.argmax(axis=1)
        some = zip(queries[: self.shown(final)], best, right, strict=False)
        samples = [(query, names[found][:80], names[r[0]][:80]) for query, found, r in some]
        return Scores(values | {"num_examples": len(queries)}, samples)


def ranks_of(scores: Ranks) -> Ranks:
    """The rank of each document for each query, from 1 on; of equal scores the first is better."""
    order = np.argsort(-scores, axis=1, kind="stable")
    return np.argsort(order, axis=1).astype(np.float32) + 1


build = Retrieval
