"""Scores of bracket strings against cases that were counted by hand."""

import pytest

from tests.tiny import make_trainer, tiny_config
from transformer_lab.tasks.brackets import bracket_scores, read

GOLD = "(S (NP XX XX) (VP XX (NP XX)) PU)"


def test_constituents_are_labels_over_leaves():
    found = read(GOLD)
    assert found.leaves == ["XX"] * 4 + ["PU"]
    assert found.spans == [("NP", 0, 2), ("NP", 3, 4), ("VP", 2, 4), ("S", 0, 5)]
    assert read("(S(NP XX)XX)") == read("( S (NP XX) XX )".replace("( S", "(S"))


@pytest.mark.parametrize(
    "text", ["", "XX", "(S XX", "(S XX))", "(S XX) (S XX)", "(S XX) XX", "(S (NP) XX)", ")", "(S )"]
)
def test_what_is_not_one_tree_is_not_well_formed(text):
    assert read(text) is None


CASES = [  # an output, the labelled and unlabelled constituents that are right, and all its own
    (GOLD, 4, 4, 4),
    ("(S (NP XX XX) (VP XX (NP XX) PU))", 4, 4, 4),  # punctuation does not count
    ("(S (NP XX XX) (VP XX (PP XX)) XX)", 3, 4, 4),  # a label; PU is the reference's
    ("(S (NP XX) (VP XX XX (NP XX)) PU)", 2, 2, 4),  # a boundary
    ("(S (NP (NP XX XX)) (VP XX (NP XX)) PU)", 4, 4, 5),  # one of two equal ones
    ("(S XX XX XX XX PU)", 1, 1, 1),
    ("(S XX XX XX XX (NP PU))", 1, 1, 1),  # a constituent of punctuation alone does not count
    ("(S XX XX XX XX)", 0, 0, 0),  # another number of leaves
    ("(S (NP XX XX", 0, 0, 0),
]  # fmt: skip


@pytest.mark.parametrize(("output", "labelled", "bare", "own"), CASES)
def test_f1_is_that_of_the_counts(output, labelled, bare, own):
    found = bracket_scores([output], [GOLD])
    assert found["bracket_f1"] == pytest.approx(2 * labelled / (4 + own))
    assert found["unlabelled_f1"] == pytest.approx(2 * bare / (4 + own))
    assert found["aligned"] == (own > 0) and found["exact"] == (labelled == own == 4)
    assert found["well_formed"] == (output != "(S (NP XX XX")
    # Of the right-branching spans (0, 4), (1, 4) and (2, 4), the reference has the first and last.
    assert found["right_branching_f1"] == pytest.approx(2 * 2 / (4 + 3))


def test_sums_are_over_all_trees_before_the_division():
    found = bracket_scores([GOLD, "(S (VP XX) XX"], [GOLD, "(S (NP XX) XX)"])
    assert found["bracket_f1"] == pytest.approx(2 * 4 / (4 + 4 + 2))
    assert found["well_formed"] == found["aligned"] == found["exact"] == 0.5


def test_a_translator_of_trees_has_these_scores_beside_bleu(tmp_path):
    pairs = [(f"{a} {b}", f"(S ({a.upper()} XX) XX)") for a in "abcd" for b in "efgh"]
    (tmp_path / "a.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in pairs), "utf-8")
    sizes = {"data__validation_size": 2, "data__test_size": 2, "data__max_pairs": 0}
    files = {"data__source": "files", "data__path": str(tmp_path / "a.tsv")}
    trainer = make_trainer(tiny_config(task__brackets=True, **sizes, **files), 1)
    task = trainer.task
    task.decoded = lambda params, pairs, *_: (["a e"], ["(S (B XX) XX)"], ["(S (A XX) XX)"])
    values = task.score({}, "test", trainer.place, True).values
    assert values["bracket_f1"] == 0.5 and values["unlabelled_f1"] == 1.0 and "bleu" in values
