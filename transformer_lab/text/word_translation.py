"""A dictionary learned from sentence pairs, as a baseline for translators: IBM's first model.

Each word of a target sentence comes from one word of its source, all of which are alike in advance
(Brown 1993, model 1). Expectation maximisation gives t(f | e), the probability that the word e is
translated by f."""

from collections import Counter, defaultdict
from collections.abc import Iterable


def train(pairs: Iterable[tuple[str, str]], rounds: int = 5) -> dict[str, str]:
    """The likeliest translation of each source word after so many rounds.

    Of the pairs ("the house", "la maison"), ("the", "la") it learns house -> maison."""
    split = [(source.split(), target.split()) for source, target in pairs]
    chances: dict[str, dict[str, float]] = defaultdict(dict)
    for source, target in split:
        for word in source:
            chances[word].update(dict.fromkeys(target, 1.0))
    for _ in range(rounds):
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        for source, target in split:
            for made in target:
                total = sum(chances[word][made] for word in source)
                for word in source:
                    counts[word][made] += chances[word][made] / total
        for word, found in counts.items():
            whole = found.total()
            chances[word] = {made: count / whole for made, count in found.items()}
    return {word: max(found, key=found.get) for word, found in chances.items() if found}


def translate(words: dict[str, str], sentence: str) -> str:
    """The sentence word by word, in its own order; an unknown word stays as it is."""
    return " ".join(words.get(word, word) for word in sentence.split())
