"""A decoder-only directory as a run, and back."""

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver
from ml_collections import ConfigDict

from transformer_lab import cli, pretrained, text
from transformer_lab.commands import import_hf
from transformer_lab.errors import LabError
from transformer_lab.pretrained.beside import export_run, read_tokenizer, tokenizer_files
from transformer_lab.pretrained.hub import read_tensors
from transformer_lab.training import imported, runs

tokenizers = pytest.importorskip("tokenizers")
FIXTURE = Path(__file__).parents[1] / "fixtures" / "decoders" / "llama"


def write_tokenizer(directory, size=50, end=2, template=False):
    pieces = ["<unk>", "<s>", *(f"w{i}" for i in range(size - 2))]
    pieces[end] = "</s>"
    model = tokenizers.models.WordLevel({p: i for i, p in enumerate(pieces)}, unk_token="<unk>")
    library = tokenizers.Tokenizer(model)
    library.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    if template:
        library.post_processor = tokenizers.processors.TemplateProcessing(
            "<s> $A", None, [("<s>", 1)]
        )
    (directory / "tokenizer.json").write_text(library.to_str())
    names = {"eos_token": "</s>", "bos_token": "<s>", "unk_token": "<unk>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(names))


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = shutil.copytree(FIXTURE, tmp_path_factory.mktemp("hub") / "llama")
    write_tokenizer(path)
    return path


@pytest.fixture(scope="module")
def opened(source, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("runs") / "imported"
    imported.save_to_workdir(pretrained.load(source), source, workdir)
    return runs.open_run(ConfigDict(runs.stored_config(workdir)), workdir)


def test_the_run_holds_model_search_and_tokenizer(source, opened):
    trainer, params = opened
    model = pretrained.load(source)
    assert trainer.task.model_config == model.config
    assert trainer.task.sections["decode"] == model.decode
    assert trainer.task.tokenizer.encode("w5 w3 w1 nowhere") == [7, 5, 3, 0]
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, jax.device_get(params), model.params)))


def test_the_export_of_the_run_gives_back_the_directory(source, opened, tmp_path):
    trainer, params = opened
    export_run("decoder", trainer.task, params, tmp_path / "out")
    theirs, ours = read_tensors(source), read_tensors(tmp_path / "out")
    assert theirs.keys() == ours.keys()
    assert all(np.array_equal(theirs[name], ours[name]) for name in theirs)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "out" / name).read_bytes() == (source / name).read_bytes()
    again, first = pretrained.load(tmp_path / "out"), pretrained.load(source)
    assert (again.model_type, again.config, again.special) == (
        first.model_type,
        first.config,
        first.special,
    )
    export_run("decoder", trainer.task, params, tmp_path / "other", "mistral")
    assert pretrained.load(tmp_path / "other").model_type == "mistral"
    with pytest.raises(LabError, match='"swiglu" has no place in a gpt2 model'):
        export_run("decoder", trainer.task, params, tmp_path / "third", "gpt2")
    assert not (tmp_path / "third").exists()


@pytest.mark.parametrize("named_by", ["template", "settings"])
def test_prompts_texts_and_streams_begin_with_the_start_token_of_the_imported_model(
    named_by, tmp_path
):
    source = shutil.copytree(FIXTURE, tmp_path / "hub")
    write_tokenizer(source, template=named_by == "template")
    if named_by == "template":  # then nothing else names it
        (source / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
        config = json.loads((source / "config.json").read_text()) | {"bos_token_id": None}
        (source / "config.json").write_text(json.dumps(config))
        (source / "generation_config.json").unlink()
    imported.save_to_workdir(pretrained.load(source), source, tmp_path / "run")
    trainer, params = runs.open_run(
        ConfigDict(runs.stored_config(tmp_path / "run")), tmp_path / "run"
    )
    task = trainer.task
    assert task.config.layout == "stream" and task.prompt_ids("w6 w4") == [1, 8, 6]
    # w6 w4 w2 are the ids 8, 6, 4; the reference implementation gives -21.0272 after 1.
    ((nats, tokens),) = task.score_texts(params, ["w6 w4 w2"], trainer.place)
    assert tokens == 3 and nats == pytest.approx(21.0271546, abs=1e-4)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (None, r"tokenizer.json missing \(or vocab.json and merges.txt\)"),
        ({"end": 3}, "eos_token_id = 2, but the tokenizer's is 3"),
        ({"size": 98}, "embeddings of 97 tokens, but the tokenizer has 98"),
    ],
)
def test_a_missing_or_foreign_tokenizer_is_refused(tmp_path, arguments, named):
    source = shutil.copytree(FIXTURE, tmp_path / "hub")
    if arguments is not None:
        write_tokenizer(source, **arguments)
    with pytest.raises(LabError, match=named):
        imported.save_to_workdir(pretrained.load(source), source, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_missing_tokenizer_is_told_before_the_check(tmp_path):
    cli.declare(import_hf)
    flags.FLAGS.mark_as_parsed()
    values = {"source": str(FIXTURE), "check": "no.npz", "workdir": str(tmp_path / "run")}
    with flagsaver.flagsaver(**values), pytest.raises(LabError, match=r"tokenizer\.json missing"):
        import_hf.main([])
    assert not (tmp_path / "run").exists()


def test_the_tokenizers_end_token_may_be_any_of_the_models(tmp_path):
    source = shutil.copytree(FIXTURE, tmp_path / "hub")
    write_tokenizer(source, end=3)
    config = json.loads((source / "generation_config.json").read_text())
    config["eos_token_id"] = [2, 3]
    (source / "generation_config.json").write_text(json.dumps(config))
    model = pretrained.load(source)
    tokenizer = read_tokenizer(model, source)
    assert (tokenizer.eos_id, model.special.eos, model.decode.end_tokens) == (3, 2, (2, 3))


def test_a_byte_level_tokenizer_of_ours_is_written_in_their_layout(tmp_path):
    config = text.TokenizerConfig(kind="byte_bpe", vocab_size=270)
    tokenizer = text.train(config, ["the cat sat on the mat"])
    found = tokenizer_files(tokenizer)
    assert found.keys() == {"tokenizer.json", "tokenizer_config.json"}
    theirs = text.load(found)
    assert theirs.encode("the cat é") == tokenizer.encode("the cat é")
    for name in ("pad_id", "eos_id", "bos_id", "unk_id"):
        assert getattr(theirs, name) == getattr(tokenizer, name)
