"""The one mechanism of splits: what is held out, limited, counted, refused, and told apart."""

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data.test_pipeline import some_batches, take
from transformer_lab.data import parentheses
from transformer_lab.data.documents import DocumentsConfig, load_documents
from transformer_lab.data.emoji import EmojiConfig, load_emoji
from transformer_lab.data.images.sources import ImageConfig, load_images
from transformer_lab.data.labelled import Example, LabelledConfig, Question, Tagged, load_labelled
from transformer_lab.data.parallel import PairsConfig, PairSplits, load_pairs
from transformer_lab.data.parentheses import ParenthesesConfig
from transformer_lab.data.sequences import SequencesConfig, load_sequences
from transformer_lab.data.splits import (
    SPLITS,
    Item,
    Splits,
    both_texts,
    distinct,
    key,
    shuffled,
    split_by_source,
)
from transformer_lab.errors import LabError

REVERSE = PairsConfig(source="reverse", validation_size=30, test_size=40)
LOADERS = {
    PairsConfig: load_pairs,
    DocumentsConfig: load_documents,
    LabelledConfig: load_labelled,
    ImageConfig: load_images,
    EmojiConfig: load_emoji,
    ParenthesesConfig: parentheses.load,
    SequencesConfig: load_sequences,
}


def load(config) -> Splits:
    return LOADERS[type(config)](config)


def parts(splits):
    return splits.train, splits.validation, splits.test


def everything(splits):
    return sorted(row for part in parts(splits) for row in part)


def name_of(row) -> str:
    """What makes two rows the same one: their texts, case and white space aside."""
    if isinstance(row, Tagged):
        texts = row.words
    elif isinstance(row, Question):
        texts = row.context.split() + ["?"] + row.question.split()
    else:
        texts = [row] if isinstance(row, str) else row[:1]
    return " ".join(" ".join(texts).split()).casefold()


# Pairs, held out by group and source.


def pages_of_pairs(pages=40, sentences=9):
    """Pages that share some sources: with case and space changed, with other targets."""
    items = []
    for page in range(pages):
        for i in range(sentences):
            n = page * sentences + i
            source = f"Save the file {n % 7}" if n % 5 == 0 else f"sentence {n}"
            source = source.upper().replace(" ", "  ") if n % 2 else source
            items.append(Item(f"page {page}", (source, f"target {n}")))
    return items


def sources(items):
    return [key(item.row[0]) for item in items]


def hold_out(*settings):
    return list(split_by_source(*settings).values())


@pytest.mark.parametrize("seed", range(5))
def test_no_held_out_source_stands_in_another_split(seed):
    items, report = pages_of_pairs(), Counter()
    train, validation, test = hold_out(items, 50, 60, seed, report)
    assert (len(validation), len(test)) == (50, 60)
    held = sources(validation) + sources(test)
    assert len(set(held)) == 110
    assert not set(held) & set(sources(train))
    # Training keeps whole pages, and no page of a held-out sentence.
    pages = {item.group for item in train}
    assert train == [item for item in items if item.group in pages]
    assert not pages & {item.group for item in validation + test}
    assert len(train) + 110 + report.total() == len(items)
    assert report["source_in_another_split"] > 0


def test_splits_depend_on_the_seed_and_not_on_the_order_of_groups():
    items = pages_of_pairs()
    pages = [items[i : i + 9] for i in range(0, len(items), 9)]
    other = [item for page in reversed(pages) for item in page]
    first = hold_out(items, 20, 30, 3, Counter())
    again = hold_out(other, 20, 30, 3, Counter())
    assert sorted(first[0]) == sorted(again[0]) and first[1:] == again[1:]
    assert set(hold_out(items, 20, 30, 4, Counter())[2]) != set(first[2])


@given(
    pages=st.lists(st.lists(st.sampled_from("aAbBcdefg"), max_size=4), min_size=3, max_size=9),
    sizes=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    seed=st.integers(0, 9),
)
def test_splits_are_disjoint_for_any_pages(pages, sizes, seed):
    items = [
        Item(f"{p}", (t, f"{p} {i}")) for p, page in enumerate(pages) for i, t in enumerate(page)
    ]
    report = Counter()
    try:
        train, *held = hold_out(items, *sizes, seed, report)
    except LabError:
        return
    assert tuple(map(len, held)) == sizes
    names = sources(sum(held, []))
    assert len(names) == len(set(names)) and not set(names) & set(sources(train))
    assert len(train) + len(names) + report.total() == len(items)
    assert not {item.group for item in train} & {item.group for item in sum(held, [])}


def test_pairs_that_are_dropped_are_counted_and_too_few_are_refused():
    items = [Item(f"{i}", (f"source {i}", "t")) for i in range(10)]
    assert [len(part) for part in hold_out(items, 4, 5, 0, Counter())] == [1, 4, 5]
    with pytest.raises(LabError, match="10 pairs are too few"):
        hold_out(items, 5, 5, 0, Counter())
    rows = [AB, AB, ("a", "c"), ("", "b"), ("a", " \t"), ("x" * 5, "y"), ("x", "y" * 5)]
    items, report = [Item("", row) for row in rows], Counter()
    found = distinct(items, both_texts, report, longest=4)
    assert [item.row for item in found] == [("a", "b"), ("a", "c")]
    assert report == {"duplicate": 1, "empty": 2, "too_long": 2}
    assert len(distinct(items, both_texts, Counter())) == 4


# All kinds of examples.

MADE = {
    "pairs": (REVERSE, "max_pairs"),
    "documents": (DocumentsConfig("patterns"), "max_documents"),
    "classes": (LabelledConfig("generated"), "max_examples"),
    "tags": (LabelledConfig("generated_tags"), "max_examples"),
    "questions": (LabelledConfig("generated_spans"), "max_examples"),
}
made = pytest.mark.parametrize("config, limit", MADE.values(), ids=MADE)


@made
def test_a_limit_is_of_training_alone_and_a_larger_one_only_adds(config, limit, tmp_path):
    if limit == "max_pairs":  # the source makes as many as it is asked for
        file = tmp_path / "pairs.tsv"
        file.write_text("".join(f"source {i}\ttarget {i}\n" for i in range(300)))
        config = PairsConfig("files", path=str(file), validation_size=10, test_size=20)
    whole, some, more = (load(replace(config, **{limit: n})) for n in (0, 50, 90))
    assert (len(some.train), len(more.train)) == (50, 90)
    names = [set(map(name_of, splits.train)) for splits in (some, more, whole)]
    assert names[0] < names[1] < names[2]
    assert some.report[f"over_{limit}"] == len(whole.train) - 50
    held = (whole.validation, whole.test, whole.labels)
    assert (some.validation, some.test, some.labels) == held
    assert some.train == [row for row in whole.train if name_of(row) in names[0]]  # in order


@made
def test_the_seed_alone_decides_and_no_row_stands_in_two_splits(config, limit):
    splits, again, other = (load(replace(config, split_seed=s)) for s in (0, 0, 1))
    assert splits.fingerprint() == again.fingerprint() != other.fingerprint()
    assert everything(splits) == everything(other) and splits.test != other.test
    counts = dict(splits.report)
    assert counts.pop("read") == sum(counts.values())
    assert [counts[split] for split in SPLITS] == list(map(len, parts(splits)))
    names = [set(map(name_of, part)) for part in parts(splits)]
    assert sum(map(len, names)) == len(set.union(*names)) == sum(map(len, parts(splits)))


A, B = Example("a", None, "x"), Example("b", None, "x")
AB, CD = ("a", "b"), ("c", "d")


@pytest.mark.parametrize(
    "make, contents",
    [
        (Splits, [(["a", "b"], [], []), (["b", "a"], [], []), (["a"], ["b"], []),
                  (["a"], [], ["b"]),
                  (["ab"], [], []), (["A", "b"], [], [])]),
        (Splits, [([A, B], [], [], ["x"]), ([B, A], [], [], ["x"]), ([A], [B], [], ["x"]),
                  ([A], [], [B], ["x"]), ([A, B], [], [], ["x", "y"]),
                  ([A, B._replace(label="y")], [], [], ["x"]),
                  ([A, B._replace(pair="")], [], [], ["x"])]),
        (PairSplits, [([AB, CD], [], []), ([CD, AB], [], []), ([AB], [CD], []), ([AB], [], [CD]),
                      ([("ab", ""), CD], [], []), ([("a", "B"), CD], [], [])]),
    ],
    ids=["documents", "labelled", "pairs"],
)  # fmt: skip
def test_a_fingerprint_sees_every_change_of_the_content_and_no_other(make, contents):
    whole = [make(*rows[:3], {}, "", *rows[3:]) for rows in contents]
    assert len({splits.fingerprint() for splits in whole}) == len(contents)
    other = replace(whole[0], report={"read": 2}, licence="mine")
    assert other.fingerprint() == whole[0].fingerprint()


def test_splits_and_batches_are_the_same_in_another_process_of_any_locale(tmp_path):
    (tmp_path / "p.tsv").write_text("".join(f"café {i}\té{i}\n" for i in range(9)), "utf-8")
    (tmp_path / "d.txt").write_text("\n\n".join(f"café\n{i}" for i in range(9)), "utf-8")
    configs = [
        REVERSE,
        PairsConfig("files", path=str(tmp_path / "p.tsv"), validation_size=1, test_size=1),
        DocumentsConfig("files", str(tmp_path / "d.txt")),
    ]
    code = (
        "from tests.data.test_splits import *\n"
        "from tests.data.test_pipeline import some_batches, take\n"
        "batches, plan = some_batches()\n"
        "batches.restore(batches.get_state() | {'next_index': 5})\n"
        f"prints = [load(config).fingerprint() for config in {configs!r}]\n"
        "print(json.dumps([prints, take(batches, len(plan))]))"
    )
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE)
    batches, plan = some_batches()
    with batches:
        expected = take(batches, 5 + len(plan))[5:]
    prints = [load(config).fingerprint() for config in configs]
    assert json.loads(done.stdout) == [prints, expected]
    assert everything(load(configs[1])) == [(f"café {i}", f"é{i}") for i in range(9)]


SHARES = [({"test_share": -0.1}, "config.data.test_share = -0.1"),
          ({"validation_share": 1.0}, "config.data.validation_share = 1.0")]  # fmt: skip
WRONG = {
    PairsConfig: [
        ({"source": "catalogue"}, 'config.data.source = "catalogue".*mean "catalogues"'),
        ({"languages": "enfr"}, 'config.data.languages = "enfr"'),
        ({"languages": "en-en"}, 'config.data.languages = "en-en"'),
        ({"test_size": -1}, "config.data.test_size = -1"),
        ({"max_characters": -5}, "config.data.max_characters = -5"),
        ({"languages": "en-de"}, "the catalogues are en-fr or fr-en"),
        ({"source": "bible", "languages": "en-sp"}, 'bible has no "sp"'),
        ({"source": "libreoffice_help", "languages": "en-es"}, 'libreoffice_help has no "es"'),
        ({"path": "/no/where"}, "config.data.path: no folder /no/where"),
        ({"source": "files"}, "config.data.path"),
        ({"source": "files", "path": "/no/where.tsv"}, "no file /no/where.tsv"),
        ({"source": "tfds"}, "config.data.tfds_name is empty"),
    ],
    DocumentsConfig: [
        *SHARES,
        ({"source": "browm"}, 'config.data.source = "browm".*mean "brown"'),
        ({"max_documents": -1}, "config.data.max_documents = -1"),
        ({"path": "/no/where"}, "config.data.path: no folder /no/where"),
        ({"source": "files"}, '"files" needs config.data.path'),
        ({"source": "files", "path": "/no/where.txt"}, "cannot read /no/where.txt"),
        ({"source": "tfds"}, "config.data.tfds_name is empty"),
        ({"source": "patterns", "test_share": 0.5, "validation_share": 0.5},
         "300 examples in 300 groups are too few: .*validation_share = 0.5 and test_share = 0.5"),
    ],
    LabelledConfig: [
        *SHARES,
        ({"source": "brown_pas"}, 'config.data.source = "brown_pas".*mean "brown_pos"'),
        ({"max_examples": -1}, "config.data.max_examples = -1"),
        ({"source": "spam", "path": "/no/where"}, "config.data.path: no folder /no/where"),
        ({"source": "files"}, '"files" needs config.data.path'),
        ({"source": "files", "path": "/no/where.csv"}, "cannot read /no/where.csv"),
        ({"source": "generated", "test_share": 0.5, "validation_share": 0.5},
         "are too few: config.data.validation_share = 0.5 and test_share = 0.5 leave none"),
    ],
    ImageConfig: [
        *SHARES,
        ({"source": "digit"}, r'config.data.source = "digit" is unknown \(did you mean "digits"'),
        ({"share": 0.0}, "config.data.share = 0.0 is no share"),
        ({"channels": 4}, "config.data.channels = 4"),
        ({"size": (8,)}, r"config.data.size = \(8,\)"),
        ({"test_share": 1.0}, "config.data.test_share = 1.0"),
        ({"source": "idx"}, 'source = "idx" needs config.data.path'),
        ({"source": "folders", "path": "/none"}, "config.data.path: no folder /none"),
        ({"source": "table", "path": "/none.csv"}, "config.data.path: /none.csv is no .csv"),
        ({"source": "tfds"}, "config.data.tfds_name is empty"),
        ({"source": "idx", "path": "/none"}, "/none needs train-images-idx3-ubyte"),
    ],
    EmojiConfig: [
        *SHARES,
        ({"source": "emojis"}, 'did you mean "emoji"'),
        ({"artist": "googel"}, 'did you mean "google"'),
        ({"languages": ("en", "xx")}, "config.data.languages"),
        ({"max_concepts": -1}, "config.data.max_concepts = -1"),
        ({"path": "/nowhere"}, "there is no folder"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    "make, settings, message",
    [(make, *case) for make, cases in WRONG.items() for case in cases],
)
def test_what_cannot_be_loaded_is_one_line(make, settings, message):
    with pytest.raises(LabError, match=message):
        load(make(**settings))


def test_users_rows_without_classes_are_split_by_the_hash_of_their_text(tmp_path):
    texts, split = [f"text {i}" for i in range(20)], []
    for labels in ([f"{i}.5" for i in range(20)], ["x"] * 20):
        rows = zip(texts, labels, strict=True)
        (tmp_path / "a.csv").write_text("text,label\n" + "".join(f"{t},{b}\n" for t, b in rows))
        found = load(LabelledConfig("files", str(tmp_path / "a.csv"), test_share=0.2))
        split.append([[row.text for row in part] for part in parts(found)])
    assert split[0] == split[1]
    order = shuffled(list(map(key, texts)), 0)
    assert set(split[0][2]) == set(order[:4]) and set(split[0][1]) == set(order[4:6])
