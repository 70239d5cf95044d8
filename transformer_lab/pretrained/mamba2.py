"""Mamba-2 (Dao 2024), as in Hugging Face's `mamba2`."""

import math
from typing import Any

from transformer_lab.layers.block_config import MixerConfig
from transformer_lab.models.decoder import DecoderConfig
from transformer_lab.pretrained import mamba
from transformer_lab.pretrained.core import Family, Found, Settings, Tensors
from transformer_lab.pretrained.decoders import architectures
from transformer_lab.pretrained.names import NameMap, Rule

NAMES = mamba.NAMES | {"state_heads": "num_heads", "state_groups": "n_groups"}


def _read(settings: Settings, found: Found, tensors: Tensors) -> Found:
    heads = settings.integer("num_heads", 128)
    more = mamba.read_mixer(
        settings, found, NAMES, state=128, state_heads=heads, norm_epsilon=found["norm_epsilon"]
    )
    more["state_groups"] = settings.integer("n_groups", 8)
    if settings.integer("head_dim", 64) * heads != more["inner_width"]:
        raise settings.error("head_dim", f"times num_heads it must be {more['inner_width']}")
    low, high = _limits(settings)
    return {"mixer": MixerConfig("mamba2", step_low=low, step_high=high, **more)}


def _limits(settings: Settings) -> tuple[float, float]:
    """The least and the greatest step size; 0 for none, which has several spellings in JSON."""
    found = settings.raw("time_step_limit")
    limits = [0.0, math.inf] if found is None else found
    if isinstance(limits, list) and len(limits) == 2:
        low, high = (x.get("__float__") if isinstance(x, dict) else x for x in limits)
        high = math.inf if high in ("Infinity", None) else high
        if all(type(x) in (int, float) for x in (low, high)) and 0 <= low < high and low < 1e30:
            return float(low), 0.0 if high > 1e30 else float(high)
    raise settings.error("time_step_limit", "it must be two numbers, the second one the larger")


def _write(config: DecoderConfig, pad: int) -> dict[str, Any]:
    own = config.mixer
    high = own.step_high or {"__float__": "Infinity"}
    return mamba.write_mixer(config, NAMES) | {
        "head_dim": own.inner_width // own.state_heads,
        "time_step_limit": [own.step_low, high],
        "hidden_act": "silu",
    }


def _names(config: DecoderConfig, pad: int) -> NameMap:
    theirs = "backbone.layers.{i}.mixer"
    rules = mamba.shared_rules(config, theirs)
    rules.append(Rule(f"{mamba.OURS}/step_bias", f"{theirs}.dt_bias"))
    rules.append(Rule(f"{mamba.OURS}/scale", f"{theirs}.norm.weight"))
    return mamba.name_map_of(config, rules)


FAMILY = Family(
    "mamba2",
    "decoder",
    architectures("Mamba2"),
    mamba.FIELDS
    | {
        "vocab_size": ("vocab_size", 32768),
        "hidden_size": ("width", 4096),
        "num_hidden_layers": ("layers", 64),
        "tie_word_embeddings": ("tie_head", False),
    },
    _names,
    constants=mamba.CONSTANTS,
    fixed={
        "hidden_act": ("silu", "swish"),
        "rms_norm": (True,),
        "norm_before_gate": (False,),
    },
    # A chunk's length changes no number, nor does a rank that it does not have.
    ignored=mamba.IGNORED - {"rms_norm"} | {"chunk_size", "time_step_rank"},
    read=_read,
    write=_write,
    idle=lambda config: {"max_length"},
)
