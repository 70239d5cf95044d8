"""Turns a Hugging Face model into a run at step 0, which all commands can open."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jax.sharding import Mesh
from ml_collections import ConfigDict

from transformer_lab import tasks
from transformer_lab.errors import LabError
from transformer_lab.models import Finds, Pictures, Sees, Towers
from transformer_lab.pretrained import Pretrained, describe
from transformer_lab.pretrained.beside import read_pixels, read_sides, read_tokenizer
from transformer_lab.pretrained.ct2 import END
from transformer_lab.training import runs
from transformer_lab.training.config import default_config, resolve
from transformer_lab.training.mesh import make_mesh
from transformer_lab.training.places import place
from transformer_lab.training.writers import log

TASKS = {  # the task of the run, by the model's kind or its head
    "encoder_decoder": "translation",
    "whisper": "transcription",
    "decoder": "language_modeling",
    "none": "sentence_embedding",
    "mlm": "masked_language_modeling",
    "mlm_nsp": "masked_language_modeling",
    "classes": "classification",
    "tokens": "tagging",
    "span": "question_answering",
    "two_towers": "contrastive",
    "detr": "detection",
}


IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
PIXELS = {"dinov2": IMAGENET}  # what a family's models were trained on, if no file says it


def leave(
    model: Pretrained,
    source: str | Path,
    workdir: str,
    files: Mapping[str, bytes] | None = None,
) -> None:
    """Says what was read from `source`, and with a `workdir` writes it there as a run."""
    print(describe(model))
    for note in model.notes:
        log(note)
    if workdir:
        save_to_workdir(model, source, workdir, files)


def save_to_workdir(
    model: Pretrained,
    source: str | Path,
    workdir: str | Path,
    files: Mapping[str, bytes] | None = None,
) -> None:
    """Writes a run at step 0 with the model's parameters, settings and tokenizer.

    The tokenizer's `files` are by default those in the source. The data section keeps its defaults,
    for nothing in the source says what it was trained on.
    Raises: LabError if the directory holds a run, or the tokenizer is missing or another model's.
    """
    path = place(workdir)
    runs.refuse_taken(path, "--workdir")
    config, task, mesh = as_task(model, Path(source), files)
    runs.write_new(config, task, mesh, model.params, path)
    log(f"{path} holds the model as a run: use it, or train on with --init_from={path}")


def as_task(
    model: Pretrained, source: Path, files: Mapping[str, bytes] | None = None
) -> tuple[ConfigDict, Any, Mesh]:
    """The config of a run with the model, its task, and the mesh of the devices."""
    tokenizer = check_source(model, source, files)
    config = run_config(model, tokenizer)
    if isinstance(model.config, Finds):
        config.data.update(read_sides(source))
    if isinstance(model.config, Pictures | Towers | Finds):
        config.task.update(read_pixels(source) or PIXELS.get(model.model_type, {}))
    resolved = resolve(config)
    mesh = make_mesh(resolved.run.mesh)
    return config, runs.build_task(resolved, run_assets(model, tokenizer), mesh), mesh


def check_source(model: Pretrained, source: Path, files: Mapping[str, bytes] | None = None) -> Any:
    """The model's tokenizer, None for a model of images. Raises: LabError if it cannot be a run."""
    if not isinstance(model.config, Sees):
        return read_tokenizer(model, source, files)
    if isinstance(model.config, Finds) and model.config.channels != 3:
        raise LabError(f"{source}: its images have {model.config.channels} channels, not 3")
    return None


def run_assets(model: Pretrained, tokenizer: Any) -> dict[str, bytes]:
    """The files that the task needs: the tokenizer's, or the images' size; and the labels."""
    labels, images = list(model.labels), tasks.objective("image_classification")
    if isinstance(model.config, Finds):
        files = {}
    elif tokenizer is None:
        count = model.config.classes if model.config.head == "classes" else 0
        labels = labels or [f"class {i}" for i in range(count)]
        form = {"size": model.config.image_size, "channels": model.config.channels}
        files = {images.FORM: json.dumps(form).encode()}
    else:
        files = tokenizer.to_files()
    return files | ({images.LABELS: json.dumps(labels).encode()} if labels else {})


def run_config(model: Pretrained, tokenizer: Any) -> ConfigDict:
    """The default config for the model's kind, with all settings known of this model."""
    if isinstance(model.config, Pictures):
        task = "image_classification"
    else:
        task = TASKS[model.config.head if model.kind == "encoder" else model.kind]
    config = default_config(model=model.kind, task=task)
    config.model.update(asdict(model.config))
    if model.decode is not None:
        config.decode.update(asdict(model.decode))
    if task == "detection":
        config.batch.objects = model.config.queries
        config.data.update(shortest=800, longest=1333)  # those of the paper, A.4
    if "length" in config.batch:
        most = model.config.max_length // (2 if task == "transcription" else 1)
        config.batch.length = min(config.batch.length, most)
    elif model.kind == "encoder":
        config.batch.max_length = model.config.max_length
    if task == "transcription":
        # The end token of English-only models has GPT-2's id; multilingual ones have another.
        config.task.multilingual = tokenizer.eos_id != END
        config.speech.language = "" if config.task.multilingual else "en"
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
    if isinstance(model.config, Pictures | Towers):
        pictures = model.config.tower if isinstance(model.config, Towers) else model.config
        channels = pictures.channels
        config.task.update({name: (0.5,) * channels for name in ("mean", "std")})
    if task == "language_modeling" and tokenizer.starts_texts is False:
        config.task.prompt_start = False
    if tokenizer is not None:
        config.tokenizer.update(asdict(tokenizer.config))
    return config
