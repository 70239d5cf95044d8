"""Sequence to sequence on pairs of sentences, scored by BLEU and chrF of detokenised text."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from transformer_lab import text
from transformer_lab.data import parallel
from transformer_lab.data.batching import BatchConfig
from transformer_lab.data.ragged import Ragged
from transformer_lab.data.splits import SPLITS
from transformer_lab.decoding.batch import SequenceDecoder
from transformer_lab.decoding.config import DecodeConfig
from transformer_lab.errors import LabError, fractions
from transformer_lab.models.base import SequenceToSequence
from transformer_lab.models.decoder import positions_within
from transformer_lab.ops.losses import Pair, token_metrics
from transformer_lab.tasks import scores
from transformer_lab.tasks.base import Batch, Params, Place, Scores
from transformer_lab.tasks.brackets import bracket_scores
from transformer_lab.tasks.bucketed import Bucketed, Columns, Fields


@dataclass(frozen=True)
class TranslationConfig:
    """Settings of translation, the config section `task`."""

    label_smoothing: float = 0.1  # Szegedy 2016, section 7
    score_examples: int = 200  # validation pairs decoded at each scheduled evaluation; 0: none
    samples: int = 8  # translations shown at the end
    brackets: bool = False  # the outputs are trees, which are scored too (see `tasks.brackets`)

    def __post_init__(self):
        fractions(self, "task", "label_smoothing")


SECTIONS = {
    "task": TranslationConfig,
    "data": parallel.PairsConfig,
    "batch": BatchConfig,
    "tokenizer": text.TokenizerConfig,
    "decode": DecodeConfig,
}


class Translation(Bucketed):
    """Translates sentences of one language to another.

    A batch holds `source` and `target` (int32 [rows, length], each ending in the end token) and
    their masks (True at real tokens). "d" with the translation "d", before a row that only fills
    the batch, with 0 for padding, 1 for the end and 7 for "d":

        source       [[7, 1, 0], [0, 0, 0]]
        source_mask  [[1, 1, 0], [0, 0, 0]]
        target       [[7, 1, 0], [0, 0, 0]]
        target_mask  [[1, 1, 0], [0, 0, 0]]
    """

    PREPARED, COUNTED, FIELDS = "translation", "pairs", ("source", "target")
    NEEDS, load_data = SequenceToSequence, parallel.load_pairs
    _decoder: SequenceDecoder | None = None

    def sums(self, params: Params, batch: Batch, dropout_key, training: bool) -> dict[str, Pair]:
        """The cross-entropy of the target's tokens, smoothed in training, and their accuracy."""
        smoothing = self.config.label_smoothing if training else 0.0
        found = self.token_scores(params, batch, dropout_key)
        return token_metrics(found, batch["target"], batch["target_mask"], smoothing)

    def token_scores(self, params: Params, batch: Batch, dropout_key) -> Any:
        """The scores of target tokens given a start token and their segment's tokens before."""
        target, segments = batch["target"], batch.get("target_segments")
        before = jnp.pad(target[:, :-1], ((0, 0), (1, 0)))
        first = positions_within(segments, target.shape[1]) == 0
        shifted = jnp.where(first, self.tokenizer.bos_id, before)
        more = () if segments is None else (batch["source_segments"], segments)
        inputs = batch["source"], batch["source_mask"], shifted, dropout_key, *more
        return self.model.apply({"params": params}, *inputs, labels=target)

    # Data.

    def train_texts(self) -> Iterator[str]:
        return (sentence for pair in self.data.train for sentence in pair)

    def encode(self, sentence: str) -> list[int]:
        """The token ids of a sentence, with the end token."""
        return self.encode_all([sentence])[0]

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of each text, with the end token."""
        tok = self.tokenizer
        return [[*tok.start_ids, *ids, tok.eos_id] for ids in tok.encode_batch(texts)]

    def text_of(self, ids: Sequence[int]) -> str:
        """The text that generated ids stand for, without the start ids of a tokenizer."""
        start = list(self.tokenizer.start_ids)
        return self.tokenizer.decode(ids[len(start) :] if ids[: len(start)] == start else ids)

    def encode_split(self, split: str) -> tuple[Fields, Columns]:
        pairs = self.examples(split)
        encoded = [self.encode_all([pair[i] for pair in pairs]) for i in (0, 1)]
        return dict(zip(self.FIELDS, map(Ragged.from_lists, encoded), strict=True)), {}

    # Scores.

    def decoder(self, place: Place | None = None, rows: int = 0) -> SequenceDecoder:
        """The loop that translates encoded sentences, compiled once for each bucket of lengths."""
        ids = {f"{name}_id": getattr(self.tokenizer, f"{name}_id") for name in ("eos", "pad")}
        start = self.tokenizer.bos_id
        return SequenceDecoder(
            self.model, self.decode_settings(rows), **ids, start_id=start, place=place
        )

    def decoded(
        self, params: Params, pairs: Sequence[tuple[str, str]], place: Place, final: bool
    ) -> tuple[list[str], list[str], list[str]]:
        """Sources, best outputs and references; before training ends, of some pairs only."""
        pairs = list(pairs)[: None if final else self.config.score_examples]
        sources, references = ([pair[i] for pair in pairs] for i in (0, 1))
        self._decoder = self._decoder or self.decoder(place)  # kept, as it is compiled once
        outputs = [best[0] for best in self.translate(self._decoder, params, sources)]
        return sources, outputs, references

    def score(self, params: Params, split: str, place: Place, final: bool) -> Scores:
        """BLEU and chrF of the split's translations; before training ends, of some only."""
        sources, outputs, references = self.decoded(params, self.examples(split), place, final)
        if not sources:
            return Scores()
        values, signature = scores.corpus_scores(outputs, references)
        if final:
            values |= scores.bleu_by_length(sources, outputs, references)
        if self.config.brackets:
            values |= bracket_scores(outputs, references)
        rows = list(zip(sources, outputs, references, strict=True))[: self.shown(final)]
        return Scores({**values, "num_examples": len(sources)}, rows, {"bleu_signature": signature})

    def translate(
        self,
        decoder: SequenceDecoder,
        params: Params,
        sentences: list[str],
        say: Callable[[str], None] | None = None,
    ) -> list[list[str]]:
        """The n best translations of each sentence; those of empty or too long ones are ""."""
        encoded = [self.encode(s) if s.strip() else [] for s in sentences]
        for i, ids in enumerate(encoded):
            if not decoder.fits(ids):
                if say is not None:
                    limit = self.model_config.max_length
                    say(f"not translated, {len(ids)} tokens (at most {limit}): {sentences[i][:60]}")
                encoded[i] = []
        return [
            [self.text_of(h.ids) for h in found] for found in decoder({"params": params}, encoded)
        ]

    def details(self) -> list[str]:
        sizes = {split: len(self.examples(split)) for split in SPLITS}
        for split in ("validation", "test"):
            if sizes[split] and not self.fitting(split)[2].any():
                raise LabError(
                    f"every pair of the {split} split is longer than model.max_length = "
                    f"{self.model_config.max_length}: raise it, or use longer pieces"
                )
        if self.shards is not None:
            sizes["train"] = len(self.shards)
        counts = ", ".join(f"{split} {count:,}" for split, count in sizes.items())
        lines = [f"splits: {counts}; longer than a batch takes: {self.dropped:,} of train"]
        for i, side in enumerate(self.FIELDS):
            if sample := [pair[i] for pair in list(self.data.validation)[:500]]:
                lines.append(f"{side}: {self.describe_tokens(sample)} (validation)")
        lines.append(f"vocabulary: {self.tokenizer.vocab_size:,} pieces")
        return lines + self.describe_batches()


build = Translation
SHOWN = ("bleu",)
BASELINE = "translation"
