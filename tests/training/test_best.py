"""The best checkpoint by a validation score: kept, scored, opened; and the end of a run by it."""

import jax
import numpy as np
import pytest

from tests.tiny import tiny_config
from transformer_lab.errors import LabError
from transformer_lab.training import runs
from transformer_lab.training.checkpoint import Checkpoints, rank
from transformer_lab.training.results import RESULTS
from transformer_lab.training.sources import open_source
from transformer_lab.training.trainer import Trainer

LOSSES = [3.0, 2.0, 2.5, 2.6, 1.0, 0.5]  # of the validation split after each step


DEVICES = 1


def config(**changes):
    values = {"steps": 6, "eval_every": 1, "save_every": 4, "keep": 1, "data.test_size": 0}
    return tiny_config(**values | {"best": "loss"} | changes)


@pytest.fixture
def scripted(monkeypatch):
    """Evaluations find the losses above; the number of evaluations so far is in the list."""
    seen: list[int] = []

    def evaluate(self, params, split):
        if split == "validation":
            seen.append(len(seen))
        return {"loss": LOSSES[seen[-1]] if split == "validation" else 9.0}

    monkeypatch.setattr(Trainer, "evaluate", evaluate)
    return seen


def stored(workdir):
    return sorted(path.name for path in (workdir / "checkpoints").iterdir())


def test_the_best_checkpoint_outlives_newer_ones_and_stands_for_the_run(scripted, tmp_path):
    runs.run(config(steps=4), tmp_path)
    assert stored(tmp_path) == ["step_00000002", "step_00000004"]
    _, params = runs.open_run(config(), tmp_path)
    with Checkpoints(tmp_path, 1) as best:
        second, last = best.restore_params(2), best.restore_params(4)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(params), second)
    jax.tree.map(np.testing.assert_array_equal, open_source(str(tmp_path)).params, second)
    jax.tree.map(
        np.testing.assert_array_equal,
        jax.device_get(runs.open_run(config(best=""), tmp_path)[1]),
        last,
    )
    assert '"validation/loss": 2.0' in (tmp_path / RESULTS).read_text()


@pytest.mark.slow
def test_a_run_ends_when_its_score_has_not_improved_for_so_long(scripted, tmp_path, capfd):
    runs.run(config(patience=2), tmp_path)
    assert stored(tmp_path) == ["step_00000002", "step_00000004"] and len(scripted) == 4
    assert "step 4: loss has not improved since step 2" in capfd.readouterr().err
    runs.run(config(patience=2), tmp_path)  # the same command again has nothing left to train
    assert stored(tmp_path) == ["step_00000002", "step_00000004"]
    runs.run(config(patience=3), tmp_path)  # and a more patient one goes on, to a better score
    assert stored(tmp_path) == ["step_00000006"]


def test_a_score_that_no_evaluation_has_is_refused_by_name_and_nothing_is_lost(scripted, tmp_path):
    with pytest.raises(LabError, match=r'^best = "blue": .* \(valid: loss\)'):
        runs.run(config(best="blue"), tmp_path)
    assert stored(tmp_path) == ["step_00000001"]


def test_less_is_better_for_losses_and_more_for_all_else():
    assert rank("loss", 1.0) < rank("loss", 2.0) and rank("bleu", 2.0) < rank("bleu", 1.0)
    assert (
        rank("bits_per_byte", 1.0) < rank("bits_per_byte", 2.0) < rank("perplexity", float("nan"))
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"best": "", "patience": 2}, "^patience = 2"), ({"average": 2, "keep": 2}, '^best = "loss"')],
)
def test_a_patience_without_a_score_or_a_mean_beside_the_best_is_refused(changes, words, tmp_path):
    with pytest.raises(LabError, match=words):
        runs.run(config(**changes), tmp_path)
