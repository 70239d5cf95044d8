"""What every tokenizer is: its interface, its configuration and the register of kinds."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import chain, groupby
from operator import index
from typing import Any, ClassVar, SupportsIndex

from transformer_lab.errors import LabError, nearest

HEADER = "tokenizer.json"
SETTINGS = "tokenizer_config.json"  # beside it, in directories of other libraries
SPECIAL_PIECES = ("<pad>", "</s>", "<s>", "<unk>")
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"  # what stands for text that cannot be given back
KINDS: dict[str, type["Tokenizer"]] = {}

Offsets = tuple[list[int], list[tuple[int, int]]]  # ids, and [start, end) of each in the text


def register(*kinds: str) -> Callable[[type["Tokenizer"]], type["Tokenizer"]]:
    """Enter a tokenizer class under the names that `TokenizerConfig.kind` may take."""

    def enter(cls: type["Tokenizer"]) -> type["Tokenizer"]:
        KINDS.update(dict.fromkeys(kinds, cls))
        return cls

    return enter


@dataclass(frozen=True)
class TokenizerConfig:
    """Which tokenizer to train and how; refused with a `LabError` where it cannot be."""

    # bpe | unigram (SentencePiece) | wordpiece (BERT's) | byte_bpe (GPT-2's) | plain_bpe (written
    # out) | char | word | stem | byte; marian, t5 and hf are only loaded
    kind: str = "bpe"
    vocab_size: int = 4000  # ignored by byte; else an upper bound
    byte_fallback: bool = True  # bpe, unigram: an unseen character becomes bytes and returns
    lossless: bool = False  # decode(encode(t)) == t for every text; byte and byte_bpe always are
    character_coverage: float = 0.9995  # bpe, unigram: share of characters that get a piece
    lowercase: bool = True  # wordpiece: neither case nor accents are kept
    extra_ids: int = 0  # sentinels that no text can spell, after the other pieces (Raffel 2020)

    def __post_init__(self):
        if self.kind not in KINDS:
            raise LabError(f'unknown tokenizer kind "{self.kind}"{nearest(self.kind, KINDS)}')
        if self.extra_ids < 0:
            raise LabError(f"tokenizer extra_ids = {self.extra_ids} is negative: use 0")
        KINDS[self.kind].check(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> "TokenizerConfig":
        """Build from plain values, as a file holds them.

        Raises: LabError for an unknown key or a value of the wrong type.
        """
        types = {field.name: field.type for field in fields(cls)}
        for key, value in values.items():
            if key not in types:
                raise LabError(f'unknown tokenizer setting "{key}"{nearest(key, types)}')
            if type(value) is not types[key] and (type(value), types[key]) != (int, float):
                raise LabError(f"tokenizer {key} must be {types[key].__name__}, got {value!r}")
        return cls(**{key: types[key](value) for key, value in values.items()})


class Tokenizer(ABC):
    """Text to token ids and back.

    A subclass writes the underscored methods: they get clean text and valid ids only.
    Those that we train have the special ids below; loaded ones may set their own.
    """

    pad_id: int = 0
    eos_id: int = 1
    bos_id: int = 2
    unk_id: int = 3
    mask_id: int | None = None  # of the kinds that have a token for a hidden place
    start_ids: tuple[int, ...] = ()  # what an encoder-decoder's texts begin with, as BART's <s>
    # What each text begins with for the decoder that a loaded tokenizer came with; None: unsaid.
    text_start: int | None = None

    # The files it stores beside the header, and those by which a directory that another
    # library wrote (no header of ours) is recognised as this kind.
    file_names: ClassVar[tuple[str, ...]] = ()
    foreign_files: ClassVar[tuple[str, ...]] = ()
    instead: ClassVar[str] = ""  # of a kind that is only loaded: the kind to train
    lossy: ClassVar[str] = ""  # of a kind that loses text: the kind that loses none

    def __init__(self, config: TokenizerConfig, vocab_size: int):
        self.config = config
        self._spellable = vocab_size
        self.vocab_size = vocab_size + config.extra_ids  # the real one: what an embedding needs

    @classmethod
    def check(cls, config: TokenizerConfig) -> None:
        """Raise a `LabError` for a config that this kind cannot satisfy."""
        if config.lossless and cls.lossy:
            raise LabError(f"a {config.kind} tokenizer cannot be lossless: use {cls.lossy}")

    @classmethod
    def train(cls, config: TokenizerConfig, texts: Iterable[str]) -> "Tokenizer":
        """Learn the vocabulary from `texts`, read once; the same texts give the same one."""
        raise LabError(
            f"a tokenizer of kind {config.kind} is loaded from a model's directory, not trained:"
            f" set the tokenizer's kind to {cls.instead}"
        )

    @classmethod
    def from_files(cls, config: TokenizerConfig, files: Mapping[str, bytes]) -> "Tokenizer":
        """Rebuild from what `to_files` gave."""
        return cls(config, files)

    def find(self, piece: str) -> int | None:
        """The id of a whole piece, such as a special token's; None where there is none, and for
        kinds that have no such pieces."""
        return None

    def unused(self, size: int) -> tuple[int, ...]:
        """The ids below `size` that no piece has, such as rows that fill a model's table up."""
        return tuple(range(self.vocab_size, size))

    def encode(self, text: str) -> list[int]:
        """Ids of one text; no special token is added, and none can be written into the text."""
        return self._encode(clean(text))

    def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
        """`encode` of each text."""
        return self._encode_batch([clean(text) for text in texts])

    def encode_words(self, words: Sequence[str]) -> list[list[int]]:
        """Ids of each word; one after the other, those of all words with spaces between them.

        A word of which nothing is left, such as U+200B, has none.
        """
        # Some kinds count the space to the word that follows, some put it there themselves.
        spaced = self.encode("a a") == [*self.encode("a"), *self.encode(" a")]
        return self.encode_batch(
            f" {word}" if spaced and place else word for place, word in enumerate(words)
        )

    def encode_with_offsets(self, text: str) -> Offsets:
        """`encode`, and where each id's characters stand in the text as it was given.

        Raises: LabError for a kind that does not know, or a text with surrogate pairs.
        """
        cleaned = clean(text)
        if len(cleaned) != len(text):
            raise LabError("offsets need a text without surrogate pairs: decode its UTF-16 first")
        return self._encode_with_offsets(cleaned)

    def continues(self, token: SupportsIndex) -> bool:
        """Whether an id's piece belongs to the word of the piece before it.

        Raises: LabError for a kind whose pieces do not tell, or an id outside the vocabulary.
        """
        raise LabError(
            f"a {self.config.kind} tokenizer's pieces do not tell words apart: use kind wordpiece"
        )

    @property
    def sentinels(self) -> list[int]:
        """The ids of <extra_id_0>, <extra_id_1> and so on: down from the vocabulary's end."""
        return list(range(self.vocab_size - 1, self._spellable - 1, -1))

    @property
    def special_ids(self) -> frozenset[int]:
        """The ids that stand for no text of their own."""
        ids = (self.pad_id, self.eos_id, self.bos_id, self.unk_id, self.mask_id)
        ids += tuple(self.sentinels)
        return frozenset(i for i in ids if i is not None)

    def decode(self, ids: Iterable[SupportsIndex]) -> str:
        """Text of ids up to the first end of sequence; padding and start tokens are skipped.

        `ids` may be a list or a one-dimensional array of integers.
        Raises: LabError for an id outside the vocabulary.
        """
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
        """How one id is written in the vocabulary; `LabError` outside of it."""
        token = index(token)
        self._check_id(token)
        if token >= self._spellable:
            return f"<extra_id_{self.vocab_size - 1 - token}>"
        return self._piece(token)

    def to_files(self) -> dict[str, bytes]:
        """Name to content of all files that a checkpoint keeps; `load` is the way back."""
        header = {"kind": self.config.kind, "config": asdict(self.config)}
        return {HEADER: to_json(header), **self._model_files()}

    def fingerprint(self) -> str:
        """SHA-256 over the files: equal only for tokenizers that give the same ids."""
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
    """A list of symbols behind the special tokens; all others are unknown."""

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
    """The refusal of a vocabulary without room for what every text needs."""
    return LabError(
        f"tokenizer vocab_size {config.vocab_size} is too small for the special tokens{also}: "
        f"the smallest possible is {smallest}"
    )


def clean(text: str) -> str:
    """The text with lone surrogates, which no encoding can hold, replaced by U+FFFD.

    A pair of surrogates becomes the character that it stands for. All other text is untouched.
    """
    if not isinstance(text, str):
        raise LabError(f"a tokenizer takes str, got {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def to_json(value: object) -> bytes:
    """The same value always gives the same bytes."""
    return json.dumps(value, ensure_ascii=False, indent=1, sort_keys=True).encode()


def read_file(files: Mapping[str, bytes], name: str) -> bytes:
    """The content of a file that the tokenizer must have."""
    if name not in files:
        raise LabError(f"the tokenizer's file {name} is missing (there are: {sorted(files)})")
    return files[name]


def read_json(files: Mapping[str, bytes], name: str) -> object:
    """The value in a JSON file that the tokenizer must have."""
    try:
        return json.loads(read_file(files, name))
    except ValueError as error:
        raise LabError(f"the tokenizer's file {name} is not valid JSON: {error}") from None


def settings_in(files: Mapping[str, bytes], name: str) -> dict[str, Any]:
    """The values of a JSON file, none where it is missing."""
    values = read_json(files, name) if name in files else {}
    return values if isinstance(values, dict) else {}
