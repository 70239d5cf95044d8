"""From a Hugging Face directory to a run that the other commands open, and back."""

import io
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
import sentencepiece
from absl import flags
from absl.testing import flagsaver
from ml_collections import ConfigDict

from tests.pretrained.fixtures import random_params
from tests.tiny import make_trainer, tiny_config
from transformer_lab import cli, pretrained
from transformer_lab.commands import import_hf
from transformer_lab.errors import LabError
from transformer_lab.pretrained.beside import export_run
from transformer_lab.pretrained.hub import read_tensors
from transformer_lab.pretrained.running import RUNNERS
from transformer_lab.training import imported, runs
from transformer_lab.training.checkpoint import Checkpoints

FIXTURES = Path(__file__).parents[1] / "fixtures"
TOKENIZER = ("source.spm", "target.spm", "vocab.json")
ENGLISH = ["the cat sat on the mat", "a cat and a dog", "the dog"]
FRENCH = ["le chat est sur le tapis", "un chat et un chien", "le chien"]
TOO_LONG = "the cat " * 40


def train_model(texts):
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts * 4), model_writer=out, vocab_size=24, model_type="unigram",
        hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    return out.getvalue()


def vocabulary(*models, size=61):
    """As Marian's: the end token is 0, the padding the last of `size`."""
    pieces = {}
    for model in models:
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        pieces |= {processor.id_to_piece(i): 0 for i in range(3, len(processor))}
    filler = [f"filler{i}" for i in range(size - 3 - len(pieces))]
    names = ["</s>", "<unk>", *pieces, *filler, "<pad>"]
    assert len(names) == size
    return {name: i for i, name in enumerate(names)}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A fixture's weights (61 tokens, end 0, padding and start 60) with a tokenizer."""
    path = tmp_path_factory.mktemp("hub") / "marian"
    shutil.copytree(FIXTURES / "marian_relu", path)
    models = train_model(ENGLISH), train_model(FRENCH)
    for name, model in zip(TOKENIZER, models, strict=False):
        (path / name).write_bytes(model)
    (path / "vocab.json").write_text(json.dumps(vocabulary(*models)))
    return path


@pytest.fixture(scope="module")
def model(source):
    return pretrained.load(source)


def run_import(**values):
    cli.declare(import_hf)
    with flagsaver.flagsaver():
        flags.FLAGS(["import_hf", *(f"--{name}={value}" for name, value in values.items())])
        return import_hf.main([])


@pytest.fixture(scope="module")
def workdir(source, tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "imported"
    assert run_import(source=source, workdir=path) == 0
    return path


@pytest.fixture(scope="module")
def opened(workdir):
    return runs.open_run(ConfigDict(runs.stored_config(workdir)), workdir)


def refusal(call, *arguments):
    with pytest.raises(LabError) as error:
        call(*arguments)
    assert "\n" not in str(error.value)
    return str(error.value)


def assert_same_tensors(a, b):
    theirs, ours = read_tensors(a), read_tensors(b)
    assert theirs.keys() == ours.keys()
    for name in theirs:
        assert theirs[name].dtype == ours[name].dtype and np.array_equal(theirs[name], ours[name])


def test_the_run_holds_the_settings_of_the_directory(model, opened):
    task = opened[0].task
    assert task.model_config == model.config
    assert task.sections["decode"] == model.decode


def test_the_run_translates_as_the_model_does_without_data(model, opened):
    trainer, params = opened
    task = trainer.task
    decoder = task.decoder(trainer.place, rows=8)
    decoder.shapes = tuple(s for s in decoder.shapes if s.source == 32)  # one compilation
    encoded = [task.encode(sentence) for sentence in ENGLISH]
    found = [best[0].ids for best in decoder({"params": params}, encoded)]
    lengths = np.array([[len(ids)] for ids in encoded])
    rows = [np.pad(ids, (0, 32 - len(ids))).astype(np.int32) for ids in encoded]
    mask = (np.arange(32) < lengths).astype(np.int32)
    inputs = {"input_ids": np.stack(rows), "attention_mask": mask}
    special = model.special
    tokens, _ = RUNNERS[model.kind].generate(
        model.config, model.params, inputs, model.decode, special
    )
    for row, result in zip(tokens[:, 1:].tolist(), found, strict=True):
        direct = [token for token in row if token != special.pad]
        assert result == (direct[:-1] if direct[-1] == special.eos else direct)
    lines = []
    texts = task.translate(decoder, params, [*ENGLISH, TOO_LONG], lines.append)
    assert texts == [*([task.tokenizer.decode(ids)] for ids in found), [""]]
    assert len(lines) == 1 and "not translated" in lines[0]
    assert "pairs" not in vars(task)  # nothing has asked for the data


def test_the_checkpoint_is_a_whole_state_of_step_0(model, opened, workdir):
    checkpoints = Checkpoints(workdir, 1)
    state = checkpoints.restore(0, opened[0].abstract_state)
    checkpoints.close()
    assert int(state.step) == 0
    equal = jax.tree.map(np.array_equal, jax.device_get(state.params), model.params)
    assert all(jax.tree.leaves(equal))
    moments = [x for x in jax.tree.leaves(state.opt_state) if x.ndim]
    assert len(moments) == 2 * len(jax.tree.leaves(model.params))
    assert not any(np.any(x) for x in moments)


def test_the_export_command_gives_back_the_directory(source, workdir, tmp_path):
    target = tmp_path / "out"
    command = [sys.executable, "-m", "transformer_lab", "export_hf", f"--workdir={workdir}"]
    done = subprocess.run([*command, f"--target={target}"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert_same_tensors(source, target)
    for name in TOKENIZER:
        assert (target / name).read_bytes() == (source / name).read_bytes()
    again, first = pretrained.load(target), pretrained.load(source)
    assert (again.config, again.decode, again.special) == (
        first.config,
        first.decode,
        first.special,
    )
    names = {"config.json", "generation_config.json", "model.safetensors", *TOKENIZER}
    assert {path.name for path in target.iterdir()} == names


def test_an_export_overwrites_no_tokenizer(opened, tmp_path):
    (tmp_path / "vocab.json").write_text("{}")
    trainer, params = opened
    message = refusal(export_run, "encoder_decoder", trainer.task, params, tmp_path)
    assert "holds vocab.json already" in message
    assert [path.name for path in tmp_path.iterdir()] == ["vocab.json"]


def test_a_run_of_ours_is_exported_without_its_tokenizer(tmp_path):
    changes = {"model.norm_epsilon": 1e-5, "model.positions": "sinusoidal_halves"}
    trainer = make_trainer(tiny_config(**changes), devices=1)
    params = random_params("marian", trainer.task.model_config)
    note = export_run("encoder_decoder", trainer.task, params, tmp_path / "out")
    assert "the tokenizer was not exported: its kind is word" in note
    again = pretrained.load(tmp_path / "out")
    assert again.config.vocab_size == trainer.task.tokenizer.vocab_size
    equal = jax.tree.map(np.array_equal, again.params, params)
    assert all(jax.tree.leaves(equal))
    assert (again.special.pad, again.special.eos, again.special.start) == (0, 1, 2)
    beams = replace(trainer.task.sections["decode"], beam_size=4)
    trainer.task.sections = trainer.task.sections | {"decode": beams}
    message = refusal(export_run, "encoder_decoder", trainer.task, params, tmp_path / "beams")
    assert message.startswith("decode.length_penalty") and not (tmp_path / "beams").exists()


def test_a_run_that_has_no_place_there_is_one_line(tmp_path):
    task = make_trainer(tiny_config(), devices=1).task
    message = refusal(export_run, "encoder_decoder", task, {}, tmp_path / "out")
    for name in ("marian", "bart", "t5"):
        assert re.search(rf"model.\w+ = \S+ has no place in a {name} model", message)
    message = refusal(export_run, "cnn", task, {}, tmp_path / "out")
    assert message == 'model.kind = "cnn" has no Hugging Face layout here'
    assert not (tmp_path / "out").exists()


def test_an_import_never_goes_over_a_run(model, source, workdir):
    before = {path: path.stat().st_mtime_ns for path in workdir.rglob("*")}
    message = refusal(imported.save_to_workdir, model, source, workdir)
    assert message == f"--workdir={workdir} holds a run already: choose another directory"
    assert {path: path.stat().st_mtime_ns for path in workdir.rglob("*")} == before
    # The directory of the model itself has a config.json, which is not ours.
    assert "holds a run already" in refusal(imported.save_to_workdir, model, source, source)


def test_missing_tokenizer_files_are_named(model, source, tmp_path):
    shutil.copy(source / "source.spm", tmp_path)
    message = refusal(imported.save_to_workdir, model, tmp_path, tmp_path / "run")
    assert "target.spm, vocab.json missing" in message
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda v: v | {"<pad>": 59, "filler0": 60}, "pad_token_id = 60, but the tokenizer's is"),
        (lambda v: v | {"</s>": 1, "<unk>": 0}, "eos_token_id = 0, but the tokenizer's is 1"),
        (lambda v: v | {"more": 61}, "embeddings of 61 tokens, but the tokenizer has 62"),
        (lambda v: {"</s>": 0}, "vocab.json lacks the special pieces"),
    ],
)
def test_a_tokenizer_of_another_model_is_refused(model, source, tmp_path, change, named):
    for name in TOKENIZER:
        shutil.copy(source / name, tmp_path)
    vocab = json.loads((source / "vocab.json").read_text())
    (tmp_path / "vocab.json").write_text(json.dumps(change(vocab)))
    message = refusal(imported.save_to_workdir, model, tmp_path, tmp_path / "run")
    assert message.startswith(f"{tmp_path}: ") and named in message
    assert not (tmp_path / "run").exists()
