"""What the tokenizers made by the tokenizers library share.

The library is imported when it is used, as other kinds work without it."""

import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from transformer_lab.errors import LabError
from transformer_lab.text.tokenizer import EMPTY, Offsets, Tokenizer, TokenizerConfig, clean

LONGEST = 1000
LONG_RUN = re.compile(r"\w{1000}|[^\w\s]{1000}")


class LibraryTokenizer(Tokenizer):
    """Base of the library's tokenizers, whose special tokens no text can spell."""

    def __init__(self, config: TokenizerConfig, library: Any):
        library.encode_special_tokens = True  # text like "</s>" is encoded as any other
        library.no_truncation()
        library.no_padding()
        self._library = library
        self._pieces = {i: piece for piece, i in library.get_vocab().items()}
        super().__init__(config, max(self._pieces, default=-1) + 1)
        added = library.get_added_tokens_decoder().items()
        self.controls = {token.content: i for i, token in added if token.special}
        self._reserved = {*self.controls.values()} | self.special_ids
        # Text may be unknown, unless the unknown token is also the end, start or padding token.
        self._reserved -= {self.unk_id} - {self.pad_id, self.eos_id, self.bos_id}

    def find(self, piece: str) -> int | None:
        return self._library.token_to_id(piece)

    def unused(self, size: int) -> tuple[int, ...]:
        holes = (i for i in range(self._spellable) if i not in self._pieces)
        return (*holes, *super().unused(size))

    def _encode(self, text: str) -> list[int]:
        return self._spell(self._run("encode", text).ids)

    def _encode_batch(self, texts: list[str]) -> list[list[int]]:
        encoded = self._run("encode_batch_fast", texts)
        return [self._spell(encoding.ids) for encoding in encoded]

    def _encode_with_offsets(self, text: str) -> Offsets:
        encoding = self._run("encode", text)
        ids, spans = [], []
        for token, span in zip(encoding.ids, encoding.offsets, strict=True):
            spelt = self._spell([token])
            ids += spelt
            spans += [_trim(text, *span)] * len(spelt)
        return ids, spans

    def _run(self, method: str, texts: str | list[str]) -> Any:
        """Calls the library; LabError for a text at which a file's regular expression fails."""
        try:
            return getattr(self._library, method)(texts, add_special_tokens=False)
        except BaseException as error:
            if type(error).__name__ != "PanicException":
                raise
            raise LabError(f"the tokenizer's own rules fail at a text: {error}") from None

    def _spell(self, ids: list[int]) -> list[int]:
        """The ids with each special token that a model found in text replaced by its characters."""
        if self._reserved.isdisjoint(ids):
            return ids
        letter = self._library.token_to_id
        parts = ([i] if i not in self._reserved else map(letter, self._pieces[i]) for i in ids)
        known = self._pieces.keys() - self._reserved
        return [i for part in parts for i in part if i in known]

    def _decode(self, ids: Sequence[int]) -> str:
        return self._library.decode(list(ids), skip_special_tokens=False)

    def _piece(self, token: int) -> str:
        if token not in self._pieces:
            raise LabError(f"token id {token} has no piece in the tokenizer's vocabulary")
        return self._pieces[token]


def _trim(text: str, start: int, end: int) -> tuple[int, int]:
    """The character range without white space at its ends, unless it is all white space."""
    piece = text[start:end]
    kept = piece.strip() or piece
    start += piece.index(kept)
    return start, start + len(kept)


def tokenizers() -> Any:
    """The tokenizers library; LabError if it is not installed."""
    try:
        import tokenizers
    except ImportError:
        raise LabError("this tokenizer needs `pip install tokenizers`") from None
    return tokenizers


def filled(texts: Iterable[str]) -> Iterator[str]:
    """The cleaned texts; LabError if all are empty.

    A run of 1,000 letters or signs is broken by a space, as long words cost quadratic time."""
    empty = True
    for text in texts:
        empty = empty and not text
        text = clean(text)
        yield LONG_RUN.sub(r"\g<0> ", text) if len(text) > LONGEST else text
    if empty:
        raise LabError(EMPTY)


def read_library(content: bytes, name: str) -> Any:
    """The library's tokenizer in the content of a tokenizer.json; LabError if it is invalid."""
    library = tokenizers().Tokenizer
    try:
        found = library.from_buffer(content)
        growth = _growth(json.loads(content))
    except Exception as error:  # the library raises plain Exception
        raise LabError(f"{name} cannot be read by the tokenizers library: {error}") from None
    if growth > LONGEST:
        raise LabError(f"{name}: its replacements make a letter more than {LONGEST:,} letters")
    return found


def _growth(value: Any) -> float:
    """The factor by which the replacements in a part of a tokenizer.json can lengthen a text."""
    if not isinstance(value, dict | list):
        return 1.0
    parts = value.values() if isinstance(value, dict) else value
    found = math.prod((_growth(part) for part in parts), start=1.0)
    if isinstance(value, dict) and value.get("type") == "Replace":
        pattern = value["pattern"].get("String") or "x"  # a pattern may match one letter
        found *= max(1.0, len(value["content"]) / len(pattern))
    return found
