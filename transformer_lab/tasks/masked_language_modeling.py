"""Masked tokens and next sentences (Devlin 2019, section 3.1), or the first alone (Liu 2019)."""

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
from transformer_lab.data.splits import Splits
from transformer_lab.errors import LabError
from transformer_lab.ops.losses import Pair, cross_entropy, masked_sum
from transformer_lab.tasks.base import Batch, HostBatch, Params, Place, Scores, shapes_of
from transformer_lab.tasks.reading import Reading, ragged


@dataclass(frozen=True)
class MaskedLanguageModelingConfig:
    """The objective's own settings."""

    next_sentence: bool = True  # False: RoBERTa's full sentences, and no second loss
    short_probability: float = 0.1  # of rows shorter than they could be
    dynamic: bool = True  # another mask each epoch
    score_masked: bool = False  # held-out: each chosen token becomes [MASK], however one trains
    samples: int = 4  # rows shown at the end


SECTIONS = {
    "task": MaskedLanguageModelingConfig,
    "data": documents.DocumentsConfig,
    "masking": MaskingConfig,
    "batch": RowsConfig,
    "tokenizer": text.TokenizerConfig,
}


class MaskedLanguageModeling(Reading):
    """A batch holds `tokens`, `tokens_mask`, `types` [rows, length]; the hidden `places`, their
    `labels`, and `chosen` (where there is one) [rows, P]; `is_random` [rows]."""

    def __init__(self, model_kind, model_config, sections, *args, **kwargs):
        self.HEAD = "mlm_nsp" if sections["task"].next_sentence else "mlm"
        super().__init__(model_kind, model_config, sections, *args, **kwargs)

    def row_limit(self) -> int:
        return self.sections["batch"].length

    def slots(self) -> tuple[int, int]:
        return self.sections["batch"].rows * self.sections["batch"].length, self.rows_multiple

    def check_rows(self, rows_multiple: int) -> None:
        self.sections["batch"].check(rows_multiple)

    @cached_property
    def data(self) -> Splits:
        return documents.load_documents(self.sections["data"])

    def train_texts(self) -> Iterator[str]:
        return iter(self.data.train)

    @cached_property
    def _fingerprint(self) -> str:
        return self.data.fingerprint()

    @cached_property
    def masker(self) -> Masker:
        return Masker(self.tokenizer, self.sections["masking"])

    @cached_property
    def eval_masker(self) -> Masker:
        if not self.config.score_masked:
            return self.masker
        plain = replace(self.sections["masking"], mask_share=1.0, random_share=0.0)
        return Masker(self.tokenizer, plain)

    def _sentences(self, split: str) -> sentence_pairs.Sentences:
        found = map(sentence_pairs.split_sentences, getattr(self.data, split))
        return sentence_pairs.Sentences.encode(found, self.tokenizer)

    def unigram_loss(self) -> float:
        """Nats of a validation token by its smoothed frequency in the training text (add one):
        what a model reaches that reads nothing."""
        train, held_out = self.train_plan.sentences.tokens, self._sentences("validation").tokens
        counts = np.bincount(train, minlength=self.tokenizer.vocab_size) + 1.0
        counts[self.tokenizer.eos_id] = 0.0
        held_out = held_out[held_out != self.tokenizer.eos_id]
        return float(np.log(counts.sum()) - np.log(counts[held_out]).mean())

    def _plan(self, split: str, dynamic: bool) -> sentence_pairs.PairPlan:
        return sentence_pairs.PairPlan(
            self._sentences(split),
            self.limit,
            self.sections["batch"].rows,
            self.seed,
            self.config.next_sentence,
            self.config.short_probability,
            dynamic,
        )

    @cached_property
    def train_plan(self) -> sentence_pairs.PairPlan:
        return self._plan("train", self.config.dynamic)

    def _load(self, sentences, masker, ids, shape) -> HostBatch:
        batch = sentence_pairs.load_pairs(ids, shape, sentences, self.tokenizer, masker)
        batch["tokens_mask"] = batch.pop("mask")
        # Both losses are means of their own: with its weight the second fits the first's sum.
        weight = batch["chosen"].sum() / max(batch["tokens_mask"][:, 0].sum(), 1)
        batch["sentence_weight"] = np.full(len(ids), weight, np.float32)
        return batch

    def abstract_batch(self) -> dict[str, jax.ShapeDtypeStruct]:
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
        if not getattr(self.data, split):
            return
        plan = self._plan(split, dynamic=False)
        for _, ids in plan:
            yield self._load(plan.sentences, self.eval_masker, ids, plan.shapes[0])

    def report(self) -> list[str]:
        levels = ["next sentence 0.693"] if self.config.next_sentence else []
        if self.data.validation:
            levels.insert(0, f"masked tokens {self.unigram_loss():.3f} by frequency")
        blind = [f"nats of a model that reads nothing: {', '.join(levels)}"] if levels else []
        return [*super().report(), *blind]

    def loss(self, params: Params, batch: Batch, dropout_key) -> dict[str, Pair]:
        found = self._metrics(params, batch, dropout_key)
        return {name: pair for name, pair in found.items() if name.endswith("loss")}

    def metrics(self, params: Params, batch: Batch) -> dict[str, Pair]:
        return self._metrics(params, batch, None)

    def _metrics(self, params, batch, dropout_key):
        """`loss` is the mean of the masked tokens' plus the mean of the sentences'."""
        types = batch["types"] if self.model_config.types > 1 else None
        labels, chosen = batch["labels"], batch["chosen"]
        out = self.model.apply(
            {"params": params},
            batch["tokens"],
            batch["tokens_mask"],
            types,
            dropout_key,
            places=batch["places"],
            labels=labels,
        )
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
        """Sentences of the finished model with a word hidden."""
        texts = getattr(self.data, split)[: self.config.samples if final else 0]
        rows = []
        for whole in texts:
            words = " ".join(sentence_pairs.split_sentences(whole)[:2]).split()[:40]
            hidden, at = words.copy(), len(words) // 2
            hidden[at] = "[MASK]"
            line = " ".join(hidden)
            best = self.predict(params, [line], place)[0]["fills"]
            rows.append((line, ", ".join(f"{t} {c:.2f}" for t, c in best), words[at]))
        return Scores({}, rows, {})

    def predict(self, params: Params, texts: Sequence[str], place: Place) -> list[dict]:
        """The five likeliest pieces for each text's one [MASK]."""
        if any(line.count("[MASK]") != 1 for line in texts):
            raise LabError("write one [MASK] in each text, where a word is hidden")
        encoded = []
        for line in texts:
            before, after = (self.tokenizer.encode(part) for part in line.split("[MASK]"))
            encoded.append(self.encode([*before, self.masker.mask_id, *after]))
        logits = self.outputs(params, ragged(encoded), {}, place, "mlm")
        found = []
        for line, ids, values in zip(texts, encoded, logits, strict=True):
            if self.masker.mask_id not in ids:
                raise LabError(f"[MASK] stands beyond {self.limit} tokens: {line[:60]}")
            chances = np.array(jax.nn.softmax(values[ids.index(self.masker.mask_id)]))
            chances[list(self.tokenizer.unused(len(chances)))] = -1.0  # they mean nothing
            best = np.argsort(-chances)[:5]
            fills = [(self.tokenizer.piece(i), float(chances[i])) for i in best]
            found.append({"text": line, "fills": fills})
        return found


build = MaskedLanguageModeling
