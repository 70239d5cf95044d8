"""A tokenizer of which only the vocabulary's size is known, for programs that read no text."""

from collections.abc import Iterable, Mapping
from typing import NoReturn

from transformer_lab.errors import LabError
from transformer_lab.text.tokenizer import (
    KINDS,
    Tokenizer,
    TokenizerConfig,
    read_json,
    to_json,
)

PIECES = "pieces.json"


class StandIn(Tokenizer):
    """A tokenizer with the vocabulary size that the config asks for; LabError for any text."""

    def __init__(self, config: TokenizerConfig, size: int):
        super().__init__(config, size - config.extra_ids)
        self.mask_id = 4 if config.kind == "wordpiece" else None

    @classmethod
    def train(cls, config: TokenizerConfig, texts: Iterable[str] = ()) -> Tokenizer:
        """A stand-in of the config's size; for the kind byte the real tokenizer, never trained."""
        if config.kind == "byte":
            return KINDS["byte"].train(config, texts)
        return cls(config, config.vocab_size + config.extra_ids)

    @classmethod
    def from_files(cls, config: TokenizerConfig, files: Mapping[str, bytes]) -> Tokenizer:
        return cls(config, read_json(files, PIECES))

    def continues(self, token: object) -> bool:
        return False

    def _refuse(self, *_: object) -> NoReturn:
        raise LabError("this tokenizer stands for one that is not trained yet: it knows no text")

    _encode = _decode = _piece = _refuse

    def _model_files(self) -> dict[str, bytes]:
        return {PIECES: to_json(self.vocab_size)}
