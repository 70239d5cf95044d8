"""A reward model: one number for an answer, learnt from pairs (Bradley-Terry; Ouyang 2022)."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_lab.data.dialogues import PreferencesConfig
from transformer_lab.ops.losses import Pair, masked_sum
from transformer_lab.ops.preferences import bradley_terry
from transformer_lab.tasks.answers import AnswersConfig, head, sections, with_head
from transformer_lab.tasks.base import Batch, Params
from transformer_lab.tasks.pairs import Pairs

SECTIONS = sections(AnswersConfig, PreferencesConfig)


class Reward(Pairs):
    """Gives the better of two answers the higher reward, by a head on the state of an answer's last
    token. A batch is that of `Pairs`."""

    TRAINED = ("loss", "reward_accuracy")
    generator = None  # the number for an answer is all that it gives

    def init(self, key) -> Params:
        return with_head(super().init(key), self.model_config.width)

    def rewards(
        self, params: Params, batch: Batch, dropout_key: Array | None = None
    ) -> Float[Array, "rows two"]:
        """The rewards of both answers of each pair."""
        flat = self.flat(batch)
        states = self.states(params, flat, dropout_key)
        last = jnp.maximum(flat["segments"].sum(axis=1) - 1, 0)
        ends = jnp.take_along_axis(states, last[:, None, None], axis=1)[:, 0]
        return head(params, ends).reshape(-1, 2)

    def sums(
        self, params: Params, batch: Batch, dropout_key, training: bool = False
    ) -> dict[str, Pair]:
        """The Bradley-Terry loss with the pairs' margins, and how often it orders them right."""
        found, rows = self.rewards(params, batch, dropout_key), batch["mask"].any(axis=(1, 2))
        better, worse = found[:, 0], found[:, 1]
        right = (better > worse).astype(jnp.float32)
        return {
            "loss": masked_sum(bradley_terry(better, worse, batch["margin"]), rows),
            "reward_accuracy": masked_sum(right, rows),
            "reward_margin": masked_sum(better - worse, rows),
        }


build = Reward
