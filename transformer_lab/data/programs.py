"""Programs that are not Python's: the installed one, or one out of fetched packages."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from transformer_lab.data.fetch import fetch


@contextmanager
def program(name: str, *packages: str) -> Iterator[tuple[str, dict[str, str], list[Path]]]:
    """The installed program, or that of the packages, fetched when first used; the environment that
    it needs; and the packages' files, none for an installed one.

    A fetched package has neither links nor permissions to execute: both are made in a temporary
    folder."""
    if found := shutil.which(name):
        yield found, dict(os.environ), []
        return
    files = [path for package in packages for path in fetch(package).rglob("*") if path.is_file()]
    with tempfile.TemporaryDirectory() as work:
        for path in files:
            library, mark, _ = path.name.partition(".so.")
            if mark:  # libsonic.so.0.2.0 is looked for as libsonic.so.0
                major = path.name[len(library + mark) :].split(".")[0]
                (Path(work) / f"{library}.so.{major}").symlink_to(path)
        copy = Path(work) / name
        shutil.copyfile(next(p for p in files if p.name == name), copy)
        copy.chmod(0o755)
        yield str(copy), {**os.environ, "LD_LIBRARY_PATH": work}, files
