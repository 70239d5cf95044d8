"""OPT (Zhang 2022), as in Hugging Face's `opt`."""

from typing import Any

import numpy as np

from transformer_lab.models.decoder import DecoderConfig
from transformer_lab.pretrained.decoder_settings import (
    both_ways,
    head_dim,
    name_map,
    read_fields,
    write_fields,
)
from transformer_lab.pretrained.decoders import INPUTS, KIND, generate, outputs, shapes
from transformer_lab.pretrained.keys import Settings
from transformer_lab.pretrained.names import TRANSPOSE, NameMap, Rule, Transform, dense, norm

__all__ = ["INPUTS", "KIND", "generate", "outputs", "reading", "shapes", "writing"]

FIELDS = {
    "vocab_size": ("vocab_size", 50272),
    "max_position_embeddings": ("max_length", 2048),
    "hidden_size": ("width", 768),
    "num_hidden_layers": ("layers", 12),
    "num_attention_heads": ("heads", 12),
    "ffn_dim": ("feed_forward_width", 3072),
    "activation_function": ("activation", "relu"),
    "enable_bias": ("attention_bias", True),
    "tie_word_embeddings": ("tie_head", True),
    "dropout": ("dropout", 0.1),
    "attention_dropout": ("attention_dropout", 0.0),
    "init_std": ("init_std", 0.02),
}
# Two rows stand before that of position 0: only the padding reads one of them.
OFFSET = Transform(lambda x: np.pad(x, ((2, 0), (0, 0))), lambda x: [x[2:]])


def _read(settings: Settings) -> DecoderConfig:
    found = read_fields(settings, "opt", "OPT", FIELDS)
    settings.ignore(["activation_dropout", "layerdrop"])
    settings.fix({"layer_norm_elementwise_affine": (True,)})
    narrow = settings.integer("word_embed_proj_dim", None)
    return DecoderConfig(
        **found,
        head_dim=head_dim(settings, "num_attention_heads", found["width"], found["heads"]),
        feed_forward_bias=found["attention_bias"],
        embedding_width=None if narrow == found["width"] else narrow,
        norm_place="pre" if settings.flag("do_layer_norm_before", True) else "post",
        final_norm=not settings.flag("_remove_final_layer_norm", False),
        positions="learned",
        depth_scaled_init=False,
    )


def _write(config: DecoderConfig) -> dict[str, Any]:
    return write_fields(config, "opt", "OPTForCausalLM", FIELDS) | {
        "word_embed_proj_dim": config.embedding_width or config.width,
        "do_layer_norm_before": config.norm_place == "pre",
        "_remove_final_layer_norm": not config.final_norm,
    }


def _names(config: DecoderConfig) -> NameMap:
    ours, theirs = "decoder/layer_{i}", "model.decoder.layers.{i}"
    rules = [Rule("positions/embedding", "model.decoder.embed_positions.weight", OFFSET)]
    if config.embedding_width is not None:
        for part in ("in", "out"):
            name = f"model.decoder.project_{part}.weight"
            rules.append(Rule(f"embedding_{part}/kernel", name, TRANSPOSE))
    if config.norm_place == "pre" and config.final_norm:
        rules += norm("decoder/final_norm", "model.decoder.final_layer_norm")
    rules += norm(f"{ours}/attention_norm", f"{theirs}.self_attn_layer_norm")
    rules += norm(f"{ours}/feed_forward_norm", f"{theirs}.final_layer_norm")
    for part, name in (("query", "q"), ("key", "k"), ("value", "v"), ("out", "out")):
        name = f"{theirs}.self_attn.{name}_proj"
        rules += dense(f"{ours}/attention/{part}", name, config.attention_bias)
    rules += dense(f"{ours}/feed_forward/up", f"{theirs}.fc1", config.feed_forward_bias)
    rules += dense(f"{ours}/feed_forward/down", f"{theirs}.fc2", config.feed_forward_bias)
    return name_map(config, rules, "model.decoder.embed_tokens.weight", prefix="model.")


reading, writing = both_ways(_read, _write, _names)
