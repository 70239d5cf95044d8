"""Reads a Hugging Face directory.

    transformer_lab import_hf --source=DIR

`--check=DIR/expected.npz` compares the model with the reference implementation's outputs, and the
command exits with 1 if one of them differs by more than `--tolerance`. `--workdir=DIR` leaves a run
there that the other commands open.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from absl import flags
from ml_collections import ConfigDict

from transformer_lab import pretrained, text
from transformer_lab.errors import LabError, read_json
from transformer_lab.pretrained import Pretrained
from transformer_lab.pretrained.check import check, table
from transformer_lab.pretrained.generation import NO_TOKEN, SPECIAL
from transformer_lab.pretrained.hub import PIXELS
from transformer_lab.tasks.image_classification import FORM
from transformer_lab.tasks.reading import LABELS
from transformer_lab.text import (
    HfTokenizer,
    MarianTokenizer,
    T5Tokenizer,
    Tokenizer,
    WordPieceTokenizer,
)
from transformer_lab.text.marian import VOCAB
from transformer_lab.text.tokenizer import HEADER
from transformer_lab.training import runs
from transformer_lab.training.checkpoint import Checkpoints, write_atomically
from transformer_lab.training.config import default_config, resolve
from transformer_lab.training.mesh import make_mesh
from transformer_lab.training.places import place
from transformer_lab.training.trainer import Trainer
from transformer_lab.training.writers import log, make_workdir

TASKS = {  # of a run, by the model's kind or its head
    "encoder_decoder": "translation",
    "decoder": "language_modeling",
    "none": "sentence_embedding",
    "mlm": "masked_language_modeling",
    "mlm_nsp": "masked_language_modeling",
    "classes": "classification",
    "tokens": "tagging",
    "span": "question_answering",
    "two_towers": "contrastive",
    "vision": "image_classification",
}
PICTURES = ("two_towers", "vision")  # kinds of models that see


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
    model = pretrained.load(args.source)
    print(pretrained.describe(model))
    for note in model.notes:
        log(note)
    if args.workdir:
        check_source(model, Path(args.source))  # told now, if something is missing or another's
    failed = False
    if args.check:
        rows = check(model, args.check)
        print(table(rows, args.tolerance))
        failed = not all(row.passes(args.tolerance) for row in rows)
    if args.workdir and not failed:
        save_to_workdir(model, args.source, args.workdir)
    return int(failed)


def save_to_workdir(model: Pretrained, source: str | Path, workdir: str | Path) -> None:
    """Leaves a run of step 0 with the model's parameters, settings and tokenizer.

    The data section keeps its defaults, for nothing in the source says what it was trained on.
    Raises: LabError if a run lies there already, or the tokenizer is missing or another model's.
    """
    path = place(workdir)
    if (path / runs.CONFIG).exists() or (path / "checkpoints").exists():
        raise LabError(f"--workdir={workdir} holds a run already: choose another directory")
    tokenizer = check_source(model, Path(source))
    config = run_config(model, tokenizer)
    if model.kind in PICTURES and (Path(source) / PIXELS).is_file():
        pixels = read_json(Path(source) / PIXELS)
        config.task.mean, config.task.std = (
            tuple(pixels.get(name, (0.5,) * 3)) for name in ("image_mean", "image_std")
        )
    resolved, stored = resolve(config), config.to_dict()
    mesh = make_mesh(resolved.run.mesh)
    trainer = Trainer(
        resolved.run, runs.build_task(resolved, run_assets(model, tokenizer), mesh), mesh
    )
    state = trainer.canonical(trainer.with_params(trainer.init(), model.params))
    checkpoints = Checkpoints(make_workdir(path), resolved.run.keep, log)
    try:
        # No data was read, so there is no position in it.
        checkpoints.save(0, state, {}, stored, trainer.task.assets())
    finally:
        checkpoints.close()
    write_atomically(path / runs.CONFIG, json.dumps(stored, indent=1).encode())
    log(f"{path} holds the model as a run: use it, or train on with --init_from={path}")


def check_source(model: Pretrained, source: Path) -> Tokenizer | None:
    """The tokenizer, None of a model of images; LabError for what cannot be a run."""
    if model.kind != "vision":
        return read_tokenizer(model, source)
    if model.config.head != "classes":
        raise LabError(f"{source}: the model has no classes, and a run of images needs some")
    return None


def read_tokenizer(model: Pretrained, source: Path) -> Tokenizer:
    """The tokenizer beside the weights; LabError if its ids are not those of the model."""
    if model.model_type != "marian":
        return _read_hf_tokenizer(model, source)
    if missing := [n for n in MarianTokenizer.foreign_files if not (source / n).is_file()]:
        raise LabError(f"{source}: a run needs the tokenizer too, {', '.join(missing)} missing")
    tokenizer = _load_tokenizer(source, MarianTokenizer.file_names)
    ids = {"pad": tokenizer.pad_id, "eos": tokenizer.eos_id, "start": tokenizer.bos_id}
    for name, token in ids.items():
        if getattr(model.special, name) != token:
            raise LabError(
                f"{source}: {SPECIAL[name]} = {getattr(model.special, name)}, "
                f"but by {VOCAB} it is {token}: is it another model's?"
            )
    for size in (model.config.vocab_size, model.config.source_vocab_size):
        if size not in (None, tokenizer.vocab_size):
            raise LabError(
                f"{source}: the model has embeddings of {size} tokens, "
                f"but {VOCAB} has {tokenizer.vocab_size}: is it another model's?"
            )
    return tokenizer


def _read_hf_tokenizer(model: Pretrained, source: Path) -> Tokenizer:
    """Tables may have more rows than the tokenizer has tokens, and a model no end token."""
    kinds = {"encoder": WordPieceTokenizer, "encoder_decoder": T5Tokenizer}
    older = kinds.get(model.kind, HfTokenizer)
    layouts = (HEADER,), HfTokenizer.foreign_files, older.foreign_files
    if not any(all((source / name).is_file() for name in names) for names in layouts):
        also = " and ".join(older.foreign_files)
        raise LabError(f"{source}: a run needs the tokenizer too, {HEADER} missing (or {also})")
    tokenizer = _load_tokenizer(source, [HEADER, *HfTokenizer.file_names, *older.foreign_files])
    ends = model.decode.end_tokens if model.decode else ()
    if tokenizer.eos_id not in ends and model.special.eos not in (NO_TOKEN, tokenizer.eos_id):
        raise LabError(
            f"{source}: {SPECIAL['eos']} = {model.special.eos}, "
            f"but the tokenizer's is {tokenizer.eos_id}: is it another model's?"
        )
    if model.kind == "encoder_decoder" and model.special.start != tokenizer.bos_id:
        raise LabError(
            f"{source}: {SPECIAL['start']} = {model.special.start}, "
            f"but the tokenizer's is {tokenizer.bos_id}: is it another model's?"
        )
    if tokenizer.vocab_size > model.config.vocab_size:
        raise LabError(
            f"{source}: the model has embeddings of {model.config.vocab_size} tokens, "
            f"but the tokenizer has {tokenizer.vocab_size}: is it another model's?"
        )
    return tokenizer


def _load_tokenizer(source: Path, names: Iterable[str]) -> Tokenizer:
    try:
        return text.load({n: (source / n).read_bytes() for n in names if (source / n).is_file()})
    except LabError as error:
        raise LabError(f"{source}: {error}") from None


def run_assets(model: Pretrained, tokenizer: Tokenizer | None) -> dict[str, bytes]:
    """The files that the task needs: the tokenizer's or the images' form, and labels."""
    labels = list(model.labels or ())
    if tokenizer is None:
        labels = labels or [f"class {i}" for i in range(model.config.classes)]
        form = {"size": model.config.image_size, "channels": model.config.channels}
        files = {FORM: json.dumps(form).encode()}
    else:
        files = tokenizer.to_files()
    return files | ({LABELS: json.dumps(labels).encode()} if labels else {})


def run_config(model: Pretrained, tokenizer: Tokenizer | None) -> ConfigDict:
    """The defaults of a run of the model's kind, with what is known of this one."""
    task = TASKS[model.config.head if model.kind == "encoder" else model.kind]
    config = default_config(model=model.kind, task=task)
    config.model.update(asdict(model.config))
    if model.decode is not None:
        config.decode.update(asdict(model.decode))
    if "length" in config.batch:
        config.batch.length = min(config.batch.length, model.config.max_length)
    elif model.kind == "encoder":
        config.batch.max_length = model.config.max_length
    if task == "classification":
        config.task.regression = model.config.labels == 1
    if task == "masked_language_modeling":
        config.task.next_sentence = model.config.head == "mlm_nsp"
    if task == "contrastive":
        own = model.config.eos_id
        if model.config.text_pool == "eos" and own != tokenizer.eos_id:
            raise LabError(
                f"eos_token_id = {own}, but the tokenizer's is {tokenizer.eos_id}: is it another "
                "model's?"
            )
        config.task.loss = "softmax" if model.config.bias is None else "sigmoid"
    if model.kind in PICTURES:
        channels = getattr(model.config, "image", model.config).channels
        config.task.update({name: (0.5,) * channels for name in ("mean", "std")})
    if tokenizer is not None:
        config.tokenizer.update(asdict(tokenizer.config))
    return config
