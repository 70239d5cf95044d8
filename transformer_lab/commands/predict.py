"""Says what a trained model makes of texts or images: classes, tags, answers.

    transformer_lab predict --workdir=runs/sent "A text."

It gives classes with probabilities, tags of words, a sentence's dependency tree, or an answer
("question<tab>context"), as the run was trained for, for each line of standard input if no text is
given. A run on images takes image files in place of texts. On a terminal bars show the first five
classes. `--json` writes all that is known.
"""

import json
import sys

from absl import flags

from transformer_lab import cli
from transformer_lab.tasks.abilities import Predicts
from transformer_lab.terminal import waited

GROUP = 256  # lines that are read before they are answered


WORDS = True  # arguments that are no flags


def define() -> None:
    cli.run_flags()
    flags.DEFINE_bool("json", False, "Write a JSON object a text.")


def main(texts: list[str]) -> None:
    args = flags.FLAGS
    trainer, params = cli.open_run(Predicts, "predict", "see translate, generate and evaluate")
    task = trainer.task
    sys.stdout.reconfigure(encoding="utf-8")
    if not texts:
        texts = list(cli.input_lines())
    for first in waited("predicts", range(0, len(texts), GROUP)):
        for row in task.predict(params, texts[first : first + GROUP], trainer.place):
            print(json.dumps(row, ensure_ascii=False) if args.json else show(row), flush=True)
            if not args.json and "probabilities" in row and sys.stdout.isatty():
                print("\n".join(bars(row["probabilities"])))


def show(row: dict) -> str:
    """A prediction as text: label (after an image's name), tags, fillings, answer or number in one
    line, or a tree."""
    if "label" in row:
        file = f"{row['image']}\t" if "image" in row else ""
        return f"{file}{row['label']}\t{row['probability']:.4f}"
    if "tags" in row:
        return " ".join(f"{w}/{t}" for w, t in zip(row["words"], row["tags"], strict=True))
    if "heads" in row:
        return tree(row["words"], row["heads"], row["labels"])
    if "fills" in row:
        return "\t".join(f"{text} {chance:.4f}" for text, chance in row["fills"])
    return str(row.get("answer", row.get("value")))


def tree(words: list[str], heads: list[int], labels: list[str]) -> str:
    """A dependency tree: a line for each word, indented by its depth, with its number, its head's
    number and its relation, and an empty line at the end."""
    depth = lambda head: 1 + depth(heads[head - 1]) if head else 0  # noqa: E731
    rows = enumerate(zip(words, heads, labels, strict=True), 1)
    lines = (f"{i}\t{'  ' * depth(head)}{word}\t{head}\t{label}" for i, (word, head, label) in rows)
    return "\n".join([*lines, ""])


def bars(chances: dict[str, float], most: int = 5) -> list[str]:
    """The likeliest classes, each with its probability and a bar, of 30 characters for 1."""
    best = sorted(chances.items(), key=lambda item: -item[1])[:most]
    longest = max(len(name) for name, _ in best)
    return [f"  {name:{longest}}  {x:6.4f}  {'█' * round(30 * x)}" for name, x in best]
