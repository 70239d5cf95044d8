"""Makes tables and curves of a sweep.

    transformer_lab report --workdir=runs/dropout

Writes report.md, .csv, .tex and .html, curves.png and .svg, and the experiment's own plot. With
`--compare=DIR` also the difference to the sweep in another directory, with its standard error.
"""

from pathlib import Path

from absl import flags

from transformer_lab import cli


def define() -> None:
    flags.DEFINE_string("workdir", "", "Directory of the sweep.")
    flags.DEFINE_string("compare", "", "Directory of another sweep with rows of the same names.")


def main(_: list[str]) -> None:
    from transformer_lab.sweeps.report import write_report  # matplotlib takes a second to load

    compare = flags.FLAGS.compare
    print(write_report(cli.get_workdir(), Path(compare) if compare else None))
