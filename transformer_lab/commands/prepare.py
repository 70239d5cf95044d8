"""Tokenises a config's data into shards that a run reads at random places, whatever their size.

    transformer_lab prepare --config=configs/translate_en_fr.py --output=prepared/en_fr
    transformer_lab prepare --config=FILE --output=DIR \\
        --config.data.source=files --config.data.path='raw/*.tsv' --workers=8

The same command goes on where it was stopped. A run then reads the directory, with all other
settings the same: --config.data.source=shards --config.data.path=DIR.
"""

import os
from pathlib import Path

from absl import flags

from transformer_lab import cli, text
from transformer_lab.data.contents import Plan
from transformer_lab.data.preparing import prepare
from transformer_lab.errors import LabError
from transformer_lab.training.config import Resolved, resolve
from transformer_lab.training.writers import log

TASKS = ("translation", "text_to_text", "language_modeling")
CONFIG_FIRST = True  # a word in front is --config


def define() -> None:
    cli.config_file()
    flags.DEFINE_string("output", "", "The directory to make.")
    flags.DEFINE_integer("workers", 0, "Processes; 0: as many as there are processors.")
    flags.DEFINE_string(
        "tokenizer", "", "A directory with the tokenizer to use, instead of training."
    )
    flags.DEFINE_float("sample", 20.0, "Millions of characters that the tokenizer is trained on.")
    flags.DEFINE_float("shard", 64.0, "Millions of bytes of raw files that make a shard.")


def main(_: list[str]) -> None:
    args = flags.FLAGS
    if not args.output:
        raise LabError("--output=DIR is missing: the directory to make")
    given = text.load_dir(args.tokenizer) if args.tokenizer else None
    prepare(plan_of(resolve(cli.get_config()), given), Path(args.output).expanduser(), log)


def plan_of(resolved: Resolved, given: text.Tokenizer | None) -> Plan:
    """The preparation that flags and config ask for. Raises: LabError for a task without shards."""
    args = flags.FLAGS
    if resolved.task_kind not in TASKS:
        raise LabError(f"a {resolved.task_kind} task reads no shards; these do: {', '.join(TASKS)}")
    if args.sample <= 0 or args.shard <= 0 or args.workers < 0:
        raise LabError("--sample and --shard must be more than 0, and --workers not less")
    return Plan(
        resolved.task_kind,
        resolved.sections["data"],
        resolved.sections["tokenizer"],
        given,
        sample=int(args.sample * 1e6),
        workers=args.workers or len(os.sched_getaffinity(0)),
        shard=int(args.shard * 1e6),
    )
