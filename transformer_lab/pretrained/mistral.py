"""Mistral (Jiang 2023), as in Hugging Face's `mistral`: LLaMA's layers with a window."""

from dataclasses import replace

from transformer_lab.pretrained import llama
from transformer_lab.pretrained.core import Found, Settings, Tensors
from transformer_lab.pretrained.decoders import architectures

BIASES = ("attention_bias", "mlp_bias")


def read(settings: Settings, found: Found, tensors: Tensors) -> Found:
    """As LLaMA's, with defaults for missing keys: a window of 4096 and 8 key/value heads."""
    window = settings.integer("sliding_window", None) or 0
    if "sliding_window" not in settings.values:
        window = 4096
    settings.values.setdefault("num_key_value_heads", 8)
    return llama.read(settings, found, tensors) | {"window": window}


FAMILY = replace(
    llama.FAMILY,
    model_type="mistral",
    architectures=architectures("Mistral"),
    fields={
        **{key: value for key, value in llama.FIELDS.items() if key not in BIASES},
        "max_position_embeddings": ("max_length", 4096 * 32),
        "intermediate_size": ("feed_forward_width", 14336),
    },
    constants=llama.FAMILY.constants | {"attention_bias": False, "feed_forward_bias": False},
    fixed={},
    read=read,
    write=lambda config, pad: llama.write(config, pad) | {"sliding_window": config.window or None},
)
