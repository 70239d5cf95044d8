"""Ratings of players: closed forms, and the command that compares two runs."""

import json
import random

import numpy as np

from tests.entry import command
from transformer_lab import opened
from transformer_lab.tasks.ratings import interval, ratings


def test_two_players_differ_by_the_log_of_their_wins_and_more_fit_their_model():
    first, second = ratings(np.array([[0.0, 6.0], [2.0, 0.0]]))
    np.testing.assert_allclose(first - second, np.log(6.5 / 2.5), rtol=1e-9)
    # Results exactly as expected of these strengths, but for the half wins that all are given.
    true = np.array([1.2, 0.0, -1.2])
    wins = 200_000 / (1 + np.exp(true[None] - true[:, None]))
    np.testing.assert_allclose(ratings(wins), true, atol=1e-4)


def test_the_interval_is_that_of_a_share():
    results = np.repeat([1, -1, 0], [120, 60, 20])
    higher, low, high = interval(results)
    np.testing.assert_allclose(higher, np.log(130.5 / 70.5), rtol=1e-9)
    # A logit of 0.65, the results with a variance of 0.81 - 0.09 of their mean 0.3.
    deviation = np.sqrt((180 / 200 - 0.3**2) / 4 / 200) / (0.65 * 0.35)
    np.testing.assert_allclose([low, high], higher + np.array([-1.96, 1.96]) * deviation, atol=0.05)
    assert interval(results) == (higher, low, high)
    assert interval(np.ones(5, np.int64))[0] == interval(np.ones(5, np.int64))[1]


class Answers:
    """Stands for an opened run that gives the same answers whatever it is asked."""

    def __init__(self, *texts):
        self.texts = texts

    def generate(self, prompts, seed):
        return [[text] for text in self.texts[: len(prompts)]]


def test_runs_are_compared_by_a_scorer_and_by_a_person(tmp_path, monkeypatch):
    rows = [{"prompt": f"{n}=", "answer": str(n)} for n in range(4)]
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    said = {"a": Answers("0", "1", "x", "3"), "b": Answers("0", "x", "2", "x")}
    monkeypatch.setattr(opened, "open_run", said.get)
    judged = "judge", "--a=a", "--b=b", f"--prompts={file}"
    done = command(*judged, "--scorer=exact")
    found = json.loads(done.stdout)
    assert (found["wins"], found["ties"]) == ({"a": 2, "b": 1}, 1)
    assert found["a_rated_higher_by"] == round(np.log(3 / 2), 4)
    assert found["interval"][0] < found["a_rated_higher_by"] < found["interval"][1]

    # A person sees both in a random order, and says which of them is the number asked for.
    draw = random.Random(0)
    turned = [draw.random() < 0.5 for _ in range(4)]
    better = ["2" if t else "1" for t in turned[1:2]] + ["1" if t else "2" for t in turned[2:3]]
    done = command(*judged, stdin="\n".join(["0", "what", *better, "q"]))
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["wins"], found["ties"]) == ({"a": 1, "b": 1}, 1)
    assert len({*turned}) == 2 and found["a_rated_higher_by"] == 0
    assert command(*judged, "--scorer=exat").returncode == 2
