import json
import os
import subprocess
import sys

import pytest

from transformer_lab.data.parallel import PairsConfig, load_pairs
from transformer_lab.errors import LabError

PAIRS = [(f"the café {i}", f"le «café» n° {i}") for i in range(12)]


def load(path, **settings):
    settings = {"validation_size": 2, "test_size": 3, **settings}
    return load_pairs(PairsConfig(source="files", path=str(path), **settings))


def everything(splits):
    return sorted([*splits.train, *splits.validation, *splits.test])


def write(file, text):
    file.write_bytes(text.encode("utf-8"))
    return file


def tsv(file, pairs=PAIRS, end="\n"):
    return write(file, "".join(f"{a}\t{b}{end}" for a, b in pairs))


def jsonl(file, pairs=PAIRS, names=("source", "target")):
    return write(
        file, "".join(json.dumps(dict(zip(names, pair, strict=True))) + "\n" for pair in pairs)
    )


def parallel(folder, pairs=PAIRS):
    files = [folder / "a.en", folder / "a.fr"]
    for file, column in zip(files, zip(*pairs, strict=True), strict=True):
        write(file, "\n".join(column))  # no newline at the end
    return ",".join(map(str, files))


@pytest.mark.parametrize(
    "make",
    [
        lambda folder: tsv(folder / "a.tsv"),
        lambda folder: tsv(folder / "a.txt", end="\r\n"),
        lambda folder: write(folder / "a.tsv", "\ufeff" + tsv(folder / "b.tsv").read_text("utf-8")),
        lambda folder: jsonl(folder / "a.jsonl"),
        lambda folder: jsonl(folder / "a.jsonl", names=("en", "fr")),
        parallel,
    ],
    ids=["tsv", "crlf", "bom", "jsonl", "jsonl by language", "two files"],
)
def test_every_format_gives_the_same_splits(make, tmp_path):
    splits = load(make(tmp_path))
    assert everything(splits) == sorted(PAIRS)
    assert [len(splits.train), len(splits.validation), len(splits.test)] == [7, 2, 3]
    (tmp_path / "reference").mkdir()
    reference = load(tsv(tmp_path / "reference/r.tsv"))
    assert (splits.train, splits.test) == (reference.train, reference.test)


def test_text_is_utf8_whatever_the_locale(tmp_path):
    file = tsv(tmp_path / "a.tsv")
    code = (
        "from transformer_lab.data.parallel import *\n"
        f"print(ascii(sorted(load_pairs(PairsConfig('files', path={str(file)!r}, test_size=0, "
        "validation_size=0)).train)))"
    )
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE)
    assert done.stdout.decode("ascii").strip() == ascii(sorted(PAIRS))


@pytest.mark.parametrize("name", ["a.tsv", "a.jsonl"])
def test_a_bad_byte_names_file_and_line(name, tmp_path):
    file = tmp_path / name
    file.write_bytes(b"\xff\n")
    with pytest.raises(LabError, match=rf"{name}:1: not UTF-8 \(byte 0xff at column 1\)"):
        load(file)
    good = tsv(tmp_path / "b.tsv").read_bytes() if name == "a.tsv" else jsonl(file).read_bytes()
    file.write_bytes(good + b"caf\xe9\tcaf\xe9\n")
    with pytest.raises(LabError, match=rf"{name}:13: not UTF-8 \(byte 0xe9 at column 4\)"):
        load(file)


@pytest.mark.parametrize(
    "name, line, message",
    [
        ("a.tsv", "no tab", "expected source<TAB>target, found 1 field"),
        ("a.tsv", "a\tb\tc", "expected source<TAB>target, found 3 fields"),
        ("a.jsonl", "{", "not JSON"),
        ("a.jsonl", '["a", "b"]', 'strings "source" and "target"'),
        ("a.jsonl", '{"source": "a"}', 'strings "source" and "target"'),
        ("a.jsonl", '{"source": "a", "target": 3}', 'or "en" and "fr"'),
    ],
)
def test_a_malformed_line_names_file_and_line(name, line, message, tmp_path):
    file = tmp_path / name
    good = (tsv if name == "a.tsv" else jsonl)(file).read_text("utf-8")
    write(file, good + line + "\n")
    with pytest.raises(LabError, match=f"{name}:13: .*{message}") as caught:
        load(file)
    assert "\n" not in str(caught.value)


def test_unequal_files_name_the_first_line_without_a_partner(tmp_path):
    path = parallel(tmp_path)
    write(tmp_path / "a.fr", "un\ndeux\n")
    with pytest.raises(LabError, match=r"a\.en:3: no line of .*a\.fr faces it \(12 and 2 lines\)"):
        load(path)


def test_only_a_line_feed_ends_a_line(tmp_path):
    odd = [(f"a\u2028b\x0cc\x85{i}", f"d\x1ce{i}") for i in range(6)]
    assert everything(load(tsv(tmp_path / "a.tsv", odd))) == sorted(odd)
    assert everything(load(parallel(tmp_path, odd))) == sorted(odd)


def test_blank_and_repeated_lines_are_dropped_and_counted(tmp_path):
    text = tsv(tmp_path / "a.tsv", [*PAIRS, PAIRS[0], ("alone", "")]).read_text("utf-8")
    splits = load(write(tmp_path / "a.tsv", "\n" + text + "\n"))
    assert everything(splits) == sorted(PAIRS)
    assert (splits.report["empty"], splits.report["duplicate"]) == (3, 1)
    assert splits.report["read"] == sum(n for name, n in splits.report.items() if name != "read")


def test_a_source_with_two_translations_stays_on_one_side(tmp_path):
    twice = [(a.upper(), b + "!") for a, b in PAIRS]
    splits = load(tsv(tmp_path / "a.tsv", PAIRS + twice))
    held = {a.casefold() for a, _ in [*splits.validation, *splits.test]}
    assert len(held) == 5 and not held & {a.casefold() for a, _ in splits.train}


@pytest.mark.parametrize("make", [tsv, jsonl])
def test_a_folder_keeps_the_users_own_splits(make, tmp_path):
    end = ".tsv" if make is tsv else ".jsonl"
    long = ("x" * 300, "y")
    parts = {
        "train": [*PAIRS[:5], PAIRS[0], long],
        "validation": PAIRS[4:8],
        "test": [long, PAIRS[9]],
    }
    for split, pairs in parts.items():
        make(tmp_path / (split + end), pairs)
    splits = load(tmp_path)
    assert splits.train == PAIRS[:5]
    assert (splits.validation, splits.test) == (parts["validation"], parts["test"])
    assert (splits.report["duplicate"], splits.report["too_long"]) == (1, 1)

    (tmp_path / f"test{end}").unlink()
    with pytest.raises(LabError, match="has neither test.tsv nor test.jsonl"):
        load(tmp_path)


def test_too_few_pairs_name_the_settings(tmp_path):
    with pytest.raises(LabError, match="12 pairs are too few: config.data.validation_size = 500"):
        load(tsv(tmp_path / "a.tsv"), validation_size=500, test_size=500)
