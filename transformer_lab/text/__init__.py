"""Tokenizers behind one interface: train, load, save and count.

A new kind is one file with a `Tokenizer` under `@register(...)`, and its import here."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from transformer_lab.errors import LabError
from transformer_lab.text.byte_bpe import ByteBpeTokenizer, HfTokenizer
from transformer_lab.text.marian import MarianTokenizer
from transformer_lab.text.plain_bpe import PlainBpeTokenizer
from transformer_lab.text.sentence_piece import SentencePieceTokenizer, T5Tokenizer
from transformer_lab.text.simple import ByteTokenizer, CharTokenizer, WordTokenizer
from transformer_lab.text.stand_in import PIECES, StandIn
from transformer_lab.text.stream import TextStream
from transformer_lab.text.tokenizer import (
    HEADER,
    KINDS,
    Tokenizer,
    TokenizerConfig,
    read_json,
)
from transformer_lab.text.word_piece import VOCAB, WordPieceTokenizer, is_word_piece

__all__ = [
    "ByteBpeTokenizer",
    "ByteTokenizer",
    "CharTokenizer",
    "HfTokenizer",
    "MarianTokenizer",
    "PlainBpeTokenizer",
    "SentencePieceTokenizer",
    "StandIn",
    "T5Tokenizer",
    "TextStream",
    "Tokenizer",
    "TokenizerConfig",
    "WordPieceTokenizer",
    "WordTokenizer",
    "load",
    "load_dir",
    "save_dir",
    "statistics",
    "train",
]


def train(config: TokenizerConfig, texts: Iterable[str]) -> Tokenizer:
    """Trains a tokenizer on texts, which are read once; equal texts give equal tokenizers.

    Raises: LabError for an empty corpus, or a vocabulary too small for its characters."""
    if isinstance(texts, str):
        raise LabError("a tokenizer is trained on many texts, got one str: pass a list of them")
    return KINDS[config.kind].train(config, texts)


def load(files: Mapping[str, bytes]) -> Tokenizer:
    """The tokenizer in files from `Tokenizer.to_files`, or from a Hugging Face directory.

    Raises: LabError if the files hold no tokenizer, or one that fails at its first word."""
    try:
        found = _load(files)
        if not isinstance(found, StandIn):  # a stand-in cannot encode text
            found.encode("a word")
        return found
    except LabError:
        raise
    except BaseException as error:  # a panic in the library's Rust code is not an Exception
        if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError | TimeoutError):
            raise
        names = ", ".join(sorted(files))
        raise LabError(f"no tokenizer that can be read ({names}): {error}") from error


def _load(files: Mapping[str, bytes]) -> Tokenizer:
    header = read_json(files, HEADER) if HEADER in files else None
    if isinstance(header, dict) and isinstance(header.get("config"), dict):
        config = TokenizerConfig.from_dict(header["config"])
        return (StandIn if PIECES in files else KINDS[config.kind]).from_files(config, files)
    foreign = isinstance(header, dict) and "model" in header  # a tokenizer.json that is not ours
    found = set(files) - {VOCAB} if foreign else set(files)  # it takes precedence over a vocab.txt
    for kind, cls in KINDS.items():
        if cls.foreign_files and set(cls.foreign_files) <= found:
            return cls.from_files(TokenizerConfig(kind=kind), files)
    if foreign:
        kind = "wordpiece" if is_word_piece(header["model"]) else "hf"
        return KINDS[kind].from_files(TokenizerConfig(kind=kind), files)
    raise LabError(f"no tokenizer that can be read among the files {sorted(files)}")


def save_dir(tokenizer: Tokenizer, path: str | Path) -> None:
    """Writes the tokenizer's files into a directory, which is created if it is missing."""
    path = Path(path)
    path.mkdir(parents=True, exist_ok=True)
    for name, content in tokenizer.to_files().items():
        (path / name).write_bytes(content)


def load_dir(path: str | Path) -> Tokenizer:
    """The tokenizer of a directory, of which only the tokenizer's files are read."""
    path = Path(path)
    if not path.is_dir():
        raise LabError(f"no tokenizer directory at {path}")
    known = {HEADER}.union(*(cls.file_names for cls in KINDS.values()))
    try:
        return load({n: (path / n).read_bytes() for n in known if (path / n).is_file()})
    except LabError as error:
        raise LabError(f"{path}: {error}") from None


def statistics(tokenizer: Tokenizer, texts: Iterable[str]) -> dict[str, float]:
    """Tokens per white-space separated word, and the share of unknown tokens, over all texts."""
    texts = list(texts)
    encoded = tokenizer.encode_batch(texts)
    words = sum(len(text.split()) for text in texts)
    if not words:
        raise LabError("statistics of a tokenizer need at least one word of text")
    tokens = sum(map(len, encoded))
    unknown = sum(ids.count(tokenizer.unk_id) for ids in encoded)
    return {"tokens_per_word": tokens / words, "unknown_rate": unknown / max(tokens, 1)}
