"""Sources that are made on the fly: what they say is true, and the same every time."""

from collections import Counter

from transformer_lab.data.parallel import PairsConfig, load_pairs
from transformer_lab.data.sources import generated, generated_spans, generated_tags
from transformer_lab.data.sources.patterns import patterns
from transformer_lab.data.sources.reverse import WORDS


def test_reverse_is_the_words_backwards():
    splits = load_pairs(PairsConfig("reverse", validation_size=30, test_size=40))
    assert [len(splits.train), len(splits.validation), len(splits.test)] == [1930, 30, 40]
    for source, target in [*splits.train, *splits.validation, *splits.test]:
        assert source.split() == target.split()[::-1]
        assert 3 <= len(source.split()) <= 8
    assert {word for pair in splits.train for word in pair[0].split()} == set(WORDS)
    assert splits.report == {"read": 2000, "train": 1930, "validation": 30, "test": 40}
    assert len({source for part in (splits.train, splits.test) for source, _ in part}) == 1970


def test_patterns_answer_what_they_told():
    texts = list(patterns(40))
    assert len(set(texts)) == 40 and texts == list(patterns(40))
    for text in texts:
        told, *asked = text.split("\n")
        facts = {
            fact.split(" has a ")[0].strip(): fact.split(" has a ")[1].strip()
            for fact in told.split(".")[:-1]
        }
        answers = [
            line.removeprefix("what has ").removesuffix(" .").split(" ? a ") for line in asked
        ]
        assert len(answers) == 4 and dict(answers) == facts


def test_generated_texts_have_the_label_of_most_of_their_words():
    for item in generated.labelled(None, Counter()).parts["train"]:
        words = item.row.text.split()
        more = words.count("good") > words.count("bad")
        assert item.row.label == ("positive" if more else "negative")


def test_generated_tags_are_whole_entities():
    rows = [item.row for item in generated_tags.labelled(None, Counter()).parts["train"]]
    assert {tag for row in rows for tag in row.tags} == {"O", "B-PER", "I-PER", "B-LOC", "I-LOC"}
    for row in rows:
        starts = [tag.removeprefix("B-") for tag in row.tags if tag[0] == "B"]
        assert starts == ["PER", "PER", "LOC"] and len(row.words) == len(row.tags)
        assert all((tag[0] == "I") == (word == "york") for word, tag in zip(*row, strict=True))


def test_generated_questions_are_answered_by_their_context():
    rows = [item.row for item in generated_spans.labelled(None, Counter()).parts["train"]]
    assert 50 < sum(row.impossible for row in rows) < 100
    for row in rows:
        facts = dict(fact.split(" has the ") for fact in row.context[:-2].split(" . "))
        owner = row.question.removeprefix("what has ").removesuffix(" ?")
        assert row.impossible == (owner not in facts) == (row.answers == [])
        for text, start in row.answers:
            assert facts[owner] == text == row.context[start : start + len(text)]
