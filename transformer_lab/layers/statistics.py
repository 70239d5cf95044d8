"""Models with BatchNorm as functions of one tree of parameters."""

import inspect
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from transformer_lab.ops.losses import STATISTICS


class WithStatistics:
    """`init` and `apply` of a module whose running statistics are leaves under the top key
    `batch_stats` of its parameters.

    With a `dropout_key` a call is one of training: BatchNorm takes the batch's statistics, over the
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
        self, variables: dict[str, Any], *inputs: Any, method: str | None = None
    ) -> dict[str, Any] | Array:
        params = dict(variables["params"])
        statistics = params.pop(STATISTICS, {})
        known = {"params": params, STATISTICS: statistics}
        call = inspect.signature(getattr(self.module, method or "__call__"))
        named = call.bind(*inputs).arguments
        if named.get("dropout_key") is None or not statistics:
            return self.module.apply(known, *inputs, method=method)
        out, new = self.module.apply(known, *inputs, mutable=[STATISTICS])
        rows = named.get("rows")
        count = jnp.float32(len(inputs[0])) if rows is None else rows.sum(dtype=jnp.float32)
        return out | {STATISTICS: (jax.tree.map(lambda x: x * count, new[STATISTICS]), count)}
