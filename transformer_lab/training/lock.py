"""A lock file that lets only one process at a time train in a directory.

The file lies on a disk that several hosts may share, so a process of another host is known to be
alive only by its heartbeats: it rewrites the file every few seconds. A process of this host is
looked up.
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
SETTLES = 0.2  # seconds after which two that take over at once can see who was last


@contextlib.contextmanager
def locked(workdir: Path, say=print) -> Iterator[None]:
    """Holds the directory's lock. Raises: LabError that names the process which has it.

    The lock of a dead process is taken over, with a line in the log; that of a process on another
    host only after it has been silent for a while, which is waited for.
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
    """An identifier of the machine's boot and container, in which process numbers are unique."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    return socket.gethostname()


def _born(process: int) -> str:
    """When a process of this system began; "" if it is dead, "?" if that cannot be found out."""
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
    """The errors that reading and writing may raise; each kind of bucket has its own."""
    return Exception if remote(path) else OSError


def _read(path: Path) -> tuple[dict[str, Any], Any]:
    """A lock's content ({} if it has none), and a value that changes with each heartbeat of it."""
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
    if remote(path):  # a heartbeat must change the content there
        path.write_bytes(json.dumps(own | {"beat": time.time()}).encode())
        return
    part = path.with_name(f"{path.name}.{own['token']}")
    part.write_text(json.dumps(own), encoding="utf-8")
    os.replace(part, path)


def _beat(path: Path, own: dict[str, Any], ended: threading.Event) -> None:
    """Writes heartbeats until the end. A process that finds its lock taken over, as after the
    machine slept, stops at once."""
    while not ended.wait(BEAT):
        found, seen = _read(path)
        if seen is not None and found.get("token") != own["token"]:
            exit_at_once(75, f"{path} was taken over by process {found.get('process')}")
        with contextlib.suppress(_faults(path)):  # a full disk passes; the run itself will tell
            _write(path, own)
