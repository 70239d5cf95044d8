"""SigLIP (Zhai 2023), as in Hugging Face's `siglip`."""

from typing import Any

import numpy as np

from transformer_lab.models.decoder import DecoderConfig
from transformer_lab.models.two_towers import TwoTowersConfig
from transformer_lab.models.vision import VisionConfig
from transformer_lab.pretrained import clip
from transformer_lab.pretrained.core import Family, Found, Settings, Tensors
from transformer_lab.pretrained.names import ROW, NameMap, Rule, Transform, dense, norm, packed

CHANGED = {
    "layer_norm_eps": ("norm_epsilon", 1e-6),
    "hidden_act": ("activation", "gelu_pytorch_tanh"),
}
IMAGE = clip.IMAGE | CHANGED
TEXT = clip.TEXT | CHANGED
TEXT |= {
    "vocab_size": ("vocab_size", 32000),
    "hidden_size": ("width", 768),
    "num_attention_heads": ("heads", 12),
    "intermediate_size": ("feed_forward_width", 3072),
    "max_position_embeddings": ("max_length", 64),
}
ONE_NUMBER = Transform(lambda x: np.reshape(x, 1), lambda x: [np.reshape(x, ())])
STACKED = Transform(  # our kernels [in, out] are stacked as [3 * out, in]
    lambda *parts: np.concatenate([part.T for part in parts]),
    lambda x: [part.T for part in np.split(x, 3)],
)


def _read(settings: Settings, found: Found, tensors: Tensors) -> Found:
    vision, image = clip.read_tower(settings, "vision_config", "siglip_vision_model", IMAGE, 16)
    vision.fix({"vision_use_head": (True,)})
    written, text = clip.read_tower(settings, "text_config", "siglip_text_model", TEXT)
    projection = written.integer("projection_size", None) or text["width"]
    for part in (vision, written):
        part.finish()
    if projection != image["width"]:
        raise written.error("projection_size", f"the image tower's width is {image['width']}")
    return {
        "image": VisionConfig(head="none", pooling="attention", **image),
        "text": DecoderConfig(mask="prefix", **text),
    }


def _write(config: TwoTowersConfig, pad: int) -> dict[str, Any]:
    image, text = clip.write_towers(config, "siglip", IMAGE, TEXT)
    return {
        "vision_config": image | {"vision_use_head": True},
        "text_config": text | {"projection_size": config.common_width},
    }


def _names(config: TwoTowersConfig, pad: int) -> NameMap:
    ours, theirs = "image/pool", "vision_model.head"
    return clip.name_map(
        config,
        Rule("image/patch_embedding/bias", "vision_model.embeddings.patch_embedding.bias"),
        Rule(f"{ours}/probe", f"{theirs}.probe", ROW),
        *packed(f"{ours}/attention", f"{theirs}.attention.in_proj_", STACKED),
        *dense(f"{ours}/attention/out", f"{theirs}.attention.out_proj"),
        *norm(f"{ours}/norm", f"{theirs}.layernorm"),
        *dense(f"{ours}/feed_forward/up", f"{theirs}.mlp.fc1"),
        *dense(f"{ours}/feed_forward/down", f"{theirs}.mlp.fc2"),
        *dense("text_projection", "text_model.head"),
        Rule("scale", "logit_scale", ONE_NUMBER),
        Rule("bias", "logit_bias", ONE_NUMBER),
    )


def _idle(config: TwoTowersConfig) -> set[str]:
    """Settings that change no output; the logits' bias is read from a tensor, but must exist."""
    return clip.idle(config) | ({"bias"} if config.bias is not None else set())


FAMILY = Family(
    "siglip",
    "two_towers",
    ("SiglipModel",),
    {},
    _names,
    constants={
        "projection": None,
        "text_bias": True,
        "text_pool": "last",
        "largest_scale": 0.0,
        "bias": -10.0,
    },
    ignored=clip.FAMILY.ignored,
    read=_read,
    write=_write,
    idle=_idle,
)
