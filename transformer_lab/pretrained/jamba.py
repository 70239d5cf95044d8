"""Jamba (Lieber 2024), as in Hugging Face's `jamba`: attention and Mamba, dense and experts."""

from dataclasses import replace
from typing import Any

from transformer_lab.models.decoder import DecoderConfig
from transformer_lab.ops.activations import GATED
from transformer_lab.pretrained import llama, mamba, mistral, mixtral
from transformer_lab.pretrained.core import Found, Settings, Tensors, read_table, write_table
from transformer_lab.pretrained.decoders import architectures, name_map
from transformer_lab.pretrained.keys import words
from transformer_lab.pretrained.names import TRANSPOSE, NameMap, Rule, experts, norm

MIXER = {
    "mamba_d_state": ("mixer.state", 16),
    "mamba_d_conv": ("mixer.convolution", 4),
    "mamba_proj_bias": ("mixer.bias", False),
    "mamba_conv_bias": ("mixer.convolution_bias", True),
}
NORMS = {"step_norm": "dt_layernorm", "write_norm": "b_layernorm", "read_norm": "c_layernorm"}
# What layers have at regular distances, with the default period and offset.
PERIODIC = {"attn_layer": ("attention", 8, 4), "expert_layer": ("experts", 2, 1)}


def _read(settings: Settings, found: Found, tensors: Tensors) -> Found:
    has = {}
    for name, (part, *defaults) in PERIODIC.items():
        period = settings.integer(f"{name}_period", defaults[0])
        offset = settings.integer(f"{name}_offset", defaults[1], least=0)
        if offset >= period:
            raise settings.error(f"{name}_offset", f"it must be below {name}_period = {period}")
        has[part] = [i % period == offset for i in range(found["layers"])]
    kinds = tuple(
        f"{'attention' if attends else 'mamba'}/{'experts' if many else 'dense'}"
        for attends, many in zip(*(has[part] for part in ("attention", "experts")), strict=True)
    )
    own: Found = {"experts.count": settings.integer("num_experts", 16)}
    if own["experts.count"] == 1:  # which means no experts
        settings.ignore(mixtral.EXPERTS)
        kinds, own = tuple(kind.replace("experts", "dense") for kind in kinds), {}
    else:
        own |= read_table(settings, mixtral.EXPERTS, {}) | {"experts.renormalize": False}
    settings.values.setdefault("num_key_value_heads", 8)
    return own | llama.read_heads(settings, found) | {
        "layer_kinds": kinds,
        "mixer.inner_width": settings.integer("mamba_expand", 2) * found["width"],
        "mixer.step_rank": mamba.read_rank(settings, found, "mamba_dt_rank"),
        "mixer.norm_epsilon": found["norm_epsilon"],
        "mixer.activation": GATED[found["activation"]],
    }  # fmt: skip


def _write(config: DecoderConfig, pad: int) -> dict[str, Any]:
    each = config.each_layer()
    has = {
        "attention": [one.mixer.kind == "attention" for one in each],
        "experts": [one.feed_forward == "experts" for one in each],
    }
    written = {}
    for name, (part, *_) in PERIODIC.items():
        # The first pair that gives these layers; past the last layer if there are none.
        pairs = ((p, o) for p in range(1, config.layers + 2) for o in range(p))
        fits = (pair for pair in pairs if has[part] == _at(*pair, config.layers))
        period, offset = next(fits, (1, 0))
        written |= {f"{name}_period": period, f"{name}_offset": offset}
    written |= write_table(config, mixtral.EXPERTS, {}, "jamba") | llama.write_heads(config)
    return written | {
        "num_experts": config.experts.count if any(has["experts"]) else 1,
        "mamba_dt_rank": config.mixer.step_rank,
        "mamba_expand": config.mixer.inner_width // config.width,
    }


def _at(period: int, offset: int, count: int) -> list[bool]:
    return [i % period == offset for i in range(count)]


def _names(config: DecoderConfig, pad: int) -> NameMap:
    layer, ours = "model.layers.{i}", "decoder/layer_{i}"
    each = config.each_layer()
    mixers, forwards = {one.mixer.kind for one in each}, {one.feed_forward for one in each}
    rules, parts, others = list[Rule](), {"feed_forward_norm": "pre_ff_layernorm"}, ()
    for kind, name in (("attention", "attention_norm"), ("mamba", "mixer_norm")):
        parts |= {name: "input_layernorm"} if kind in mixers else {}
    for part in ("query", "key", "value", "out") if "attention" in mixers else ():
        parts[f"attention/{part}"] = f"self_attn.{part[0]}_proj"
    for part in ("gate", "up", "down") if "dense" in forwards else ():
        parts[f"feed_forward/{part}"] = f"feed_forward.{part}_proj"
    if "mamba" in mixers:
        rules += mamba.selective_rules(config, f"{layer}.mamba")
        for name, theirs in NORMS.items():
            rules += norm(f"{ours}/mixer/{name}", f"{layer}.mamba.{theirs}", bias=False)
    if "experts" in forwards:
        block = f"{layer}.feed_forward"
        rules.append(Rule(f"{ours}/feed_forward/router", f"{block}.router.weight", TRANSPOSE))
        kernels = {part: f"{part}_proj" for part in ("gate", "up", "down")}
        rules += experts(config, f"{ours}/feed_forward", f"{block}.experts.{{e}}", kernels)
        others = mixtral.packed_experts(f"{block}.experts")
    body = "model.embed_tokens.weight", "model.layers", parts, "model.final_layernorm"
    return name_map(config, *body, *rules, others=others)


FAMILY = replace(
    mistral.FAMILY,
    model_type="jamba",
    architectures=architectures("Jamba"),
    fields={
        **mistral.FAMILY.fields,
        **MIXER,
        "vocab_size": ("vocab_size", 65536),
        "intermediate_size": ("feed_forward_width", 14336),
        "max_position_embeddings": ("max_length", 262144),
        "rms_norm_eps": ("norm_epsilon", 1e-6),
    },
    constants=mistral.FAMILY.constants | {"positions": "none", "mixer.inner_norms": True},
    names=_names,
    ignored=mamba.IGNORED
    | words(
        "num_logits_to_keep output_router_logits time_step_max time_step_min use_mamba_kernels"
    ),
    aliases={"num_local_experts": "num_experts"},
    read=_read,
    write=_write,
)
