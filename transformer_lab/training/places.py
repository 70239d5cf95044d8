"""Where a run lies: a directory, or gs://BUCKET/NAME or s3://BUCKET/NAME by `etils.epath`.

Both are paths with the methods of pathlib. An object in a bucket appears only when it is fully
written, and is neither appended to nor renamed.
"""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path, PosixPath
from typing import Any

import fsspec
import jax
from etils import epath

from transformer_lab.errors import LabError

ADDRESS = re.compile(r"([a-z][a-z0-9+]+):/+(?=[^/])")  # pathlib writes gs:// as gs:/
EXTRAS = {"gs": "gcs", "s3": "s3"}  # scheme -> the extra of this package that serves it


class Object(epath.gpath.PosixGPath, PosixPath):
    """A path in a bucket, which is always absolute."""

    def absolute(self) -> "Object":
        """The path itself, since a bucket has no current directory."""
        return self


def place(path: str | Path) -> Path:
    """The path of a directory, or of an address in a bucket. Raises: LabError for an address of
    another kind, and where the bucket cannot be reached."""
    if remote(path):
        return path
    if not (match := ADDRESS.match(str(path))):
        return Path(path)
    address = f"{match[1]}://{str(path)[match.end() :]}"
    if match[1] not in EXTRAS:
        raise LabError(
            f"{address} is an address, and a run lies in a directory, in gs://BUCKET/NAME or in "
            "s3://BUCKET/NAME: mount it, and give the path of the mount"
        )
    if re.search(r"[][*?\\#]|::", address):
        raise LabError(f"{address}: no name in a bucket may hold any of [ ] * ? # \\ ::")
    # Other hosts write there too, so no listing is kept.
    fsspec.config.conf.setdefault(match[1], {"use_listings_cache": False})
    found = Object(address)
    try:
        found.exists()
    except ImportError as error:
        raise LabError(
            f"{address} needs `pip install 'transformer_lab[{EXTRAS[match[1]]}]'`"
        ) from error
    except Exception as error:  # each store has errors of its own: no credentials, no network
        reason = str(error).strip().split("\n")[0][:300] or type(error).__name__
        raise LabError(f"{address} cannot be reached: {reason}") from error
    return found


def remote(path: str | Path) -> bool:
    """Whether a path returned by `place` is in a bucket and not in a local directory."""
    return isinstance(path, Object)


def files_below(directory: Path) -> Iterator[Path]:
    """All files in a directory and its subdirectories, in the order of their names."""
    for path in sorted(directory.iterdir()) if directory.is_dir() else ():
        if path.is_dir():
            yield from files_below(path)
        else:
            yield path


def copy_files(source: Path, target: Path) -> None:
    """Copies all files of a directory into another; either of them may be in a bucket."""
    for path in files_below(source):
        copy = target / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        epath.Path(path).copy(copy, overwrite=True)


def rmtree(directory: Path) -> None:
    """Deletes a directory and all in it, if it exists."""
    if not remote(directory):
        shutil.rmtree(directory)
    elif directory.exists():
        directory.rmtree()


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a file so that a crash leaves either all of the new content or none of it."""
    if remote(path):  # an object in a bucket appears whole anyway
        path.write_bytes(content)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    with open(part, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def write_json(path: Path, values: Any) -> None:
    """Writes values as a JSON file, completely or not at all."""
    write_atomically(path, json.dumps(values, indent=1).encode())


def stand_in(root: Path, staged: bool) -> Path | None:
    """Another path for a directory whose name has characters that Orbax takes for a pattern, or a
    local directory for arrays on their way to and from a bucket (`staged`); None if not needed."""
    if not staged and (remote(root) or not re.search(r"[][*?\\]", str(root))):
        return None
    link = Path(tempfile.mkdtemp(prefix="transformer_lab_")) / "checkpoints"
    link.mkdir() if staged else link.symlink_to(root)
    return link


def refuse_impossible(workdir: Path, profile: int) -> None:
    """Raises: LabError for a run that cannot be kept in a bucket."""
    if remote(workdir) and profile:
        raise LabError(f"--profile: {workdir} cannot hold a trace, a local --workdir can")
    if str(workdir).startswith("s3://") and jax.process_count() > 1:
        raise LabError(
            f"{workdir}: several processes cannot save together to s3://, only to gs:// or to a "
            "directory that they share: mount the bucket, and give the path of the mount"
        )


def refuse_inside(workdir: Path) -> None:
    """Raises: LabError for a directory inside that of a run, which is for that run alone."""
    for parent in () if remote(workdir) else workdir.absolute().parents:
        if all((parent / name).exists() for name in ("config.json", "checkpoints")):
            raise LabError(f"--workdir={workdir} lies in the run {parent}: choose one outside it")
