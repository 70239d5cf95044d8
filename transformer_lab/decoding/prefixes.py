"""The beginnings of recent prompts, kept in blocks, so that a text that begins alike reads less.

A block stands for `BLOCK` tokens after all tokens before them: their keys and values, and the state
after them of layers that carry one. It is found by the hash of the tokens up to its end, shared by
all prompts that begin so, and copied into a text's row when the text comes. (Caches that steps read
through a table of blocks would save that copy; but each step would gather all blocks of all texts.)
"""

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import jax
import numpy as np

BLOCK = 64  # tokens


class Prefixes:
    """Blocks by the hash of their tokens and those before, the most recently used ones kept.

    `row` is an empty row of the cache, whose arrays have the tokens at `axes` (-1: at none);
    `offset` is the column of the first token.
    """

    def __init__(self, row: Any, axes: Any, offset: int, most_bytes: int):
        self.offset, self.axes, self.hits = offset, axes, 0
        self.cut = jax.jit(self._cut)
        self.paste = jax.jit(self._paste, donate_argnums=0)
        blocks = jax.tree.leaves(jax.eval_shape(self._cut, row, np.int32(0)))
        self.most = most_bytes // sum(x.size * x.dtype.itemsize for x in blocks)
        self.blocks: OrderedDict[bytes, Any] = OrderedDict()

    def find(self, prompt: Sequence[int]) -> list[Any]:
        """The blocks of the longest beginning that is known, in order; it lacks the last token."""
        found, names = [], names_of(prompt)
        for name in names:
            if name not in self.blocks:
                break
            found.append(self.blocks[name])
        for name in reversed(names[: len(found)]):  # the first block is dropped last
            self.blocks.move_to_end(name)
        self.hits += len(found) * BLOCK
        return found

    def fill(self, row: Any, found: Sequence[Any]) -> Any:
        """An empty row with the blocks in it."""
        for number, block in enumerate(found):
            row = self.paste(row, block, self._place(number))
        return row

    def keep(self, prompt: Sequence[int], row: Any, number: int) -> None:
        """Keeps a block of a prompt whose row has been read exactly up to the block's end."""
        name = names_of(prompt[: (number + 1) * BLOCK + 1])[number]
        if self.most:
            self.blocks[name] = self.cut(row, self._place(number))
        while len(self.blocks) > self.most:
            self.blocks.popitem(last=False)

    def _place(self, number: int) -> np.int32:
        return np.int32(self.offset + number * BLOCK)

    def _cut(self, row, place):
        part = jax.lax.dynamic_slice_in_dim
        return jax.tree.map(
            lambda x, axis: x if axis < 0 else part(x, place, BLOCK, axis), row, self.axes
        )

    def _paste(self, row, block, place):
        put = jax.lax.dynamic_update_slice_in_dim
        return jax.tree.map(
            lambda x, new, axis: new if axis < 0 else put(x, new, place, axis),
            row, block, self.axes,
        )  # fmt: skip


def names_of(prompt: Sequence[int]) -> list[bytes]:
    """The hash of each whole block of a prompt without its last token, and all before it."""
    ids, names, before = np.asarray(prompt[:-1], "<i4"), [], b""
    for first in range(0, len(ids) - BLOCK + 1, BLOCK):
        before = sha256(before + ids[first : first + BLOCK].tobytes()).digest()
        names.append(before)
    return names
