"""Generated parentheses: exact classes, controlled lengths, nothing that gives the label away."""

import re
from collections import Counter
from itertools import product
from random import Random

import pytest

from transformer_lab.data.labelled import Example
from transformer_lab.data.parentheses import (
    ALPHABETS,
    ParenthesesConfig,
    balanced,
    baselines,
    is_balanced,
    load,
    of_length,
    unbalanced,
)
from transformer_lab.errors import LabError

SMALL = {"train_size": 400, "validation_size": 40, "test_size": 60, "other_size": 20}


def erased(text, symbols):
    """Balanced is what vanishes when neighbours that match are taken out again and again."""
    pairs = "|".join(re.escape(a + b) for a, b in ALPHABETS[symbols].items())
    while text != (text := re.sub(pairs, "", text)):
        pass
    return not text


@pytest.mark.parametrize(("symbols", "length"), [("signs", 10), ("ten", 4)])
def test_the_stack_check_equals_erasing_pairs_on_every_text(symbols, length):
    alphabet = [s for pair in ALPHABETS[symbols].items() for s in pair]
    texts = ["".join(t) for n in range(length + 1) for t in product(alphabet, repeat=n)]
    assert [is_balanced(t, symbols) for t in texts] == [erased(t, symbols) for t in texts]


def test_every_balanced_text_is_drawn_and_none_oftener_than_others():
    draw, counts = Random(0), Counter()
    for _ in range(7000):
        counts[balanced(4, "signs", draw)] += 1
    assert len(counts) == 14  # Catalan's number of four pairs
    assert all(is_balanced(text, "signs") for text in counts)
    assert max(abs(n - 500) for n in counts.values()) < 110  # five deviations
    ten = Counter(balanced(2, "ten", draw) for _ in range(3000))
    assert len(ten) == 2 * 25 and all(is_balanced(text, "ten") for text in ten)


@pytest.mark.parametrize("symbols", ALPHABETS)
def test_a_negative_has_the_symbols_of_its_positive_and_a_near_miss_two_of_them_swapped(symbols):
    draw = Random(1)
    for pairs in (1, 2, 8):
        for near in (True, False):
            text = balanced(pairs, symbols, draw)
            other = unbalanced(text, symbols, near, draw)
            assert not erased(other, symbols) and Counter(other) == Counter(text)
            if near:
                assert sum(a != b for a, b in zip(text, other, strict=True)) == 2


@pytest.mark.parametrize("symbols", ALPHABETS)
def test_splits_are_labelled_right_and_share_no_held_out_text(symbols):
    config = ParenthesesConfig(symbols=symbols, min_length=12, max_length=20, **SMALL)
    splits = load(config)
    assert load(config) == splits
    sizes = [len(splits.train), len(splits.validation), len(splits.test)]
    assert sizes == [400, 40, 60]
    for rows in (splits.train, splits.validation, splits.test):
        for row in rows:
            assert (row.label == "balanced") == erased(row.text, symbols)
        lengths = Counter((row.label, len(row.text)) for row in rows)
        assert {n for _, n in lengths} == {12, 14, 16, 18, 20}
        assert all(lengths["balanced", n] == lengths["unbalanced", n] for n in range(12, 21))
    held = {row.text for row in splits.test + splits.validation}
    assert not held & {row.text for row in splits.train}
    far = of_length(config, 48, set())
    assert {len(row.text) for row in far} == {48} and len(far) == 20
    assert all((row.label == "balanced") == erased(row.text, symbols) for row in far)
    trained = {row.text for row in splits.train}
    assert not trained & {row.text for row in of_length(config, 12, trained)}


def test_baselines_are_those_of_the_counts():
    rows = lambda text: [Example(w[1:], None, w[0]) for w in text.split()]  # noqa: E731
    train = rows("a+ a+ b++ b++ b++++ b++++")
    test = rows("a+ b++ b+++ a+++ a+++++ a+")
    found = baselines(train, test)
    assert found == {"majority_baseline": 2 / 6, "length_baseline": 4 / 6}
    splits = load(ParenthesesConfig(min_length=12, max_length=20, **SMALL))
    assert set(baselines(splits.train, splits.test).values()) == {0.5}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"symbols": "sign"}, 'did you mean "signs"'),
        ({"min_length": 5}, "even"),
        ({"min_length": 40}, "smallest"),
        ({"test_size": 0}, "test_size"),
        ({"near_misses": 2.0}, "near_misses"),
    ],
)
def test_impossible_settings_are_refused(change, words):
    with pytest.raises(LabError, match=words):
        ParenthesesConfig(**change)
    with pytest.raises(LabError, match="too few texts of 2 symbols"):
        load(ParenthesesConfig(min_length=2, max_length=2, **SMALL))
