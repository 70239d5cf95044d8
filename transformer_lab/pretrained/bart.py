"""BART (Lewis 2020), as in Hugging Face's `bart`: Marian's layers and names, learned positions."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from transformer_lab.errors import LabError
from transformer_lab.models.encoder_decoder import EncoderDecoderConfig
from transformer_lab.pretrained import marian
from transformer_lab.pretrained.decoder_settings import read_table, write_fields
from transformer_lab.pretrained.encoder_decoder_settings import (
    check_kind,
    differ,
    read_sizes,
    refuse_lost,
    write_sizes,
)
from transformer_lab.pretrained.keys import Settings
from transformer_lab.pretrained.names import NameMap, norm
from transformer_lab.pretrained.opt import OFFSET
from transformer_lab.pretrained.running import INPUTS, generate, outputs, shapes

__all__ = ["INPUTS", "KIND", "generate", "outputs", "reading", "shapes", "writing"]

KIND = "encoder_decoder"
ARCHITECTURES = ("BartForConditionalGeneration", "BartModel")
REQUIRED = marian.REQUIRED | {"positions": "learned", "embedding_norm": True}
FIXED = {  # of older files
    "add_bias_logits": (False,),
    "add_final_layer_norm": (False,),
    "extra_pos_embeddings": (2,),
    "normalize_before": (False,),
    "normalize_embedding": (True,),
    "static_position_embeddings": (False,),
}
FIELDS = {
    "vocab_size": ("vocab_size", 50265),
    "max_position_embeddings": ("max_length", 1024),
    "scale_embedding": ("embedding_scale", False),
    "tie_word_embeddings": ("tie_head", True),
    "activation_function": ("activation", "gelu"),
    "dropout": ("dropout", 0.1),
    "attention_dropout": ("attention_dropout", 0.0),
    "activation_dropout": ("feed_forward_dropout", 0.0),
    "init_std": ("init_std", 0.02),
}


def reading(
    settings: Settings, tensors: Mapping[str, np.ndarray]
) -> tuple[EncoderDecoderConfig, NameMap]:
    """The model that their settings describe, and where its weights stand."""
    config = replace(_read(settings), head_bias=marian.BIAS in tensors)
    split = differ(tensors, marian.SHARED, marian.SOURCE, marian.TARGET)
    unused: frozenset[str] = frozenset()
    if split and not config.tie_head:
        config = replace(config, tie_source_target=False, source_vocab_size=config.vocab_size)
        unused = frozenset([marian.SHARED])
    return config, _names(config, unused)


def _read(settings: Settings) -> EncoderDecoderConfig:
    check_kind(settings, ("bart",), ARCHITECTURES)
    settings.fix(FIXED)
    found = read_table(settings, FIELDS) | read_sizes(settings)
    settings.finish()
    return EncoderDecoderConfig(**REQUIRED, **found)


def writing(config: EncoderDecoderConfig) -> tuple[dict[str, Any], NameMap]:
    """Their settings of our model, special tokens aside, and where the weights go."""
    written = write_fields(config, "bart", ARCHITECTURES[0], FIELDS)
    written |= {"is_encoder_decoder": True} | write_sizes(config, "bart")
    if not config.tie_source_target and (
        config.tie_head or config.source_vocab_size not in (None, config.vocab_size)
    ):
        raise LabError(
            "model.tie_source_target = False has no place in a bart model: "
            "only with one vocabulary and model.tie_head = False"
        )
    tables = ("tie_source_target", "source_vocab_size", "head_bias")  # the tensors say
    refuse_lost(config, _read(Settings(written, "bart")), "bart", tables)
    return written, _names(config)


def _names(config: EncoderDecoderConfig, unused: frozenset[str] = frozenset()) -> NameMap:
    table = marian.names_of(config, unused, OFFSET)
    ends = [
        *norm("source_norm", "model.encoder.layernorm_embedding"),
        *norm("target_norm", "model.decoder.layernorm_embedding"),
    ]
    return replace(table, rules=(*table.rules, *ends), prefix="model.")
