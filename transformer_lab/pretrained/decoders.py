"""What the decoder-only families share: embedding, head, and rotary positions.

Hugging Face's settings spell rotary positions in an older and a newer way; both are read."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from transformer_lab.errors import LabError
from transformer_lab.models.decoder import DecoderConfig
from transformer_lab.pretrained.keys import Settings
from transformer_lab.pretrained.names import TRANSPOSE, NameMap, Rule, Transform, layers, norm

# Theirs -> ours. "dynamic" has an effect only beyond max_position_embeddings, our limit.
SCALINGS = {
    "default": "none",
    "dynamic": "none",
    "linear": "linear",
    "llama3": "llama3",
    "yarn": "yarn",
}


def architectures(title: str) -> tuple[str, ...]:
    """The class names under which files list a language model, or one without its head."""
    return tuple(title + end for end in ("ForCausalLM", "LMHeadModel", "Model"))


def name_map(
    config: DecoderConfig,
    embedding: str,
    layer: str,
    parts: Mapping[str, str],
    final_norm: str,
    *rules: Rule,
    head: str = "lm_head.weight",
    kernel: Transform = TRANSPOSE,
    **more: Any,
) -> NameMap:
    """A family's name map, made of the names of the embedding, the parts of a layer (see
    `names.layers`), the norm after the last layer ("" if none) and the head; `rules` add the rest.

    Files may also hold a copy of a tied head. The body's names share the embedding's prefix."""
    real, fill = config.vocab_size, config.table_rows - config.vocab_size
    # Rows that pad our table are not written.
    table = Transform(lambda x: x[:real], lambda x: [np.pad(x, ((0, fill), (0, 0)))])
    rules = [
        Rule("embedding/embedding", embedding, table),
        *layers(config, "decoder", layer, parts, kernel),
        *rules,
    ]
    if final_norm:
        rules += norm("decoder/final_norm", final_norm, config.norm != "rms_norm")
    copies = {name: embedding if config.tie_head else head for name in {head, "lm_head.weight"}}
    if not config.tie_head:
        del copies[head]
        rules.append(Rule("head/embedding", head, table))
    prefix = embedding[: embedding.index(".") + 1]
    return NameMap(tuple(rules), copies, prefix=prefix, **more)


def read_rope(
    settings: Settings,
    max_length: int,
    head_dim: int,
    base: float = 10_000.0,
    share: float = 1.0,
) -> dict[str, Any]:
    """Our settings of rotary positions; `base` and `share` (of a head's dimensions) are defaults.

    If a file has both spellings, the older one counts, as in Hugging Face's own code."""
    base = settings.number("rope_theta", base)
    older, newer = settings.raw("rope_scaling"), settings.raw("rope_parameters")
    name = "rope_scaling" if older else "rope_parameters"
    values = older or newer or {}
    if not isinstance(values, dict):
        raise settings.error(name, "it must be an object")
    values = {key: value for key, value in values.items() if value is not None}
    values.setdefault("rope_type", values.get("type", "default"))
    rope = Settings(values, f"{settings.file}, {name}")
    rope.ignore(["type"])
    kind = rope.choice("rope_type", "default", SCALINGS)
    if share == 1.0:  # LLaMA's rotary positions turn whole heads
        rope.fix({"partial_rotary_factor": (1.0,)})
    dims = int(head_dim * rope.number("partial_rotary_factor", share))
    found = {
        "positions": "rope",
        "rope_base": rope.number("rope_theta", base),
        "rope_dims": None if dims == head_dim else dims,
        "rope_scaling": kind,
        **_read_scaling(rope, kind, max_length),
    }
    rope.finish()
    return found


def _read_scaling(rope: Settings, kind: str, max_length: int) -> dict[str, Any]:
    if kind == "none":
        rope.ignore(["factor", "original_max_position_embeddings"])
        return {}
    if kind == "linear":
        return {"rope_factor": _needed(rope, "factor")}
    length = rope.integer("original_max_position_embeddings", max_length)
    if kind == "llama3":
        return {
            "rope_factor": _needed(rope, "factor"),
            "rope_original_length": length,
            "rope_low": _needed(rope, "low_freq_factor"),
            "rope_high": _needed(rope, "high_freq_factor"),
        }
    rope.fix({"truncate": (True,)})
    factor = rope.number("factor", max_length / length)
    scales = rope.number("mscale", 0.0), rope.number("mscale_all_dim", 0.0)
    above, below = scales if all(scales) else (1.0, 0.0)
    temperature = _temperature(factor, above) / _temperature(factor, below)
    return {
        "rope_factor": factor,
        "rope_original_length": length,
        "rope_low": rope.number("beta_slow", 1.0) or 1.0,
        "rope_high": rope.number("beta_fast", 32.0) or 32.0,
        "rope_attention_factor": rope.number("attention_factor", temperature),
    }


def _needed(rope: Settings, name: str) -> float:
    if name not in rope.values:
        raise LabError(f"{rope.file}: {name} is missing")
    return rope.number(name, 0.0)


def _temperature(factor: float, scale: float) -> float:
    """YaRN's factor sqrt(1/t) on cosine and sine (Peng 2023, eq. 22)."""
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0


def write_rope(config: DecoderConfig) -> dict[str, Any]:
    """Hugging Face's settings of rotary positions, in the older spelling."""
    written = {"rope_theta": config.rope_base}
    kind = config.rope_scaling
    if kind == "none":
        return written
    scaling = {"rope_type": kind, "factor": config.rope_factor}
    if kind != "linear":
        scaling["original_max_position_embeddings"] = config.rope_original_length
    if kind == "llama3":
        scaling |= {"low_freq_factor": config.rope_low, "high_freq_factor": config.rope_high}
    if kind == "yarn":
        scaling |= {"beta_slow": config.rope_low, "beta_fast": config.rope_high}
        scaling["attention_factor"] = config.rope_attention_factor
    return written | {"rope_scaling": scaling}
