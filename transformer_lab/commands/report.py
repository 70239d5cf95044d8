"""Makes tables and curves of a sweep, or of a single run.

    transformer_lab report --workdir=runs/dropout

Writes report.md, .csv, .tex and .html, curves.png and .svg; of a single run report.html. With
`--compare=DIR` also the difference to the sweep in another directory, with its standard error. With
`--experiment=FILE` that file is run for the experiment's own plot; no other is, whatever the
directory names. `--summary=FILE` keeps the scores and settings of all runs in one JSON file, from
which the tables can be made again. `--figure=FILE.svg` makes only the experiment's own plot, also
of such a file: --workdir=experiments/results/NAME.json --experiment=NAME.
"""

from pathlib import Path

from absl import flags

from transformer_lab import cli
from transformer_lab.errors import LabError
from transformer_lab.sweeps import experiment
from transformer_lab.sweeps.results import read_plan, read_table, summary
from transformer_lab.sweeps.runner import SWEEP
from transformer_lab.training import report
from transformer_lab.training.places import write_json
from transformer_lab.training.report import CONFIG
from transformer_lab.training.writers import log


def define() -> None:
    flags.DEFINE_string("workdir", "", "Directory of the sweep, or of a run.")
    flags.DEFINE_string("compare", "", "Directory of another sweep with rows of the same names.")
    flags.DEFINE_string("experiment", "", "The experiment's file, which is run for its own plot.")
    flags.DEFINE_string("figure", "", "A file for the experiment's own plot alone.")
    flags.DEFINE_string("summary", "", "A file for the scores and settings of the finished runs.")


def main(_: list[str]) -> None:
    from transformer_lab.sweeps.report import (
        print_report,
        write_report,
    )  # matplotlib takes a second

    args, plot, workdir = flags.FLAGS, None, cli.get_workdir("a sweep")
    if (workdir / CONFIG).exists():
        log(f"{report.write_report(workdir)} shows the run")
        return
    if args.figure:
        draw(workdir, args.experiment, Path(args.figure))
        return
    if args.experiment:
        plot = experiment.load(args.experiment, read_plan(workdir / SWEEP)["scale"]).plot
    if args.summary:
        write_json(Path(args.summary), summary(read_table(workdir)))
    other = Path(args.compare) if args.compare else None
    write_report(workdir, other, plot)
    print_report(workdir, other)


def draw(workdir: Path, file: str, target: Path) -> None:
    """Writes the plot that an experiment's file makes of a sweep, or of the summary of one."""
    from transformer_lab.sweeps.plots import save_alone  # matplotlib takes a second

    table = read_table(workdir)
    found = experiment.load(file, table.plan["scale"]) if file else None
    if not found or not found.plot:
        raise LabError("--figure needs --experiment=FILE, whose get_experiment names a plot")
    save_alone(found.plot(table), target)
    log(f"{target}: the plot of {file}")
