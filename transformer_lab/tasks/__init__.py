"""Objectives by name: each file has `SECTIONS` (its config dataclasses) and `build(...)`.

What the trainer asks of a task stands in `transformer_lab.tasks.base`.
"""

from types import ModuleType

from transformer_lab.kinds import kind as kind_of


def objective(kind: str) -> ModuleType:
    """The module of an objective."""
    return kind_of(__name__, "SECTIONS", "task.kind", kind)
