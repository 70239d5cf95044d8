"""One entry of a table of published sizes, and a function that makes entries from a table."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Preset:
    """A model's settings, and what its paper states of it; None where the paper is silent."""

    kind: str  # the model family
    config: Any
    published: int | float | None  # parameters, as the paper rounds them
    source: str
    note: str = ""
    learning_rate: float | None = None  # the peak of the schedule
    batch_tokens: int | None = None  # tokens in a batch; the final number where it grows
    trained_tokens: float | None = None
    # Keys of config.optimizer in which the paper differs from AdamW with 2,000 steps of warm-up and
    # a cosine to a tenth
    optimizer: dict[str, Any] = field(default_factory=dict)
    # Where rate, batch, tokens and optimizer stand, if elsewhere than in `source`
    training_source: str = ""


PLACES = {"pre": "first", "post": "last", "deep": "last, residuals scaled"}


def architecture(name: str, preset: Preset) -> dict[str, str]:
    """The cells of a decoder's line in a table of architectures, by their headings, as surveys list
    them (Zhao 2023, arXiv 2303.18223); "inner" biases are those of the feed-forward."""
    config = preset.config
    attends = config.mixer.kind == "attention"
    shared = f", keys {config.kv_heads}" if config.kv_heads < config.heads else ""
    routed = config.feed_forward == "experts" or any("experts" in x for x in config.layer_kinds)
    inner = config.feed_forward if config.feed_forward in ("none", "shifted") else config.activation
    biases = {"attention": attends and config.attention_bias, "inner": config.feed_forward_bias}
    if config.norm == "layer_norm":
        biases["norm"] = config.norm_bias
    named = [kind for kind, has in biases.items() if has]
    return {
        "preset": name,
        "mixer": config.mixer.kind + (", parallel" if config.block == "parallel" else ""),
        "layers": str(config.layers),
        "width": f"{config.width:,}",
        "heads": f"{config.heads}{shared}" if attends else "-",
        "context": f"{config.max_length:,}" if attends else "-",
        "norm": f"{config.norm} {PLACES[config.norm_place]}",
        "positions": config.positions,
        "feed-forward": inner + (", experts" if routed else ""),
        "biases": "all" if all(biases.values()) else ", ".join(named) or "none",
    }


def presets(
    kind: str,
    base: Any,
    names: Sequence[str],
    source: str,
    lines: dict[str, tuple],
    more: Sequence[str] = (),
    **common: Any,
) -> dict[str, Preset]:
    """Presets from a table: each line has the values of the settings `names`, the published number
    of parameters, and values for as many of the fields `more` as it likes.

    `common` are fields that all presets share.
    """
    found = {}
    for name, line in lines.items():
        sizes, published, rest = line[: len(names)], line[len(names)], line[len(names) + 1 :]
        config = replace(base, **dict(zip(names, sizes, strict=True)))
        fields = common | dict(zip(more, rest, strict=False))
        found[name] = Preset(kind, config, published, source, **fields)
    return found
