"""BPE and unigram tokenizers made by the sentencepiece library.

With `lossless=False` a text is first normalised (NFKC, runs of white space become one space and
the ends are trimmed), so "…" comes back as "...": such a tokenizer's output is no reference.
"""

import io
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence

import sentencepiece

from transformer_lab.errors import LabError
from transformer_lab.text.tokenizer import (
    SPECIAL_PIECES,
    Tokenizer,
    TokenizerConfig,
    clean,
    read_file,
    register,
)

MODEL = "sentencepiece.model"
SPACE_MARK = "▁"  # U+2581, how the library writes a space
RESERVED = "▅"  # U+2585, the library's own sign: its trainer drops each line that holds one
THREADS = 2  # fixed, since a unigram model depends on the number of training threads

# Below the trainer's 4,192 bytes a line, above which it drops the line and says nothing. A cut
# stands before white space wherever there is some, so that no word is torn.
LINE = re.compile(r"(?s).{1,1000}(?=\s|\Z)|.{1,1000}")

LOSSLESS = {
    "normalization_rule_name": "identity",
    "add_dummy_prefix": False,
    "remove_extra_whitespaces": False,
    "allow_whitespace_only_pieces": True,  # else an indent costs one token a space
}


@register("bpe", "unigram")
class SentencePieceTokenizer(Tokenizer):
    """A sentencepiece model, with its own special tokens at 0 to 3."""

    file_names = (MODEL,)

    def __init__(self, config: TokenizerConfig, model: bytes):
        self._bytes = model
        self._model = load_model(model, MODEL)
        super().__init__(config, self._model.get_piece_size())
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
            tokenizer = cls(config, _train(config, iter(corpus)))
        except (RuntimeError, ValueError) as error:
            raise corpus.error or _refusal(config, str(error)) from None
        if tokenizer._spellable < config.vocab_size:
            print(
                f"warning: tokenizer vocab_size {config.vocab_size} is more than the texts"
                f" support: the tokenizer has {tokenizer._spellable} pieces",
                file=sys.stderr,
            )
        return tokenizer

    @classmethod
    def from_files(cls, config: TokenizerConfig, files: Mapping[str, bytes]) -> Tokenizer:
        return cls(config, read_file(files, MODEL))

    def _encode(self, text: str) -> list[int]:
        if not self._holds_mark(text):
            return self._model.encode(text)
        first, *rest = text.split(SPACE_MARK)
        ids = self._model.encode(first)
        for part in rest:
            ids += self._mark + self._model.encode(part)
        return ids

    def _encode_batch(self, texts: list[str]) -> list[list[int]]:
        if any(map(self._holds_mark, texts)):
            return super()._encode_batch(texts)
        return self._model.encode(texts, num_threads=THREADS)

    def _holds_mark(self, text: str) -> bool:
        # The library takes a U+2581 of the text for a space: lossless spells it in bytes.
        return self.config.lossless and SPACE_MARK in text

    def _decode(self, ids: Sequence[int]) -> str:
        return self._model.decode(list(ids))

    def _piece(self, token: int) -> str:
        return self._model.id_to_piece(token)

    def _model_files(self) -> dict[str, bytes]:
        return {MODEL: self._bytes}


class _Corpus:
    """Training lines; keeps an error of their source, which the C++ trainer would disguise."""

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
                raise LabError("the training corpus of the tokenizer is empty")
        except Exception as error:
            self.error = error
            raise


def _lines(text: str) -> Iterator[str]:
    """The parts of a text that the trainer accepts."""
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
        hard_vocab_limit=False,  # as many pieces as the texts support, where that is less
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
    """What the trainer's message means for the user."""
    if needed := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        return LabError(
            f"tokenizer vocab_size {config.vocab_size} is too small for the special tokens"
            f"{', the bytes' if config.byte_fallback else ''} and the characters of these texts:"
            f" the smallest possible is {needed[1]}"
        )
    if "(all_chars_count) > (0)" in message:
        return LabError("the training corpus of the tokenizer is empty after normalisation")
    return LabError(f"sentencepiece cannot train this tokenizer: {' '.join(message.split())}")


def load_model(model: bytes, name: str) -> sentencepiece.SentencePieceProcessor:
    """A processor from a model file's content; `name` is for the error."""
    try:
        # Without the check the library takes an empty file for a model and fails at first use.
        if not model:
            raise ValueError("it is empty")
        return sentencepiece.SentencePieceProcessor(model_proto=model)
    except (RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise LabError(f"{name} is not a sentencepiece model: {reason}") from None
