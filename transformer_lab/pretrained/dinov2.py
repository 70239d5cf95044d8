"""DINOv2 (Oquab 2023), as in Hugging Face's `dinov2`: the bare model and the one with classes."""

from typing import Any

import numpy as np

from transformer_lab.models.vision import VisionConfig
from transformer_lab.pretrained import vit
from transformer_lab.pretrained.core import (
    Family,
    Found,
    Settings,
    Tensors,
    activation_name,
    label_names,
    label_settings,
)
from transformer_lab.pretrained.keys import ACTIVATIONS, words
from transformer_lab.pretrained.names import ROW, NameMap, Rule, Transform, dense, layers, norm

OTHERS = "intermediate_size", "hidden_act"  # keys of ViT that are read otherwise here
FIELDS = {key: row for key, row in vit.FIELDS.items() if key not in OTHERS} | {
    "layer_norm_eps": ("norm_epsilon", 1e-6),
    "layerscale_value": ("layer_scale", 1.0),
    "drop_path_rate": ("drop_path", 0.0),
}
LAYER = vit.LAYER | {
    "attention_norm": "norm1",
    "feed_forward_norm": "norm2",
    "feed_forward/up": "mlp.fc1",
    "feed_forward/down": "mlp.fc2",
}
SIDE_BY_SIDE = Transform(  # the kernels of gate and up [D, F], or their biases, in one tensor
    lambda *parts: np.concatenate([part.T for part in parts]),
    lambda x: [part.T for part in np.split(x, 2)],
)


def _read(settings: Settings, found: Found, tensors: Tensors) -> Found:
    own: Found = vit.read_sizes(settings, patch=14)
    if found["layer_scale"] <= 0:
        raise settings.error("layerscale_value", "it must be above 0")
    if own["image_size"][0] * own["patch_size"][1] != own["image_size"][1] * own["patch_size"][0]:
        raise settings.error("image_size", "there must be as many rows of patches as columns")
    hidden = int(found["width"] * settings.number("mlp_ratio", 4.0))
    own["feed_forward_width"] = hidden
    own["activation"] = settings.choice("hidden_act", "gelu", ACTIVATIONS)
    if settings.flag("use_swiglu_ffn", False):
        own["activation"] = "swiglu"
        own["feed_forward_width"] = (int(hidden * 2 / 3) + 7) // 8 * 8
    own |= {"head": "none", "pooling": "class"}
    if "classifier.weight" in tensors:
        own |= {"head": "classes", "pooling": "class_mean", "classes": len(label_names(settings))}
    return own


def _write(config: VisionConfig, pad: int) -> dict[str, Any]:
    end = "ForImageClassification" if config.head == "classes" else "Model"
    gated = config.activation == "swiglu"
    ratio = config.feed_forward_width * (1.5 if gated else 1.0) / config.width
    written = vit.write_sizes(config) | {
        "architectures": [f"Dinov2{end}"],
        "mlp_ratio": int(ratio) if ratio == int(ratio) else ratio,
        "use_swiglu_ffn": gated,
        "use_mask_token": False,
    }
    if not gated:
        name = activation_name(config.activation, ACTIVATIONS, "activation", "dinov2")
        written["hidden_act"] = name
    return written | label_settings(config.classes if config.head == "classes" else 0)


def _names(config: VisionConfig, pad: int) -> NameMap:
    prefix = "" if config.head == "none" else "dinov2."
    tables, theirs = f"{prefix}embeddings", f"{prefix}encoder.layer"
    patches, ours = f"{tables}.patch_embeddings.projection", "encoder/layer_{i}"
    gated = config.activation == "swiglu"
    rules = [
        Rule("patch_embedding/kernel", f"{patches}.weight", vit.convolution(config)),
        Rule("patch_embedding/bias", f"{patches}.bias"),
        Rule("class_token", f"{tables}.cls_token", vit.TOKEN),
        Rule("positions/embedding", f"{tables}.position_embeddings", ROW),
        *norm("encoder/final_norm", f"{prefix}layernorm"),
        Rule(f"{ours}/attention_scale", f"{theirs}.{{i}}.layer_scale1.lambda1"),
        Rule(f"{ours}/feed_forward_scale", f"{theirs}.{{i}}.layer_scale2.lambda1"),
    ]
    if gated:
        for leaf, name in (("kernel", "weight"), ("bias", "bias")):
            parts = tuple(f"{ours}/feed_forward/{part}/{leaf}" for part in ("gate", "up"))
            rules.append(Rule(parts, f"{theirs}.{{i}}.mlp.weights_in.{name}", SIDE_BY_SIDE))
    parts = {part: name for part, name in LAYER.items() if not gated or "forward/" not in part}
    parts |= {"feed_forward/down": "mlp.weights_out"} if gated else {}
    rules += layers(config, "encoder", theirs, parts)
    if config.head == "classes":
        rules += dense("classifier", "classifier")
    return NameMap(tuple(rules), unused=frozenset([f"{tables}.mask_token"]), prefix=prefix)


FAMILY = Family(
    "dinov2",
    "vision",
    ("Dinov2Model", "Dinov2ForImageClassification"),
    FIELDS,
    _names,
    constants={"kernel_init": "normal"},
    ignored=words("""
        apply_layernorm out_features out_indices reshape_hidden_states stage_names use_mask_token
    """),
    read=_read,
    write=_write,
    idle=lambda config: {"classes"} if config.head == "none" else set(),
)
