"""Trains the run of a config, or resumes it.

    transformer_lab train --config=configs/smoke.py --workdir=runs/smoke

The same command resumes a stopped run. `--config.KEY=VALUE` changes any key of the config.
"""

from absl import flags

from transformer_lab import cli
from transformer_lab.training import runs


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
    runs.run(config, workdir, args.init_from, args.init_pattern, args.init_into, args.profile)
