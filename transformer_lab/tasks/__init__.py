"""Objectives by name: each file has `SECTIONS` (its config dataclasses) and `build(...)`.

A file may name in `SHOWN` the scores that a sweep's table shows unless its experiment says which,
and in `BASELINE` the function of `transformer_lab.tasks.baselines` that a model must beat.

`transformer_lab.tasks.base` defines what the trainer requires of a task."""

from types import ModuleType

from transformer_lab.kinds import kind as kind_of


def objective(kind: str) -> ModuleType:
    """The module of this package that implements the objective named by `task.kind`."""
    return kind_of(__name__, "SECTIONS", "task.kind", kind)


def offers(kind: str, ability: type) -> bool:
    """Whether tasks of a kind have all methods of a protocol of `tasks.abilities`."""
    return issubclass(objective(kind).build, ability)
