"""The processes of one run: how they find each other, agree on values, and end together.

A process that fails tells the others, and they notice one that is lost: each says a line and ends.
Exit code 75 (EX_TEMPFAIL of sysexits.h) means that nothing is wrong with the run itself and a
scheduler may start it again; other codes are those of the process that failed.
"""

import contextlib
import ctypes
import hashlib
import importlib.metadata
import itertools
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import jax
import numpy as np
from jax._src import distributed  # holds the key-value store that all processes reach
from jax.experimental import multihost_utils

from transformer_lab.errors import LabError
from transformer_lab.terminal import Waiting

PACKAGE = Path(__file__).parents[1]
LOST, ARRIVAL = 75, 300  # exit code; seconds that processes wait for each other at the start
ENDED, SEEN_WITHIN = "lab/ended", 10.0  # seconds until all must see a file on a shared disk
_numbers = itertools.count()  # all processes ask in the same order, so a number names a question


def tasks_of_node(environment: Mapping[str, str]) -> tuple[int, int]:
    """This process's number on its node, and the number of processes there. Taken from SLURM's or
    Open MPI's variables; (0, 1) without them."""
    if "OMPI_COMM_WORLD_LOCAL_SIZE" in environment:
        names = ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")
        return int(environment[names[0]]), int(environment[names[1]])
    counts = environment.get("SLURM_STEP_TASKS_PER_NODE") or environment.get(
        "SLURM_NTASKS_PER_NODE"
    )
    if not counts or "SLURM_LOCALID" not in environment:
        return 0, 1
    nodes = []  # "2(x3),1" is 2 on each of three nodes and 1 on a fourth
    for count, repeated in re.findall(r"(\d+)(?:\(x(\d+)\))?", counts):
        nodes += [int(count)] * int(repeated or 1)
    node = int(environment.get("SLURM_NODEID", 0))
    return int(environment["SLURM_LOCALID"]), nodes[min(node, len(nodes) - 1)]


def devices_of_node(environment: Mapping[str, str]) -> tuple[int, int]:
    """The GPUs that this process sees, and those the scheduler gave its node; 0 if unknown."""
    names = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
    visible = next(filter(None, map(environment.get, names)), None)
    on_node = int(environment.get("SLURM_GPUS_ON_NODE") or 0)
    return len(visible.split(",")) if visible else on_node, on_node


def local_share(environment: Mapping[str, str]) -> list[int]:
    """Which of the devices that it sees this process uses; [] means all of them.

    One process a node uses all. Several share evenly, unless the scheduler has given each its own
    (it sees fewer than the node has). With {"SLURM_LOCALID": "1", "SLURM_STEP_TASKS_PER_NODE":
    "2(x4)", "SLURM_GPUS_ON_NODE": "8"}: [4, 5, 6, 7]. Raises: LabError if they do not divide.
    """
    task, tasks = tasks_of_node(environment)
    seen, on_node = devices_of_node(environment)
    if tasks == 1 or seen < max(tasks, on_node):
        return []
    if seen % tasks:
        raise LabError(
            f"{tasks} processes a node do not share its {seen} devices evenly: set "
            "--ntasks-per-node to a divisor, best to 1"
        )
    size = seen // tasks
    return list(range(task * size, (task + 1) * size))


def join(text: str, timeout: int) -> None:
    """Connects this process to the others of the run; to be called before JAX uses a device.

    `text` is --peers, `timeout` the seconds within which a lost process is noticed. Raises:
    LabError for a bad text, or if the others do not come.
    """
    known: dict[str, Any] = {}
    if text != "auto":
        match = re.fullmatch(r"(\S+:\d+),(\d+),(\d+)", text)
        if not match or int(match[3]) >= int(match[2]):
            raise LabError(f'--peers={text} is neither "auto" nor HOST:PORT,COUNT,INDEX')
        known = {"coordinator_address": match[1]}
        known |= {"num_processes": int(match[2]), "process_id": int(match[3])}
    if "JAX_LOCAL_DEVICE_IDS" not in os.environ:
        known["local_device_ids"] = local_share(os.environ)
    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM for itself
    jax.config.update("jax_enable_recoverability", True)  # a lost peer is ours to handle
    ctypes.CDLL(None).signal(6, _on_abort)  # JAX aborts a process that lost the store
    beats = {"heartbeat_timeout_seconds": max(timeout * 2 // 3, 2)}
    try:
        jax.distributed.initialize(**known, **beats, initialization_timeout=ARRIVAL)
    except (ValueError, RuntimeError) as error:
        raise LabError(f"--peers={text}: {str(error).splitlines()[0]}") from error
    _watch(timeout)
    local, (_, tasks) = jax.local_device_count(), tasks_of_node(os.environ)
    on_node = devices_of_node(os.environ)[1] if jax.default_backend() == "gpu" else 0
    Waiting.off = jax.process_index() > 0
    print(
        f"process {jax.process_index()} of {jax.process_count()} on {socket.gethostname()}: "
        f"{local} of {on_node or local * tasks} local devices",
        file=sys.stderr,
        flush=True,
    )


def _watch(timeout: int) -> None:
    """Starts threads that notice another process's failure or loss, whatever this one is doing."""
    global _patience
    _patience = timeout
    client, me = distributed.global_state.client, jax.process_index()
    everyone = set(range(jax.process_count()))

    def listen():
        while not _ending.is_set():
            try:
                index, code, reason = client.blocking_key_value_get(ENDED, 86_400_000).split(" ", 2)
            except jax.errors.JaxRuntimeError:
                _ending.wait(1.0)  # nobody has failed in a day
                continue
            if int(index) != me and reason:
                exit_at_once(int(code), f"process {index} ended: {reason}")
            return

    def count():
        while not _ending.wait(min(5.0, timeout / 10)):
            try:
                lost = everyone - set(client.get_live_nodes(sorted(everyone)))
            except jax.errors.JaxRuntimeError:
                return  # this process is ending
            if lost and not _ending.is_set():
                names = ", ".join(map(str, sorted(lost)))
                line = f"lost process {names} of {len(everyone)}; the same command resumes"
                exit_at_once(LOST, line)

    for body in (listen, count):
        _threads.append(threading.Thread(target=body, daemon=True))
        _threads[-1].start()


_ending, _quitting, _threads, _patience = threading.Event(), threading.Lock(), [], 0


@ctypes.CFUNCTYPE(None, ctypes.c_int)
def _on_abort(number):
    if not _threads:
        exit_at_once(LOST, f"--peers: not all processes were there within {ARRIVAL} seconds")
    host, _, port = distributed.global_state.coordinator_address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=2).close()
    except OSError:  # process 0 keeps the store, without which the others are aborted
        count = jax.process_count()
        exit_at_once(LOST, f"lost process 0 of {count}; the same command resumes")


def exit_at_once(code: int, line: str) -> NoReturn:
    """Ends this process at once: its main thread may be waiting for ever for another process."""
    _quit(code, f"error: {line}\n")


def _quit(code: int, text: str) -> NoReturn:
    if not _quitting.acquire(blocking=False):  # another thread has said why
        time.sleep(60)
    os.write(2, text.encode())
    if distributed.global_state.service is not None:
        time.sleep(3)  # the others read in its store why they end
    os._exit(code)


def joined() -> bool:
    """Whether this process is one of several that form a run."""
    return distributed.global_state.client is not None


def leave(code: int, reason: str, error: Exception | None = None, text: str = "") -> None:
    """Ends this process of several, with `text`, and thereby the others; if alone, does nothing.

    An error of the runtime may mean that a collective has lost its partner: it waits until that is
    noticed, for then the line and the code are those of a lost process.
    """
    client = distributed.global_state.client
    if client is None:
        return
    if any(isinstance(e, jax.errors.JaxRuntimeError) for e in (error, error and error.__cause__)):
        time.sleep(0 if "RESOURCE_EXHAUSTED" in reason else _patience)
    _ending.set()
    with contextlib.suppress(jax.errors.JaxRuntimeError):  # another one was first
        client.key_value_set(ENDED, f"{jax.process_index()} {code} {' '.join(reason.split())}")
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    _quit(code, text)


def finish() -> None:
    """Ends a run of several processes in order: process 0, which keeps the store, is the last."""
    client = distributed.global_state.client
    if client is None:
        return
    client.wait_at_barrier("lab/end", 600_000)
    _ending.set()
    if jax.process_index() == 0:
        client.key_value_set(ENDED, "0 0 ")  # nobody failed
    for thread in _threads:
        thread.join()
    if jax.process_index() == 0:
        while len(client.get_live_nodes(list(range(jax.process_count())))) > 1:
            time.sleep(0.1)
    jax.distributed.shutdown()


def everyones(value: int) -> list[int]:
    """The value of each process, known to all of them; all must call it."""
    if jax.process_count() == 1:
        return [value]
    return multihost_utils.process_allgather(np.int32(value)).tolist()


def of_first(make: Callable[[], str]) -> str:
    """The text that process 0 makes, known to all processes; all must call it."""
    if jax.process_count() == 1:
        return make()
    key, client = f"lab/said/{next(_numbers)}", distributed.global_state.client
    if jax.process_index() == 0:
        text = make()
        client.key_value_set(key, text)
        return text
    return client.blocking_key_value_get(key, 3_600_000)


def to_first(name: str, text: str) -> list[str]:
    """The text of each process, in process 0; [] elsewhere. In any thread; a name serves once."""
    if jax.process_count() == 1:
        return [text]
    client, keys = distributed.global_state.client, range(jax.process_count())
    client.key_value_set(f"lab/{name}/{jax.process_index()}", text)
    if jax.process_index():
        return []
    return [client.blocking_key_value_get(f"lab/{name}/{i}", 86_400_000) for i in keys]


def refuse_differences(values: Callable[[], Mapping[str, Any]]) -> None:
    """Raises: LabError in all processes if a value is not the same in all; it names the key. A
    process alone does not even compute its values."""
    if jax.process_count() == 1:
        return
    text = json.dumps(values(), sort_keys=True, default=str)
    digest = np.frombuffer(hashlib.sha256(text.encode()).digest(), np.uint8)
    rows = multihost_utils.process_allgather(digest)
    other = next((i for i, row in enumerate(rows) if (row != rows[0]).any()), None)
    if other is None:
        return
    client, number = distributed.global_state.client, next(_numbers)
    keys = [f"lab/differs/{number}/{index}" for index in range(len(rows))]
    client.key_value_set(keys[jax.process_index()], text)
    first, second = (json.loads(client.blocking_key_value_get(keys[i], 60_000)) for i in (0, other))
    key = next(k for k in sorted(first | second) if first.get(k) != second.get(k))
    raise LabError(
        f"the processes of this run differ: {key} is {first.get(key)!r} in process 0 and "
        f"{second.get(key)!r} in process {other}; start all with the same command, code and data"
    )


def code_version() -> dict[str, str]:
    """Which code this process runs: versions of the package and of JAX, the git commit ("" if there
    is none), and a digest of the package's Python files, which also shows uncommitted edits."""
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


def refuse_unshared(workdir: Path) -> None:
    """Raises: LabError in all processes unless each sees a file that process 0 writes there."""
    if jax.process_count() == 1:
        return

    def write():
        name = f".probe-{uuid.uuid4().hex}"
        (workdir / name).touch()
        return name

    probe, until = workdir / of_first(write), time.monotonic() + SEEN_WITHIN
    while not (seen := probe.exists()) and time.monotonic() < until:
        list(workdir.iterdir())  # makes a network file system look again
        time.sleep(0.1)
    blind = [str(i) for i, found in enumerate(everyones(int(seen))) if not found]
    if jax.process_index() == 0:
        probe.unlink(missing_ok=True)
    if blind:
        raise LabError(
            f"--workdir={workdir} is not one directory for all: process {', '.join(blind)} does "
            "not see what process 0 writes there; use a directory that all hosts share"
        )
