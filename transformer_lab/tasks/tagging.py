"""A label for each word: parts of speech, or entities in BIO (Devlin 2019, section 5.3)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from transformer_lab import text
from transformer_lab.data import labelled
from transformer_lab.data.batching import BatchConfig
from transformer_lab.data.ragged import Ragged
from transformer_lab.errors import LabError
from transformer_lab.ops.losses import Pair, cross_entropy, masked_sum, token_metrics, weights_of
from transformer_lab.tasks import scores
from transformer_lab.tasks.base import Batch, Params, Place, Scores, class_weights
from transformer_lab.tasks.bucketed import Columns, Fields
from transformer_lab.tasks.reading import Reading, ragged


@dataclass(frozen=True)
class TaggingConfig:
    """The objective's own settings."""

    class_weights: str = ""  # of the training loss: "balanced", or "label=2.5,label=0.5"
    samples: int = 8  # sentences shown at the end


SECTIONS = {
    "task": TaggingConfig,
    "data": labelled.LabelledConfig,
    "batch": BatchConfig,
    "tokenizer": text.TokenizerConfig,
}


class Tagging(Reading):
    """A batch also holds `tag` [rows, length]: 1 + the label at a word's first piece, else 0."""

    HEAD, CONFIG_LABELS, KINDS = "tokens", True, ("encoder", "recurrent")

    @cached_property
    def class_weights(self) -> np.ndarray | None:
        return class_weights(
            self.config.class_weights,
            self.labels,
            lambda: (tag for row in self.data.train for tag in row.tags),
        )

    def train_texts(self) -> Iterator[str]:
        return (" ".join(row.words) for row in self.data.train)

    def encode_words(self, words: Sequence[str]) -> tuple[list[int], list[int]]:
        """Ids, and the place of each word's first piece. A word without a piece gets [UNK]."""
        tok = self.tokenizer
        pieces = [ids or [tok.unk_id] for ids in tok.encode_words(words)]
        firsts = (1 + np.cumsum([0, *map(len, pieces)])[:-1]).tolist()
        return [tok.bos_id, *(i for ids in pieces for i in ids), tok.eos_id], firsts

    def encode_split(self, split: str) -> tuple[Fields, Columns]:
        number = {label: i for i, label in enumerate(self.labels)}
        tokens, tags = [], []
        for row in getattr(self.data, split):
            ids, firsts = self.encode_words(row.words)
            marks = [0] * len(ids)
            for place, tag in zip(firsts, row.tags, strict=True):
                # A tag that training never saw cannot be guessed: it counts as wrong, not as none.
                marks[place] = 1 + number.get(tag, len(number))
            tokens.append(ids)
            tags.append(marks)
        return ragged(tokens), {"tag": Ragged.from_lists(tags)}

    def loss(self, params: Params, batch: Batch, dropout_key) -> dict[str, Pair]:
        logits = self.apply(params, batch, dropout_key)["logits"]
        tag = batch["tag"] - 1
        nats = cross_entropy(logits, tag)
        return {"loss": masked_sum(nats, tag >= 0, weights_of(tag, self.class_weights))}

    def metrics(self, params: Params, batch: Batch) -> dict[str, Pair]:
        logits = self.apply(params, batch)["logits"]
        found = token_metrics(logits, batch["tag"] - 1, batch["tag"] > 0)
        return {name: found[name] for name in ("loss", "accuracy")}

    def score(self, params: Params, split: str, place: Place, final: bool) -> Scores:
        """F1 of entities, where the tags mark such, by seqeval. Too long sentences are left out."""
        rows = getattr(self.data, split)
        if not rows:
            return Scores({}, [], {})
        fields, columns, kept, _ = self.fitting_rows(split)
        guesses, golds = [], []
        logits = self.outputs(params, fields, columns, place)
        for values, tag in zip(logits, columns["tag"], strict=True):
            at = np.flatnonzero(tag)
            guesses.append([self.labels[i] for i in values[at].argmax(axis=-1)])
            golds.append([self._name(i) for i in (tag[at] - 1).tolist()])
        values = {"num_examples": float(len(golds))}
        if scores.tag_scheme([self.labels]):
            values["span_f1"] = scores.span_f1(golds, guesses)
        count = self.config.samples if final else 0
        join = lambda words: " ".join(words)[:300]  # noqa: E731
        samples = [
            (join(rows[i].words), join(guess), join(gold))
            for i, guess, gold in zip(kept[:count].tolist(), guesses, golds, strict=False)
        ]
        return Scores(values, samples, {})

    def report(self) -> list[str]:
        lines = super().report()
        if scheme := scores.tag_scheme(row.tags for row in self.data.train):
            lines.append(f"tags mark entities in the scheme {scheme}")
        long = {split: self.fitting(split)[2] for split in ("train", "validation", "test")}
        if any(long.values()):
            counts = ", ".join(f"{count:,} of {split}" for split, count in long.items())
            lines.append(f"sentences that are left out, longer than a batch takes: {counts}")
        return lines

    def _name(self, label: int) -> str:
        return self.labels[label] if label < len(self.labels) else "?"

    def predict(self, params: Params, texts: Sequence[str], place: Place) -> list[dict]:
        """Each text's words (by white space) with their labels."""
        encoded = [self.encode_words(line.split()) for line in texts]
        for line, (ids, _) in zip(texts, encoded, strict=True):
            if len(ids) > self.model_config.max_length:
                raise LabError(
                    f"{len(ids)} tokens exceed model.max_length = {self.model_config.max_length}: "
                    f"{line[:60]}"
                )
        fields = ragged([ids for ids, _ in encoded])
        logits = self.outputs(params, fields, {}, place)
        found = []
        for line, (_, firsts), values in zip(texts, encoded, logits, strict=True):
            best = values[firsts].argmax(axis=-1) if firsts else []
            tags = [self.labels[i] for i in best]
            found.append({"text": line, "words": line.split(), "tags": tags})
        return found


build = Tagging
