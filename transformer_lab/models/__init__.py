"""Model families by name: each file has `CONFIG` (a frozen dataclass), `build(config)` and
`example_inputs()`, the arguments of a smallest call.
"""

import importlib
import sys
from types import ModuleType
from typing import Any

import jax

from transformer_lab.errors import LabError
from transformer_lab.kinds import kind as kind_of
from transformer_lab.models.base import listened as listened


def parameter_shapes(kind: str, config: Any) -> Any:
    """The tree of a model's parameters as shapes; nothing is allocated."""
    module = family(kind)
    inputs = module.example_inputs()
    return jax.eval_shape(module.build(config).init, jax.random.key(0), *inputs)["params"]


def need_vocabulary(size: int | None, key: str = "model.vocab_size") -> None:
    """Refuses to build a model whose number of tokens is not known by now."""
    if size is None:
        raise LabError(f"{key} is not set and there is no tokenizer to take it from")


def family(kind: str) -> ModuleType:
    """The module of a family."""
    return kind_of(__name__, "CONFIG", "model.kind", kind)


def rules_of(config: Any) -> list[tuple[str, tuple]]:
    """The family's own sharding rules, (regular expression on a path, axes of the dimensions): the
    `RULES` of the file in which its config class stands, if there are any."""
    return list(getattr(sys.modules[type(config).__module__], "RULES", ()))


def flops_a_token(config: Any, shapes: Any) -> float:
    """FLOPs a token of a training step; see `costs.flops_a_token`."""
    return importlib.import_module("transformer_lab.models.costs").flops_a_token(config, shapes)
