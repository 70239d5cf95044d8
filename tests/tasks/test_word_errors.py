"""The word error rate against counts by hand and brute force."""

import functools
import itertools

import pytest

from transformer_lab.errors import LabError
from transformer_lab.tasks.word_errors import distance, normalised, spelt, word_error_rate


def test_errors_of_all_texts_are_counted_together():
    wanted = ["Please press one.", "Thank you", "good-bye"]
    found = ["please press 1", "thank you very much", "Good bye!"]
    assert word_error_rate(wanted, found) == 3 / 7
    assert word_error_rate(wanted, found, english=True) == 2 / 7
    assert word_error_rate(["a b"], [""]) == 1.0
    assert word_error_rate(["[beep]", "a"], ["b c", "a"]) == 2.0


def test_the_distance_is_the_fewest_changes():
    @functools.cache
    def fewest(a, b):
        if not a or not b:
            return len(a) + len(b)
        change = fewest(a[1:], b[1:]) + (a[0] != b[0])
        return min(change, 1 + fewest(a[1:], b), 1 + fewest(a, b[1:]))

    words = [w for n in range(5) for w in itertools.product("ab", repeat=n)]
    for a, b in itertools.product(words, words):
        assert distance(a, b) == fewest(a, b)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("It's 5 a.m., isn\u2019t it?", "its 5 am isnt it"),
        ("the caller\u2019s keys' (beep) [noise] end...", "the callers keys end"),
        ("voice-mail \uff21\uff42", "voice mail ab"),
        ("\u00c9t\u00e9, na\u00efve", "\u00e9t\u00e9 na\u00efve"),
    ],
)
def test_what_of_a_text_counts(text, words):
    assert normalised(text) == words.split()


def test_numbers_are_spelt_where_that_is_asked_for():
    found = normalised("press 12 or 307", english=True)
    assert " ".join(found) == "press twelve or three hundred seven"
    found = normalised("1st 12th, 90th 101st 17th street 2nds", english=True)
    wanted = "first twelfth ninetieth hundred first seventeenth street two nds"
    assert " ".join(found) == wanted
    said = {0: "zero", 19: "nineteen", 20: "twenty", 62: "sixty two", 100: "one hundred"}
    said |= {1_005: "one thousand five", 2_300_000: "two million three hundred thousand"}
    assert {number: spelt(number) for number in said} == said


def test_english_contractions_are_written_out_and_fillers_left_out():
    said = (
        "Um, I'm sorry, that's what the user\u2019s mailbox can't do: let's hmm wait, we won\u2019t"
    )
    wanted = "i am sorry that is what the users mailbox can not do let us wait we will not"
    assert " ".join(normalised(said, english=True)) == wanted
    said = "They'd cannot, isn't it; you've seen how's she'll shan't, umbrella's summit"
    wanted = "they would can not is not it you have seen how is she will shall not umbrellas summit"
    assert " ".join(normalised(said, english=True)) == wanted
    assert " ".join(normalised("um, I'm", english=False)) == "um im"


def test_what_cannot_be_scored_is_refused():
    with pytest.raises(LabError, match="1 references for 2 transcripts"):
        word_error_rate(["a"], ["a", "b"])
    with pytest.raises(LabError, match="at least one word"):
        word_error_rate(["[beep]"], ["a"])
