"""Scores what a text classifier or tagger must beat, on the same splits as its config.

    transformer_lab baseline --config=configs/finetune_sentiment.py

These are the most frequent class, and logistic regression on TF-IDF of words and word pairs, whose
regularisation C is chosen on the validation split; of tags each word's most frequent one, and a
hidden Markov model.
"""

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from transformer_lab import cli
from transformer_lab.data import labelled, tfidf
from transformer_lab.errors import LabError, known
from transformer_lab.tasks import scores
from transformer_lab.tasks.counted_tags import CountedTags
from transformer_lab.training.config import Resolved, resolve

NAMES = {"commonest": "each word's own", "likeliest": "hidden Markov model"}
SCORES = ("accuracy", "f1", "matthews")


def define() -> None:
    cli.config_file()


def main(_: list[str]) -> None:
    table = Table("classifier", "split", "rows", *SCORES)
    for name, split, count, values in measure(resolve(cli.get_config())):
        table.add_row(name, split, f"{count:,}", *(f"{x:.4f}" for x in values.values()))
    Console().print(table)


def measure(resolved: Resolved) -> Iterator[tuple[str, str, int, dict[str, float]]]:
    """Yields classifier, held-out split, its number of examples and scores, for both of them.

    Raises: LabError for a config of another task, or examples without a class.
    """
    if resolved.task_kind == "tagging":
        yield from measure_tags(labelled.load_labelled(resolved.sections["data"]))
        return
    if resolved.task_kind != "classification" or resolved.sections["task"].regression:
        raise LabError("the baseline needs a config of task classification or tagging")
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


def measure_tags(data: labelled.Splits) -> Iterator[tuple[str, str, int, dict[str, float]]]:
    """Yields name, held-out split, its number of words and their accuracy by `CountedTags`."""
    counted = CountedTags(data.train)
    for title in ("commonest", "likeliest"):
        for split in ("validation", "test"):
            if rows := getattr(data, split):
                guess = getattr(counted, title)([row.words for row in rows])
                both = sum((row.tags for row in rows), []), sum(guess, [])
                yield NAMES[title], split, len(both[0]), {"accuracy": scores.accuracy(*both)}


def columns(rows: list[labelled.LabelledRow]) -> tfidf.Rows:
    """The texts (the two of a sentence pair joined by a line break) and their classes."""
    for row in rows:
        if not (isinstance(row, labelled.Example) and isinstance(row.label, str)):
            raise LabError("the baseline needs texts with a class each: see config.data.source")
    return [f"{r.text}\n{r.pair}" if r.pair else r.text for r in rows], [r.label for r in rows]
