"""DistilBERT (Sanh 2019), as in Hugging Face's `distilbert`."""

from typing import Any

from transformer_lab.models.encoder import EncoderConfig
from transformer_lab.pretrained import encoders
from transformer_lab.pretrained.core import Family, Found, Settings, Tensors
from transformer_lab.pretrained.names import NameMap, within

LAYER = {
    **within("attention", "attention", query="q_lin", key="k_lin", value="v_lin", out="out_lin"),
    "attention_norm": "sa_layer_norm",
    **within("feed_forward", "ffn", up="lin1", down="lin2"),
    "feed_forward_norm": "output_layer_norm",
}
HEADS = {
    "pooler": "pre_classifier",
    "mlm_transform": "vocab_transform",
    "mlm_norm": "vocab_layer_norm",
    "mlm_bias": "vocab_projector.bias",
    "mlm_output": "vocab_projector",
    "classes": "classifier",
    "tokens": "classifier",
    "span": "qa_outputs",
}


def _read(settings: Settings, found: Found, tensors: Tensors) -> Found:
    names = {encoders.bare(name, "distilbert") for name in tensors}
    own = encoders.read_head(settings, "DistilBert", names)
    dropout, classes = settings.number("seq_classif_dropout", 0.2), own["head"] == "classes"
    return own | {
        "head_dropout": dropout if classes else found["dropout"],
        "mlm_activation": found["activation"],
        "pooler": classes,
    }


def _write(config: EncoderConfig, pad: int) -> dict[str, Any]:
    written = {"seq_classif_dropout": config.head_dropout, "sinusoidal_pos_embds": False}
    return written | encoders.write_head(config, "DistilBert")


def _names(config: EncoderConfig, pad: int) -> NameMap:
    return encoders.name_map(config, "distilbert", "transformer.layer", LAYER, HEADS)


FAMILY = Family(
    "distilbert",
    "encoder",
    encoders.architectures("DistilBert"),
    {
        "vocab_size": ("vocab_size", 30522),
        "dim": ("width", 768),
        "n_layers": ("layers", 6),
        "n_heads": ("heads", 12),
        "hidden_dim": ("feed_forward_width", 3072),
        "activation": ("activation", "gelu"),
        "max_position_embeddings": ("max_length", 512),
        "dropout": ("dropout", 0.1),
        "attention_dropout": ("attention_dropout", 0.1),
        "initializer_range": ("init_std", 0.02),
    },
    _names,
    constants=encoders.CONSTANTS | {"types": 0, "pooler_activation": "relu"},
    fixed=encoders.FIXED,
    # Sinusoidal positions are stored as a table too, which is read unchanged.
    ignored=("qa_dropout", "sinusoidal_pos_embds", "tie_weights_", "tie_word_embeddings"),
    read=_read,
    write=_write,
    idle=encoders.idle,
    pad=0,
)
