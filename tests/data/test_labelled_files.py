import json
from collections import Counter

import pytest

from tests.data.test_user_files import KEEP, csv_text, everything, json_lines, load_kind, tsv, write
from transformer_lab.data.formats import conll, squad
from transformer_lab.data.labelled import Example, LabelledConfig, Question, Tagged
from transformer_lab.data.splits import remarks
from transformer_lab.errors import LabError

TEXTS = [f'The "café" {i}, is open' for i in range(10)]


def load(path, **settings):
    return load_kind("labelled", path, **{"test_share": 0.2, **settings})


def test_columns_are_found_by_their_names(tmp_path):
    text = 'b,score,a\n"two\r\nlines",1.5,x\n" y ",-2,z\nw,+.5e1,v\n'
    columns = {"text_column": "a", "pair_column": "b", "label_column": "score"}
    splits = load(write(tmp_path / "a.csv", text), **KEEP, **columns)
    pairs = [("x", "two\nlines", 1.5), ("z", " y ", -2.0), ("v", "w", 5.0)]
    assert splits.train == [Example(*pair) for pair in pairs]
    assert splits.labels == [] and all(isinstance(row.label, float) for row in splits.train)
    splits = load(tmp_path / "a.csv", text_column="a", label_column="")
    assert {row.label for row in everything(splits)} == {None}


@pytest.mark.parametrize(
    "labels, expected",
    [
        ([1, 0, 1], ["1", "0", "1"]),
        ([True, False, True], ["true", "false", "true"]),
        ([1.0, 0.0, 2.5], [1.0, 0.0, 2.5]),
        ([1, 2, 2.5], [1.0, 2.0, 2.5]),
        (["1.0", "x", "3"], ["1.0", "x", "3"]),
        (["2002", "12", "3"], ["2002", "12", "3"]),
    ],
)
def test_labels_are_values_only_if_one_is_written_as_such(labels, expected, tmp_path):
    file = write(
        tmp_path / "a.jsonl", json_lines(("text", "label"), zip("abc", labels, strict=True))
    )
    assert [row.label for row in load(file, **KEEP).train] == expected


def test_rows_with_the_same_text_stand_in_one_split(tmp_path):
    rows = "".join(f"a {i // 3}\tb {i}\tx\n" for i in range(30)) + "A  1\tB 3\ty\n\tb\tx\n"
    file = write(tmp_path / "a.tsv", "text\tother\tlabel\n" + rows)
    splits = load(file, pair_column="other", test_share=0.3)
    texts = [{row.text for row in part} for part in (splits.train, splits.validation, splits.test)]
    assert sum(map(len, texts)) == len(set.union(*texts)) == 10
    dropped = {"empty": 1, "duplicate": 1}
    assert splits.report == {"read": 32, **dropped, "train": 18, "validation": 3, "test": 9}


CONLL = """\ufeff-DOCSTART- -X- O O

EU NNP I-NP B-ORG
rejects VBZ I-VP O\r

# NN I-NP O

-DOCSTART- -X- O O
Peter NNP I-NP B-PER
"""


def test_tagged_sentences_are_read_from_columns(tmp_path):
    file = write(tmp_path / "a.conll", CONLL)
    rows = [
        Tagged(["EU", "rejects"], ["B-ORG", "O"]),
        Tagged(["#"], ["O"]),
        Tagged(["Peter"], ["B-PER"]),
    ]
    items = conll.read(file)
    assert [item.row for item in items] == rows
    assert [item.group for item in items] == ["1", "1", "2"]
    splits = load(file, label_column="2", validation_share=0.0)
    assert splits.labels == ["NN", "NNP", "VBZ"]
    tabs = write(tmp_path / "b.conll", "New York\tB-LOC\tx\n \nis\tO\tx\n")
    assert [item.row for item in conll.read(tabs, label_column="2")] == [
        Tagged(["New York"], ["B-LOC"]),
        Tagged(["is"], ["O"]),
    ]
    with pytest.raises(LabError, match='^config.data.label_column = "pos".* is a number from 1'):
        load(file, label_column="pos")
    words = ["New\u00a0York", "東\u3000京", "\u2009x"]
    for gap in ("\t", " ", "  "):  # tabs and plain spaces alone part columns
        write(file, "".join(f"{word}{gap}X{gap}O\n" for word in words))
        assert [item.row for item in conll.read(file)] == [Tagged(words, ["O"] * 3)]


UNIVERSAL = """# newdoc id = n1
# sent_id = 1
# text = Vámonos al mar
1-2\tVámonos\t_\t_\t_\t_\t_\t_\t_\t_
1\tVamos\tir\tVERB\t_\t_\t0\troot\t_\t_
2\tnos\tnosotros\tPRON\t_\t_\t1\tobj\t_\t_
2.1\tx\tx\tX\t_\t_\t_\t_\t_\t_
3-4\tal\t_\t_\t_\t_\t_\t_\t_\t_
3\ta\ta\tADP\t_\t_\t5\tcase\t_\t_

# sent_id = 2
1\t#\t#\tSYM\t_\t_\t0\troot\t_\t_
"""


def test_words_of_conll_u_are_its_words_alone(tmp_path):
    file = write(tmp_path / "a.conll", UNIVERSAL)
    rows = [Tagged(["Vamos", "nos", "a"], ["VERB", "PRON", "ADP"]), Tagged(["#"], ["SYM"])]
    items = conll.read(file)
    assert [item.row for item in items] == rows and {item.group for item in items} == {"1"}
    assert [item.row.tags for item in conll.read(file, label_column="8")] == [
        ["root", "obj", "case"], ["root"],
    ]  # fmt: skip


def test_each_class_of_users_rows_stands_in_each_split_as_far_as_it_goes(tmp_path):
    labels = ["rare"] * 3 + ["once"] + ["a", "b"] * 98
    texts = [f"text {i}" for i in range(200)]
    splits = load(
        write(tmp_path / "a.csv", csv_text(list(zip(texts, labels, strict=True)))), test_share=0.1
    )
    counts = {s: Counter(r.label for r in getattr(splits, s)) for s in ("train", "test")}
    counts["validation"] = Counter(row.label for row in splits.validation)
    assert counts["train"] == {"a": 79, "b": 79, "rare": 1, "once": 1}
    assert {split: counts[split]["rare"] for split in counts} == dict.fromkeys(counts, 1)
    assert len(splits.test) == len(splits.validation) == 20
    assert all(abs(counts[split]["a"] - counts[split]["b"]) <= 1 for split in counts)
    two = load(
        write(tmp_path / "b.csv", csv_text(list(zip(texts[1:], labels[1:], strict=True))))
    )  # one to train on
    assert [row.label for row in two.test].count("rare") == 1
    assert [row.label for row in two.train].count("rare") == 1
    assert remarks(two.report, LabelledConfig(), {"validation": {"a"}, "test": {"a", "b"}}) == [
        "the validation split has no example of 1 of 2 classes: b"
    ]


def article(title, context, *questions):
    return {"title": title, "paragraphs": [{"context": context, "qas": list(questions)}]}


def asked(name, *answers, **more):
    answers = [{"text": text, "answer_start": start} for text, start in answers]
    return {"id": name, "question": f"{name}?", "answers": answers, **more}


def squad_file(file, *articles):
    return write(file, json.dumps({"version": "v2.0", "data": articles}, ensure_ascii=False))


def test_questions_of_both_versions_of_squad_are_read(tmp_path):
    file = squad_file(
        tmp_path / "a.json",
        article("A", "Ünï 😀 Broncos won.", asked("q1", ("Broncos", 6), ("Broncos won", 6))),
        article("B", "No.", asked("q2", is_impossible=True, plausible_answers=[{"text": "No"}])),
        article("B", "Yes.", asked("q3", ("Yes", 0), is_impossible=False)),
    )
    items = squad.read(file)
    assert [item.row for item in items] == [
        Question("q1", "Ünï 😀 Broncos won.", "q1?", [("Broncos", 6), ("Broncos won", 6)], False),
        Question("q2", "No.", "q2?", [], True),
        Question("q3", "Yes.", "q3?", [("Yes", 0)], False),
    ]
    splits = load(file, validation_share=0.0)  # B is one article
    assert {len(splits.train), len(splits.test)} == {1, 2} and splits.labels == []
    write(tmp_path / "b.json", b"\xef\xbb\xbf" + file.read_bytes())
    assert squad.read(tmp_path / "b.json") == items
    # Without a title the context is the group; without answers a question is impossible, whatever
    # it says.
    rows = [asked("q1"), asked("q2", is_impossible=False), asked("q3", is_impossible=True)]
    squad_file(file, article(None, "Yes", *rows, asked("q4", ("Yes", 0))))
    assert [(x.group, x.row.impossible) for x in squad.read(file)] == [
        ("Yes", True), ("Yes", True), ("Yes", True), ("Yes", False)
    ]  # fmt: skip


@pytest.mark.parametrize(
    "questions, message",
    [
        ([asked("q1", ("won", 7))], "question q1: 'won' does not stand at character 7"),
        ([asked("q1", ("won", -4))], "question q1: 'won' does not stand at character -4"),
        ([asked("q1"), asked("q1")], "two questions have the id q1"),
        ([asked("q1"), {"id": "q2"}], "format after question q1 .KeyError.'answers'"),
        ([asked("q1", ("won", "8"))], '"answer_start" is of type str, not int'),
        ([asked("q1", is_impossible="false")], '"is_impossible" is of type str, not bool'),
        ([{**asked("q1"), "question": None}], '"question" is of type NoneType, not str'),
        ([{**asked("q1"), "question": 3}], '"question" is of type int, not str'),
        ([{**asked("q1"), "question": ["a"]}], '"question" is of type list, not str'),
        (3, '"title" is of type int, not str'),
        (["a"], '"title" is of type list, not str'),
    ],
)
def test_a_wrong_question_or_title_is_named(questions, message, tmp_path):
    title = questions if "title" in message else "A"
    questions = [asked("q1", ("won", 8))] if "title" in message else questions
    with pytest.raises(LabError, match=message):
        squad.read(squad_file(tmp_path / "a.json", article(title, "Broncos won", *questions)))


def test_a_field_of_a_table_may_be_as_long_as_one_of_json_lines(tmp_path):
    rows = [("x" * 131_073, "yes"), ("y" * 400_000, "no")]
    for name, text in (
        ("a.csv", csv_text(rows)),
        ("a.tsv", "text\tlabel\n" + tsv(rows)),
        ("a.jsonl", json_lines(("text", "label"), rows)),
    ):
        found = load(write(tmp_path / name, text), **KEEP).train
        assert [(row.text, row.label) for row in found] == rows


def test_a_folder_keeps_the_users_own_splits(tmp_path):
    write(tmp_path / "train.csv", csv_text(list(zip(TEXTS, "123123", strict=False))))
    own = [("2", TEXTS[8]), ("1", TEXTS[8]), ("4", TEXTS[5].upper())]
    write(tmp_path / "test.tsv", "label\ttext\n" + tsv(own))
    write(tmp_path / "README.md", "ignored")
    splits = load(tmp_path)
    assert [(row.label, row.text) for row in splits.test] == own
    assert sorted(row.text for row in splits.train + splits.validation) == TEXTS[:5]
    assert splits.labels == ["1", "2", "3", "4"]  # of the test as well
    assert splits.report == {
        "read": 9, "in_another_split": 1, "train": 4, "validation": 1, "test": 3,
    }  # fmt: skip
    write(tmp_path / "test.tsv", "text\tlabel\na\t2.5\n")
    assert {type(row.label) for row in everything(load(tmp_path))} == {float}
    (tmp_path / "test.tsv").rename(tmp_path / "extra.tsv")
    with pytest.raises(LabError, match="holds extra.tsv, train.csv: it needs one file each for"):
        load(tmp_path)
    (tmp_path / "extra.tsv").unlink()
    squad_file(tmp_path / "test.json", article("A", "Broncos", asked("q1", ("Broncos", 0))))
    with pytest.raises(LabError, match="holds files of several formats"):
        load(tmp_path)
