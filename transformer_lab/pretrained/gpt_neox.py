"""GPT-NeoX (Black 2022), as in Hugging Face's `gpt_neox`; Pythia too."""

from typing import Any

from transformer_lab.models.decoder import DecoderConfig
from transformer_lab.pretrained import bloom
from transformer_lab.pretrained.core import Family, Found, Settings, Tensors, head_dim
from transformer_lab.pretrained.decoders import architectures, name_map, read_rope, write_rope
from transformer_lab.pretrained.names import NameMap, interleaved, packed

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
LAYER = bloom.LAYER | {"attention/out": "attention.dense"}


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
    body = "gpt_neox.embed_in.weight", "gpt_neox.layers", LAYER, "gpt_neox.final_layer_norm"
    how = interleaved(config.heads), config.attention_bias
    rules = packed("decoder/layer_{i}/attention", f"{attention}.query_key_value.", *how)
    buffers = frozenset(f"{attention}.{x}" for x in ("bias", "masked_bias", "rotary_emb.inv_freq"))
    # The head is called lm_head.weight in some files.
    return name_map(config, *body, *rules, head="embed_out.weight", unused=buffers)


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
