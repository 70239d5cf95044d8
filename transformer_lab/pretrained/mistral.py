"""Mistral (Jiang 2023), as in Hugging Face's `mistral`: LLaMA's layers with a window."""

from typing import Any

from transformer_lab.models.decoder import DecoderConfig
from transformer_lab.pretrained import llama
from transformer_lab.pretrained.decoder_settings import both_ways
from transformer_lab.pretrained.decoders import INPUTS, KIND, generate, outputs, shapes
from transformer_lab.pretrained.keys import Settings

__all__ = ["INPUTS", "KIND", "generate", "outputs", "reading", "shapes", "writing"]

FIELDS = {
    **{key: value for key, value in llama.FIELDS.items() if not key.endswith("_bias")},
    "max_position_embeddings": ("max_length", 4096 * 32),
    "intermediate_size": ("feed_forward_width", 14336),
}


def _read(settings: Settings) -> DecoderConfig:
    # Without the key they mean 4096, with null none.
    window = settings.integer("sliding_window", None)
    if "sliding_window" not in settings.values:
        window = 4096
    kv_heads = None if "num_key_value_heads" in settings.values else 8
    biases = {"attention_bias": False, "feed_forward_bias": False}
    return llama.read(
        settings, "mistral", "Mistral", FIELDS, kv_heads, window=window or 0, **biases
    )


def _write(config: DecoderConfig) -> dict[str, Any]:
    written = llama.write(config, "mistral", "MistralForCausalLM", FIELDS)
    written["sliding_window"] = config.window or None
    return written


reading, writing = both_ways(_read, _write, llama.names)
