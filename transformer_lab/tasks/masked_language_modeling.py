"""Masked tokens and next sentences (BERT, Devlin 2019, section 3.1), or without (Liu 2019)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import jax
import jax.numpy as jnp
import numpy as np

from transformer_lab import text
from transformer_lab.data import documents, sentence_pairs
from transformer_lab.data.batching import RowsConfig
from transformer_lab.data.masking import Masker, MaskingConfig
from transformer_lab.data.pipeline import Batches
from transformer_lab.errors import LabError
from transformer_lab.ops.losses import Pair, cross_entropy, masked_sum
from transformer_lab.tasks.base import Batch, HostBatch, Params, Place, Scores
from transformer_lab.tasks.building import Shapes, shapes_of
from transformer_lab.tasks.encoder_task import EncoderTask, ragged


@dataclass(frozen=True)
class MaskedLanguageModelingConfig:
    """Settings of masked language modelling, the config section `task`."""

    next_sentence: bool = True  # False: RoBERTa's full sentences, and no second loss
    short_probability: float = 0.1  # share of rows that are made shorter
    dynamic: bool = True  # new masks in each epoch
    score_masked: bool = False  # evaluation replaces each chosen token with [MASK]
    samples: int = 4  # rows shown at the end


SECTIONS = {
    "task": MaskedLanguageModelingConfig,
    "data": documents.DocumentsConfig,
    "masking": MaskingConfig,
    "batch": RowsConfig,
    "tokenizer": text.TokenizerConfig,
}


class MaskedLanguageModeling(EncoderTask):
    """Predicts hidden tokens, and whether a second segment follows the first.

    A batch holds `tokens`, `tokens_mask` and `types` (1 in the second segment) [rows, length];
    `places`, where tokens are hidden, `labels`, what they were, and `chosen`, True where there is
    one [rows, P]; `is_random` [rows], 1 where the second segment is of another document, and
    `sentence_weight` [rows], with which both losses are one sum. "[CLS] it . [MASK] [SEP] dog sat
    [SEP]", where "a" (11) is hidden, and "[CLS] dog sat . [SEP] it . [SEP]", where the "." (10) at
    position 3 is chosen but stays:

        tokens       [[2, 23, 10, 4, 1, 28, 25, 1], [2, 28, 25, 10, 1, 23, 10, 1]]
        tokens_mask  [[1, 1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1, 1]]
        types        [[0, 0, 0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 0, 1, 1, 1]]
        places       [[3, 0], [3, 0]]
        labels       [[11, 0], [10, 0]]
        chosen       [[1, 0], [1, 0]]
        is_random    [1, 1]
        sentence_weight  [1, 1]
    """

    TRAINED = ("loss", "mlm_loss", "nsp_loss")
    load_data = documents.load_documents

    @property
    def HEAD(self) -> str:
        return "mlm_nsp" if self.config.next_sentence else "mlm"

    def row_limit(self) -> int:
        return self.sections["batch"].length

    def slots(self) -> tuple[int, int]:
        return self.sections["batch"].rows * self.sections["batch"].length, self.rows_multiple

    def check(self, model_kind, model_config) -> None:
        self.sections["batch"].check(self.rows_multiple)

    @cached_property
    def masker(self) -> Masker:
        """Chooses which tokens to hide, and with what each is replaced."""
        return Masker(self.tokenizer, self.sections["masking"])

    @cached_property
    def eval_masker(self) -> Masker:
        if not self.config.score_masked:
            return self.masker
        plain = replace(self.sections["masking"], mask_share=1.0, random_share=0.0)
        return Masker(self.tokenizer, plain)

    def _sentences(self, split: str) -> sentence_pairs.Sentences:
        found = map(sentence_pairs.split_sentences, self.examples(split))
        return sentence_pairs.Sentences.encode(found, self.tokenizer)

    def unigram_loss(self) -> float:
        """Nats per validation token of a model that ignores context: by add-one smoothed
        frequencies of the training text."""
        train, held_out = self.train_plan.sentences.tokens, self._sentences("validation").tokens
        counts = np.bincount(train, minlength=self.tokenizer.vocab_size) + 1.0
        counts[self.tokenizer.eos_id] = 0.0
        held_out = held_out[held_out != self.tokenizer.eos_id]
        return float(np.log(counts.sum()) - np.log(counts[held_out]).mean())

    def _plan(self, split: str, dynamic: bool) -> sentence_pairs.PairPlan:
        task, rows = self.config, self.sections["batch"].rows
        how = self.limit, rows, self.seed, task.next_sentence, task.short_probability, dynamic
        return sentence_pairs.PairPlan(self._sentences(split), *how)

    @cached_property
    def train_plan(self) -> sentence_pairs.PairPlan:
        return self._plan("train", self.config.dynamic)

    def _load(self, sentences, masker, ids, shape) -> HostBatch:
        batch = sentence_pairs.load_pairs(ids, shape, sentences, self.tokenizer, masker)
        batch["tokens_mask"] = batch.pop("mask")
        # Scales each sentence's loss so that both means share the first loss's denominator.
        weight = batch["chosen"].sum() / max(batch["tokens_mask"][:, 0].sum(), 1)
        batch["sentence_weight"] = np.full(len(ids), weight, np.float32)
        return batch

    def abstract_batch(self) -> Shapes:
        rows, length = self.sections["batch"].rows, self.limit
        hidden = rows, self.masker.places(length)
        return {
            **shapes_of((rows, length), tokens=np.int32, types=np.int32, tokens_mask=bool),
            **shapes_of(hidden, places=np.int32, labels=np.int32, chosen=bool),
            **shapes_of((rows,), is_random=np.int32, sentence_weight=np.float32),
        }

    def train_batches(self) -> Batches:
        plan = self.train_plan
        return Batches(plan, partial(self._load, plan.sentences, self.masker))

    def eval_batches(self, split: str) -> Iterator[HostBatch]:
        if self.examples(split):
            plan = self._plan(split, dynamic=False)
            for _, ids in plan:
                yield self._load(plan.sentences, self.eval_masker, ids, plan.shapes[0])

    def classes(self) -> None:
        """None, as documents have no classes."""

    def details(self) -> list[str]:
        levels = ["next sentence 0.693"] if self.config.next_sentence else []
        if self.data.validation:
            levels.insert(0, f"masked tokens {self.unigram_loss():.3f} by frequency")
        blind = [f"nats of a model that reads nothing: {', '.join(levels)}"] if levels else []
        return [*super().details(), *blind]

    def sums(self, params: Params, batch: Batch, dropout_key, training: bool) -> dict[str, Pair]:
        """`loss` is the mean loss of the masked tokens plus the mean loss of the next sentences."""
        types = batch["types"] if self.model_config.types > 1 else None
        labels, chosen = batch["labels"], batch["chosen"]
        inputs = batch["tokens"], batch["tokens_mask"], types, dropout_key
        hidden = {"places": batch["places"], "labels": labels}
        out = self.model.apply({"params": params}, *inputs, **hidden)
        nats = masked_sum(cross_entropy(out["mlm"], labels), chosen)
        right = (out["mlm"].best == labels).astype(jnp.float32)
        found = {"loss": nats, "mlm_loss": nats, "mlm_accuracy": masked_sum(right, chosen)}
        if self.config.next_sentence:
            real, is_random = batch["tokens_mask"][:, 0], batch["is_random"]
            sentence = cross_entropy(out["nsp"], is_random)
            right = (out["nsp"].argmax(axis=-1) == is_random).astype(jnp.float32)
            weighted = jnp.where(real, sentence * batch["sentence_weight"], 0.0).sum()
            found["loss"] = nats[0] + weighted, nats[1]
            found["nsp_loss"] = masked_sum(sentence, real)
            found["nsp_accuracy"] = masked_sum(right, real)
        return found

    def score(self, params: Params, split: str, place: Place, final: bool) -> Scores:
        """Samples of a trained model: sentences with one word hidden, and its best guesses."""
        rows = []
        for whole in self.examples(split)[: self.shown(final)]:
            words = " ".join(sentence_pairs.split_sentences(whole)[:2]).split()[:40]
            at = len(words) // 2
            line = " ".join([*words[:at], "[MASK]", *words[at + 1 :]])
            best = self.predict(params, [line], place)[0]["fills"]
            rows.append((line, ", ".join(f"{t} {c:.2f}" for t, c in best), words[at]))
        return Scores({}, rows)

    def predict(self, params: Params, texts: Sequence[str], place: Place) -> list[dict]:
        """The five likeliest tokens for the single [MASK] of each text, with probabilities."""
        if any(line.count("[MASK]") != 1 for line in texts):
            raise LabError("write one [MASK] in each text, where a word is hidden")
        mask, encoded = self.masker.mask_id, []
        for line in texts:
            before, after = map(self.tokenizer.encode, line.split("[MASK]"))
            encoded.append(self.encode([*before, mask, *after]))
            if mask not in encoded[-1]:
                raise LabError(f"[MASK] stands beyond {self.limit} tokens: {line[:60]}")
        found = []
        logits = self.outputs(params, ragged(encoded), {}, place, "mlm")
        for line, ids, values in zip(texts, encoded, logits, strict=True):
            chances = np.array(jax.nn.softmax(values[ids.index(mask)]))
            chances[list(self.tokenizer.unused(len(chances)))] = -1.0  # ids without a token
            best = np.argsort(-chances)[:5]
            fills = [(self.tokenizer.piece(i), float(chances[i])) for i in best]
            found.append({"text": line, "fills": fills})
        return found


build = MaskedLanguageModeling
