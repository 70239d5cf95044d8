"""A sweep as an array job, one element a run, through the optional package submitit."""

import subprocess
import sys
from pathlib import Path

from transformer_lab.errors import LabError


def submit(
    launcher: str,
    workdir: Path,
    arguments: list[str],
    indices: list[int],
    parallel: int,
    parameters: dict[str, str],
) -> list[str]:
    """Submits `sweep ARGUMENTS --index=I` for each index; returns the jobs' ids.

    `launcher` "slurm" returns at once; "local" runs the jobs on this machine, `parallel` at a time.
    `parameters` are submitit's, such as slurm_partition, gpus_per_node and timeout_min.
    """
    try:
        import submitit
    except ImportError as error:
        raise LabError(
            f"--launcher={launcher} needs a package: pip install submitit; any other scheduler "
            "can run each element with --index=I"
        ) from error
    try:
        executor = submitit.AutoExecutor(folder=workdir / "jobs", cluster=launcher)
        values = {key: int(v) if v.isdecimal() else v for key, v in parameters.items()}
        executor.update_parameters(name="sweep", slurm_array_parallelism=parallel, **values)
    except (RuntimeError, ValueError, TypeError, NameError) as error:
        raise LabError(f"--launcher={launcher}: {str(error).splitlines()[0]}") from error
    command = [sys.executable, "-m", "transformer_lab.sweep", *arguments]
    commands = [[*command, f"--index={i}"] for i in indices]
    jobs, size = [], parallel if launcher == "local" else len(commands)
    for start in range(0, len(commands), size):
        some = executor.map_array(_element, commands[start : start + size])
        jobs += some
        if launcher == "local":
            for job in some:
                job.wait()
    return [job.job_id for job in jobs]


def _element(command: list[str]) -> int:
    return subprocess.run(command, check=False).returncode
