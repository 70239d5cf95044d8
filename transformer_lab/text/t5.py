"""The tokenizer of a T5 directory: one sentencepiece model, with sentinels after its pieces."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from transformer_lab.errors import LabError
from transformer_lab.text.byte_bpe import SETTINGS, settings_in
from transformer_lab.text.sentence_piece import THREADS, load_model
from transformer_lab.text.tokenizer import Tokenizer, TokenizerConfig, read_file, register

MODEL = "spiece.model"
SENTINELS = 100  # unless tokenizer_config.json says otherwise, as mT5's does
MOST = 100_000


@register("t5")
class T5Tokenizer(Tokenizer):
    """Special ids are the model's; a decoder starts with the padding."""

    file_names = (MODEL, SETTINGS)
    foreign_files = (MODEL,)

    def __init__(self, config: TokenizerConfig, files: Mapping[str, bytes]):
        self._files = {name: files[name] for name in self.file_names if name in files}
        model = self._model = load_model(read_file(files, MODEL), MODEL)
        self.pad_id, self.eos_id, self.unk_id = model.pad_id(), model.eos_id(), model.unk_id()
        if min(self.pad_id, self.eos_id, self.unk_id) < 0:
            raise LabError(f"{MODEL} lacks a padding, end or unknown piece: it is none of T5's")
        self.bos_id = self.pad_id
        extra = settings_in(self._files, SETTINGS).get("extra_ids", SENTINELS)
        if type(extra) is not int or not 0 <= extra <= MOST:
            raise LabError(f"{SETTINGS}: extra_ids = {extra!r:.60} is not from 0 to {MOST:,}")
        size = model.get_piece_size()
        super().__init__(replace(config, vocab_size=size, extra_ids=extra), size)

    @classmethod
    def train(cls, config: TokenizerConfig, texts: Iterable[str]) -> Tokenizer:
        raise LabError(
            "a t5 tokenizer is loaded from a model's directory, not trained:"
            " set the tokenizer's kind to unigram, with extra_ids"
        )

    @classmethod
    def from_files(cls, config: TokenizerConfig, files: Mapping[str, bytes]) -> Tokenizer:
        return cls(config, files)

    def _encode(self, text: str) -> list[int]:
        return self._model.encode(text)

    def _encode_batch(self, texts: list[str]) -> list[list[int]]:
        return self._model.encode(texts, num_threads=THREADS)

    def _decode(self, ids: Sequence[int]) -> str:
        return self._model.decode(list(ids))

    def _piece(self, token: int) -> str:
        return self._model.id_to_piece(token)

    def _model_files(self) -> dict[str, bytes]:
        return self._files
