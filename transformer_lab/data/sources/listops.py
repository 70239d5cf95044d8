"""ListOps (Nangia 2018) at the lengths of the Long Range Arena (Tay 2020, section 2.2.1).

A node is an operator with probability 1/4, of 2 to 10 nodes, else a digit; in the tenth level all
are digits. The operators are minimum, maximum, median (rounded down) and sum modulo 10. Sequences
longer than a quarter of `length` and shorter than `length` are kept (500 and 2,000 in the paper),
counting closing brackets. The value of the whole is the target at the last token:

    [MAX 2 9 [MIN 4 7 ] 0 ]   ->   9
"""

from typing import Any

import numpy as np

from transformer_lab.data.sequences import Sequences
from transformer_lab.errors import LabError

DEPTH, MOST, OPERATOR_CHANCE = 10, 10, 0.25
OPERATORS = {
    "[MIN": min,
    "[MAX": max,
    "[MED": lambda values: int(np.median(values)),
    "[SM": lambda values: sum(values) % 10,
}
TOKENS = [*"0123456789", *OPERATORS, "]"]  # ids are indices in this list
VOCABULARY = len(TOKENS)
_AT_ONCE = 4096  # trees drawn at once; most are a single digit


def sequences(
    config: Any, split: str, length: int, size: int, draw: np.random.Generator
) -> Sequences:
    """`size` expressions of less than `length` tokens, padded with zeros."""
    if (config.vocabulary or VOCABULARY) < VOCABULARY or length < 8:
        raise LabError(
            f"config.data.vocabulary must be {VOCABULARY} or more for listops, or unset, and "
            f"config.data.length = {length} at least 8"
        )
    tokens, targets = np.zeros((2, size, length), np.uint8)
    mask, row = np.zeros((size, length), bool), 0
    while row < size:
        levels, counts = draw_trees(draw)
        for tree in np.flatnonzero((counts > length // 4) & (counts < length))[: size - row]:
            ids, value = write(levels, int(tree))
            tokens[row, : len(ids)] = ids
            targets[row, len(ids) - 1], mask[row, len(ids) - 1] = value, True
            row += 1
    return Sequences(tokens, targets, mask)


def draw_trees(draw: np.random.Generator) -> tuple[list[tuple[np.ndarray, ...]], np.ndarray]:
    """Many random trees, level by level, and the number of tokens in each.

    A level gives for each of its nodes the token, the number of its nodes in the next level, and
    the index of the first of them."""
    levels, roots = [], np.arange(_AT_ONCE)
    lengths = np.zeros(_AT_ONCE, np.int64)
    for depth in range(DEPTH):
        chance = OPERATOR_CHANCE if depth < DEPTH - 1 else 0.0
        inner = draw.random(len(roots)) < chance
        token = np.where(
            inner, 10 + draw.integers(4, size=len(roots)), draw.integers(10, size=len(roots))
        )
        nodes = np.where(inner, draw.integers(2, MOST + 1, len(roots)), 0)
        levels.append((token, nodes, np.cumsum(nodes) - nodes))
        lengths += np.bincount(roots, 1 + inner, _AT_ONCE).astype(np.int64)
        roots = np.repeat(roots, nodes)
    return levels, lengths


def write(levels: list[tuple[np.ndarray, ...]], tree: int) -> tuple[list[int], int]:
    """The token ids of a tree, and the value of its expression."""
    ids, waiting = [], [(0, tree)]  # a stack of nodes; None closes an operator
    opened = [(0, values := [])]  # operators with the values of their nodes so far
    while waiting:
        if (node := waiting.pop()) is None:
            token, inner = opened.pop()
            ids.append(VOCABULARY - 1)
            opened[-1][1].append(int(OPERATORS[TOKENS[token]](inner)))
            continue
        depth, place = node
        token, nodes, first = (int(array[place]) for array in levels[depth])
        ids.append(token)
        if token < 10:
            opened[-1][1].append(token)
            continue
        opened.append((token, []))
        waiting += [None, *((depth + 1, first + i) for i in reversed(range(nodes)))]
    return ids, values[0]
