"""From a T5 directory to a run that translates, and back."""

import shutil

import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver
from ml_collections import ConfigDict

from tests.pretrained.fixtures import DIRECTORIES
from tests.text.test_t5_tokenizer import LINES, spiece
from transformer_lab import cli, pretrained
from transformer_lab.commands import import_hf
from transformer_lab.errors import LabError
from transformer_lab.pretrained.beside import export_run
from transformer_lab.pretrained.hub import read_tensors
from transformer_lab.pretrained.running import RUNNERS
from transformer_lab.training import runs


def run_import(source, workdir):
    cli.declare(import_hf)
    with flagsaver.flagsaver():
        flags.FLAGS(["import_hf", f"--source={source}", f"--workdir={workdir}"])
        return import_hf.main([])


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A fixture's weights (53 tokens, padding and start 0, end 1) with a tokenizer of 32."""
    path = tmp_path_factory.mktemp("hub") / "t5"
    shutil.copytree(DIRECTORIES["t5"], path)
    (path / "spiece.model").write_bytes(spiece())
    (path / "tokenizer_config.json").write_text('{"extra_ids": 5}')
    return path


def test_a_run_of_it_translates_as_the_imported_model_does_and_exports_the_same(source, tmp_path):
    assert run_import(source, tmp_path / "run") == 0
    config = ConfigDict(runs.stored_config(tmp_path / "run"))
    config.decode.max_new_tokens = 6
    trainer, params = runs.open_run(config, tmp_path / "run")
    task, model = trainer.task, pretrained.load(source)
    assert (task.tokenizer.vocab_size, task.model_config.vocab_size) == (32, 53)
    decoder = task.decoder(trainer.place, rows=4)
    found = [h[0].ids for h in decoder({"params": params}, [task.encode(line) for line in LINES])]
    for line, ids in zip(LINES, found, strict=True):
        inputs = {"input_ids": np.array([task.encode(line)])}
        tokens, _ = RUNNERS[model.kind].generate(
            model.config, model.params, inputs, decoder.config, model.special
        )
        want = tokens[0, 1:].tolist()
        assert ids == (want[: want.index(1)] if 1 in want else want)
        assert max(ids) < 32  # no piece stands in the table's other rows
    export_run("encoder_decoder", task, params, tmp_path / "out", "t5")
    theirs, ours = read_tensors(source), read_tensors(tmp_path / "out")
    assert all(np.array_equal(theirs[name], ours[name]) for name in theirs | ours)
    for name in ("spiece.model", "tokenizer_config.json"):
        assert (tmp_path / "out" / name).read_bytes() == (source / name).read_bytes()


def test_a_tokenizer_that_is_missing_or_larger_than_the_model_is_refused(source, tmp_path):
    shutil.copytree(source, tmp_path / "t5")
    (tmp_path / "t5" / "tokenizer_config.json").write_text("{}")
    with pytest.raises(LabError, match="embeddings of 53 tokens, but the tokenizer has 127"):
        run_import(tmp_path / "t5", tmp_path / "run")
    (tmp_path / "t5" / "spiece.model").unlink()
    with pytest.raises(LabError, match="tokenizer.json missing .or spiece.model"):
        run_import(tmp_path / "t5", tmp_path / "run")
