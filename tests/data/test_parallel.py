import dataclasses
import json
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer_lab.data.parallel import PairsConfig, PairSplits, load_pairs
from transformer_lab.data.sources.reverse import WORDS
from transformer_lab.data.splits import Item, clean_pairs, key, split_by_source
from transformer_lab.errors import LabError

REVERSE = PairsConfig(source="reverse", validation_size=30, test_size=40)


def rows_of_pages(pages=40, sentences=9):
    """Pages that share some sources: with case and space changed, with other targets."""
    rows = []
    for page in range(pages):
        for i in range(sentences):
            n = page * sentences + i
            source = f"Save the file {n % 7}" if n % 5 == 0 else f"sentence {n}"
            source = source.upper().replace(" ", "  ") if n % 2 else source
            rows.append(Item(f"page {page}", (source, f"target {n}")))
    return rows


def sources(rows):
    return [key(item.row[0]) for item in rows]


def hold_out(*settings):
    return list(split_by_source(*settings).values())


@pytest.mark.parametrize("seed", range(5))
def test_no_held_out_source_stands_in_another_split(seed):
    rows, report = rows_of_pages(), Counter()
    train, validation, test = hold_out(rows, 50, 60, seed, report)
    assert (len(validation), len(test)) == (50, 60)
    held = sources(validation) + sources(test)
    assert len(set(held)) == 110
    assert not set(held) & set(sources(train))
    # Training keeps whole pages, and no page of a held-out sentence.
    pages = {row.group for row in train}
    assert train == [row for row in rows if row.group in pages]
    assert not pages & {row.group for row in validation + test}
    assert len(train) + 110 + report.total() == len(rows)
    assert report["source_in_another_split"] > 0


def test_splits_depend_on_the_seed_and_not_on_the_order_of_groups():
    rows = rows_of_pages()
    pages = [rows[i : i + 9] for i in range(0, len(rows), 9)]
    other = [row for page in reversed(pages) for row in page]
    first = hold_out(rows, 20, 30, 3, Counter())
    again = hold_out(other, 20, 30, 3, Counter())
    assert sorted(first[0]) == sorted(again[0]) and first[1:] == again[1:]
    assert set(hold_out(rows, 20, 30, 4, Counter())[2]) != set(first[2])


@given(
    pages=st.lists(st.lists(st.sampled_from("aAbBcdefg"), max_size=4), min_size=3, max_size=9),
    sizes=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    seed=st.integers(0, 9),
)
def test_splits_are_disjoint_for_any_pages(pages, sizes, seed):
    rows = [
        Item(f"{p}", (text, f"{p} {i}"))
        for p, page in enumerate(pages)
        for i, text in enumerate(page)
    ]
    report = Counter()
    try:
        parts = hold_out(rows, *sizes, seed, report)
    except LabError:
        return
    assert (len(parts[1]), len(parts[2])) == sizes
    held = sources(parts[1]) + sources(parts[2])
    assert len(held) == len(set(held)) and not set(held) & set(sources(parts[0]))
    assert sum(map(len, parts)) + report.total() == len(rows)
    assert not {row.group for row in parts[0]} & {row.group for row in parts[1] + parts[2]}


def test_held_out_sizes_that_leave_no_training_pairs_are_refused():
    rows = [Item(f"{i}", (f"source {i}", "t")) for i in range(10)]
    assert [len(part) for part in hold_out(rows, 4, 5, 0, Counter())] == [1, 4, 5]
    with pytest.raises(LabError, match="10 pairs are too few"):
        hold_out(rows, 5, 5, 0, Counter())


def test_clean_counts_what_it_drops():
    pairs = [
        ("a", "b"),
        ("a", "b"),
        ("a", "c"),
        ("", "b"),
        ("a", " \t"),
        ("x" * 5, "y"),
        ("x", "yyyyy"),
    ]
    report = Counter()
    kept = clean_pairs([Item("", pair) for pair in pairs], 4, report)
    assert [item.row for item in kept] == [("a", "b"), ("a", "c")]
    assert report == {"duplicate": 1, "empty": 2, "too_long": 2}
    assert len(clean_pairs([Item("", pair) for pair in pairs], 0, Counter())) == 4


def test_reverse_is_the_words_backwards():
    splits = load_pairs(REVERSE)
    assert [len(splits.train), len(splits.validation), len(splits.test)] == [1930, 30, 40]
    for source, target in [*splits.train, *splits.validation, *splits.test]:
        assert source.split() == target.split()[::-1]
        assert 3 <= len(source.split()) <= 8
    assert {word for pair in splits.train for word in pair[0].split()} == set(WORDS)
    assert splits.report == {"read": 2000, "train": 1930, "validation": 30, "test": 40}
    assert len({source for part in (splits.train, splits.test) for source, _ in part}) == 1970


def test_max_pairs_limits_training_alone(tmp_path):
    file = tmp_path / "pairs.tsv"
    file.write_text("".join(f"source {i}\ttarget {i}\n" for i in range(300)))
    config = PairsConfig(source="files", path=str(file), validation_size=10, test_size=20)
    whole = load_pairs(config)
    some = load_pairs(dataclasses.replace(config, max_pairs=50))
    more = load_pairs(dataclasses.replace(config, max_pairs=90))
    assert len(some.train) == 50 and some.report["over_max_pairs"] == 220
    assert set(some.train) < set(more.train) < set(whole.train)
    assert (some.validation, some.test) == (whole.validation, whole.test)
    reverse = load_pairs(dataclasses.replace(REVERSE, max_pairs=70))
    assert [len(reverse.train), len(reverse.validation), len(reverse.test)] == [70, 30, 40]


def test_splits_and_fingerprint_are_the_same_in_another_process():
    code = (
        f"from transformer_lab.data.parallel import *\nprint(load_pairs({REVERSE!r}).fingerprint())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout.decode().strip() == load_pairs(REVERSE).fingerprint()


def test_fingerprint_sees_every_change():
    def splits(train, validation, test):
        return PairSplits(train, validation, test, {}, "")

    a, b = ("a", "b"), ("c", "d")
    prints = [
        s.fingerprint()
        for s in (
            splits([a, b], [], []),
            splits([b, a], [], []),
            splits([a], [b], []),
            splits([a], [], [b]),
            splits([("ab", ""), b], [], []),
            splits([("a", "B"), b], [], []),
        )
    ]
    assert len(set(prints)) == 6
    assert dataclasses.replace(splits([a, b], [], []), report={"x": 1}).fingerprint() == prints[0]


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"source": "catalogue"}, 'config.data.source = "catalogue".*mean "catalogues"'),
        ({"languages": "enfr"}, 'config.data.languages = "enfr"'),
        ({"languages": "en-en"}, 'config.data.languages = "en-en"'),
        ({"test_size": -1}, "config.data.test_size = -1"),
        ({"max_characters": -5}, "config.data.max_characters = -5"),
    ],
)
def test_a_bad_setting_is_refused_by_name(settings, message):
    with pytest.raises(LabError, match=message):
        PairsConfig(**settings)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"languages": "en-de"}, "the catalogues are en-fr or fr-en"),
        ({"source": "bible", "languages": "en-sp"}, 'bible has no "sp"'),
        ({"source": "libreoffice_help", "languages": "en-es"}, 'libreoffice_help has no "es"'),
        ({"path": "/no/where"}, "config.data.path: no folder /no/where"),
        ({"source": "files"}, "config.data.path"),
        ({"source": "files", "path": "/no/where.tsv"}, "no file /no/where.tsv"),
        ({"source": "tfds"}, "config.data.tfds_name is empty"),
    ],
)
def test_what_a_set_cannot_give_is_one_line(settings, message):
    with pytest.raises(LabError, match=message) as caught:
        load_pairs(PairsConfig(**settings))
    assert "\n" not in str(caught.value)


def varint(number):
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)


def message(field, content):
    return bytes([field << 3 | 2]) + varint(len(content)) + content


def tf_example(features):
    """A serialised tf.train.Example whose features are one string each."""
    entries = b""
    for name, text in features.items():
        value = message(1, message(1, text.encode()))
        entries += message(1, message(1, name.encode()) + message(2, value))
    return message(1, entries)


def prepare_tfds(folder, sizes):
    """A prepared data set `tiny/de-en` as TFDS lays it out, written without TensorFlow."""
    tfds = pytest.importorskip("tensorflow_datasets")
    writers = pytest.importorskip("array_record.python.array_record_module")
    root = folder / "tiny/de-en/1.0.0"
    root.mkdir(parents=True)
    splits = []
    for split, count in sizes.items():
        file = root / f"tiny-{split}.array_record-00000-of-00001"
        writer = writers.ArrayRecordWriter(str(file), "group_size:1")
        for i in range(count):
            writer.write(tf_example({"de": f"{split} Straße {i}", "en": f"{split} street {i}"}))
        writer.close()
        name = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
        splits.append({"name": split, "shardLengths": [str(count)], "filepathTemplate": name})
    info = {"name": "tiny", "configName": "de-en", "version": "1.0.0", "splits": splits}
    (root / "dataset_info.json").write_text(json.dumps({**info, "fileFormat": "array_record"}))
    tfds.features.Translation(languages=("de", "en")).save_config(str(root))


def tfds_config(tmp_path, **settings):
    settings = {"languages": "en-de", "tfds_name": "tiny/de-en", **settings}
    return PairsConfig(source="tfds", path=str(tmp_path), **settings)


def test_tfds_splits_are_read_lazily_with_fields_named_by_the_languages(tmp_path):
    prepare_tfds(tmp_path, {"train": 300, "validation": 2, "test": 3})
    splits = load_pairs(tfds_config(tmp_path))
    assert [len(splits.train), len(splits.validation), len(splits.test)] == [300, 2, 3]
    assert splits.train[1] == splits.train[-299] == ("train street 1", "train Straße 1")
    assert list(splits.test)[2] == ("test street 2", "test Straße 2")
    with pytest.raises(IndexError):
        splits.test[3]
    assert len(load_pairs(tfds_config(tmp_path, max_pairs=7)).train) == 7
    other = load_pairs(tfds_config(tmp_path, languages="de-en"))
    assert other.train[1] == ("train Straße 1", "train street 1")
    prints = [s.fingerprint() for s in (splits, load_pairs(tfds_config(tmp_path)), other)]
    assert prints[0] == prints[1] != prints[2]


def test_a_tfds_split_that_is_missing_is_cut_from_training(tmp_path):
    prepare_tfds(tmp_path, {"train": 10, "test": 3})
    splits = load_pairs(tfds_config(tmp_path, validation_size=4))
    assert [source for source, _ in splits.validation] == [
        f"train street {i}" for i in range(6, 10)
    ]
    assert [len(splits.train), len(splits.test)] == [6, 3]
    assert splits.train[-1][0] == "train street 5"


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"tfds_name": "tiny/en-xx"}, "tiny/en-xx is not prepared.*tfds build tiny/en-xx"),
        ({"languages": "en-dd"}, 'tiny/de-en has no field "dd"'),
    ],
)
def test_tfds_says_how_to_prepare_a_set(settings, message, tmp_path):
    prepare_tfds(tmp_path, {"train": 3, "validation": 1, "test": 1})
    with pytest.raises(LabError, match=message) as caught:
        load_pairs(tfds_config(tmp_path, **settings))
    assert "\n" not in str(caught.value)
