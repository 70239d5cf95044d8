"""Direct preference optimisation (Rafailov 2023): pairs of answers, without a reward model."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from transformer_lab.data.dialogues import PreferencesConfig
from transformer_lab.data.ragged import Ragged
from transformer_lab.data.splits import SPLITS
from transformer_lab.decoding.batch import to_host
from transformer_lab.errors import chosen, fractions, within
from transformer_lab.ops.losses import Pair, masked_sum
from transformer_lab.ops.preferences import answer_log_probs, dpo, ipo
from transformer_lab.tasks.answers import AnswersConfig, sections
from transformer_lab.tasks.base import Batch, Params, Place
from transformer_lab.tasks.pairs import Pairs, from_file, to_file

REFERENCE = "reference.npz"


@dataclass(frozen=True)
class PreferencesTaskConfig(AnswersConfig):
    """Settings of learning from preferences, the config section `task`."""

    loss: str = "dpo"  # dpo, or ipo (Azar 2023)
    beta: float = 0.1  # how dear it is to move away from the reference
    label_smoothing: float = 0.0  # of dpo: how likely a preference is the wrong way round

    def __post_init__(self):
        super().__post_init__()
        chosen(self, "task", {"loss": ("dpo", "ipo")})
        within("task.beta", self.beta, 1e-6, 1e6)
        fractions(self, "task", "label_smoothing")


SECTIONS = sections(PreferencesTaskConfig, PreferencesConfig)


class Preferences(Pairs):
    """Makes the better of two answers more likely than in the reference, the run's own start.

    A batch is that of `Pairs`, with `reference`, float32 [rows, 2]: the log-probabilities of both
    answers at the start of the run, which are computed once and kept in its checkpoints.
    """

    TRAINED = ("loss", "reward_accuracy", "reward_margin")
    COLUMNS = {"margin": (), "reference": (2,)}

    @property
    def reference(self) -> dict[str, np.ndarray]:
        """The log-probabilities [pairs, 2] of each split at the start; empty before it."""
        if not hasattr(self, "_reference"):
            stored = (self.assets_given or {}).get(REFERENCE)
            self._reference = from_file(stored) if stored else {}
        return self._reference

    def begin(self, params: Params, place: Place) -> None:
        """Computes the reference of all splits, in the order of their pairs."""
        self._reference = {}
        run = jax.jit(self.answers)
        for split in SPLITS:
            parts = [
                to_host(run(params, place(batch)))[ids >= 0] for ids, batch in self.in_order(split)
            ]
            self._reference[split] = np.concatenate([np.zeros((0, 2), np.float32), *parts])
        self.train_set[1]["reference"] = self._reference["train"]

    def assets(self) -> dict[str, bytes]:
        stored = {REFERENCE: to_file(self.reference)} if self.reference else {}
        return super().assets() | stored

    def encode_pairs(self, split: str) -> tuple[dict[str, Ragged], dict[str, np.ndarray]]:
        fields, columns = super().encode_pairs(split)
        nothing = np.zeros((len(columns["margin"]), 2), np.float32)
        return fields, columns | {"reference": self.reference.get(split, nothing)}

    def answers(self, params: Params, batch: Batch) -> Float[Array, "rows two"]:
        """The log-probabilities of both answers of each pair, without dropout: beside those of the
        reference its noise would look like a gain."""
        flat = self.flat(batch)
        states = self.states(params, flat, None)
        found = self.log_probs(params, states, flat["targets"])
        return answer_log_probs(found, flat["mask"]).reshape(-1, 2)

    def sums(
        self, params: Params, batch: Batch, dropout_key, training: bool = False
    ) -> dict[str, Pair]:
        """The loss; how often the better answer has the higher reward, beta times the gain over the
        reference, and by how much; how often it is the likelier one; its nats a token."""
        task, mask = self.config, batch["mask"]
        now, rows = self.answers(params, batch), mask.any(axis=(1, 2))
        gains = now - batch["reference"]
        gain = gains[:, 0] - gains[:, 1]
        smoothing = task.label_smoothing
        loss = ipo(gain, task.beta) if task.loss == "ipo" else dpo(gain, task.beta, smoothing)
        share = lambda x: masked_sum(x.astype(jnp.float32), rows)  # noqa: E731
        return {
            "loss": masked_sum(loss, rows),
            "reward_accuracy": share(gain > 0),
            "reward_margin": share(task.beta * gain),
            "likelier": share(now[:, 0] > now[:, 1]),
            "chosen_nats": (-now[:, 0].sum(), mask[:, 0].sum(dtype=jnp.float32)),
            "chosen_gain": share(gains[:, 0]),
        }


build = Preferences
