"""The tree of the highest score over the words of a sentence: Chu-Liu 1965, Edmonds 1967.

McDonald 2005, "Non-projective Dependency Parsing using Spanning Tree Algorithms", section 2.2."""

import numpy as np
from jaxtyping import Float, Int


def spanning_tree(scores: Float[np.ndarray, "n n+1"]) -> Int[np.ndarray, "n"]:
    """The head of each word in the tree with the highest sum of scores, and with one root.

    `scores[i, h]` is that of head h for word i + 1, where head 0 is the root and head h word h; all
    are finite. The scores [[5, 0, 9], [6, 8, 0]] give [2, 0]: of the trees [0, 1] with 13 and
    [2, 0] with 15 the better one; [0, 0] has two roots, [2, 1] is a circle."""
    values = np.vstack([np.zeros(scores.shape[1]), scores]).astype(np.float64)
    # An arc from the root costs more than all others can gain, so that the best tree has but one.
    values[1:, 0] -= 1 + len(values) * np.ptp(values[1:])
    return _best(values)[1:]


def _best(scores: Float[np.ndarray, "m m"]) -> Int[np.ndarray, "m"]:
    """The heads of the best tree that hangs on node 0, whose own head is 0."""
    scores = scores.copy()
    np.fill_diagonal(scores, -np.inf)
    heads = scores.argmax(axis=1)
    heads[0] = 0
    circle = _circle(heads)
    if not circle:
        return heads
    rest = [i for i in range(len(scores)) if i not in circle]
    # The circle becomes one last node. An arc into it takes the place of the arc inside it to the
    # same node, so that it counts what the tree gains or loses by that.
    into = scores[np.ix_(circle, rest)] - scores[circle, heads[circle]][:, None]
    out = scores[np.ix_(rest, circle)]
    small = np.zeros((len(rest) + 1, len(rest) + 1))
    small[:-1, :-1] = scores[np.ix_(rest, rest)]
    small[-1, :-1], small[:-1, -1] = into.max(axis=0), out.max(axis=1)
    found = _best(small)
    for i, head in zip(rest[1:], found[1:-1].tolist(), strict=True):
        inside = head == len(rest)
        heads[i] = circle[out[rest.index(i)].argmax()] if inside else rest[head]
    heads[circle[into[:, found[-1]].argmax()]] = rest[found[-1]]
    return heads


def _circle(heads: Int[np.ndarray, "m"]) -> list[int]:
    """The nodes of a circle that the heads lead into, or [] if all lead to node 0."""
    for start in range(1, len(heads)):
        path, at = [], start
        while at and at not in path:
            path.append(at)
            at = int(heads[at])
        if at:
            return path[path.index(at) :]
    return []
