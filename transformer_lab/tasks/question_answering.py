"""Extractive question answering (Rajpurkar 2016, 2018; Devlin 2019, sections 4.2 and 4.3)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from transformer_lab.data import labelled
from transformer_lab.errors import LabError
from transformer_lab.ops.losses import Pair, cross_entropy, masked_sum
from transformer_lab.tasks import scores
from transformer_lab.tasks.base import Batch, Params, Place, Scores
from transformer_lab.tasks.bucketed import Columns, Fields
from transformer_lab.tasks.encoder_task import TEXTS, EncoderTask, ragged


@dataclass(frozen=True)
class QuestionAnsweringConfig:
    """Settings of question answering, the config section `task`."""

    question_length: int = 64  # the most tokens of a question
    stride: int = 128  # tokens from one window of a long context to the next
    answer_length: int = 30  # the most tokens of an answer
    null_threshold: float = 0.0  # "no answer" must score this much more than the best answer
    samples: int = 8  # questions shown at the end


SECTIONS = {"task": QuestionAnsweringConfig, **TEXTS}


class Window(NamedTuple):
    """A question with a part of its context; context token `first` is `tokens[begin]`."""

    question: int
    tokens: list[int]
    first: int
    begin: int
    count: int  # the number of context tokens


class Answer(NamedTuple):
    """A stretch of the original context; `gain` is its score minus that of giving no answer."""

    text: str
    score: float
    gain: float


class QuestionAnswering(EncoderTask):
    """Finds the part of a context that answers a question.

    A batch also holds `start` and `end` [rows]: the answer's first and last token in the row, 0 if
    it has no answer. A row is a question with a window of its context. "who ran" asked of "n ran",
    where "n" answers, and of "o ran", where nothing does:

        tokens       [[2, 20, 18, 1, 13, 18, 1, 0], [2, 20, 18, 1, 14, 18, 1, 0]]
        tokens_mask  [[1, 1, 1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1, 1, 0]]
        start        [4, 0]
        end          [4, 0]
    """

    HEAD, PER_ROW = "span", {"start": np.int32, "end": np.int32}

    def train_texts(self) -> Iterator[str]:
        return (part for row in self.data.train for part in (row.question, row.context))

    def windows(self, number: int, question: str, ids: Sequence[int]) -> list[Window]:
        """Rows "[CLS] question [SEP] context [SEP]" of overlapping parts of the context's ids."""
        asked = self.tokenizer.encode(question)[: self.config.question_length]
        head = self.encode(asked)
        head += [self.tokenizer.eos_id] * (self.model_config.types < 2)
        room = self.limit - len(head) - 1
        if room < 1:
            raise LabError(
                f"batch.max_length = {self.limit} leaves no room for a context after a question of "
                f"{len(asked)} tokens: raise it, or lower task.question_length"
            )
        stride = min(self.config.stride, room)
        starts = range(0, max(len(ids) - room, 0) + stride, stride)
        parts = [(at, list(ids[at : at + room])) for at in starts]
        eos = self.tokenizer.eos_id
        return [Window(number, [*head, *p, eos], at, len(head), len(p)) for at, p in parts]

    def _windows(self, rows) -> tuple[list[Window], list[list[tuple[int, int]]]]:
        """The windows of all questions, and the character offsets of each context's tokens."""
        encoded = [self.tokenizer.encode_with_offsets(row.context) for row in rows]
        windows = [
            window
            for number, (row, (ids, _)) in enumerate(zip(rows, encoded, strict=True))
            for window in self.windows(number, row.question, ids)
        ]
        return windows, [offsets for _, offsets in encoded]

    def encode_split(self, split: str) -> tuple[Fields, Columns]:
        rows = self.examples(split)
        windows, offsets = self._windows(rows)
        found = [self._answer_in(w, rows[w.question], offsets[w.question]) for w in windows]
        start, end = np.asarray(found, np.int32).reshape(-1, 2).T
        return ragged([w.tokens for w in windows]), {"start": start, "end": end}

    def _answer_in(self, window: Window, row, offsets) -> tuple[int, int]:
        """Indices of the first answer's first and last token in the window; (0, 0) if not in it."""
        if row.impossible or not row.answers:
            return 0, 0
        answer, begin = row.answers[0]
        inside = [
            i for i, (a, b) in enumerate(offsets) if a < begin + len(answer) and b > begin and b > a
        ]
        if not inside or not window.first <= inside[0] <= inside[-1] < window.first + window.count:
            return 0, 0
        shift = window.begin - window.first
        return inside[0] + shift, inside[-1] + shift

    def sums(self, params: Params, batch: Batch, dropout_key, training: bool) -> dict[str, Pair]:
        """The mean of the two cross-entropies, of the answer's first and of its last token."""
        logits, mask = self.apply(params, batch, dropout_key)["logits"], batch["tokens_mask"]
        logits = jnp.where(mask[..., None], logits, jnp.finfo(jnp.float32).min)
        both = [cross_entropy(logits[..., i], batch[name]) for i, name in enumerate(self.PER_ROW)]
        return {"loss": masked_sum((both[0] + both[1]) / 2, mask[:, 0])}

    def answers(self, params: Params, rows, place: Place) -> list[Answer]:
        """The answer of highest score for each question, over all windows of its context."""
        windows, offsets = self._windows(rows)
        fields = ragged([w.tokens for w in windows])
        logits = self.outputs(params, fields, {}, place)
        best = [Answer("", -np.inf, 0.0)] * len(rows)
        null = np.full(len(rows), np.inf)
        for window, values in zip(windows, logits, strict=True):
            n = window.question
            null[n] = min(null[n], float(values[0].sum()))
            found = self._best_span(values[window.begin : window.begin + window.count])
            if found is not None and found[0] > best[n].score:
                score, i, j = found
                letters = offsets[n]
                begin, end = letters[window.first + i][0], letters[window.first + j][1]
                best[n] = Answer(rows[n].context[begin:end], score, 0.0)
        return [a._replace(gain=a.score - float(z)) for a, z in zip(best, null, strict=True)]

    def _best_span(self, values: np.ndarray) -> tuple[float, int, int] | None:
        """(score, first, last) of the best answer of allowed length; None if empty."""
        if not len(values):
            return None
        sums = values[:, None, 0] + values[None, :, 1]
        index = np.arange(len(values))
        apart = index[None, :] - index[:, None]
        allowed = (apart >= 0) & (apart < self.config.answer_length)
        i, j = np.unravel_index(np.where(allowed, sums, -np.inf).argmax(), sums.shape)
        return float(sums[i, j]), int(i), int(j)

    def score(self, params: Params, split: str, place: Place, final: bool) -> Scores:
        """SQuAD's exact match and F1 in per cent, also apart for questions without an answer."""
        rows = self.examples(split)
        if not rows:
            return Scores()
        guesses = self.answers(params, rows, place)
        may_lack = any(row.impossible for row in rows)
        threshold = self.config.null_threshold
        texts = ["" if may_lack and a.gain < threshold else a.text for a in guesses]
        golds = [[answer for answer, _ in row.answers] for row in rows]
        exact, f1 = scores.squad(golds, texts)
        values = {"exact_match": exact, "f1": f1, **scores.squad_parts(golds, texts)}
        values["num_examples"] = len(rows)
        shown = zip(rows[: self.shown(final)], texts, golds, strict=False)
        samples = [
            (f"{row.question} | {row.context[:200]}", guess, gold[0] if gold else "")
            for row, guess, gold in shown
        ]
        return Scores(values, samples)

    def predict(self, params: Params, texts: Sequence[str], place: Place) -> list[dict]:
        """The answer, score and gain of each line "question<tab>context"."""
        if wrong := [line for line in texts if "\t" not in line]:
            raise LabError(f'"{wrong[0][:60]}": give a question, a tab and the context')
        parts = [line.split("\t", 1) for line in texts]
        rows = [labelled.Question("", context, question, [], False) for question, context in parts]
        found = self.answers(params, rows, place)
        return [
            {"question": row.question, "answer": a.text, "score": a.score, "gain": a.gain}
            for row, a in zip(rows, found, strict=True)
        ]


build = QuestionAnswering
