"""Group relative policy optimisation (Shao 2024): answers judged beside others to their prompt."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from transformer_lab.data.dialogues import InstructionsConfig
from transformer_lab.errors import LabError
from transformer_lab.ops.losses import Pair, masked_sum
from transformer_lab.ops.preferences import clipped_objective, group_advantages, kl_estimate
from transformer_lab.tasks.answers import sections
from transformer_lab.tasks.base import Batch, HostBatch, Params
from transformer_lab.tasks.rollouts import Rollouts, RolloutsConfig


@dataclass(frozen=True)
class GrpoConfig(RolloutsConfig):
    """Settings of GRPO, the config section `task`."""

    group: int = 8  # answers to each prompt, which are compared with each other

    def __post_init__(self):
        super().__post_init__()
        if self.group < 2:
            raise LabError("task.group = 1: an answer is compared with others, give 2 or more")


SECTIONS = sections(GrpoConfig, InstructionsConfig)


class Grpo(Rollouts):
    """An answer's advantage, the same for all its tokens, is its reward beside those of the other
    answers to its prompt; the loss adds the estimate k3 of the divergence from the reference. Each
    answer weighs the same, whatever its length (Shao 2024, eq. 3)."""

    def worth(self, batch: HostBatch, found: Batch) -> Batch:
        rewards = jnp.asarray(batch["reward"]).reshape(-1, self.config.group)
        each = np.asarray(group_advantages(rewards)).reshape(-1, 1)
        return found | {"advantages": np.where(batch["mask"], each, 0).astype(np.float32)}

    def sums(
        self, params: Params, batch: Batch, dropout_key, training: bool = False
    ) -> dict[str, Pair]:
        """The loss of an answer, and what `told` says of the answers."""
        task, mask = self.config, batch["mask"]
        now = self.measured(params, batch)["old"]
        each = clipped_objective(now, batch["old"], batch["advantages"], task.clip)
        each = each + task.kl * kl_estimate(now, batch["reference"])
        length = jnp.maximum(mask.sum(axis=1, dtype=jnp.float32), 1)
        of_answers = jnp.where(mask, each, 0).sum(axis=1) / length
        return {"loss": masked_sum(of_answers, mask.any(axis=1)), **self.told(batch, now)}


build = Grpo
