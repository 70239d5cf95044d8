"""BART (Lewis 2020), Hugging Face's `bart`: Marian's layers and names with learned positions."""

from dataclasses import replace

from transformer_lab.models.encoder_decoder import EncoderDecoderConfig
from transformer_lab.pretrained import marian
from transformer_lab.pretrained.core import Family, Found, Settings, Tensors
from transformer_lab.pretrained.names import NameMap, behind, norm


def _read(settings: Settings, found: Found, tensors: Tensors) -> Found:
    own = marian.read_sizes(settings) | {"head_bias": marian.BIAS in tensors}
    if not found["tie_head"] and marian.split(tensors):
        own |= {"tie_source_target": False, "source_vocab_size": found["vocab_size"]}
    return own


def _names(config: EncoderDecoderConfig, pad: int) -> NameMap:
    table = marian.names_of(config, behind(2))
    ends = [
        *norm("source_norm", "model.encoder.layernorm_embedding"),
        *norm("target_norm", "model.decoder.layernorm_embedding"),
    ]
    return replace(table, rules=(*table.rules, *ends), prefix="model.")


FAMILY = Family(
    "bart",
    "encoder_decoder",
    ("BartForConditionalGeneration", "BartModel"),
    marian.FIELDS | {"vocab_size": ("vocab_size", 50265)},
    _names,
    constants={"positions": "learned", "embedding_norm": True, "norm_epsilon": 1e-5},
    fixed={  # keys of older files
        "add_bias_logits": (False,),
        "add_final_layer_norm": (False,),
        "extra_pos_embeddings": (2,),
        "normalize_before": (False,),
        "normalize_embedding": (True,),
        "static_position_embeddings": (False,),
    },
    read=_read,
    write=lambda config, pad: marian.write_sizes(config, "bart"),
)
