"""Reads a Hugging Face directory: `python -m transformer_lab.import_hf --source=DIR`.

`--check=DIR/expected.npz` compares the model with the reference implementation's outputs, and the
command exits with 1 if one of them differs by more than `--tolerance`. `--workdir=DIR` leaves a run
there that the other commands open.
"""

from absl import flags

from transformer_lab import cli, pretrained
from transformer_lab.errors import LabError
from transformer_lab.pretrained import Pretrained
from transformer_lab.pretrained.check import check, table

flags.DEFINE_string("source", "", "Directory with config.json and safetensors weights.")
flags.DEFINE_string("check", "", "An .npz file with the reference's inputs and outputs.")
flags.DEFINE_float("tolerance", 1e-4, "Greatest absolute difference that passes.", lower_bound=0.0)
flags.DEFINE_string("workdir", "", "Where to leave a run with the imported model.")


def main(arguments: list[str]) -> int:
    args = flags.FLAGS
    if arguments:
        raise LabError(f'"{arguments[0]}" is no flag: write --source=DIR')
    if not args.source:
        raise LabError("--source=DIR is missing: a directory with config.json and weights")
    model = pretrained.load(args.source)
    print(pretrained.describe(model))
    failed = False
    if args.check:
        rows = check(model, args.check)
        print(table(rows, args.tolerance))
        failed = not all(row.passes(args.tolerance) for row in rows)
    if args.workdir and not failed:
        save_to_workdir(model, args.source, args.workdir)
    return int(failed)


def save_to_workdir(model: Pretrained, source: str, workdir: str) -> None:
    """Leaves a run with the model's parameters, settings and tokenizer."""
    raise LabError(f"--workdir={workdir}: saving an imported model is not supported yet")


if __name__ == "__main__":
    cli.main(main)
