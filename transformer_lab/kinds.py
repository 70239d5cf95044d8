"""Finds kinds (of models, tasks, commands, ...) by file names: each suitable file of a room is one.

A model family has a line `CONFIG = ...`, a task `SECTIONS = ...`, a Hugging Face family `def
reading`. So one more kind is one more file, and nothing registers it. It need not lie in the
package: the environment variable TRANSFORMER_LAB_PATH names directories with folders of the same
names, such as DIR/models/mine.py.
"""

import functools
import importlib
import os
import re
from pathlib import Path
from types import ModuleType

from transformer_lab.errors import LabError, check_file, known, nearest

# Where configs/ and experiments/ lie: in the package once installed, beside it in a checkout
HOME = Path(__file__).parent
SHIPPED = HOME if (HOME / "configs").is_dir() else HOME.parent


def kinds(room: str, mark: str) -> list[str]:
    """The names of a package's files with a line that begins with `mark`, a regular expression."""
    return _kinds(tuple(_folders(room)), mark)


def kind(room: str, mark: str, key: str, name: str) -> ModuleType:
    """The module of a kind. Raises: LabError with the config key and the nearest if unknown."""
    valid = kinds(room, mark)
    return importlib.import_module(f"{room}.{known(f'{key} = ', name, valid)}")


def shipped(folder: str, name: str) -> str:
    """The path of a file that `name` means: itself, or one in the folder of that name that comes
    with the package, such as "smoke" or "configs/smoke.py" in "configs"."""
    if Path(name).is_file():
        return name
    head, slash, rest = name.partition("/")
    if not slash or head not in ("configs", "experiments"):
        head, rest = folder, name
    file = f"{head}/{rest.removesuffix('.py')}.py"
    path = SHIPPED / file
    return str(path) if path.is_file() else name


def check_shipped(folder: str, name: str) -> Path:
    """The path of the file that `name` means, as in `shipped`. Raises: LabError if there is none,
    with the nearest of those that come with the package, or all of these."""
    path = Path(shipped(folder, name))
    if not (path.exists() or path.is_symlink()):  # what a broken link is, `check_file` says
        names = (file.stem for file in (SHIPPED / folder).glob("[!_]*.py"))
        raise LabError(f"{name}: no such file{nearest(path.stem, names)}")
    return check_file(path)


def _folders(room: str) -> list[str]:
    """The folders of a package, to which those in TRANSFORMER_LAB_PATH are added."""
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
