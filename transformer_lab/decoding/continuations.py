"""Log-probabilities of given continuations, where many share what stands before them."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from transformer_lab.decoding.batch import Batch, fill

SHORTEST = 16, 8  # lengths of contexts and of continuations are these times a power of two


class Scored(NamedTuple):
    """A continuation's log-probability, and whether each of its tokens is the likeliest one."""

    log_prob: float
    greedy: bool


class Continuations:
    """Scores continuations with a decoder-only model, reading each context once.

    A context is read into a cache, of which every continuation gets a copy. Contexts and
    continuations of similar lengths form a batch; lengths come in few sizes, each compiled once.
    A context that is too long for the model loses its first tokens."""

    def __init__(
        self,
        model: nn.Module,
        rows: int = 32,
        rows_multiple: int = 1,
        place: Callable[[Batch], Batch] | None = None,
    ):
        """About `rows` continuations form a batch, of a multiple of `rows_multiple` contexts;
        `place` puts it on devices."""
        self.model, self.rows, self.rows_multiple = model, rows, rows_multiple
        self._place = place or (lambda batch: jax.tree.map(jnp.asarray, batch))
        self._score = jax.jit(partial(_score, model))

    def __call__(
        self, params: Any, groups: Sequence[tuple[Sequence[int], Sequence[Sequence[int]]]]
    ) -> Iterator[tuple[int, list[Scored]]]:
        """Yields (number of the group, the scores of its continuations) as they are computed.

        A group is a context, at least one token long, and the continuations that follow it."""
        most = max((len(ends) for _, ends in groups), default=1)
        contexts = -(-max(self.rows // most, 1) // self.rows_multiple) * self.rows_multiple
        shapes = {n: self._shape(*group) for n, group in enumerate(groups)}
        order = sorted(shapes, key=shapes.get)
        for first in range(0, len(order), contexts):
            some = order[first : first + contexts]
            shape = tuple(max(sizes) for sizes in zip(*map(shapes.get, some), strict=True))
            yield from self._batch(params, groups, some, shape, contexts, most)

    def _shape(self, context: Sequence[int], ends: Sequence[Sequence[int]]) -> tuple[int, int]:
        """The lengths that hold a context but its last token, and its continuations."""
        read, made = len(context) - 1, max(map(len, ends))
        sizes = [
            size << max(-(-n // size) - 1, 0).bit_length()
            for n, size in zip((read, made), SHORTEST, strict=True)
        ]
        return min(sizes[0], self.model.config.max_length), sizes[1]

    def _batch(self, params, groups, some, shape, contexts: int, most: int):
        read, made = shape
        room = max(self.model.config.max_length - made, 1)
        heads = [list(groups[n][0])[-room:] for n in some]
        rows = [(k, end) for k, n in enumerate(some) for end in groups[n][1]]
        count = contexts * most
        tokens, real = fill([head[:-1] for head in heads], contexts, read, left=True)
        inputs, targets = np.zeros((2, count, made), np.int32)
        mask, owner = np.zeros((count, made), bool), np.zeros(count, np.int32)
        for row, (k, end) in enumerate(rows):
            inputs[row, : len(end)] = [heads[k][-1], *end[:-1]]
            targets[row, : len(end)], mask[row, : len(end)], owner[row] = end, True, k
        batch = {"tokens": tokens, "segments": real.astype(np.int32)}
        batch |= {"inputs": inputs, "targets": targets, "mask": mask, "owner": owner}
        log_probs, greedy = jax.device_get(self._score({"params": params}, self._place(batch)))
        start = 0
        for n in some:
            end = start + len(groups[n][1])
            pairs = zip(log_probs[start:end].tolist(), greedy[start:end].tolist(), strict=True)
            yield n, [Scored(*pair) for pair in pairs]
            start = end


def _score(
    model: nn.Module, variables: Any, batch: Batch
) -> tuple[Float[Array, "r"], Bool[Array, "r"]]:
    """The sum of the log-probabilities of each row's targets, and whether all are the likeliest."""
    tokens, inputs = batch["tokens"], batch["inputs"]
    length = tokens.shape[1] + inputs.shape[1]
    _, cache = model.apply(variables, tokens, batch["segments"], length, method="prefill")
    own = lambda x: x[batch["owner"]]  # noqa: E731
    cache |= {"start": own(cache["start"]), "layers": jax.tree.map(own, cache["layers"])}
    logits, _ = model.apply(variables, inputs, cache, method="step")
    found = _chosen(logits, batch["targets"])
    right = (logits.argmax(axis=-1) == batch["targets"]) | ~batch["mask"]
    return jnp.where(batch["mask"], found, 0.0).sum(axis=1), right.all(axis=1)


def _chosen(logits: Float[Array, "r t v"], targets: Int[Array, "r t"]) -> Float[Array, "r t"]:
    """The log-probabilities of the targets."""
    own = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return own - jax.nn.logsumexp(logits, axis=-1)
