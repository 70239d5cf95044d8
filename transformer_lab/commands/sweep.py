"""Trains the runs of an experiment.

    transformer_lab sweep --experiment=experiments/dropout.py --workdir=runs/dropout

Then it writes their report. The same command continues where it was stopped: finished runs are
skipped, stopped ones resumed, failed ones tried again. `--launcher=slurm` makes an array job of it.
"""

import re
import shlex
from pathlib import Path

from absl import flags

from transformer_lab import cli
from transformer_lab.errors import LabError
from transformer_lab.sweeps import cluster, experiment, runner
from transformer_lab.sweeps.estimates import estimate
from transformer_lab.sweeps.states import FINISHED, WAITING, state_of
from transformer_lab.terminal import counted
from transformer_lab.training.peers import LOST
from transformer_lab.training.places import refuse_inside
from transformer_lab.training.runs import refuse_taken
from transformer_lab.training.writers import log, make_workdir


def define() -> None:
    flags.DEFINE_string("experiment", "", "The experiment's file.")
    flags.DEFINE_string("workdir", "", "Directory of the sweep; each run has one in it.")
    flags.DEFINE_enum("scale", "cpu", ["cpu", "paper"], "Small enough for a CPU, or as published.")
    flags.DEFINE_string("init_from", "", "What the runs start from: a run or hf:DIR.")
    flags.DEFINE_integer(
        "parallel",
        None,
        "Runs at a time, each on its own cores; if unset one a core at scale cpu where there is no "
        "accelerator, else one, and of an array job all.",
        lower_bound=1,
    )
    flags.DEFINE_string("only", "", "Regular expression on the names of the runs to train.")
    flags.DEFINE_string("priority", "", "Regular expression on the names of runs to train first.")
    flags.DEFINE_bool("resume_only", False, "Train no run that has not been started before.")
    flags.DEFINE_bool("dry_run", False, "List the runs and their commands, train none.")
    flags.DEFINE_enum("launcher", "", ["", "local", "slurm"], "Submit with submitit.")
    flags.DEFINE_multi_string("job", [], "KEY=VALUE for submitit, such as timeout_min=60.")
    flags.DEFINE_integer(
        "index", None, "Train the run of this number alone, from 0.", lower_bound=0
    )


def main(_: list[str]) -> int:
    args, workdir = flags.FLAGS, cli.get_workdir("a sweep")
    if not args.experiment:
        raise LabError("--experiment=FILE is missing, such as --experiment=experiments/dropout.py")
    found = experiment.load(args.experiment, args.scale)
    runs = experiment.runs_of(found, args.init_from)
    chosen = _chosen(runs, workdir)
    if args.dry_run:
        _show(chosen, workdir)
        return 0
    if args.scale == "paper" and not found.measure:
        for run in {run.row: run for run in chosen}.values():
            log(f"{run.row}: a seed takes {estimate(run)}")
    refuse_inside(workdir)
    refuse_taken(workdir, "--workdir")
    told = {name: args[name].value for name in ("experiment", "scale", "init_from")}
    runner.write_plan(make_workdir(workdir), found, runs, told)
    if args.launcher and args.index is None:
        return _submit(chosen, workdir)
    if found.measure:
        failed = runner.measure(chosen, workdir, found.measure)
    else:
        many = runner.default_parallel(chosen) if args.scale == "cpu" else 1
        failed = runner.sweep(chosen, workdir, args.parallel or many)
    if args.index is None:
        from transformer_lab.sweeps.report import print_report, write_report  # matplotlib is slow

        write_report(workdir, plot=found.plot)
        print_report(workdir)
    if failed:
        log(f"{len(failed)} of {counted(len(chosen), 'run')} failed: {', '.join(failed)}")
        return 1
    unfinished = [run.name for run in chosen if state_of(workdir / run.name) != FINISHED]
    return LOST if unfinished else 0  # stopped by somebody: a scheduler may start them again


def _chosen(runs: list[experiment.Run], workdir: Path) -> list[experiment.Run]:
    only, index = flags.FLAGS.only, flags.FLAGS.index
    if flags.FLAGS.resume_only:
        runs = [run for run in runs if state_of(workdir / run.name) != WAITING]
    if first := flags.FLAGS.priority:
        runs = sorted(runs, key=lambda run: not re.search(first, run.name))
    chosen = [run for run in runs if re.search(only, run.name)]
    if not chosen:
        names = ", ".join(run.name for run in runs)
        raise LabError(f'--only="{only}" is found in no name of {names or "the started runs"}')
    if index is not None and index >= len(chosen):
        raise LabError(f"--index={index}, but there are {len(chosen)} runs: 0 to {len(chosen) - 1}")
    return chosen if index is None else [chosen[index]]


def _show(runs: list[experiment.Run], workdir: Path) -> None:
    for i, run in enumerate(runs):
        print(f"{i}  {run.name}  {state_of(workdir / run.name)}")
        command = shlex.join(runner.command(run, workdir / run.name))
        print(f"   {command if run.arguments else run.settings}")
        if flags.FLAGS.scale == "paper" and run.arguments:
            print(f"   {estimate(run)}")


def _submit(runs: list[experiment.Run], workdir: Path) -> int:
    args = flags.FLAGS
    told = ("experiment", "workdir", "scale", "init_from", "only")
    arguments = [f"--{name}={args[name].value}" for name in told if args[name].value]
    indices = [i for i, run in enumerate(runs) if state_of(workdir / run.name) != FINISHED]
    parameters = {key: value for key, _, value in (text.partition("=") for text in args.job)}
    jobs = cluster.submit(args.launcher, workdir, arguments, indices, args.parallel, parameters)
    log(f"jobs: {', '.join(jobs) or 'none'}")
    log(f"then the tables: transformer_lab report --workdir={workdir}")
    return 0
