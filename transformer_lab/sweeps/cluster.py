"""Runs a sweep as an array job, one job for each run, through the optional package submitit."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from transformer_lab.errors import LabError


def submit(
    launcher: str,
    workdir: Path,
    arguments: list[str],
    indices: list[int],
    parallel: int | None,
    parameters: dict[str, str],
) -> list[str]:
    """Submits `sweep ARGUMENTS --index=I` for each index; returns the jobs' ids.

    `launcher` "slurm" returns at once; "local" runs the jobs on this machine. At most `parallel`
    run at a time; None means all at once in an array job, and one by one on this machine.
    `parameters` are submitit's, such as slurm_partition, gpus_per_node and timeout_min. Raises:
    LabError without submitit, or for parameters that it refuses.
    """
    try:
        import submitit
    except ImportError as error:
        raise LabError(
            f"--launcher={launcher} needs a package: pip install submitit; any other scheduler "
            "can run each element with --index=I"
        ) from error
    try:
        folder, often = workdir / "jobs", 1000  # how often a job may continue after its time limit
        executor = submitit.AutoExecutor(folder, launcher, slurm_max_num_timeout=often)
        values = {key: int(v) if v.isdecimal() else v for key, v in parameters.items()}
        values = {"slurm_array_parallelism": parallel or max(len(indices), 1), **values}
        executor.update_parameters(name="sweep", **values)
    except (RuntimeError, ValueError, TypeError, NameError) as error:
        raise LabError(f"--launcher={launcher}: {str(error).splitlines()[0]}") from error
    command = [sys.executable, "-m", "transformer_lab", "sweep", *arguments]
    commands = [[*command, f"--index={i}"] for i in indices]
    jobs, size = [], (parallel or 1) if launcher == "local" else len(commands)
    for start in range(0, len(commands), size):
        some = executor.map_array(Element(), commands[start : start + size])
        jobs += some
        if launcher == "local":
            for job in some:
                job.wait()
    return [job.job_id for job in jobs]


class Element:
    """One job of the array: trains its run in a subprocess, and fails when that fails."""

    process: Any = None

    def __call__(self, command: list[str]) -> None:
        self.process = subprocess.Popen(command)
        while (code := self.process.poll()) is None:
            time.sleep(0.2)
        if code:
            raise LabError(f"exit code {code} of {' '.join(command)}")

    def checkpoint(self, command: list[str]) -> Any:
        """Called by submitit before the time limit: the run saves, and the job is queued again."""
        import submitit

        if self.process is not None and self.process.returncode is None:
            self.process.terminate()
            os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
        return submitit.helpers.DelayedSubmission(Element(), command)
