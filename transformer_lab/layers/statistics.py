"""Models with BatchNorm as functions of one tree of parameters."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Key

from transformer_lab.ops.losses import STATISTICS


class WithStatistics:
    """`init` and `apply` of a module whose running statistics are leaves under the top key
    `batch_stats` of its parameters.

    With a dropout key a call is one of training: BatchNorm takes the batch's statistics, over the
    real `rows` alone, and the outputs have under the same key the new running ones as the pair
    (tree * rows, rows), which a task's loss returns beside its own pairs.
    """

    def __init__(self, module: nn.Module):
        self.module = module

    def init(self, key: Key[Array, ""], *inputs: Any) -> dict[str, Any]:
        variables = self.module.init(key, *inputs)
        found = {STATISTICS: variables[STATISTICS]} if STATISTICS in variables else {}
        return {"params": {**variables["params"], **found}}

    def apply(
        self,
        variables: dict[str, Any],
        inputs: Array,
        dropout_key: Key[Array, ""] | None = None,
        rows: Bool[Array, "b"] | None = None,
    ) -> dict[str, Any]:
        params = dict(variables["params"])
        statistics = params.pop(STATISTICS, {})
        known, arguments = {"params": params, STATISTICS: statistics}, (inputs, dropout_key, rows)
        if dropout_key is None or not statistics:
            return self.module.apply(known, *arguments)
        out, new = self.module.apply(known, *arguments, mutable=[STATISTICS])
        count = jnp.float32(len(inputs)) if rows is None else rows.sum(dtype=jnp.float32)
        return out | {STATISTICS: (jax.tree.map(lambda x: x * count, new[STATISTICS]), count)}
