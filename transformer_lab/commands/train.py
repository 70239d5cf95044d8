"""Trains the run of a config, or resumes it.

    transformer_lab train --config=configs/smoke.py --workdir=runs/smoke

The same command resumes a stopped run. `--config.KEY=VALUE` changes any key of the config.
"""

from pathlib import Path

from absl import flags

from transformer_lab import cli, tasks
from transformer_lab.errors import LabError
from transformer_lab.kinds import kinds
from transformer_lab.sweeps.runner import SWEEP
from transformer_lab.tasks.abilities import Continues, Detects, Predicts, Transcribes, Translates
from transformer_lab.tasks.base import Task
from transformer_lab.training import runs
from transformer_lab.training.places import refuse_inside
from transformer_lab.training.writers import log

USES = (  # what a task can do, the command that does it, and how it goes on
    (Translates, "translate", '"A sentence."'),
    (Continues, "generate", '--prompt="The"'),
    (Predicts, "predict", "TEXT_OR_FILE"),
    (Detects, "detect", "IMAGE"),
    (Transcribes, "transcribe", "FILE"),
)
CONFIG_FIRST = True  # a word in front is --config


def define() -> None:
    cli.config_file()
    flags.DEFINE_string("workdir", "", "Directory of the run: checkpoints, metrics, config.")
    flags.DEFINE_string(
        "init_from", "", "A run whose weights start this new one, or hf:DIR; an adapted run's base."
    )
    flags.DEFINE_string("init_pattern", ".*", "Regular expression on the paths of those weights.")
    flags.DEFINE_string("init_into", "", "The part of the model they are for, such as image.")
    flags.DEFINE_integer("profile", 0, "Steps to trace into WORKDIR/profile.", lower_bound=0)


def main(_: list[str]) -> None:
    config, workdir = cli.get_config(), cli.get_workdir()
    args = flags.FLAGS
    refuse_inside(workdir)
    if (workdir / SWEEP).exists():
        raise LabError(f"--workdir={workdir} holds a sweep: choose another directory for a run")
    init = args.init_from, args.init_pattern, args.init_into
    task = runs.run(config, workdir, *init, args.profile)
    for line in next_steps(task, config.task.kind, workdir):
        log(line)


def next_steps(task: Task, kind: str, workdir: Path) -> list[str]:
    """Commands that suit a finished run, one a line."""
    able = [use for use in USES if isinstance(task, use[0])]
    uses = [f"{name} --workdir={workdir} {more}" for _, name, more in able]
    if kind in kinds(tasks.__name__, "BASELINE"):
        uses.append(f"baseline --workdir={workdir}  # what it must beat")
    return [f"next: transformer_lab {use}" for use in uses]
