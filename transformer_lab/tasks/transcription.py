"""Speech recognition (Whisper, Radford 2023): text from a window of audio, scored by words."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from transformer_lab import text
from transformer_lab.data import spoken
from transformer_lab.data.audio import AudioFile
from transformer_lab.data.batching import RowPlan, RowsConfig
from transformer_lab.decoding.config import DecodeConfig
from transformer_lab.decoding.speech import TASKS, Marks, SpeechConfig, Transcriber
from transformer_lab.errors import LabError, fractions, known
from transformer_lab.models.base import SpeechToText
from transformer_lab.ops.losses import Pair, token_metrics
from transformer_lab.ops.spectrograms import HOP, RATE, log_mel
from transformer_lab.tasks.base import Batch, HostBatch, Params, Place, Scores, Task
from transformer_lab.tasks.building import Shapes, shapes_of
from transformer_lab.tasks.scores import corpus_scores
from transformer_lab.tasks.word_errors import word_error_rate

SILENCE = ("<|nocaptions|>", "<|nospeech|>")  # two names of the same special token


@dataclass(frozen=True)
class TranscriptionConfig:
    """Settings of speech recognition, the config section `task`."""

    multilingual: bool = False  # the prompt names the language and the task
    label_smoothing: float = 0.0  # share of the target's probability that all tokens share
    score_examples: int = 20  # recordings decoded at each scheduled evaluation; 0: none
    samples: int = 8  # transcripts shown at the end

    def __post_init__(self):
        fractions(self, "task", "label_smoothing")


SECTIONS = {
    "task": TranscriptionConfig,
    "data": spoken.SpokenConfig,
    "batch": RowsConfig,
    "tokenizer": text.TokenizerConfig,
    "speech": SpeechConfig,
    "decode": DecodeConfig,
}


class Transcription(Task):
    """Writes down what is said in a recording that is no longer than a window.

    A batch holds `features` (float32 [rows, frames, bands], silence after the recording), `target`
    (int32 [rows, length], ending in the end token) and its mask (True at real tokens). A window of
    silence, of two frames of one band, with the text "d", before a row that only fills the batch:

        features     [[[-1.5], [-1.5]], [[-1.5], [-1.5]]]
        target       [[7, 1, 0, 0, 0], [0, 0, 0, 0, 0]]
        target_mask  [[1, 1, 0, 0, 0], [0, 0, 0, 0, 0]]
    """

    NEEDS, COUNTED, load_data = SpeechToText, "recordings", spoken.load_spoken
    _transcriber: Transcriber | None = None

    def check(self, model_kind: str, model_config: Any) -> None:
        super().check(model_kind, model_config)
        self.batch: RowsConfig = self.sections["batch"]
        if self.batch.length >= model_config.max_length:
            raise LabError(
                f"batch.length = {self.batch.length} and the marks before a text must fit into "
                f"model.max_length = {model_config.max_length}"
            )

    def train_texts(self) -> Iterator[str]:
        return (row.text for row in self.examples("train"))

    # What the trainer compiles.

    def sums(self, params: Params, batch: Batch, dropout_key, training: bool) -> dict[str, Pair]:
        """The cross-entropy of the text's tokens, smoothed in training, and their accuracy."""
        target, mask = batch["target"], batch["target_mask"]
        lead = len(self.prompt)
        marks = jnp.broadcast_to(jnp.asarray(self.prompt, jnp.int32), (len(target), lead))
        whole = jnp.concatenate([marks, target], axis=1)
        real = jnp.pad(mask, ((0, 0), (lead - 1, 0)))
        inputs = batch["features"], whole[:, :-1], dropout_key
        found = self.model.apply({"params": params}, *inputs, labels=whole[:, 1:])
        smoothing = self.config.label_smoothing if training else 0.0
        return token_metrics(found, whole[:, 1:], real, smoothing)

    @cached_property
    def prompt(self) -> list[int]:
        """The special tokens that precede a transcript without timestamps."""
        speech = self.sections["speech"]
        language = speech.language or self.sections["data"].language
        if self.marks.languages:
            known("config.data.language = ", language, self.marks.languages)
        return self.marks.prompt(language, speech.task, times=False)

    @cached_property
    def marks(self) -> Marks:
        """The tokenizer's special tokens for speech; if it has none, only its start token."""
        tok = self.tokenizer
        start, after = tok.find("<|startoftranscript|>"), tok.find("<|translate|>")
        if start is None:
            return Marks(tok.bos_id)
        tasks = {name: tok.find(f"<|{name}|>") for name in TASKS}
        some = range(start + 1, after) if self.config.multilingual and after else ()
        silence = next((i for i in map(tok.find, SILENCE) if i is not None), None)
        return Marks(
            start,
            tok.find("<|startofprev|>"),
            silence,
            tok.find("<|notimestamps|>"),
            tasks,
            {tok.piece(token)[2:-2]: token for token in some},
        )

    # Data.

    def target_of(self, words: str) -> list[int]:
        """The token ids of a text, with the end token."""
        return [*self.tokenizer.encode(words), self.tokenizer.eos_id]

    @cached_property
    def _targets(self) -> list[list[int]]:
        return [self.target_of(row.text) for row in self.examples("train")]

    @cached_property
    def train_plan(self) -> RowPlan:
        """The order of the batches; texts longer than `batch.length` count as cut there."""
        length = self.batch.length
        filled = np.array([min(len(ids), length) for ids in self._targets])
        return RowPlan("transcription", filled, length, self.batch.rows, self.seed, None)

    def load_train(self, ids: np.ndarray, shape: tuple[int, ...]) -> HostBatch:
        """A batch of the recordings `ids`; rows with the id -1 are silence without text."""
        rows, targets = self.examples("train"), self._targets
        return self._batch([(rows[i].path, targets[i]) if i >= 0 else None for i in ids])

    def eval_batches(self, split: str) -> Iterator[HostBatch]:
        rows, count = self.examples(split), self.batch.rows
        for first in range(0, len(rows), count):
            some = [(row.path, self.target_of(row.text)) for row in rows[first : first + count]]
            yield self._batch([*some, *[None] * (count - len(some))])

    def _batch(self, rows: Sequence[tuple[str, list[int]] | None]) -> HostBatch:
        size = self.model_config.frames * HOP
        sound = np.zeros((len(rows), size), np.float32)
        target = np.zeros((len(rows), self.batch.length), np.int32)
        mask = np.zeros(target.shape, bool)
        for i, row in enumerate(rows):
            if row is not None:
                samples, ids = self.read(row[0]), row[1][: self.batch.length]
                sound[i, : len(samples)] = samples
                target[i, : len(ids)], mask[i, : len(ids)] = ids, True
        return {"features": self.features(sound), "target": target, "target_mask": mask}

    def read(self, file: str) -> Float[np.ndarray, "n"]:
        """The samples of a file, at most as many as a window has."""
        return AudioFile(file, RATE).take(0, self.model_config.frames * HOP)

    def features(self, sound: Float[np.ndarray, "b n"]) -> Float[np.ndarray, "b f m"]:
        """The log mel spectrograms of windows of samples, computed on the CPU."""
        with jax.default_device(jax.local_devices(backend="cpu")[0]):
            return np.asarray(_features(sound, self.model_config.bins))

    def abstract_batch(self) -> Shapes:
        rows, length = self.batch.rows, self.batch.length
        window = rows, self.model_config.frames, self.model_config.bins
        texts = shapes_of((rows, length), target=np.int32, target_mask=bool)
        return shapes_of(window, features=np.float32) | texts

    # Scores and transcripts.

    def transcriber(self, **changes: Any) -> Transcriber:
        """The transcriber of the config; `changes` replace settings of the section `speech`."""
        tok = self.tokenizer
        reserved = {tok.eos_id, *self.marks.all()}

        def text_of(ids: Sequence[int]) -> str:
            return tok.decode([i for i in ids if i not in reserved])

        return Transcriber(
            self.model,
            self.decode_settings(1),
            replace(self.sections["speech"], **changes),
            self.marks,
            eos_id=tok.eos_id,
            text_of=text_of,
            seed=self.seed,
        )

    def decode_settings(self, rows: int = 0) -> DecodeConfig:
        """As in other tasks, but timestamps, ids without a text, are allowed if wanted."""
        settings = super().decode_settings(rows)
        times = self.marks.no_times
        if times is None or not self.sections["speech"].times:
            return settings
        banned = tuple(token for token in settings.banned_tokens if token <= times)
        return replace(settings, banned_tokens=banned)

    def score(self, params: Params, split: str, place: Place, final: bool) -> Scores:
        """The word error rate of the split's recordings; before training ends, of some only.

        Of translations BLEU and chrF are scored too, and without a language in the config how
        often it was found, where the data say which it is."""
        rows = list(self.examples(split))[: None if final else self.config.score_examples]
        if not rows:
            return Scores()
        data, speech = self.sections["data"], self.sections["speech"]
        self._transcriber = self._transcriber or self.transcriber()  # kept, as it is compiled once
        found = [list(self._transcriber({"params": params}, AudioFile(r.path, RATE))) for r in rows]
        said = [" ".join(segment.text for segment in some) for some in found]
        wanted, notes = [row.text for row in rows], {}
        values = {"wer": word_error_rate(wanted, said), "num_examples": float(len(rows))}
        if data.language == "en" or data.translated:
            values["wer_english"] = word_error_rate(wanted, said, english=True)
        if data.translated:
            more, notes["bleu_signature"] = corpus_scores(said, wanted)
            values |= more
        if self.marks.languages and not speech.language:
            right = sum(some[:1] != [] and some[0].language == data.language for some in found)
            values["language_accuracy"] = right / len(rows)
        shown = [tuple(x) for x in zip([r.path for r in rows], said, wanted, strict=True)]
        return Scores(values, shown[: self.shown(final)], notes)

    def details(self) -> list[str]:
        sample = [row.text for row in list(self.examples("train"))[:500]]
        window = self.model_config.frames * HOP / RATE
        return [
            f"windows of {window:g} s, texts of {self.batch.length} tokens, {self.batch.rows} rows",
            self.describe_tokens(sample),
        ]


_features = jax.jit(log_mel, static_argnums=1)
build = Transcription
