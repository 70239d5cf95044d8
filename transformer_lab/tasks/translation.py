"""Sequence to sequence on pairs of sentences, scored by BLEU and chrF on detokenised text."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from transformer_lab import models, text
from transformer_lab.data import parallel
from transformer_lab.data.batching import BatchConfig
from transformer_lab.data.ragged import Ragged
from transformer_lab.data.shards import Shards, open_shards
from transformer_lab.data.splits import remarks
from transformer_lab.decoding.batch import SequenceDecoder
from transformer_lab.decoding.config import DecodeConfig
from transformer_lab.errors import LabError
from transformer_lab.models.decoder import positions_within
from transformer_lab.ops.losses import Pair, token_metrics
from transformer_lab.tasks.base import Batch, HostBatch, Params, Place, Scores, table_size
from transformer_lab.tasks.bucketed import Bucketed


@dataclass(frozen=True)
class TranslationConfig:
    """The objective's own settings."""

    label_smoothing: float = 0.1  # Szegedy 2016, section 7
    score_examples: int = 200  # validation pairs decoded at each scheduled evaluation; 0: none
    samples: int = 8  # translations shown at the end

    def __post_init__(self):
        if not 0.0 <= self.label_smoothing < 1.0:
            raise LabError(f"task.label_smoothing = {self.label_smoothing} is not in [0, 1)")


WORDS = (4, 8, 16)  # of a source: where BLEU by length is divided
SECTIONS = {
    "task": TranslationConfig,
    "data": parallel.PairsConfig,
    "batch": BatchConfig,
    "tokenizer": text.TokenizerConfig,
    "decode": DecodeConfig,
}


class Translation(Bucketed):
    """The task: what a batch holds, its loss, its scores.

    A batch holds `source` and `target` (int32 [rows, length], each ending in the end token) and
    their masks (True at real tokens).
    """

    KIND = "translation"
    FIELDS = ("source", "target")

    def __init__(
        self,
        model_kind: str,
        model_config: Any,
        sections: dict[str, Any],
        assets: dict[str, bytes] | None = None,
        seed: int = 0,
        rows_multiple: int = 1,
    ):
        self.config: TranslationConfig = sections["task"]
        self.sections, self.seed, self.rows_multiple = sections, seed, rows_multiple
        self.check_rows(rows_multiple)
        self.tokenizer = None if assets is None else text.load(assets)
        if self.tokenizer is None and self.reads_shards:
            self.tokenizer = self.shards.tokenizer()
        elif self.tokenizer is None:
            self.tokenizer = text.train(sections["tokenizer"], self._train_texts(), seed)
        size = table_size(model_config.vocab_size, self.tokenizer.vocab_size)
        self.model_config = replace(model_config, vocab_size=size)
        self.family = models.family(model_kind)
        self.model = self.family.build(self.model_config)
        self._decoder: SequenceDecoder | None = None

    # What the trainer compiles.

    def init(self, key: Key[Array, ""]) -> Params:
        return self.model.init(key, *self.family.example_inputs())["params"]

    def loss(
        self, params: Params, batch: Batch, dropout_key: Key[Array, ""] | None
    ) -> dict[str, Pair]:
        scores = self._scores(params, batch, dropout_key)
        return {"loss": self._scored(scores, batch, self.config.label_smoothing)["loss"]}

    def metrics(self, params: Params, batch: Batch) -> dict[str, Pair]:
        return self._scored(self._scores(params, batch, None), batch, 0.0)

    def _scored(self, scores, batch, smoothing):
        return token_metrics(scores, batch["target"], batch["target_mask"], smoothing)

    def _scores(self, params, batch, dropout_key):
        """Of each token from those before it, behind a start token in each of a row's segments."""
        target, segments = batch["target"], batch.get("target_segments")
        before = jnp.pad(target[:, :-1], ((0, 0), (1, 0)))
        first = positions_within(segments, target.shape[1]) == 0
        shifted = jnp.where(first, self.tokenizer.bos_id, before)
        more = () if segments is None else (batch["source_segments"], segments)
        inputs = batch["source"], batch["source_mask"], shifted, dropout_key, *more
        return self.model.apply({"params": params}, *inputs, labels=target)

    # Data.

    @property
    def reads_shards(self) -> bool:
        """Whether the training pairs lie in a prepared directory."""
        return self.sections["data"].source == "shards"

    @cached_property
    def shards(self) -> Shards | None:
        data, tokenizer = self.sections["data"], self.sections["tokenizer"]
        return (
            open_shards(data, tokenizer, self.KIND, self.tokenizer) if self.reads_shards else None
        )

    @cached_property
    def pairs(self) -> parallel.PairSplits:
        return parallel.load_pairs(self.sections["data"])

    def _train_texts(self) -> Iterator[str]:
        for source, target in self.pairs.train:
            yield source
            yield target

    def encode(self, sentence: str) -> list[int]:
        """Ids with the end token."""
        return self.encode_all([sentence])[0]

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """The same of many."""
        tok = self.tokenizer
        return [[*tok.start_ids, *ids, tok.eos_id] for ids in tok.encode_batch(texts)]

    def text_of(self, ids: Sequence[int]) -> str:
        """The text of generated ids."""
        start = list(self.tokenizer.start_ids)
        return self.tokenizer.decode(ids[len(start) :] if ids[: len(start)] == start else ids)

    def fingerprint(self) -> str:
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        return self.shards.fingerprint if self.shards else self.pairs.fingerprint()

    def encode_split(self, split: str) -> tuple[dict[str, Ragged], dict[str, np.ndarray]]:
        pairs = getattr(self.pairs, split)
        fields = {}
        for i, name in enumerate(("source", "target")):
            fields[name] = Ragged.from_lists(self.encode_all([pair[i] for pair in pairs]))
        return fields, {}

    # Scores.

    def decoder(self, place: Place | None = None, rows: int = 0) -> SequenceDecoder:
        """The translator of encoded sentences; it compiles once a source length bucket."""
        decode, tok = self.sections["decode"], self.tokenizer
        rows = -(-(rows or decode.batch_size) // self.rows_multiple) * self.rows_multiple
        # Rows of the table that no piece has.
        banned = *decode.banned_tokens, *tok.unused(self.model_config.vocab_size)
        return SequenceDecoder(
            self.model,
            replace(decode, batch_size=rows, banned_tokens=banned),
            eos_id=tok.eos_id,
            pad_id=tok.pad_id,
            start_id=tok.bos_id,
            place=place,
        )

    def score(self, params: Params, split: str, place: Place, final: bool) -> Scores:
        """BLEU and chrF of the split's translations; part of them while training goes on."""
        pairs = list(getattr(self.pairs, split))
        if not final:
            pairs = pairs[: self.config.score_examples]
        if not pairs:
            return Scores({}, [], {})
        sources, references = (list(column) for column in zip(*pairs, strict=True))
        self._decoder = self._decoder or self.decoder(place)  # keeps what is compiled
        outputs = [best[0] for best in self.translate(self._decoder, params, sources)]
        values, signature = corpus_scores(outputs, references)
        if final:
            values |= bleu_by_length(sources, outputs, references)
        count = self.config.samples if final else 0
        rows = list(zip(sources, outputs, references, strict=True))[:count]
        return Scores({**values, "num_examples": len(pairs)}, rows, {"bleu_signature": signature})

    def translate(
        self,
        decoder: SequenceDecoder,
        params: Params,
        sentences: list[str],
        say: Callable[[str], None] | None = None,
    ) -> list[list[str]]:
        """The n best translations of each sentence; of an empty or too long one, an empty text."""
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

    # What the run reports and keeps.

    def sizes(self, batch: HostBatch) -> dict[str, int]:
        source, target = batch["source_mask"], batch["target_mask"]
        return {"examples": int(target[:, 0].sum()), "tokens": int(source.sum() + target.sum())}

    def assets(self) -> dict[str, bytes]:
        return self.tokenizer.to_files()

    def report(self) -> list[str]:
        for split in ("validation", "test"):
            pairs = getattr(self.pairs, split)
            if len(pairs) and self.fitting(split)[2] == len(pairs):
                raise LabError(
                    f"every pair of the {split} split is longer than model.max_length = "
                    f"{self.model_config.max_length}: raise it, or use longer pieces"
                )
        counts = ", ".join(f"{name} {count:,}" for name, count in self.pairs.report.items())
        sizes = [len(getattr(self.pairs, s)) for s in ("train", "validation", "test")]
        sizes[0] = len(self.shards) if self.shards else sizes[0]
        lines = [
            f"pairs: {counts}; licence: {self.pairs.licence}",
            *remarks(self.pairs.report, self.sections["data"]),
            "splits: train {:,}, validation {:,}, test {:,}; ".format(*sizes)
            + f"longer than a batch takes: {self.dropped:,} of train",
        ]
        for i, side in enumerate(("source", "target")):
            sample = [pair[i] for pair in list(self.pairs.validation)[:500]]
            if sample:
                stats = text.statistics(self.tokenizer, sample)
                lines.append(
                    f"{side}: {stats['tokens_per_word']:.2f} tokens a word, "
                    f"{100 * stats['unknown_rate']:.2f} % unknown (validation)"
                )
        lines.append(f"vocabulary: {self.tokenizer.vocab_size:,} pieces")
        return lines + self.describe_batches()


def corpus_scores(outputs: list[str], references: list[str]) -> tuple[dict[str, float], str]:
    """BLEU and chrF over detokenised text by sacrebleu (Post 2018), and BLEU's signature.

    References are taken as they are: nothing is normalised before sacrebleu's own tokenizer.
    """
    import sacrebleu

    if len(outputs) != len(references):
        raise LabError(f"{len(outputs)} translations but {len(references)} references")
    bleu, chrf = sacrebleu.BLEU(), sacrebleu.CHRF()
    values = {
        "bleu": bleu.corpus_score(outputs, [references]).score,
        "chrf": chrf.corpus_score(outputs, [references]).score,
    }
    return values, str(bleu.get_signature())


def bleu_by_length(
    sources: list[str], outputs: list[str], references: list[str]
) -> dict[str, float]:
    """BLEU apart for sources of few and of many words (Bahdanau 2015, figure 2)."""
    rows: dict[str, list[tuple[str, str]]] = {}
    for source, *pair in zip(sources, outputs, references, strict=True):
        end = next((n for n in WORDS if len(source.split()) <= n), None)
        rows.setdefault(f"to_{end}" if end else f"over_{WORDS[-1]}", []).append(tuple(pair))
    return {
        f"bleu_words_{name}": corpus_scores(*map(list, zip(*pairs, strict=True)))[0]["bleu"]
        for name, pairs in sorted(rows.items())
    }


build = Translation
