"""One process at a time trains in a directory: a file that says which one, and that it lives.

The file lies on a disk that several hosts may share, so a process of another host is known to live
only by its beats: it writes the file anew every few seconds. A process of this host is looked up.
"""

import contextlib
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from transformer_lab.errors import LabError
from transformer_lab.training.peers import exit_at_once
from transformer_lab.training.places import remote

LOCK = "lock.json"
BEAT = 5.0  # seconds from one beat to the next
SILENCE = 60.0  # seconds without a beat after which a process of another host counts as dead
SETTLES = 0.2  # seconds in which two that take over at once see which of them was last


@contextlib.contextmanager
def locked(workdir: Path, say=print) -> Iterator[None]:
    """Holds the directory's lock inside. Raises: LabError that names the process which has it.

    The lock of a dead process is taken over, with a line; one of another host only once it has
    been silent, which is waited for.
    """
    if jax.process_index():  # the first process of a run holds it for all
        yield
        return
    path, own = workdir / LOCK, _own()
    try:
        if remote(path):  # a bucket has no writing of what is not there yet
            _take_over(path, own, say)
        else:
            with open(path, "x", encoding="utf-8") as file:
                json.dump(own, file)
    except FileExistsError:
        _take_over(path, own, say)
    except OSError as error:
        raise LabError(f"--workdir={workdir}: {error.strerror or error}") from error
    ended = threading.Event()
    thread = threading.Thread(target=_beat, args=(path, own, ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        if _read(path)[0].get("token") == own["token"]:
            path.unlink(missing_ok=True)


def _own() -> dict[str, Any]:
    host, process = socket.gethostname(), os.getpid()
    known = {"host": host, "process": process, "started": time.strftime("%Y-%m-%d %H:%M:%S")}
    return known | {"system": _system(), "born": _born(process), "token": uuid.uuid4().hex}


def _system() -> str:
    """Where process numbers mean the same: a start of a machine, and a container on it."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    return socket.gethostname()


def _born(process: int) -> str:
    """When a process of this system began, "" of one that is dead; "?" where nobody tells."""
    try:
        words = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return "" if words[0] in "ZX" else words[19]
    except OSError:
        pass
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return ""
    except (OSError, OverflowError):
        pass
    return "?"


def _faults(path: Path) -> type[Exception]:
    """What reading and writing raise; each kind of bucket has errors of its own."""
    return Exception if remote(path) else OSError


def _read(path: Path) -> tuple[dict[str, Any], Any]:
    """What a lock says, {} of one that says nothing, and what changes with each beat of it."""
    try:
        with path.open("rb") as file:  # opening asks a network file system for what is new
            content = file.read(10_000)
            when = None if remote(path) else os.fstat(file.fileno()).st_mtime_ns
    except _faults(path):
        return {}, None
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        found = {}
    return found if isinstance(found, dict) else {}, (content, when)


def _take_over(path: Path, own: dict[str, Any], say) -> None:
    found, before = _read(path)
    if found.get("system") == own["system"] and isinstance(found.get("process"), int):
        if _born(found["process"]) in (found.get("born"), "?"):
            raise _refusal(path, found)
    elif before is not None:
        say(f"{path} is of {_name(found)}: waits {SILENCE:.0f} seconds for a sign of life")
        until = time.monotonic() + SILENCE
        while time.monotonic() < until:
            time.sleep(min(1.0, SILENCE / 10))
            now, seen = _read(path)
            if seen not in (before, None):
                raise _refusal(path, now)
    if before is not None:
        say(f"takes over the lock of {_name(found)}, which is dead")
    _write(path, own)
    time.sleep(SETTLES * 10 if remote(path) else SETTLES)
    now, _ = _read(path)
    if now.get("token") != own["token"]:
        raise _refusal(path, now)


def _name(found: dict[str, Any]) -> str:
    process, host, started = (found.get(k, "?") for k in ("process", "host", "started"))
    return f"process {process} on {host}, started {started}"


def _refusal(path: Path, found: dict[str, Any]) -> LabError:
    return LabError(
        f"{path.parent} is in use by {_name(found)}: stop that one, or use another --workdir"
    )


def _write(path: Path, own: dict[str, Any]) -> None:
    if remote(path):  # where a beat shows in what is written
        path.write_bytes(json.dumps(own | {"beat": time.time()}).encode())
        return
    part = path.with_name(f"{path.name}.{own['token']}")
    part.write_text(json.dumps(own), encoding="utf-8")
    os.replace(part, path)


def _beat(path: Path, own: dict[str, Any], ended: threading.Event) -> None:
    """Until the end; a process that finds itself declared dead, as after a sleep, stops at once."""
    while not ended.wait(BEAT):
        found, seen = _read(path)
        if seen is not None and found.get("token") != own["token"]:
            exit_at_once(75, f"{path} was taken over by process {found.get('process')}")
        with contextlib.suppress(_faults(path)):  # a full disk passes; the run itself will tell
            _write(path, own)
