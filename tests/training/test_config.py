"""Every config resolves, and no key is ignored."""

import dataclasses
import functools
import importlib.util
import json
from pathlib import Path

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict

from tests.tiny import tiny_config
from transformer_lab import cli, tasks
from transformer_lab.data.parallel import HELD_OUT
from transformer_lab.errors import LabError
from transformer_lab.models.presets import DECODERS
from transformer_lab.tasks.base import stand_in
from transformer_lab.training.config import (
    default_config,
    flatten,
    from_stored,
    lower_is_better,
    resolve,
)
from transformer_lab.training.runs import refuse_changes

FILES = sorted((Path(__file__).parents[2] / "configs").glob("*.py"))
REQUIRED = {
    "seed",
    "steps",
    "log_every",
    "eval_every",
    "save_every",
    "mesh.data",
    "mesh.fsdp",
    "mesh.tensor",
    "optimizer.learning_rate",
}


ARGUMENTS = {
    "align": "sft reward dpo ipo grpo ppo",
    "bert_brown": "original roberta",
    "clip_emoji": "softmax sigmoid lit lit_vit limoe",
    "cnn_fashion_mnist": "resnet lenet",
    "decoder": "gpt2_small",  # all presets are built below
    "detect_stamps": "detr cells",
    "families": "encoder,sentiment encoder_decoder,sentiment prefix,sentiment causal,sentiment "
    "encoder_decoder,translate prefix,translate causal,translate",
    "finetune_sentiment": "full head last bias lora adapters scratch",
    "forecast_m3": "patches wavenet",
    "gpt_positions": "none learned sinusoidal binary index index_scaled rope alibi t5 "
    "transformer_xl learned+every rope+interleaved",
    "gpt_recurrence": "64 0 recall",
    "long_range": "mamba2+mqar linear+listops lstm+pixels attention+induction_heads+time "
    "hybrid+selective_copying",
    "parse_trees": "python brown",
    "parentheses": "elman gated gru lstm lstm_peephole transformer lstm+ten gru+signs",
    "seq2seq_en_fr": "none additive general dot plain scaled_dot transformer prefix causal",
    "t5_mixture": "translate summarize sentiment question next_sentence",
    "transformer_base": "en-de en-fr",
    "transformer_big": "en-de en-fr",
    "translate_en_fr_help": "en-fr en-de",
    "video_stamps": "factorised joint bag frame",
    "vit_fashion_mnist": "short long",
    "word2vec_brown": "skipgram cbow",
}


@functools.cache
def module_of(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_config_file_resolves_with_each_argument_and_has_the_common_keys(path):
    module = module_of(path)
    for argument in [None, *ARGUMENTS.get(path.stem, "").split()]:
        config = module.get_config(*filter(None, [argument]))
        assert set(flatten(config)) >= REQUIRED
        resolved = resolve(config)
        assert resolved.run.steps == config.steps
    with pytest.raises(LabError, match="no_such"):
        resolve(module.get_config("no_such"))
    assert f"--config=configs/{path.name}" in module.__doc__


def test_a_misspelt_key_in_a_config_file_is_refused():
    config = default_config(model="encoder_decoder", task="translation")
    with pytest.raises(AttributeError, match="steps"):
        config.stepz = 5
    with pytest.raises(KeyError, match="widht"):
        config.model.update(widht=5)


def test_an_unknown_stored_key_is_refused_with_the_nearest():
    config = tiny_config()
    with config.unlocked():
        config.model.widht = 3
    with pytest.raises(LabError, match=r'config.model.widht is not a key \(did you mean "width"'):
        resolve(config)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("model.positions", "sinus", "model.positions"),
        ("tokenizer.kind", "bpee", "bpee"),
        ("data.source", "catalogue", "catalogues"),
        ("average", 9, "average"),
        ("log_every", 0, "log_every"),
        ("batch.buckets", 0, "buckets"),
        ("decode.beam_size", 0, "beam_size"),
        ("task.label_smoothing", 1.5, "label_smoothing"),
    ],
)
def test_an_impossible_value_is_refused_in_one_line_that_names_it(key, value, words):
    config = tiny_config()
    config.update_from_flattened_dict({key: value})
    with pytest.raises(LabError, match=words) as info:
        resolve(config)
    assert "\n" not in str(info.value)


def test_unknown_kinds_name_the_nearest():
    with pytest.raises(LabError, match='did you mean "encoder_decoder"'):
        default_config(model="encoder_decodr", task="translation")
    with pytest.raises(LabError, match='did you mean "translation"'):
        default_config(model="encoder_decoder", task="translate")


def test_a_placeholder_takes_a_value_and_numbers_take_their_field_type():
    config = tiny_config()
    config.epochs = 2.5
    config.model.decoder_layers = 3
    config.optimizer.weight_decay = 1
    resolved = resolve(config)
    assert resolved.run.epochs == 2.5 and resolved.model.decoder.layers == 3
    assert type(resolved.run.optimizer.weight_decay) is float
    config = ConfigDict(tiny_config().to_dict() | {"seed": "one"})
    with pytest.raises(LabError, match="config.seed = 'one' is of type str, it must be int"):
        resolve(config)


def test_a_run_stored_before_a_key_existed_resumes_with_its_default():
    now = tiny_config().to_dict()
    before = {key: value for key, value in now.items() if key != "model_from_init"}
    refuse_changes(before, now, Path("run"))
    with pytest.raises(LabError, match="model_from_init = False, this one has True"):
        refuse_changes(before, {**now, "model_from_init": True}, Path("run"))


def test_the_number_of_workers_changes_no_number_so_a_run_resumes_with_any():
    before = default_config(model="vision", task="image_classification").to_dict()
    now = {**before, "batch": {**before["batch"], "workers": 2}}
    refuse_changes(before, now, Path("run"))
    now["batch"]["rows"] = 64
    with pytest.raises(LabError, match="batch.rows = 128, this one has 64"):
        refuse_changes(before, now, Path("run"))


@pytest.mark.parametrize(
    ("argv", "steps", "epochs", "words"),
    [
        ([], 1000, 2.0, ""),
        (["--config.steps=3"], 3, None, "--config.steps=3 takes the place of config.epochs = 2.0"),
        (["--config.steps", "3"], 3, None, "takes the place"),
        (["--config.epochs=None"], 1000, None, ""),
        (["--config.steps=3", "--config.epochs=2.0"], 3, 2.0, ""),  # epochs, as a config has it
    ],
)
def test_of_steps_and_epochs_one_decides_by_a_rule_that_is_said(argv, steps, epochs, words, capsys):
    config = default_config(model="encoder_decoder", task="translation")
    config.steps, config.epochs = steps, 2.0
    cli.settle(config, argv)
    assert (config.steps, config.epochs) == (steps, epochs)
    assert resolve(config).run.epochs == epochs
    said = capsys.readouterr().err
    assert words in said and bool(words) == bool(said)


def test_held_out_sizes_of_a_users_files_are_the_default_unless_stated():
    """Those of a config file are for its own source; the default is a tenth of few pairs."""
    config = tiny_config(data__source="files")  # 10 pairs of each
    cli.settle(config, ["--config.steps=3"])
    assert (config.data.validation_size, config.data.test_size) == (10, 10)
    cli.settle(config, ["--config.data.source=files", "--config.data.test_size=10"])
    assert (config.data.validation_size, config.data.test_size) == (HELD_OUT, 10)


def test_only_a_key_that_may_be_unset_takes_none():
    config = default_config(model="encoder_decoder", task="translation")
    cli.settle(config, ["--config.model.width=None"])
    with pytest.raises(LabError, match="config.model.width = None is of type NoneType"):
        resolve(config)


DECODER = FILES[0].parent / "decoder.py"


def preset(name):
    return resolve(module_of(DECODER).get_config(name))


@pytest.mark.each_run(
    "gpt2_small",
    "gpt3_175b",
    "opt_350m",
    "palm_8b",
    "gopher_280b",
    "bloom_176b",
    "llama_7b",
    "glm_130b",
    "mixtral_8x7b",
    "mamba_2.8b",
    "rwkv4_14b",
    "cpu_2m",
)
@pytest.mark.parametrize("name", DECODERS)
def test_a_preset_builds_for_a_mesh_that_its_rows_and_heads_divide_over_and_has_a_loss(name):
    """Of two of its layers; depth is a matter of the mesh's memory, not of shapes."""
    config = preset(name)
    mesh, rows = config.run.mesh, config.sections["batch"].rows
    assert config.model.heads % mesh.tensor == 0
    split = 1 if mesh.fsdp == 1 else 4 * mesh.fsdp  # what divides rows, on the stated topology
    assert mesh.fsdp == {1: 1, 64: 16, 128: 32}[split]
    if mesh.expert > 1:  # in the place of copies and of heads
        split *= {16: 1, 32: 4}[mesh.fsdp]
        assert config.model.experts.count % mesh.expert == 0 and mesh.tensor == 1
    else:
        assert (mesh.tensor == 4) == (split == 128)
    parts = split * config.run.micro_batches
    assets = stand_in(config.model, config.sections)
    model = dataclasses.replace(config.model, layers=2)
    task = tasks.objective("language_modeling").build(
        "decoder", model, config.sections, assets=assets, rows_multiple=parts
    )
    batch = task.abstract_batch()
    assert batch["tokens"].shape == (rows, min(config.model.max_length, module_of(DECODER).TOKENS))
    # As many tokens a step as the paper, within the rounding to the mesh.
    if stated := DECODERS[name].batch_tokens:
        assert rows * config.model.max_length == pytest.approx(stated, rel=0.35)
    key = jax.eval_shape(lambda: jax.random.key(0))
    params = jax.eval_shape(task.init, key)
    assert params["embedding"]["embedding"].shape[0] % (1 if split == 1 else 128) == 0
    loss = jax.eval_shape(task.loss, params, batch, key)["loss"]
    assert [(x.shape, x.dtype) for x in loss] == [((), np.float32)] * 2


def test_deep_presets_compile_one_layer_and_recompute():
    deep, flat = preset("llama_7b").model, preset("gpt3_125m").model
    assert (deep.scan_layers, deep.remat) == (True, "nothing")
    assert (flat.scan_layers, flat.remat) == (False, "off")


def test_a_stored_key_without_a_value_can_be_changed_and_keeps_its_type():
    values = json.loads(json.dumps(default_config("decoder", "language_modeling").to_dict()))
    assert values["decode"]["first_token"] is None
    config = from_stored(values)
    config.decode.first_token = 5
    assert resolve(config).sections["decode"].first_token == 5
    with pytest.raises(TypeError):
        config.decode.first_token = "five"
    with pytest.raises(LabError, match="model.kind is missing"):
        resolve(from_stored({"model": {}, "task": {"kind": "translation"}}))


@pytest.mark.parametrize(("score", "lower"), [
    ("loss", True), ("bits_per_byte_512", True), ("perplexity", True), ("cer", True),
    ("test_wer", True), ("smape", True), ("bleu", False), ("accuracy", False), ("answer", False),
    ("rougeL", False), ("mrr", False),
])  # fmt: skip
def test_of_errors_and_losses_less_is_better(score, lower):
    assert lower_is_better(score) == lower
