"""The base class of all models: one tree of parameters in, and what layers report out."""

from typing import Any

import flax.linen as nn
from jaxtyping import Array, Key

from transformer_lab.errors import LabError
from transformer_lab.layers.told import COLLECTIONS, hear, listening
from transformer_lab.models.base import Vocabulary
from transformer_lab.ops.losses import STATISTICS


class Model(nn.Module):
    """The outermost module of a family, called with one tree of parameters.

    Running statistics, if the model has any, are in that tree under the top key `batch_stats`. What
    modules report during `apply`, such as auxiliary losses, goes to the listener of `layers.told`.
    """

    def __post_init__(self):
        config = self.config
        if isinstance(config, Vocabulary) and config.vocab_size is None:
            raise LabError("model.vocab_size is not set and there is no tokenizer to take it from")
        super().__post_init__()

    @property
    def reads_prefix(self) -> bool:
        """Whether the tokens of a given prefix attend to each other in both directions.

        Such a language model takes `prefix` [b t], True at those tokens; `prefill` treats the
        prompt as prefix.
        """
        return False

    @nn.nowrap
    def init(self, key: Key[Array, ""], *inputs: Any, **more: Any) -> dict[str, Any]:
        """{"params": the parameter tree}, for the arguments of a smallest call."""
        variables = super().init(key, *inputs, **more)
        statistics = {name: tree for name, tree in variables.items() if name == STATISTICS}
        return {"params": {**variables["params"], **statistics}}

    @nn.nowrap
    def apply(self, variables: dict[str, Any], *inputs: Any, mutable: Any = False, **more: Any):
        """As Flax's `apply`; `mutable` may be the name of a collection, or a list of names."""
        params = variables["params"]
        if STATISTICS in params:
            params = {name: tree for name, tree in params.items() if name != STATISTICS}
            variables = {STATISTICS: variables["params"][STATISTICS], **variables, "params": params}
        if not listening():
            return super().apply(variables, *inputs, mutable=mutable, **more)
        wanted = [mutable] if isinstance(mutable, str) else list(mutable or ())
        out, left = super().apply(variables, *inputs, mutable=[*wanted, *COLLECTIONS], **more)
        hear(left)
        return (out, left) if wanted else out
