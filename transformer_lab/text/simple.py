"""Tokenizers that need no library: characters, words and bytes."""

import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache

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

SYMBOLS = "symbols.json"
SPECIALS = len(SPECIAL_PIECES)
WORD = re.compile(r"\w+|[^\w\s]")


class _CountedTokenizer(SymbolTokenizer):
    """Base of tokenizers whose vocabulary is the most frequent symbols of the training texts."""

    file_names = (SYMBOLS,)
    lossy = "kind byte, or bpe or unigram with byte_fallback"

    @classmethod
    def check(cls, config: TokenizerConfig) -> None:
        super().check(config)
        if config.vocab_size <= SPECIALS:
            raise too_small(config, SPECIALS + 1, f" and one {config.kind}")

    @classmethod
    def train(cls, config: TokenizerConfig, texts: Iterable[str]) -> Tokenizer:
        counts = Counter()
        for text in texts:
            counts.update(cls._split(clean(text)))
        if not counts:
            raise LabError(EMPTY)
        # Equal counts are ordered by symbol, so that the order of the texts has no effect.
        order = sorted(counts, key=lambda symbol: (-counts[symbol], symbol))
        return cls(config, order[: config.vocab_size - SPECIALS])

    @classmethod
    def from_files(cls, config: TokenizerConfig, files: Mapping[str, bytes]) -> Tokenizer:
        symbols = read_json(files, SYMBOLS)
        if not isinstance(symbols, list) or not all(isinstance(s, str) for s in symbols):
            raise LabError(f"the tokenizer's file {SYMBOLS} must hold a list of strings")
        return cls(config, symbols)

    @staticmethod
    @abstractmethod
    def _split(text: str) -> Iterable[str]: ...

    def _encode(self, text: str) -> list[int]:
        return [self._ids.get(symbol, self.unk_id) for symbol in self._split(text)]

    def _model_files(self) -> dict[str, bytes]:
        return {SYMBOLS: to_json(self._learnt())}


@register("char")
class CharTokenizer(_CountedTokenizer):
    """One token for each character (code point); an unknown one is decoded as U+FFFD."""

    @staticmethod
    def _split(text: str) -> Iterable[str]:
        return text

    def _decode(self, ids: Sequence[int]) -> str:
        return "".join(REPLACEMENT if i == self.unk_id else self._piece(i) for i in ids)


@register("word")
class WordTokenizer(_CountedTokenizer):
    """One token for each word or punctuation character, case kept.

    Decoding joins them with single spaces, so it is lossy: "It's on." becomes "It ' s on ."."""

    @staticmethod
    def _split(text: str) -> Iterable[str]:
        return WORD.findall(text)

    def _decode(self, ids: Sequence[int]) -> str:
        return " ".join(map(self._piece, ids))


@register("stem")
class StemTokenizer(WordTokenizer):
    """One token for each English word's stem in lower case (Porter 2001), or punctuation character:
    "connected" and "connections" are "connect", and endings are lost."""

    @staticmethod
    def _split(text: str) -> Iterable[str]:
        return map(_stem, WORD.findall(text))


@cache
def _stem(word: str) -> str:
    try:
        from nltk.stem.snowball import EnglishStemmer
    except ImportError as error:
        raise LabError('tokenizer.kind = "stem" needs a package: pip install nltk') from error
    return EnglishStemmer().stem(word)


@register("byte")
class ByteTokenizer(Tokenizer):
    """One token for each byte of UTF-8, with the id 4 + its value: 260 ids, and no training.

    Ids that are not valid UTF-8, which a model may well generate, are decoded to U+FFFD."""

    def __init__(self, config: TokenizerConfig, files: Mapping[str, bytes] | None = None):
        super().__init__(config, SPECIALS + 256)

    @classmethod
    def train(cls, config: TokenizerConfig, texts: Iterable[str]) -> Tokenizer:
        return cls(config)

    def _encode(self, text: str) -> list[int]:
        return [SPECIALS + byte for byte in text.encode()]

    def _decode(self, ids: Sequence[int]) -> str:
        unknown = REPLACEMENT.encode()
        parts = (unknown if i == self.unk_id else bytes((i - SPECIALS,)) for i in ids)
        return b"".join(parts).decode(errors="replace")

    def _piece(self, token: int) -> str:
        return SPECIAL_PIECES[token] if token < SPECIALS else f"<0x{token - SPECIALS:02X}>"

    def _model_files(self) -> dict[str, bytes]:
        return {}
