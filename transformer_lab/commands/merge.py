"""Makes a plain run of an adapted one.

    transformer_lab merge --workdir=RUN --target=DIR

The new run holds the whole model at step 0, with its settings and tokenizer: other commands can
open it, and other runs can start from it with --init_from. `export_hf --peft` writes the adapter
alone.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import ConfigDict

from transformer_lab import cli
from transformer_lab.errors import LabError
from transformer_lab.training import runs
from transformer_lab.training.config import AdaptConfig, OptimizerConfig
from transformer_lab.training.places import place
from transformer_lab.training.trainer import Trainer
from transformer_lab.training.writers import log


def define() -> None:
    cli.run_flags()
    flags.DEFINE_string("target", "", "Directory of the new run.")


def main(_: list[str]) -> None:
    args = flags.FLAGS
    if not args.target:
        raise LabError("--target=DIR is missing: where to write the merged run")
    config, target = cli.get_config(), place(args.target)
    runs.refuse_taken(target, "--target")
    trainer, params = cli.open_run()
    write_run(config, trainer, params, target)


def write_run(config: ConfigDict, opened: Trainer, params: Any, target: Path) -> None:
    """Writes the whole model as a new run, with a fresh optimizer of the default kind."""
    config = ConfigDict(config.to_dict())
    # The optimizer's patterns may be about leaves that the whole model lacks.
    config.adapt, config.optimizer = asdict(AdaptConfig()), asdict(OptimizerConfig())
    runs.write_new(config, opened.task, opened.mesh, params, target)
    log(f"{target} holds the whole model as a run")
