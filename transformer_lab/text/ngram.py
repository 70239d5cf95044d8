"""The n-gram language model (Shannon 1948), as a baseline for networks.

It is smoothed by interpolated Kneser-Ney over token ids. With h' the context h without its first
token,

    p(w | h) = (c(hw) - D(c(hw))) / c(h) + g(h) p(w | h'),    c(h) = sum_w c(hw),
    g(h) = sum_w D(c(hw)) / c(h), or 1 for a context that was never followed by anything,

down to p = 1 / V below order 1. At the highest order c counts occurrences, at lower orders the
different tokens seen before hw (Kneser & Ney 1995; Chen & Goodman 1999)."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import SupportsIndex

import numpy as np
from jaxtyping import Float, Integer

from transformer_lab.errors import LabError

Ids = Sequence[SupportsIndex] | Integer[np.ndarray, "_"]


@dataclass(frozen=True, eq=False)
class _Order:
    """The n-grams of one order: nodes of a tree in which a node's parent is its context.

    A node's number is its index in `keys`, and its key is parent * V + token. So the n-grams of a
    context are neighbours, and both one n-gram and a context's are found by binary search."""

    keys: Integer[np.ndarray, "nodes"]  # sorted
    kept: Float[np.ndarray, "nodes"]  # (c - D) / c(h); 0 where only padding was seen
    given: Float[np.ndarray, "contexts"]  # g(h), indexed by the node of h in the order below

    @classmethod
    def of(cls, keys, counts, contexts: int, vocab_size: int) -> "_Order":
        parents = keys // vocab_size
        discounts = _discounts(counts)[np.minimum(counts, 3)]
        totals = np.bincount(parents, counts, contexts)
        free = np.bincount(parents, discounts, contexts)
        given = np.divide(free, totals, out=np.ones(contexts), where=totals > 0)
        return cls(keys, (counts - discounts) / totals[parents], given)


@dataclass(frozen=True, eq=False)
class NGram:
    """A trained model; a document is read as `order - 1` times bos, its tokens, and eos."""

    order: int
    vocab_size: int
    bos_id: int
    eos_id: int
    orders: tuple[_Order, ...]  # order 1 first

    @classmethod
    def train(
        cls,
        documents: Iterable[Ids],
        order: int,
        vocab_size: int,
        bos_id: int,
        eos_id: int,
    ) -> "NGram":
        """Counts the n-grams of all orders up to `order`, within documents.

        Counts of 1, 2, and 3 or more have a discount D each. Raises: LabError for an order below 1,
        no tokens at all, or an id outside the vocabulary."""
        if order < 1:
            raise LabError(f"n-gram order = {order} must be at least 1")
        _check_ids([bos_id, eos_id], vocab_size, "bos_id and eos_id")
        model = cls(order, vocab_size, bos_id, eos_id, ())
        rows = [_check_ids(d, vocab_size, f"document {i}") for i, d in enumerate(documents)]
        if not any(map(len, rows)):
            raise LabError("the training corpus of the n-gram model is empty")
        tokens = np.concatenate([model._padded(row) for row in rows])
        lengths = np.array([order + len(row) for row in rows])
        starts = np.cumsum(lengths) - lengths
        tree = list(_tree(tokens, starts, order, vocab_size))
        place = np.arange(len(tokens)) - np.repeat(starts, lengths)
        counts = _counts(tree, place >= order - 1)
        sizes = [1, *(len(keys) for keys, _ in tree[:-1])]
        orders = (
            _Order.of(keys, count, size, vocab_size)
            for (keys, _), count, size in zip(tree, counts, sizes, strict=True)
        )
        return cls(order, vocab_size, bos_id, eos_id, tuple(orders))

    def log_probs(self, ids: Ids) -> Float[np.ndarray, "targets"]:
        """The natural log of the probability of each token of a document, then that of eos."""
        ids = _check_ids(ids, self.vocab_size, "the document")
        prob = np.full(self.order + len(ids), 1 / self.vocab_size)
        for order, context, node in self._walk(ids):
            mixed = order.kept[node] * (node >= 0) + order.given[context] * prob
            prob = np.where(context >= 0, mixed, prob)
        return np.log(prob[self.order - 1 :])

    def distribution(self, context: Ids) -> Float[np.ndarray, "vocab"]:
        """The probability of every token after `context`, which begins with its document."""
        context = _check_ids(context, self.vocab_size, "the context")
        prob = np.full(self.vocab_size, 1 / self.vocab_size)
        # The walk's last position is after the context, and its own token has no effect.
        for order, nodes, _ in self._walk(context[-self.order :]):
            if nodes[-1] >= 0:
                first = nodes[-1] * self.vocab_size
                low, high = np.searchsorted(order.keys, [first, first + self.vocab_size])
                prob *= order.given[nodes[-1]]
                prob[order.keys[low:high] - first] += order.kept[low:high]
        return prob

    def after(self) -> Callable[[Sequence[int]], Float[np.ndarray, "vocab"]]:
        """A function from a text's tokens so far to the log-probabilities of the next, each context
        computed once."""
        known = cache(lambda context: np.log(self.distribution(context)))
        return lambda ids: known(tuple(ids[-self.order :]))

    def sample(
        self,
        prompt: Ids,
        max_new_tokens: int,
        rng: np.random.Generator | int,
        temperature: float = 1.0,
    ) -> list[int]:
        """Random tokens that continue `prompt`, up to eos (left out); `rng` is a generator or seed.

        Temperature 0 takes the most probable token; a negative one raises LabError."""
        if not temperature >= 0:
            raise LabError(f"temperature = {temperature} must be at least 0 (0: greedy)")
        rng = np.random.default_rng(rng)
        ids = _check_ids(prompt, self.vocab_size, "the prompt").tolist()
        for _ in range(max_new_tokens):
            prob = self.distribution(ids[-self.order :])
            if temperature:
                prob = (prob / prob.max()) ** (1 / temperature)
                token = int(rng.choice(self.vocab_size, p=prob / prob.sum()))
            else:
                token = int(prob.argmax())
            if token == self.eos_id:
                break
            ids.append(token)
        return ids[len(prompt) :]

    def sizes(self) -> list[int]:
        """The number of different n-grams of each order in the training text."""
        return [int(np.count_nonzero(order.kept)) for order in self.orders]

    def _padded(self, ids: np.ndarray) -> np.ndarray:
        return np.concatenate([np.full(self.order - 1, self.bos_id), ids, [self.eos_id]])

    def _walk(self, ids: np.ndarray) -> Iterator[tuple[_Order, np.ndarray, np.ndarray]]:
        """For each order and position of the padded document, the nodes of the context and the
        gram.

        They are -1 for n-grams not seen in training, or that would begin before the document."""
        tokens = self._padded(ids)
        context = np.zeros(len(tokens), np.int64)
        for order in self.orders:
            keys = context * self.vocab_size + tokens  # negative without a context: not found
            near = np.minimum(np.searchsorted(order.keys, keys), len(order.keys) - 1)
            node = np.where(order.keys[near] == keys, near, -1)
            yield order, context, node
            context = np.concatenate([[-1], node[:-1]])


def _tree(
    tokens: np.ndarray, starts: np.ndarray, order: int, vocab_size: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """For each order the keys of all n-grams, and at each position the node of the one ending
    there.

    The node is -1 if the n-gram would begin before its document."""
    context = np.zeros(len(tokens), np.int64)
    for _ in range(order):
        node = np.full(len(tokens), -1)
        inside = context >= 0
        keys = context[inside] * vocab_size + tokens[inside]
        keys, node[inside] = np.unique(keys, return_inverse=True)
        yield keys, node
        context = np.roll(node, 1)
        context[starts] = -1


def _counts(tree: list[tuple[np.ndarray, np.ndarray]], target: np.ndarray) -> list[np.ndarray]:
    """The count c of each node, order by order; 0 for n-grams that only end in padding."""
    ends = [node[target] for _, node in tree]
    counts = []
    for (keys, _), short, longer in zip(tree, ends, ends[1:], strict=False):
        # Each different longer n-gram adds one to the shorter one that is its suffix.
        suffix = np.full(longer.max() + 1, -1)
        suffix[longer] = short
        counts.append(np.bincount(suffix[suffix >= 0], minlength=len(keys)))
    return [*counts, np.bincount(ends[-1], minlength=len(tree[-1][0]))]


def _discounts(counts: np.ndarray) -> Float[np.ndarray, "4"]:
    """The discounts D of counts 0, 1, 2, and 3 or more, from the numbers of n-grams counted 1 to 4.

    D_k = k - (k + 1) Y n_{k+1} / n_k, Y = n_1 / (n_1 + 2 n_2) = D_1 (Chen & Goodman 1999); k / 2 if
    the corpus is too small for an estimate between 0 and k."""
    k = np.arange(1, 4)
    n = np.bincount(np.minimum(counts, 5), minlength=6)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = k - (k + 1) * (n[1] / (n[1] + 2 * n[2])) * n[2:5] / n[1:4]
    found = np.where((found > 0) & (found < k), found, k / 2)
    return np.concatenate([[0.0], found])


def _check_ids(ids: object, vocab_size: int, what: str) -> Integer[np.ndarray, "n"]:
    try:
        array = np.asarray(ids)
    except ValueError:  # lists of unequal length
        array = np.zeros((0, 0))
    if array.ndim == 1 and not array.size:
        return np.zeros(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise LabError(f"{what}: token ids must be a flat list of integers")
    for token in (array.min(), array.max()):
        if not 0 <= token < vocab_size:
            raise LabError(
                f"{what} holds token id {token}, outside the vocabulary of {vocab_size}:"
                " was it made by another tokenizer?"
            )
    return array.astype(np.int64)
