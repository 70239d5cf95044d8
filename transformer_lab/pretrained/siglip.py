"""SigLIP (Zhai 2023), as in Hugging Face's `siglip`."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from transformer_lab.models.decoder import DecoderConfig
from transformer_lab.models.two_towers import TwoTowersConfig
from transformer_lab.models.vision import VisionConfig
from transformer_lab.pretrained import clip
from transformer_lab.pretrained.clip import INPUTS, KIND, PAD, outputs, shapes
from transformer_lab.pretrained.decoder_settings import FIXED, IRRELEVANT, write_fields
from transformer_lab.pretrained.generation import GENERATION_KEYS
from transformer_lab.pretrained.keys import Settings
from transformer_lab.pretrained.names import NameMap, Rule, Transform, dense, norm
from transformer_lab.pretrained.vit import write_sizes

__all__ = ["INPUTS", "KIND", "PAD", "outputs", "reading", "shapes", "writing"]

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
ONE = Transform(lambda x: x[None], lambda x: [x[0]])
ONE_NUMBER = Transform(lambda x: np.reshape(x, 1), lambda x: [np.reshape(x, ())])
PACKED = Transform(  # query, key and value [in, out] above each other, torch's way round
    lambda *parts: np.concatenate([part.T for part in parts]),
    lambda x: [part.T for part in np.split(x, 3)],
)


def _read(settings: Settings, tensors: Iterable[str]) -> TwoTowersConfig:
    settings.ignore([*IRRELEVANT, *GENERATION_KEYS, *clip.TRAINING, *clip.COPIES])
    settings.fix(FIXED | {"model_type": ("siglip",), "tie_word_embeddings": (True, False)})
    if settings.values.get("architectures") not in (None, ["SiglipModel"]):
        raise settings.error("architectures", "only SiglipModel is")
    vision, image = clip.tower(settings, "vision_config", "siglip_vision_model", IMAGE, 16)
    vision.fix({"vision_use_head": (True,)})
    written, text = clip.tower(settings, "text_config", "siglip_text_model", TEXT, 0)
    projection = written.integer("projection_size", None) or text["width"]
    for part in (vision, written, settings):
        part.finish()
    if projection != image["width"]:
        raise written.error("projection_size", f"the image tower's width is {image['width']}")
    return TwoTowersConfig(
        image=VisionConfig(head="none", pooling="attention", **image),
        text=DecoderConfig(mask="prefix", **text),
        projection=None,
        text_bias=True,
        text_pool="last",
        largest_scale=0.0,
        bias=-10.0,
    )


def _write(config: TwoTowersConfig) -> dict[str, Any]:
    image = write_fields(config.image, "siglip_vision_model", "", IMAGE) | write_sizes(config.image)
    text = write_fields(config.text, "siglip_text_model", "", TEXT)
    return {
        "model_type": "siglip",
        "architectures": ["SiglipModel"],
        "dtype": "float32",
        "vision_config": image | {"vision_use_head": True},
        "text_config": text | {"projection_size": config.common_width},
    }


def _names(config: TwoTowersConfig) -> NameMap:
    ours, theirs = "image/pool", "vision_model.head"
    parts = ("query", "key", "value")
    packed = [
        Rule(tuple(f"{ours}/attention/{p}/kernel" for p in parts),
             f"{theirs}.attention.in_proj_weight", PACKED),
        Rule(tuple(f"{ours}/attention/{p}/bias" for p in parts),
             f"{theirs}.attention.in_proj_bias", PACKED),
    ]  # fmt: skip
    return clip.name_map(
        [
            *clip.text_rules(),
            *clip.image_rules(config.image),
            Rule("image/patch_embedding/bias", "vision_model.embeddings.patch_embedding.bias"),
            Rule(f"{ours}/probe", f"{theirs}.probe", ONE),
            *packed,
            *dense(f"{ours}/attention/out", f"{theirs}.attention.out_proj"),
            *norm(f"{ours}/norm", f"{theirs}.layernorm"),
            *dense(f"{ours}/feed_forward/up", f"{theirs}.mlp.fc1"),
            *dense(f"{ours}/feed_forward/down", f"{theirs}.mlp.fc2"),
            *dense("text_projection", "text_model.head"),
            Rule("scale", "logit_scale", ONE_NUMBER),
            Rule("bias", "logit_bias", ONE_NUMBER),
        ]
    )


reading, writing = clip.both_ways("siglip", _read, _write, _names)
