"""What a trained model says: `python -m transformer_lab.predict --workdir=runs/sent "A text."`.

Classes with probabilities, tags of words, or an answer ("question<tab>context"), as the run was
trained for; of each line of standard input if no text is given. A run on images takes their files
in the place of texts. `--json` writes all that is known.
"""

import json
import sys

from absl import flags

from transformer_lab import cli
from transformer_lab.errors import LabError
from transformer_lab.training import runs

flags.DEFINE_string("workdir", "", "Directory of the trained run.")
flags.DEFINE_integer("average", 0, "How many checkpoints to average; 0: as the config says.")
flags.DEFINE_string("init_from", "", "Where an adapted run's base lies now, if it was moved.")
flags.DEFINE_bool("json", False, "Write a JSON object a text.")
GROUP = 256  # lines that are read before they are answered


def main(texts: list[str]) -> None:
    args = flags.FLAGS
    config, workdir = cli.get_config(), cli.get_workdir()
    trainer, params = runs.open_run(config, workdir, args.average, args.init_from)
    task = trainer.task
    if not hasattr(task, "predict"):
        raise LabError(
            f"a run of {config.task.kind} does not predict: see translate, generate and evaluate"
        )
    sys.stdout.reconfigure(encoding="utf-8")
    if not texts:
        texts = list(cli.input_lines())
    for first in range(0, len(texts), GROUP):
        for row in task.predict(params, texts[first : first + GROUP], trainer.place):
            print(json.dumps(row, ensure_ascii=False) if args.json else show(row), flush=True)


def show(row: dict) -> str:
    """One line of what was found."""
    if "label" in row:
        return f"{row['label']}\t{row['probability']:.4f}"
    if "tags" in row:
        return " ".join(f"{w}/{t}" for w, t in zip(row["words"], row["tags"], strict=True))
    if "fills" in row:
        return "\t".join(f"{text} {chance:.4f}" for text, chance in row["fills"])
    return str(row.get("answer", row.get("value")))


if __name__ == "__main__":
    cli.main(main, lambda: cli.workdir_config(runs.stored_config), words=True)
