"""What the decoder-only families share: embedding, head, and rotary positions.

Rotary positions have an older and a newer spelling in Hugging Face's settings.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from transformer_lab.errors import LabError
from transformer_lab.models.decoder import DecoderConfig
from transformer_lab.pretrained.keys import Settings
from transformer_lab.pretrained.names import TRANSPOSE, NameMap, Rule, Transform, layers, norm

# Theirs -> ours. "dynamic" changes nothing up to max_position_embeddings, where our models end.
SCALINGS = {
    "default": "none",
    "dynamic": "none",
    "linear": "linear",
    "llama3": "llama3",
    "yarn": "yarn",
}


def architectures(title: str) -> tuple[str, ...]:
    """What a file may call a language model, or one without its head."""
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
    """A family's names of the embedding, of the parts of a layer (see `names.layers`), of the norm
    behind the last one ("" where there is none) and of the head; `rules` are those of all else.

    Files may hold a tied head too. All names of the body begin as that of the embedding does.
    """
    real, fill = config.vocab_size, config.table_rows - config.vocab_size
    # Rows that only fill our table up have no place in theirs.
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
    """Our fields; a base and a share of a head's dims stand for what their settings leave out.

    Of two spellings in one file their reader takes the older.
    """
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
    if share == 1.0:  # their LLaMA turns whole heads
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
    """sqrt(1/t) of YaRN (Peng 2023, eq. 22), on cosine and sine."""
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0


def write_rope(config: DecoderConfig) -> dict[str, Any]:
    """Their settings in the older spelling, which all their readers know."""
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
