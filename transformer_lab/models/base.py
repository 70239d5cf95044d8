"""What every family's module is, and what it offers to tasks, decoding and viewing."""

from collections.abc import Callable
from contextvars import ContextVar
from functools import reduce
from typing import Any

import flax.linen as nn
from jaxtyping import Array, Key

from transformer_lab.layers.told import COLLECTIONS, RENEWED, TOLD, added, by_name
from transformer_lab.ops.losses import STATISTICS

Told = dict[str, Any]  # `losses`: name -> (total, weight, scaled total); `statistics`: new ones
_heard: ContextVar[list[Told] | None] = ContextVar("heard", default=None)


class Model(nn.Module):
    """The outermost module of a family, a function of one tree of parameters.

    Running statistics, of a model that has any, stand in that tree under the top key `batch_stats`.
    What modules tell in a call of `apply` (see `layers.told`) goes to the function that listens.
    """

    @nn.nowrap
    def init(self, key: Key[Array, ""], *inputs: Any, **more: Any) -> dict[str, Any]:
        """{"params": the tree}, of a smallest call's arguments."""
        variables = super().init(key, *inputs, **more)
        statistics = {name: tree for name, tree in variables.items() if name == STATISTICS}
        return {"params": {**variables["params"], **statistics}}

    @nn.nowrap
    def apply(self, variables: dict[str, Any], *inputs: Any, mutable: Any = False, **more: Any):
        """As Flax's own. `mutable` may be the name of a collection, or a list of names."""
        params = variables["params"]
        if STATISTICS in params:
            params = {name: tree for name, tree in params.items() if name != STATISTICS}
            variables = {STATISTICS: variables["params"][STATISTICS], **variables, "params": params}
        heard = _heard.get()
        if heard is None:
            return super().apply(variables, *inputs, mutable=mutable, **more)
        wanted = [mutable] if isinstance(mutable, str) else list(mutable or ())
        out, left = super().apply(variables, *inputs, mutable=[*wanted, *COLLECTIONS], **more)
        losses, statistics = by_name(left.pop(TOLD, {})), left.pop(RENEWED, {})
        heard.append({"losses": losses, "statistics": statistics})
        return (out, left) if wanted else out


def listened(function: Callable[..., Any]) -> Callable[..., tuple[Any, Told]]:
    """The function with a second result: what the models that it calls tell, added up.

    It must call them in its own trace: not inside a `jax.jit`, `vmap` or `scan` of its own.
    """

    def call(*args: Any) -> tuple[Any, Told]:
        heard: list[Told] = []
        before = _heard.set(heard)
        try:
            out = function(*args)
        finally:
            _heard.reset(before)
        return out, reduce(added, heard, {"losses": {}, "statistics": {}})

    return call
