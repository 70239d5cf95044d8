"""What `mkdocs build` adds to the page of settings: a reference of all keys there are.

It is made from the dataclasses and the comments of their fields, as `transformer_lab config` is.
"""

import dataclasses
import re
from typing import Any

from transformer_lab import models, tasks
from transformer_lab.kinds import kinds
from transformer_lab.training.config import RunConfig
from transformer_lab.training.explained import keys_of


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The text of a page as mkdocs shows it."""
    return markdown + reference() if page.file.src_uri == "settings.md" else markdown


def reference() -> str:
    """All keys as Markdown tables, one for each dataclass: of every run, of each kind of model, and
    of the sections of each task. What a dataclass inherits or nests is in a table of its own."""
    titles: dict[type, str] = {RunConfig: "Every run"}
    for kind in kinds(models.__name__, "CONFIG"):
        titles[models.family(kind).CONFIG] = f"model.kind = {kind}"
    rows = []
    for kind in kinds(tasks.__name__, "SECTIONS"):
        sections = tasks.objective(kind).SECTIONS
        for name, cls in sections.items():
            titles.setdefault(cls, f"{name}: {_short(cls)}")
        rows.append(f"| `{kind}` | {', '.join(_link(titles[cls]) for cls in sections.values())} |")
    found, parts = list(titles), []
    for cls in found:  # it grows by what they inherit and nest
        parts.append(_table(cls, titles))
        found += [other for other in titles if other not in found]
    table = "\n".join(["| task.kind | its sections |", "| --- | --- |", *rows])
    return "\n\n".join(["\n## All keys", table, *parts, ""])


def _table(cls: type, titles: dict[type, str]) -> str:
    """A heading, what the dataclass says of itself, and the keys that are not its bases' own.

    Dataclasses that it inherits or nests are added to `titles`."""
    section = cls()
    head, colon, _ = titles[cls].partition(":")
    prefix = f"{head}." if colon else "" if cls is RunConfig else "model."
    lines = [f"### {titles[cls]}", "", " ".join((cls.__doc__ or "").split("\n\n")[0].split()), ""]
    bases = [base for base in cls.__mro__[1:] if dataclasses.is_dataclass(base)]
    for base in bases:
        titles.setdefault(base, f"{prefix.removesuffix('.')}: {_short(base)}")
    if bases:
        lines += [f"And the keys of {', '.join(_link(titles[base]) for base in bases)}.", ""]
    same = {(key.name, repr(key.default)) for base in bases for key in keys_of("", base())}
    lines += ["| key | type | default | meaning |", "| --- | --- | --- | --- |"]
    for field in dataclasses.fields(section):
        value = getattr(section, field.name)
        if dataclasses.is_dataclass(value):
            titles.setdefault(type(value), f"{prefix}{field.name}: {_short(type(value))}")
            lines.append(f"| `{prefix}{field.name}` | section | | {_link(titles[type(value)])} |")
    for key in keys_of("", section):
        if "." not in key.name and (key.name, repr(key.default)) not in same:
            cells = f"`{prefix}{key.name}`", f"`{key.type}`", f"`{key.default!r}`", key.words
            lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines)


def _short(cls: type) -> str:
    return cls.__name__.removesuffix("Config")


def _link(title: str) -> str:
    """A link to a heading of this page, by the anchor that mkdocs gives it."""
    anchor = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower())
    return f"[{title}](#{anchor})"
