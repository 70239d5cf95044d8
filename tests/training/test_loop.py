"""The loop: resume, evaluation, what is logged, what stops it."""

import json
import os
import signal
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.tiny import make_trainer, read_metrics, run_alone, tiny_config
from transformer_lab.errors import LabError
from transformer_lab.training import runs, sources
from transformer_lab.training.checkpoint import Checkpoints
from transformer_lab.training.mesh import make_mesh

DEVICES = 2
RATES = ("examples_per_second", "steps_per_second", "tokens_per_second")
VOLATILE = (*RATES, "data_seconds", "goodput")


def final_state(workdir, config):
    with Checkpoints(workdir, 5) as checkpoints:
        abstract = make_trainer(config, 1).abstract_state
        return checkpoints.restore(checkpoints.newest()[-1], abstract)


def saved_steps(workdir):
    with Checkpoints(workdir, 5) as checkpoints:
        return checkpoints.newest()


def curve(workdir):
    return [
        {k: v for k, v in line.items() if k not in VOLATILE}
        for line in read_metrics(workdir)
        if "loss" in line
    ]


def everything(workdir):
    """All lines: losses, evaluations and the final scores."""
    lines = read_metrics(workdir)
    return [{k: v for k, v in line.items() if k not in VOLATILE} for line in lines]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Ten steps at once; six make an epoch."""
    workdir = tmp_path_factory.mktemp("whole")
    runs.run(one_device(tiny_config(eval_every=4)), workdir)
    assert [line["step"] for line in everything(workdir) if "validation/loss" in line] == [4, 8, 10]
    return workdir


def one_device(config):
    """Both of a run's devices hold a share of its batches; numbers are those of one."""
    config.mesh.data = -1
    return config


def test_a_stopped_and_resumed_run_is_the_same_run(whole, tmp_path):
    for steps in (3, 6, 10):  # in the middle of an epoch, and at its edge
        runs.run(one_device(tiny_config(steps=steps)), tmp_path)
    assert curve(tmp_path) == curve(whole)
    assert [line["step"] for line in curve(whole)] == list(range(1, 11))
    config = one_device(tiny_config())
    jax.tree.map(
        np.testing.assert_array_equal, final_state(tmp_path, config), final_state(whole, config)
    )


def test_epochs_have_different_orders_and_each_example_once():
    task = make_trainer(tiny_config(), 1).task
    batches, epoch = task.train_batches(), task.steps_per_epoch()
    seen = []
    for _ in range(2):
        rows = []
        for _ in range(epoch):
            batch = next(batches)
            real = batch["target_mask"][:, 0]
            rows += [tuple(r) for r in batch["source"][real]]
        seen.append(rows)
    batches.close()
    assert sorted(seen[0]) == sorted(seen[1]) and seen[0] != seen[1]
    assert len(seen[0]) == 60


def test_the_last_step_is_saved_a_rerun_has_nothing_left_and_fewer_steps_are_refused(
    tmp_path, capfd
):
    runs.run(one_device(tiny_config(steps=7)), tmp_path)
    assert saved_steps(tmp_path) == [5, 7]
    before = curve(tmp_path)
    runs.run(one_device(tiny_config(steps=7)), tmp_path)
    assert curve(tmp_path) == before
    assert "resumes at step 7 of 7" in capfd.readouterr().err
    with pytest.raises(LabError, match="is at step 7, beyond the 4 asked for"):
        runs.run(one_device(tiny_config(steps=4)), tmp_path)
    assert saved_steps(tmp_path) == [5, 7]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model.width", 32),
        ("optimizer.learning_rate", 0.1),
        ("tokenizer.kind", "char"),
        ("seed", 3),
        ("batch.tokens_per_batch", 640),
        ("model.dtype", "bfloat16"),
        ("optimizer.clip_norm", 1.0),
        ("data.max_pairs", 50),
        ("model.dropout", 0.3),
    ],
)
def test_a_resume_with_another_config_is_refused_naming_the_key(key, value, whole):
    before = sorted(p.name for p in whole.rglob("*"))
    config = one_device(tiny_config(**{key: value}))
    with pytest.raises(LabError, match=rf"config\.{key} = "):
        runs.run(config, whole)
    assert sorted(p.name for p in whole.rglob("*")) == before


@pytest.mark.slow
def test_what_changes_no_number_may_change_on_resume(tmp_path, monkeypatch):
    plain = {
        "steps": 8,
        "save_every": 4,
        "data.test_size": 0,
        "model.dropout": 0.0,
        "optimizer.clip_norm": 1.0,
    }
    other = {
        "micro_batches": 2, "mesh.data": 2, "mesh.fsdp": 2, "mesh.tensor": 2,
        "model.remat": "nothing", "model.scan_layers": True,
        "model.attention_implementation": "chunked",
    }  # fmt: skip
    runs.run(one_device(tiny_config(**plain)), tmp_path / "whole")
    runs.run(one_device(tiny_config(**{**plain, "steps": 4})), tmp_path / "changed")
    monkeypatch.setattr(runs, "make_mesh", make_mesh)  # on all eight devices
    runs.run(tiny_config(**plain, **other), tmp_path / "changed")
    for a, b in zip(curve(tmp_path / "changed"), curve(tmp_path / "whole"), strict=True):
        np.testing.assert_allclose(list(a.values()), list(b.values()), rtol=1e-5)


@pytest.mark.slow
def test_data_may_move_between_stops_but_not_change(tmp_path):
    rows = [f"a{i} b{i % 7}\tb{i % 7} a{i}" for i in range(40)]
    file, moved = tmp_path / "pairs.tsv", tmp_path / "moved" / "rows.tsv"
    file.write_text("\n".join(rows), encoding="utf-8")

    def train(path, steps):
        changes = {"data.source": "files", "data.path": str(path), "data.test_size": 0}
        runs.run(one_device(tiny_config(**changes, steps=steps)), tmp_path / "run")
        return json.loads((tmp_path / "run" / "config.json").read_text())["data"]["path"]

    assert train(file, 2) == str(file)
    moved.parent.mkdir()
    file.rename(moved)
    assert train(moved, 4) == str(moved)
    assert [line["step"] for line in curve(tmp_path / "run")] == [1, 2, 3, 4]
    file.write_text("\n".join([*rows[:-1], "a b c d\tone more"]), encoding="utf-8")
    with pytest.raises(LabError, match="fingerprint"):
        train(file, 6)
    assert train(moved, 4) == str(moved)  # what was refused has left nothing behind


@pytest.fixture(scope="module")
def one_by_one():
    """Parameters, and their nats a target token of the validation split, a sentence at a time."""
    trainer = make_trainer(tiny_config(), 1)
    params, total, weight = trainer.init().params, 0.0, 0.0
    metrics = jax.jit(trainer.task.metrics)
    for pair in trainer.task.data.validation:
        batch = {}
        for name, sentence in zip(("source", "target"), pair, strict=True):
            ids = trainer.task.encode(sentence)
            batch[name] = np.array([ids + [0] * (16 - len(ids))], np.int32)
            batch[f"{name}_mask"] = np.arange(16)[None] < len(ids)
        loss, count = metrics(params, trainer.place(batch))["nll"]
        total, weight = total + float(loss), weight + float(count)
    return params, total / weight


@pytest.mark.each_run("320")
@pytest.mark.parametrize("tokens_per_batch", [144, 320, 4000])
def test_evaluation_counts_every_example_once_for_any_batch_size(tokens_per_batch, one_by_one):
    trainer = make_trainer(tiny_config(**{"batch.tokens_per_batch": tokens_per_batch}), 1)
    params, loss = one_by_one
    values = trainer.evaluate(params, "validation")
    assert len(trainer.task.data.validation) == 10
    np.testing.assert_allclose(values["loss"], loss, rtol=1e-5)
    np.testing.assert_allclose(values["perplexity"], np.exp(loss), rtol=1e-5)
    scores = trainer.task.score(params, "validation", trainer.place, True)
    assert scores.values["num_examples"] == 10


def test_accuracy_of_ten_examples_in_batches_of_four_is_that_of_ten():
    """Eight of ten right is 0.80: neither a dropped last batch nor a mean of batch means."""
    trainer = make_trainer(tiny_config(), 1)
    right = iter([np.ones(4), np.ones(4), np.zeros(2)])
    batches = [{"n": np.zeros(1)}] * 3
    trainer.task.eval_batches = lambda split: iter(batches)
    trainer.place = lambda batch: batch
    trainer.eval_step = lambda params, batch: {
        "accuracy": (lambda r: (r.sum(), float(len(r))))(next(right))
    }
    assert trainer.evaluate(None, "test")["accuracy"] == 0.8


@pytest.mark.slow
def test_eight_examples_are_learnt_by_heart_with_the_trained_parameters(tmp_path):
    rows = [f"word{i} more{i}\tmot{i} plus{i}" for i in range(8)]
    for split in ("train", "validation", "test"):
        (tmp_path / f"{split}.tsv").write_text("\n".join(rows), encoding="utf-8")
    config = tiny_config(
        steps=150,
        log_every=150,
        **{"data.source": "files", "data.path": str(tmp_path), "data.max_pairs": 0},
        **{"model.dropout": 0.0, "model.norm_place": "pre", "optimizer.learning_rate": 2e-2},
    )
    run_alone(config, tmp_path / "run")
    last = read_metrics(tmp_path / "run")[-1]
    assert last["test/accuracy"] == 1.0 and last["test/chrf"] == 100.0


def test_one_compilation_a_shape_and_no_more():
    config = tiny_config(**{"batch.buckets": 2, "data.max_pairs": 100})
    trainer = make_trainer(config, 1)
    state, batches = trainer.init(), trainer.task.train_batches()
    shapes = trainer.task.train_plan.shapes
    assert len(shapes) >= 2
    for _ in range(3 * trainer.task.steps_per_epoch()):
        state, _ = trainer.train_step(state, trainer.place(next(batches)))
    batches.close()
    assert trainer.train_step._cache_size() == len(shapes)
    for split in ("validation", "test", "validation"):
        trainer.evaluate(state.params, split)
    assert trainer.eval_step._cache_size() <= len(shapes)
    for _ in range(2):
        trainer.task.score(state.params, "validation", trainer.place, True)
    assert trainer.task._decoder.compilations <= len(trainer.task._decoder.shapes)
    listed = [line for line in trainer.task.report() if " rows, " in line]
    assert len(listed) == len(shapes)


def test_a_loss_that_is_no_number_stops_the_run_and_keeps_the_last_good_checkpoint(tmp_path):
    config = one_device(tiny_config(steps=20, save_every=3))
    config.optimizer.update(learning_rate=1e30, schedule="constant", name="sgd", warmup_steps=1)
    with pytest.raises(LabError, match=r"step \d+: loss .*last good checkpoint is") as info:
        runs.run(config, tmp_path)
    assert "\n" not in str(info.value)
    for line in read_metrics(tmp_path):
        assert np.isfinite(line["loss"])
    with Checkpoints(tmp_path, 5) as checkpoints:
        for step in checkpoints.newest():
            params = checkpoints.restore_params(step)
            assert all(np.isfinite(x).all() for x in jax.tree.leaves(params))


@pytest.mark.each_run("15-_Pending.put-4", "2-_Pending.put-5", "15-Checkpoints.save-10")
@pytest.mark.parametrize(
    ("number", "name", "at"),
    [
        (signal.SIGTERM, "_Pending.put", 4),  # a step that is evaluated
        (signal.SIGINT, "_Pending.put", 5),
        (signal.SIGTERM, "_evaluate", 8),  # in the middle of an evaluation
        (signal.SIGTERM, "_evaluate", 10),  # in the last one
        (signal.SIGTERM, "Checkpoints.save", 10),
    ],
)
def test_a_signal_saves_and_what_resumes_has_every_line_of_the_whole_run(
    number, name, at, whole, tmp_path, capfd, monkeypatch
):
    from transformer_lab.training import loop

    part, _, method = name.rpartition(".")
    place = getattr(loop, part) if part else loop
    original = getattr(place, method)

    def told(*arguments):
        found = original(*arguments)
        if at in arguments:
            os.kill(os.getpid(), number)
        return found

    monkeypatch.setattr(place, method, told)
    with pytest.raises(SystemExit) as info:
        runs.run(one_device(tiny_config(eval_every=4)), tmp_path)
    assert info.value.code == 128 + number
    step = at + 1 if at == 8 else at  # the next step was under way
    assert f"saved at step {step} of 10; the same command resumes" in capfd.readouterr().err
    assert not (tmp_path / "results.json").exists()
    monkeypatch.undo()
    runs.run(one_device(tiny_config(eval_every=4)), tmp_path)
    assert everything(tmp_path) == everything(whole)


@pytest.mark.slow
def test_a_run_without_validation_examples_has_the_same_lines_when_it_is_given_again(
    tmp_path, monkeypatch
):
    from transformer_lab.training import loop

    monkeypatch.setattr(loop.Trainer, "evaluate", lambda *_: {})
    config = tiny_config(steps=2, **{"data.validation_size": 0})
    for _ in range(2):
        runs.run(one_device(config), tmp_path)
        lines = [sorted(line) for line in everything(tmp_path)]
        assert ["step"] not in lines
    assert len(everything(tmp_path)) == 3  # two steps and the test split


def test_damaged_metrics_stop_no_resume_and_a_damaged_only_checkpoint_starts_nothing_over(
    tmp_path, capfd
):
    runs.run(one_device(tiny_config(steps=2)), tmp_path)
    (directory,) = (tmp_path / "checkpoints").iterdir()
    content = (directory / "run.json").read_bytes()
    (directory / "run.json").write_text("{}", encoding="utf-8")
    before = sorted(str(p) for p in tmp_path.rglob("*"))
    with pytest.raises(LabError, match="every checkpoint .* is damaged"):
        runs.run(one_device(tiny_config(steps=2)), tmp_path)
    assert sorted(str(p) for p in tmp_path.rglob("*")) == before
    said = capfd.readouterr().err
    assert "step 2 is passed over: run.json differs" in said
    first, then = (said.index(words) for words in ("compiles the training step", "step 2/2"))
    assert first < then  # a pipe shows no bar, and the compilation takes long
    (directory / "run.json").write_bytes(content)
    path = tmp_path / "metrics.jsonl"
    first, *others = path.read_text().splitlines()
    rates = [f'{{"step": 1, "steps_per_second": {rate}}}' for rate in ("0", "null", '"fast"')]
    broken = ["[" * 99999, "7", "null", '{"step": "1"}', '{"step": null}', '{"loss": 1}']
    path.write_text("\n".join([first, *rates, *broken, *others]) + '\n{"step": 2, "lo')
    runs.run(one_device(tiny_config(steps=3)), tmp_path)
    assert [line["step"] for line in curve(tmp_path)] == [1, 2, 3]
    assert json.loads((tmp_path / "results.json").read_text())["steps_per_second"] > 0


def test_a_run_of_more_devices_than_there_are_is_used_on_these(whole):
    trainer, params = runs.open_run(tiny_config(**{"mesh.data": 4, "mesh.fsdp": 16}), whole)
    assert dict(trainer.mesh.shape) == {**dict.fromkeys(trainer.mesh.axis_names, 1), "fsdp": 2}
    last = [line for line in read_metrics(whole) if "validation/loss" in line][-1]
    found = trainer.evaluate(params, "validation")
    np.testing.assert_allclose(found["loss"], last["validation/loss"], rtol=1e-5)


@pytest.mark.parametrize("address", ["az://bucket/run", "https://host/a", "file:///tmp/x"])
def test_an_address_of_another_kind_makes_no_local_folder(address, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for use in (lambda path: runs.run(tiny_config(), path), runs.stored_config):
        with pytest.raises(LabError, match=f"^{address.replace('///', '//')} is an address"):
            use(Path(address))
    assert not list(tmp_path.iterdir())


def test_a_finished_command_given_again_changes_no_line_and_processes_compare_what_they_run(
    whole, monkeypatch
):
    """Config, code, weights and data, before the first step."""
    told, before = {}, everything(whole)
    monkeypatch.setattr(runs, "refuse_differences", lambda values: told.update(values()))
    runs.run(one_device(tiny_config(eval_every=4)), whole)
    assert everything(whole) == before
    keys = {"config.seed", "config.optimizer.learning_rate", "config.data.source", "--init_from"}
    keys |= {"the source's digest", "the data's fingerprint"}
    assert keys <= told.keys() and any(key.startswith("the tokenizer's ") for key in told)


def test_init_from_takes_weights_by_path_and_lists_what_became_of_each(whole, tmp_path, capfd):
    config = one_device(tiny_config(steps=0))
    runs.run(config, tmp_path / "new", str(whole), r"^encoder/")
    lists = [line for line in capfd.readouterr().err.splitlines() if line.startswith("init_from")]
    assert [line.split(":")[1].split()[0] for line in lists] == ["loaded", "new", "skipped"]
    assert "encoder (" in lists[0] and max(map(len, lists)) < 100
    assert sources.in_short(["a/b", "c"]) == "a/b, c"
    trainer = make_trainer(config, 8)
    with Checkpoints(whole, 5) as checkpoints:
        old = checkpoints.restore_params(10)
    merged, found = sources.merge_params(trainer.init().params, old, r"^encoder/")
    assert found["loaded"] and all(path.startswith("encoder/") for path in found["loaded"])
    assert all(path.startswith(("decoder/", "target_")) for path in found["new"])
    np.testing.assert_array_equal(
        merged["encoder"]["layer_0"]["attention"]["query"]["kernel"],
        old["encoder"]["layer_0"]["attention"]["query"]["kernel"],
    )
    with pytest.raises(LabError, match="nothing/here"):
        runs.run(one_device(tiny_config()), tmp_path / "other", str(whole), "nothing/here")


def test_metrics_have_all_their_digits_and_the_config_is_kept(whole):
    lines = read_metrics(whole)
    assert all(np.float32(line["loss"]) == line["loss"] for line in lines if "loss" in line)
    stored = json.loads((whole / "config.json").read_text(encoding="utf-8"))
    assert stored["model"]["width"] == 16 and stored["seed"] == 0
