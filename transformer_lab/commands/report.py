"""Makes tables and curves of a sweep.

    transformer_lab report --workdir=runs/dropout

Writes report.md, .csv, .tex and .html, curves.png and .svg. With `--compare=DIR` also the
difference to the sweep in another directory, with its standard error. With `--experiment=FILE`
that file is run for the experiment's own plot; no other is, whatever the directory names.
"""

from pathlib import Path

from absl import flags

from transformer_lab import cli
from transformer_lab.sweeps import experiment
from transformer_lab.sweeps.results import read_plan
from transformer_lab.sweeps.runner import SWEEP


def define() -> None:
    flags.DEFINE_string("workdir", "", "Directory of the sweep.")
    flags.DEFINE_string("compare", "", "Directory of another sweep with rows of the same names.")
    flags.DEFINE_string("experiment", "", "The experiment's file, which is run for its own plot.")


def main(_: list[str]) -> None:
    from transformer_lab.sweeps.report import write_report  # matplotlib takes a second to load

    args, plot, workdir = flags.FLAGS, None, cli.get_workdir("a sweep")
    if args.experiment:
        plot = experiment.load(args.experiment, read_plan(workdir / SWEEP)["scale"]).plot
    print(write_report(workdir, Path(args.compare) if args.compare else None, plot))
