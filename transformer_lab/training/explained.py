"""What the keys of a config mean: the comments beside the fields of the dataclasses."""

import ast
import dataclasses
import inspect
import io
import tokenize
import typing
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from transformer_lab.training.config import Resolved


class Key(NamedTuple):
    """A key of a config: its dotted name, value, default, type, and what it means."""

    name: str
    value: Any
    default: Any
    type: str
    meaning: str

    def __str__(self):
        changed = "" if self.value == self.default else f", default {self.default!r}"
        meaning = self.meaning and f": {self.meaning}"
        return f"{self.name} = {self.value!r} ({self.type}{changed}){meaning}"


def keys(resolved: Resolved) -> Iterator[Key]:
    """All keys of a config but the two kinds, section by section."""
    yield from _keys("", resolved.run)
    yield from _keys("model.", resolved.model)
    for name, section in resolved.sections.items():
        yield from _keys(f"{name}.", section)


def _keys(prefix: str, section: Any) -> Iterator[Key]:
    hints, comments = typing.get_type_hints(type(section)), meanings(type(section))
    for field in dataclasses.fields(section):
        value = getattr(section, field.name)
        if dataclasses.is_dataclass(value):
            yield from _keys(f"{prefix}{field.name}.", value)
            continue
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        hint = hints[field.name]
        kind = hint.__name__ if isinstance(hint, type) else str(hint)
        yield Key(prefix + field.name, value, default, kind, comments.get(field.name, ""))


@cache
def meanings(cls: type) -> dict[str, str]:
    """The comment of each field of a dataclass: beside the field, in the lines above it, or where
    the class that it comes from has the field."""
    found = {}
    for base in filter(dataclasses.is_dataclass, reversed(cls.__mro__)):
        source = inspect.getsource(base)
        alone, beside = {}, {}
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                where = beside if token.line[: token.start[1]].strip() else alone
                where[token.start[0]] = token.string.lstrip("# ")
        for node in ast.parse(source).body[0].body:
            if not isinstance(node, ast.AnnAssign):
                continue
            lines, line = [beside.get(node.end_lineno, "")], node.lineno - 1
            while line in alone:
                lines.insert(0, alone[line])
                line -= 1
            if text := " ".join(filter(None, lines)):
                found[node.target.id] = text
    return found
