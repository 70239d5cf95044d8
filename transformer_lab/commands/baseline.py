"""Scores what a text classifier must beat, on the same splits as its config.

    transformer_lab baseline --config=configs/finetune_sentiment.py

These are the most frequent class, and logistic regression on TF-IDF of words and word pairs, whose
regularisation C is chosen on the validation split.
"""

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from transformer_lab import cli
from transformer_lab.data import labelled, tfidf
from transformer_lab.errors import LabError, known
from transformer_lab.tasks import scores
from transformer_lab.training.config import Resolved, resolve

SCORES = ("accuracy", "f1", "matthews")


def define() -> None:
    cli.config_file()


def main(_: list[str]) -> None:
    table = Table("classifier", "split", "rows", *SCORES)
    for name, split, count, values in measure(resolve(cli.get_config())):
        table.add_row(name, split, f"{count:,}", *(f"{values[score]:.4f}" for score in SCORES))
    Console().print(table)


def measure(resolved: Resolved) -> Iterator[tuple[str, str, int, dict[str, float]]]:
    """Yields classifier, held-out split, its number of examples and scores, for both of them.

    Raises: LabError for a config of another task, or examples without a class.
    """
    if resolved.task_kind != "classification" or resolved.sections["task"].regression:
        raise LabError("the baseline needs a config of task classification, without regression")
    data, positive = labelled.load_labelled(resolved.sections["data"]), None
    if name := resolved.sections["task"].positive_label:
        positive = known("task.positive_label = ", name, data.labels)
    train, validation, test = map(columns, (data.train, data.validation, data.test))
    fitted, strength = tfidf.logistic(train, validation)
    models = {"majority": tfidf.majority(train), f"TF-IDF, C = {strength:g}": fitted}
    for title, model in models.items():
        for split, (texts, gold) in (("validation", validation), ("test", test)):
            if texts:
                guess = list(model.predict(texts))
                found = scores.accuracy(gold, guess), scores.f1(gold, guess, positive)
                values = (*found, scores.matthews(gold, guess))
                yield title, split, len(gold), dict(zip(SCORES, values, strict=True))


def columns(rows: list[labelled.LabelledRow]) -> tfidf.Rows:
    """The texts (the two of a sentence pair joined by a line break) and their classes."""
    for row in rows:
        if not (isinstance(row, labelled.Example) and isinstance(row.label, str)):
            raise LabError("the baseline needs texts with a class each: see config.data.source")
    return [f"{r.text}\n{r.pair}" if r.pair else r.text for r in rows], [r.label for r in rows]
