"""The interface of every tokenizer, its configuration, and the register of kinds."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import chain, groupby
from operator import index
from types import MappingProxyType
from typing import Any, ClassVar, SupportsIndex

from transformer_lab.errors import LabError, nearest

HEADER = "tokenizer.json"
SETTINGS = "tokenizer_config.json"  # settings beside the tokenizer in Hugging Face directories
SPECIAL_PIECES = ("<pad>", "</s>", "<s>", "<unk>")
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"  # U+FFFD, for text that cannot be decoded
KINDS: dict[str, type["Tokenizer"]] = {}

Offsets = tuple[list[int], list[tuple[int, int]]]  # ids, and [start, end) of each in the text


def register(*kinds: str) -> Callable[[type["Tokenizer"]], type["Tokenizer"]]:
    """Registers a tokenizer class under values of `TokenizerConfig.kind`."""

    def enter(cls: type["Tokenizer"]) -> type["Tokenizer"]:
        KINDS.update(dict.fromkeys(kinds, cls))
        return cls

    return enter


@dataclass(frozen=True)
class TokenizerConfig:
    """Settings of the tokenizer to train; those that its kind cannot have raise LabError."""

    # bpe | unigram (SentencePiece) | wordpiece (BERT's) | byte_bpe (GPT-2's) | plain_bpe (written
    # out) | char | word | stem | byte; marian, t5 and hf are only loaded
    kind: str = "bpe"
    vocab_size: int = 4000  # ignored by byte; else an upper bound
    byte_fallback: bool = True  # bpe, unigram: unseen characters become bytes and are decoded
    lossless: bool = False  # decode(encode(t)) == t for every text; byte and byte_bpe always are
    character_coverage: float = 0.9995  # bpe, unigram: share of characters in the vocabulary
    lowercase: bool = True  # wordpiece: removes case and accents
    extra_ids: int = 0  # sentinels that no text can spell, after the other pieces (Raffel 2020)

    def __post_init__(self):
        if self.kind not in KINDS:
            raise LabError(f'unknown tokenizer kind "{self.kind}"{nearest(self.kind, KINDS)}')
        if self.extra_ids < 0:
            raise LabError(f"tokenizer extra_ids = {self.extra_ids} is negative: use 0")
        KINDS[self.kind].check(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> "TokenizerConfig":
        """The config in a dictionary of plain values, as read from a file.

        Raises: LabError for an unknown key or a value of the wrong type."""
        types = {field.name: field.type for field in fields(cls)}
        for key, value in values.items():
            if key not in types:
                raise LabError(f'unknown tokenizer setting "{key}"{nearest(key, types)}')
            if type(value) is not types[key] and (type(value), types[key]) != (int, float):
                raise LabError(f"tokenizer {key} must be {types[key].__name__}, got {value!r}")
        return cls(**{key: types[key](value) for key, value in values.items()})


class Tokenizer(ABC):
    """Converts text to token ids and back.

    Subclasses define the methods with an underscore, which get only clean text and valid ids.
    Tokenizers trained here have the special ids below; loaded ones may set their own."""

    pad_id: int = 0
    eos_id: int = 1
    bos_id: int = 2
    unk_id: int = 3
    mask_id: int | None = None  # of kinds with a mask token
    start_ids: tuple[int, ...] = ()  # ids before each text of an encoder-decoder, as BART's <s>
    # The id before each text of a decoder, as a loaded tokenizer says; None: unknown.
    text_start: int | None = None
    starts_texts: bool | None = None  # whether a loaded tokenizer says that texts get one
    chat_template: str | None = None  # Jinja's template of conversations, if it was loaded with one
    controls: Mapping[str, int] = MappingProxyType({})  # the tokens that only a template writes

    # The files it stores beside the header, and those by which a directory that another
    # library wrote (no header of ours) is recognised as this kind.
    file_names: ClassVar[tuple[str, ...]] = ()
    foreign_files: ClassVar[tuple[str, ...]] = ()
    instead: ClassVar[str] = ""  # for a kind that is only loaded, the kind to train instead
    lossy: ClassVar[str] = ""  # for a kind that loses text, a kind that does not

    def __init__(self, config: TokenizerConfig, vocab_size: int):
        self.config = config
        self._spellable = vocab_size
        self.vocab_size = vocab_size + config.extra_ids  # the rows that an embedding needs

    @classmethod
    def check(cls, config: TokenizerConfig) -> None:
        """Raises: LabError for a config that this kind of tokenizer cannot satisfy."""
        if config.lossless and cls.lossy:
            raise LabError(f"a {config.kind} tokenizer cannot be lossless: use {cls.lossy}")

    @classmethod
    def train(cls, config: TokenizerConfig, texts: Iterable[str]) -> "Tokenizer":
        """Learns the vocabulary from `texts`, read once; equal texts give equal tokenizers."""
        raise LabError(
            f"a tokenizer of kind {config.kind} is loaded from a model's directory, not trained:"
            f" set the tokenizer's kind to {cls.instead}"
        )

    @classmethod
    def from_files(cls, config: TokenizerConfig, files: Mapping[str, bytes]) -> "Tokenizer":
        """The tokenizer in files that `to_files` gave."""
        return cls(config, files)

    def find(self, piece: str) -> int | None:
        """The id of a whole piece, such as a special token's; None if there is none."""
        return None

    def unused(self, size: int) -> tuple[int, ...]:
        """The ids below `size` without a piece, such as rows that pad a model's table."""
        return tuple(range(self.vocab_size, size))

    def encode(self, text: str) -> list[int]:
        """The ids of a text; no special token is added, and none can be written in the text."""
        return self._encode(clean(text))

    def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
        """The ids of each text, as `encode` gives them."""
        return self._encode_batch([clean(text) for text in texts])

    def encode_words(self, words: Sequence[str]) -> list[list[int]]:
        """The ids of each word, which joined are those of the words with spaces between.

        A word of which nothing is left, such as U+200B, has no ids."""
        # Some kinds attach the space to the next word, some insert it themselves.
        spaced = self.encode("a a") == [*self.encode("a"), *self.encode(" a")]
        return self.encode_batch(
            f" {word}" if spaced and place else word for place, word in enumerate(words)
        )

    def encode_with_offsets(self, text: str) -> Offsets:
        """The ids of a text, and the range of characters of the given text that each stands for.

        Raises: LabError for a kind that does not know them, or a text with surrogate pairs."""
        cleaned = clean(text)
        if len(cleaned) != len(text):
            raise LabError("offsets need a text without surrogate pairs: decode its UTF-16 first")
        return self._encode_with_offsets(cleaned)

    def continues(self, token: SupportsIndex) -> bool:
        """Whether an id's piece continues the word of the piece before it.

        Raises: LabError for a kind whose pieces do not tell, or an id outside the vocabulary."""
        raise LabError(
            f"a {self.config.kind} tokenizer's pieces do not tell words apart: use kind wordpiece"
        )

    @property
    def sentinels(self) -> list[int]:
        """The ids of <extra_id_0>, <extra_id_1> and so on, descending from the vocabulary's end."""
        return list(range(self.vocab_size - 1, self._spellable - 1, -1))

    @property
    def special_ids(self) -> frozenset[int]:
        """The ids that do not stand for text: padding, start, end, unknown, mask and sentinels."""
        ids = (self.pad_id, self.eos_id, self.bos_id, self.unk_id, self.mask_id)
        ids += tuple(self.sentinels)
        return frozenset(i for i in ids if i is not None)

    def decode(self, ids: Iterable[SupportsIndex]) -> str:
        """The text of ids up to the first end token; padding and start tokens are skipped.

        `ids` may be a list or a one-dimensional array of integers. Raises: LabError for an id
        outside the vocabulary."""
        kept = []
        for token in map(index, ids):
            if token == self.eos_id:
                break
            self._check_id(token)
            if token not in (self.pad_id, self.bos_id):
                kept.append(token)
        if not kept or max(kept) < self._spellable:
            return self._decode(kept)
        runs = groupby(kept, key=lambda token: token >= self._spellable)
        parts = (map(self.piece, run) if extra else [self._decode([*run])] for extra, run in runs)
        return " ".join(chain.from_iterable(parts))

    def piece(self, token: SupportsIndex) -> str:
        """The piece of an id as the vocabulary writes it; LabError for an id outside of it."""
        token = index(token)
        self._check_id(token)
        if token >= self._spellable:
            return f"<extra_id_{self.vocab_size - 1 - token}>"
        return self._piece(token)

    def to_files(self) -> dict[str, bytes]:
        """The names and contents of all files that a checkpoint stores; `load` reads them."""
        header = {"kind": self.config.kind, "config": asdict(self.config)}
        return {HEADER: to_json(header), **self._model_files()}

    def fingerprint(self) -> str:
        """A SHA-256 of the files; equal only for tokenizers that give the same ids."""
        digest = hashlib.sha256()
        for name, content in sorted(self.to_files().items()):
            digest.update(f"{name}\0{len(content)}\0".encode() + content)
        return digest.hexdigest()

    def _check_id(self, token: int) -> None:
        if not 0 <= token < self.vocab_size:
            raise LabError(
                f"token id {token} is outside the tokenizer's vocabulary of {self.vocab_size}:"
                " was it made by another tokenizer?"
            )

    def _encode_batch(self, texts: list[str]) -> list[list[int]]:
        return [self._encode(text) for text in texts]

    def _encode_with_offsets(self, text: str) -> Offsets:
        raise LabError(
            f"a {self.config.kind} tokenizer does not tell where a token stands in the text:"
            " use kind wordpiece or byte_bpe"
        )

    @abstractmethod
    def _encode(self, text: str) -> list[int]: ...

    @abstractmethod
    def _decode(self, ids: Sequence[int]) -> str: ...

    @abstractmethod
    def _piece(self, token: int) -> str: ...

    @abstractmethod
    def _model_files(self) -> dict[str, bytes]: ...


class SymbolTokenizer(Tokenizer):
    """A tokenizer of a list of symbols after the special tokens; all others are unknown."""

    def __init__(self, config: TokenizerConfig, symbols: Sequence[str]):
        super().__init__(config, len(SPECIAL_PIECES) + len(symbols))
        self._symbols = [*SPECIAL_PIECES, *symbols]  # by id
        self._ids = {s: i for i, s in enumerate(self._symbols) if i >= len(SPECIAL_PIECES)}
        if len(self._ids) < len(symbols):
            raise LabError(f"the tokenizer's file {self.file_names[0]} holds a symbol twice")

    def _piece(self, token: int) -> str:
        return self._symbols[token]

    def _learnt(self) -> list[str]:
        return self._symbols[len(SPECIAL_PIECES) :]


EMPTY = "the training corpus of the tokenizer is empty"


def too_small(config: TokenizerConfig, smallest: int, also: str) -> LabError:
    """The error for a vocabulary too small for the tokens that every text needs."""
    return LabError(
        f"tokenizer vocab_size {config.vocab_size} is too small for the special tokens{also}: "
        f"the smallest possible is {smallest}"
    )


def clean(text: str) -> str:
    """The text with lone surrogates, which no encoding can hold, replaced by U+FFFD.

    A pair of surrogates becomes its character; all other text is unchanged."""
    if not isinstance(text, str):
        raise LabError(f"a tokenizer takes str, got {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def to_json(value: object) -> bytes:
    """The value as JSON with sorted keys, so that equal values give equal bytes."""
    return json.dumps(value, ensure_ascii=False, indent=1, sort_keys=True).encode()


def read_file(files: Mapping[str, bytes], name: str) -> bytes:
    """The content of a required file of the tokenizer; LabError if it is missing."""
    if name not in files:
        raise LabError(f"the tokenizer's file {name} is missing (there are: {sorted(files)})")
    return files[name]


def read_json(files: Mapping[str, bytes], name: str) -> object:
    """The value in a required JSON file of the tokenizer; LabError if it is invalid."""
    try:
        return json.loads(read_file(files, name))
    except ValueError as error:
        raise LabError(f"the tokenizer's file {name} is not valid JSON: {error}") from None


def settings_in(files: Mapping[str, bytes], name: str) -> dict[str, Any]:
    """The object in an optional JSON file; {} if it is missing or holds something else."""
    values = read_json(files, name) if name in files else {}
    return values if isinstance(values, dict) else {}
