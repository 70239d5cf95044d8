"""RoBERTa (Liu 2019), as in Hugging Face's `roberta`."""

from typing import Any

from transformer_lab.models.encoder import EncoderConfig
from transformer_lab.pretrained.bert import read_bert
from transformer_lab.pretrained.decoder_settings import write_fields
from transformer_lab.pretrained.encoder_settings import FIELDS, POOLER, Family, both_ways
from transformer_lab.pretrained.encoders import INPUTS, KIND, body, outputs, shapes
from transformer_lab.pretrained.keys import Settings
from transformer_lab.pretrained.names import NameMap, Rule, dense, norm

__all__ = ["INPUTS", "KIND", "PAD", "outputs", "reading", "shapes", "writing"]

PAD = 1
KEY = "max_position_embeddings"
TABLE = FIELDS | {"vocab_size": ("vocab_size", 50265)}


def _read(settings: Settings, head: str, tensors: frozenset[str], pad: int) -> dict[str, Any]:
    """Positions count from the padding token's id + 1 on, and the table is as much longer."""
    found = read_bert(settings, TABLE)
    if found["max_length"] <= pad + 1:
        raise settings.error(KEY, f"the first {pad + 1} are the padding's")
    return found | {
        "max_length": found["max_length"] - pad - 1,
        "pooler": head == "classes" or POOLER in tensors,
        "mlm_activation": "gelu",  # whatever the layers have
    }


def _write(config: EncoderConfig, pad: int, architecture: str) -> dict[str, Any]:
    written = write_fields(config, "roberta", architecture, TABLE)
    return written | {
        KEY: config.max_length + pad + 1,
        "classifier_dropout": config.head_dropout,
    }


def _names(config: EncoderConfig, prefix: str, pad: int) -> NameMap:
    rules, copies, unused = body(config, prefix, first=pad + 1), {}, []
    pooler = f"{prefix}pooler.dense"
    if config.head == "classes":  # a layer of the head is what a pooler is
        unused = [f"{pooler}.weight", f"{pooler}.bias"]
        pooler = "classifier.dense"
    if config.pooler:
        rules += dense("pooler", pooler)
    if config.head == "mlm":
        rules += dense("mlm_transform", "lm_head.dense")
        rules += norm("mlm_norm", "lm_head.layer_norm")
        rules.append(Rule("mlm_bias", "lm_head.bias"))
        copies["lm_head.decoder.weight"] = f"{prefix}embeddings.word_embeddings.weight"
        copies["lm_head.decoder.bias"] = "lm_head.bias"
    outputs = {"classes": "classifier.out_proj", "tokens": "classifier", "span": "qa_outputs"}
    if config.head in outputs:
        rules += dense("classifier", outputs[config.head])
    return NameMap(tuple(rules), copies, unused=frozenset(unused))


reading, writing = both_ways(Family("roberta", "Roberta", _read, _write, _names, PAD))
