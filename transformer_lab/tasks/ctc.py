"""Speech recognition by CTC (Graves 2006), alone or beside an attention decoder (Watanabe 2017)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from transformer_lab import text
from transformer_lab.data import spoken
from transformer_lab.data.batching import BatchConfig, BatchPlan, Draws, fits
from transformer_lab.data.ragged import Ragged, lengths_of
from transformer_lab.data.spec_augment import SpecAugmentConfig, hide_stripes
from transformer_lab.data.spectra import spectra
from transformer_lab.decoding.config import DecodeConfig
from transformer_lab.decoding.ctc import CTCConfig
from transformer_lab.decoding.ctc_reader import CTCReader, CTCTranscriber
from transformer_lab.errors import fractions
from transformer_lab.models.base import FramesToText
from transformer_lab.ops.ctc import ctc_nats, states_needed
from transformer_lab.ops.losses import Pair, masked_sum, token_metrics
from transformer_lab.ops.spectrograms import HOP, RATE, log_mel
from transformer_lab.tasks.base import Batch, HostBatch, Params, Place, Scores
from transformer_lab.tasks.bucketed import Bucketed, Columns, Fields
from transformer_lab.tasks.building import Shapes, shapes_of
from transformer_lab.tasks.word_errors import (
    character_error_rate,
    digits_spelt,
    normalised,
    word_error_rate,
)
from transformer_lab.text.ngram import NGram


@dataclass(frozen=True)
class CTCTaskConfig:
    """Settings of recognition by CTC, the config section `task`."""

    weight: float = 0.3  # CTC's share of the loss, the decoder has the rest (Watanabe 2017, eq. 8)
    label_smoothing: float = 0.0  # of the decoder's targets
    numbers: bool = True  # digits of a text are spelt as English words
    score_examples: int = 100  # recordings decoded at each scheduled evaluation; 0: none
    samples: int = 8  # texts shown at the end

    def __post_init__(self):
        fractions(self, "task", "label_smoothing", "weight")


SECTIONS = {
    "task": CTCTaskConfig,
    "data": spoken.SpokenConfig,
    "batch": BatchConfig,
    "tokenizer": text.TokenizerConfig,
    "augment": SpecAugmentConfig,
    "ctc": CTCConfig,
    "decode": DecodeConfig,
}


class CTC(Bucketed):
    """Writes down what is said in recordings of unequal length, in lower case without punctuation.

    A batch holds `features` (float32 [rows, frames, bands], zeros after a recording), `target`
    (int32 [rows, length], without an end token), their masks (True at real frames and tokens) and
    `seconds` (float32 [rows], the recordings' lengths). A silent recording of 0.05 s, one band and
    the text "d", before a row that only fills the batch:

        features       [[[-1.5], [-1.5], [-1.5], [-1.5], [-1.5]], [[0], [0], [0], [0], [0]]]
        features_mask  [[1, 1, 1, 1, 1], [0, 0, 0, 0, 0]]
        target         [[7, 0], [0, 0]]
        target_mask    [[1, 0], [0, 0]]
        seconds        [0.05000000074505806, 0.0]
    """

    NEEDS, COUNTED, load_data = FramesToText, "recordings", spoken.load_spoken
    FIELDS, PER_ROW = ("features", "target"), {"seconds": np.float32}
    TRAINED = ("loss", "ctc", "accuracy")
    _reader: CTCReader | None = None

    def train_texts(self) -> Iterator[str]:
        return (self.plain(row.text) for row in self.examples("train"))

    def plain(self, words: str) -> str:
        """A text as it is spelt for the model: see `word_errors.normalised`."""
        return " ".join(normalised(digits_spelt(words) if self.config.numbers else words))

    # What the trainer compiles.

    def sums(self, params: Params, batch: Batch, dropout_key, training: bool) -> dict[str, Pair]:
        """CTC's nats, and those of the decoder if there is one, for each token and end of text."""
        target, mask = batch["target"], batch["target_mask"]
        row, length = batch["features_mask"][:, 0], mask.sum(axis=1, dtype=jnp.int32)
        inputs, more = (batch["features"], batch["features_mask"], dropout_key), ()
        if self.model_config.decodes:
            steps = jnp.arange(target.shape[1] + 1)
            labels = jnp.pad(jnp.where(mask, target, 0), ((0, 0), (0, 1)))
            labels = jnp.where(steps == length[:, None], self.tokenizer.eos_id, labels)
            before = jnp.pad(target, ((0, 0), (1, 0)), constant_values=self.tokenizer.bos_id)
            more = before, labels
        found = self.model.apply({"params": params}, *inputs, *more)
        nats = ctc_nats(found["ctc"], found["real"], target, mask, self.blank)
        ctc = masked_sum(nats, row)[0], jnp.where(row, length + 1, 0).sum(dtype=jnp.float32)
        if not more:
            return {"loss": ctc, "ctc": ctc}
        real = row[:, None] & (steps <= length[:, None])
        smoothing, share = self.config.label_smoothing if training else 0.0, self.config.weight
        sums = token_metrics(found["attention"], labels, real, smoothing)
        both = share * ctc[0] + (1 - share) * sums["loss"][0]
        return sums | {"loss": (both, ctc[1]), "ctc": ctc}

    @property
    def blank(self) -> int:
        """The id of CTC's blank: that of padding, which no text holds."""
        return self.tokenizer.pad_id

    # Data.

    def encode_split(self, split: str) -> tuple[Fields, Columns]:
        rows = self.examples(split)
        sound = spectra([row.path for row in rows], self.model_config.bins, RATE, self.features)
        ids = self.tokenizer.encode_batch([self.plain(row.text) for row in rows])
        seconds = (sound.lengths() * HOP / RATE).astype(np.float32)
        return {"features": sound, "target": Ragged.from_lists(ids)}, {"seconds": seconds}

    def possible(self, fields: Fields) -> Bool[np.ndarray, "n"]:
        """Whether a recording has enough states for its text, without which no loss exists."""
        states = -(-fields["features"].lengths() // self.model_config.stride)
        return states >= np.array([states_needed(ids) for ids in fields["target"]], np.int64)

    @cached_property
    def train_plan(self) -> BatchPlan:
        plan = super().train_plan
        plan.draws = Draws(3, 2**32, True)  # a random seed for each row's stripes
        return plan

    def load(self, fields: Fields, columns: Columns, ids: np.ndarray, shape) -> HostBatch:
        """A batch of recordings; with random seeds, as in training, parts of them are hidden."""
        ids, draws = ids.T if ids.ndim == 2 else (ids, None)
        (frames, length), augment = shape, self.sections["augment"]
        features = np.zeros((len(ids), frames, self.model_config.bins), np.float32)
        mask = np.zeros((len(ids), frames), bool)
        for row, i in enumerate(ids):
            if i >= 0:
                found = fields["features"][i]
                found = found if draws is None else hide_stripes(found, draws[row], augment)
                features[row, : len(found)], mask[row, : len(found)] = found, True
        texts = super().load({"target": fields["target"]}, columns, ids, (length,))
        return {"features": features, "features_mask": mask} | texts

    def features(self, sound: Float[np.ndarray, "b n"]) -> Float[np.ndarray, "b f m"]:
        """The log mel spectrograms of samples, computed on the CPU."""
        with jax.default_device(jax.local_devices(backend="cpu")[0]):
            return np.array(_features(sound, self.model_config.bins))

    def abstract_batch(self) -> Shapes:
        shapes = super().abstract_batch()
        frames = *shapes["features"].shape, self.model_config.bins
        return shapes | shapes_of(frames, features=np.float32)

    def sizes(self, batch: HostBatch) -> dict[str, int]:
        return {
            "examples": int(batch["features_mask"][:, 0].sum()),
            "tokens": int(batch["target_mask"].sum()),
            "seconds": float(batch["seconds"].sum()),
        }

    # Scores and transcripts.

    def reader(self, **changes: Any) -> CTCReader:
        """What turns features into texts; `changes` replace settings of the section `ctc`."""
        config, tok = replace(self.sections["ctc"], **changes), self.tokenizer
        ids = {name: getattr(tok, name) for name in ("pad_id", "bos_id", "eos_id")}
        settings, language = self.decode_settings(), None
        if order := config.ngram_order:
            texts = tok.encode_batch(list(self.train_texts()))
            model = NGram.train(texts, order, tok.vocab_size, tok.bos_id, tok.eos_id)
            language = model.after()
        more = {"text_of": tok.decode, "language": language}
        return CTCReader(self.model, config, settings, **ids, **more)

    def transcriber(self, **changes: Any) -> CTCTranscriber:
        """The transcriber of files; a model of one language takes no `language` and no `task`."""
        return CTCTranscriber(self.reader(), self.features, changes)

    def score(self, params: Params, split: str, place: Place, final: bool) -> Scores:
        """The error rates of characters and words; before training ends, of some recordings.

        A recording that is too long for the model counts as one without a text."""
        rows = list(self.examples(split))[: None if final else self.config.score_examples]
        if not rows:
            return Scores()
        self._reader = self._reader or self.reader()  # kept, as it is compiled once
        fields, columns = self.encode_split(split)
        fit = fits(lengths_of(fields)[: len(rows)], self.model_config.max_length)
        kept = np.flatnonzero(fit)
        fields = {name: values.take(kept) for name, values in fields.items()}
        columns = {name: values[kept] for name, values in columns.items()}
        said = [""] * len(rows)
        for ids, batch in self.in_order(fields, columns):
            placed = place({name: batch[name] for name in ("features", "features_mask")})
            found = self._reader({"params": params}, placed["features"], placed["features_mask"])
            for i, one in zip(ids, found, strict=True):
                if i >= 0:
                    said[kept[i]] = one.text
        wanted = [self.plain(row.text) for row in rows]
        values = {"cer": character_error_rate(wanted, said), "wer": word_error_rate(wanted, said)}
        shown = [tuple(x) for x in zip([r.path for r in rows], said, wanted, strict=True)]
        return Scores(values | {"num_examples": float(len(rows))}, shown[: self.shown(final)])

    def details(self) -> list[str]:
        fields, columns, _ = self.train_set
        lines = [
            f"{columns['seconds'].sum() / 3600:.2f} hours to train on; left out: {self.dropped:,} "
            "recordings that are too long, or too short for their texts",
            self.describe_tokens([self.plain(row.text) for row in self.examples("train")[:500]]),
        ]
        return lines + self.describe_batches()


_features = jax.jit(log_mel, static_argnums=1)
build = CTC
