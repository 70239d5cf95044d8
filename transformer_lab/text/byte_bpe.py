"""Byte-level BPE by the tokenizers library, and the tokenizers of Hugging Face directories.

The library is imported where it is used: the other kinds work without it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from transformer_lab.errors import LabError
from transformer_lab.text.tokenizer import (
    HEADER,
    SPECIAL_PIECES,
    Tokenizer,
    TokenizerConfig,
    clean,
    read_file,
    read_json,
    register,
)

MODEL = "byte_bpe.json"
SMALLEST = len(SPECIAL_PIECES) + 256

# A foreign tokenizer.json is no header of ours: what came is stored under names of its own.
PREFIX = "hf_"
VOCAB, MERGES = "vocab.json", "merges.txt"
SETTINGS = "tokenizer_config.json"
NAMED = (SETTINGS, "special_tokens_map.json")  # say eos_token: "</s>"
NUMBERED = ("config.json", "generation_config.json")  # say eos_token_id: 2
FOREIGN = (HEADER, VOCAB, MERGES, *NAMED, *NUMBERED)
WELL_KNOWN = {
    "eos": ("<|endoftext|>", "</s>"),
    "bos": ("<s>",),
    "pad": ("<pad>",),
    "unk": ("<unk>",),
}


class _LibraryTokenizer(Tokenizer):
    """A tokenizer of the library, whose special tokens no text can spell."""

    def __init__(self, config: TokenizerConfig, library: Any):
        library.encode_special_tokens = True  # sic: text like "</s>" is encoded as any other
        library.no_truncation()
        library.no_padding()
        self._library = library
        self._pieces = {i: piece for piece, i in library.get_vocab().items()}
        super().__init__(config, max(self._pieces, default=-1) + 1)
        added = library.get_added_tokens_decoder().items()
        self._reserved = {i for i, token in added if token.special} - {self.unk_id}
        self._reserved |= {self.pad_id, self.eos_id, self.bos_id}

    def _encode(self, text: str) -> list[int]:
        return self._spell(self._library.encode(text, add_special_tokens=False).ids)

    def _encode_batch(self, texts: list[str]) -> list[list[int]]:
        encoded = self._library.encode_batch_fast(texts, add_special_tokens=False)
        return [self._spell(encoding.ids) for encoding in encoded]

    def _spell(self, ids: list[int]) -> list[int]:
        """Ids with each special token, which some models find as a plain piece, in characters."""
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


@register("byte_bpe")
class ByteBpeTokenizer(_LibraryTokenizer):
    """BPE over the bytes of UTF-8, words split as in GPT-2 (Radford et al. 2019, section 2.2).

    All 256 bytes are in the vocabulary, and every text returns. Ids that are no valid UTF-8, which
    a model may well produce, decode to U+FFFD.
    """

    file_names = (MODEL,)

    @classmethod
    def check(cls, config: TokenizerConfig) -> None:
        if config.vocab_size < SMALLEST:
            raise LabError(
                f"tokenizer vocab_size {config.vocab_size} is too small for the special tokens"
                f" and the bytes: the smallest possible is {SMALLEST}"
            )

    @classmethod
    def train(cls, config: TokenizerConfig, texts: Iterable[str]) -> Tokenizer:
        library = _byte_level(_tokenizers().models.BPE())
        trainer = _tokenizers().trainers.BpeTrainer(
            vocab_size=config.vocab_size,
            special_tokens=list(SPECIAL_PIECES),
            initial_alphabet=_tokenizers().pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        library.train_from_iterator(_filled(texts), trainer=trainer)
        return cls(config, library)

    @classmethod
    def from_files(cls, config: TokenizerConfig, files: Mapping[str, bytes]) -> Tokenizer:
        library = _read_library(read_file(files, MODEL), MODEL)
        if tuple(map(library.id_to_token, range(len(SPECIAL_PIECES)))) != SPECIAL_PIECES:
            raise LabError(f"{MODEL} does not begin with the pieces {' '.join(SPECIAL_PIECES)}")
        return cls(config, library)

    def _model_files(self) -> dict[str, bytes]:
        return {MODEL: self._library.to_str().encode()}


@register("hf")
class HfTokenizer(_LibraryTokenizer):
    """A `tokenizer.json`, or GPT-2's `vocab.json` and `merges.txt`, with its own ids.

    Which are special is read from the files beside it, else from the usual names; without padding
    or a start token the end token stands in.
    """

    file_names = (*FOREIGN[1:], *(PREFIX + name for name in FOREIGN))
    foreign_files = (VOCAB, MERGES)

    def __init__(self, config: TokenizerConfig, files: Mapping[str, bytes]):
        self._files = {name: files[name] for name in FOREIGN if name in files}
        library = _read_foreign(self._files)
        eos, bos, pad, unk = (_special(name, library, self._files) for name in WELL_KNOWN)
        if eos is None:
            raise LabError(f"no end token is known: name it in {SETTINGS} as eos_token")
        self.eos_id = eos
        self.bos_id, self.pad_id, self.unk_id = (eos if i is None else i for i in (bos, pad, unk))
        super().__init__(config, library)
        self.config = replace(config, vocab_size=self.vocab_size)
        fallback = range(256) if "ByteFallback" in repr(library.decoder) else ()
        self._bytes = {library.token_to_id(f"<0x{byte:02X}>"): byte for byte in fallback}

    @classmethod
    def train(cls, config: TokenizerConfig, texts: Iterable[str]) -> Tokenizer:
        raise LabError(
            "an hf tokenizer is loaded from a model's directory, not trained:"
            " set the tokenizer's kind to byte_bpe"
        )

    @classmethod
    def from_files(cls, config: TokenizerConfig, files: Mapping[str, bytes]) -> Tokenizer:
        own = {n.removeprefix(PREFIX): c for n, c in files.items() if n.startswith(PREFIX)}
        return cls(config, own or files)

    def _decode(self, ids: Sequence[int]) -> str:
        if not self._bytes:
            return super()._decode(ids)
        # The library gives up a whole run of byte pieces for one wrong byte in it, and would
        # take back characters that have been shown. Here the wrong byte alone is replaced.
        pieces = []
        for is_byte, run in groupby(ids, self._bytes.__contains__):
            if is_byte:
                pieces.append(bytes(self._bytes[i] for i in run).decode(errors="replace"))
            else:
                pieces += [self._pieces[i] for i in run if i in self._pieces]
        return self._library.decoder.decode(pieces)

    def _model_files(self) -> dict[str, bytes]:
        return {PREFIX + name: content for name, content in self._files.items()}


def _tokenizers() -> Any:
    try:
        import tokenizers
    except ImportError:
        raise LabError("this tokenizer needs `pip install tokenizers`") from None
    return tokenizers


def _byte_level(model: Any, add_prefix_space: bool = False) -> Any:
    """A library tokenizer in the manner of GPT-2."""
    library = _tokenizers().Tokenizer(model)
    before = _tokenizers().pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    library.pre_tokenizer, library.decoder = before, _tokenizers().decoders.ByteLevel()
    return library


def _filled(texts: Iterable[str]) -> Iterator[str]:
    """The clean texts; LabError where there is nothing in them."""
    empty = True
    for text in texts:
        empty = empty and not text
        yield clean(text)
    if empty:
        raise LabError("the training corpus of the tokenizer is empty")


def _read_library(content: bytes, name: str) -> Any:
    library = _tokenizers().Tokenizer
    try:
        return library.from_buffer(content)
    except Exception as error:  # the library has no type of its own
        raise LabError(f"{name} cannot be read by the tokenizers library: {error}") from None


def _read_foreign(files: Mapping[str, bytes]) -> Any:
    if HEADER in files:
        return _read_library(files[HEADER], HEADER)
    vocab, lines = read_json(files, VOCAB), read_file(files, MERGES).decode(errors="replace")
    merges = [tuple(line.split(" ")) for line in lines.split("\n") if line.strip()]
    merges = merges[1:] if lines.startswith("#version") else merges
    settings = _settings(files, SETTINGS)
    try:
        model = _tokenizers().models.BPE(vocab=vocab, merges=merges)
    except Exception as error:  # as above
        raise LabError(f"{VOCAB} and {MERGES} are no BPE tokenizer: {error}") from None
    return _byte_level(model, add_prefix_space=settings.get("add_prefix_space") is True)


def _settings(files: Mapping[str, bytes], name: str) -> dict[str, Any]:
    values = read_json(files, name) if name in files else {}
    return values if isinstance(values, dict) else {}


def _special(name: str, library: Any, files: Mapping[str, bytes]) -> int | None:
    """The id of the end, start, padding or unknown token, if the vocabulary has one."""
    for file in NAMED:
        token = _settings(files, file).get(f"{name}_token")
        token = token.get("content") if isinstance(token, dict) else token
        if isinstance(token, str) and library.token_to_id(token) is not None:
            return library.token_to_id(token)
    for file in NUMBERED:
        ids = _settings(files, file).get(f"{name}_token_id")
        first = ids[0] if isinstance(ids, list) and ids else ids  # the ends of a chat model
        # Some configs name ids that the vocabulary lacks, such as -1 for no padding.
        if type(first) is int and first >= 0 and library.id_to_token(first) is not None:
            return first
    found = map(library.token_to_id, WELL_KNOWN[name])
    return next((i for i in found if i is not None), None)
