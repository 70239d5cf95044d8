"""Encoder-only settings: spellings, labels, what is refused, and what a family cannot hold."""

import dataclasses
import json

import numpy as np
import pytest
from flax.traverse_util import unflatten_dict

from tests.pretrained.test_hf_encoders import ROOT, copy_with, same_trees
from transformer_lab import pretrained
from transformer_lab.commands.export_hf import model_type_of
from transformer_lab.errors import LabError
from transformer_lab.models.encoder import EncoderConfig
from transformer_lab.pretrained import encoders
from transformer_lab.pretrained.generation import NO_TOKEN, SpecialIds


@pytest.mark.parametrize(
    ("name", "changes", "named"),
    [
        ("bert", {"position_embedding_type": "relative_key"}, 'position_embedding_type = "rel'),
        ("bert", {"is_decoder": True}, "is_decoder = true"),
        ("bert", {"add_cross_attention": True}, "add_cross_attention = true"),
        ("bert", {"hidden_act": "mish"}, 'hidden_act = "mish"'),
        ("bert", {"num_attention_heads": 5}, "num_attention_heads = 5"),
        ("bert", {"embedding_size": 4}, "embedding_size = 4"),
        ("bert", {"architectures": ["BertForMultipleChoice"]}, "architectures = "),
        ("roberta", {"architectures": ["RobertaForPreTraining"]}, "architectures = "),
        ("roberta", {"max_position_embeddings": 2}, "max_position_embeddings = 2"),
        ("distilbert", {"n_heads": 5}, "n_heads = 5"),
        ("distilbert", {"layer_norm_eps": 1e-5}, "layer_norm_eps = 1e-05"),
        ("bert_classes", {"problem_type": "multi_label_classification"}, "problem_type = "),
        ("bert_classes", {"problem_type": "regression"}, "problem_type = "),
        ("bert_classes", {"id2label": {"0": "a", "2": "b"}}, "id2label must number"),
        ("bert_classes", {"num_labels": 4}, "id2label must number its 4 labels"),
        ("bert_classes", {"id2label": None}, "needs \\(2, 12\\)"),
    ],
)
def test_a_key_that_changes_the_numbers_is_refused_by_name(tmp_path, name, changes, named):
    with pytest.raises(LabError, match=named) as error:
        pretrained.load(copy_with(name, tmp_path, **changes))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("bert", {"pooler_type": "first_token_transform", "directionality": "bidi"}, {}),
        ("bert", {"hidden_dropout_prob": 0.3}, {"dropout": 0.3, "head_dropout": 0.3}),
        ("bert", {"classifier_dropout": 0.25}, {"dropout": 0.1, "head_dropout": 0.25}),
        ("bert", {"layer_norm_eps": 1e-5}, {"norm_epsilon": 1e-5}),
        ("bert_pretraining", {}, {"norm_epsilon": 1e-2, "mlm_activation": "gelu_tanh"}),
        ("roberta", {}, {"max_length": 14, "types": 2}),
        ("roberta_mlm", {}, {"activation": "relu", "mlm_activation": "gelu", "types": 1}),
        ("roberta_span", {}, {"max_length": 15, "pooler": False}),
        ("distilbert", {}, {"norm_epsilon": 1e-12, "types": 0, "pooler": False}),
        ("distilbert_classes", {"seq_classif_dropout": 0.4}, {"head_dropout": 0.4}),
        ("distilbert_classes", {}, {"pooler_activation": "relu", "labels": 3}),
    ],
)
def test_spellings_of_settings(tmp_path, name, changes, expected):
    found = pretrained.load(copy_with(name, tmp_path, **changes)).config
    assert {key: getattr(found, key) for key in expected} == expected
    if not expected:
        assert found == pretrained.load(ROOT / name).config


def test_labels_stand_in_the_order_of_the_outputs(tmp_path):
    table = {"2": "c", "0": "a", "1": "b"}
    model = pretrained.load(copy_with("bert_classes", tmp_path, id2label=table))
    assert model.labels == ("a", "b", "c")
    assert pretrained.load(ROOT / "roberta_classes").labels == ("LABEL_0",)
    assert pretrained.load(ROOT / "bert_span").labels == ()


def test_special_tokens_are_those_named_or_usual(tmp_path):
    assert pretrained.load(ROOT / "bert").special == SpecialIds(0, NO_TOKEN, NO_TOKEN)
    assert pretrained.load(ROOT / "roberta").special == SpecialIds(pad=1, eos=2, start=0)
    bare = copy_with("roberta", tmp_path, drop=["pad_token_id"], eos_token_id=7)
    assert pretrained.load(bare).special == SpecialIds(pad=1, eos=7, start=0)


def small_config(**changes):
    base = EncoderConfig(
        layers=1, width=8, heads=2, head_dim=4, feed_forward_width=12, vocab_size=11, max_length=6
    )
    return dataclasses.replace(base, **changes)


@pytest.mark.parametrize(
    ("changes", "model_type"),
    [
        ({"head": "mlm", "pooler": False}, "bert"),
        ({"head": "tokens", "labels": 4, "activation": "relu"}, "bert"),
        ({"types": 1, "head": "classes", "labels": 1}, "roberta"),
        ({"types": 0, "head": "classes", "pooler_activation": "relu"}, "distilbert"),
    ],
)
def test_export_then_import_gives_the_same_parameters(tmp_path, changes, model_type):
    config = small_config(**changes)
    assert model_type_of("encoder", config) == model_type
    rng, shapes = np.random.default_rng(0), encoders.shapes(config).items()
    flat = {path: rng.normal(size=shape).astype(np.float32) for path, shape in shapes}
    special = SpecialIds(pad=3, eos=1, start=2)  # RoBERTa's positions begin behind the padding
    out = tmp_path / "out"
    params = unflatten_dict(flat, sep="/")
    pretrained.export(params, config, out, special, model_type=model_type)
    model = pretrained.load(out)
    assert same_trees(model.params, params)
    assert model.special == special and model.config.max_length == 6
    written = json.loads((out / "config.json").read_text())
    assert written["max_position_embeddings"] == (10 if model_type == "roberta" else 6)
    regression = "regression" if config.labels == 1 else None
    assert written.get("problem_type") == regression


@pytest.mark.parametrize(
    ("changes", "model_type", "named"),
    [
        ({"norm_place": "pre"}, "bert", "model.norm_place = 'pre' has no place in a bert model"),
        ({"positions": "rope"}, "bert", "model.positions = 'rope'"),
        ({"pooler_activation": "relu"}, "bert", "model.pooler_activation = 'relu'"),
        ({"head": "classes", "pooler": False}, "bert", "model.pooler = False"),
        ({"head": "mlm", "mlm_activation": "relu"}, "bert", "model.mlm_activation = 'relu'"),
        ({"embedding_norm": False}, "roberta", "model.embedding_norm = False"),
        ({"head": "mlm_nsp"}, "roberta", "architectures"),
        ({"types": 0, "norm_epsilon": 1e-6}, "distilbert", "model.norm_epsilon = 1e-06"),
        ({"types": 2}, "distilbert", "model.types = 2"),
        ({}, "gpt2", '--model_type="gpt2" is none of bert, distilbert, roberta'),
    ],
)
def test_what_a_family_cannot_hold_is_not_exported(changes, model_type, named):
    with pytest.raises(LabError, match=named) as error:
        model_type_of("encoder", small_config(**changes), model_type)
    assert "\n" not in str(error.value)
