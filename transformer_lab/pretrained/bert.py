"""BERT (Devlin 2019), as in Hugging Face's `bert`."""

from typing import Any

from transformer_lab.models.encoder import EncoderConfig
from transformer_lab.pretrained.decoder_settings import Fields, head_dim, read_table, write_fields
from transformer_lab.pretrained.encoder_settings import FIELDS, POOLER, Family, both_ways
from transformer_lab.pretrained.encoders import INPUTS, KIND, body, outputs, shapes
from transformer_lab.pretrained.keys import Settings, words
from transformer_lab.pretrained.names import NameMap, Rule, dense, norm

__all__ = ["INPUTS", "KIND", "PAD", "outputs", "reading", "shapes", "writing"]

PAD = 0
# The first writer's settings of the pooler, which none of its readers has.
IRRELEVANT = words("""
    directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers
    pooler_size_per_head pooler_type
""")
NEXT_SENTENCE = "cls.seq_relationship"


def _read(settings: Settings, head: str, tensors: frozenset[str], pad: int) -> dict[str, Any]:
    settings.ignore(IRRELEVANT)
    return read_bert(settings) | {"pooler": head in ("classes", "mlm_nsp") or POOLER in tensors}


def read_bert(settings: Settings, fields: Fields = FIELDS) -> dict[str, Any]:
    """Our fields, but for the pooler."""
    found = read_table(settings, fields)
    key = "classifier_dropout"
    unset = settings.raw(key) is None
    return found | {
        "head_dim": head_dim(settings, "num_attention_heads", found["width"], found["heads"]),
        "head_dropout": found["dropout"] if unset else settings.number(key, 0.1),
        "mlm_activation": found["activation"],
    }


def _write(config: EncoderConfig, pad: int, architecture: str) -> dict[str, Any]:
    written = write_fields(config, "bert", architecture, FIELDS)
    return written | {"classifier_dropout": config.head_dropout}


def _names(config: EncoderConfig, prefix: str, pad: int) -> NameMap:
    rules, copies = body(config, prefix), {}
    # Models of masked tokens alone often lie in files that hold all of the pre-training.
    unused = [f"{NEXT_SENTENCE}.{leaf}" for leaf in ("weight", "bias") if config.head == "mlm"]
    if config.pooler:
        rules += dense("pooler", f"{prefix}pooler.dense")
    if config.head in ("mlm", "mlm_nsp"):
        head = "cls.predictions"
        rules += dense("mlm_transform", f"{head}.transform.dense")
        rules += norm("mlm_norm", f"{head}.transform.LayerNorm")
        rules.append(Rule("mlm_bias", f"{head}.bias"))
        copies[f"{head}.decoder.weight"] = f"{prefix}embeddings.word_embeddings.weight"
        copies[f"{head}.decoder.bias"] = f"{head}.bias"
    if config.head == "mlm_nsp":
        rules += dense("nsp", NEXT_SENTENCE)
    if config.head in ("classes", "tokens", "span"):
        rules += dense("classifier", "qa_outputs" if config.head == "span" else "classifier")
    return NameMap(tuple(rules), copies, unused=frozenset(unused))


reading, writing = both_ways(Family("bert", "Bert", _read, _write, _names, PAD))
