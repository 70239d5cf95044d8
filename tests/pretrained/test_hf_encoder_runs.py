"""An encoder-only directory as a run of the task that its head is for, and back."""

import shutil

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict

from tests.pretrained.fixtures import DIRECTORIES, load, same_trees
from tests.pretrained.test_hf_decoder_runs import write_tokenizer
from transformer_lab import pretrained
from transformer_lab.errors import LabError
from transformer_lab.pretrained.beside import export_run, read_tokenizer
from transformer_lab.pretrained.hub import read_tensors
from transformer_lab.pretrained.running import RUNNERS
from transformer_lab.training import imported, runs
from transformer_lab.training.config import resolve
from transformer_lab.training.mesh import make_mesh

pytest.importorskip("tokenizers")
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(36))]


def hub(name, path):
    """The fixture with a tokenizer beside it."""
    path = shutil.copytree(DIRECTORIES[name], path)
    if name.startswith("roberta"):
        write_tokenizer(path, size=41)
    else:
        (path / "vocab.txt").write_text("\n".join(WORDS))
    return path


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("distilbert", "sentence_embedding"),
        ("bert_mlm", "masked_language_modeling"),
        ("bert_pretraining", "masked_language_modeling"),
        ("bert_classes", "classification"),
        ("roberta_classes", "classification"),
        ("bert_tokens", "tagging"),
        ("bert_span", "question_answering"),
    ],
)
def test_the_head_names_the_task(name, kind, tmp_path):
    source = hub(name, tmp_path / "hub")
    model = pretrained.load(source)
    tokenizer = read_tokenizer(model, source)
    config = imported.run_config(model, tokenizer)
    assert config.task.kind == kind
    resolved = resolve(config)
    assets = imported.run_assets(model, tokenizer)
    task = runs.build_task(resolved, assets, make_mesh(resolved.run.mesh))
    assert task.model_config == model.config and task.limit == model.config.max_length
    if kind == "classification":
        assert task.config.regression == (model.labels == ("LABEL_0",))


def test_a_run_predicts_with_the_labels_of_the_directory_and_gives_it_back(tmp_path):
    source, workdir, out = hub("bert_classes", tmp_path / "hub"), tmp_path / "run", tmp_path / "out"
    model = pretrained.load(source)
    imported.save_to_workdir(model, source, workdir)
    trainer, params = runs.open_run(ConfigDict(runs.stored_config(workdir)), workdir)
    assert same_trees(jax.device_get(params), model.params)
    (found,) = trainer.task.predict(params, ["w3 w4 w5"], trainer.place)
    inputs = {"input_ids": np.array([[2, 8, 9, 10, 3]])}  # [CLS] w3 w4 w5 [SEP]
    logits, _ = RUNNERS["encoder"].outputs(model.config, model.params, inputs)["logits"]
    chances = np.exp(logits[0]) / np.exp(logits[0]).sum()
    assert list(found["probabilities"]) == ["bad", "fair", "good"]
    np.testing.assert_allclose(list(found["probabilities"].values()), chances, atol=1e-5)
    assert found["label"] == ["bad", "fair", "good"][chances.argmax()]
    export_run("encoder", trainer.task, params, out)
    again = pretrained.load(out)
    assert (again.model_type, again.config, again.labels) == ("bert", model.config, model.labels)
    theirs, ours = read_tensors(source), read_tensors(out)
    assert theirs.keys() == ours.keys()
    assert all(np.array_equal(theirs[key], ours[key]) for key in theirs)
    assert (out / "vocab.txt").read_bytes() == (source / "vocab.txt").read_bytes()


def test_a_missing_tokenizer_is_refused(tmp_path):
    with pytest.raises(LabError, match=r"tokenizer.json missing \(or vocab.txt\)"):
        imported.save_to_workdir(load("bert"), DIRECTORIES["bert"], tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_word_has_one_static_vector_and_another_in_each_line(tmp_path):
    source, workdir = hub("distilbert", tmp_path / "hub"), tmp_path / "run"
    model = pretrained.load(source)
    imported.save_to_workdir(model, source, workdir)
    trainer, params = runs.open_run(ConfigDict(runs.stored_config(workdir)), workdir)
    lines, word = ["w3 w4 w5 w9", "w7 w8 w4 w5"], "w4 w5"
    found, static = trainer.task.embed_word(params, lines, word, trainer.place)
    for line, first, vector in zip(([8, 9, 10, 14], [12, 13, 9, 10]), (2, 3), found, strict=True):
        ids = np.array([[2, *line, 3]])  # between [CLS] and [SEP]
        states, _ = RUNNERS["encoder"].outputs(model.config, model.params, {"input_ids": ids})[
            "last_hidden_state"
        ]
        np.testing.assert_allclose(vector, states[0, first : first + 2].mean(axis=0), atol=1e-5)
    table = model.params["embedding"]["embedding"]
    np.testing.assert_allclose(static, (table[9] + table[10]) / 2, atol=1e-6)
    with pytest.raises(LabError, match="does not stand in this line"):
        trainer.task.embed_word(params, ["w5 w4"], word, trainer.place)
