"""Scores of constituent trees that are written as bracket strings, by the rules of evalb."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

_TOKEN = re.compile(r"\([^\s()]*|\)|[^\s()]+")
PUNCTUATION = "PU"  # the leaf that does not count


class Constituents(NamedTuple):
    """The leaves of a tree, and its constituents as (label, first leaf, leaf after the last)."""

    leaves: list[str]
    spans: list[tuple[str, int, int]]


def read(text: str) -> Constituents | None:
    """The constituents of a bracket string, such as S and NP in "(S (NP XX) XX)"; None for one that
    is not well formed: not one tree, a bracket that is not closed, or one with nothing in it."""
    leaves, spans, open_ = [], [], []
    for token in _TOKEN.findall(text):
        if token.startswith("("):
            if not open_ and spans:
                return None
            open_.append((token[1:], len(leaves)))
        elif not open_:
            return None
        elif token == ")":
            label, start = open_.pop()
            if start == len(leaves):
                return None
            spans.append((label, start, len(leaves)))
        else:
            leaves.append(token)
    return None if open_ or not spans else Constituents(leaves, spans)


def bracket_scores(outputs: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Labelled and unlabelled F1 of all constituents, as shares, and shares of trees.

    A constituent is right if the reference has one with its label and its leaves, each once; leaves
    that are punctuation in the reference do not count. An output that is not `well_formed`, or is
    but has not a leaf for each word and so is not `aligned`, finds nothing: evalb would leave such
    a sentence out.
    `exact` trees are all right; `right_branching_f1` is the unlabelled F1 of trees that branch to
    the right at each word."""
    totals: Counter[str] = Counter()
    for output, reference in zip(outputs, references, strict=True):
        gold, found = read(reference), read(output)
        aligned = found is not None and len(found.leaves) == len(gold.leaves)
        rank = [0]  # of each leaf among those that count
        for leaf in gold.leaves:
            rank.append(rank[-1] + (leaf != PUNCTUATION))
        right = [("", i, rank[-1]) for i in range(rank[-1] - 1)]
        spans = {"gold": gold.spans, "found": found.spans if aligned else []}
        trees = {
            name: Counter((label, rank[i], rank[j]) for label, i, j in some if rank[i] < rank[j])
            for name, some in spans.items()
        } | {"right": Counter(right)}
        bare = {name: Counter(s[1:] for s in tree.elements()) for name, tree in trees.items()}
        totals.update({name: tree.total() for name, tree in trees.items()})
        totals["labelled"] += (trees["gold"] & trees["found"]).total()
        totals["unlabelled"] += (bare["gold"] & bare["found"]).total()
        totals["branching"] += (bare["gold"] & bare["right"]).total()
        totals["well_formed"] += found is not None
        totals["aligned"] += aligned
        totals["exact"] += trees["gold"] == trees["found"]
    both = max(totals["gold"] + totals["found"], 1)
    return {
        "bracket_f1": 2 * totals["labelled"] / both,
        "unlabelled_f1": 2 * totals["unlabelled"] / both,
        "right_branching_f1": 2 * totals["branching"] / max(totals["gold"] + totals["right"], 1),
        **{name: totals[name] / len(references) for name in ("well_formed", "aligned", "exact")},
    }
