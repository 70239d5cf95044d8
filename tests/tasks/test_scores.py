import math
import random
import sys
import warnings

import pytest

from transformer_lab.errors import LabError
from transformer_lab.tasks import scores


def test_accuracy_is_the_share_of_equal_entries():
    assert scores.accuracy(["a", "b", "a", "c"], ["a", "b", "b", "c"]) == 0.75


def test_f1_of_one_class_and_of_all():
    pytest.importorskip("sklearn")
    gold, predicted = list("xxxxyyz"), list("xxyyyyx")
    # x: 2 of 3 found are right, 2 of 4 are found; y: 2 of 4, 2 of 2; z: never predicted.
    assert scores.f1(gold, predicted, positive="x") == pytest.approx(4 / 7)
    assert scores.f1(gold, predicted, positive="z") == 0.0
    assert scores.f1(gold, predicted) == pytest.approx((4 / 7 + 2 / 3 + 0) / 3)


def test_matthews_correlation():
    pytest.importorskip("sklearn")
    gold, predicted = [1, 1, 1, 1, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0, 1, 1]
    # TP 3, TN 2, FP 2, FN 1
    assert scores.matthews(gold, predicted) == pytest.approx((3 * 2 - 2) / math.sqrt(5 * 4 * 4 * 3))
    assert scores.matthews(gold, [1] * 8) == 0.0
    with warnings.catch_warnings(action="error"):
        assert scores.matthews([1] * 8, [1] * 8) == 0.0  # of one class nothing is told apart


def test_correlations_of_values_and_of_their_ranks():
    gold, predicted = [1.0, 2.0, 3.0, 4.0], [1.0, 4.0, 9.0, 16.0]
    assert scores.spearman(gold, predicted) == pytest.approx(1.0)
    assert scores.pearson(gold, predicted) == pytest.approx(25 / math.sqrt(5 * 129))
    assert scores.pearson(gold, [2.0] * 4) == scores.spearman([2.0] * 4, predicted) == 0.0


def test_span_f1_counts_whole_entities():
    pytest.importorskip("seqeval")
    gold = [["B-PER", "I-PER", "O", "B-LOC"], ["B-LOC", "O"]]
    predicted = [["B-PER", "O", "O", "B-LOC"], ["B-LOC", "B-PER"]]
    assert scores.span_f1(gold, predicted) == pytest.approx(2 * 2 / (3 + 4))
    assert scores.span_f1([["O"]], [["O"]]) == 0.0


@pytest.mark.parametrize(
    "sentence, scheme",
    [
        ("B-PER I-PER O B-LOC", "IOB2"),
        ("I-PER I-PER B-PER O I-LOC", "IOB1"),
        ("I-PER I-PER O I-LOC", "IO"),
        ("U-PER O B-LOC I-LOC L-LOC", "BILOU"),
        ("S-PER O B-LOC E-LOC", "IOBES"),
        ("NN VB S-x", ""),
        ("O O", ""),
    ],
)
def test_the_scheme_of_tags_is_seen(sentence, scheme):
    assert scores.tag_scheme([sentence.split()]) == scheme


@pytest.mark.parametrize(
    "gold, predicted, expected",
    [
        ("U-PER U-PER B-X", "U-PER O B-X", 0.8),  # seqeval's value of the same tags in IOBES
        ("B-PER I-PER L-PER U-PER", "B-PER I-PER L-PER O", 2 / 3),
        ("I-PER B-PER I-PER", "I-PER B-PER O", 0.5),
        ("I-PER I-PER O I-LOC", "I-PER I-PER O O", 2 / 3),
    ],
)
def test_span_f1_counts_entities_in_the_scheme_of_the_tags(gold, predicted, expected):
    assert scores.span_f1([gold.split()], [predicted.split()]) == pytest.approx(expected)


def entities(tags):
    """(type, first word, one past the last) of each; as in conlleval, an I that continues nothing,
    or another type, begins one."""
    found, inside = [], ""
    for i, tag in enumerate(tags):
        mark, _, kind = tag.partition("-")
        if mark == "I" and kind == inside:
            found[-1] = (kind, found[-1][1], i + 1)
        elif kind:
            found.append((kind, i, i + 1))
        inside = kind
    return found


def test_span_f1_is_that_of_the_entities():
    pytest.importorskip("seqeval")
    draw = random.Random(0)
    for _ in range(20):
        gold, predicted = (
            [draw.choices(["O", "B-a", "I-a", "B-b", "I-b"], k=n) for n in (4, 7)] for _ in "gp"
        )
        sides = [
            {(i, *span) for i, tags in enumerate(side) for span in entities(tags)}
            for side in (gold, predicted)
        ]
        expected = 2 * len(sides[0] & sides[1]) / max(1, sum(map(len, sides)))
        assert scores.span_f1(gold, predicted) == pytest.approx(expected)


@pytest.mark.parametrize(
    "text, normal",
    [
        ("The  U.S. Army\n", "us army"),
        ("an apple a day, the end", "apple day end"),
        ("Theatre of another", "theatre of another"),
        ("the-cat", "thecat"),
        ("“quoted”", "“quoted”"),  # marks beyond ASCII stay
        ("A.", ""),
    ],
)
def test_squad_answers_are_normalised(text, normal):
    assert scores.normalise_answer(text) == normal


@pytest.mark.parametrize(
    "answers, predicted, exact, f1",
    [
        (["Denver Broncos"], "the Denver Broncos!", 1, 1),
        (["Denver Broncos"], "Denver Broncos team", 0, 0.8),
        (["Denver", "Denver Broncos"], "Broncos of Denver", 0, 0.8),  # 2 / 3 and 4 / 5
        (["to be to"], "to to to", 0, 2 / 3),  # a word counts as often as it stands in both
        (["Denver"], "", 0, 0),
        (["Denver"], "the", 0, 0),
        ([], "", 1, 1),
        ([], "Denver", 0, 0),
        ([], "the", 1, 1),  # normalised, it is the empty answer
        (["the", "Denver"], "", 0, 0),  # "the" is dropped: this has an answer
        (["the", "..."], "", 1, 1),  # all are dropped: the empty one is right
        (["the"], "Denver", 0, 0),
    ],
)
def test_squad_scores_by_the_rules_of_its_second_version(answers, predicted, exact, f1):
    assert scores.exact_match(answers, predicted) == exact
    assert scores.answer_f1(answers, predicted) == pytest.approx(f1)


def test_squad_gives_means_in_per_cent():
    answers = [["Denver Broncos"], ["a cup"], [], []]
    predicted = ["Denver", "cup", "", "hat"]
    assert scores.squad(answers, predicted) == pytest.approx((50.0, 100 * (2 / 3 + 1 + 1) / 4))


@pytest.mark.parametrize(
    "score, gold, predicted",
    [
        *((score, ["a", "b"], ["a"]) for score in (scores.accuracy, scores.f1, scores.matthews)),
        *((score, [1.0, 2.0], [1.0]) for score in (scores.pearson, scores.spearman)),
        (scores.span_f1, [["O"], ["O"]], [["O"]]),
        (scores.squad, [["a"], ["b"]], ["a"]),
    ],
)
def test_lists_that_do_not_match_are_refused(score, gold, predicted):
    with pytest.raises(LabError, match="^2 references and 1 predictions"):
        score(gold, predicted)
    with pytest.raises(LabError, match="^0 references and 0 predictions"):
        score([], [])


def test_a_sentence_with_too_few_tags_is_named():
    with pytest.raises(LabError, match="^sentence 1: 2 words have 1 predicted tags"):
        scores.span_f1([["O"], ["O", "O"]], [["O"], ["O"]])


@pytest.mark.parametrize(
    "score, package, lists",
    [
        (scores.f1, "scikit-learn", ["a", "b"]),
        (scores.matthews, "scikit-learn", ["a", "b"]),
        (scores.pearson, "scipy", [1.0, 2.0]),
        (scores.span_f1, "seqeval", [["O"], ["B-x"]]),
    ],
)
def test_a_missing_package_is_one_line(score, package, lists, monkeypatch):
    for name in ("sklearn.metrics", "scipy.stats", "seqeval.metrics"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(LabError, match=f"^this score needs {package}: pip install {package}$"):
        score(lists, lists)
