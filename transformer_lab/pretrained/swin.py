"""Swin (Liu 2021), as in Hugging Face's `swin`: the bare model and the one with classes."""

from typing import Any

from transformer_lab.models.swin import SwinConfig
from transformer_lab.pretrained.core import (
    Family,
    Found,
    Settings,
    Tensors,
    label_names,
    label_settings,
)
from transformer_lab.pretrained.names import ROW, NameMap, Rule, dense, norm, within
from transformer_lab.pretrained.vit import convolution, read_sizes, write_sizes

FIELDS = {
    "embed_dim": ("width", 96),
    "window_size": ("window", 7),
    "mlp_ratio": ("feed_forward_ratio", 4.0),
    "hidden_act": ("activation", "gelu"),
    "layer_norm_eps": ("norm_epsilon", 1e-5),
    "num_channels": ("channels", 3),
    "qkv_bias": ("qkv_bias", True),
    "hidden_dropout_prob": ("dropout", 0.0),
    "attention_probs_dropout_prob": ("attention_dropout", 0.0),
    "drop_path_rate": ("drop_path", 0.1),
    "initializer_range": ("init_std", 0.02),
}
STAGES = {"depths": ("stages", (2, 2, 6, 2)), "num_heads": ("stage_heads", (3, 6, 12, 24))}
POSITIONS = "embeddings.position_embeddings"
LAYER = {
    **within("attention", "attention.self", query="query", key="key", value="value"),
    "attention/out": "attention.output.dense",
    "feed_forward/up": "intermediate.dense",
    "feed_forward/down": "output.dense",
}
NORMS = {"attention_norm": "layernorm_before", "feed_forward_norm": "layernorm_after"}


def _read(settings: Settings, found: Found, tensors: Tensors) -> Found:
    bare = {name.removeprefix("swin.") for name in tensors}
    own: Found = read_sizes(settings, patch=4)
    for key, (ours, default) in STAGES.items():
        value = settings.raw(key, list(default))
        if not isinstance(value, list | tuple) or not 0 < len(value) < 16:
            raise settings.error(key, "it must be a list of whole numbers, one for each stage")
        if not all(type(count) is int and 0 < count <= len(tensors) for count in value):
            raise settings.error(key, f"a stage has 1 to {len(tensors)}, as the file has tensors")
        own[ours] = tuple(value)
    absolute = settings.flag("use_absolute_embeddings", False)
    own["positions"] = "learned" if absolute else "none"
    own["head"] = "classes" if "classifier.weight" in bare else "none"
    if own["head"] == "classes":
        own["classes"] = len(label_names(settings))
    return own


def _write(config: SwinConfig, pad: int) -> dict[str, Any]:
    ends = {"none": "Model", "classes": "ForImageClassification"}
    written = write_sizes(config) | {
        "architectures": [f"Swin{ends[config.head]}"],
        "use_absolute_embeddings": config.positions == "learned",
        **{key: list(getattr(config, ours)) for key, (ours, _) in STAGES.items()},
    }
    return written | label_settings(config.classes if config.head == "classes" else 0)


def _names(config: SwinConfig, pad: int) -> NameMap:
    prefix = "" if config.head == "none" else "swin."
    patches = f"{prefix}embeddings.patch_embeddings.projection"
    rules = [
        Rule("patch_embedding/kernel", f"{patches}.weight", convolution(config)),
        Rule("patch_embedding/bias", f"{patches}.bias"),
        *norm("embedding_norm", f"{prefix}embeddings.norm"),
        *norm("final_norm", f"{prefix}layernorm"),
    ]
    unused, number = [f"{prefix}embeddings.mask_token"], 0
    for stage, layers in enumerate(config.stages):
        theirs = f"{prefix}encoder.layers.{stage}"
        for i in range(layers):
            ours, block = f"layer_{number}", f"{theirs}.blocks.{i}"
            for part, name in LAYER.items():
                bias = config.qkv_bias or "self" not in name
                rules += dense(f"{ours}/{part}", f"{block}.{name}", bias)
            for part, name in NORMS.items():
                rules += norm(f"{ours}/{part}", f"{block}.{name}")
            table = f"{block}.attention.self.relative_position"
            rules.append(Rule(f"{ours}/attention/bias_table", f"{table}_bias_table"))
            unused.append(f"{table}_index")
            number += 1
        if stage + 1 < len(config.stages):
            rules += norm(f"merge_norm_{stage}", f"{theirs}.downsample.norm")
            rules += dense(f"merge_{stage}", f"{theirs}.downsample.reduction", bias=False)
    if config.positions == "learned":
        rules.append(Rule("positions", f"{prefix}{POSITIONS}", ROW))
    if config.head == "classes":
        rules += dense("classifier", "classifier")
    return NameMap(tuple(rules), unused=frozenset(unused), prefix=prefix)


FAMILY = Family(
    "swin",
    "swin",
    ("SwinModel", "SwinForImageClassification"),
    FIELDS,
    _names,
    constants={"kernel_init": "normal"},
    ignored=("encoder_stride", "hidden_size", "num_layers", "path_norm", "stage_names",
             "out_features", "out_indices"),
    read=_read,
    write=_write,
    idle=lambda config: {"dtype", "kernel_init", *(["classes"] if config.head == "none" else [])},
)  # fmt: skip
