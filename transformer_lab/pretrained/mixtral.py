"""Mixtral (Jiang 2024), as in Hugging Face's `mixtral`: LLaMA's layers with experts."""

from dataclasses import replace
from typing import Any

from transformer_lab.layers.block_config import ExpertsConfig
from transformer_lab.models.decoder import DecoderConfig
from transformer_lab.pretrained import llama, mistral
from transformer_lab.pretrained.core import Found, Settings, Tensors
from transformer_lab.pretrained.decoders import architectures
from transformer_lab.pretrained.names import (
    PAIRED,
    STACKED,
    TRANSPOSE,
    NameMap,
    Rule,
    experts,
    layers,
)

OURS = "decoder/layer_{i}/feed_forward"
LAYER = {ours: theirs for ours, theirs in llama.LAYER.items() if "feed_forward/" not in ours}


def read_experts(settings: Settings, count: int, **more: Any) -> ExpertsConfig:
    """So many experts, which drop no token."""
    return ExpertsConfig(
        count=count,
        top_k=settings.integer("num_experts_per_tok", 2),
        balance_loss=settings.number("router_aux_loss_coef", 0.001),
        **more,
    )


def write_experts(config: DecoderConfig) -> dict[str, Any]:
    """Theirs of the same."""
    own = config.experts
    width = own.width or config.feed_forward_width
    return {
        "num_experts_per_tok": own.top_k,
        "router_aux_loss_coef": own.balance_loss,
        "intermediate_size": width,
    }


def packed_experts(theirs: str) -> tuple[Rule, ...]:
    """All experts in two tensors, as their models have them in memory."""
    return (
        Rule((f"{OURS}/gate", f"{OURS}/up"), f"{theirs}.gate_up_proj", PAIRED),
        Rule(f"{OURS}/down", f"{theirs}.down_proj", STACKED),
    )


def _read(settings: Settings, found: Found, tensors: Tensors) -> Found:
    settings.values.setdefault("sliding_window", None)
    settings.values.setdefault("rope_theta", 1e6)
    jitter = settings.number("router_jitter_noise", 0.0)
    own = read_experts(settings, settings.integer("num_local_experts", 8), jitter=jitter)
    return mistral.read(settings, found, tensors) | {"experts": own, "feed_forward": "experts"}


def _write(config: DecoderConfig, pad: int) -> dict[str, Any]:
    more = {"num_local_experts": config.experts.count}
    more |= {"router_jitter_noise": config.experts.jitter}
    return mistral.FAMILY.write(config, pad) | write_experts(config) | more


def _names(config: DecoderConfig, pad: int) -> NameMap:
    block, parts = "model.layers.{i}.block_sparse_moe", {"gate": "w1", "up": "w3", "down": "w2"}
    rules = [Rule(f"{OURS}/router", f"{block}.gate.weight", TRANSPOSE)]
    rules += experts(config, OURS, f"{block}.experts.{{e}}", parts)
    rules += layers(config, "decoder", "model.layers", LAYER)
    others = packed_experts("model.layers.{i}.mlp.experts")
    others += (Rule(f"{OURS}/router", "model.layers.{i}.mlp.gate.weight", TRANSPOSE),)
    return llama.name_map_of(config, rules, others=others)


FAMILY = replace(
    mistral.FAMILY,
    model_type="mixtral",
    architectures=architectures("Mixtral"),
    fields=mistral.FAMILY.fields | {"rms_norm_eps": ("norm_epsilon", 1e-5)},
    names=_names,
    ignored=("output_router_logits",),
    aliases={"num_experts": "num_local_experts"},
    read=_read,
    write=_write,
)
