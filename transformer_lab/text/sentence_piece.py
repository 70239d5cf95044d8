"""BPE and unigram tokenizers made by the sentencepiece library, and T5's.

With `lossless=False` a text is first normalised (NFKC; runs of white space become one space, its
ends are trimmed), so that "…" is decoded as "...": do not use its output as a reference."""

import io
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import sentencepiece

from transformer_lab.errors import LabError
from transformer_lab.text.tokenizer import (
    EMPTY,
    SETTINGS,
    SPECIAL_PIECES,
    Tokenizer,
    TokenizerConfig,
    clean,
    read_file,
    register,
    settings_in,
    too_small,
)

MODEL = "sentencepiece.model"
T5_MODEL = "spiece.model"
SENTINELS, MOST_SENTINELS = 100, 100_000  # T5's sentinels, unless its settings differ
SPACE_MARK = "▁"  # U+2581, how the library writes a space
RESERVED = "▅"  # U+2585: the library's trainer drops lines that hold it
THREADS = 2  # fixed, since a unigram model depends on the number of training threads

# Below the trainer's 4,192 bytes a line, above which it drops the line and says nothing. A cut
# stands before white space wherever there is some, so that no word is torn.
LINE = re.compile(r"(?s).{1,1000}(?=\s|\Z)|.{1,1000}")

LOSSLESS = {
    "normalization_rule_name": "identity",
    "add_dummy_prefix": False,
    "remove_extra_whitespaces": False,
    "allow_whitespace_only_pieces": True,  # else each space of an indent is a token
}


class ModelTokenizer(Tokenizer):
    """Base of tokenizers whose tokens are the pieces of one sentencepiece model."""

    def __init__(self, config: TokenizerConfig, model: sentencepiece.SentencePieceProcessor):
        super().__init__(config, model.get_piece_size())
        self._model = model

    def _encode(self, text: str) -> list[int]:
        return self._model.encode(text)

    def _encode_batch(self, texts: list[str]) -> list[list[int]]:
        return self._model.encode(texts, num_threads=THREADS)

    def _decode(self, ids: Sequence[int]) -> str:
        return self._model.decode(list(ids))

    def _piece(self, token: int) -> str:
        return self._model.id_to_piece(token)


@register("t5")
class T5Tokenizer(ModelTokenizer):
    """The tokenizer of a T5 directory: the model's special ids, and sentinels after its pieces.
    Decoders start with the padding."""

    file_names = (T5_MODEL, SETTINGS)
    foreign_files = (T5_MODEL,)
    instead = "unigram, with extra_ids"

    def __init__(self, config: TokenizerConfig, files: Mapping[str, bytes]):
        self._files = {name: files[name] for name in self.file_names if name in files}
        model = load_model(read_file(files, T5_MODEL), T5_MODEL)
        self.pad_id, self.eos_id, self.unk_id = model.pad_id(), model.eos_id(), model.unk_id()
        if min(self.pad_id, self.eos_id, self.unk_id) < 0:
            raise LabError(f"{T5_MODEL} lacks a padding, end or unknown piece: it is none of T5's")
        self.bos_id = self.pad_id
        extra = settings_in(self._files, SETTINGS).get("extra_ids", SENTINELS)
        if type(extra) is not int or not 0 <= extra <= MOST_SENTINELS:
            most = f"{MOST_SENTINELS:,}"
            raise LabError(f"{SETTINGS}: extra_ids = {extra!r:.60} is not from 0 to {most}")
        size = model.get_piece_size()
        super().__init__(replace(config, vocab_size=size, extra_ids=extra), model)

    def _model_files(self) -> dict[str, bytes]:
        return self._files


@register("bpe", "unigram")
class SentencePieceTokenizer(ModelTokenizer):
    """A trained sentencepiece model, BPE or unigram, with our special tokens at 0 to 3."""

    file_names = (MODEL,)

    def __init__(self, config: TokenizerConfig, files: Mapping[str, bytes]):
        self._bytes = read_file(files, MODEL)
        super().__init__(config, load_model(self._bytes, MODEL))
        if tuple(map(self._model.id_to_piece, range(len(SPECIAL_PIECES)))) != SPECIAL_PIECES:
            raise LabError(f"{MODEL} does not begin with the pieces {' '.join(SPECIAL_PIECES)}")
        self._mark = [self._model.piece_to_id(f"<0x{b:02X}>") for b in SPACE_MARK.encode()]

    @classmethod
    def check(cls, config: TokenizerConfig) -> None:
        if config.lossless and not config.byte_fallback:
            raise LabError("tokenizer lossless=True needs byte_fallback=True")
        if not 0.98 <= config.character_coverage <= 1:
            raise LabError(
                "tokenizer character_coverage must lie between 0.98 and 1,"
                f" got {config.character_coverage}"
            )

    @classmethod
    def train(cls, config: TokenizerConfig, texts: Iterable[str]) -> "SentencePieceTokenizer":
        corpus = _Corpus(texts)
        try:
            tokenizer = cls(config, {MODEL: _train(config, iter(corpus))})
        except (RuntimeError, ValueError) as error:
            raise corpus.error or _refusal(config, str(error)) from None
        if tokenizer._spellable < config.vocab_size:
            print(
                f"warning: tokenizer vocab_size {config.vocab_size} is more than the texts"
                f" support: the tokenizer has {tokenizer._spellable} pieces",
                file=sys.stderr,
            )
        return tokenizer

    def _encode(self, text: str) -> list[int]:
        if not self._holds_mark(text):
            return super()._encode(text)
        first, *rest = text.split(SPACE_MARK)
        ids = self._model.encode(first)
        for part in rest:
            ids += self._mark + self._model.encode(part)
        return ids

    def _encode_batch(self, texts: list[str]) -> list[list[int]]:
        if any(map(self._holds_mark, texts)):
            return [self._encode(text) for text in texts]
        return super()._encode_batch(texts)

    def _holds_mark(self, text: str) -> bool:
        # The library decodes U+2581 as a space, so that a lossless tokenizer writes it as bytes.
        return self.config.lossless and SPACE_MARK in text

    def _model_files(self) -> dict[str, bytes]:
        return {MODEL: self._bytes}


class _Corpus:
    """Training lines that keep an error of their source, which the C++ trainer would hide."""

    def __init__(self, texts: Iterable[str]):
        self.texts = texts
        self.error: BaseException | None = None

    def __iter__(self) -> Iterator[str]:
        empty = True
        try:
            for text in self.texts:
                for line in _lines(text):
                    empty = False
                    yield line
            if empty:
                raise LabError(EMPTY)
        except Exception as error:
            self.error = error
            raise


def _lines(text: str) -> Iterator[str]:
    """The parts of a text that the trainer accepts: short, without its reserved character."""
    for part in clean(text).split(RESERVED):
        yield from (line for line in LINE.findall(part) if line.strip())


def _train(config: TokenizerConfig, lines: Iterator[str]) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=lines,
        model_writer=model,
        model_type=config.kind,
        # With fewer than the special tokens need, the trainer cannot say how many it needs.
        vocab_size=max(config.vocab_size, len(SPECIAL_PIECES)),
        hard_vocab_limit=False,  # fewer pieces if the texts do not support as many
        byte_fallback=config.byte_fallback,
        character_coverage=config.character_coverage,
        pad_id=Tokenizer.pad_id,
        eos_id=Tokenizer.eos_id,
        bos_id=Tokenizer.bos_id,
        unk_id=Tokenizer.unk_id,
        num_threads=THREADS,
        minloglevel=2,
        **(LOSSLESS if config.lossless else {}),
    )
    return model.getvalue()


def _refusal(config: TokenizerConfig, message: str) -> LabError:
    """The LabError that says what the trainer's message means for the user."""
    if needed := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        also = ", the bytes" if config.byte_fallback else ""
        return too_small(config, int(needed[1]), f"{also} and the characters of these texts")
    if "(all_chars_count) > (0)" in message:
        return LabError(f"{EMPTY} after normalisation")
    return LabError(f"sentencepiece cannot train this tokenizer: {' '.join(message.split())}")


def load_model(model: bytes, name: str) -> sentencepiece.SentencePieceProcessor:
    """The processor of a model file's content; `name` is used in the error if it is invalid."""
    try:
        # The library would accept an empty file as a model and fail when it is first used.
        if not model:
            raise ValueError("it is empty")
        return sentencepiece.SentencePieceProcessor(model_proto=model)
    except (RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise LabError(f"{name} is not a sentencepiece model: {reason}") from None
