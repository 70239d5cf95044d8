"""What the keys of a config mean: the comments beside the fields of the dataclasses."""

import ast
import dataclasses
import inspect
import io
import sys
import tokenize
import typing
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from transformer_lab.data.splits import SOURCES, SourceConfig
from transformer_lab.kinds import kinds
from transformer_lab.training.config import Resolved


class Key(NamedTuple):
    """A key of a config: its dotted name, value, default, type, what it means, and of a name the
    values that it may have."""

    name: str
    value: Any
    default: Any
    type: str
    meaning: str
    choices: tuple[str, ...] = ()

    def __str__(self):
        changed = "" if self.value == self.default else f", default {self.default!r}"
        return (
            f"{self.name} = {self.value!r} ({self.type}{changed}){self.words and ': '}{self.words}"
        )

    @property
    def words(self) -> str:
        """What it means, with the choices where the meaning does not list them all."""
        if all(choice in self.meaning for choice in self.choices):
            return self.meaning
        return f"{self.meaning}{self.meaning and '; '}one of {', '.join(self.choices)}"


def keys(resolved: Resolved) -> Iterator[Key]:
    """All keys of a config but the two kinds, section by section."""
    yield from keys_of("", resolved.run)
    yield from keys_of("model.", resolved.model)
    for name, section in resolved.sections.items():
        yield from keys_of(f"{name}.", section)


def keys_of(prefix: str, section: Any) -> Iterator[Key]:
    hints, comments = typing.get_type_hints(type(section)), meanings(type(section))
    names = choices(section)
    for field in dataclasses.fields(section):
        value = getattr(section, field.name)
        if dataclasses.is_dataclass(value):
            yield from keys_of(f"{prefix}{field.name}.", value)
            continue
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        hint = hints[field.name]
        kind = hint.__name__ if isinstance(hint, type) else str(hint)
        meaning = comments.get(field.name, "")
        yield Key(prefix + field.name, value, default, kind, meaning, names.get(field.name, ()))


def choices(section: Any) -> Mapping[str, tuple[str, ...]]:
    """The valid values of a dataclass's fields that are names: sources by the kind of their
    examples, else those of the class's method `choices` or of its module's table `CHOICES`."""
    if isinstance(section, SourceConfig):
        return {"source": tuple(kinds(SOURCES, f"def {section.KIND}"))}
    if hasattr(section, "choices"):
        return section.choices()
    return getattr(sys.modules[type(section).__module__], "CHOICES", {})


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
