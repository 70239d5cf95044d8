"""LLaMA (Touvron 2023), as in Hugging Face's `llama`."""

from collections.abc import Mapping
from typing import Any

from transformer_lab.models.decoder import DecoderConfig
from transformer_lab.ops.activations import GATED
from transformer_lab.pretrained.decoder_settings import (
    both_ways,
    head_dim,
    name_map,
    read_fields,
    write_fields,
)
from transformer_lab.pretrained.decoders import INPUTS, KIND, generate, outputs, shapes
from transformer_lab.pretrained.keys import ACTIVATIONS, Settings
from transformer_lab.pretrained.names import NameMap, dense, norm
from transformer_lab.pretrained.rope import read_rope, write_rope

__all__ = ["INPUTS", "KIND", "generate", "outputs", "reading", "shapes", "writing"]

FIELDS = {
    "vocab_size": ("vocab_size", 32000),
    "max_position_embeddings": ("max_length", 2048),
    "hidden_size": ("width", 4096),
    "num_hidden_layers": ("layers", 32),
    "num_attention_heads": ("heads", 32),
    "intermediate_size": ("feed_forward_width", 11008),
    "hidden_act": ("activation", "silu"),
    "rms_norm_eps": ("norm_epsilon", 1e-6),
    "attention_bias": ("attention_bias", False),
    "mlp_bias": ("feed_forward_bias", False),
    "tie_word_embeddings": ("tie_head", False),
    "attention_dropout": ("attention_dropout", 0.0),
    "initializer_range": ("init_std", 0.02),
}
# Their activation is the gate's.
_OURS = {inner: gated for gated, inner in GATED.items()}
GATES = {theirs: _OURS[ours] for theirs, ours in ACTIVATIONS.items() if ours in _OURS}


def _read(settings: Settings) -> DecoderConfig:
    settings.fix({"pretraining_tp": (1,)})
    return read(settings, "llama", "Llama", FIELDS)


def read(
    settings: Settings,
    model_type: str,
    architecture: str,
    fields: Mapping[str, tuple[str, Any]],
    kv_heads: int | None = None,
    **more: Any,
) -> DecoderConfig:
    """A config of this architecture under the keys and defaults of a family."""
    found = read_fields(settings, model_type, architecture, fields, GATES)
    size = settings.integer("head_dim", None)
    if size is None:
        size = head_dim(settings, "num_attention_heads", found["width"], found["heads"])
    kv_heads = settings.integer("num_key_value_heads", None) or kv_heads or found["heads"]
    if found["heads"] % kv_heads:
        raise settings.error(
            "num_key_value_heads", f"num_attention_heads = {found['heads']} is not a multiple of it"
        )
    return DecoderConfig(
        **found | more,
        head_dim=size,
        kv_heads=kv_heads,
        norm="rms_norm",
        dropout=0.0,
        depth_scaled_init=False,
        **read_rope(settings, found["max_length"], size),
    )


def _write(config: DecoderConfig) -> dict[str, Any]:
    return write(config, "llama", "LlamaForCausalLM", FIELDS)


def write(
    config: DecoderConfig, model_type: str, architecture: str, fields: Mapping[str, Any]
) -> dict[str, Any]:
    """The settings of this architecture under the keys of a family."""
    written = write_fields(config, model_type, architecture, fields, GATES)
    sizes = {"head_dim": config.head_dim, "num_key_value_heads": config.key_value_heads}
    return written | sizes | write_rope(config)


def names(config: DecoderConfig) -> NameMap:
    """The table, of this and of the families built alike."""
    ours, theirs = "decoder/layer_{i}", "model.layers.{i}"
    rules = norm("decoder/final_norm", "model.norm", bias=False)
    rules += norm(f"{ours}/attention_norm", f"{theirs}.input_layernorm", bias=False)
    rules += norm(f"{ours}/feed_forward_norm", f"{theirs}.post_attention_layernorm", bias=False)
    for part in ("query", "key", "value", "out"):
        name = f"{theirs}.self_attn.{part[0]}_proj"
        rules += dense(f"{ours}/attention/{part}", name, config.attention_bias)
    for part in ("gate", "up", "down"):
        name = f"{theirs}.mlp.{part}_proj"
        rules += dense(f"{ours}/feed_forward/{part}", name, config.feed_forward_bias)
    buffers = [f"{theirs}.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq"]
    return name_map(
        config, rules, "model.embed_tokens.weight", prefix="model.", unused=frozenset(buffers)
    )


reading, writing = both_ways(_read, _write, names)
