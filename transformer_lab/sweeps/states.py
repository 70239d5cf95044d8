"""The state of a run (waiting, running, stopped, failed or finished), from its directory alone."""

import fcntl
import json
import re
from pathlib import Path
from typing import IO, NamedTuple

from transformer_lab.errors import LabError, read_json
from transformer_lab.sweeps.experiment import Run
from transformer_lab.training.results import RESULTS

WAITING, RUNNING, STOPPED, FAILED, FINISHED = "waiting", "running", "stopped", "failed", "finished"
LOG, FAILURE, SETTINGS = "log.txt", "failed.json", "settings.json"
# May differ between a finished run and the experiment of today: nothing in the table depends on it.
FREE = re.compile(r"(log_every|save_every|keep|tensorboard)|mesh\..*")
PROGRESS = re.compile(r"^step (\d+)/(\d+)  loss (\S+) .* left (\S+)$", re.MULTILINE)


class Progress(NamedTuple):
    """The newest step, loss and time left in a run's log, as texts; "" before the first."""

    step: str = ""
    loss: str = ""
    left: str = ""


def state_of(directory: Path) -> str:
    """The state of the run in a directory: one of the names above."""
    if (directory / RESULTS).exists():
        return FINISHED
    if is_locked(directory):
        return RUNNING
    if (directory / FAILURE).exists():
        return FAILED
    return STOPPED if (directory / SETTINGS).exists() else WAITING


def failure(directory: Path) -> str:
    """The line that says why a run failed; "" if it did not."""
    path = directory / FAILURE
    return " ".join(str(read_json(path).get("error")).split()) if path.exists() else ""


def progress(directory: Path) -> Progress:
    """The newest progress in a run's log, of which only the last 8 KiB are read."""
    path = directory / LOG
    if not path.exists():
        return Progress()
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - 8192))
        found = PROGRESS.findall(file.read().decode(errors="replace"))
    return Progress(f"{found[-1][0]}/{found[-1][1]}", *found[-1][2:]) if found else Progress()


def lock(directory: Path) -> IO[bytes] | None:
    """Locks a run's directory; returns the lock's open file, or None if a process trains there.

    The lock holds as long as any process has the file open: the run inherits it, so that a run
    whose sweep was killed is still known to be running.
    """
    directory.mkdir(parents=True, exist_ok=True)
    file = open(directory / "lock", "ab")  # noqa: SIM115  open is held
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def is_locked(directory: Path) -> bool:
    """Whether a process trains the run in this directory."""
    if not (directory / "lock").exists():
        return False
    file = lock(directory)
    if file is not None:
        file.close()
    return file is None


def refuse_changes(run: Run, directory: Path) -> None:
    """LabError if a run with results or checkpoints had other settings; it names the key.

    A run that has neither may start again with other settings.
    """
    if not (directory / SETTINGS).exists():
        return
    old = read_json(directory / SETTINGS)
    new = json.loads(json.dumps(run.settings))
    if not ((directory / RESULTS).exists() or any(directory.glob("checkpoints/*/manifest.json"))):
        return
    for key in sorted(old.keys() & new.keys()):  # a key may have come into being since
        if old[key] != new[key] and not FREE.fullmatch(key):
            raise LabError(
                f"{directory} holds a run with {key} = {old[key]!r}, the experiment now has "
                f"{new[key]!r}: set it back, use another --workdir, or delete that directory"
            )
