"""Switch Transformers (Fedus 2021), Hugging Face's `switch_transformers`: T5 with experts."""

from dataclasses import replace
from typing import Any

from transformer_lab.models.encoder_decoder import EncoderDecoderConfig
from transformer_lab.pretrained import t5
from transformer_lab.pretrained.core import Found, Settings, Tensors
from transformer_lab.pretrained.keys import ACTIVATIONS
from transformer_lab.pretrained.names import TRANSPOSE, NameMap, Rule, differ, experts, layers


def _step(count: int, sparse: int) -> int:
    """The distance between layers with experts, the first of which is layer 1."""
    return count // sparse if sparse else count


def _kinds(count: int, sparse: int) -> tuple[str, ...]:
    step = _step(count, sparse)
    many = (step == 1 or (step > 1 and i % step == 1) for i in range(count))
    return tuple("full/experts" if found else "full/dense" for found in many)


def _read(settings: Settings, found: Found, tensors: Tensors) -> Found:
    count = {"encoder": found["layers"]}
    settings.values.setdefault("num_decoder_layers", 12)
    count["decoder"] = settings.integer("num_decoder_layers", None) or found["layers"]
    kinds = {}
    for stack, number in count.items():
        sparse = settings.integer(f"num_sparse_{stack}_layers", 3, least=0)
        settings.fix({f"{stack}_sparse_step": (_step(number, sparse),)})
        kinds[stack] = _kinds(number, sparse)
    settings.fix({"feed_forward_proj": (settings.values.get("dense_act_fn", "relu"),)})
    return {
        "scale_output": found["tie_head"],
        "tie_source_target": found["tie_head"] or not differ(tensors, *t5.EMBEDDINGS[1:]),
        "decoder_layers": count["decoder"],
        "attention_dropout": found["dropout"],
        "layer_kinds": kinds["encoder"],
        "decoder_layer_kinds": kinds["decoder"],
    }


def _write(config: EncoderDecoderConfig, pad: int) -> dict[str, Any]:
    written = {"num_decoder_layers": config.decoder.layers}
    written["expert_capacity"] = config.experts.capacity or config.max_length
    for name, stack in (("encoder", config), ("decoder", config.decoder)):
        has = tuple(f"full/{stack.layer(i).feed_forward}" for i in range(stack.layers))
        fits = (n for n in range(stack.layers + 2) if _kinds(stack.layers, n) == has)
        written[f"num_sparse_{name}_layers"] = next(fits, 0)
    return written


def _forward(config: EncoderDecoderConfig, name: str, last: int) -> list[Rule]:
    """The rules of the feed-forward layers of a stack, dense or with experts."""
    stack, rules = config if name == "encoder" else config.decoder, []
    forwards = {stack.layer(i).feed_forward for i in range(stack.layers)}
    kernels, mlp = {"up": "wi", "down": "wo"}, f"layer.{last}.mlp"
    if "dense" in forwards:
        parts = {f"feed_forward/{ours}": f"{mlp}.{theirs}" for ours, theirs in kernels.items()}
        rules += layers(stack, name, f"{name}.block", parts)
    if "experts" in forwards:
        ours, theirs = f"{name}/layer_{{i}}/feed_forward", f"{name}.block.{{i}}.{mlp}"
        router = f"{theirs}.router.classifier"
        rules.append(Rule(f"{ours}/router", f"{router}.weight", TRANSPOSE))
        if config.experts.router_bias:
            rules.append(Rule(f"{ours}/router_bias", f"{router}.bias"))
        rules += experts(config, ours, f"{theirs}.experts.expert_{{e}}", kernels)
    return rules


def _names(config: EncoderDecoderConfig, pad: int) -> NameMap:
    """If the head is not tied, files have a table for each stack, and one that is never read."""
    names = t5.names(config, pad, _forward)
    if config.tie_source_target:
        copies = frozenset() if config.tie_head else frozenset(t5.EMBEDDINGS[1:])
        return replace(names, written_copies=copies)
    shared, *rules = names.rules
    sides = zip(("source", "target"), t5.EMBEDDINGS[1:], strict=True)
    tables = [replace(shared, ours=f"{s}_embedding/embedding", theirs=name) for s, name in sides]
    unused = names.unused | {t5.EMBEDDINGS[0]}
    return replace(names, rules=(*tables, *rules), copies={}, unused=unused)


FAMILY = replace(
    t5.FAMILY,
    model_type="switch_transformers",
    architectures=("SwitchTransformersForConditionalGeneration", "SwitchTransformersModel"),
    fields={
        **{key: value for key, value in t5.FAMILY.fields.items() if key != "feed_forward_proj"},
        "d_model": ("width", 768),
        "num_layers": ("layers", 12),
        "num_heads": ("heads", 12),
        "dense_act_fn": ("activation", "relu"),
        "num_experts": ("experts.count", 8),
        "expert_capacity": ("experts.capacity", 64),
        "router_jitter_noise": ("experts.jitter", 0.01),
        "router_bias": ("experts.router_bias", False),
        "router_aux_loss_coef": ("experts.balance_loss", 0.001),
        "router_z_loss_coef": ("experts.z_loss", 0.001),
    },
    constants=t5.FAMILY.constants | {"experts.top_k": 1, "experts.renormalize": False},
    names=_names,
    fixed={
        "is_gated_act": (False,),
        "num_selected_experts": (1,),
        "router_dtype": ("float32",),
        "router_type": ("tokens_masked",),
        "batch_prioritized_routing": (False,),
    },
    ignored=("add_router_probs", "router_ignore_padding_tokens"),  # nothing reads the latter
    activations=ACTIVATIONS,
    read=_read,
    write=_write,
)
