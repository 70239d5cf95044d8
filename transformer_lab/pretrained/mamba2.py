"""Mamba-2 (Dao 2024), as in Hugging Face's `mamba2`."""

import math
from typing import Any

from transformer_lab.models.decoder import DecoderConfig
from transformer_lab.pretrained import mamba
from transformer_lab.pretrained.core import Family, Found, Settings, Tensors
from transformer_lab.pretrained.decoders import architectures
from transformer_lab.pretrained.names import NameMap, Rule


def _read(settings: Settings, found: Found, tensors: Tensors) -> Found:
    inner = mamba.read_inner_width(settings, found)
    if settings.integer("head_dim", 64) * found["mixer.state_heads"] != inner:
        raise settings.error("head_dim", f"times num_heads it must be {inner}")
    low, high = _limits(settings)
    own = {"inner_width": inner, "norm_epsilon": found["norm_epsilon"]}
    own |= {"step_low": low, "step_high": high}
    return {f"mixer.{name}": value for name, value in own.items()}


def _limits(settings: Settings) -> tuple[float, float]:
    """The least and greatest step size, 0 for no limit; infinity has several spellings in JSON."""
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
    return {
        "expand": own.inner_width // config.width,
        "head_dim": own.inner_width // own.state_heads,
        "time_step_limit": [own.step_low, high],
    }


def _names(config: DecoderConfig, pad: int) -> NameMap:
    theirs = "backbone.layers.{i}.mixer"
    rules = mamba.shared_rules(config, theirs)
    rules.append(Rule(f"{mamba.OURS}/step_bias", f"{theirs}.dt_bias"))
    rules.append(Rule(f"{mamba.OURS}/scale", f"{theirs}.norm.weight"))
    return mamba.names(config, *rules)


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
        "state_size": ("mixer.state", 128),
        "num_heads": ("mixer.state_heads", 128),
        "n_groups": ("mixer.state_groups", 8),
    },
    _names,
    constants=mamba.CONSTANTS | {"mixer.kind": "mamba2"},
    fixed={
        "rms_norm": (True,),
        "norm_before_gate": (False,),
    },
    # The length of chunks changes no output, and Mamba-2 has no step rank.
    ignored=mamba.IGNORED - {"rms_norm"} | {"chunk_size", "time_step_rank"},
    read=_read,
    write=_write,
    idle=lambda config: {"max_length"},
)
