"""The settings of decoder-only directories: spellings, defaults, and what is refused."""

import json

import pytest

from tests.pretrained.test_hf_decoders import ROOT, copy_with
from transformer_lab import pretrained
from transformer_lab.errors import LabError
from transformer_lab.pretrained.keys import Settings


@pytest.mark.parametrize(
    ("name", "changes", "named"),
    [
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention = true"),
        ("gpt2", {"activation_function": "mish"}, 'activation_function = "mish"'),
        ("gpt2", {"n_head": 3}, "n_head = 3"),
        ("gpt2", {"rotary_dim": 4}, "rotary_dim = 4"),
        ("gpt2", {"architectures": ["GPT2ForSequenceClassification"]}, "architectures = "),
        ("llama", {"pretraining_tp": 2}, "pretraining_tp = 2"),
        ("llama", {"num_key_value_heads": 3}, "num_key_value_heads = 3"),
        ("llama", {"hidden_act": "tanh"}, 'hidden_act = "tanh"'),
        ("llama", {"sliding_window": 4}, "sliding_window = 4"),
        ("llama", {"quantization_config": {"bits": 4}}, "quantization_config = "),
        ("llama", {"rope_scaling": {"type": "longrope", "factor": 2.0}}, 'rope_type = "longrope"'),
        ("llama", {"rope_scaling": {"type": "linear"}}, "rope_scaling: factor is missing"),
        ("llama", {"rope_scaling": {"type": "llama3", "factor": 8.0}}, "low_freq_factor"),
        ("llama_yarn", {"rope_scaling": {"type": "yarn", "truncate": False}}, "truncate = false"),
        ("llama", {"rope_parameters": {"rope_theta": 1e4, "mrope_section": [2]}}, "mrope_section"),
        ("llama", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary"),
        ("mistral", {"attention_bias": True}, "attention_bias = true"),
        ("mistral", {"layer_types": ["full_attention"]}, "layer_types"),
        ("opt", {"layer_norm_elementwise_affine": False}, "layer_norm_elementwise_affine"),
        ("bloom", {"apply_residual_connection_post_layernorm": True}, "apply_residual_connection"),
        ("bloom", {"slow_but_exact": True}, "slow_but_exact = true"),
        ("bloom", {"n_inner": 7}, "n_inner = 7"),
        ("gpt_neox", {"rope_theta": 500.0}, "rope_theta = 500.0"),
        ("gpt_neox", {"use_parallel_residual": None}, "use_parallel_residual = null"),
    ],
)
def test_a_key_that_changes_the_numbers_is_refused_by_name(tmp_path, name, changes, named):
    with pytest.raises(LabError, match=named) as error:
        pretrained.load(copy_with(name, tmp_path, **changes))
    assert "\n" not in str(error.value)


ROPE = ("rope_parameters", "rope_scaling", "rope_theta")
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 48}


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
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
        (
            "llama",
            {"rope_parameters": YARN},
            {"rope_high": 32.0, "rope_attention_factor": 1.1386294},
        ),
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
    ],
)
def test_spellings_of_settings(tmp_path, name, changes, expected):
    found = pretrained.load(copy_with(name, tmp_path, drop=set(ROPE) - changes.keys(), **changes))
    got = {key: getattr(found.config, key) for key in expected}
    assert got == pytest.approx(expected)
    if not expected:
        assert found.config == pretrained.load(ROOT / name).config


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
    values = json.loads((ROOT / "llama" / "config.json").read_text())
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
