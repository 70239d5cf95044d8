"""Texts that are continued side by side, each at its own position, in programs of fixed shape.

A slot holds one text: a row of the cache, its ids, its random key and its sampling settings. All
slots take a step together, whoever else is there; a text's row is made apart from them, by reading
its prompt in pieces, and then put in a slot. So texts come and go between two steps. The number of
slots and their room in the cache take a few values, each compiled once.

Letters: S slots, V vocabulary, T the most tokens of a text, with some room.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from transformer_lab.decoding.batch import row_key
from transformer_lab.decoding.config import DecodeConfig
from transformer_lab.decoding.processors import NOTHING, log_prob_of, one_end, prepare
from transformer_lab.ops.sampling import sample

STEPS = 8  # tokens of each text that one call makes at most
ALIGNED = 8  # a cache's length is a multiple of this
Row = Any  # one text's cache, as the model makes it for a batch of 1


class Slots(NamedTuple):
    """The state on the device; a text that is done stays where it is until another takes its slot.

    A row of `said` is the prompt and the tokens made. The next step feeds the last of them, so a
    row of the cache holds all but that one.
    """

    cache: Any  # the arrays of S rows, stacked
    said: Int[Array, "s t"]
    read: Int[Array, "s"]  # tokens of the prompt
    made: Int[Array, "s"]  # new tokens, the end token too
    wanted: Int[Array, "s"]  # the most new tokens
    done: Bool[Array, "s"]
    keys: Key[Array, "s"]
    controls: tuple[Array, Array, Array]  # temperature (0: the likeliest token), top_k, top_p


class Made(NamedTuple):
    """The tokens of one call: ids and log-probabilities [S, STEPS], of which `counts` are new."""

    tokens: Int[Array, "s n"]
    log_probs: Float[Array, "s n"]
    counts: Int[Array, "s"]
    done: Bool[Array, "s"]


class Programs:
    """What is compiled for one model; `compilations` counts the traces. A text has at most `most`
    tokens, and `padding` more in the cache."""

    def __init__(
        self, model: nn.Module, config: DecodeConfig, eos_id: int, most: int, padding: int
    ):
        self.model, self.config, self.eos_id = model, config, eos_id
        self.most = most
        # The padding of a prompt that is read in one call comes on top: see `Engine`.
        self.length = 2 * most if model.reads_prefix else most + padding
        self.length = -(-self.length // ALIGNED) * ALIGNED
        self.compilations = 0
        self.copy = self._compiled(lambda row: jax.tree.map(jnp.copy, row))
        self.empty = self._compiled(self._empty)
        self.start = self._compiled(self._start)
        self.read = self._compiled(self._read, donate_argnums=1)
        self.read_first = self._compiled(self._read_first)
        self.admit = self._compiled(self._admit, donate_argnums=0)
        self.step = self._compiled(self._step, donate_argnums=1)
        self.resize = self._compiled(self._resize, static_argnums=2)

    def _compiled(self, function: Callable, **options: Any) -> Callable:
        def counted(*arguments):
            self.compilations += 1  # runs only while tracing
            return function(*arguments)

        return jax.jit(counted, **options)

    def find_axes(self, params: Any) -> Any:
        """Of each array of a row the axis of the tokens, -1 for those of constant size."""
        self.axes = token_axes(self._empty, params)
        return self.axes

    def _empty(self, params, longer: int = 0) -> Row:
        """The row of a text of which nothing is read yet: a position of padding, and no more."""
        one = jnp.zeros((1, 1), jnp.int32)
        apply = partial(self.model.apply, {"params": params}, method="prefill")
        return apply(one, one, self.length + longer)[1]

    def _resize(self, slots: Slots, order: Int[Array, "n"], length: int) -> Slots:
        """The slots of these numbers, with room for so many tokens in the cache."""

        def fit(x, axis):
            if axis < 0:
                return x
            room = [(0, 0, 0)] * x.ndim
            room[axis + 1] = 0, length - x.shape[axis + 1], 0
            return jax.lax.pad(x, jnp.zeros((), x.dtype), room)

        slots = jax.tree.map(lambda x: x[order], slots)
        return slots._replace(cache=jax.tree.map(fit, slots.cache, self.axes))

    def _start(self, row: Row) -> Slots:
        """The cache and the settings of one slot that no text uses yet."""
        zero, said = jnp.zeros(1, jnp.int32), jnp.full((1, self.most + STEPS), NOTHING, jnp.int32)
        controls, keys = (jnp.zeros(1), zero, jnp.ones(1)), jax.random.split(jax.random.key(0), 1)
        more = zero + 1, zero, zero, jnp.ones(1, bool), keys, controls
        return Slots(jax.tree.map(lambda x: x[None], row), said, *more)

    def _read(self, params, row: Row, tokens: Int[Array, "1 t"]) -> Row:
        """The row with more tokens of the prompt; nothing computes their logits."""
        return self.model.apply({"params": params}, tokens, row, method="step")[1]

    def _read_first(self, params, tokens: Int[Array, "1 t"], segments: Int[Array, "1 t"]) -> Row:
        """The row of a prompt without its last token, padded on the left. If its tokens attend to
        each other both ways, the last is read too, and once more by the first step."""
        more = tokens, segments, self.length
        row = self.model.apply({"params": params}, *more, method="prefill")[1]
        return row | {"index": row["index"] - 1} if self.model.reads_prefix else row

    def _admit(self, slots: Slots, slot, row: Row, said, read, wanted, marks, controls) -> Slots:
        """Puts a text in a slot; `marks` are the numbers that its random draws depend on."""
        key = row_key(*marks)
        new = Slots(row, said, read, jnp.int32(0), wanted, wanted < 1, key, controls)
        cut = lambda x, old: x[tuple(map(slice, old.shape[1:]))] if x.ndim else x  # noqa: E731
        return jax.tree.map(lambda old, x: old.at[slot].set(cut(x, old)), slots, new)

    def _step(self, params, slots: Slots, dropped: Bool[Array, "s"], steps: Int[Array, ""]):
        """Makes so many tokens of each text that is neither done nor `dropped`."""
        slots, before = slots._replace(done=slots.done | dropped), slots.made
        step = jax.vmap(partial(self.model.apply, {"params": params}, method="step"))

        def body(carry):
            i, slots, log_probs = carry
            last = jnp.take_along_axis(slots.said, (slots.read + slots.made - 1)[:, None], axis=1)
            logits, cache = step(last[:, :, None], slots.cache)
            slots, chosen = self._choose(slots._replace(cache=cache), logits[:, 0, 0])
            return i + 1, slots, log_probs.at[:, i].set(chosen)

        going = lambda carry: (carry[0] < steps) & ~carry[1].done.all()  # noqa: E731
        first = jnp.int32(0), slots, jnp.zeros((len(dropped), STEPS))
        _, slots, log_probs = jax.lax.while_loop(going, body, first)
        cut = lambda said, at: jax.lax.dynamic_slice(said, (at,), (STEPS,))  # noqa: E731
        tokens = jax.vmap(cut)(slots.said, slots.read + before)
        return slots, Made(tokens, log_probs, slots.made - before, slots.done)

    def _choose(self, slots: Slots, logits: Float[Array, "s v"]) -> tuple[Slots, Array]:
        """Adds a token to each text that is not done; returns their log-probabilities too."""
        done, place = slots.done, slots.read + slots.made
        at_limit = slots.made + 1 >= slots.wanted
        ready = lambda logits, *more: prepare(logits, self.config, self.eos_id, *more)  # noqa: E731
        inputs = logits.astype(jnp.float32), slots.said, slots.read, slots.made, at_limit
        prepared = jax.vmap(ready)(*inputs)
        tokens = _draw(prepared[0], slots)
        chosen = jnp.where(done, 0.0, log_prob_of(tokens, *prepared))
        tokens = one_end(tokens, self.config, self.eos_id)
        nowhere = slots.said.shape[1]
        column = jnp.where(done, nowhere, place)
        said = slots.said.at[jnp.arange(len(done)), column].set(tokens, mode="drop")
        ended = done | (tokens == self.eos_id) | at_limit
        return slots._replace(said=said, made=slots.made + ~done, done=ended), chosen


def token_axes(make: Callable[[Any, int], Any], params: Any) -> Any:
    """Of each array of a cache the axis of the tokens, -1 for those of constant size; `make` gives
    the cache by the parameters, with room for so many tokens more."""
    shapes, longer = (jax.eval_shape(lambda p, n=n: make(p, n), params) for n in (0, ALIGNED))
    axis = lambda a, b: next((i for i, n in enumerate(a.shape) if n != b.shape[i]), -1)  # noqa: E731
    return jax.tree.map(axis, shapes, longer)


def _draw(logits: Float[Array, "s v"], slots: Slots) -> Int[Array, "s"]:
    """Each text's next token by its own settings; the sorting that top_k and top_p need is done
    only if some text has them."""
    (temperature, top_k, top_p), going = slots.controls, ~slots.done
    likeliest = jnp.argmax(logits, axis=-1).astype(jnp.int32)

    def drawn(restricted):
        keys = jax.vmap(jax.random.fold_in)(slots.keys, slots.made)
        one = lambda x, key, *how: sample(x[None], key[None], *how, restricted=restricted)[0]  # noqa: E731
        found = jax.vmap(one)(logits, keys, temperature, top_k, top_p)
        return jnp.where(temperature > 0, found, likeliest)

    draws = going & (temperature > 0)
    restricts = draws & ((top_k > 0) | (top_p < 1))
    kinds = [lambda: likeliest, lambda: drawn(False), lambda: drawn(True)]
    return jax.lax.switch(draws.any().astype(jnp.int32) + restricts.any(), kinds)
