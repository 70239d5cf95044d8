"""Language models on documents: the next token, in a stream or packed rows, or after a prefix."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from transformer_lab import text
from transformer_lab.data import documents, packing, shard_rows
from transformer_lab.data.batching import BatchPlan, RowsConfig
from transformer_lab.data.ragged import Ragged
from transformer_lab.data.splits import Splits
from transformer_lab.decoding.config import DecodeConfig
from transformer_lab.decoding.generate import Generated, Generator
from transformer_lab.errors import LabError, at_least, known
from transformer_lab.models.base import LanguageModel
from transformer_lab.ops.losses import Pair, cross_entropy, token_metrics
from transformer_lab.tasks.base import Batch, HostBatch, Params, Place, Scores, Task
from transformer_lab.tasks.building import Shapes, shapes_of
from transformer_lab.text.chat import ChatTemplate
from transformer_lab.text.stream import Shown, TextStream, continuation

LAYOUTS = ("stream", "packed")


@dataclass(frozen=True)
class LanguageModelingConfig:
    """Settings of language modelling. A model with mask = "prefix" is trained on prefixes."""

    layout: str = "stream"  # stream: windows of all text; packed: no attention across documents
    prompt_start: bool = True  # a prompt follows the token that starts a document
    eval_length: int = 0  # tokens of an evaluation window; 0: as batch.length
    eval_stride: int = 0  # tokens between windows; 0: half of the length
    other_lengths: tuple[int, ...] = ()  # the finished model is scored with these too
    samples: int = 4  # continuations of held-out documents shown at the end
    sample_prompt: int = 16  # tokens of the document that they continue

    def __post_init__(self):
        known("task.layout = ", self.layout, LAYOUTS)
        at_least(self, "task", 0, "eval_length", "eval_stride", "samples")
        if min(self.other_lengths, default=1) < 1:
            raise LabError(f"task.other_lengths = {self.other_lengths} must be at least 1 each")


SECTIONS = {
    "task": LanguageModelingConfig,
    "data": documents.DocumentsConfig,
    "batch": RowsConfig,
    "tokenizer": text.TokenizerConfig,
    "decode": DecodeConfig,
}
BASELINE = "language"


class LanguageModeling(Task):
    """Predicts the next token of documents.

    A batch holds `tokens` and `targets` (int32 [rows, length], the next tokens) and `mask` (True
    where a target counts). Packed rows also have `segments`, prefix models `prefix`, and evaluation
    `bytes`, the number of bytes of text that a row's targets stand for. "the dog sat ." and "a cat
    .", each after the end token (1) of the document before:

        tokens   [[1, 10, 7, 9, 4], [1, 5, 6, 4, 0]]
        targets  [[10, 7, 9, 4, 1], [5, 6, 4, 1, 0]]
        mask     [[1, 1, 1, 1, 1], [1, 1, 1, 1, 0]]
        bytes    [13, 7]
    """

    PREPARED, COUNTED = "language_modeling", "documents"
    NEEDS, load_data = LanguageModel, documents.load_documents

    def check(self, model_kind: str, model_config: Any) -> None:
        super().check(model_kind, model_config)
        length, others = self.sections["batch"].length, self.config.other_lengths
        self.eval_length = self.config.eval_length or length
        half = -(-self.eval_length // 2)
        self.eval_stride = min(self.config.eval_stride or half, self.eval_length)
        if max(length, self.eval_length, *others) > model_config.max_length:
            raise LabError(
                f"batch.length = {length}, task.eval_length = {self.eval_length} and "
                f"task.other_lengths = {others} must be within "
                f"model.max_length = {model_config.max_length}"
            )
        self._generators: dict[Place | None, Generator] = {}

    # What the trainer compiles.

    def sums(
        self, params: Params, batch: Batch, dropout_key, training: bool = False
    ) -> dict[str, Pair]:
        """The cross-entropy of the next token; an evaluation adds the bits per byte of text, which
        are comparable between tokenizers."""
        inputs = batch["tokens"], dropout_key, batch.get("segments")
        more = {"prefix": batch.get("prefix")} if self.model.reads_prefix else {}
        scores = self.model.apply({"params": params}, *inputs, labels=batch["targets"], **more)
        found = token_metrics(scores, batch["targets"], batch["mask"])
        if not training:
            nats, _ = found["nll"]
            found["bits_per_byte"] = nats / math.log(2), batch["bytes"].sum()
        return found

    # Data.

    @property
    def start_id(self) -> int:
        """The token in front of a document: an imported tokenizer's own; else, in a stream, the end
        token of the document before, and in packed rows the start token."""
        tokenizer = self.tokenizer
        if tokenizer.text_start is not None:
            return tokenizer.text_start
        return tokenizer.eos_id if self.config.layout == "stream" else tokenizer.bos_id

    @cached_property
    def data(self) -> Splits:
        return documents.prepared_documents(self.shards) if self.shards else super().data

    def encode_split(self, split: str) -> tuple[Ragged, np.ndarray]:
        """The token ids of each document, and its length in bytes of UTF-8."""
        texts = self.examples(split)
        sizes = np.asarray([len(t.encode()) for t in texts], np.int64)
        return Ragged.from_lists(self.tokenizer.encode_batch(texts)), sizes

    @cached_property
    def _train(self) -> tuple[BatchPlan, Callable[..., HostBatch]]:
        """The order of the training rows, and the function that loads a batch of them."""
        batch, prefix = self.sections["batch"], self.model.reads_prefix
        how = self.config.layout, batch.length, batch.rows, self.seed, prefix
        marks = self.start_id, self.tokenizer.eos_id
        found = self.shards or self.encode_split("train")[0]
        return shard_rows.training_rows(found, *how, *marks)

    @property
    def train_plan(self) -> BatchPlan:
        return self._train[0]

    @property
    def load_train(self) -> Callable[..., HostBatch]:
        return self._train[1]

    def eval_batches(self, split: str) -> Iterator[HostBatch]:
        """Windows with each token as a target once, seen with length - stride tokens of context."""
        return self._windows(*self.encode_split(split), self.start_id)

    def _windows(self, ids, sizes, start: int | None, length: int = 0) -> Iterator[HostBatch]:
        rows, eos = self.sections["batch"].rows, self.tokenizer.eos_id
        shape = (length, -(-length // 2)) if length else (self.eval_length, self.eval_stride)
        return packing.eval_windows(ids, *shape, rows, start, eos, sizes)

    def abstract_batch(self) -> Shapes:
        shape = self.sections["batch"].rows, self.sections["batch"].length
        names = {"tokens": np.int32, "targets": np.int32, "mask": bool}
        if self.config.layout == "packed":
            names["segments"] = np.int32
        if self.model.reads_prefix:
            names["prefix"] = bool
        return shapes_of(shape, **names)

    def sizes(self, batch: HostBatch) -> dict[str, int]:
        return {"tokens": int(batch["mask"].sum())}

    # Generation.

    def prompt_ids(self, prompt: str) -> list[int]:
        """A prompt as the model reads it; an empty one is the start of a document."""
        ids = self.tokenizer.encode(prompt)
        return [self.start_id, *ids] if self.config.prompt_start or not ids else ids

    def continuation(self, prompt: Sequence[int], ids: Sequence[int]) -> str:
        """The text that `ids` add to a prompt, which may begin with the start token."""
        return continuation(self.tokenizer, self.without_start(prompt), ids)

    def without_start(self, prompt: Sequence[int]) -> Sequence[int]:
        """The ids of a prompt without the start token, if it begins with one; of a conversation
        those after its last end token."""
        prompt = prompt[1:] if list(prompt[:1]) == [self.start_id] else prompt
        ends = [i for i, token in enumerate(prompt) if token == self.tokenizer.eos_id]
        return prompt[ends[-1] + 1 :] if ends else prompt

    @cached_property
    def chat(self) -> ChatTemplate:
        """The template that turns messages into a prompt; LabError if the tokenizer has none."""
        return ChatTemplate(self.tokenizer)

    def stream(
        self, generator: Generator, params: Params, prompt: Sequence[int], number=0, seed=0
    ) -> Iterator[str]:
        """The text generated after a prompt as it is made, up to the first stop string."""
        shown = Shown(self.sections["decode"].stop)
        text = TextStream(self.tokenizer, self.without_start(prompt))
        parts = generator.stream(params, [prompt], [number], seed, self.stops)
        for _, ids, _ in parts:
            yield shown.add("".join(map(text.push, ids)))
        yield shown.add(text.finish(), last=True)

    def generator(self, place: Place | None = None) -> Generator:
        """The decoding loop that continues prompts, one for each `place`, compiled once."""
        if place not in self._generators:
            how = {"eos_id": self.tokenizer.eos_id, "rows_multiple": self.rows_multiple}
            made = Generator(self.model, self.decode_settings(), **how, place=place)
            self._generators[place] = made
        return self._generators[place]

    def stops(self, prompt: Sequence[int], ids: Sequence[int]) -> bool:
        """Whether the text generated after a prompt contains one of the stop strings."""
        stop = self.sections["decode"].stop
        return bool(stop) and any(s in self.continuation(prompt, ids) for s in stop)

    def text_of(self, found: Generated, prompt: Sequence[int] = ()) -> str:
        """The text generated after a prompt, cut before the first stop string."""
        whole = self.continuation(prompt, found.ids)
        ends = [whole.find(s) for s in self.sections["decode"].stop if s in whole]
        return whole[: min(ends)] if ends else whole

    # Scores.

    def score_texts(
        self, params: Params, texts: Sequence[str], place: Place
    ) -> list[tuple[float, int]]:
        """The nats and the number of scored tokens of each text, without its end token. Where
        prompts get no start token (see `task.prompt_start`), the first token is not scored."""
        ids = [self.prompt_ids(t) for t in texts]
        windows = list(self._windows(Ragged.from_lists(ids), None, None))
        nats = [np.asarray(self._nats(params, place(w))) for w in windows]
        per_row = np.concatenate(nats) if nats else np.zeros(0)
        tokens = [max(len(i) - 1, 0) for i in ids]
        counts = [1 + -(-max(0, n - self.eval_length) // self.eval_stride) for n in tokens]
        ends = np.cumsum(counts)
        sums = [float(per_row[e - c : e].sum()) for c, e in zip(counts, ends, strict=True)]
        return list(zip(sums, tokens, strict=True))

    @cached_property
    def _nats(self) -> Callable[[Params, Batch], Array]:
        """The compiled function that sums the nats of each row's unmasked targets."""

        @jax.jit
        def nats(params, batch):
            labels = batch["targets"]
            scores = self.model.apply({"params": params}, batch["tokens"], labels=labels)
            found = cross_entropy(scores, labels)
            return jnp.where(batch["mask"], found, 0.0).sum(axis=1)

        return nats

    def score(self, params: Params, split: str, place: Place, final: bool) -> Scores:
        """For a trained model: continuations as samples, bits per byte at other lengths, and the
        tokenizer's `tokens_per_word` and `unknown_rate`."""
        every = self.examples(split) if final else []
        texts, values = every[: self.config.samples], {}
        if any(map(str.split, every)):
            values |= text.statistics(self.tokenizer, every)
        for length in self.config.other_lengths if final else ():
            ids, sizes = self.encode_split(split)
            batches = self._windows(ids, sizes, self.start_id, length)
            nats = sum(float(self._nats(params, place(batch)).sum()) for batch in batches)
            values[f"bits_per_byte_{length}"] = nats / math.log(2) / max(int(sizes.sum()), 1)
        if not texts:
            return Scores(values)
        cut = [self.tokenizer.encode(t)[: self.config.sample_prompt + 40] for t in texts]
        prompts = [ids[: self.config.sample_prompt] for ids in cut]
        starts = [[self.start_id, *ids] for ids in prompts]
        found = self.generator(place)(params, starts, stops=self.stops)
        decode = self.tokenizer.decode
        rows = [
            (decode(ids), self.text_of(outs[0], ids), self.continuation(ids, whole[len(ids) :]))
            for ids, outs, whole in zip(prompts, found, cut, strict=True)
        ]
        return Scores(values, rows)

    # What the run reports.

    def details(self) -> list[str]:
        new, prompt = self.sections["decode"].max_new_tokens, self.config.sample_prompt
        if self.config.samples and new + prompt + 1 > self.model_config.max_length:
            raise LabError(
                f"the samples shown at the end: task.sample_prompt = {prompt} and "
                f"decode.max_new_tokens = {new} do not fit model.max_length = "
                f"{self.model_config.max_length}: lower one of them, or set task.samples = 0"
            )
        vocabulary = f"vocabulary: {self.tokenizer.vocab_size:,} pieces"
        if sample := (self.data.validation or self.data.train)[:50]:
            vocabulary += f", {self.describe_tokens(sample)}"
        return [
            vocabulary,
            f"{self.describe_plan()}, "
            f"one shape: {self.sections['batch'].rows} rows of {self.sections['batch'].length}",
        ]

    def describe_plan(self) -> str:
        """A phrase for the report: the batches of an epoch and their share of padding."""
        plan = self.train_plan
        return f"batches: {len(plan):,} an epoch, {100 * plan.padding_share():.1f} % padding"


build = LanguageModeling
