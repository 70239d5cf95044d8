"""Names images by texts, without an example of any class.

    transformer_lab zero_shot --workdir=runs/clip --labels="a cat,a dog,a tree" image.png

Each image gives a line with the probabilities of all labels, best first. Each label is put into
every template, `--templates="{}|a photo of {}"`, and its vector is the mean of theirs (Radford
2021, section 3.1.4).
"""

import json

from absl import flags

from transformer_lab import cli
from transformer_lab.errors import LabError

WORDS = True  # arguments that are no flags


def define() -> None:
    cli.run_flags()
    flags.DEFINE_list("labels", [], "The names to choose from.")
    flags.DEFINE_string(
        "templates", "{}|a picture of {}", "Texts with {} in a label's place, by |."
    )
    flags.DEFINE_bool("json", False, "Write a JSON object an image.")


def main(paths: list[str]) -> None:
    args = flags.FLAGS
    labels = [label.strip() for label in args.labels if label.strip()]
    templates = args.templates.split("|")
    if not labels or not paths:
        raise LabError('give --labels="a cat,a dog" and image files')
    if any("{}" not in template for template in templates):
        raise LabError(f'--templates="{args.templates}": each needs {{}} in the label\'s place')
    trainer, params = open_towers()
    task, place = trainer.task, trainer.place
    images = task.image_vectors(params, task.read_images(paths), place)
    prompts = [[t.replace("{}", label) for t in templates] for label in labels]
    classes = task.class_vectors(params, prompts, place)
    for path, row in zip(paths, task.probabilities(params, images, classes).tolist(), strict=True):
        chances = dict(sorted(zip(labels, row, strict=True), key=lambda item: -item[1]))
        if args.json:
            print(json.dumps({"image": path, "probabilities": chances}, ensure_ascii=False))
        else:
            shown = "  ".join(f"{label} {chance:.4f}" for label, chance in chances.items())
            print(f"{path}\t{shown}", flush=True)


def open_towers():
    """The (trainer, parameters) of --workdir. Raises: LabError unless it has two towers."""
    config = cli.get_config()
    if config.model.kind not in ("two_towers", "three_towers"):
        raise LabError(
            f"a run of {config.model.kind} has no two towers: train configs/clip_emoji.py"
        )
    return cli.open_run()
