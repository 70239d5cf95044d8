"""Answers scored as SQuAD's own scorer does, on hundreds of random predictions."""

import random
from itertools import groupby
from statistics import mean

import numpy as np
import pytest

from tests.tasks.test_reading import ROWS, trainer_of
from transformer_lab.tasks import scores
from transformer_lab.tasks.question_answering import Answer

TEXT = """the a an The AN Denver denver's Broncos broncos, (Broncos) U.S. us U-S Theatre then 1,000
1000 -- “Oslo” “the” Oslo É é a.m. $5 5 of of the-cat cat"""
WORDS = [*TEXT.split(), "in\u00a0Oslo"]
# Of `questions()`, by the evaluation script of SQuAD 2.0.
OFFICIAL = {
    "exact": 42.0,
    "f1": 54.28064574314579,
    "has_answer_exact": 35.58052434456929,
    "has_answer_f1": 53.97849549534943,
    "no_answer_exact": 54.88721804511278,
}


def questions(seed=0, count=400):
    """Gold answers and a prediction each; a third have no answer, many guesses are near one."""
    draw, found = random.Random(seed), []
    for _ in range(count):
        say = lambda most: " ".join(draw.choices(WORDS, k=int(draw.random() * most)))  # noqa: E731
        golds = [] if draw.random() < 1 / 3 else [say(5) for _ in range(1 + int(draw.random() * 3))]
        near, kind = (golds or [""])[-1], draw.random()
        guess = near if kind < 0.3 else f"{near} {say(3)}".upper() if kind < 0.6 else say(4)
        found.append((golds, guess))
    return found


def words_of(text):
    """The published rules: lower case, no ASCII mark, no article that is a whole word, split."""
    bare = "".join(c for c in text.lower() if c not in "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
    runs = ("".join(run) for _, run in groupby(bare, str.isalnum))
    return "".join(" " if run in ("a", "an", "the") else run for run in runs).split()


def both_scores(golds, guess):
    """Exact match and F1: the best over the answers of which a word is left, else of none."""
    found, mine = [], words_of(guess)
    for words in [w for gold in golds if (w := words_of(gold))] or [[]]:
        left = list(words)
        for word in mine:
            if word in left:
                left.remove(word)
        shared = len(words) - len(left)
        precision, recall = shared / max(len(mine), 1), shared / max(len(words), 1)
        f1 = 2 * precision * recall / (precision + recall) if shared else float(words == mine)
        found.append((float(words == mine), f1))
    return max(exact for exact, _ in found), max(f1 for _, f1 in found)


@pytest.mark.parametrize("seed", range(3))
def test_each_prediction_scores_as_the_published_rules_say(seed):
    for golds, guess in questions(seed):
        exact, f1 = both_scores(golds, guess)
        assert scores.exact_match(golds, guess) == exact, (golds, guess)
        assert scores.answer_f1(golds, guess) == pytest.approx(f1), (golds, guess)


def test_the_official_scorers_numbers_on_the_same_predictions():
    golds, guesses = zip(*questions(), strict=True)
    exact, f1 = scores.squad(golds, guesses)
    found = {"exact": exact, "f1": f1, **scores.squad_parts(golds, guesses)}
    assert found == pytest.approx(OFFICIAL, rel=1e-12)


def test_parts_are_left_out_where_there_is_nothing_to_part():
    assert scores.squad_parts([["x"], ["y"]], ["x", ""]) == {}
    assert scores.squad_parts([[], []], ["", "y"]) == {"no_answer_exact": 50.0}


def test_the_task_scores_questions_with_and_without_an_answer_apart(monkeypatch):
    task = trainer_of("question_answering", data__source="generated_spans", **ROWS).task
    rows = task.data.test
    # Every second question gets its right answer, or rightly none; the others a wrong word.
    gains = [1.0 if i % 2 or not row.impossible else -1.0 for i, row in enumerate(rows)]
    texts = ["zzz" if i % 2 or row.impossible else row.answers[0][0] for i, row in enumerate(rows)]
    guesses = [Answer(text, 0.0, gain) for text, gain in zip(texts, gains, strict=True)]
    monkeypatch.setattr(task, "answers", lambda *_: guesses)
    values = task.score({}, "test", lambda batch: batch, False).values
    right = [100.0 * (i % 2 == 0) for i in range(len(rows))]
    has, lacks = (
        [r for r, row in zip(right, rows, strict=True) if row.impossible == x]
        for x in (False, True)
    )
    assert has and lacks and mean(right) != mean(has)
    assert values["exact_match"] == values["f1"] == pytest.approx(np.mean(right))
    assert values["has_answer_exact"] == values["has_answer_f1"] == pytest.approx(mean(has))
    assert values["no_answer_exact"] == pytest.approx(mean(lacks))
