"""Trains the runs of a sweep, some at a time, each in a process and a directory of its own.

All that is known of a run is what its directory holds. So a sweep that was killed is continued by
the same command: finished runs are skipped, stopped ones resumed, failed ones tried once more.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from transformer_lab import tasks
from transformer_lab.errors import LabError, read_json
from transformer_lab.sweeps.display import Board
from transformer_lab.sweeps.experiment import Experiment, Run
from transformer_lab.sweeps.states import (
    FAILED,
    FAILURE,
    FINISHED,
    LOG,
    RUNNING,
    SETTINGS,
    lock,
    refuse_changes,
    state_of,
)
from transformer_lab.training.peers import LOST
from transformer_lab.training.places import write_json
from transformer_lab.training.results import RESULTS
from transformer_lab.training.signals import NUMBERS, SIGNALS, Stopped
from transformer_lab.training.writers import log, plain

SWEEP = "sweep.json"
TO_RESUME = {LOST, *(-number for number in NUMBERS), *(128 + number for number in NUMBERS)}


def command(run: Run, directory: Path) -> list[str]:
    """The command line that trains a run in a directory."""
    module = [sys.executable, "-m", "transformer_lab", "train"]
    return [*module, *run.arguments, f"--workdir={directory}"]


def write_plan(workdir: Path, experiment: Experiment, runs: list[Run], told: dict) -> None:
    """Writes sweep.json: all that a report needs beside the runs' directories.

    `told` holds what the command line said: experiment, scale, init_from. Raises: LabError if the
    directory holds the sweep of another file, or a run with other settings.
    """
    path = workdir / SWEEP
    old = read_json(path) if path.exists() else {}
    theirs = str(old.get("experiment"))
    if old and Path(theirs).name != Path(told["experiment"]).name:
        raise LabError(
            f"{workdir} holds the sweep of {theirs}: use another --workdir, or delete {path} (its "
            "runs stay) to put this one there"
        )
    for run in runs:
        refuse_changes(run, workdir / run.name)
    names = ("metric", "higher_is_better", "columns", "compares", "also", "tuned", "doc")
    plan = told | {name: getattr(experiment, name) for name in names}
    plan["paper"] = experiment.paper.plan(experiment.paper_rows) if experiment.paper else {}
    if not experiment.columns:  # the scores that people look for in such runs
        kinds = dict.fromkeys(run.resolved.task_kind for run in runs if run.resolved)
        shown = (name for kind in kinds for name in getattr(tasks.objective(kind), "SHOWN", ()))
        plan["columns"] = [name for name in dict.fromkeys(shown) if name != experiment.metric]
    plan["base"] = experiment.bases()
    plan["runs"] = [{"name": run.name, "row": run.row} for run in runs]
    if old == json.loads(json.dumps(plan)):
        return
    part = workdir / f"{SWEEP}.{os.getpid()}"  # elements of an array job may all be here
    write_json(part, plan)
    os.replace(part, path)


def sweep(runs: list[Run], workdir: Path, parallel: int) -> list[str]:
    """Trains all runs that are not finished, and returns the names of those that failed.

    Runs that train at the same time get separate shares of the cores: threads that take turns on
    all cores would make every run wait for the others.
    """
    waiting, active, failed = list(runs), [], []
    shares = _shares(parallel)
    board = Board(runs, workdir)
    with SIGNALS.held() as told:
        try:
            while (waiting or active) and not told.received:
                _start_some(waiting, active, workdir, shares)
                for process in [p for p in active if p.ended()]:
                    active.remove(process)
                    failed += [process.name] if process.record() == FAILED else []
                board.update()
                time.sleep(0.2)
        finally:
            for process in active:  # they save where they are
                process.stop()
            board.close()
        if told.received:
            raise Stopped(128 + told.received)
    return failed


def default_parallel(runs: list[Run]) -> int:
    """How many small runs train at a time unless the command says: one on each core, at most eight,
    since a small step gains little from a second core; one where there is an accelerator."""
    accelerators = [*Path("/dev").glob("nvidia[0-9]*"), *Path("/dev").glob("accel*")]
    return 1 if accelerators else max(1, min(len(runs), len(_cores()), 8))


def _cores() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def measure(runs: list[Run], workdir: Path, function: Callable[[dict], dict]) -> list[str]:
    """Computes each run's scores with `function` in this process, and stores them as results.

    The states, results and return value are the same as in `sweep`.
    """
    failed = []
    for run in runs:
        directory = workdir / run.name
        if state_of(directory) == FINISHED or not (held := lock(directory)):
            continue
        (directory / FAILURE).unlink(missing_ok=True)
        write_json(directory / SETTINGS, run.settings)
        try:
            found = {f"test/{key}": plain(value) for key, value in function(run.settings).items()}
            write_json(directory / RESULTS, found)
        except Exception as error:
            write_json(directory / FAILURE, {"error": str(error)[:500], "code": 1})
            failed.append(run.name)
        held.close()
        log(f"{run.name} {state_of(directory)}")
    return failed


def _shares(parallel: int) -> list[set[int]]:
    """A set of cores for each parallel run; empty sets if there are too few cores."""
    cores = _cores()
    if len(cores) < parallel:
        return [set() for _ in range(parallel)]
    return [set(cores[i::parallel]) for i in range(parallel)]


def _start_some(waiting: list[Run], active: list, workdir: Path, shares: list[set[int]]) -> None:
    elsewhere = 0  # runs still going on from a sweep that was killed, or from one beside it
    for run in list(waiting):
        directory = workdir / run.name
        state = state_of(directory)
        if state == RUNNING:
            elsewhere += 1
        elif state == FINISHED:
            waiting.remove(run)
        elif len(active) + elsewhere < len(shares) and (held := lock(directory)):
            waiting.remove(run)
            free = [share for share in shares if share not in [p.share for p in active]]
            active.append(_Process(run, directory, held, (free or shares)[0]))


class _Process:
    """A run that is being trained in a subprocess."""

    def __init__(self, run: Run, directory: Path, held, share: set[int]):
        self.name, self.directory, self._held, self.share = run.name, directory, held, share
        (directory / FAILURE).unlink(missing_ok=True)
        write_json(directory / SETTINGS, run.settings)
        arguments = command(run, directory)
        with open(directory / LOG, "ab") as log:
            log.write(f"$ {shlex.join(arguments)}\n".encode())
            log.flush()
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[held.fileno()],
                start_new_session=True,  # Ctrl-C reaches it through `stop` alone, once
            )
        if share:
            os.sched_setaffinity(self._process.pid, share)

    def ended(self) -> bool:
        return self._process.poll() is not None

    def record(self) -> str:
        """Stores the error if the run failed, gives up its lock, and returns the run's state."""
        code = self._process.returncode
        if code not in {0, *TO_RESUME}:
            write_json(self.directory / FAILURE, {"error": self._error(code), "code": code})
        self._held.close()
        return state_of(self.directory)

    def stop(self) -> None:
        if not self.ended():
            self._process.terminate()
        self._process.wait()
        self.record()

    def _error(self, code: int) -> str:
        if code < 0:
            return f"killed by {signal.Signals(-code).name}"
        with open(self.directory / LOG, "rb") as log:
            log.seek(self._log_start)
            lines = log.read().decode(errors="replace").split("\n")
        lines = [line.strip() for line in lines if line.strip()] or [f"exit code {code}"]
        ours = [line for line in lines if line.startswith("error: ")]
        return (ours or lines)[-1].removeprefix("error: ")[:500]
