"""The manifest of a checkpoint: sizes and SHA-256 of its files, which show that it is complete."""

import concurrent.futures
import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

import jax

from transformer_lab.training.places import files_below

MANIFEST = "manifest.json"
OWNER = re.compile(r"\bocdbt\.process_(\d+)/")  # Orbax's directory of one process's arrays


def _digest(path: Path) -> dict[str, Any]:
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(2**20):
            digest.update(block)
            size += len(block)
    return {"size": size, "sha256": digest.hexdigest()}


def digests(directory: Path, names: list[str]) -> dict[str, dict[str, Any]]:
    """Sizes and SHA-256 of files, several at once, as hashing releases the interpreter's lock."""
    with concurrent.futures.ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        return dict(
            zip(names, pool.map(lambda name: _digest(directory / name), names), strict=True)
        )


def own_files(directory: Path, files: dict[str, bytes]) -> list[str]:
    """The files that this process wrote: its arrays; for process 0 also all others."""
    paths = files_below(directory / "state")
    names = [str(p.relative_to(directory)) for p in paths] + list(files)
    owner = {name: int(m[1]) if (m := OWNER.search(name)) else 0 for name in names}
    return [name for name in names if owner[name] == jax.process_index()]


def merge(parts: list[str]) -> bytes:
    """The manifest, as JSON bytes, from the digests that all processes computed."""
    entries = {name: entry for part in parts for name, entry in json.loads(part).items()}
    return json.dumps({"files": dict(sorted(entries.items()))}, indent=1).encode()


def fault_of(directory: Path, part: int = 0, parts: int = 1) -> str | None:
    """Why a directory is no good checkpoint, or None if it is. Only every `parts`-th file, from
    number `part` on, is read, so that processes can share the work."""
    path = directory / MANIFEST
    if not path.exists():
        return f"no {MANIFEST} (its save did not finish)"
    try:
        entries = json.loads(path.read_bytes())["files"]
        names = list(entries)[part::parts]
        for name in names:
            if not (directory / name).is_file():
                return f"{name} is missing"
        for name, digest in digests(directory, names).items():
            if digest != entries[name]:
                return f"{name} differs from its manifest"
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return f"{MANIFEST} cannot be read ({error})"
    return None if "run.json" in entries else "run.json is missing"
