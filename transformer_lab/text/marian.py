"""Marian's tokenizer in Hugging Face directories: two sentencepiece models, one vocabulary.

`source.spm` divides text into pieces, `vocab.json` numbers them, and `target.spm` joins the pieces
of outputs. As there, punctuation is only normalised as the models do it themselves."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from transformer_lab.errors import LabError
from transformer_lab.text.sentence_piece import SPACE_MARK, THREADS, load_model
from transformer_lab.text.tokenizer import (
    Tokenizer,
    TokenizerConfig,
    read_file,
    read_json,
    register,
)

SOURCE, TARGET, VOCAB = "source.spm", "target.spm", "vocab.json"
TARGET_VOCAB = "target_vocab.json"  # of models with two vocabularies, read only to refuse them
LANGUAGE = re.compile(r">>[^<>]+<<")  # of multilingual models: ">>fr<< Hello"


@register("marian")
class MarianTokenizer(Tokenizer):
    """Marian's tokenizer, with the special ids of `vocab.json`; decoders start with padding."""

    file_names = (SOURCE, TARGET, VOCAB, TARGET_VOCAB)
    foreign_files = (SOURCE, TARGET, VOCAB)
    instead = "bpe or unigram"

    def __init__(self, config: TokenizerConfig, files: Mapping[str, bytes]):
        if TARGET_VOCAB in files:
            raise LabError(
                f"marian models with a vocabulary of their own in {TARGET_VOCAB}"
                " are not supported: use one with a shared vocab.json"
            )
        self._files = {name: read_file(files, name) for name in self.foreign_files}
        self._source = load_model(self._files[SOURCE], SOURCE)
        self._target = load_model(self._files[TARGET], TARGET)
        self._ids = _read_vocabulary(files)
        self._pieces = {i: piece for piece, i in self._ids.items()}
        self.eos_id, self.unk_id, self.pad_id = (
            self._ids[piece] for piece in ("</s>", "<unk>", "<pad>")
        )
        self.bos_id = self.pad_id
        languages = (i for piece, i in self._ids.items() if LANGUAGE.fullmatch(piece))
        self._reserved = {self.eos_id, self.pad_id, *languages}
        size = max(self._pieces) + 1
        super().__init__(replace(config, vocab_size=size), size)

    def _encode(self, text: str) -> list[int]:
        return self._encode_batch([text])[0]

    def _encode_batch(self, texts: list[str]) -> list[list[int]]:
        split = [self._split_language(text) for text in texts]
        bodies = [body for _, body in split]
        encoded = self._source.encode(bodies, out_type=str, num_threads=THREADS)
        return [
            language + [self._id(piece) for piece in pieces]
            for (language, _), pieces in zip(split, encoded, strict=True)
        ]

    def _split_language(self, text: str) -> tuple[list[int], str]:
        """The id of a leading language code in the vocabulary, such as ">>fr<<", and the rest."""
        code = LANGUAGE.match(text)
        if code and code[0] in self._ids:
            return [self._ids[code[0]]], text[code.end() :]
        return [], text

    def _id(self, piece: str) -> int:
        # A run of characters unknown to the model is one piece, spelt as in the text: it may
        # spell "</s>" or a language code, and must neither end the sequence nor choose one.
        found = self._ids.get(piece, self.unk_id)
        return self.unk_id if found in self._reserved else found

    def _decode(self, ids: Sequence[int]) -> str:
        text = self._target.decode_pieces([self._piece(i) for i in ids])
        # A piece that only the source model has keeps the library's mark of a space.
        return text.replace(SPACE_MARK, " ").strip()

    def _piece(self, token: int) -> str:
        if token not in self._pieces:
            raise LabError(f"token id {token} has no piece in {VOCAB}")
        return self._pieces[token]

    def _model_files(self) -> dict[str, bytes]:
        return self._files


def _read_vocabulary(files: Mapping[str, bytes]) -> dict[str, int]:
    ids = read_json(files, VOCAB)
    if not isinstance(ids, dict) or not all(type(i) is int and i >= 0 for i in ids.values()):
        raise LabError(f"{VOCAB} must map each piece to its id")
    if missing := {"</s>", "<unk>", "<pad>"} - set(ids):
        raise LabError(f"{VOCAB} lacks the special pieces {', '.join(sorted(missing))}")
    return ids
