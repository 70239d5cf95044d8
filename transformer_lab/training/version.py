"""Which code a process runs, so that the processes of a run can tell that it is the same."""

import hashlib
import importlib.metadata
import subprocess
from pathlib import Path

import jax

PACKAGE = Path(__file__).parents[1]


def code_version() -> dict[str, str]:
    """Versions of the package and of JAX, the git commit if there is one ("" if not), and a digest
    of the package's Python files, which also tells edits that nobody committed."""
    try:
        version = importlib.metadata.version("transformer_lab")
    except importlib.metadata.PackageNotFoundError:  # run from a checkout
        version = ""
    try:
        command = ["git", "-C", str(PACKAGE), "rev-parse", "HEAD"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        commit = done.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        commit = ""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(str(path.relative_to(PACKAGE)).encode() + path.read_bytes())
    return {
        "the package's version": version,
        "the git commit": commit,
        "the source's digest": digest.hexdigest()[:16],
        "JAX's version": jax.__version__,
    }
