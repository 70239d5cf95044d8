"""Turning a model's scores into sequences."""

from transformer_lab.decoding.batch import Hypothesis, SequenceDecoder
from transformer_lab.decoding.config import DecodeConfig
from transformer_lab.decoding.generate import Generated, Generator
from transformer_lab.decoding.search import SearchResult, beam_search, greedy

__all__ = [
    "DecodeConfig",
    "Generated",
    "Generator",
    "Hypothesis",
    "SearchResult",
    "SequenceDecoder",
    "beam_search",
    "greedy",
]
