"""Adapted runs on disk: small checkpoints, the base they need, and the commands that open them."""

import json
import shutil

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict

from tests.entry import command
from tests.tasks.test_language_modeling import tiny_model
from tests.tiny import read_metrics
from transformer_lab import pretrained
from transformer_lab.commands import merge
from transformer_lab.errors import LabError
from transformer_lab.pretrained.beside import tokenizer_files
from transformer_lab.pretrained.generation import SpecialIds
from transformer_lab.text import TokenizerConfig
from transformer_lab.text import train as train_tokenizer
from transformer_lab.training import runs
from transformer_lab.training.checkpoint import Checkpoints
from transformer_lab.training.config import resolve
from transformer_lab.training.mesh import make_mesh
from transformer_lab.training.sources import leaves
from transformer_lab.training.trainer import Trainer

WIDE = {  # so that what is frozen is most of it
    "save_every": 2, "data.max_documents": 20, "batch.length": 12, "model.width": 128,
    "model.feed_forward_width": 256,
}  # fmt: skip
DEVICES = 1
LORA = {"adapt.method": "lora", "adapt.rank": 2, "adapt.dropout": 0.2, "seed": 1}


def config_of(steps, **changes):
    return tiny_model(steps=steps, **WIDE | changes)


def opened(workdir, **more):
    return runs.open_run(ConfigDict(runs.stored_config(workdir)), workdir, **more)


def last_state(workdir, config, assets=None):
    """The newest checkpoint's arrays, and its directory."""
    resolved = resolve(config)
    with Checkpoints(workdir, 5) as checkpoints:
        saved = checkpoints.read(checkpoints.newest()[-1])
        mesh = make_mesh(resolved.run.mesh, 1)
        trainer = Trainer(resolved.run, runs.build_task(resolved, saved.assets, mesh), mesh)
        state = checkpoints.restore(saved.step, trainer.abstract_state)
    return state.params, state.opt_state, saved.directory


def same(a, b):
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(a), jax.device_get(b))


def differs(a, b):
    return {path for path, x in leaves(jax.device_get(a)).items() if (x != leaves(b)[path]).any()}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("runs") / "base"
    runs.run(config_of(2), workdir)
    return workdir


@pytest.fixture(scope="module")
def lora(base):
    """Four steps at once; beside the base."""
    workdir = base.parent / "lora"
    runs.run(config_of(4, **LORA), workdir, str(base))
    return workdir


def test_a_stopped_and_resumed_adapted_run_is_the_same_run_bit_for_bit(base, lora, tmp_path):
    for steps in (2, 4):
        runs.run(config_of(steps, **LORA), tmp_path, str(base) if steps == 2 else "")
    config = config_of(4, **LORA)
    same(last_state(tmp_path, config)[:2], last_state(lora, config)[:2])
    losses = [[line.get("loss") for line in read_metrics(w)] for w in (tmp_path, lora)]
    # The first part ended with its own scores.
    assert [x for x in losses[0] if x is not None] == [x for x in losses[1] if x is not None]


def test_a_checkpoint_holds_what_was_trained_and_is_small_beside_the_whole(base, lora):
    sizes = {}
    for name, workdir, config in (
        ("base", base, config_of(2)),
        ("lora", lora, config_of(4, **LORA)),
    ):
        params, _, directory = last_state(workdir, config)
        sizes[name] = sum(p.stat().st_size for p in (directory / "state").rglob("*") if p.is_file())
        if name == "lora":
            assert {path.rpartition("/")[2] for path in leaves(params)} == {"lora_a", "lora_b"}
    # How many files Orbax makes, and so their headers, depends on the timing of its threads.
    assert 5 * sizes["lora"] < sizes["base"]


def test_only_the_targets_differ_from_the_base(base, lora):
    _, params = opened(lora)
    _, before = opened(base)
    name = "decoder/layer_0/attention/{}/kernel"
    assert differs(params, before) == {name.format("query"), name.format("value")}


def test_a_base_that_changed_or_went_is_refused_and_may_have_moved(base, lora, tmp_path):
    alone, moved = tmp_path / "alone", tmp_path / "moved"
    shutil.copytree(base, moved)
    shutil.copytree(lora, alone)
    (path,) = (alone / "checkpoints").glob("step_*4")
    run = json.loads((path / "run.json").read_text(encoding="utf-8"))
    assert run["base"]["place"] == str(base) and run["base"]["step"] == 2
    shutil.copytree(base, tmp_path / "gone")
    runs.run(config_of(2, **LORA), tmp_path / "run", str(tmp_path / "gone"))
    shutil.rmtree(tmp_path / "gone")
    with pytest.raises(LabError, match="say where it lies with --init_from.*no such directory"):
        opened(tmp_path / "run")
    _, params = opened(tmp_path / "run", base=str(moved))
    assert differs(params, opened(base)[1])
    other = tmp_path / "other"
    runs.run(config_of(2, seed=5), other)
    for resume in (False, True):
        with pytest.raises(LabError, match=rf"{other} has the fingerprint .* from {base}"):
            if resume:
                runs.run(config_of(6, **LORA), alone, str(other))
            else:
                opened(alone, base=str(other))


def test_adapting_nothing_adapting_an_adapted_run_and_other_sizes_are_refused(base, lora, tmp_path):
    with pytest.raises(LabError, match='adapt.method = "lora" .* --init_from'):
        runs.run(config_of(2, **LORA), tmp_path / "a")
    with pytest.raises(LabError, match="transformer_lab merge"):
        runs.run(config_of(2, **LORA), tmp_path / "b", str(lora))
    with pytest.raises(LabError, match=r"down/kernel would be .* \[256, 128\] .* \[96, 128\] here"):
        changes = LORA | {"model.feed_forward_width": 96, "adapt.train": "bias$"}
        runs.run(config_of(2, **changes), tmp_path / "c", str(base))
    with pytest.raises(LabError, match=r"config.adapt.rank = 2, this one has 3"):
        runs.run(config_of(6, **LORA | {"adapt.rank": 3}), lora)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["adapters", "nf4"])
def test_a_merged_run_is_the_adapted_one_and_starts_others(method, base, tmp_path):
    changes = {"adapters": {"adapt.method": "adapters", "model.adapter_width": 2}}
    changes["nf4"] = LORA | {"adapt.base": "nf4", "optimizer.multipliers": "lora_b=16"}
    runs.run(config_of(2, **changes[method]), tmp_path / "run", str(base))
    trainer, params = opened(tmp_path / "run")
    merge.write_run(
        ConfigDict(runs.stored_config(tmp_path / "run")), trainer, params, tmp_path / "merged"
    )
    again, merged = opened(tmp_path / "merged")
    same(merged, params)
    assert not again.adapted
    assert again.evaluate(merged, "validation") == trainer.evaluate(params, "validation")


@pytest.mark.slow
def test_a_hugging_face_directory_is_a_base(tmp_path, capfd):
    tokenizer = train_tokenizer(
        TokenizerConfig(kind="byte_bpe", vocab_size=270), ["the cat sat on the mat"]
    )
    changes = {"tokenizer.kind": "byte_bpe", "tokenizer.vocab_size": 270, "model.head_dim": 64}
    config = config_of(2, **changes, **LORA)
    mesh = make_mesh(resolve(config).run.mesh, 1)
    trainer = Trainer(
        resolve(config_of(2, **changes)).run,
        runs.build_task(resolve(config), tokenizer.to_files(), mesh),
        mesh,
    )
    params, special = jax.device_get(trainer.init().params), SpecialIds(pad=0, eos=1, start=2)
    model = trainer.task.model_config
    hub = tmp_path / "hub"
    pretrained.export(params, model, hub, special, None, "gpt2")
    for name, content in tokenizer_files(tokenizer).items():
        (hub / name).write_bytes(content)
    config.model.vocab_size = model.vocab_size
    runs.run(config, tmp_path / "run", f"hf:{hub}")
    lines = capfd.readouterr().err
    assert f"init_from: loaded {len(leaves(params))}:" in lines and "new 0: -" in lines
    found = differs(opened(tmp_path / "run")[1], params)
    assert found and all(path.endswith(("query/kernel", "value/kernel")) for path in found)


def test_lora_trains_and_generates_by_flags(base, tmp_path):
    config = tmp_path / "tiny.py"
    config.write_text(
        "from tests.training.test_adapted_runs import config_of\n\n\n"
        "def get_config():\n"
        "    return config_of(2)\n",
        encoding="utf-8",
    )
    arguments = [f"--config={config}", f"--workdir={tmp_path / 'run'}"]
    arguments += [f"--config.{key}={value}" for key, value in LORA.items()]
    done = command("train", *arguments)
    assert done.returncode == 2 and b'adapt.method = "lora" adapts a trained model' in done.stderr
    done = command("train", *arguments, f"--init_from={base}")
    assert done.returncode == 0 and b"lora: 576 parameters train" in done.stderr
    moved = shutil.copytree(base, tmp_path / "moved")
    run = [f"--workdir={tmp_path / 'run'}", "--prompt=", "--log_probs", f"--init_from={moved}"]
    done = command("generate", *run, "--config.decode.max_new_tokens=6")
    assert done.returncode == 0, done.stderr
    trainer, params = opened(tmp_path / "run")
    generate = trainer.task.generator(trainer.place)
    ((made,),) = generate(params, [trainer.task.prompt_ids("")], 1, 0, trainer.task.stops)
    log_probs = json.loads(done.stdout)["log_probs"]
    assert log_probs and len(log_probs) == min(len(made.log_probs), 6)
    np.testing.assert_allclose(log_probs, made.log_probs[:6], atol=1e-5)
