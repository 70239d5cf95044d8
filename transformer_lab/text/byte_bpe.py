"""Byte-level BPE by the tokenizers library, and the tokenizers of Hugging Face directories."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count, groupby, islice, takewhile
from typing import Any, ClassVar

from transformer_lab.errors import LabError
from transformer_lab.text.library import LibraryTokenizer, filled, read_library, tokenizers
from transformer_lab.text.tokenizer import (
    HEADER,
    SETTINGS,
    SPECIAL_PIECES,
    Tokenizer,
    TokenizerConfig,
    read_file,
    read_json,
    register,
    settings_in,
    too_small,
)

MODEL = "byte_bpe.json"
SMALLEST = len(SPECIAL_PIECES) + 256

# A foreign tokenizer.json is not our header: foreign files are stored with a prefix.
PREFIX = "hf_"
VOCAB, MERGES = "vocab.json", "merges.txt"
ADDED = "added_tokens.json"  # ids of pieces that were added to the vocabulary
DECODER = "added_tokens_decoder"  # in tokenizer_config.json: the same, with their properties
NAMED = (SETTINGS, "special_tokens_map.json")  # name tokens by text, as eos_token: "</s>"
NUMBERED = ("config.json", "generation_config.json")  # name tokens by id, as eos_token_id: 2
CHAT = "chat_template.jinja"  # or the key chat_template of tokenizer_config.json
START = "decoder_start_token_id"  # the start token of an encoder-decoder
FOREIGN = (HEADER, VOCAB, MERGES, ADDED, *NAMED, *NUMBERED, CHAT)
WORD_END = "</w>"  # of CLIP's pieces that end a word
CLIP_WORDS = (
    r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|\p{L}+|\p{N}|[^\s\p{L}\p{N}]+"
)


@register("byte_bpe")
class ByteBpeTokenizer(LibraryTokenizer):
    """BPE over the bytes of UTF-8, words split as in GPT-2 (Radford 2019, section 2.2).

    All 256 bytes are in the vocabulary, so that every text is decoded unchanged. Ids that are not
    valid UTF-8, which a model may well generate, are decoded to U+FFFD."""

    file_names = (MODEL,)

    @classmethod
    def check(cls, config: TokenizerConfig) -> None:
        if config.vocab_size < SMALLEST:
            raise too_small(config, SMALLEST, " and the bytes")

    @classmethod
    def train(cls, config: TokenizerConfig, texts: Iterable[str]) -> Tokenizer:
        library = _byte_level(tokenizers().models.BPE())
        trainer = tokenizers().trainers.BpeTrainer(
            vocab_size=config.vocab_size,
            special_tokens=list(SPECIAL_PIECES),
            initial_alphabet=tokenizers().pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        library.train_from_iterator(filled(texts), trainer=trainer)
        return cls(config, library)

    @classmethod
    def from_files(cls, config: TokenizerConfig, files: Mapping[str, bytes]) -> Tokenizer:
        library = read_library(read_file(files, MODEL), MODEL)
        if tuple(map(library.id_to_token, range(len(SPECIAL_PIECES)))) != SPECIAL_PIECES:
            raise LabError(f"{MODEL} does not begin with the pieces {' '.join(SPECIAL_PIECES)}")
        return cls(config, library)

    def _model_files(self) -> dict[str, bytes]:
        return {MODEL: self._library.to_str().encode()}


@register("hf")
class HfTokenizer(LibraryTokenizer):
    """A `tokenizer.json`, or GPT-2's or CLIP's `vocab.json` and `merges.txt`, with its own ids.

    The special tokens are those that the files beside it name, else those of the usual names; the
    end token replaces a missing padding or start token."""

    file_names = (*FOREIGN[1:], *(PREFIX + name for name in FOREIGN))
    foreign_files = (VOCAB, MERGES)
    instead = "byte_bpe"
    # The end, start, padding, unknown and mask token: as the files call it, and its usual names.
    # The vocabulary of RoBERTa holds both of the first, and ends with "</s>".
    roles: ClassVar[dict[str, tuple[str, ...]]] = {
        "eos": ("</s>", "<|endoftext|>"),
        "bos": ("<s>", "<|startoftext|>"),
        "pad": ("<pad>",),
        "unk": ("<unk>",),
        "mask": ("<mask>",),
    }

    def __init__(self, config: TokenizerConfig, files: Mapping[str, bytes]):
        known = {HEADER, *self.foreign_files, ADDED, *NAMED, *NUMBERED, CHAT}
        self._files = {name: files[name] for name in sorted(known) if name in files}
        self.chat_template = _chat_template(self._files)
        library = self._read(self._files)
        _add_tokens(library, self._files)
        self._words = getattr(library.model, "end_of_word_suffix", None) == WORD_END
        if self._words:  # the ends of words are decoded as spaces
            end = tokenizers().decoders.Replace(WORD_END, "Ġ")
            library.decoder = tokenizers().decoders.Sequence([end, library.decoder])
        specials = [_special(*role, library, self._files) for role in self.roles.items()]
        eos, bos, pad, unk, self.mask_id = specials
        if eos is None:
            name = f"{next(iter(self.roles))}_token"
            raise LabError(f"no end token is known: name it in {SETTINGS} as {name}")
        self.eos_id = eos
        whole = library.encode("", add_special_tokens=True).ids
        begin = tuple(takewhile(lambda i: i != eos, whole))  # by the tokenizer's template
        if any(settings_in(self._files, name).get(START) is not None for name in NUMBERED):
            self.start_ids = begin
        else:
            bos = begin[0] if begin else bos
            named = begin or _named(next(islice(self.roles, 1, None)), library, self._files)
            self.text_start = None if named is None else bos
            self.starts_texts = settings_in(self._files, SETTINGS).get("add_bos_token")
        self.bos_id, self.pad_id, self.unk_id = (eos if i is None else i for i in (bos, pad, unk))
        super().__init__(config, library)
        self.config = replace(config, vocab_size=self.vocab_size)
        fallback = range(256) if "ByteFallback" in repr(library.decoder) else ()
        self._bytes = {library.token_to_id(f"<0x{byte:02X}>"): byte for byte in fallback}

    @classmethod
    def from_files(cls, config: TokenizerConfig, files: Mapping[str, bytes]) -> Tokenizer:
        own = {n.removeprefix(PREFIX): c for n, c in files.items() if n.startswith(PREFIX)}
        return cls(config, own or files)

    @staticmethod
    def _read(files: Mapping[str, bytes]) -> Any:
        if HEADER in files:
            return read_library(files[HEADER], HEADER)
        vocab, lines = read_json(files, VOCAB), read_file(files, MERGES).decode(errors="replace")
        merges = [tuple(line.split(" ")) for line in lines.split("\n") if line.strip()]
        merges = merges[1:] if lines.startswith("#version") else merges
        settings = settings_in(files, SETTINGS)
        ends = isinstance(vocab, dict) and any(piece.endswith(WORD_END) for piece in vocab)
        more = {"end_of_word_suffix": WORD_END, "unk_token": "<|endoftext|>"} if ends else {}
        try:
            model = tokenizers().models.BPE(vocab=vocab, merges=merges, **more)
        except Exception as error:  # the library raises plain Exception
            raise LabError(f"{VOCAB} and {MERGES} are no BPE tokenizer: {error}") from None
        if ends:
            return _clip(model)
        return _byte_level(model, add_prefix_space=settings.get("add_prefix_space") is True)

    @property
    def sentinels(self) -> list[int]:
        found = (self._library.token_to_id(f"<extra_id_{i}>") for i in count())
        return list(takewhile(lambda i: i is not None, found))

    def _decode(self, ids: Sequence[int]) -> str:
        if not self._bytes:
            decoded = super()._decode(ids)
            return decoded.removesuffix(" ") if self._words else decoded
        # For one wrong byte the library replaces a whole run of byte pieces, which would
        # change characters already shown. Here only the wrong byte is replaced.
        pieces = []
        for is_byte, run in groupby(ids, self._bytes.__contains__):
            if is_byte:
                pieces.append(bytes(self._bytes[i] for i in run).decode(errors="replace"))
            else:
                pieces += [self._pieces[i] for i in run if i in self._pieces]
        return self._library.decoder.decode(pieces)

    def _model_files(self) -> dict[str, bytes]:
        return {PREFIX + name: content for name, content in self._files.items()}


def _byte_level(model: Any, add_prefix_space: bool = False) -> Any:
    """A tokenizer of the library that splits text into words and bytes as GPT-2 does."""
    library = tokenizers().Tokenizer(model)
    before = tokenizers().pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    library.pre_tokenizer, library.decoder = before, tokenizers().decoders.ByteLevel()
    return library


def _clip(model: Any) -> Any:
    """A tokenizer of the library that works as CLIP's (Radford 2021, section 2.4): lower case, runs
    of white space are one space, and no token contains it."""
    lib = tokenizers()
    library, norms, splits = lib.Tokenizer(model), lib.normalizers, lib.pre_tokenizers
    library.normalizer = norms.Sequence(
        [norms.NFC(), norms.Replace(lib.Regex(r"\s+"), " "), norms.Lowercase()]
    )
    words = splits.Split(lib.Regex(CLIP_WORDS), behavior="removed", invert=True)
    library.pre_tokenizer = splits.Sequence([words, splits.ByteLevel(add_prefix_space=False)])
    library.decoder = lib.decoders.ByteLevel()
    return library


def _add_tokens(library: Any, files: Mapping[str, bytes]) -> None:
    """Adds the tokens that files list beside the vocabulary, with their ids.

    Tokens described in tokenizer_config.json get their properties from there. One that is only in
    added_tokens.json is special if a setting names it so. Raises: LabError for an entry that is not
    a token, or whose id does not follow those of the vocabulary."""
    named = {str(value) for file in NAMED for value in settings_in(files, file).values()}
    entries = []
    for piece, number in settings_in(files, ADDED).items():
        special = piece in named
        entry = {"content": piece, "special": special, "normalized": not special}
        entries.append((ADDED, number, entry))
    described = settings_in(files, SETTINGS).get(DECODER) or {}
    if not isinstance(described, dict):
        raise LabError(f"{SETTINGS}: {DECODER} must map ids to tokens")
    entries += [(SETTINGS, number, entry) for number, entry in described.items()]
    tokens = {}
    for file, number, entry in entries:
        try:
            if isinstance(number, bool) or not 0 <= int(number) < 2**31:
                raise ValueError
            tokens[int(number)] = file, tokenizers().AddedToken(**entry)
        except (TypeError, ValueError):
            raise LabError(f"{file}: {number!r}: {entry!r} is no added token") from None
    for number, (file, token) in sorted(tokens.items()):
        (library.add_special_tokens if token.special else library.add_tokens)([token])
        if library.token_to_id(token.content) != number:
            raise LabError(
                f"{file}: the added token {token.content!r} has the id {number}, but by the "
                f"vocabulary it is {library.token_to_id(token.content)}"
            )


def _chat_template(files: Mapping[str, bytes]) -> str | None:
    """The template of conversations; of several with names, the one called default."""
    if CHAT in files:
        return files[CHAT].decode(errors="replace")
    found = settings_in(files, SETTINGS).get("chat_template")
    if isinstance(found, list):
        named = {each.get("name"): each.get("template") for each in found if isinstance(each, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else None


def _special(
    name: str, usual: Sequence[str], library: Any, files: Mapping[str, bytes]
) -> int | None:
    """The id of the special token `name`, or None if the vocabulary has none."""
    if (named := _named(name, library, files)) is not None:
        return named
    found = [i for i in map(library.token_to_id, usual) if i is not None]
    added = library.get_added_tokens_decoder()  # preferred over a piece that merges happen to spell
    return min(found, key=lambda i: i not in added, default=None)


def _named(name: str, library: Any, files: Mapping[str, bytes]) -> int | None:
    """The id that settings beside the tokenizer give to the special token `name`, else None.

    Ids that the vocabulary lacks, such as -1 for no padding, are ignored."""
    # The library accepts 32-bit numbers only.
    known = lambda i: type(i) is int and 0 <= i < 2**32 and library.id_to_token(i) is not None  # noqa: E731
    if name == "bos":  # the decoder's start token takes precedence
        starts = (settings_in(files, file).get(START) for file in NUMBERED)
        for start in starts:
            if known(start):
                return start
    for file in NAMED:
        token = settings_in(files, file).get(f"{name}_token")
        token = token.get("content") if isinstance(token, dict) else token
        if isinstance(token, str) and library.token_to_id(token) is not None:
            return library.token_to_id(token)
    for file in NUMBERED:
        ids = settings_in(files, file).get(f"{name}_token_id")
        first = ids[0] if isinstance(ids, list) and ids else ids  # chat models have several ends
        if known(first):
            return first
    return None
