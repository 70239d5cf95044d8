"""Mixtral (Jiang 2024), as in Hugging Face's `mixtral`: LLaMA's layers with experts."""

from dataclasses import replace
from typing import Any

from transformer_lab.models.decoder import DecoderConfig
from transformer_lab.pretrained import llama, mistral
from transformer_lab.pretrained.core import Found, Settings, Tensors
from transformer_lab.pretrained.decoders import architectures
from transformer_lab.pretrained.names import PAIRED, STACKED, TRANSPOSE, NameMap, Rule, experts

OURS = "decoder/layer_{i}/feed_forward"
LAYER = {ours: theirs for ours, theirs in llama.LAYER.items() if "feed_forward/" not in ours}


EXPERTS = {  # no token is dropped
    "num_experts_per_tok": ("experts.top_k", 2),
    "router_aux_loss_coef": ("experts.balance_loss", 0.001),
}


def packed_experts(theirs: str) -> tuple[Rule, ...]:
    """The rules of a layout that keeps all experts of a layer in two tensors."""
    return (
        Rule((f"{OURS}/gate", f"{OURS}/up"), f"{theirs}.gate_up_proj", PAIRED),
        Rule(f"{OURS}/down", f"{theirs}.down_proj", STACKED),
    )


def _read(settings: Settings, found: Found, tensors: Tensors) -> Found:
    settings.values.setdefault("sliding_window", None)
    settings.values.setdefault("rope_theta", 1e6)
    return mistral.read(settings, found, tensors)


def _write(config: DecoderConfig, pad: int) -> dict[str, Any]:
    width = config.experts.width or config.feed_forward_width
    return mistral.FAMILY.write(config, pad) | {"intermediate_size": width}


def _names(config: DecoderConfig, pad: int) -> NameMap:
    block, parts = "model.layers.{i}.block_sparse_moe", {"gate": "w1", "up": "w3", "down": "w2"}
    rules = [Rule(f"{OURS}/router", f"{block}.gate.weight", TRANSPOSE)]
    rules += experts(config, OURS, f"{block}.experts.{{e}}", parts)
    others = packed_experts("model.layers.{i}.mlp.experts")
    others += (Rule(f"{OURS}/router", "model.layers.{i}.mlp.gate.weight", TRANSPOSE),)
    return llama.names(config, LAYER, *rules, others=others)


FAMILY = replace(
    mistral.FAMILY,
    model_type="mixtral",
    architectures=architectures("Mixtral"),
    fields={
        **mistral.FAMILY.fields,
        **EXPERTS,
        "rms_norm_eps": ("norm_epsilon", 1e-5),
        "num_local_experts": ("experts.count", 8),
        "router_jitter_noise": ("experts.jitter", 0.0),
    },
    constants=mistral.FAMILY.constants | {"feed_forward": "experts"},
    names=_names,
    ignored=("output_router_logits",),
    aliases={"num_experts": "num_local_experts"},
    read=_read,
    write=_write,
)
