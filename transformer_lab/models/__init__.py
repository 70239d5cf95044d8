"""Model families, found by the names of their files.

Each file has `CONFIG` (a frozen dataclass), `build(config)`, which returns the Flax module, and
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
from transformer_lab.models.base import Finds as Finds
from transformer_lab.models.base import Patches as Patches
from transformer_lab.models.base import Pictures as Pictures
from transformer_lab.models.base import Sees as Sees
from transformer_lab.models.base import Texts as Texts
from transformer_lab.models.base import Towers as Towers
from transformer_lab.models.base import Vocabulary as Vocabulary


def parameter_shapes(kind: str, config: Any) -> Any:
    """The parameter tree of a model as shapes and types; no memory is allocated."""
    module = family(kind)
    inputs = module.example_inputs()
    return jax.eval_shape(module.build(config).init, jax.random.key(0), *inputs)["params"]


def family(kind: str) -> ModuleType:
    """The module of a model family. Raises: LabError with the nearest name for an unknown one."""
    return kind_of(__name__, "CONFIG", "model.kind", kind)


def said(config: Any, name: str, default: Any = None) -> Any:
    """The value of a name in the file of a config's class or of one it inherits, or `default`."""
    for cls in type(config).__mro__:
        if hasattr(module := sys.modules[cls.__module__], name):
            return getattr(module, name)
    return default


def rules_of(config: Any) -> list[tuple[str, tuple]]:
    """The family's own sharding rules, which take precedence over those of `training.mesh`. Each is
    a regular expression on a parameter's path, and the mesh axes that split its dimensions."""
    return list(said(config, "RULES", ()))


def flops_a_token(config: Any, shapes: Any, length: int | None = None) -> float:
    """FLOPs a token of a training step, for a model whose parameters have these shapes.

    The family's own `training_flops(config, length)` if its file has one; else 6 N, where N leaves
    out embedding tables (Kaplan 2020, table 1) and the experts that do not work for a token.
    """
    if own := said(config, "training_flops"):
        return float(own(config, length))
    leaves = jax.tree_util.tree_flatten_with_path(shapes)[0]
    count = sum(x.size for path, x in leaves if "embedding" not in jax.tree_util.keystr(path))
    return 6.0 * (count - idle_parameters(config))


def need(kind: str, protocol: type, head: str = "") -> None:
    """Refuses a family that lacks a part of a protocol of `models.base`, or a head.

    Raises: LabError that names the kind, what it lacks, and the kinds that have it.
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
    """What a family's module lacks of a protocol: methods, their arguments, settings, a head.

    Where `build` chooses between several modules, the one that lacks the least counts.
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
