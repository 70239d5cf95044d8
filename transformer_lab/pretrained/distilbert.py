"""DistilBERT (Sanh 2019), as in Hugging Face's `distilbert`."""

from typing import Any

from transformer_lab.models.encoder import EncoderConfig
from transformer_lab.pretrained.decoder_settings import head_dim, read_table, write_fields
from transformer_lab.pretrained.encoder_settings import Family, both_ways
from transformer_lab.pretrained.encoders import KIND, body, outputs, shapes
from transformer_lab.pretrained.keys import Settings
from transformer_lab.pretrained.names import NameMap, Rule, dense, norm

__all__ = ["INPUTS", "KIND", "PAD", "outputs", "reading", "shapes", "writing"]

INPUTS = ("input_ids", "attention_mask")
PAD = 0
FIELDS = {
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
}
LAYER = {
    "attention/query": "attention.q_lin",
    "attention/key": "attention.k_lin",
    "attention/value": "attention.v_lin",
    "attention/out": "attention.out_lin",
    "attention_norm": "sa_layer_norm",
    "feed_forward/up": "ffn.lin1",
    "feed_forward/down": "ffn.lin2",
    "feed_forward_norm": "output_layer_norm",
}


def _read(settings: Settings, head: str, tensors: frozenset[str], pad: int) -> dict[str, Any]:
    # Sinusoids too are a table in the file, which is read as it is.
    settings.ignore(["qa_dropout", "sinusoidal_pos_embds", "tie_weights_"])
    found = read_table(settings, FIELDS)
    dropout = settings.number("seq_classif_dropout", 0.2)
    return found | {
        "head_dim": head_dim(settings, "n_heads", found["width"], found["heads"]),
        "head_dropout": dropout if head == "classes" else found["dropout"],
        "mlm_activation": found["activation"],
        "types": 0,
        "pooler": head == "classes",
        "pooler_activation": "relu",
    }


def _write(config: EncoderConfig, pad: int, architecture: str) -> dict[str, Any]:
    written = write_fields(config, "distilbert", architecture, FIELDS)
    return written | {"seq_classif_dropout": config.head_dropout, "sinusoidal_pos_embds": False}


def _names(config: EncoderConfig, prefix: str, pad: int) -> NameMap:
    rules, copies = body(config, prefix, "transformer.layer", LAYER), {}
    if config.head == "classes":
        rules += dense("pooler", "pre_classifier")
    if config.head == "mlm":
        rules += dense("mlm_transform", "vocab_transform")
        rules += norm("mlm_norm", "vocab_layer_norm")
        rules.append(Rule("mlm_bias", "vocab_projector.bias"))
        copies["vocab_projector.weight"] = f"{prefix}embeddings.word_embeddings.weight"
    if config.head in ("classes", "tokens", "span"):
        rules += dense("classifier", "qa_outputs" if config.head == "span" else "classifier")
    return NameMap(tuple(rules), copies)


reading, writing = both_ways(Family("distilbert", "DistilBert", _read, _write, _names, PAD))
