"""T5 (Raffel 2020), its version 1.1, FLAN-T5 and mT5, as in Hugging Face's `t5` and `mt5`."""

from collections.abc import Callable
from typing import Any

import numpy as np

from transformer_lab.models.encoder_decoder import EncoderDecoderConfig
from transformer_lab.ops.activations import GATED
from transformer_lab.pretrained.core import Family, Found, Settings, Tensors
from transformer_lab.pretrained.keys import ACTIVATIONS
from transformer_lab.pretrained.names import SAME, NameMap, Rule, Transform, differ, layers, norm

_GATES = {gate: name for name, gate in GATED.items()}
# Their "gated-gelu" is the approximation by tanh, "gelu" the exact function.
ACTIVATIONS_T5 = {"gated-gelu": "geglu_tanh"} | ACTIVATIONS
ACTIVATIONS_T5 |= {
    f"gated-{theirs}": _GATES[ours]
    for theirs, ours in ACTIVATIONS.items()
    if ours in _GATES and theirs != "gelu"
}
EMBEDDINGS = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
HEAD = "lm_head.weight"
UNUSED = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"  # of old files


def _read(settings: Settings, found: Found, tensors: Tensors) -> Found:
    """Whether the head is tied is told by the tensors, as recent writers always call it tied."""
    act = settings.values.get("feed_forward_proj", "relu")
    name = "gelu_new" if act == "gated-gelu" else act.removeprefix("gated-")
    settings.fix({"dense_act_fn": (name,), "is_gated_act": (name != act and act != "gelu_new",)})
    scaled = settings.flag("scale_decoder_outputs", found["tie_head"])
    return {
        "tie_head": not differ(tensors, *EMBEDDINGS, HEAD),
        "decoder_layers": settings.integer("num_decoder_layers", None) or found["layers"],
        "attention_dropout": found["dropout"],
        "feed_forward_dropout": found["dropout"],
        "scale_output": scaled and settings.values.get("model_type") != "mt5",
    }


def _scales(config: EncoderDecoderConfig) -> bool:
    """Whether the file's embeddings are ours times sqrt(width), as T5 itself does not scale them.

    With a tied head, the output states are scaled back."""
    return config.embedding_scale and not (config.tie_head and config.scale_output)


def _write(config: EncoderDecoderConfig, pad: int) -> dict[str, Any]:
    return {
        "num_decoder_layers": config.decoder.layers,
        "scale_decoder_outputs": config.scale_output or _scales(config) and config.tie_head,
    }


def _dense(config: EncoderDecoderConfig, stack: str, last: int) -> list[Rule]:
    """The rules of a stack's dense feed-forward, which is sub-layer number `last` of a layer."""
    up = {"gate": "wi_0", "up": "wi_1"} if config.activation in GATED else {"up": "wi"}
    parts = {
        f"feed_forward/{ours}": f"layer.{last}.DenseReluDense.{theirs}"
        for ours, theirs in (up | {"down": "wo"}).items()
    }
    return layers(config, stack, f"{stack}.block", parts)


def names(
    config: EncoderDecoderConfig, pad: int, forward: Callable[..., list[Rule]] = _dense
) -> NameMap:
    """The name map of T5 and of families that differ only in the feed-forward."""
    root = np.float32(config.width**0.5)
    scaled = Transform(lambda x: x * root, lambda x: [x / root])
    table = scaled if config.embedding_scale else SAME
    rules = [Rule("target_embedding/embedding", EMBEDDINGS[0], table)]
    copies = dict.fromkeys(EMBEDDINGS[1:], EMBEDDINGS[0])
    if config.tie_head:
        copies[HEAD] = EMBEDDINGS[0]
    else:
        rules.append(Rule("head/embedding", HEAD))
    for stack in ("encoder", "decoder"):
        attentions = {"attention": "SelfAttention"}
        attentions |= {"cross_attention": "EncDecAttention"} if stack == "decoder" else {}
        parts, last = {}, len(attentions)
        for number, (ours, theirs) in enumerate(attentions.items()):
            for part in ("query", "key", "value", "out"):
                parts[f"{ours}/{part}"] = f"layer.{number}.{theirs}.{part[0]}"
            parts[f"{ours}_norm"] = f"layer.{number}.layer_norm"
        parts["feed_forward_norm"] = f"layer.{last}.layer_norm"
        bias = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        rules.append(Rule(f"{stack}/score_bias/embedding", bias))
        rules += norm(f"{stack}/final_norm", f"{stack}.final_layer_norm", bias=False)
        rules += layers(config, stack, f"{stack}.block", parts) + forward(config, stack, last)
    return NameMap(tuple(rules), copies, unused=frozenset([UNUSED]))


FAMILY = Family(
    "t5",
    "encoder_decoder",
    (
        "T5ForConditionalGeneration", "T5WithLMHeadModel", "T5Model", "MT5ForConditionalGeneration",
        "MT5Model",
    ),
    {
        "vocab_size": ("vocab_size", 32128),
        "n_positions": ("max_length", 512),
        "d_model": ("width", 512),
        "d_kv": ("head_dim", 64),
        "d_ff": ("feed_forward_width", 2048),
        "num_layers": ("layers", 6),
        "num_heads": ("heads", 8),
        "relative_attention_num_buckets": ("relative_buckets", 32),
        "relative_attention_max_distance": ("relative_max_distance", 128),
        "layer_norm_epsilon": ("norm_epsilon", 1e-6),
        "feed_forward_proj": ("activation", "relu"),
        "dropout_rate": ("dropout", 0.1),
        "tie_word_embeddings": ("tie_head", True),
    },
    names,
    constants={
        "positions": "t5",
        "norm": "rms_norm",
        "norm_place": "pre",
        "norm_bias": False,
        "attention_bias": False,
        "feed_forward_bias": False,
        "scale_attention": False,
        "embedding_scale": False,
        "init_std": 1.0,
    },
    fixed={"model_type": ("t5", "mt5")},
    activations=ACTIVATIONS_T5,
    read=_read,
    write=_write,
    idle=lambda config: {"embedding_scale", "scale_output"} if _scales(config) else set(),
)  # fmt: skip
