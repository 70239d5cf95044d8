"""Draws a model's attention, as a page without a server or as a picture.

    transformer_lab attend --workdir=DIR --text=T --output=A.html

The page needs neither server nor network. `--text_b` is an encoder's second text, or the target of
an encoder-decoder (without it the model's own translation); `--extend` lets a language model
continue the text first, as `--config.decode` says; `--words` joins the pieces of words. A model
that hears takes `--audio=FILE`, and shows its text along the spectrogram.
`--png=FILE.png` draws one `--map`, or the `--layer` and `--head` that are named; `--heads` prints a
table of what each head does. See docs/attention.md.
"""

from pathlib import Path

from absl import flags

from transformer_lab import cli
from transformer_lab.errors import LabError, known
from transformer_lab.terminal import Waiting, print_table
from transformer_lab.training.writers import log
from transformer_lab.viewing import heads
from transformer_lab.viewing.capture import Inputs, Map, Maps, capture
from transformer_lab.viewing.page import page


def define() -> None:
    cli.run_flags()
    flags.DEFINE_string("text", None, "What the model reads.")
    flags.DEFINE_string("text_b", None, "A second text, or the target of an encoder-decoder.")
    flags.DEFINE_string("image", None, "A file, for models that see.")
    flags.DEFINE_string("audio", None, "A file, for models that hear; its first 30 s.")
    flags.DEFINE_bool("extend", False, "Let a language model continue the text first.")
    flags.DEFINE_bool("words", False, "Join the pieces of a word.")
    flags.DEFINE_string("output", "", "The .html file to write.")
    flags.DEFINE_string("png", "", "The .png file to write.")
    flags.DEFINE_string("map", None, "Which attention --png draws; the first if none is named.")
    flags.DEFINE_integer("layer", None, "Of --png; all if none is named.", lower_bound=0)
    flags.DEFINE_integer("head", None, "Of --png; all if none is named.", lower_bound=0)
    flags.DEFINE_bool("heads", False, "Print what each head does.")


def main(_: list[str]) -> None:
    args = flags.FLAGS
    if not (args.output or args.png or args.heads):
        raise LabError("say what to make: --output=FILE.html, --png=FILE.png or --heads")
    if args.png and not args.png.endswith(".png"):
        raise LabError(f"--png={args.png} does not end in .png, which it would be")
    trainer, params = cli.open_run()
    given = args.text, args.text_b, args.image, args.audio
    inputs = Inputs(*given, args.extend, args.words)
    with Waiting("computes the attention"):
        maps = capture(trainer.task, params, inputs, trainer.place)
    if args.output:
        title = f"{cli.get_workdir().name}: {args.text or args.image or args.audio}"
        Path(args.output).write_text(page(maps, title), encoding="utf-8")
        log(f"{args.output} shows it: open it in a browser")
    if args.png:
        from transformer_lab.viewing.png import png  # matplotlib takes a second to load

        Path(args.png).write_bytes(png(chosen(maps), args.layer, args.head))
        log(f"{args.png} shows it")
    if args.heads:
        header = "attention", "layer", "head", *heads.NAMES
        print_table(header, heads.table(trainer.task, params, maps))


def chosen(maps: Maps) -> Map:
    """The map named by --map, or the first. Raises: LabError if it lacks the --layer or --head."""
    args = flags.FLAGS
    name = next(iter(maps)) if args.map is None else args.map
    known("--map=", name, maps)
    for flag, number in zip(("layer", "head"), maps[name].weights.shape, strict=False):
        value = getattr(args, flag)
        if value is not None and value >= number:
            raise LabError(f"--{flag}={value}: {name} has {flag}s 0 to {number - 1}")
    return maps[name]
