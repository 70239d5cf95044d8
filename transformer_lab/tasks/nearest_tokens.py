"""kNN-LM: a language model that looks up what followed at similar places (Khandelwal 2020).

A datastore holds, for each token of some texts, the model's state before it, and the token. The
tokens at the nearest states give a second distribution, with which the model's own is mixed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Int

from transformer_lab.data.nearest import nearest
from transformer_lab.data.packing import eval_windows
from transformer_lab.errors import LabError
from transformer_lab.ops.losses import cross_entropy
from transformer_lab.tasks.base import Batch, Params, Place
from transformer_lab.tasks.language_modeling import LanguageModeling


@dataclass(frozen=True)
class Places:
    """Places in texts: the model's state [n, d] before each token, the token, and its nats."""

    states: Float[np.ndarray, "n d"]
    tokens: Int[np.ndarray, "n"]
    nats: Float[np.ndarray, "n"]
    bytes: int  # of the texts in UTF-8


class Reader:
    """Reads the texts of a split of a language model's task as places."""

    def __init__(self, task: LanguageModeling, params: Params, place: Place):
        if not hasattr(task.model, "states"):
            raise LabError("the model has no `states` before its head: give a run of a decoder")
        self.task, self.params, self.place = task, params, place

        @jax.jit
        def read(params: Params, batch: Batch) -> tuple[Any, Any]:
            model = task.model.bind({"params": params})
            states = model.states(batch["tokens"])
            return states, cross_entropy(model.logits(states, batch["targets"]), batch["targets"])

        self._read: Callable[..., Any] = read

    def __call__(self, split: str, limit: int = 0) -> Places:
        """All tokens of a split's documents, with as much context as in an evaluation; of so many
        whole documents that they have at least `limit` tokens (0: of all)."""
        task, rows = self.task, self.task.sections["batch"].rows
        ids, sizes = task.encode_split(split)
        if limit:
            count = int(np.searchsorted(np.cumsum(ids.lengths() + 1), limit)) + 1
            ids, sizes = ids.take(np.arange(min(count, len(ids)))), sizes[:count]
        shape = task.eval_length, task.eval_stride, rows
        found: list[tuple] = []
        for window in eval_windows(ids, *shape, task.start_id, task.tokenizer.eos_id, sizes):
            states, nats = jax.device_get(self._read(self.params, self.place(window)))
            mask = window["mask"]
            found.append((states[mask], window["targets"][mask], nats[mask]))
        if not found:
            raise LabError(f"the {split} split holds no text")
        parts = (np.concatenate(part) for part in zip(*found, strict=True))
        return Places(*parts, int(sizes.sum()))


def mixed_bits(
    store: Places,
    test: Places,
    count: int,
    temperatures: Sequence[float],
    weights: Sequence[float],
) -> Float[np.ndarray, "temperatures weights"]:
    """Bits per byte of the tested text, by temperature and by weight of the datastore.

    p(w) = weight * p_near(w) + (1 - weight) * p_model(w), where p_near(w) is the share of w among
    the `count` nearest states, each counted as exp(-squared distance / temperature) (equations 2
    and 3; the paper's temperature is 1)."""
    distances, numbers = nearest(test.states, store.states, count, squared=True)
    right = store.tokens[numbers] == test.tokens[:, None]
    own, rows = np.exp(-test.nats.astype(np.float64)), []
    for temperature in temperatures:
        closeness = np.exp((distances[:, :1] - distances).astype(np.float64) / temperature)
        near = (closeness * right).sum(axis=1) / closeness.sum(axis=1)
        rows.append([-np.log2(w * near + (1 - w) * own).sum() for w in weights])
    return np.array(rows) / max(test.bytes, 1)
