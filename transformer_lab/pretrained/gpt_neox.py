"""GPT-NeoX (Black 2022), as in Hugging Face's `gpt_neox`; Pythia too."""

from typing import Any

from transformer_lab.models.decoder import DecoderConfig
from transformer_lab.pretrained.core import Family, Found, Settings, Tensors, head_dim
from transformer_lab.pretrained.decoders import architectures, name_map, read_rope, write_rope
from transformer_lab.pretrained.names import NameMap, interleaved, layers, norm, packed

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
LAYER = {
    "attention_norm": "input_layernorm",
    "attention/out": "attention.dense",
    "feed_forward_norm": "post_attention_layernorm",
    "feed_forward/up": "mlp.dense_h_to_4h",
    "feed_forward/down": "mlp.dense_4h_to_h",
}


def _read(settings: Settings, found: Found, tensors: Tensors) -> Found:
    size = head_dim(settings, FIELDS, found)
    base, share = settings.number("rotary_emb_base", 10_000.0), settings.number("rotary_pct", 0.25)
    settings.fix({"rope_theta": (base,), "partial_rotary_factor": (share,)})
    parallel = settings.flag("use_parallel_residual", True)
    rope = read_rope(settings, found["max_length"], size, base, share)
    return {"block": "parallel_two_norms" if parallel else "serial"} | rope


def _write(config: DecoderConfig, pad: int) -> dict[str, Any]:
    rope = write_rope(config)
    return {
        "use_parallel_residual": config.block == "parallel_two_norms",
        "rotary_pct": config.turning_dims / config.head_dim,
        "rotary_emb_base": rope.pop("rope_theta"),
        **rope,
    }


def _names(config: DecoderConfig, pad: int) -> NameMap:
    attention = "gpt_neox.layers.{i}.attention"
    query_key_value = f"{attention}.query_key_value."
    rules = [
        *norm("decoder/final_norm", "gpt_neox.final_layer_norm"),
        *layers(config, "decoder", "gpt_neox.layers", LAYER),
        *packed(
            "decoder/layer_{i}/attention",
            query_key_value,
            interleaved(config.heads),
            config.attention_bias,
        ),
    ]
    buffers = frozenset(f"{attention}.{x}" for x in ("bias", "masked_bias", "rotary_emb.inv_freq"))
    table, head = "gpt_neox.embed_in.weight", "embed_out.weight"  # lm_head.weight in some files
    return name_map(config, rules, table, head, prefix="gpt_neox.", unused=buffers)


FAMILY = Family(
    "gpt_neox",
    "decoder",
    architectures("GPTNeoX"),
    FIELDS,
    _names,
    constants={"depth_scaled_init": False},
    read=_read,
    write=_write,
)
