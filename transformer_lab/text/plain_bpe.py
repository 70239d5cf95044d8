"""Byte-pair encoding of words as first published, in plain Python.

Sennrich et al. 2016, "Neural Machine Translation of Rare Words with Subword Units", algorithm 1.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice, pairwise

from transformer_lab.errors import LabError
from transformer_lab.text.tokenizer import (
    EMPTY,
    REPLACEMENT,
    SPECIAL_PIECES,
    SymbolTokenizer,
    Tokenizer,
    TokenizerConfig,
    clean,
    read_json,
    register,
    to_json,
    too_small,
)

MODEL = "plain_bpe.json"
SPECIALS = len(SPECIAL_PIECES)
END = " "  # marks the end of a word: words hold no white space, but may hold "</w>"

Pair = tuple[str, str]


def show(symbol: str) -> str:
    """A symbol as it is printed, with the end of a word as "</w>" (as in the paper)."""
    return symbol.replace(END, "</w>")


def split(word: str) -> list[str]:
    """The symbols of a word before any merge: its characters and the end of the word."""
    return [*word, END]


def merge(symbols: Sequence[str], pair: Pair) -> list[str]:
    """The symbols with each occurrence of the pair, from left to right, merged into one."""
    merged, i = [], 0
    while i < len(symbols):
        size = 2 if tuple(symbols[i : i + 2]) == pair else 1
        merged.append("".join(symbols[i : i + size]))
        i += size
    return merged


def learn(words: Mapping[str, int]) -> Iterator[tuple[Pair, int]]:
    """The merges learnt from word counts, each with its pair's count, until no pair is left.

    Each is the most frequent adjacent pair, of equally frequent ones the lexicographically first,
    where the end of a word precedes every character. In "aaa" the pair ("a", "a") counts twice."""
    splits = [split(word) for word in words]
    weights = list(words.values())
    counts: Counter[Pair] = Counter()
    places: dict[Pair, set[int]] = defaultdict(set)  # words with the pair, now or once
    for i, symbols in enumerate(splits):
        for pair in pairwise(symbols):
            counts[pair] += weights[i]
            places[pair].add(i)
    heap = [(-count, pair) for pair, count in counts.items()]
    heapq.heapify(heap)
    while heap:
        count, pair = heapq.heappop(heap)
        if -count != counts[pair]:  # outdated; the heap also has the current count
            continue
        yield pair, -count
        changes: Counter[Pair] = Counter()
        for i in places.pop(pair):
            old, splits[i] = splits[i], merge(splits[i], pair)
            for gone in pairwise(old):
                changes[gone] -= weights[i]
            for made in pairwise(splits[i]):
                changes[made] += weights[i]
                places[made].add(i)
        for changed, change in changes.items():
            counts[changed] += change
            if change and counts[changed]:
                heapq.heappush(heap, (-counts[changed], changed))


def encode_word(word: str, ranks: Mapping[Pair, int]) -> list[str]:
    """The symbols of a word, merged in the order in which the merges were learnt."""
    symbols = split(word)
    while len(symbols) > 1:
        pair = min(pairwise(symbols), key=lambda pair: ranks.get(pair, len(ranks)))
        if pair not in ranks:
            break
        symbols = merge(symbols, pair)
    return symbols


@register("plain_bpe")
class PlainBpeTokenizer(SymbolTokenizer):
    """BPE of the words between white space, which is decoded as single spaces.

    Its vocabulary: special tokens, characters, and one symbol for each merge (fewer, if two merges
    give the same symbol). An unknown character is decoded as U+FFFD."""

    file_names = (MODEL,)
    lossy = "kind byte_bpe"

    def __init__(self, config: TokenizerConfig, symbols: Sequence[str], merges: Sequence[Pair]):
        super().__init__(config, symbols)
        self._merges = list(merges)
        self._ranks = {pair: rank for rank, pair in enumerate(merges)}
        self._word = lru_cache(maxsize=100_000)(self._encode_word)

    @classmethod
    def train(cls, config: TokenizerConfig, texts: Iterable[str]) -> Tokenizer:
        words: Counter[str] = Counter()
        for text in texts:
            words.update(clean(text).split())
        if not words:
            raise LabError(EMPTY)
        characters = sorted({END}.union(*words))
        count = config.vocab_size - SPECIALS - len(characters)
        if count < 0:
            smallest = SPECIALS + len(characters)
            raise too_small(config, smallest, " and the characters of these texts")
        merges = [pair for pair, _ in islice(learn(words), count)]
        symbols = dict.fromkeys([*characters, *map("".join, merges)])
        return cls(config, list(symbols), merges)

    @classmethod
    def from_files(cls, config: TokenizerConfig, files: Mapping[str, bytes]) -> Tokenizer:
        model = read_json(files, MODEL)
        try:
            symbols = [str(symbol) for symbol in model["symbols"]]
            merges = [(str(left), str(right)) for left, right in model["merges"]]
        except (KeyError, TypeError, ValueError):
            raise LabError(f"{MODEL} must hold a list of symbols and one of merges") from None
        known = set(symbols)
        if wrong := [p for p in merges if not {*p, "".join(p)} <= known]:
            raise LabError(f"{MODEL} merges {wrong[0]}, which is not among its symbols")
        return cls(config, symbols, merges)

    def _encode(self, text: str) -> list[int]:
        return [token for word in text.split() for token in self._word(word)]

    def _encode_word(self, word: str) -> tuple[int, ...]:
        return tuple(self._ids.get(s, self.unk_id) for s in encode_word(word, self._ranks))

    def _decode(self, ids: Sequence[int]) -> str:
        symbols = (REPLACEMENT if i < SPECIALS else self._symbols[i] for i in ids)
        return "".join(symbols).removesuffix(END)

    def _piece(self, token: int) -> str:
        return show(super()._piece(token))

    def _model_files(self) -> dict[str, bytes]:
        return {MODEL: to_json({"symbols": self._learnt(), "merges": self._merges})}
