"""Settings of every family in both directions: spellings, defaults, and what is refused."""

import json

import pytest

from tests.pretrained.fixtures import DIRECTORIES, copy_with, load
from transformer_lab import pretrained
from transformer_lab.errors import LabError
from transformer_lab.pretrained.generation import NO_TOKEN, SpecialIds
from transformer_lab.pretrained.keys import Settings

REFUSED = [  # directory, other keys of config.json, words of the refusal
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
    ("gpt2", {"add_cross_attention": True}, "add_cross_attention = true"),
    ("gpt2", {"activation_function": "mish"}, 'activation_function = "mish"'),
    ("gpt2", {"n_head": 3}, "n_head = 3"),
    ("gpt2", {"rotary_dim": 4}, "rotary_dim = 4"),
    ("gpt2", {"architectures": ["GPT2ForSequenceClassification"]}, "architectures = "),
    ("gpt2", {"architectures": 1}, "architectures = 1"),
    ("gpt2", {"n_embd": "8"}, 'n_embd = "8"'),
    ("gpt2", {"two\nlines": 1}, "two lines = 1"),
    ("llama", {"pretraining_tp": 2}, "pretraining_tp = 2"),
    ("llama", {"num_key_value_heads": 3}, "num_key_value_heads = 3"),
    ("llama", {"hidden_act": "tanh"}, 'hidden_act = "tanh"'),
    ("llama", {"sliding_window": 4}, "sliding_window = 4"),
    ("llama", {"quantization_config": {"bits": 4}}, "quantization_config = "),
    ("llama", {"rope_scaling": {"type": "longrope", "factor": 2.0}}, 'rope_type = "longrope"'),
    ("llama", {"rope_scaling": {"type": "linear"}}, "rope_scaling: factor is missing"),
    ("llama", {"rope_scaling": {"type": "llama3", "factor": 8.0}}, "low_freq_factor"),
    ("llama", {"rope_parameters": {"rope_theta": 1e4, "mrope_section": [2]}}, "mrope_section"),
    ("llama", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary"),
    ("llama", {"rope_parameters": {"rope_theta": -1.0}}, "model.rope_base = -1.0"),
    ("llama", {"num_hidden_layers": 2**31}, "have room for"),
    ("llama", {"head_dim": 2**31}, "have room for"),
    ("llama", {"hidden_size": 2**20}, "are they another model's"),
    ("llama_yarn", {"rope_scaling": {"type": "yarn", "truncate": False}}, "truncate = false"),
    ("mistral", {"attention_bias": True}, "attention_bias = true"),
    ("mistral", {"layer_types": ["full_attention"]}, "layer_types"),
    ("whisper", {"decoder_attention_heads": 5}, "decoder_attention_heads = 5"),
    ("whisper", {"activation_function": "mish"}, 'activation_function = "mish"'),
    ("whisper", {"max_source_positions": 8}, "embed_positions.weight has the shape"),
    ("whisper", {"tie_word_embeddings": False}, "the output head is missing"),
    ("opt", {"layer_norm_elementwise_affine": False}, "layer_norm_elementwise_affine"),
    ("bloom", {"apply_residual_connection_post_layernorm": True}, "apply_residual_connection"),
    ("bloom", {"slow_but_exact": True}, "slow_but_exact = true"),
    ("bloom", {"n_inner": 7}, "n_inner = 7"),
    ("gpt_neox", {"rope_theta": 500.0}, "rope_theta = 500.0"),
    ("gpt_neox", {"use_parallel_residual": None}, "use_parallel_residual = null"),
    ("bert", {"position_embedding_type": "relative_key"}, 'position_embedding_type = "rel'),
    ("bert", {"is_decoder": True}, "is_decoder = true"),
    ("bert", {"add_cross_attention": True}, "add_cross_attention = true"),
    ("bert", {"hidden_act": "mish"}, 'hidden_act = "mish"'),
    ("bert", {"num_attention_heads": 5}, "num_attention_heads = 5"),
    ("bert", {"embedding_size": 4}, "embedding_size = 4"),
    ("bert", {"architectures": ["BertForMultipleChoice"]}, "architectures = "),
    ("bert", {"layer_norm_eps": -0.5}, "model.norm_epsilon = -0.5"),
    ("bert", {"layer_norm_eps": float("nan")}, "layer_norm_eps = NaN"),
    ("roberta", {"architectures": ["RobertaForPreTraining"]}, "architectures = "),
    ("roberta", {"max_position_embeddings": 2}, "max_position_embeddings = 2"),
    ("distilbert", {"n_heads": 5}, "n_heads = 5"),
    ("distilbert", {"layer_norm_eps": 1e-5}, "layer_norm_eps = 1e-05"),
    ("bert_classes", {"problem_type": "multi_label_classification"}, "problem_type = "),
    ("bert_classes", {"problem_type": "regression"}, "problem_type = "),
    ("bert_classes", {"id2label": {"0": "a", "2": "b"}}, "id2label must number"),
    ("bert_classes", {"num_labels": 4}, "id2label must number its 4 labels"),
    ("bert_classes", {"id2label": None}, "needs \\(2, 12\\)"),
    ("bert_classes", {"id2label": ["a"]}, r'id2label = \["a"\]'),
    ("bert_classes", {"classifier_dropout": -0.5}, "model.head_dropout = -0.5"),
    ("t5", {"feed_forward_proj": "gated-mish"}, 'feed_forward_proj = "gated-mish"'),
    ("t5", {"dense_act_fn": "silu"}, 'dense_act_fn = "silu"'),
    ("t5", {"is_decoder": True}, "is_decoder = true"),
    ("t5", {"architectures": ["T5ForTokenClassification"]}, "architectures"),
    ("t5", {"moe_layers": 2}, "moe_layers = 2"),
    ("t5", {"num_heads": 4}, "has the shape"),
    ("t5", {"num_decoder_layers": 2**31}, "have room for"),
    ("t5", {"relative_attention_num_buckets": 1}, "model.relative_buckets = 1"),
    ("bart", {"normalize_before": True}, "normalize_before = true"),
    ("bart", {"normalize_embedding": False}, "normalize_embedding = false"),
    ("bart", {"encoder_attention_heads": 5}, "encoder_attention_heads = 5"),
    ("marian_relu", {"normalize_before": True}, "normalize_before = true"),
    ("marian_relu", {"add_final_layer_norm": True}, "add_final_layer_norm = true"),
    ("marian_relu", {"static_position_embeddings": False}, "static_position_embeddings = false"),
    ("marian_relu", {"activation_function": "mish"}, 'activation_function = "mish"'),
    ("marian_relu", {"rope_theta": 1e4, "alibi": True}, "alibi = true, rope_theta = 10000.0"),
    ("marian_relu", {"quantization_config": {"bits": 4}}, "quantization_config = "),
    ("marian_relu", {"architectures": ["MarianForCausalLM"]}, "architectures = "),
    ("marian_relu", {"num_hidden_layers": 5}, "num_hidden_layers = 5"),
    ("marian_relu", {"encoder_attention_heads": 5}, "encoder_attention_heads = 5"),
    ("marian_relu", {"d_model": "24"}, 'd_model = "24"'),
    ("marian_relu", {"d_model": 0}, "d_model = 0"),
    ("marian_relu", {"scale_embedding": 1}, "scale_embedding = 1"),
    ("marian_relu", {"decoder_vocab_size": 7}, "decoder_vocab_size = 7"),
    ("marian_relu", {"dropout": "much"}, 'dropout = "much"'),
    ("marian_relu", {"model_type": "mariam"}, r'"mariam" is unknown \(did you mean "marian"'),
    ("marian_relu", {"model_type": None}, '"model_type" is missing'),
    ("vit", {"image_size": [8, 12, 3]}, "image_size"),
    ("vit", {"image_size": [9, 12]}, "9x12.*4x2"),
    ("vit", {"hidden_act": "gelu_wide"}, "hidden_act"),
    ("vit", {"architectures": ["ViTForMaskedImageModeling"]}, "architectures"),
    ("vit", {"surprise": 1}, "surprise"),
    ("dinov2", {"image_size": [12, 8]}, "image_size"),
    ("dinov2", {"layerscale_value": 0.0}, "layerscale_value = 0.0"),
    ("dinov2", {"mlp_ratio": "4"}, "mlp_ratio"),
    ("dinov2", {"architectures": ["Dinov2Backbone"]}, "architectures"),
    ("dinov2_gated", {"use_swiglu_ffn": False}, "mlp.fc1"),
    ("clip", {"projection_dim": 8.0}, "projection_dim = 8.0"),
    ("siglip", {"vision_config.gating": True}, "vision_config: not understood.*gating"),
]


@pytest.mark.parametrize(("name", "changes", "named"), REFUSED)
def test_a_key_that_changes_the_numbers_is_refused_by_name(tmp_path, name, changes, named):
    with pytest.raises(LabError, match=named) as error:
        pretrained.load(copy_with(name, tmp_path, **changes))
    assert "\n" not in str(error.value)


ROPE = ("rope_parameters", "rope_scaling", "rope_theta")
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 48}
PUBLISHED = {  # keys of BART's own files
    "_num_labels": 3,
    "add_bias_logits": False,
    "add_final_layer_norm": False,
    "classif_dropout": 0.1,
    "extra_pos_embeddings": 2,
    "gradient_checkpointing": False,
    "normalize_before": False,
    "normalize_embedding": True,
    "prefix": " ",
    "static_position_embeddings": False,
    "task_specific_params": {"x": {"num_beams": 4}},
}
HARMLESS = {  # of Marian
    "encoder_layerdrop": 0.3,
    "id2label": {"0": "x"},
    "torch_dtype": "float16",
    "add_bias_logits": False,
    "normalize_before": False,
    "static_position_embeddings": True,
    "num_hidden_layers": 3,
    "max_length": 512,
    "num_beams": 6,
    "architectures": None,
}
OLDER_T5 = ("scale_decoder_outputs", "dense_act_fn", "is_gated_act")
SPELT = [  # directory, other keys, settings of ours that the model then has; none: all as before
    ("gpt2", {"n_inner": 64, "n_ctx": 24}, {}),
    ("gpt2", {"eos_token_id": 50256, "reorder_and_upcast_attn": True}, {}),
    ("llama", {}, {"rope_base": 10_000.0}),
    ("llama", {"rope_theta": 5e5, "rope_scaling": None}, {"rope_base": 5e5}),
    ("llama", {"rope_theta": 7.0, "rope_parameters": {"rope_theta": 9}}, {"rope_base": 9.0}),
    ("llama", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, {}),
    (
        "llama",
        {"rope_theta": 7.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_base": 7.0, "rope_scaling": "linear", "rope_factor": 2.0},
    ),
    # 0.1 ln 4 + 1 (Peng 2023, eq. 22), unless both scales or the value itself are given.
    ("llama", {"rope_parameters": YARN}, {"rope_high": 32.0, "rope_attention_factor": 1.1386294}),
    (
        "llama",
        {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 0.5}},
        {"rope_low": 1.0, "rope_attention_factor": 1.1386294 / 1.0693147},
    ),
    ("llama", {"rope_parameters": YARN | {"attention_factor": 2}}, {"rope_factor": 4.0}),
    ("mistral", {"sliding_window": None}, {"window": 0}),
    ("opt", {"activation_dropout": 0.0, "word_embed_proj_dim": None, "prefix": "</s>"}, {}),
    ("bloom", {"n_embed": 12, "offset_alibi": 100, "n_inner": None}, {"width": 12}),
    ("bloom", {"seq_length": 64}, {"max_length": 64}),
    ("gpt_neox", {"rotary_pct": 0.5, "rotary_emb_base": 10_000}, {}),
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
    ("bart", {}, {"embedding_scale": True, "head_bias": True, "embedding_norm": True}),
    ("bart", PUBLISHED, {}),
    ("t5", {}, {"tie_head": True, "scale_output": True, "activation": "relu", "width": 16}),
    ("t5", {}, {"heads": 3, "head_dim": 6}),
    ("t5", {"n_positions": 64, "output_past": True, "task_specific_params": {}},
     {"max_length": 64}),
    # The output is scaled by the width only when the head is tied, whatever wrote the file: older
    # writers have one key for both.
    ("t5", dict.fromkeys(OLDER_T5), {"scale_output": True}),
    ("t5_untied", dict.fromkeys(OLDER_T5) | {"tie_word_embeddings": False},
     {"scale_output": False, "tie_head": False}),
    ("t5_untied", {}, {"tie_head": False, "scale_output": False, "activation": "geglu_tanh"}),
    ("t5_untied", {}, {"relative_buckets": 6, "relative_max_distance": 9}),
    ("t5_silu", {}, {"tie_head": True, "scale_output": False, "activation": "swiglu"}),
    ("t5_silu", {"model_type": "mt5", "scale_decoder_outputs": True}, {"scale_output": False}),
    ("marian_relu", HARMLESS, {}),
    ("marian_relu", {"activation_function": "swish"}, {"activation": "silu"}),
    ("marian_relu", {"activation_function": "gelu_new"}, {"activation": "gelu_tanh"}),
    ("marian_relu", {"activation_function": "gelu_pytorch_tanh"}, {"activation": "gelu_tanh"}),
    ("marian_relu", {"activation_function": "gelu"}, {"activation": "gelu"}),
    ("marian_relu", {"activation_function": "quick_gelu"}, {"activation": "gelu_quick"}),
    ("marian_relu", {"activation_function": "relu"}, {"activation": "relu"}),
    ("vit", {}, {"image_size": (8, 12), "patch_size": (4, 2), "grid": (2, 6)}),
    ("vit", {}, {"head": "none", "pre_logits": 7, "pre_logits_activation": "relu"}),
    ("vit_classes", {}, {"classes": 3}),
    ("dinov2", {"drop_path_rate": 0.1}, {"drop_path": 0.1, "grid": (3, 3), "pooling": "class"}),
    ("dinov2_classes", {}, {"classes": 3, "pooling": "class_mean", "layer_scale": 1.0}),
    ("dinov2_gated", {}, {"activation": "swiglu", "feed_forward_width": 16}),
    ("deit", {}, {"distillation": "token"}),
    ("deit_heads", {}, {"distillation": "heads"}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "changes", "expected"), SPELT)
def test_spellings_of_settings(tmp_path, name, changes, expected):
    drop = {key for key in OLDER_T5 if key in changes and changes[key] is None}
    drop |= set(ROPE) - changes.keys() if "t5" not in name else set()
    found = pretrained.load(copy_with(name, tmp_path, drop=drop, **changes)).config
    for key, value in expected.items():
        want = pytest.approx(value) if isinstance(value, float) else value
        assert getattr(found, key) == want
    if not expected:
        assert found == load(name).config


@pytest.mark.parametrize(
    ("name", "key", "field", "value"),
    [
        ("mistral", "sliding_window", "window", 4096),
        ("gpt_neox", "rope_parameters", "rope_dims", 2),
        ("llama", "attention_bias", "attention_bias", False),
        ("opt", "word_embed_proj_dim", "embedding_width", None),
        ("gpt2", "n_inner", "feed_forward_width", 64),
    ],
)
def test_a_missing_key_means_the_default_of_the_family(tmp_path, name, key, field, value):
    model = pretrained.load(copy_with(name, tmp_path, drop=[key]))
    assert getattr(model.config, field) == value


def test_keys_of_tools_and_versions_and_null_ones_are_passed_over_with_one_note():
    values = json.loads((DIRECTORIES["llama"] / "config.json").read_text())
    more = {
        "_attn_implementation_autoset": True,
        "unsloth_version": "2025.1",
        "auto_map": {"AutoModelForCausalLM": "x.y"},
        "sliding_window": None,
    }
    settings = Settings(values | more, "config.json")
    config, _ = pretrained.family("llama").reading(settings, {})
    assert config == pretrained.family("llama").reading(Settings(values, "config.json"), {})[0]
    (note,) = settings.notes
    assert note.startswith("config.json: passed over, ") and all(key in note for key in more)


def test_labels_stand_in_the_order_of_the_outputs(tmp_path):
    table = {"2": "c", "0": "a", "1": "b"}
    model = pretrained.load(copy_with("bert_classes", tmp_path, id2label=table))
    assert model.labels == ("a", "b", "c")
    assert load("roberta_classes").labels == ("LABEL_0",) and load("bert_span").labels == ()
    assert load("vit_classes").labels == ("cat", "dog", "owl")
    assert pretrained.describe(load("vit_classes")).endswith("images of 8x12, head classes")


def test_special_tokens_and_the_search_are_those_named_or_usual(tmp_path):
    assert load("bert").special == SpecialIds(0, NO_TOKEN, NO_TOKEN)
    assert load("roberta").special == SpecialIds(pad=1, eos=2, start=0)
    bare = copy_with("roberta", tmp_path / "a", drop=["pad_token_id"], eos_token_id=7)
    assert pretrained.load(bare).special == SpecialIds(pad=1, eos=7, start=0)
    assert load("t5").special == SpecialIds(pad=0, eos=1, start=0)
    bart = load("bart").decode
    assert (bart.first_token, bart.force_eos) == (0, True)
    assert load("bart_relu").decode.first_token is None
    # Of the settings in two files, those of generation_config.json count.
    other = copy_with("marian_relu", tmp_path / "b", pad_token_id=61, eos_token_id=99, num_beams=6)
    found = pretrained.load(other)
    assert found.special == load("marian_relu").special and found.decode.beam_size == 1
