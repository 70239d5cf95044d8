"""LLaMA (Touvron 2023), as in Hugging Face's `llama`."""

from collections.abc import Mapping
from typing import Any

from transformer_lab.models.decoder import DecoderConfig
from transformer_lab.ops.activations import GATED
from transformer_lab.pretrained.core import Family, Found, Settings, Tensors, head_dim
from transformer_lab.pretrained.decoders import architectures, name_map, read_rope, write_rope
from transformer_lab.pretrained.keys import ACTIVATIONS
from transformer_lab.pretrained.names import NameMap, Rule, within

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
LAYER = {
    "attention_norm": "input_layernorm",
    **within("attention", "self_attn", query="q_proj", key="k_proj", value="v_proj", out="o_proj"),
    "feed_forward_norm": "post_attention_layernorm",
    **within("feed_forward", "mlp", gate="gate_proj", up="up_proj", down="down_proj"),
}
# Their setting names the gate's activation, ours the gated unit.
_OURS = {inner: gated for gated, inner in GATED.items()}
GATES = {theirs: _OURS[ours] for theirs, ours in ACTIVATIONS.items() if ours in _OURS}


def read(settings: Settings, found: Found, tensors: Tensors) -> Found:
    """The sizes of heads, which may be fewer for keys and values, and the rotary positions."""
    sizes = read_heads(settings, found)
    return sizes | read_rope(settings, found["max_length"], sizes["head_dim"])


def read_heads(settings: Settings, found: Found) -> Found:
    """The width of a head, and the number of heads for keys and values."""
    size = settings.integer("head_dim", None) or head_dim(settings, FIELDS, found)
    kv_heads = settings.integer("num_key_value_heads", None) or found["heads"]
    if found["heads"] % kv_heads:
        raise settings.error(
            "num_key_value_heads", f"num_attention_heads = {found['heads']} is not a multiple of it"
        )
    return {"head_dim": size, "kv_heads": kv_heads}


def write(config: DecoderConfig, pad: int) -> dict[str, Any]:
    """Hugging Face's settings of the heads and the rotary positions."""
    return write_heads(config) | write_rope(config)


def write_heads(config: DecoderConfig) -> dict[str, Any]:
    """Hugging Face's settings of the head width and of the heads for keys and values."""
    return {"head_dim": config.head_dim, "num_key_value_heads": config.key_value_heads}


def names(config: DecoderConfig, parts: Mapping[str, str], *rules: Rule, **more: Any) -> NameMap:
    """The name map of LLaMA and of similar families, whose layers have these parts."""
    body = "model.embed_tokens.weight", "model.layers", parts, "model.norm"
    buffers = ("model.layers.{i}.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq")
    return name_map(config, *body, *rules, unused=frozenset(buffers), **more)


FAMILY = Family(
    "llama",
    "decoder",
    architectures("Llama"),
    FIELDS,
    lambda config, pad: names(config, LAYER),
    constants={"norm": "rms_norm", "dropout": 0.0, "depth_scaled_init": False},
    fixed={"pretraining_tp": (1,)},
    activations=GATES,
    read=read,
    write=write,
)
