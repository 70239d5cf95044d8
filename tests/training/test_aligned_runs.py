"""Aligned runs on disk: what they keep of their start and of drawn answers, and how they resume."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.entry import command
from tests.tasks.test_alignment import DRAWS, PAIRS, SUMS, aligned, write
from tests.tiny import leave_run, make_trainer, read_metrics
from tests.training.test_adapted_runs import same
from transformer_lab.tasks.pairs import from_file
from transformer_lab.training import runs
from transformer_lab.training.checkpoint import Checkpoints

DEVICES = 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("aligned")


def opened(workdir):
    with Checkpoints(workdir, 5) as checkpoints:
        saved = checkpoints.read(checkpoints.newest()[-1])
        return saved, checkpoints.restore_params(saved.step)


def losses(workdir):
    kept = ("loss", "reward", "validation/loss", "validation/reward", "reward_accuracy")
    lines = [{k: line[k] for k in kept if k in line} for line in read_metrics(workdir)]
    return [line for line in lines if line]


def test_dpo_stores_its_reference_and_resumes_bit_for_bit_with_lora(folder):
    base = folder / "base"
    leave_run(aligned("preferences", folder, PAIRS, steps=1), base)
    adapt = {"adapt__method": "lora", "adapt__rank": 2, "seed": 1}
    for name, stops in (("whole", (4,)), ("parts", (2, 4))):
        for steps in stops:
            config = aligned("preferences", folder, PAIRS, steps=steps, **adapt)
            runs.run(config, folder / name, str(base) if steps == stops[0] else "")
    (whole, params), (parts, resumed) = opened(folder / "whole"), opened(folder / "parts")
    same(params, resumed)
    assert parts.assets == whole.assets
    trained = [
        [x for x in losses(folder / n) if "reward_accuracy" in x] for n in ("whole", "parts")
    ]
    assert trained[0] == trained[1] and len(trained[0]) == 4
    # The reference is that of the base: a new task with its parameters computes the same.
    trainer = make_trainer(config, 1)
    before = jax.tree.map(jnp.asarray, opened(base)[1])
    trainer.task.begin(before, trainer.place)
    stored = from_file(whole.assets["reference.npz"])
    for split, count in (("train", 7), ("validation", 1), ("test", 1)):
        assert stored[split].shape == (count, 2)
        np.testing.assert_allclose(stored[split], trainer.task.reference[split], rtol=1e-5)
    file = write(folder, [{"context": "ab", "choices": ["a", "f"], "gold": 0}], "asked.jsonl")
    done = command("benchmark", f"--workdir={folder / 'whole'}", f"--tasks={file}")
    assert done.returncode == 0, done.stderr.decode()
    # Where nothing has moved yet, no answer has a reward, and the loss is ln 2.
    batch = trainer.place(next(iter(trainer.task.eval_batches("test"))))
    found = jax.jit(trainer.task.metrics)(before, batch)
    np.testing.assert_allclose(found["loss"], (np.log(2), 1), rtol=1e-5)
    np.testing.assert_allclose(-found["chosen_nats"][0], stored["test"][0, 0], rtol=1e-5)


@pytest.mark.slow
def test_ppo_stores_its_start_and_the_answers_between_passes_and_resumes_bit_for_bit(
    folder, monkeypatch
):
    (folder / "rewards").mkdir()
    mine = "def reward(prompt, answer, expected):\n    return len(answer) / 3\n"
    (folder / "rewards/longer.py").write_text(mine, encoding="utf-8")
    monkeypatch.setenv("TRANSFORMER_LAB_PATH", str(folder))
    settings = {"task.kl": 0.1, "task.reward": "longer", "task.score_examples": 0, **DRAWS}
    for name, stops in (("ppo", (4,)), ("ppo_parts", (3, 4))):
        for steps in stops:  # 3: between the two passes over the answers of step 2
            config = aligned("ppo", folder, SUMS, steps=steps, **settings)
            runs.run(config, folder / name)
    (whole, params), (parts, resumed) = opened(folder / "ppo"), opened(folder / "ppo_parts")
    same(params, resumed)
    assert parts.assets == whole.assets
    lines = {line["step"]: line for line in read_metrics(folder / "ppo") if "loss" in line}
    assert lines[1]["reward"] == lines[2]["reward"] and lines[1]["clipped"] == 0
    assert lines[1]["kl"] == 0 != lines[3]["kl"]
    task = make_trainer(config, 1).task
    drawn, eos = from_file(whole.assets["rollouts.npz"]), task.tokenizer.eos_id
    mask = drawn["mask"]
    assert (mask.sum(axis=1) <= 3).all() and mask.any(axis=1).all()
    with np.errstate(divide="ignore"):
        assert (drawn["old"][mask] < 0).all() and (drawn["advantages"][~mask] == 0).all()
    ended = (drawn["targets"] * mask == eos).any(axis=1)
    assert not drawn["reward"][~ended].any()
