"""GPT-2 (Radford 2019), as in Hugging Face's `gpt2`."""

from typing import Any

from transformer_lab.models.decoder import DecoderConfig
from transformer_lab.pretrained.decoder_settings import (
    both_ways,
    head_dim,
    joined,
    name_map,
    query_key_value,
    read_fields,
    write_fields,
)
from transformer_lab.pretrained.decoders import INPUTS, KIND, generate, outputs, shapes
from transformer_lab.pretrained.keys import Settings, words
from transformer_lab.pretrained.names import NameMap, Rule, norm

__all__ = ["INPUTS", "KIND", "generate", "outputs", "reading", "shapes", "writing"]

FIELDS = {
    "vocab_size": ("vocab_size", 50257),
    "n_positions": ("max_length", 1024),
    "n_embd": ("width", 768),
    "n_layer": ("layers", 12),
    "n_head": ("heads", 12),
    "activation_function": ("activation", "gelu_new"),
    "layer_norm_epsilon": ("norm_epsilon", 1e-5),
    "scale_attn_weights": ("scale_attention", True),
    "tie_word_embeddings": ("tie_head", True),
    "resid_pdrop": ("dropout", 0.1),
    "attn_pdrop": ("attention_dropout", 0.1),
    "initializer_range": ("init_std", 0.02),
}
# The order of a product, an older name of n_positions, dropout, and other heads.
IRRELEVANT = words("""
    embd_pdrop n_ctx predict_special_tokens reorder_and_upcast_attn summary_activation
    summary_first_dropout summary_proj_to_labels summary_type summary_use_proj
""")


def _read(settings: Settings) -> DecoderConfig:
    found = read_fields(settings, "gpt2", "GPT2", FIELDS)
    settings.ignore(IRRELEVANT)
    settings.fix({"scale_attn_by_inverse_layer_idx": (False,)})
    width = found["width"]
    return DecoderConfig(
        **found,
        head_dim=head_dim(settings, "n_head", width, found["heads"]),
        feed_forward_width=settings.integer("n_inner", None) or 4 * width,
        positions="learned",
    )


def _write(config: DecoderConfig) -> dict[str, Any]:
    written = write_fields(config, "gpt2", "GPT2LMHeadModel", FIELDS)
    written["n_inner"] = config.feed_forward_width
    return written


def _names(config: DecoderConfig) -> NameMap:
    ours, theirs = "decoder/layer_{i}", "transformer.h.{i}"
    packed = joined(3)
    rules = [
        Rule("positions/embedding", "transformer.wpe.weight"),
        *norm("decoder/final_norm", "transformer.ln_f"),
        *norm(f"{ours}/attention_norm", f"{theirs}.ln_1"),
        *norm(f"{ours}/feed_forward_norm", f"{theirs}.ln_2"),
    ]
    for leaf, name in (("kernel", "weight"), ("bias", "bias")):  # their kernels are [in, out] too
        parts = query_key_value(f"{ours}/attention", leaf)
        rules += [
            Rule(parts, f"{theirs}.attn.c_attn.{name}", packed),
            Rule(f"{ours}/attention/out/{leaf}", f"{theirs}.attn.c_proj.{name}"),
            Rule(f"{ours}/feed_forward/up/{leaf}", f"{theirs}.mlp.c_fc.{name}"),
            Rule(f"{ours}/feed_forward/down/{leaf}", f"{theirs}.mlp.c_proj.{name}"),
        ]
    buffers = frozenset([f"{theirs}.attn.bias", f"{theirs}.attn.masked_bias"])
    embedding = "transformer.wte.weight"
    return name_map(config, rules, embedding, prefix="transformer.", unused=buffers)


reading, writing = both_ways(_read, _write, _names)
