"""Ratings of players: closed forms, and the command that compares two runs."""

import json

import numpy as np

from tests.entry import command
from tests.tasks.test_alignment import SUMS, aligned
from tests.tiny import leave_run
from transformer_lab.tasks.ratings import interval, ratings

DEVICES = 1


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


def test_runs_are_compared_by_a_scorer_and_by_a_person(tmp_path):
    settings = {"decode.temperature": 1.0, "decode.max_new_tokens": 3}
    for seed in range(2):
        leave_run(aligned("sft", tmp_path, SUMS, seed=seed, **settings), tmp_path / str(seed))
    runs = f"--a={tmp_path}/0", f"--b={tmp_path}/1", f"--prompts={tmp_path}/rows.jsonl"
    done = command("judge", *runs, "--scorer=chrf")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert sum(found["wins"].values()) + found["ties"] == len(SUMS)
    assert found["interval"][0] <= found["a_rated_higher_by"] <= found["interval"][1]
    done = command("judge", *runs, "--limit=4", stdin="0\nwhat\n0\n0\nq\n")
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["ties"] == 3 and found["a_rated_higher_by"] == 0
    assert command("judge", *runs, "--scorer=chr").returncode == 2
