"""Writes a run for Hugging Face: `python -m transformer_lab.export_hf --workdir=RUN --target=DIR`.

A run that their architecture cannot hold is refused with the first setting that has no place there.
What depends on decoding may be changed here, such as `--config.decode.length_penalty=power`.
"""

from pathlib import Path
from typing import Any

from absl import flags

from transformer_lab import cli, pretrained
from transformer_lab.errors import LabError
from transformer_lab.pretrained import export
from transformer_lab.pretrained.generation import SpecialIds
from transformer_lab.text import MarianTokenizer, Tokenizer
from transformer_lab.training import runs
from transformer_lab.training.writers import log

__all__ = ["export", "export_run", "main"]

# Overridable: one process may import several commands, and they share these names.
flags.DEFINE_string("workdir", "", "Directory of the trained run.", allow_override=True)
flags.DEFINE_string("target", "", "Directory to write: a new one, or without a model.")
flags.DEFINE_integer(
    "average",
    0,
    "How many checkpoints to average; 0: as the config says.",
    allow_override=True,
)


def main(arguments: list[str]) -> None:
    args = flags.FLAGS
    if arguments:
        raise LabError(f'"{arguments[0]}" is no flag: write --target=DIR')
    if not args.target:
        raise LabError("--target=DIR is missing: where to write the Hugging Face model")
    config = cli.get_config()
    trainer, params = runs.open_run(config, cli.get_workdir(), args.average)
    export_run(config.model.kind, trainer.task, params, args.target)


def export_run(kind: str, task: Any, params: Any, target: str | Path) -> None:
    """Writes config.json, generation_config.json, model.safetensors and the tokenizer's files.

    `task` has `model_config`, `tokenizer` and a section "decode", as translation has.
    Raises: LabError for a run that has no place in their layout, and for files in the way.
    """
    files = tokenizer_files(task.tokenizer)
    if taken := [name for name in files if (Path(target) / name).exists()]:
        raise LabError(f"{target}: holds {taken[0]} already; choose another directory")
    tok = task.tokenizer
    export(
        params,
        task.model_config,
        target,
        SpecialIds(pad=tok.pad_id, eos=tok.eos_id, start=tok.bos_id),
        task.sections["decode"],
        model_type_of(kind),
    )
    for name, content in files.items():
        (Path(target) / name).write_bytes(content)
    if not files:
        log(f"the tokenizer was not exported: its kind is {tok.config.kind}, not marian")


def tokenizer_files(tokenizer: Tokenizer) -> dict[str, bytes]:
    """Those of a Marian tokenizer, without our header, whose name means another thing there."""
    if not isinstance(tokenizer, MarianTokenizer):
        return {}
    files = tokenizer.to_files()
    return {name: files[name] for name in tokenizer.foreign_files}


def model_type_of(kind: str) -> str:
    """Hugging Face's name of our kind of model."""
    found = [name for name in pretrained.FAMILIES if kind == pretrained.family(name).KIND]
    if not found:
        raise LabError(f'model.kind = "{kind}" has no Hugging Face layout here')
    return found[0]


if __name__ == "__main__":
    cli.main(main, lambda: cli.workdir_config(runs.stored_config))
