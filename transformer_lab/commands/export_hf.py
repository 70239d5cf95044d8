"""Writes a run for Hugging Face.

    transformer_lab export_hf --workdir=RUN --target=DIR

A run that no Hugging Face architecture can represent is refused, with the first setting that does
not fit. A decoder becomes the first family that fits it, or that of `--model_type=llama`. Decoding
settings may be changed here, such as `--config.decode.length_penalty=power`. An adapted run becomes
a whole model, or with `--peft` and method "lora" an adapter alone.
"""

from pathlib import Path
from typing import Any

import jax
from absl import flags

from transformer_lab import cli
from transformer_lab.errors import LabError
from transformer_lab.pretrained import model_type_of
from transformer_lab.pretrained.beside import export_run
from transformer_lab.pretrained.peft import export_lora
from transformer_lab.training import runs
from transformer_lab.training.adapting import lora_factors
from transformer_lab.training.state import TrainState
from transformer_lab.training.trainer import Trainer
from transformer_lab.training.writers import log


def define() -> None:
    cli.run_flags()
    flags.DEFINE_string("target", "", "Directory to write: a new one, or without a model.")
    flags.DEFINE_bool("peft", False, "Write the LoRA adapter alone, as their peft does.")
    flags.DEFINE_string("model_type", "", "Hugging Face's family; empty: the first that fits.")


def main(_: list[str]) -> None:
    args = flags.FLAGS
    if not args.target:
        raise LabError("--target=DIR is missing: where to write the Hugging Face model")
    config = cli.get_config()
    if args.peft:
        opening = config, cli.get_workdir(), args.average, args.init_from
        export_adapter(config.model.kind, *runs.open_state(*opening), args)
    else:
        trainer, params = cli.open_run()
        kind = config.model.kind
        if note := export_run(kind, trainer.task, params, args.target, args.model_type):
            log(note)
    files = ", ".join(sorted(path.name for path in Path(args.target).iterdir()))
    log(f"{args.target} holds {files}")


def export_adapter(kind: str, trainer: Trainer, state: TrainState, args: Any) -> None:
    """Writes adapter_config.json and adapter_model.safetensors of a LoRA run. Raises: LabError if
    the run trains anything but LoRA's factors."""
    adapt, config = trainer.config.adapt, trainer.task.model_config
    factors, rest = lora_factors(jax.device_get(state.params))
    if not trainer.adapted or not factors or rest:
        other = min(rest, default="nothing")
        raise LabError(
            f"--peft holds nothing but LoRA, this run trains {other}: merge it, or leave --peft out"
        )
    model_type = model_type_of(kind, config, args.model_type)
    scale = adapt.alpha / adapt.rank
    export_lora(factors, config, args.target, model_type, scale, adapt.dropout)
