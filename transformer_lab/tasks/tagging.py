"""A label for each word: parts of speech, or entities in BIO (Devlin 2019, section 5.3)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from transformer_lab.data.ragged import Ragged
from transformer_lab.data.splits import SPLITS
from transformer_lab.ops.losses import Pair, cross_entropy, masked_sum, token_scores, weights_of
from transformer_lab.tasks import scores
from transformer_lab.tasks.base import Batch, Params, Place, Scores
from transformer_lab.tasks.bucketed import Columns, Fields
from transformer_lab.tasks.encoder_task import TEXTS, WordTask, ragged
from transformer_lab.tasks.labels import Labelled


@dataclass(frozen=True)
class TaggingConfig:
    """Settings of tagging, the config section `task`."""

    class_weights: str = ""  # in the training loss: "balanced", or "label=2.5,label=0.5"
    samples: int = 8  # sentences shown at the end


SECTIONS = {"task": TaggingConfig, **TEXTS}


class Tagging(Labelled, WordTask):
    """Predicts a label for each word.

    A batch also holds `tag` [rows, length]: 1 + the label at a word's first piece, else 0. "ben
    ann" and "ann", where each word is a name, the label 0:

        tokens       [[2, 5, 4, 1, 0, 0], [2, 4, 1, 0, 0, 0]]
        tokens_mask  [[1, 1, 1, 1, 0, 0], [1, 1, 1, 0, 0, 0]]
        tag          [[0, 1, 1, 0, 0, 0], [0, 1, 0, 0, 0, 0]]
    """

    HEAD, PER_TOKEN = "tokens", {"tag": np.int32}

    def train_labels(self) -> Iterator[str]:
        return (tag for row in self.data.train for tag in row.tags)

    def train_texts(self) -> Iterator[str]:
        return (" ".join(row.words) for row in self.data.train)

    def encode_split(self, split: str) -> tuple[Fields, Columns]:
        number = {label: i for i, label in enumerate(self.labels)}
        tokens, tags = [], []
        for row in self.examples(split):
            ids, firsts = self.encode_words(row.words)
            marks = [0] * len(ids)
            for first, tag in zip(firsts, row.tags, strict=True):
                # A tag that is not in the training set cannot be predicted: it counts as an error.
                marks[first] = 1 + number.get(tag, len(number))
            tokens.append(ids)
            tags.append(marks)
        return ragged(tokens), {"tag": Ragged.from_lists(tags)}

    def sums(self, params: Params, batch: Batch, dropout_key, training: bool) -> dict[str, Pair]:
        """The cross-entropy and accuracy of the words' tags."""
        tag, words = batch["tag"] - 1, batch["tag"] > 0
        found = token_scores(self.apply(params, batch, dropout_key)["logits"], tag)
        weights = weights_of(tag, self.class_weights) if training else None
        return {
            "loss": masked_sum(cross_entropy(found, tag), words, weights),
            "accuracy": masked_sum((found.best == tag).astype(np.float32), words),
        }

    def score(self, params: Params, split: str, place: Place, final: bool) -> Scores:
        """F1 of whole entities, if the tags mark entities, without sentences that are too long."""
        rows = self.examples(split)
        if not rows:
            return Scores()
        fields, columns, fit = self.fitting(split)
        logits = self.outputs(params, fields, columns, place)
        names, guesses, golds = [*self.labels, "?"], [], []
        for values, tag in zip(logits, columns["tag"], strict=True):
            at = np.flatnonzero(tag)
            guesses.append([names[i] for i in values[at].argmax(axis=-1)])
            golds.append([names[i - 1] for i in tag[at]])
        values = {"num_examples": float(len(golds))}
        if scores.tag_scheme([self.labels]):
            values["span_f1"] = scores.span_f1(golds, guesses)
        kept = [row for row, fits in zip(rows, fit, strict=True) if fits][: self.shown(final)]
        samples = [
            tuple(" ".join(words)[:300] for words in (row.words, guess, gold))
            for row, guess, gold in zip(kept, guesses, golds, strict=False)
        ]
        return Scores(values, samples)

    def details(self) -> list[str]:
        lines = super().details()
        if scheme := scores.tag_scheme(row.tags for row in self.data.train):
            lines.append(f"tags mark entities in the scheme {scheme}")
        long = {split: int((~self.fitting(split)[2]).sum()) for split in SPLITS}
        if any(long.values()):
            counts = ", ".join(f"{count:,} of {split}" for split, count in long.items())
            lines.append(f"sentences that are left out, longer than a batch takes: {counts}")
        return lines

    def predict(self, params: Params, texts: Sequence[str], place: Place) -> list[dict]:
        """The words of each text, divided at white space, and their labels."""
        encoded = self.encode_lines(texts)
        logits = self.outputs(params, ragged([ids for ids, _ in encoded]), {}, place)
        found = []
        for line, (_, firsts), values in zip(texts, encoded, logits, strict=True):
            tags = [self.labels[i] for i in values[firsts].argmax(axis=-1)] if firsts else []
            found.append({"text": line, "words": line.split(), "tags": tags})
        return found


build = Tagging
SHOWN = ("accuracy",)
BASELINE = "tags"
