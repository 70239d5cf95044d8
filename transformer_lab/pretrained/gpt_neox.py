"""GPT-NeoX (Black 2022), as in Hugging Face's `gpt_neox`; Pythia too."""

from typing import Any

from transformer_lab.models.decoder import DecoderConfig
from transformer_lab.pretrained.decoder_settings import (
    both_ways,
    head_dim,
    interleaved,
    name_map,
    query_key_value,
    read_fields,
    write_fields,
)
from transformer_lab.pretrained.decoders import INPUTS, KIND, generate, outputs, shapes
from transformer_lab.pretrained.keys import Settings
from transformer_lab.pretrained.names import NameMap, Rule, dense, norm
from transformer_lab.pretrained.rope import read_rope, write_rope

__all__ = ["INPUTS", "KIND", "generate", "outputs", "reading", "shapes", "writing"]

FIELDS = {
    "vocab_size": ("vocab_size", 50432),
    "max_position_embeddings": ("max_length", 2048),
    "hidden_size": ("width", 6144),
    "num_hidden_layers": ("layers", 44),
    "num_attention_heads": ("heads", 64),
    "intermediate_size": ("feed_forward_width", 24576),
    "hidden_act": ("activation", "gelu"),
    "layer_norm_eps": ("norm_epsilon", 1e-5),
    "attention_bias": ("attention_bias", True),
    "tie_word_embeddings": ("tie_head", False),
    "hidden_dropout": ("dropout", 0.0),
    "attention_dropout": ("attention_dropout", 0.0),
    "initializer_range": ("init_std", 0.02),
}


def _read(settings: Settings) -> DecoderConfig:
    found = read_fields(settings, "gpt_neox", "GPTNeoX", FIELDS)
    settings.ignore(["classifier_dropout"])
    size = head_dim(settings, "num_attention_heads", found["width"], found["heads"])
    base, share = settings.number("rotary_emb_base", 10_000.0), settings.number("rotary_pct", 0.25)
    settings.fix({"rope_theta": (base,), "partial_rotary_factor": (share,)})
    rope = read_rope(settings, found["max_length"], size, base, share)
    parallel = settings.flag("use_parallel_residual", True)
    block = "parallel_two_norms" if parallel else "serial"
    return DecoderConfig(**found, head_dim=size, block=block, depth_scaled_init=False, **rope)


def _write(config: DecoderConfig) -> dict[str, Any]:
    rope = write_rope(config)
    return write_fields(config, "gpt_neox", "GPTNeoXForCausalLM", FIELDS) | {
        "use_parallel_residual": config.block == "parallel_two_norms",
        "rotary_pct": config.turning_dims / config.head_dim,
        "rotary_emb_base": rope.pop("rope_theta"),
        **rope,
    }


def _names(config: DecoderConfig) -> NameMap:
    ours, theirs = "decoder/layer_{i}", "gpt_neox.layers.{i}"
    attention, bias = f"{theirs}.attention", config.attention_bias
    rules = [
        *norm("decoder/final_norm", "gpt_neox.final_layer_norm"),
        *norm(f"{ours}/attention_norm", f"{theirs}.input_layernorm"),
        *norm(f"{ours}/feed_forward_norm", f"{theirs}.post_attention_layernorm"),
        *dense(f"{ours}/attention/out", f"{attention}.dense", bias),
        *dense(f"{ours}/feed_forward/up", f"{theirs}.mlp.dense_h_to_4h"),
        *dense(f"{ours}/feed_forward/down", f"{theirs}.mlp.dense_4h_to_h"),
    ]
    for leaf, name in [("kernel", "weight"), ("bias", "bias")][: 1 + bias]:
        parts = query_key_value(f"{ours}/attention", leaf)
        rules.append(Rule(parts, f"{attention}.query_key_value.{name}", interleaved(config.heads)))
    buffers = frozenset(f"{attention}.{x}" for x in ("bias", "masked_bias", "rotary_emb.inv_freq"))
    head = "embed_out.weight"  # lm_head.weight in files of some versions
    return name_map(
        config, rules, "gpt_neox.embed_in.weight", head, prefix="gpt_neox.", unused=buffers
    )


reading, writing = both_ways(_read, _write, _names)
