from collections import Counter

import pytest

from transformer_lab.data.labelled import Example, LabelledConfig, load_labelled, row_key
from transformer_lab.data.sources import generated, generated_spans, generated_tags
from transformer_lab.data.splits import Splits
from transformer_lab.errors import LabError


def load(source, path="", **settings):
    return load_labelled(LabelledConfig(source, str(path), **settings))


def parts(splits):
    return splits.train, splits.validation, splits.test


def everything(splits):
    return sorted(row for part in parts(splits) for row in part)


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


@pytest.mark.parametrize("source", ["generated", "generated_tags", "generated_spans"])
def test_max_examples_limits_training_alone(source):
    whole, some, more = (load(source, max_examples=n) for n in (0, 50, 90))
    assert (len(some.train), len(more.train)) == (50, 90)
    keys = [set(map(row_key, splits.train)) for splits in (some, more, whole)]
    assert keys[0] < keys[1] < keys[2]
    assert some.report["over_max_examples"] == len(whole.train) - 50
    held = (whole.validation, whole.test, whole.labels)
    assert (some.validation, some.test, some.labels) == held
    assert some.train == [row for row in whole.train if row_key(row) in keys[0]]  # in order


@pytest.mark.parametrize("seed", range(2))
def test_splits_depend_on_the_seed_alone(seed):
    splits, again, other = (load("generated", split_seed=s) for s in (seed, seed, seed + 1))
    assert splits.fingerprint() == again.fingerprint() != other.fingerprint()
    assert everything(splits) == everything(other) and splits.test != other.test
    counts = dict(splits.report)
    assert counts.pop("read") == 300 == sum(counts.values())
    keys = [set(map(row_key, part)) for part in parts(splits)]
    assert sum(map(len, keys)) == len(set.union(*keys)) == 300


def test_fingerprint_sees_every_change():
    a, b = Example("a", None, "x"), Example("b", None, "x")
    contents = [
        ([a, b], [], [], ["x"]),
        ([b, a], [], [], ["x"]),
        ([a], [b], [], ["x"]),
        ([a], [], [b], ["x"]),
        ([a, b], [], [], ["x", "y"]),
        ([a, b._replace(label="y")], [], [], ["x"]),
        ([a, b._replace(pair="")], [], [], ["x"]),
    ]
    splits = lambda content: Splits(*content[:3], {}, "", content[3])  # noqa: E731
    assert len({splits(content).fingerprint() for content in contents}) == 7
    same = Splits(*contents[0][:3], {"read": 2}, "mine", contents[0][3])
    assert same.fingerprint() == splits(contents[0]).fingerprint()


@pytest.mark.parametrize(
    "source, settings, message",
    [
        ("brown_pas", {}, 'config.data.source = "brown_pas".*mean "brown_pos"'),
        ("generated", {"test_share": -0.1}, "config.data.test_share = -0.1"),
        ("generated", {"validation_share": 1.0}, "config.data.validation_share = 1.0"),
        ("generated", {"max_examples": -1}, "config.data.max_examples = -1"),
        ("spam", {"path": "/no/where"}, "config.data.path: no folder /no/where"),
        ("files", {}, '"files" needs config.data.path'),
        ("files", {"path": "/no/where.csv"}, "cannot read /no/where.csv"),
        (
            "generated",
            {"test_share": 0.5, "validation_share": 0.5},
            "are too few: config.data.validation_share = 0.5 and test_share = 0.5 leave none",
        ),
    ],
)
def test_what_cannot_be_loaded_is_one_line(source, settings, message):
    with pytest.raises(LabError, match=message) as caught:
        load(source, **settings)
    assert "\n" not in str(caught.value)
