"""What tasks of an encoder share: [CLS] A [SEP] B [SEP], the model, and its whole-split outputs."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from transformer_lab import models, text
from transformer_lab.data import labelled
from transformer_lab.data.ragged import Ragged
from transformer_lab.data.splits import SPLITS, remarks
from transformer_lab.errors import LabError
from transformer_lab.tasks.base import Batch, HostBatch, Params, Place, table_size
from transformer_lab.tasks.bucketed import Bucketed, Columns, Fields

LABELS = "labels.json"


class Reading(Bucketed):
    """A batch holds `tokens` (int32 [rows, length]) and `tokens_mask`, and what a task adds.

    A task has `data` (its splits), `HEAD`, and `train_texts` for a tokenizer of its own.
    """

    HEAD, KINDS = "none", ("encoder",)  # of the model
    train_texts: Callable[[], Iterator[str]]  # what a tokenizer is trained on
    cut = 0  # texts, or pairs of them, that did not fit when they were encoded
    CONFIG_LABELS = False  # whether the head has an output a label

    def __init__(
        self,
        model_kind: str,
        model_config: Any,
        sections: dict[str, Any],
        assets: dict[str, bytes] | None = None,
        seed: int = 0,
        rows_multiple: int = 1,
    ):
        if model_kind not in self.KINDS:
            kinds = " or ".join(f'"{kind}"' for kind in self.KINDS)
            raise LabError(f'model.kind = "{model_kind}" does not go with this task: use {kinds}')
        self.config, self.sections, self.seed = sections["task"], sections, seed
        self.rows_multiple = rows_multiple
        self.check_rows(rows_multiple)
        self._stored = assets or {}
        if assets is None:
            self.tokenizer = text.train(sections["tokenizer"], self.train_texts(), seed)
        else:
            self.tokenizer = text.load(assets)
        changes = {
            "head": self.HEAD,
            "vocab_size": table_size(model_config.vocab_size, self.tokenizer.vocab_size),
        }
        if self.CONFIG_LABELS:
            changes["labels"] = max(len(self.labels), 1)
        self.model_config = replace(model_config, **changes)
        self.family = models.family(model_kind)
        self.model = self.family.build(self.model_config)
        self.limit = min(self.row_limit(), self.model_config.max_length)

    def row_limit(self) -> int:
        """Tokens of a batch's rows at most."""
        return self.sections["batch"].max_length

    @cached_property
    def data(self) -> Any:
        """Splits with `report` and `licence`; labelled ones unless a task has others."""
        return labelled.load_labelled(self.sections["data"])

    def fingerprint(self) -> str:
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        return self.data.fingerprint()

    @cached_property
    def labels(self) -> list[str]:
        """Those of the checkpoint, else of the data."""
        if LABELS in self._stored:
            return json.loads(self._stored[LABELS])
        return self.data.labels

    def init(self, key: Key[Array, ""]) -> Params:
        return self.model.init(key, *self.family.example_inputs())["params"]

    # Tokens.

    def encode(self, first: Sequence[int], second: Sequence[int] | None = None) -> list[int]:
        """Ids between the special ones; the longer of a pair is cut until both fit."""
        tok, double = self.tokenizer, self.model_config.types < 2
        between = [tok.eos_id] * (2 if double else 1)  # RoBERTa's pairs have two
        if second is None:
            self.cut += len(first) > self.limit - 2
            return [tok.bos_id, *first[: self.limit - 2], tok.eos_id]
        room = self.limit - 2 - len(between)
        self.cut += len(first) + len(second) > room
        a = min(len(first), max(room - len(second), room - room // 2))
        b = room - a
        return [tok.bos_id, *first[:a], *between, *second[:b], tok.eos_id]

    def apply(self, params: Params, batch: Batch, dropout_key: Any = None, **more: Any) -> dict:
        """The model's outputs; B has type 1 where the model knows types."""
        tokens, mask = batch["tokens"], batch["tokens_mask"]
        types = None
        if self.model_config.types > 1:
            ends = ((tokens == self.tokenizer.eos_id) & mask).astype(jnp.int32)
            types = jnp.minimum(jnp.cumsum(ends, axis=1) - ends, 1) * mask
        return self.model.apply({"params": params}, tokens, mask, types, dropout_key, **more)

    # Outputs of many texts.

    @cached_property
    def _outputs(self) -> Callable[[Params, Batch], dict[str, Array]]:
        return jax.jit(lambda params, batch: self.apply(params, batch))

    def outputs(
        self, params: Params, fields: Fields, columns: Columns, place: Place, name: str = "logits"
    ) -> list[np.ndarray]:
        """One output for each example, in the order given; of tokens as many as it has."""
        plan = self.order(fields)
        lengths = fields["tokens"].lengths()
        found: list[np.ndarray] = [np.zeros(0)] * len(lengths)
        for bucket, ids in plan or ():
            batch = self.load(fields, columns, ids, plan.shapes[bucket])
            values = np.asarray(self._outputs(params, place(batch))[name], np.float32)
            per_token = values.ndim == 3
            for row, i in zip(values, ids.tolist(), strict=True):
                if i >= 0:
                    found[i] = row[: lengths[i]] if per_token else row
        return found

    def eval_shapes(self) -> list[tuple[int, ...]]:
        """Powers of two: a finished model reads texts without its training data."""
        sizes = [2**i for i in range(4, 20) if 2**i < self.limit]
        return [(size,) for size in (*sizes, self.limit)]

    # What the run reports and keeps.

    def sizes(self, batch: HostBatch) -> dict[str, int]:
        mask = batch["tokens_mask"]
        return {"examples": int(mask[:, 0].sum()), "tokens": int(mask.sum())}

    def assets(self) -> dict[str, bytes]:
        files = self.tokenizer.to_files()
        if self.CONFIG_LABELS:
            files[LABELS] = json.dumps(self.labels).encode()
        return files

    def report(self) -> list[str]:
        counts = ", ".join(f"{name} {count:,}" for name, count in self.data.report.items())
        classes = {s: set(labelled.labels_of(getattr(self.data, s))) for s in SPLITS}
        lines = [
            f"examples: {counts}; licence: {self.data.licence}",
            *remarks(self.data.report, self.sections["data"], classes),
            f"vocabulary: {self.tokenizer.vocab_size:,} pieces; at most {self.limit} tokens",
            *self.describe_batches(),  # which encodes the training set
        ]
        if self.cut:
            lines.append(f"texts of the training set that were cut to fit: {self.cut:,}")
        return lines


def ragged(rows: Sequence[Sequence[int]]) -> Fields:
    """Encoded examples as the field `tokens`."""
    return {"tokens": Ragged.from_lists(rows)}
