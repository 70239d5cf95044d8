"""Kinds are names of files: each file of a room that says what the room's kinds say is one.

A model family says `CONFIG = ...`, a task `SECTIONS = ...`, a Hugging Face family `def reading`. So
one more is one more file, and nothing registers it. It need not lie in the package: the environment
variable TRANSFORMER_LAB_PATH names directories that have rooms of their own, DIR/models/mine.py.
"""

import functools
import importlib
import os
import re
from pathlib import Path
from types import ModuleType

from transformer_lab.errors import known


def kinds(room: str, mark: str) -> list[str]:
    """The files of a package, in all folders that belong to it, with a line that begins with
    `mark`, a regular expression."""
    return _kinds(tuple(_folders(room)), mark)


def kind(room: str, mark: str, key: str, name: str) -> ModuleType:
    """The module of a kind. Raises: LabError that names the key, and the nearest kind, if it is
    none."""
    valid = kinds(room, mark)
    return importlib.import_module(f"{room}.{known(f'{key} = ', name, valid)}")


def _folders(room: str) -> list[str]:
    """The folders of a package, after TRANSFORMER_LAB_PATH's are among them."""
    folders = importlib.import_module(room).__path__
    for directory in filter(None, os.environ.get("TRANSFORMER_LAB_PATH", "").split(os.pathsep)):
        if (mine := str(Path(directory, room.rpartition(".")[2]).resolve())) not in folders:
            folders.append(mine)
    return folders


@functools.cache
def _kinds(folders: tuple[str, ...], mark: str) -> list[str]:
    files = (path for folder in folders for path in Path(folder).glob("[!_]*.py"))
    said = re.compile(rf"^{mark}\b", re.M)
    return sorted(path.stem for path in files if said.search(path.read_text(encoding="utf-8")))
