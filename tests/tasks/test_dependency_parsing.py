"""Dependency trees: the best one against all there are, the scores, and a parser that learns."""

from itertools import product

import numpy as np
import pytest

from tests.tasks.examples import config_of
from tests.tiny import make_trainer, trained
from transformer_lab.commands.predict import show
from transformer_lab.errors import LabError
from transformer_lab.tasks.dependency_parsing import attachment
from transformer_lab.tasks.spanning_tree import spanning_tree


def is_tree(heads) -> bool:
    """Whether one word hangs on the root, and all others on it in the end."""
    if heads.count(0) != 1:
        return False
    for at in range(1, len(heads) + 1):
        for _ in heads:
            at = at and heads[at - 1]
        if at:
            return False
    return True


def every_tree(words: int) -> list[tuple[int, ...]]:
    return [h for h in product(range(words + 1), repeat=words) if is_tree(h)]


def test_the_number_of_trees_is_cayleys():
    assert [len(every_tree(n)) for n in range(1, 6)] == [1, 2, 9, 64, 625]  # n ** (n - 1)


@pytest.mark.parametrize("words", [1, 2, 3, 4, 5])
def test_the_best_tree_is_the_best_of_all_trees(words):
    draw = np.random.default_rng(words)
    trees = np.array(every_tree(words))
    for _ in range(200):
        scores = draw.normal(size=(words, words + 1)) * draw.choice([1, 30])
        sums = scores[np.arange(words), trees].sum(axis=1)
        assert spanning_tree(scores).tolist() == trees[sums.argmax()].tolist()


def test_the_worked_example_and_a_circle_of_circles():
    assert spanning_tree(np.array([[5.0, 0, 9], [6, 8, 0]])).tolist() == [2, 0]
    scores = np.zeros((6, 7))
    for word, head, score in ((1, 2, 9), (2, 1, 9), (3, 4, 9), (4, 3, 9), (1, 4, 5), (3, 2, 6)):
        scores[word - 1, head] = score
    scores[4, 6], scores[5, 5], scores[5, 1], scores[1, 0] = 9, 9, 4, 3
    assert spanning_tree(scores).tolist() == [2, 0, 2, 3, 6, 1]  # 9 + 3 + 6 + 9 + 9 + 4


def test_attachment_scores_of_hand_made_trees():
    gold = [([2, 0, 2], ["det", "root", "obj"]), ([0], ["root"])]
    found = [([2, 0, 1], ["nn", "root", "obj"]), ([0], ["root"])]
    assert attachment(gold, found) == {"uas": 0.75, "las": 0.5, "whole": 0.5}


def test_a_parser_learns_its_trees_and_prints_them(tmp_path):
    config = config_of("dependency_parsing", tmp_path)
    config.optimizer.learning_rate = 0.03
    trainer = make_trainer(config, 1)
    params, losses = trained(trainer, 60)
    assert losses[0] > 1 > 0.1 > losses[-1]
    task = trainer.task
    assert task.score(params, "train", trainer.place, True).values["las"] == 1.0
    rows = task.predict(params, ["ran ann", "", "ben ran"], trainer.place)
    assert [row["heads"] for row in rows] == [[0, 1], [], [2, 0]]
    assert show(rows[0]) == "1\tran\t0\troot\n2\t  ann\t1\tnsubj\n" and show(rows[1]) == ""


def test_the_scores_stand_beside_those_of_the_next_word(tmp_path):
    trainer = make_trainer(config_of("dependency_parsing", tmp_path), 1)
    found = trainer.task.score(trainer.init().params, "test", trainer.place, True)
    # "ann ran" and "ran": both heads are the next word, or the root at the end; the most frequent
    # relation of the training set, nsubj and root being equally frequent, is root.
    assert found.values["next_word_uas"] == 1.0 and found.values["num_examples"] == 2
    assert found.values["next_word_las"] == pytest.approx(2 / 3)
    assert len(found.samples) == 2 and found.samples[0][2] == "2:nsubj 0:root"


def test_a_source_without_trees_is_refused(tmp_path):
    config = config_of("dependency_parsing", tmp_path)
    config.data.source = "generated_tags"
    with pytest.raises(LabError, match='"generated_tags" gives no trees: give CoNLL-U'):
        make_trainer(config, 1)
