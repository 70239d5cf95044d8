"""The rooms of the package: what each may import. A room imports itself and the floors below."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "transformer_lab"

FLOORS = {
    "errors": 0,
    "kinds": 1,
    "terminal": 0,
    "ops": 1,
    "text": 1,
    "layers": 2,
    "models": 3,
    "data": 3,
    "tasks": 4,
    "decoding": 4,
    "pretrained": 4,
    "viewing": 4,
    "training": 5,
    "sweeps": 6,
    "serving": 6,
}
COMMANDS = "commands"  # the files of the package itself, the top floor
SAME_FLOOR = {  # the only imports between rooms of one floor, and why
    ("tasks", "decoding"): "a task is scored by what the model generates",
    ("pretrained", "decoding"): "a directory says how to search, and a check runs that search",
}
NEVER = {  # what else a room does not import: rooms below it, and libraries
    "ops": {"flax", "ml_collections", "orbax"},
    "text": {"flax", "jax", "jaxlib"},
    "layers": {"ml_collections", "text"},
    "models": {"ml_collections", "text"},
    "data": {"flax", "jax", "jaxlib", "layers"},
    "tasks": {"optax", "orbax"},
    "decoding": {"data", "models", "optax", "text"},
    "pretrained": {"data", "optax", "torch"},
    "viewing": {"data", "flax", "layers", "models", "optax", "text"},
    "training": {"layers", "text", "torch"},
}
NOT_BY_NAME = ("models", "tasks")  # training reaches their modules through the registers
CONTRACT = "transformer_lab.tasks.base"  # which is no single task
PICKLES = {"cloudpickle", "dill", "joblib", "pickle", "shelve"}


def imported(tree: ast.AST) -> Iterator[str]:
    """Dotted names, of `from a import b` both `a` and `a.b`; wherever in the file they stand."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def room_of(path: Path) -> str:
    """The room of a file, given relative to the package."""
    if len(path.parts) > 1:
        return path.parts[0]
    return path.stem if path.stem in FLOORS else COMMANDS


def target_of(name: str) -> str | None:
    """The room or library that a dotted name leads to; None for the package as a whole."""
    first, *rest = name.split(".")
    if first != "transformer_lab":
        return first
    if not rest:
        return None
    known = rest[0] in FLOORS or (PACKAGE / rest[0]).is_dir()
    return rest[0] if known else COMMANDS


def floor(room: str) -> int:
    return max(FLOORS.values()) + 1 if room == COMMANDS else FLOORS[room]


def room_faults(path: str, source: str) -> list[str]:
    """What a file of the package, at a path in it, imports against the rules."""
    room = room_of(Path(path))
    if room != COMMANDS and room not in FLOORS:
        return [f"{path}: {room} is no room: give it a floor"]
    faults = set()
    for name in imported(ast.parse(source)):
        target = target_of(name)
        if target is None or target == room:
            continue
        ours = name.startswith("transformer_lab.")
        if ours and target != COMMANDS and target not in FLOORS:
            faults.add(f"{path}: {target} is no room: give it a floor")
            continue
        beside = ours and floor(target) >= floor(room) and (room, target) not in SAME_FLOOR
        if beside or target in NEVER.get(room, ()):
            faults.add(f"{path}: {room} may not import {target}")
        elif room == "training" and target in NOT_BY_NAME and is_single(name):
            faults.add(f"{path}: training may not name {name}")
    return sorted(faults)


def is_single(name: str) -> bool:
    """Whether a name leads into one model or task, not to their register."""
    parts = name.split(".")
    module = len(parts) > 2 and (PACKAGE / parts[1] / f"{parts[2]}.py").exists()
    return module and ".".join(parts[:3]) != CONTRACT


def style_faults(path: str, source: str) -> list[str]:
    """Imports that no file of the project has."""
    faults = set()
    for name in imported(ast.parse(source)):
        if name == "__future__.annotations":  # Linen would not check its fields
            faults.add(f"{path}: from __future__ import annotations")
        if name.split(".")[0] in PICKLES:
            faults.add(f"{path}: {name}")
        if name.startswith("."):  # the rooms are read off absolute names
            faults.add(f"{path}: relative import")
    return sorted(faults)


def sources(directory: Path) -> dict[str, str]:
    """The text of each Python file, by its path in the directory."""
    files = sorted(directory.rglob("*.py"))
    return {str(path.relative_to(directory)): path.read_text(encoding="utf-8") for path in files}


def test_a_room_imports_itself_and_the_floors_below():
    files = sources(PACKAGE)
    assert {room_of(Path(path)) for path in files} == {*FLOORS, COMMANDS}
    assert [fault for path, text in files.items() for fault in room_faults(path, text)] == []


def test_every_exception_is_still_needed():
    found = set()
    for path, text in sources(PACKAGE).items():
        found |= {(room_of(Path(path)), target_of(name)) for name in imported(ast.parse(text))}
    assert set(SAME_FLOOR) <= found


def test_no_file_pickles_or_postpones_annotations():
    directories = ("transformer_lab", "tests", "configs", "experiments", "benchmarks")
    files = {f"{d}/{path}": text for d in directories for path, text in sources(ROOT / d).items()}
    assert "tests/test_rooms.py" in files
    assert [fault for path, text in files.items() for fault in style_faults(path, text)] == []


@pytest.mark.parametrize(
    ("path", "source", "fault"),
    [
        ("ops/a.py", "import flax.linen as nn", "ops may not import flax"),
        ("ops/a.py", "from transformer_lab import text", "ops may not import text"),
        ("text/a.py", "import jax.numpy as jnp", "text may not import jax"),
        ("text/a.py", "def f():\n    from jax import lax", "text may not import jax"),
        ("layers/a.py", "from transformer_lab import models", "layers may not import models"),
        ("layers/a.py", "from transformer_lab.text import load", "layers may not import text"),
        ("models/a.py", "import transformer_lab.data.pairs", "models may not import data"),
        ("models/a.py", "from transformer_lab import training", "models may not import training"),
        ("data/a.py", "from transformer_lab import errors, models", "data may not import models"),
        ("decoding/a.py", "from transformer_lab import tasks", "decoding may not import tasks"),
        ("tasks/a.py", "from transformer_lab import pretrained", "tasks may not import pretrained"),
        ("training/a.py", "from transformer_lab import cli", "training may not import commands"),
        ("errors.py", "from transformer_lab.ops import losses", "errors may not import ops"),
        ("attic/a.py", "import os", "attic is no room: give it a floor"),
        (
            "training/a.py",
            "from transformer_lab.tasks import translation",
            "training may not name transformer_lab.tasks.translation",
        ),
    ],
)  # fmt: skip
def test_a_forbidden_import_is_found(path, source, fault):
    assert room_faults(path, source) == [f"{path}: {fault}"]


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("ops/a.py", "import jax\nfrom transformer_lab.errors import LabError"),
        ("layers/a.py", "from transformer_lab.layers.basic import Norm"),
        ("tasks/a.py", "from transformer_lab import data, decoding, models, text"),
        ("training/a.py", "from transformer_lab import models, tasks"),
        ("training/a.py", "from transformer_lab.tasks.base import Task"),
        ("sweep.py", "from transformer_lab import cli, pretrained, training"),
    ],
)
def test_an_allowed_import_is_passed(path, source):
    assert room_faults(path, source) == []


@pytest.mark.parametrize(
    "source",
    [
        "from __future__ import annotations",
        "import pickle",
        "from . import x",
        "from dill import x",
    ],
)
def test_a_forbidden_style_is_found(source):
    assert len(style_faults("a.py", source)) >= 1
