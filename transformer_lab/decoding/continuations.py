"""Log-probabilities of given continuations, where many share what stands before them."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import takewhile
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from transformer_lab.decoding.batch import Batch, fill
from transformer_lab.decoding.slots import token_axes

LEAST = 32  # tokens that contexts begin with in common, from which on they are read but once
SHORTEST = 16, 8  # lengths of contexts and of continuations are these times a power of two


class Scored(NamedTuple):
    """A continuation's log-probability, and whether each of its tokens is the likeliest one."""

    log_prob: float
    greedy: bool


class Shared(NamedTuple):
    """A beginning of many contexts: what the layers keep of it, and its length."""

    layers: Any
    length: int


class Continuations:
    """Scores continuations with a decoder-only model, reading each context once.

    A context is read into a cache, of which every continuation gets a copy. Contexts and
    continuations of similar lengths form a batch; lengths come in few sizes, each compiled once.
    A context that is too long for the model loses its first tokens. What at least half of the
    contexts begin with, such as solved examples, is read once for all of them, if the model keeps
    something for each token and each token sees those before it alone."""

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
        self._score = jax.jit(partial(_score, model), static_argnums=3)
        self._read = jax.jit(partial(_read, model), static_argnums=2)

    def __call__(
        self, params: Any, groups: Sequence[tuple[Sequence[int], Sequence[Sequence[int]]]]
    ) -> Iterator[tuple[int, list[Scored]]]:
        """Yields (number of the group, the scores of its continuations) as they are computed.

        A group is a context, at least one token long, and the continuations that follow it."""
        most = max((len(ends) for _, ends in groups), default=1)
        contexts = -(-max(self.rows // most, 1) // self.rows_multiple) * self.rows_multiple
        for shared, sizes in self._plan(params, groups):
            order = sorted(sizes, key=sizes.get)
            for first in range(0, len(order), contexts):
                some = order[first : first + contexts]
                shape = tuple(max(sides) for sides in zip(*map(sizes.get, some), strict=True))
                yield from self._batch(params, groups, some, shape, contexts, most, shared)

    def _plan(self, params: Any, groups) -> list[tuple[Shared | None, dict[int, tuple]]]:
        """Groups by what they begin with, each with the lengths of what is to be read."""
        head = common([list(context) for context, _ in groups])
        whole = {n: self._shape(*group) for n, group in enumerate(groups)}
        longest = max((made for _, made in whole.values()), default=0)
        room, after = self.model.config.max_length - len(head) - longest, {}
        for n, (context, ends) in enumerate(groups):
            rest = self._shape(context[len(head) :], ends)
            begins = len(context) > len(head) and list(context[: len(head)]) == head
            if begins and rest[0] <= room:
                after[n] = rest
        shared = None
        if after and len(head) >= LEAST and not self.model.reads_prefix:
            room = longest + max(read for read, _ in after.values())
            shared = self._shared(params, head, room)
        if shared is None:
            return [(None, whole)]
        return [(shared, after), (None, {n: x for n, x in whole.items() if n not in after})]

    def _shared(self, params: Any, head: list[int], room: int) -> Shared | None:
        """The cache of a beginning, with room for more tokens; None if it carries a state."""
        tokens, length = jnp.asarray([head], jnp.int32), len(head) + room
        read = lambda params, more: self._read({"params": params}, tokens, length + more)  # noqa: E731
        grows = min(jax.tree.leaves(token_axes(read, params))) >= 0
        return Shared(read(params, 0), len(head)) if grows else None

    def _shape(self, context: Sequence[int], ends: Sequence[Sequence[int]]) -> tuple[int, int]:
        """The lengths that hold a context but its last token, and its continuations."""
        read, made = len(context) - 1, max(map(len, ends))
        sizes = [
            size << max(-(-n // size) - 1, 0).bit_length()
            for n, size in zip((read, made), SHORTEST, strict=True)
        ]
        return min(sizes[0], self.model.config.max_length), sizes[1]

    def _batch(self, params, groups, some, shape, contexts: int, most: int, shared):
        read, made = shape
        room = max(self.model.config.max_length - made, 1)
        heads = [list(groups[n][0])[-room:] for n in some]
        rows = [(k, end) for k, n in enumerate(some) for end in groups[n][1]]
        count = contexts * most
        skip = shared.length if shared else 0
        rests = [head[skip:-1] for head in heads]
        tokens, real = fill(rests, contexts, read, left=not shared)
        inputs, targets = np.zeros((2, count, made), np.int32)
        mask, owner = np.zeros((count, made), bool), np.zeros(count, np.int32)
        for row, (k, end) in enumerate(rows):
            inputs[row, : len(end)] = [heads[k][-1], *end[:-1]]
            targets[row, : len(end)], mask[row, : len(end)], owner[row] = end, True, k
        batch = {"tokens": tokens, "segments": real.astype(np.int32)}
        batch |= {"inputs": inputs, "targets": targets, "mask": mask, "owner": owner}
        variables, batch = {"params": params}, self._place(batch)
        log_probs, greedy = jax.device_get(self._score(variables, batch, *shared or ()))
        start = 0
        for n in some:
            end = start + len(groups[n][1])
            pairs = zip(log_probs[start:end].tolist(), greedy[start:end].tolist(), strict=True)
            yield n, [Scored(*pair) for pair in pairs]
            start = end


def common(contexts: list[list[int]]) -> list[int]:
    """What at least half of the texts begin with; nothing for less than four of them."""
    ordered = sorted(contexts)
    if len(ordered) < 4:
        return []
    low, high = ordered[len(ordered) // 4], ordered[3 * len(ordered) // 4]
    same = takewhile(lambda pair: pair[0] == pair[1], zip(low, high, strict=False))
    return [token for token, _ in same]


def _read(model: nn.Module, variables: Any, tokens: Int[Array, "1 t"], length: int) -> Any:
    """The cache of each layer after a text is read, with room for `length` tokens in all: keys and
    values of its tokens, or the state of a recurrence."""
    return model.apply(variables, tokens, None, length, method="prefill")[1]["layers"]


def _score(
    model: nn.Module, variables: Any, batch: Batch, *shared: Any
) -> tuple[Float[Array, "r"], Bool[Array, "r"]]:
    """The sum of the log-probabilities of each row's targets, and whether all are the likeliest.
    `shared` are the parts of a beginning of all contexts, or none."""
    read = _after if shared else _whole
    logits = read(partial(model.apply, variables), batch, *shared)
    found = _chosen(logits, batch["targets"])
    right = (logits.argmax(axis=-1) == batch["targets"]) | ~batch["mask"]
    return jnp.where(batch["mask"], found, 0.0).sum(axis=1), right.all(axis=1)


def _whole(apply: Callable, batch: Batch) -> Float[Array, "r t v"]:
    """The scores of continuations after contexts that are padded on the left."""
    tokens, inputs = batch["tokens"], batch["inputs"]
    length = tokens.shape[1] + inputs.shape[1]
    _, cache = apply(tokens, batch["segments"], length, method="prefill")
    own = lambda x: x[batch["owner"]]  # noqa: E731
    cache |= {"start": own(cache["start"]), "layers": jax.tree.map(own, cache["layers"])}
    return apply(inputs, cache, method="step")[0]


def _after(apply: Callable, batch: Batch, layers: Any, length: int) -> Float[Array, "r t v"]:
    """The scores after contexts of which only what follows the beginning is read, padded at the
    end; each row goes on from its own position, and overwrites its padding."""
    tokens, owner = batch["tokens"], batch["owner"]
    cache = lambda index, rows, layers: {  # noqa: E731
        "index": index, "start": jnp.zeros(rows, jnp.int32), "layers": layers
    }  # fmt: skip
    many = jax.tree.map(lambda x: jnp.repeat(x, len(tokens), axis=0), layers)
    _, found = apply(
        tokens, cache(jnp.full((), length, jnp.int32), len(tokens), many), method="step"
    )
    ends = length + batch["segments"].sum(axis=1)[owner]

    def one(inputs, index, layers):
        return apply(inputs[None], cache(index, 1, layers), method="step")[0][0]

    own = jax.tree.map(lambda x: x[owner][:, None], found["layers"])
    return jax.vmap(one)(batch["inputs"], ends, own)


def _chosen(logits: Float[Array, "r t v"], targets: Int[Array, "r t"]) -> Float[Array, "r t"]:
    """The log-probabilities of the targets."""
    own = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return own - jax.nn.logsumexp(logits, axis=-1)
