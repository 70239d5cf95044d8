"""Runs resume bit for bit; on prepared directories they learn alike and refuse other data."""

import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.tasks.test_image_classification import config_of as images
from tests.tasks.test_language_modeling import tiny_model
from tests.tasks.test_text_to_text import tiny as tiny_tasks
from tests.tiny import make_trainer, read_metrics, run_alone, start, tiny_config
from tests.tiny_emoji import towers_config, write_emoji
from transformer_lab import text
from transformer_lab.data.contents import Plan
from transformer_lab.data.documents import DocumentsConfig, load_documents
from transformer_lab.data.preparing import prepare
from transformer_lab.errors import LabError
from transformer_lab.training import runs
from transformer_lab.training.checkpoint import Checkpoints
from transformer_lab.training.config import resolve
from transformer_lab.training.mesh import make_mesh, own_rows

TIMES = ("data_seconds", "goodput")  # and all that are a second
TASKS = ("translate", "sentiment", "next_sentence")


def prepared(config, folder: Path, **changes):
    """The config's data, prepared in a folder, and the config that reads it from there."""
    found = resolve(config)
    plan = Plan(found.task_kind, found.sections["data"], found.sections["tokenizer"], **changes)
    prepare(plan, folder, lambda line: None)
    if "source" in config.data:
        config.data.source = "shards"
    config.data.path = str(folder)
    config.mesh.data = -1
    return config


def finished(config, workdir, steps, shapes, run=run_alone):
    """A run's state after so many steps, its lines but for their times, and its last scores."""
    with config.unlocked():
        config.steps, config.save_every, config.log_every = steps, 2, 1
    run(config, workdir)
    checkpoints = Checkpoints(workdir, 2, lambda line: None)
    state = checkpoints.restore(steps, shapes)
    checkpoints.close()
    lines = read_metrics(workdir)
    timed = lambda name: name in TIMES or name.endswith("_per_second")  # noqa: E731
    curve = [{k: v for k, v in x.items() if not timed(k)} for x in lines if "loss" in x]
    scores = [row for row in lines if "test/loss" in row][-1]
    same = {k: v for k, v in scores.items() if k.endswith("loss") or k.endswith("bleu")}
    return state, curve, same


def killed(workdir, target, step):
    """A copy of a run as it lay there when its checkpoint of that step was whole."""
    shutil.copytree(workdir, target)
    for path in (target / "checkpoints").iterdir():
        if path.name > f"step_{step:08d}":
            shutil.rmtree(path)


RUNS = {
    "translation": lambda folder: prepared(tiny_config(task__samples=0), folder),
    "prefixes": lambda _: tiny_model(
        task__layout="packed", model__mask="prefix", model__dropout=0.1, mesh__data=-1
    ),
    "towers": lambda folder: towers_config(write_emoji(folder), mesh__data=-1),
    "augmented images": lambda _: images(
        "cnn", augment__crop_padding=1, augment__flip=0.5, augment__cutmix=1.0,
        data__share=0.2, batch__rows=32, mesh__data=-1,
    ),
}  # fmt: skip


@pytest.mark.each_run("prefixes")
@pytest.mark.parametrize("kind", RUNS)
def test_a_stopped_and_resumed_run_is_the_same_run(kind, tmp_path):
    """Dropout, prefixes, changes to images and the order of rows are all functions of the step."""
    config = RUNS[kind](tmp_path / "data")
    # On all devices, and one that came to its end and shall go on; the others on one, and killed.
    ended = kind == "translation"
    steps, run = (10, runs.run) if ended else (6, run_alone)
    shapes = make_trainer(config, 8 if ended else 1).abstract_state
    whole = finished(config, tmp_path / "whole", steps, shapes, run)
    if ended:
        finished(config, tmp_path / "parts", steps // 2, shapes, run)
    else:
        killed(tmp_path / "whole", tmp_path / "parts", 2)
    parts = finished(config, tmp_path / "parts", steps, shapes, run)
    jax.tree.map(np.testing.assert_array_equal, parts[0], whole[0])
    assert parts[1:] == whole[1:] and "test/loss" in whole[2] and len(whole[1]) == steps
    if ended:
        assert whole[1][-1]["loss"] < whole[1][0]["loss"]
    if kind == "augmented images":
        with config.unlocked():
            config.micro_batches = 2
        with pytest.raises(LabError, match="config.micro_batches was 1 and decides what the model"):
            finished(config, tmp_path / "whole", steps + 1, shapes)


@pytest.mark.parametrize("changes", [{}, {"task__layout": "packed", "model__mask": "prefix"}])
def test_batches_of_prepared_documents_go_on_where_they_stopped(changes, tmp_path):
    task = make_trainer(prepared(tiny_model(**changes), tmp_path)).task
    assert task.shards is not None
    with task.train_batches() as whole, task.train_batches() as parts:
        for _ in range(3):
            next(whole)
        parts.restore(whole.get_state())
        for _ in range(2 * task.steps_per_epoch()):
            jax.tree.map(np.testing.assert_array_equal, next(parts), next(whole))


def test_held_out_scores_are_those_of_the_same_data_in_memory(tmp_path):
    in_memory = make_trainer(tiny_config(), 1)
    params = start(in_memory).params
    ours = make_trainer(prepared(tiny_config(), tmp_path), 1)
    assert ours.task.tokenizer.fingerprint() == in_memory.task.tokenizer.fingerprint()
    for split in ("validation", "test"):
        assert ours.evaluate(params, split) == in_memory.evaluate(params, split)
    batch = next(ours.task.train_batches())
    known = set(map(tuple, in_memory.task.train_set[0]["source"]))
    both = zip(batch["source"], batch["source_mask"], strict=True)
    rows = [tuple(row[mask]) for row, mask in both]
    assert {row for row in rows if row} <= known


def test_a_mixture_on_shards_has_the_rates_of_the_one_in_memory(tmp_path):
    in_memory = make_trainer(tiny_tasks(TASKS), 1).task
    ours = make_trainer(prepared(tiny_tasks(TASKS), tmp_path), 1).task
    np.testing.assert_allclose(ours.train_plan.shares(), in_memory.train_plan.shares(), atol=0.01)
    fields, columns, _ = in_memory.train_set
    known = {(t, *fields["source"][i]) for i, t in enumerate(columns["task"].tolist())}
    batch = next(ours.train_batches())
    real = batch["target_mask"][:, 0]
    rows = zip(batch["task"][real], batch["source"][real], batch["source_mask"][real], strict=True)
    assert {(int(task), *row[mask]) for task, row, mask in rows} <= known
    with pytest.raises(LabError, match="unset it, or config.data.path"):
        config = tiny_tasks(TASKS, **{"batch.packed": (60, 20), "data.path": str(tmp_path)})
        make_trainer(config, 1)


def test_a_run_is_not_resumed_on_a_directory_prepared_from_other_data(tmp_path):
    config = prepared(tiny_config(), tmp_path / "data")
    saved = make_trainer(config, 1).task
    state = {"content": saved.fingerprint(), **saved.train_batches().get_state()}
    shutil.rmtree(tmp_path / "data")
    other = tiny_config()
    other.data.split_seed = 1
    prepared(other, tmp_path / "data")
    config.data.split_seed = 1
    task = make_trainer(config, 1).task
    assert task.fingerprint() != state.pop("content")
    with pytest.raises(LabError, match="belongs to other batches"):
        task.train_batches().restore(state)
    config.data.split_seed = 0
    with pytest.raises(LabError, match="config.data.split_seed = 0, but .* prepared with 1"):
        make_trainer(config, 1)
    words = text.train(resolve(config).sections["tokenizer"], ["other words"]).to_files()
    config.data.split_seed = 1
    with pytest.raises(LabError, match="run's tokenizer is not the one of"):
        runs.build_task(resolve(config), words, make_mesh(resolve(config).run.mesh)).report()


def test_spans_and_prepared_sources_cannot_be_prepared(tmp_path):
    with pytest.raises(LabError, match="leave it out of config.data.tasks"):
        prepared(tiny_tasks(("translate", "spans")), tmp_path / "a")
    with pytest.raises(LabError, match="name the source of the data itself"):
        prepared(prepared(tiny_config(), tmp_path / "b"), tmp_path / "c")


def test_a_task_that_needs_the_texts_themselves_refuses_shards():
    with pytest.raises(LabError, match="holds tokens for language_modeling"):
        load_documents(DocumentsConfig(source="shards"))


def test_one_process_owns_all_rows_of_its_devices():
    config = resolve(tiny_config(mesh__data=4, mesh__fsdp=2)).run.mesh
    assert own_rows(make_mesh(config))(16).tolist() == [True] * 16
