"""Model families by name: each file has `CONFIG` (a frozen dataclass), `build(config)` and
`example_inputs()`, the arguments of a smallest call.
"""

import dataclasses
import inspect
import sys
import typing
from types import ModuleType
from typing import Any

import jax

from transformer_lab.errors import LabError
from transformer_lab.kinds import kind as kind_of
from transformer_lab.kinds import kinds
from transformer_lab.layers.costs import idle_parameters
from transformer_lab.layers.told import listened as listened
from transformer_lab.models.base import Computed as Computed
from transformer_lab.models.base import Pictures as Pictures
from transformer_lab.models.base import Towers as Towers
from transformer_lab.models.base import Vocabulary as Vocabulary


def parameter_shapes(kind: str, config: Any) -> Any:
    """The tree of a model's parameters as shapes; nothing is allocated."""
    module = family(kind)
    inputs = module.example_inputs()
    return jax.eval_shape(module.build(config).init, jax.random.key(0), *inputs)["params"]


def family(kind: str) -> ModuleType:
    """The module of a family."""
    return kind_of(__name__, "CONFIG", "model.kind", kind)


def said(config: Any, name: str, default: Any = None) -> Any:
    """What the file of a config's class says under a name, or the file of a class it inherits."""
    for cls in type(config).__mro__:
        if hasattr(module := sys.modules[cls.__module__], name):
            return getattr(module, name)
    return default


def rules_of(config: Any) -> list[tuple[str, tuple]]:
    """The family's own sharding rules, `RULES`: (regular expression on a path, axes of the
    dimensions). They come before those of `training.mesh`, which are about layers."""
    return list(said(config, "RULES", ()))


def flops_a_token(config: Any, shapes: Any, length: int | None = None) -> float:
    """FLOPs a token of a training step, of a model whose parameters have these shapes.

    What the family's file says in `training_flops(config, length)`; else 6 N, where N leaves
    embedding tables out (Kaplan 2020, table 1), and experts that do not work for a token.
    """
    if own := said(config, "training_flops"):
        return float(own(config, length))
    leaves = jax.tree_util.tree_flatten_with_path(shapes)[0]
    count = sum(x.size for path, x in leaves if "embedding" not in jax.tree_util.keystr(path))
    return 6.0 * (count - idle_parameters(config))


def need(kind: str, protocol: type, head: str = "") -> None:
    """Refuses a family that lacks a part of a protocol of `models.base`, or a head.

    Raises: LabError that names the kind, what it lacks, and the kinds that would do.
    """
    if not (missing := lacking(family(kind), protocol, head)):
        return
    every = kinds(__name__, "CONFIG")
    fit = " or ".join(f'"{k}"' for k in every if not lacking(family(k), protocol, head))
    raise LabError(
        f'model.kind = "{kind}" does not go with this task, which needs a {protocol.__name__}: it '
        f"lacks {', '.join(missing[:4])}; use {fit}"
    )


def lacking(module: ModuleType, protocol: type, head: str = "") -> list[str]:
    """What a family's module has not of a protocol: methods, their arguments, settings, a head.

    Of a family with several modules, between which `build` chooses, the nearest one counts.
    """
    config = typing.get_type_hints(protocol).get("config", object)
    fields = [name for cls in config.__mro__ for name in inspect.get_annotations(cls)]
    own = {field.name for field in dataclasses.fields(module.CONFIG)} | set(dir(module.CONFIG))
    build = module.build
    if not inspect.isclass(build):  # a function, which says what it gives
        build = typing.get_type_hints(build)["return"]
    missing = min((_methods(cls, protocol) for cls in typing.get_args(build) or [build]), key=len)
    missing += [f"model.{name}" for name in fields if name not in own]
    return missing or [f'head = "{head}"' for _ in [0] if head and head not in module.CONFIG.HEADS]


def _methods(cls: type, protocol: type) -> list[str]:
    """The methods of a protocol that a class lacks, and arguments that its own do not take."""
    missing, wanted = [], {}
    for base in reversed(protocol.__mro__):
        named = vars(base).items() if getattr(base, "_is_protocol", False) else ()
        wanted |= {name: x for name, x in named if inspect.isfunction(x)}
    for name, method in wanted.items():
        if name.startswith("_") and name != "__call__":
            continue
        if name not in dir(cls):
            missing.append(f"{name}()")
            continue
        takes = inspect.signature(getattr(cls, name)).parameters
        missing += [f"{name}({x})" for x in inspect.signature(method).parameters if x not in takes]
    return missing
