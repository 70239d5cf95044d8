"""Writes vectors of texts or images.

    transformer_lab embed --source=hf:DIR < lines.txt > vectors.npy

With a model of images the arguments, or else the lines on standard input, are image files, and
their rows [files, width] the features that a classifier would read. With an encoder of texts each
line becomes a row of a float32 array [lines, width], by mean pooling and of length 1 unless
`--pooling` or `--nonormalize` says otherwise. `--source=DIR` (or `--workdir=DIR`) takes a run of an
encoder that was trained here, for any task. `--target=FILE` writes to a file instead of to standard
output.

`--word=bank` gives that word's vector in each line instead, and `--picture=FILE.png` draws them
beside the word's static vector, its row of the embedding table.
"""

import sys
from functools import partial
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from absl import flags

from transformer_lab import cli, pretrained
from transformer_lab.errors import LabError
from transformer_lab.models import Pictures, Towers
from transformer_lab.opened import embedding_task
from transformer_lab.ops.pooling import POOLINGS, normalize
from transformer_lab.pretrained.beside import read_tokenizer
from transformer_lab.tasks.abilities import EmbedsImages
from transformer_lab.terminal import waited
from transformer_lab.training import places, runs
from transformer_lab.training.config import MeshConfig, from_stored
from transformer_lab.training.imported import as_task
from transformer_lab.training.mesh import make_mesh, placer
from transformer_lab.training.writers import log

GROUP, IMAGES = 4096, 256  # lines and images that are in memory at once


def define() -> None:
    flags.DEFINE_string("source", "", "hf:DIR, or the directory of a run.")
    flags.DEFINE_string("workdir", "", "The directory of a run.")
    flags.DEFINE_string("target", "", "The .npy file to write.")
    flags.DEFINE_enum("pooling", "mean", POOLINGS, "How a text's states become one vector.")
    flags.DEFINE_bool("normalize", True, "To length 1.")
    flags.DEFINE_string("word", "", "A word of every line, whose vectors there are wanted.")
    flags.DEFINE_string("picture", "", "The .png file to draw the word's vectors into.")


WORDS = True  # arguments that are no flags: image files


def main(files: list[str]) -> None:
    args = flags.FLAGS
    source = args.source or args.workdir
    if not source:
        raise LabError(
            "give --source=hf:DIR or --source=RUN, and texts or image files on standard input"
        )
    if not args.target and sys.stdout.isatty():
        raise LabError("the vectors are binary: add --target=FILE, or > vectors.npy")
    if args.picture and not args.word:
        raise LabError("--picture draws the vectors of one word: say which by --word")
    task, params, place = from_source(source, *pooled())
    group = GROUP
    if images := isinstance(task, EmbedsImages):
        embed, group = partial(image_vectors, task, params, place), IMAGES
    elif files:
        raise LabError(f"{files[0]}: {source} reads texts, which come on standard input")
    else:
        embed = partial(task.embed, params, place=place)
    lines = files or list(cli.input_lines())
    if args.word:
        if images:
            raise LabError(f"--word: {source} reads images")
        write(of_word(task, params, lines, place))
        return
    firsts = range(0, len(lines), group)
    parts = [embed(lines[first : first + group]) for first in waited("embeds groups", firsts)]
    vectors = np.concatenate(parts) if parts else np.zeros((0, task.model_config.width), np.float32)
    write(vectors)


def image_vectors(task, params, place, files: list[str]) -> np.ndarray:
    """The vectors of image files [files, width], of length 1 unless --nonormalize is given."""
    vectors = jnp.asarray(task.image_vectors(params, task.read_images(files), place))
    return np.asarray(normalize(vectors) if flags.FLAGS.normalize else vectors)


def write(vectors: np.ndarray) -> None:
    """Writes the vectors as .npy to --target, or else to standard output."""
    if flags.FLAGS.target:
        with open(flags.FLAGS.target, "wb") as file:
            np.save(file, vectors)
        log(f"{flags.FLAGS.target} holds {len(vectors):,} vectors of {vectors.shape[1]} numbers")
    else:
        np.save(sys.stdout.buffer, vectors)
        sys.stdout.flush()


def of_word(task, params, lines: list[str], place) -> np.ndarray:
    """The vectors of --word in each line [lines, width]; also draws them if --picture is given."""
    word, picture = flags.FLAGS.word, flags.FLAGS.picture
    if not lines:
        raise LabError("--word wants its lines on standard input")
    vectors, static = task.embed_word(params, lines, word, place)
    if picture:
        from transformer_lab.viewing.words import draw  # matplotlib takes a second to load

        draw(vectors, static, lines, word).savefig(picture, format="png", dpi=150)
    return vectors


def pooled() -> tuple[str, bool]:
    """The flags that say how a line's token vectors become one, and whether it gets length 1."""
    return flags.FLAGS.pooling, flags.FLAGS.normalize


def from_source(source: str, pooling: str = "mean", normalize: bool = True):
    """Opens hf:DIR or a run: (task, parameters, function that puts a batch on devices)."""
    if source.startswith("hf:"):
        return from_hf(source[3:], pooling, normalize)
    return from_run(source, pooling, normalize)


def from_hf(name: str, *pooled):
    """Opens a Hugging Face directory; `pooled` is the pooling, and whether to scale to 1."""
    directory = str(pretrained.local(name))
    model = pretrained.load(directory)
    for note in model.notes:
        log(note)
    if isinstance(model.config, Pictures | Towers):
        _, task, mesh = as_task(model, Path(directory))
        return task, model.params, placer(mesh)
    if model.kind != "encoder":
        raise LabError(f"--source=hf:{directory}: a {model.model_type} model is no encoder")
    assets = read_tokenizer(model, Path(directory)).to_files()
    task = embedding_task(model.config, assets, *pooled)
    return task, model.params, placer(make_mesh(MeshConfig(data=1), 1))


def from_run(directory: str, *pooled):
    """Opens a run's directory in the same way."""
    path = places.place(directory)
    config = from_stored(runs.stored_config(path))
    trainer, params = runs.open_run(config, path)
    if isinstance(trainer.task, EmbedsImages):
        return trainer.task, params, trainer.place
    if config.model.kind != "encoder":
        raise LabError(f"--source={directory}: a run of {config.model.kind}, not of an encoder")
    task = embedding_task(trainer.task.model_config, trainer.task.assets(), *pooled)
    return task, params, trainer.place
