"""Reads a directory of CTranslate2's with a Whisper model.

    transformer_lab import_ct2 --source=DIR --workdir=runs/whisper

DIR holds model.bin (in any of the format's types, such as float16 or int8), config.json and
tokenizer.json. `--workdir=DIR` writes the model there as a run that other commands can open.
"""

from absl import flags

from transformer_lab.errors import LabError
from transformer_lab.pretrained import ct2
from transformer_lab.training.imported import leave


def define() -> None:
    flags.DEFINE_string("source", "", "Directory with model.bin, config.json, tokenizer.json.")
    flags.DEFINE_string("workdir", "", "Where to leave a run with the imported model.")


def main(_: list[str]) -> None:
    args = flags.FLAGS
    if not args.source:
        raise LabError("--source=DIR is missing: a directory with model.bin and config.json")
    model = ct2.load(args.source)
    leave(model, args.source, args.workdir)
