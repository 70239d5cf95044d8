"""OPT (Zhang 2022), as in Hugging Face's `opt`."""

from typing import Any

from transformer_lab.models.decoder import DecoderConfig
from transformer_lab.pretrained.core import Family, Found, Settings, Tensors
from transformer_lab.pretrained.decoders import architectures, name_map
from transformer_lab.pretrained.marian import LAYER
from transformer_lab.pretrained.names import TRANSPOSE, NameMap, Rule, behind


def _read(settings: Settings, found: Found, tensors: Tensors) -> Found:
    narrow = settings.integer("word_embed_proj_dim", None)
    return {
        "feed_forward_bias": found["attention_bias"],
        "embedding_width": None if narrow == found["width"] else narrow,
        "norm_place": "pre" if settings.flag("do_layer_norm_before", True) else "post",
        "final_norm": not settings.flag("_remove_final_layer_norm", False),
    }


def _write(config: DecoderConfig, pad: int) -> dict[str, Any]:
    return {
        "word_embed_proj_dim": config.embedding_width or config.width,
        "do_layer_norm_before": config.norm_place == "pre",
        "_remove_final_layer_norm": not config.final_norm,
    }


def _names(config: DecoderConfig, pad: int) -> NameMap:
    stack, normed = "model.decoder", config.norm_place == "pre" and config.final_norm
    body = f"{stack}.embed_tokens.weight", f"{stack}.layers", LAYER
    final_norm = f"{stack}.final_layer_norm" if normed else ""
    rules = [Rule("positions/embedding", f"{stack}.embed_positions.weight", behind(2))]
    if config.embedding_width is not None:
        for part in ("in", "out"):
            name = f"{stack}.project_{part}.weight"
            rules.append(Rule(f"embedding_{part}/kernel", name, TRANSPOSE))
    return name_map(config, *body, final_norm, *rules)


FAMILY = Family(
    "opt",
    "decoder",
    architectures("OPT"),
    {
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
    },
    _names,
    constants={"positions": "learned", "depth_scaled_init": False},
    fixed={"layer_norm_elementwise_affine": (True,)},
    ignored=("activation_dropout", "layerdrop"),
    read=_read,
    write=_write,
)
