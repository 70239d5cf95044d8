"""Reads the encoder of a DINOv2 out of an ONNX file.

    transformer_lab import_onnx --source=FILE.onnx --workdir=runs/dinov2

The arrays are read by the graph's names and nothing of it is run; a decoder behind the encoder is
passed over. `--workdir=DIR` writes the model there as a run that other commands can open: `embed`
gives vectors of images, `train --init_from=DIR` adds classes, `export_hf` writes it for Hugging
Face.
"""

from absl import flags

from transformer_lab.errors import LabError
from transformer_lab.pretrained import onnx
from transformer_lab.training.imported import leave


def define() -> None:
    flags.DEFINE_string("source", "", "The ONNX file.")
    flags.DEFINE_string("workdir", "", "Where to leave a run with the imported model.")


def main(_: list[str]) -> None:
    args = flags.FLAGS
    if not args.source:
        raise LabError("--source=FILE is missing: an ONNX file with a DINOv2")
    model = onnx.load(args.source)
    leave(model, args.source, args.workdir)
