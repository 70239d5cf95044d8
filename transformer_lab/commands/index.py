"""Makes an index of a folder of texts, in which `search` finds passages.

    transformer_lab index --folder=notes --target=notes.npz --source=hf:DIR

The texts (.txt, .md, .rst, .tex) are cut into passages of about 120 words. With `--source`, the
directory of an encoder (hf:DIR) or of a run of one, each passage gets a vector; without it the
index is searched by words alone. A run with two towers (CLIP) makes an index of the images in the
folder instead.
"""

from pathlib import Path

from absl import flags

from transformer_lab.commands.embed import from_source
from transformer_lab.commands.retrieve import images_of_folder
from transformer_lab.data.passages import Index, Passage, read_folder
from transformer_lab.errors import LabError
from transformer_lab.tasks.abilities import EmbedsImages, EmbedsTexts
from transformer_lab.training.writers import log


def define() -> None:
    flags.DEFINE_string("folder", "", "A folder of texts; those in its folders count too.")
    flags.DEFINE_string("target", "", "The .npz file to write.")
    flags.DEFINE_string("source", "", "hf:DIR, or the directory of a run; none: words alone.")


def main(_: list[str]) -> None:
    args = flags.FLAGS
    if not args.folder or not args.target:
        raise LabError("give --folder=DIR and --target=FILE.npz")
    index = of_folder(Path(args.folder).expanduser(), args.source)
    index.save(Path(args.target))
    log(f"{len(index.passages):,} passages of {args.folder}: {args.target}")


def of_folder(folder: Path, source: str) -> Index:
    """The index of a folder's texts, or of its images where the source embeds these."""
    if not source:
        return Index(read_folder(folder))
    task, params, place = from_source(source)
    if not isinstance(task, EmbedsImages):
        passages = read_folder(folder)
        return Index(passages, source, task.embed(params, [p.text for p in passages], place))
    if not isinstance(task, EmbedsTexts):
        raise LabError(f"--source={source} reads no texts, by which its images could be searched")
    files, vectors = images_of_folder(folder, task, params, place)
    return Index([Passage(str(file), 1, "") for file in files], source, vectors)
