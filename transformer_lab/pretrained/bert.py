"""BERT (Devlin 2019), as in Hugging Face's `bert`."""

from typing import Any

from transformer_lab.models.encoder import EncoderConfig
from transformer_lab.pretrained import encoders
from transformer_lab.pretrained.core import Family, Found, Settings, Tensors
from transformer_lab.pretrained.keys import words
from transformer_lab.pretrained.names import NameMap, within

FIELDS = {
    **encoders.SIZES,
    "vocab_size": ("vocab_size", 30522),
    "hidden_act": ("activation", "gelu"),
    "max_position_embeddings": ("max_length", 512),
    "type_vocab_size": ("types", 2),
    "layer_norm_eps": ("norm_epsilon", 1e-12),
    "hidden_dropout_prob": ("dropout", 0.1),
    "attention_probs_dropout_prob": ("attention_dropout", 0.1),
    "initializer_range": ("init_std", 0.02),
}
LAYER = {
    **within("attention", "attention.self", query="query", key="key", value="value"),
    "attention/out": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "feed_forward/up": "intermediate.dense",
    "feed_forward/down": "output.dense",
    "feed_forward_norm": "output.LayerNorm",
}
HEADS = {
    "pooler": "pooler.dense",
    "mlm_transform": "cls.predictions.transform.dense",
    "mlm_norm": "cls.predictions.transform.LayerNorm",
    "mlm_bias": "cls.predictions.bias",
    "mlm_output": "cls.predictions.decoder",
    "nsp": "cls.seq_relationship",
    "classes": "classifier",
    "tokens": "classifier",
    "span": "qa_outputs",
}


def read(settings: Settings, found: Found, title: str, names: set[str]) -> Found:
    """The head's dropout and activation, and the labels, which BERT and RoBERTa read alike."""
    key = "classifier_dropout"
    unset = settings.raw(key) is None
    return encoders.read_head(settings, title, names) | {
        "head_dropout": found["dropout"] if unset else settings.number(key, 0.1),
        "mlm_activation": found["activation"],
    }


def _read(settings: Settings, found: Found, tensors: Tensors) -> Found:
    names = {encoders.bare(name, "bert") for name in tensors}
    own = read(settings, found, "Bert", names)
    return own | {"pooler": own["head"] in ("classes", "mlm_nsp") or encoders.POOLER in names}


def write(config: EncoderConfig, title: str) -> dict[str, Any]:
    """The head's settings, with the keys that BERT and RoBERTa share."""
    return encoders.write_head(config, title) | {"classifier_dropout": config.head_dropout}


def _names(config: EncoderConfig, pad: int) -> NameMap:
    # Files of masked language models often still hold the next-sentence head.
    unused = [f"{HEADS['nsp']}.{leaf}" for leaf in ("weight", "bias") if config.head == "mlm"]
    return encoders.name_map(config, "bert", "encoder.layer", LAYER, HEADS, unused=unused)


FAMILY = Family(
    "bert",
    "encoder",
    encoders.architectures("Bert", *encoders.ENDS),
    FIELDS,
    _names,
    constants=encoders.CONSTANTS,
    fixed=encoders.FIXED,
    # The original release's settings of the pooler, which no version of transformers reads.
    ignored=words("""
        directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers
        pooler_size_per_head pooler_type tie_word_embeddings
    """),
    read=_read,
    write=lambda config, pad: write(config, "Bert"),
    idle=encoders.idle,
    pad=0,
)
