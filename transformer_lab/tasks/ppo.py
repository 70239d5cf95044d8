"""Proximal policy optimisation (Schulman 2017), with values by a head of the model itself."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from transformer_lab.data.dialogues import InstructionsConfig
from transformer_lab.errors import at_least, within
from transformer_lab.ops.losses import Pair, masked_sum
from transformer_lab.ops.preferences import (
    clipped_objective,
    clipped_value_loss,
    generalized_advantages,
    whiten,
)
from transformer_lab.tasks.answers import head, sections, with_head
from transformer_lab.tasks.base import Batch, HostBatch, Params
from transformer_lab.tasks.rollouts import Rollouts, RolloutsConfig


@dataclass(frozen=True)
class PpoConfig(RolloutsConfig):
    """Settings of PPO, the config section `task`."""

    passes: int = 4  # steps that train on the same answers
    discount: float = 1.0  # of rewards a token later
    decay: float = 0.95  # of generalised advantages, lambda
    value_weight: float = 0.1  # of the value loss
    value_clip: float = 0.2  # how far a value may move from that at the drawing

    def __post_init__(self):
        super().__post_init__()
        at_least(self, "task", 0, "value_weight")
        for name in ("discount", "decay"):
            within(f"task.{name}", getattr(self, name), 0, 1)


SECTIONS = sections(PpoConfig, InstructionsConfig)


class Ppo(Rollouts):
    """A token's reward is -kl (log p - log p_reference), and with the last token of an answer the
    answer's own (Ziegler 2019, section 2); advantages are generalised (Schulman 2016) and whitened
    over the batch. Each token weighs the same."""

    TRAINED = (*Rollouts.TRAINED, "value_loss")
    COLUMNS = (*Rollouts.COLUMNS, "values", "returns")

    def init(self, key) -> Params:
        return with_head(super().init(key), self.model_config.width)

    def measured(self, params: Params, batch: Batch) -> Batch:
        """Log-probabilities of the targets, and the values of the states before them."""
        states = self.states(params, batch, None)
        found = self.log_probs(params, states, batch["targets"])
        return {"old": found, "values": head(params, states)}

    def worth(self, batch: HostBatch, found: Batch) -> Batch:
        task, mask = self.config, batch["mask"]
        last = mask & ~np.pad(mask[:, 1:], ((0, 0), (0, 1)))
        rewards = -task.kl * (found["old"] - found["reference"])
        rewards = jnp.asarray(rewards + np.where(last, batch["reward"][:, None], 0))
        values, mask = jnp.asarray(found["values"]), jnp.asarray(mask)
        gained = generalized_advantages(rewards, values, mask, task.discount, task.decay)
        return found | {"advantages": whiten(gained, mask), "returns": gained + values}

    def sums(
        self, params: Params, batch: Batch, dropout_key, training: bool = False
    ) -> dict[str, Pair]:
        """The loss of a token, and what `told` says of the answers."""
        task, mask = self.config, batch["mask"]
        now = self.measured(params, batch)
        each = clipped_objective(now["old"], batch["old"], batch["advantages"], task.clip)
        values = clipped_value_loss(
            now["values"], batch["values"], batch["returns"], task.value_clip
        )
        return {
            "loss": masked_sum(each + task.value_weight * values, mask),
            "value_loss": masked_sum(values, mask),
            **self.told(batch, now["old"]),
        }


build = Ppo
