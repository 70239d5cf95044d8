"""Trains: `python -m transformer_lab.train --config=configs/smoke.py --workdir=runs/smoke`.

The same command resumes a stopped run. `--config.KEY=VALUE` changes any key of the config.
"""

from absl import flags

from transformer_lab import cli
from transformer_lab.training.memory import keep_memory

flags.DEFINE_string("workdir", "", "Directory of the run: checkpoints, metrics, config.")
flags.DEFINE_string(
    "init_from", "", "A run whose weights start this new one, or hf:DIR; an adapted run's base."
)
flags.DEFINE_string("init_pattern", ".*", "Regular expression on the paths of those weights.")
flags.DEFINE_string("init_into", "", "The part of the model they are for, such as image.")


def main(_: list[str]) -> None:
    from transformer_lab.training import runs  # after `keep_memory`: it takes a second to load

    config, workdir = cli.get_config(), cli.get_workdir()
    args = flags.FLAGS
    runs.run(config, workdir, args.init_from, args.init_pattern, args.init_into)


if __name__ == "__main__":
    keep_memory()
    cli.main(main, cli.config_file)
