"""Writes a run for Hugging Face.

    transformer_lab export_hf --workdir=RUN --target=DIR

A run that their architecture cannot hold is refused with the first setting that has no place there.
A decoder becomes the first of their families that can hold it, or that of `--model_type=llama`.
What depends on decoding may be changed here, such as `--config.decode.length_penalty=power`.
An adapted run becomes a whole model, or with `--peft` and method "lora" an adapter alone.
"""

import json
from pathlib import Path
from typing import Any

import jax
from absl import flags

from transformer_lab import cli, pretrained
from transformer_lab.errors import LabError
from transformer_lab.pretrained import export
from transformer_lab.pretrained.generation import NO_TOKEN, SpecialIds
from transformer_lab.pretrained.hub import PIXELS
from transformer_lab.pretrained.peft import export_lora
from transformer_lab.text import (
    ByteBpeTokenizer,
    HfTokenizer,
    MarianTokenizer,
    T5Tokenizer,
    Tokenizer,
)
from transformer_lab.text.byte_bpe import MODEL, NUMBERED, PREFIX, SETTINGS
from transformer_lab.text.tokenizer import HEADER, SPECIAL_PIECES
from transformer_lab.training import runs
from transformer_lab.training.adapting import lora_factors
from transformer_lab.training.state import TrainState
from transformer_lab.training.trainer import Trainer
from transformer_lab.training.writers import log

__all__ = ["export", "export_run", "main"]
NO_IDS = SpecialIds(NO_TOKEN, NO_TOKEN, NO_TOKEN)


def define() -> None:
    cli.run_flags("average", "init_from")
    flags.DEFINE_string("target", "", "Directory to write: a new one, or without a model.")
    flags.DEFINE_bool("peft", False, "Write the LoRA adapter alone, as their peft does.")
    flags.DEFINE_string("model_type", "", "Hugging Face's family; empty: the first that fits.")


def main(_: list[str]) -> None:
    args = flags.FLAGS
    if not args.target:
        raise LabError("--target=DIR is missing: where to write the Hugging Face model")
    config = cli.get_config()
    opening = config, cli.get_workdir(), args.average, args.init_from
    if args.peft:
        export_adapter(config.model.kind, *runs.open_state(*opening), args)
        return
    trainer, params = runs.open_run(*opening)
    export_run(config.model.kind, trainer.task, params, args.target, args.model_type)


def export_run(kind: str, task: Any, params: Any, target: str | Path, model_type: str = "") -> None:
    """Writes config.json, generation_config.json, model.safetensors and the tokenizer's files.

    `task` has `model_config`, `tokenizer` or `normalise`, and `sections`, maybe with "decode".
    Raises: LabError for a run that has no place in their layout, and for files in the way.
    """
    tok = getattr(task, "tokenizer", None)
    files = pixel_files(task) | (tokenizer_files(tok) if tok else {})
    if taken := [name for name in files if (Path(target) / name).exists()]:
        raise LabError(f"{target}: holds {taken[0]} already; choose another directory")
    special = SpecialIds(pad=tok.pad_id, eos=tok.eos_id, start=tok.bos_id) if tok else NO_IDS
    export(
        params,
        task.model_config,
        target,
        special,
        task.sections.get("decode"),
        model_type_of(kind, task.model_config, model_type),
        task.labels if getattr(task, "CONFIG_LABELS", False) else (),
    )
    for name, content in files.items():
        (Path(target) / name).write_bytes(content)
    if tok and not tokenizer_files(tok):
        log(f"the tokenizer was not exported: its kind is {tok.config.kind}, unknown there")


def export_adapter(kind: str, trainer: Trainer, state: TrainState, args: Any) -> None:
    """Writes adapter_config.json and adapter_model.safetensors of a run with method "lora"."""
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


def pixel_files(task: Any) -> dict[str, bytes]:
    """How images are read and normalised, if the task has some."""
    form = getattr(task, "normalise", getattr(task, "config", None))
    if not hasattr(form, "mean"):
        return {}
    config = getattr(task.model_config, "image", task.model_config)
    settings = {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": dict(zip(("height", "width"), config.image_size, strict=True)),
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": form.mean,
        "image_std": form.std,
    }
    return {PIXELS: json.dumps(settings, indent=1).encode()}


def tokenizer_files(tokenizer: Tokenizer) -> dict[str, bytes]:
    """Those that Hugging Face knows, without our header, whose name means another thing there."""
    files = tokenizer.to_files()
    if isinstance(tokenizer, MarianTokenizer | T5Tokenizer):
        return {name: files[name] for name in tokenizer.file_names if name in files}
    if isinstance(tokenizer, HfTokenizer):
        theirs = {n.removeprefix(PREFIX): c for n, c in files.items() if n.startswith(PREFIX)}
        return {name: content for name, content in theirs.items() if name not in NUMBERED}
    if isinstance(tokenizer, ByteBpeTokenizer):
        roles = zip(("pad", "eos", "bos", "unk"), SPECIAL_PIECES, strict=True)
        settings = {"tokenizer_class": "PreTrainedTokenizerFast"}
        settings |= {f"{role}_token": piece for role, piece in roles}
        return {HEADER: files[MODEL], SETTINGS: json.dumps(settings, indent=1).encode()}
    return {}


def model_type_of(kind: str, config: Any, wanted: str = "") -> str:
    """Hugging Face's name of the wanted family, or of the first that can hold the model."""
    found = [name for name in pretrained.families() if kind == pretrained.family(name).kind]
    if not found:
        raise LabError(f'model.kind = "{kind}" has no Hugging Face layout here')
    if wanted and wanted not in found:
        raise LabError(f'--model_type="{wanted}" is none of {", ".join(found)}')
    if kind == "encoder" and config.types == 1:
        found.sort(key=lambda name: name != "roberta")  # BERT could hold it, but knows two types
    reasons = []
    for name in [wanted] if wanted else found:
        try:
            pretrained.family(name).writing(config)
        except LabError as error:
            reasons.append(str(error))
        else:
            return name
    raise LabError("; ".join(reasons))
