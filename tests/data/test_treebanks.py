"""Dependency trees in users' files: what CoNLL-U allows, and what is refused by file and line."""

import pytest

from transformer_lab.data.formats import conllu
from transformer_lab.data.labelled import LabelledConfig, Parsed, load_labelled
from transformer_lab.errors import LabError

SPANISH = """# newdoc id = a
# text = vámonos al mar
1-2\tvámonos\t_\t_\t_\t_\t_\t_\t_\t_
1\tvamos\tir\tVERB\t_\t_\t0\troot\t_\t_
2\tnos\tnosotros\tPRON\t_\t_\t1\tobj\t_\t_
3-4\tal\t_\t_\t_\t_\t_\t_\t_\t_
3\ta\ta\tADP\t_\t_\t5\tcase\t_\t_
4\tel\tel\tDET\t_\t_\t5\tdet\t_\t_
4.1\tgran\tgran\tADJ\t_\t_\t_\t_\t5:amod\t_
5\tmar\tmar\tNOUN\t_\t_\t1\tobl:arg\t_\tSpaceAfter=No

# sent_id = 2
1\t10 000\t_\tNUM\t_\t_\t0\troot\t_\t_
"""


def line(*, number="1", form="a", head="0", label="root", end="\t_\t_"):
    return f"{number}\t{form}\t_\t_\t_\t_\t{head}\t{label}{end}\n"


def test_words_of_several_tokens_and_empty_nodes_are_as_the_format_says(tmp_path):
    file = tmp_path / "a.conllu"
    file.write_text(SPANISH, "utf-8")
    first, second = conllu.read(file)
    labels = ["root", "obj", "case", "det", "obl:arg"]
    assert first.row == Parsed(["vamos", "nos", "a", "el", "mar"], [0, 1, 5, 5, 1], labels)
    assert second.row == Parsed(["10 000"], [0], ["root"])
    assert first.group == second.group == "1"  # one document


WRONG = [  # the lines of a file, and the end of the message
    (line(end="\t_"), "1: a line of CoNLL-U has 10 columns, this one has 9 columns, separated by"),
    ("# x\n" + line(number="one"), '2: "one" is no number of a word (3), nor 3-4 or 3.1'),
    (line() + line(number="3", head="1"), "2: word 3 where word 2 of its sentence is expected"),
    (line(label="_"), "1: word 1 has no relation in column 8"),
    (line(form=""), "1: word 1 has no form in column 2"),
    (line(head="2"), '1: the head "2" of word 1 is no word: give a number from 1 to 1, or 0 for'),
    (line(head="_"), '1: the head "_" of word 1 is no word'),
    (line() + line(number="2"), "2: word 2 has head 0, as word 1 has: one is the root"),
    (line() + "\n" + line() + line(number="2", head="3") + line(number="3", head="2"),
     "4: the heads lead in a circle and never to a root: 2, 3, 2"),
    (line(head="1"), "1: the heads lead in a circle and never to a root: 1, 1"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "words"), WRONG)
def test_what_is_no_tree_is_refused_by_file_and_line(text, words, tmp_path):
    file = tmp_path / "a.conllu"
    file.write_text(text, "utf-8")
    with pytest.raises(LabError) as info:
        conllu.read(file)
    assert str(info.value).startswith(f"{file}:{words}")


def test_a_users_folder_is_split_by_its_files_and_a_file_by_documents(tmp_path):
    texts = {"train": "ab", "dev": "c", "test": "ad"}
    for name, words in texts.items():
        content = "\n".join(line(form=word) for word in words)
        (tmp_path / f"{name}.conllu").write_text(content, "utf-8")
    found = load_labelled(LabelledConfig(source="files", path=str(tmp_path)))
    words = [[row.words[0] for row in part] for part in (found.train, found.validation, found.test)]
    assert words == [["b"], ["c"], ["a", "d"]]  # "a" is in the test set
    assert found.labels == ["root"] and found.report["in_another_split"] == 1
    (tmp_path / "empty").mkdir()
    with pytest.raises(LabError, match="it needs one file each for train"):
        load_labelled(LabelledConfig(source="files", path=str(tmp_path / "empty")))


def test_the_treebanks_pages_are_not_divided(tmp_path):
    for name in ("web", "wiki"):
        blocks = (
            f"# sent_id = {name}:{page}:S{i}\n" + line(form=f"{name}{page}{i}")
            for page in range(6)
            for i in range(5)
        )
        (tmp_path / f"{name}.conllu").write_text("\n".join(blocks), "utf-8")
    config = LabelledConfig(
        "turkish_treebanks", str(tmp_path), validation_share=0.2, test_share=0.2
    )
    found = load_labelled(config)
    pages = [
        {row.words[0][:-1] for row in part} for part in (found.train, found.validation, found.test)
    ]
    assert [len(some) for some in pages] == [6, 3, 3] and not pages[0] & (pages[1] | pages[2])
    assert {"web", "wiki"} == {name[:-1][:4].rstrip("0123456789") for name in pages[0]}
