"""BLOOM (BigScience 2022), as in Hugging Face's `bloom`."""

from transformer_lab.models.decoder import DecoderConfig
from transformer_lab.pretrained.core import Family, Found, Settings, Tensors
from transformer_lab.pretrained.decoders import architectures, name_map
from transformer_lab.pretrained.keys import words
from transformer_lab.pretrained.names import NameMap, interleaved, norm, packed

LAYER = {
    "attention_norm": "input_layernorm",
    "attention/out": "self_attention.dense",
    "feed_forward_norm": "post_attention_layernorm",
    "feed_forward/up": "mlp.dense_h_to_4h",
    "feed_forward/down": "mlp.dense_4h_to_h",
}


def _read(settings: Settings, found: Found, tensors: Tensors) -> Found:
    settings.fix({"n_inner": (None, 4 * found["width"])})
    return {"feed_forward_width": 4 * found["width"]}


def _names(config: DecoderConfig, pad: int) -> NameMap:
    body = "transformer.word_embeddings.weight", "transformer.h", LAYER, "transformer.ln_f"
    theirs = "transformer.h.{i}.self_attention.query_key_value."
    rules = packed("decoder/layer_{i}/attention", theirs, interleaved(config.heads))
    rules += norm("embedding_norm", "transformer.word_embeddings_layernorm")
    return name_map(config, *body, *rules)


FAMILY = Family(
    "bloom",
    "decoder",
    architectures("Bloom"),
    {
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
    },
    _names,
    constants={"positions": "alibi", "embedding_norm": True, "depth_scaled_init": False},
    fixed={
        "apply_residual_connection_post_layernorm": (False,),
        "slow_but_exact": (False,),
    },
    # How training fused and divided its matrix products.
    ignored=words("""
        attention_softmax_in_fp32 bias_dropout_fusion masked_softmax_fusion offset_alibi
        pretraining_tp skip_bias_add skip_bias_add_qkv
    """),
    aliases={
        "n_embed": "hidden_size",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
    },
    read=_read,
)
