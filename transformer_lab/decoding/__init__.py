"""Decoding: from a model's scores of the next token to texts, greedily, by sampling or beams."""

from transformer_lab.decoding.batch import Hypothesis, SequenceDecoder
from transformer_lab.decoding.config import DecodeConfig
from transformer_lab.decoding.generate import Generated, Generator
from transformer_lab.decoding.loop import Beams, SearchResult, Single, search

__all__ = [
    "Beams",
    "DecodeConfig",
    "Generated",
    "Generator",
    "Hypothesis",
    "SearchResult",
    "SequenceDecoder",
    "Single",
    "search",
]
