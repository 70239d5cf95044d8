"""The baseline of classification, by value on sets that one can work out."""

import pytest

from transformer_lab.commands import baseline
from transformer_lab.data import tfidf
from transformer_lab.errors import LabError
from transformer_lab.training.config import default_config, resolve

# Alike in their words, unlike in their pairs of words.
SETS = {
    "train": [
        "not good\tbad",
        "good not\tfine",
        "so not good\tbad",
        "so good not\tfine",
        "x\tfine",
    ],
    "validation": ["very not good\tbad", "very good not\tfine"],
    "test": ["not good at all\tbad", "good not at all\tfine", "oh not good\tbad"],
}


def resolved(tmp_path, sets=SETS, task="classification", **task_settings):
    for split, rows in sets.items():
        lines = ["text\tlabel", *rows]
        (tmp_path / f"{split}.tsv").write_text("\n".join(lines), encoding="utf-8")
    config = default_config(model="encoder", task=task)
    config.data.update(source="files", path=str(tmp_path))
    config.task.update(task_settings)
    return resolve(config)


def table(found):
    return {(name.split(",")[0], split): (count, values) for name, split, count, values in found}


def test_pairs_of_words_are_told_apart_and_the_majority_is_counted(tmp_path):
    rows = table(baseline.measure(resolved(tmp_path)))
    assert rows["TF-IDF", "test"] == (3, {"accuracy": 1.0, "f1": 1.0, "matthews": 1.0})
    assert rows["TF-IDF", "validation"] == (2, {"accuracy": 1.0, "f1": 1.0, "matthews": 1.0})
    # "fine" of everything: right once in three; F1 of fine is 2 / 4, that of bad 0.
    assert rows["majority", "test"] == (
        3, {"accuracy": pytest.approx(1 / 3), "f1": pytest.approx(1 / 4), "matthews": 0.0}
    )  # fmt: skip


def test_f1_is_that_of_the_positive_label(tmp_path):
    rows = table(baseline.measure(resolved(tmp_path, positive_label="fine")))
    assert rows["majority", "test"][1]["f1"] == pytest.approx(1 / 2)
    with pytest.raises(LabError, match=r'task.positive_label = "fin" .*did you mean "fine"'):
        table(baseline.measure(resolved(tmp_path, positive_label="fin")))


def test_c_is_the_smallest_of_those_that_are_best_on_validation():
    train = [f"{'a' if i < 6 else 'b'} w{i}" for i in range(12)], ["x"] * 9 + ["y"] * 3
    assert tfidf.logistic(train, (["a w1"], ["x"]))[1] == tfidf.STRENGTHS[0]  # all are right
    held = ["b w9", "b w10", "a w2"], ["y", "y", "x"]
    model, chosen = tfidf.logistic(train, held)
    assert chosen > tfidf.STRENGTHS[0] and model.score(*held) == 1.0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"task": "tagging"}, "task classification"),
        ({"regression": True}, "without regression"),
        ({"sets": {"train": [f"t{i}\t{i}.5" for i in range(9)]}}, "texts with a class each"),
        ({"sets": {**SETS, "train": ["a\tbad", "b\tbad"]}}, "two classes to train on"),
    ],
)
def test_what_has_no_baseline_is_one_line(changes, words, tmp_path):
    with pytest.raises(LabError, match=words):
        list(baseline.measure(resolved(tmp_path, **changes)))
