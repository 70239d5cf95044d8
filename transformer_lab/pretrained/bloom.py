"""BLOOM (BigScience 2022), as in Hugging Face's `bloom`."""

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
from transformer_lab.pretrained.keys import Settings, words
from transformer_lab.pretrained.names import NameMap, Rule, dense, norm

__all__ = ["INPUTS", "KIND", "generate", "outputs", "reading", "shapes", "writing"]

FIELDS = {
    "vocab_size": ("vocab_size", 250880),
    "seq_length": ("max_length", 2048),  # trained on; the architecture has no limit
    "hidden_size": ("width", 64),
    "n_layer": ("layers", 2),
    "n_head": ("heads", 8),
    "layer_norm_epsilon": ("norm_epsilon", 1e-5),
    "tie_word_embeddings": ("tie_head", True),
    "hidden_dropout": ("dropout", 0.0),
    "attention_dropout": ("attention_dropout", 0.0),
    "initializer_range": ("init_std", 0.02),
}
ALIASES = {
    "n_embed": "hidden_size",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
}
# How the trainer fused and split its products.
IRRELEVANT = words("""
    attention_softmax_in_fp32 bias_dropout_fusion masked_softmax_fusion offset_alibi pretraining_tp
    skip_bias_add skip_bias_add_qkv
""")


def _read(settings: Settings) -> DecoderConfig:
    for alias, name in ALIASES.items():
        if (value := settings.raw(alias)) is not None:
            settings.values[name] = value
    found = read_fields(settings, "bloom", "Bloom", FIELDS)
    settings.ignore(IRRELEVANT)
    width = found["width"]
    settings.fix(
        {
            "apply_residual_connection_post_layernorm": (False,),
            "slow_but_exact": (False,),
            "n_inner": (None, 4 * width),
        }
    )
    return DecoderConfig(
        **found,
        head_dim=head_dim(settings, "n_head", width, found["heads"]),
        feed_forward_width=4 * width,
        positions="alibi",
        embedding_norm=True,
        depth_scaled_init=False,
    )


def _write(config: DecoderConfig) -> dict[str, Any]:
    return write_fields(config, "bloom", "BloomForCausalLM", FIELDS)


def _names(config: DecoderConfig) -> NameMap:
    ours, theirs = "decoder/layer_{i}", "transformer.h.{i}"
    packed = f"{theirs}.self_attention.query_key_value"
    rules = [
        *norm("embedding_norm", "transformer.word_embeddings_layernorm"),
        *norm("decoder/final_norm", "transformer.ln_f"),
        *norm(f"{ours}/attention_norm", f"{theirs}.input_layernorm"),
        *norm(f"{ours}/feed_forward_norm", f"{theirs}.post_attention_layernorm"),
        *dense(f"{ours}/attention/out", f"{theirs}.self_attention.dense"),
        *dense(f"{ours}/feed_forward/up", f"{theirs}.mlp.dense_h_to_4h"),
        *dense(f"{ours}/feed_forward/down", f"{theirs}.mlp.dense_4h_to_h"),
    ]
    for leaf, name in (("kernel", "weight"), ("bias", "bias")):
        parts = query_key_value(f"{ours}/attention", leaf)
        rules.append(Rule(parts, f"{packed}.{name}", interleaved(config.heads)))
    return name_map(config, rules, "transformer.word_embeddings.weight", prefix="transformer.")


reading, writing = both_ways(_read, _write, _names)
