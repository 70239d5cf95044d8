"""WordPiece, BERT's tokenizer: trained here, or read from `vocab.txt` or `tokenizer.json`.

A word is the longest piece of the vocabulary that begins it, then the longest that continues it,
written "##...", and so on (Devlin 2019, section 3; Schuster and Nakajima 2012). It is lossy."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import index
from typing import Any, SupportsIndex

from transformer_lab.errors import LabError
from transformer_lab.text.byte_bpe import PREFIX, HfTokenizer
from transformer_lab.text.library import filled, read_library, tokenizers
from transformer_lab.text.tokenizer import (
    EMPTY,
    HEADER,
    SETTINGS,
    Tokenizer,
    TokenizerConfig,
    read_file,
    register,
    settings_in,
    too_small,
)

VOCAB = "vocab.txt"
UNKNOWN = "[UNK]"
# In the order of their ids 0 to 4 when trained here; other files have other ids.
SPECIALS = ("[PAD]", "[SEP]", "[CLS]", UNKNOWN, "[MASK]")
CONTINUES = "##"
OVERRIDES = {  # keys of the settings -> the normalizer's attributes
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
LONGEST = 100  # characters of a word; a longer one is unknown


@register("wordpiece")
class WordPieceTokenizer(HfTokenizer):
    """BERT's tokenizer: [CLS] is the start token, [SEP] the end token.

    Control characters and U+FFFD are dropped, and Chinese characters are words; lowercase removes
    case and accents. Files from elsewhere follow the settings in tokenizer_config.json; where it
    does not say, a vocab.txt is lowercase if no piece has a capital."""

    file_names = (VOCAB, PREFIX + VOCAB)
    foreign_files = (VOCAB,)
    lossy = "kind byte_bpe"
    roles = {
        "sep": ("[SEP]",),
        "cls": ("[CLS]",),
        "pad": ("[PAD]",),
        "unk": (UNKNOWN,),
        "mask": ("[MASK]",),
    }

    def __init__(self, config: TokenizerConfig, files: Mapping[str, bytes]):
        super().__init__(config, files)
        normalizer = self._library.normalizer
        lowercase = normalizer is not None and normalizer.normalize_str("A") == "a"
        self.config = replace(self.config, lowercase=lowercase)

    @classmethod
    def train(cls, config: TokenizerConfig, texts: Iterable[str]) -> Tokenizer:
        texts = list(filled(texts))
        library = _bert({}, config.lowercase)
        base = _characters(library, texts)
        smallest = len(SPECIALS) + len(base)
        if config.vocab_size < smallest:
            raise too_small(config, smallest, " and the characters of these texts")
        # The library numbers the "##x", which break ties, in the order of a hash table, each time
        # another: as special tokens they have numbers beforehand. A fresh library drops the mark.
        trainer = tokenizers().trainers.WordPieceTrainer(
            vocab_size=config.vocab_size, special_tokens=[*SPECIALS, *base], show_progress=False
        )
        library.train_from_iterator(texts, trainer=trainer)
        library = _bert(library.get_vocab(), config.lowercase)
        return cls(config, {HEADER: library.to_str().encode()})

    @staticmethod
    def _read(files: Mapping[str, bytes]) -> Any:
        library = _from_json(files) if HEADER in files else _from_vocab(files)
        model = library.model
        if library.token_to_id(model.unk_token) is None:
            raise LabError(f"the WordPiece vocabulary lacks its unknown token {model.unk_token}")
        return library

    def continues(self, token: SupportsIndex) -> bool:
        self._check_id(index(token))
        prefix = self._library.model.continuing_subword_prefix
        return self._pieces.get(index(token), "").startswith(prefix)


def is_word_piece(model: object) -> bool:
    """Whether the "model" of a tokenizer.json is WordPiece; in old files it has no type."""
    return isinstance(model, dict) and "max_input_chars_per_word" in model


def _bert(
    vocab: Mapping[str, int],
    lowercase: bool,
    strip_accents: bool | None = None,  # None: as lowercase
    chinese: bool = True,
    unknown: str = UNKNOWN,
) -> Any:
    """A tokenizer of the library that normalises and splits text as BERT's does."""
    lib = tokenizers()
    model = lib.models.WordPiece(vocab, unk_token=unknown, max_input_chars_per_word=LONGEST)
    library = lib.Tokenizer(model)
    library.normalizer = lib.normalizers.BertNormalizer(True, chinese, strip_accents, lowercase)
    library.pre_tokenizer = lib.pre_tokenizers.BertPreTokenizer()
    library.decoder = lib.decoders.WordPiece(CONTINUES)
    library.add_special_tokens([special for special in SPECIALS if special in vocab])
    return library


def _characters(library: Any, texts: Sequence[str]) -> list[str]:
    """The characters that continue words, as "##x", then all characters, each sorted."""
    normal, split = library.normalizer.normalize_str, library.pre_tokenizer.pre_tokenize_str
    written = {word for text in texts for word in text.split()}
    words = {word for some in written for word, _ in split(normal(some))}
    if not words:
        raise LabError(EMPTY)
    inner = sorted({CONTINUES + character for word in words for character in word[1:]})
    return [*inner, *sorted(set().union(*words))]


def _from_json(files: Mapping[str, bytes]) -> Any:
    """The file's tokenizer. Settings beside it override a BERT tokenizer's, as in Hugging Face's
    library, but if they do not state lowercasing the file's value stays."""
    library, settings = read_library(files[HEADER], HEADER), settings_in(files, SETTINGS)
    normalizer = library.normalizer
    of_bert = "Bert" in settings.get("tokenizer_class", "BertTokenizer")
    if of_bert and type(normalizer).__name__ == "BertNormalizer":
        for name in OVERRIDES.keys() & settings.keys():
            setattr(normalizer, OVERRIDES[name], settings[name])
        library.normalizer = normalizer
    return library


def _from_vocab(files: Mapping[str, bytes]) -> Any:
    lines = read_file(files, VOCAB).decode(errors="replace").split("\n")
    pieces = [line.rstrip("\r") for line in (lines if lines[-1] else lines[:-1])]
    settings = settings_in(files, SETTINGS)
    lowercase = settings.get("do_lower_case")
    if lowercase is None:
        lowercase = all(piece == piece.lower() for piece in pieces if piece[:1] not in "[<")
    unknown = settings.get("unk_token", UNKNOWN)
    return _bert(
        {piece: place for place, piece in enumerate(pieces)},
        lowercase,
        settings.get("strip_accents"),
        settings.get("tokenize_chinese_chars", True),
        unknown.get("content") if isinstance(unknown, dict) else unknown,
    )
