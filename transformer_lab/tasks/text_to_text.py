"""Several text tasks in one model: a prefix in the source names the task (T5, Raffel 2020)."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from transformer_lab import models, text
from transformer_lab.data import parallel, text_tasks
from transformer_lab.data.batching import BatchConfig
from transformer_lab.data.buckets import Shape, rows_per_batch
from transformer_lab.data.mixing import MixedPlan, PackedPairsPlan, join_rows, mixing_rates
from transformer_lab.data.pipeline import Batches
from transformer_lab.data.ragged import Ragged, lengths_of
from transformer_lab.data.shard_plans import ShardPlan
from transformer_lab.data.shard_rows import Needed
from transformer_lab.data.span_corruption import corrupt, span_mask
from transformer_lab.data.splits import SPLITS
from transformer_lab.data.text_tasks import SPANS
from transformer_lab.decoding.config import DecodeConfig
from transformer_lab.errors import LabError
from transformer_lab.models.base import PackedSequenceToSequence
from transformer_lab.ops.losses import Pair, cross_entropy, masked_sum, token_metrics
from transformer_lab.tasks import scores
from transformer_lab.tasks.base import Batch, HostBatch, Params, Place, Scores
from transformer_lab.tasks.bucketed import Columns, Fields
from transformer_lab.tasks.building import Shapes, shapes_of
from transformer_lab.tasks.translation import Translation, TranslationConfig


@dataclass(frozen=True)
class TextToTextConfig(TranslationConfig):
    """Settings of the text-to-text mixture, the config section `task`."""

    span_inputs: int = 128  # tokens of an input with hidden spans, its end token included
    samples: int = 2  # outputs of each task shown at the end


@dataclass(frozen=True)
class TextBatchConfig(BatchConfig):
    """Batches by length, or packed: several examples of any task in one row."""

    # Tokens of a packed source row and target row; (): each row holds one example.
    packed: tuple[int, ...] = ()

    def __post_init__(self):
        super().__post_init__()
        if self.packed and (len(self.packed) != 2 or min(self.packed) < 1):
            raise LabError(
                f"batch.packed = {self.packed}: give the tokens of a source and of a target row, "
                "as (384, 64), or ()"
            )


SECTIONS = {
    "task": TextToTextConfig,
    "data": text_tasks.TextTasksConfig,
    "batch": TextBatchConfig,
    "tokenizer": text.TokenizerConfig,
    "decode": DecodeConfig,
}
_SENTINEL = re.compile(r"<extra_id_(\d+)>")


class TextToText(Translation):
    """Trains several tasks on pairs of texts; the source begins with the task's name.

    A batch is one of `Translation` with `task` [rows], the number of each row's task in the
    config; a packed one has `source_segments` and `target_segments` instead, the number of each
    token's pair in its row. "translate English to French: calls red here sees finds today", whose
    French is its reversal:

        source       [[8, 5, 7, 6, 4, 21, 46, 36, 9, 29, 10, 1, 0, 0]]
        source_mask  [[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0]]
        target       [[10, 29, 9, 36, 46, 21, 1, 0, 0]]
        target_mask  [[1, 1, 1, 1, 1, 1, 1, 0, 0]]
        task         [0]
    """

    PREPARED, PER_ROW = "text_to_text", {"task": np.int32}

    def check(self, model_kind, model_config) -> None:
        packed = self.sections["batch"].packed
        if packed and self.reads_shards:
            raise LabError(
                "batch.packed packs what is in memory: unset it, or config.data.path, to train on "
                "a prepared directory in batches of like lengths"
            )
        if packed and models.lacking(models.family(model_kind), PackedSequenceToSequence):
            raise LabError(
                f'model.kind = "{model_kind}" reads one pair a row: unset batch.packed, or use '
                '"encoder_decoder"'
            )
        if max(packed, default=0) > model_config.max_length:
            raise LabError(
                f"batch.packed = {packed} exceeds model.max_length = {model_config.max_length}"
            )
        super().check(model_kind, model_config)

    # Data.

    @property
    def reads_shards(self) -> bool:
        return bool(self.sections["data"].path)

    @cached_property
    def parts(self) -> dict[str, parallel.PairSplits]:
        """The training, validation and test pairs of each task, by its name."""
        return text_tasks.load_tasks(self.sections["data"])

    @cached_property
    def data(self) -> parallel.PairSplits:
        """The pairs of all tasks in one list, task after task; span corruption has none."""
        parts = [part for name, part in self.parts.items() if name != SPANS]
        rows = {s: [pair for p in parts for pair in getattr(p, s)] for s in SPLITS}
        counts = {name: len(part.train) for name, part in self.parts.items()}
        if self.shards:
            records = self.shards.records_of_parts().tolist()
            counts = dict(zip(self.shards.parts, records, strict=True))
        licences = dict.fromkeys(part.licence for part in self.parts.values())
        return parallel.PairSplits(**rows, report=counts, licence="; ".join(licences))

    def train_texts(self) -> Iterator[str]:
        return (t for part in self.parts.values() for pair in part.train for t in pair)

    @cached_property
    def _fingerprint(self) -> str:
        found = (part.fingerprint() for part in self.parts.values())
        return self.shards.fingerprint if self.shards else " ".join(found)

    def encode(self, sentence: str) -> list[int]:
        """The token ids of a text and the end token; "<extra_id_0>" becomes a sentinel token."""
        marks, ids = self.tokenizer.sentinels, []
        for i, part in enumerate(_SENTINEL.split(sentence)):
            if i % 2 and int(part) >= len(marks):
                raise LabError(f"<extra_id_{part}>: the tokenizer has {len(marks)} sentinels")
            ids += [marks[int(part)]] if i % 2 else self.tokenizer.encode(part)
        return [*self.tokenizer.start_ids, *ids, self.tokenizer.eos_id]

    def encode_split(self, split: str) -> tuple[Fields, Columns]:
        """Token ids and task numbers; spans drawn here are drawn anew for each training batch."""
        fields, _ = super().encode_split(split)
        sizes = [0 if n == SPANS else len(getattr(p, split)) for n, p in self.parts.items()]
        tasks = np.repeat(np.arange(len(sizes)), sizes)
        if SPANS in self.parts:
            raw = self.train_raw if split == "train" else self.raw_texts(split)
            pairs = [
                self._hide(t, np.random.default_rng((self.seed, i))) for i, t in enumerate(raw)
            ]
            for i, name in enumerate(fields):
                fields[name] += Ragged.from_lists(pair[i].tolist() for pair in pairs)
            tasks = np.append(tasks, np.full(len(raw), list(self.parts).index(SPANS)))
        return fields, {"task": tasks.astype(np.int32)}

    def raw_texts(self, split: str) -> Ragged:
        """The documents' ids cut to pieces, each long enough to fill an input after corruption."""
        limit = min(self.sections["batch"].max_length, self.model_config.max_length)
        length = self.sections["data"].spans.raw_length(min(self.config.span_inputs, limit), limit)
        documents = [document for document, _ in getattr(self.parts[SPANS], split)]
        encoded = self.tokenizer.encode_batch(documents)
        return Ragged.from_lists(
            ids[i : i + length] for ids in encoded for i in range(0, len(ids), length)
        )

    @cached_property
    def train_raw(self) -> Ragged:
        return self.raw_texts("train")

    def _hide(self, ids: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        hidden = span_mask(len(ids), self.sections["data"].spans, rng)
        return corrupt(ids, hidden, self.tokenizer.sentinels, self.tokenizer.eos_id)

    @cached_property
    def train_plan(self) -> MixedPlan | ShardPlan:
        data = self.sections["data"]
        if self.shards is not None:
            sizes = self.shards.records_of_parts().tolist()
            return self.shard_plan(mixing_rates(sizes, data.limit, data.temperature))
        fields, columns, _ = self.train_set
        lengths, slots = lengths_of(fields), self.slots()
        sizes = np.bincount(columns["task"], minlength=len(self.parts)).tolist()
        if 0 in sizes:
            name = list(self.parts)[sizes.index(0)]
            raise LabError(f'no example of the task "{name}" fits: raise batch.max_length')
        rates = mixing_rates(sizes, data.limit, data.temperature)
        if packed := self.sections["batch"].packed:
            return PackedPairsPlan(lengths, columns["task"], rates, [packed], *slots, self.seed)
        return MixedPlan(lengths, columns["task"], rates, self.train_shapes, *slots, self.seed)

    def longest(self) -> int | tuple[int, ...]:
        batch = self.sections["batch"]
        return tuple(min(batch.max_length, n) for n in batch.packed) or batch.max_length

    def eval_shapes(self) -> list[Shape]:
        return self.train_shapes if self.sections["batch"].packed else self.train_plan.shapes

    def abstract_batch(self) -> Shapes:
        packed = self.sections["batch"].packed
        if not packed:
            return super().abstract_batch()
        rows, batch = rows_per_batch(packed, *self.slots()), {}
        for name, length in zip(self.FIELDS, packed, strict=True):
            dtypes = {name: np.int32, f"{name}_mask": bool, f"{name}_segments": np.int32}
            batch |= shapes_of((rows, length), **dtypes)
        return batch

    def load_shards(self, ids: np.ndarray, shape: Shape, needed: Needed = None) -> HostBatch:
        batch = super().load_shards(ids, shape, needed)
        return {**batch, "task": np.where(ids < 0, 0, self.shards.part_of(ids)).astype(np.int32)}

    def train_batches(self) -> Batches:
        if self.shards is not None:
            return super().train_batches()
        fields, columns, _ = self.train_set
        spans = np.flatnonzero(columns["task"] == [*self.parts, SPANS].index(SPANS))
        raw = self.train_raw if len(spans) else None
        return Batches(self.train_plan, partial(self._load_drawn, fields, columns, spans, raw))

    def _load_drawn(self, fields, columns, spans, raw, drawn, shape) -> HostBatch:
        """A batch whose hidden spans are drawn with the random seed of each example."""
        ids, draws = np.moveaxis(drawn, -1, 0)
        real, packed = ids >= 0, ids.ndim == 2
        if packed:
            ids, draws = ids[real], draws[real]
        batch = self.load(fields, columns, ids, shape)
        for row in np.flatnonzero(np.isin(ids, spans)):
            text_ids = raw[int(np.searchsorted(spans, ids[row]))]
            pair = self._hide(text_ids, np.random.default_rng(int(draws[row])))
            for name, part in zip(("source", "target"), pair, strict=True):
                batch[name][row, : len(part)] = part
        if packed:
            return join_rows(batch, list(fields), real.sum(axis=1), shape, self.tokenizer.pad_id)
        return batch

    # What the trainer compiles.

    def metrics(self, params: Params, batch: Batch) -> dict[str, Pair]:
        """The loss and accuracy over all tasks, and the loss of each task."""
        tokens = self.token_scores(params, batch, None)
        found = token_metrics(tokens, batch["target"], batch["target_mask"])
        nats = cross_entropy(tokens, batch["target"])
        for number, name in enumerate(self.parts):
            mine = (batch["task"] == number)[:, None] & batch["target_mask"]
            found[f"{name}_loss"] = masked_sum(nats, mask=mine)
        return found

    def sizes(self, batch: HostBatch) -> dict[str, int]:
        found = super().sizes(batch)
        if "target_segments" in batch:
            found["examples"] = int(batch["target_segments"].max(axis=1).sum())
        return found

    # Scores.

    def score(self, params: Params, split: str, place: Place, final: bool) -> Scores:
        """The scores of each task's outputs; before training ends, of some examples only."""
        values, samples, notes = {}, [], {}
        for name, part in self.parts.items():
            pairs = [] if name == SPANS else getattr(part, split)
            sources, outputs, references = self.decoded(params, pairs, place, final)
            if not sources:
                continue
            bare = [source.removeprefix(text_tasks.PREFIXES[name]) for source in sources]
            found, said = score_task(name, bare, outputs, references)
            values |= {f"{name}_{key}": value for key, value in found.items()}
            notes |= {f"{name}_{key}": value for key, value in said.items()}
            rows = list(zip(sources, outputs, references, strict=True))
            samples += rows[: self.shown(final)]
        return Scores(values, samples, notes)

    def report(self) -> list[str]:
        names = ", ".join(
            f"{name} {100 * share:.1f} %"
            for name, share in zip(self.parts, self.train_plan.shares(), strict=True)
        )
        return [f"mixture: {names} of the examples drawn", *super().report()]


def score_task(
    name: str, sources: list[str], outputs: list[str], references: list[str]
) -> tuple[dict[str, float], dict[str, str]]:
    """The scores of one task's outputs, and notes on them; the sources come without prefix."""
    if name == "translate":
        values, signature = scores.corpus_scores(outputs, references)
        return values, {"bleu_signature": signature}
    if name == "question":
        exact, f1 = scores.squad([[r] for r in references], outputs)
        return {"exact_match": exact, "f1": f1}, {}
    if name != "summarize":
        return {"accuracy": scores.accuracy(references, outputs)}, {}
    firsts = [next(iter(text_tasks.split_sentences(source)), "") for source in sources]
    try:
        baseline = scores.rouge(references, firsts)
        found = scores.rouge(references, outputs)
    except LabError as error:  # an optional package: the run goes on without it
        return {}, {"rouge": str(error)}
    return found | {f"first_sentence_{key}": value for key, value in baseline.items()}, {}


build = TextToText
