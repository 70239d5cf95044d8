"""The baselines, by value on sets that one can work out."""

import math
import warnings

import numpy as np
import pytest
from PIL import Image
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from tests.tiny import leave_run, tiny_config
from transformer_lab import text
from transformer_lab.commands import baseline
from transformer_lab.data import tfidf
from transformer_lab.errors import LabError
from transformer_lab.tasks import baselines
from transformer_lab.text import word_translation
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
        ({"task": "masked_language_modeling"}, "a baseline needs a task classification, "),
        ({"regression": True}, "task.regression has none"),
        ({"sets": {"train": [f"t{i}\t{i}.5" for i in range(9)]}}, "texts with a class each"),
        ({"sets": {**SETS, "train": ["a\tbad", "b\tbad"]}}, "two classes to train on"),
    ],
)
def test_what_has_no_baseline_is_one_line(changes, words, tmp_path):
    with pytest.raises(LabError, match=words):
        list(baseline.measure(resolved(tmp_path, **changes)))


def test_a_dictionary_learns_which_word_became_which():
    """Of "a b" -> "x y" and "b" -> "y" alone, y is b's, so that x is a's."""
    pairs = [("a b", "x y"), ("b", "y"), ("b c", "z y")]
    words = word_translation.train(pairs, 20)
    assert words == {"a": "x", "b": "y", "c": "z"}
    assert word_translation.translate(words, "c d a") == "z d x"


def test_a_dictionary_translates_words_that_stay_in_their_order(tmp_path):
    """Each word has one translation: with all of them known, BLEU is 100, of the source 0."""
    rng = np.random.default_rng(0)
    draw = lambda: " ".join(map(str, rng.choice(8, 6)))  # noqa: E731
    lines = [f"{text}\t{' '.join('n' + w for w in text.split())}" for text in
             (draw() for _ in range(200))]  # fmt: skip
    (tmp_path / "pairs.tsv").write_text("\n".join(lines), encoding="utf-8")
    config = default_config(model="encoder_decoder", task="translation")
    config.data.update(source="files", path=str(tmp_path / "pairs.tsv"))
    config.tokenizer.kind = "word"
    found = table(baseline.measure(resolve(config)))
    assert found["dictionary", "test"][1]["bleu"] == pytest.approx(100)
    assert found["the source", "test"][1]["bleu"] == 0
    assert found["dictionary", "test"][0] == found["dictionary", "validation"][0] == 20


class Late(LogisticRegression):
    """A fit that ends before it has converged, of which scikit-learn warns."""

    def fit(self, *data):
        warnings.warn("late", ConvergenceWarning, stacklevel=2)
        return super().fit(*data)


def test_regression_on_pixels_tells_dark_images_from_light_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(baselines, "LogisticRegression", Late)
    rng = np.random.default_rng(0)
    for name, low, count in (("dark", 0, 30), ("light", 150, 40)):
        (tmp_path / name).mkdir()
        for i in range(count):
            pixels = rng.integers(low, low + 100, (8, 8), np.uint8)
            Image.fromarray(pixels).save(tmp_path / name / f"{i}.png")
    config = default_config(model="vision", task="image_classification")
    config.data.update(source="folders", path=str(tmp_path), channels=1)
    config.model.update(image_size=(8, 8), patch_size=(4, 4))
    with warnings.catch_warnings(action="error"):
        found = table(baseline.measure(resolve(config)))
    assert found["pixels", "test"] == (7, {"accuracy": 1.0})
    assert found["majority", "test"] == (7, {"accuracy": pytest.approx(4 / 7)})


def test_n_grams_are_scored_in_a_language_models_tokens(tmp_path):
    """A text of one letter again and again: each order but the first is sure of the next one."""
    for split, size in (("train", 400), ("validation", 50), ("test", 60)):
        (tmp_path / f"{split}.txt").write_text("ab" * size, encoding="utf-8")
    config = default_config(model="decoder", task="language_modeling")
    config.data.update(source="files", path=str(tmp_path))
    config.tokenizer.kind = "char"
    config.model.update(layers=1, width=8, heads=1, head_dim=8, feed_forward_width=8)
    config.batch.update(rows=1, length=16)
    found = table(baseline.measure(resolve(config), order=2))
    assert {name for name, _ in found} == {"1-grams", "2-grams"}
    first, second = found["1-grams", "test"][1], found["2-grams", "test"][1]
    assert second["loss"] < 0.1 < math.log(2) < first["loss"]
    assert second["accuracy"] > 0.98 and first["accuracy"] == pytest.approx(0.5, abs=0.02)


def test_forecasts_are_scored_on_the_origins_of_each_split(tmp_path):
    (tmp_path / "s.csv").write_text("date,a\n" + "\n".join(f"{2000 + k},{k}" for k in range(1, 9)))
    config = default_config(model="wavenet", task="forecasting")
    config.data.update(source="files", path=str(tmp_path / "s.csv"), horizon=2)
    found = table(baseline.measure(resolve(config)))
    smape = pytest.approx(100 * (1 / 13 + 2 / 14))  # 6 and 6 of 7 and 8
    assert found["naive", "test"] == (1, {"smape": smape, "mase": pytest.approx(1.5)})
    assert found["ar", "test"][1]["smape"] < 1e-6


def test_a_runs_own_tokenizer_is_used_and_none_is_trained_again(tmp_path, monkeypatch):
    run = tiny_config()
    leave_run(run, tmp_path)
    assets = baseline.assets_of(tmp_path)
    monkeypatch.setattr(text, "train", None)
    found = table(baseline.measure(resolve(run), assets=assets))
    assert found["dictionary", "test"][0] == 10
