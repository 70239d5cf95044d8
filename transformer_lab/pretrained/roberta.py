"""RoBERTa (Liu 2019), as in Hugging Face's `roberta`."""

from typing import Any

from transformer_lab.models.encoder import EncoderConfig
from transformer_lab.pretrained import bert, encoders
from transformer_lab.pretrained.core import Family, Found, Settings, Tensors, padding
from transformer_lab.pretrained.names import NameMap

PAD = 1
KEY = "max_position_embeddings"
HEADS = {
    "pooler": "pooler.dense",
    "mlm_transform": "lm_head.dense",
    "mlm_norm": "lm_head.layer_norm",
    "mlm_bias": "lm_head.bias",
    "mlm_output": "lm_head.decoder",
    "classes": "classifier.out_proj",
    "tokens": "classifier",
    "span": "qa_outputs",
}


def _read(settings: Settings, found: Found, tensors: Tensors) -> Found:
    """The position table has padding id + 1 more rows than there are positions."""
    names = {encoders.bare(name, "roberta") for name in tensors}
    own, first = bert.read(settings, found, "Roberta", names), padding(settings, PAD) + 1
    if found["max_length"] <= first:
        raise settings.error(KEY, f"the first {first} are the padding's")
    return own | {
        "max_length": found["max_length"] - first,
        "pooler": own["head"] == "classes" or encoders.POOLER in names,
        "mlm_activation": "gelu",  # whatever the layers have
    }


def _write(config: EncoderConfig, pad: int) -> dict[str, Any]:
    return bert.write(config, "Roberta") | {KEY: config.max_length + pad + 1}


def _names(config: EncoderConfig, pad: int) -> NameMap:
    heads, unused = HEADS, []
    if config.head == "classes":  # RoBERTa's head has the layer that is our pooler
        heads = HEADS | {"pooler": "classifier.dense"}
        unused = [f"roberta.pooler.dense.{leaf}" for leaf in ("weight", "bias")]
    layers = "encoder.layer", bert.LAYER
    return encoders.name_map(config, "roberta", *layers, heads, pad + 1, unused)


FAMILY = Family(
    "roberta",
    "encoder",
    encoders.architectures("Roberta"),
    bert.FIELDS | {"vocab_size": ("vocab_size", 50265)},
    _names,
    constants=encoders.CONSTANTS,
    fixed=encoders.FIXED,
    ignored=("tie_word_embeddings",),
    read=_read,
    write=_write,
    idle=encoders.idle,
    pad=PAD,
)
