"""Reads a Hugging Face directory.

    transformer_lab import_hf --source=DIR

`--check=DIR/expected.npz` compares the model with the reference implementation's outputs, and the
command exits with 1 if one of them differs by more than `--tolerance`. `--workdir=DIR` writes the
model there as a run that the other commands can open.
"""

from absl import flags

from transformer_lab import pretrained
from transformer_lab.errors import LabError
from transformer_lab.pretrained.check import check, table
from transformer_lab.training.imported import check_source, save_to_workdir
from transformer_lab.training.writers import log


def define() -> None:
    flags.DEFINE_string("source", "", "Directory with config.json and safetensors weights.")
    flags.DEFINE_string("check", "", "An .npz file with the reference's inputs and outputs.")
    flags.DEFINE_float(
        "tolerance", 1e-4, "Greatest absolute difference that passes.", lower_bound=0.0
    )
    flags.DEFINE_string("workdir", "", "Where to leave a run with the imported model.")


def main(_: list[str]) -> int:
    args = flags.FLAGS
    if not args.source:
        raise LabError("--source=DIR is missing: a directory with config.json and weights")
    source = pretrained.local(args.source)
    model = pretrained.load(source)
    print(pretrained.describe(model))
    for note in model.notes:
        log(note)
    if args.workdir:
        check_source(model, source)  # told now, if something is missing or another's
    failed = False
    if args.check:
        rows = check(model, args.check)
        print(table(rows, args.tolerance))
        failed = not all(row.passes(args.tolerance) for row in rows)
    if args.workdir and not failed:
        save_to_workdir(model, source, args.workdir)
    return int(failed)
