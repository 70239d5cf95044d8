"""Unpack wheels, npm tarballs and Debian packages without trusting the names inside them."""

import re
import shutil
import subprocess
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO

from transformer_lab.errors import LabError


def unpack(archive: Path, folder: Path, keep: str = "") -> dict[str, int]:
    """Writes the archive's files whose path matches `keep` (a regular expression) to `folder`.

    Returns each written file's relative path and its size in bytes. Links and devices are left out.
    Raises: LabError for a path that leads outside the folder, or a damaged archive."""
    sizes = {}
    try:
        for name, stream in _members(archive):
            path = _safe(name, archive)
            if keep and not re.search(keep, path):
                continue
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as out:
                shutil.copyfileobj(stream, out)
            sizes[path] = target.stat().st_size
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError) as error:
        raise LabError(f"{archive.name}: damaged archive ({error}); fetch it again") from error
    return sizes


def _safe(name: str, archive: Path) -> str:
    """The member's path without a leading './'; LabError for absolute paths and '..'."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or PureWindowsPath(name).drive or "\\" in name:
        raise LabError(f"{archive.name}: refused, its member {name!r} leads outside its folder")
    return str(path)


def _members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """The name and the content, as a stream, of each regular file in the archive."""
    if archive.suffix in (".whl", ".zip"):
        yield from _zip_members(archive)
    elif archive.suffix == ".deb":
        yield from _deb_members(archive)
    else:
        with tarfile.open(archive) as tar:
            yield from _tar_members(tar)


def _zip_members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    with zipfile.ZipFile(archive) as container:
        for info in container.infolist():
            if not info.is_dir():
                with container.open(info) as stream:
                    yield info.filename, stream


def _deb_members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """The files of a Debian package; dpkg only decompresses, as by itself it would follow links."""
    command = ["dpkg-deb", "--fsys-tarfile", str(archive)]
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    except FileNotFoundError as error:
        raise LabError(f"unpacking {archive.name} needs dpkg: install dpkg") from error
    with process:
        with tarfile.open(fileobj=process.stdout, mode="r|") as tar:
            yield from _tar_members(tar)
        process.stdout.read()  # the padding after the last member, so that dpkg-deb ends well
    if process.returncode:
        raise LabError(f"{archive.name}: damaged archive (dpkg-deb); fetch it again")


def _tar_members(tar: tarfile.TarFile) -> Iterator[tuple[str, IO[bytes]]]:
    for info in tar:
        if info.isreg():
            yield info.name, tar.extractfile(info)
