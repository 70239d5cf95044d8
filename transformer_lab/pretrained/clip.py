"""CLIP (Radford 2021), Hugging Face's `clip`, and what SigLIP shares with it."""

from typing import Any

from transformer_lab.models.decoder import DecoderConfig
from transformer_lab.models.two_towers import TwoTowersConfig
from transformer_lab.models.vision import VisionConfig
from transformer_lab.pretrained.core import (
    FIXED,
    IRRELEVANT,
    Family,
    Fields,
    Found,
    Settings,
    Tensors,
    head_dim,
    read_table,
    write_table,
)
from transformer_lab.pretrained.generation import GENERATION_KEYS
from transformer_lab.pretrained.keys import ACTIVATIONS, words
from transformer_lab.pretrained.marian import ATTENTION
from transformer_lab.pretrained.names import NameMap, Rule, dense, layers, norm, within
from transformer_lab.pretrained.vit import convolution, read_sizes, write_sizes

LEGACY_EOS = 2  # in files older than the setting: the end token is the highest id
TOWER = {
    "num_hidden_layers": ("layers", 12),
    "layer_norm_eps": ("norm_epsilon", 1e-5),
    "hidden_act": ("activation", "quick_gelu"),
    "attention_dropout": ("attention_dropout", 0.0),
}
IMAGE = TOWER | {
    "hidden_size": ("width", 768),
    "num_attention_heads": ("heads", 12),
    "intermediate_size": ("feed_forward_width", 3072),
    "num_channels": ("channels", 3),
}
TEXT = TOWER | {
    "vocab_size": ("vocab_size", 49408),
    "hidden_size": ("width", 512),
    "num_attention_heads": ("heads", 8),
    "intermediate_size": ("feed_forward_width", 2048),
    "max_position_embeddings": ("max_length", 77),
}
LAYER = {  # in both towers
    **within("attention", "self_attn", **ATTENTION),
    "attention_norm": "layer_norm1",
    **within("feed_forward", "mlp", up="fc1", down="fc2"),
    "feed_forward_norm": "layer_norm2",
}
# Keys that only training reads, and copies of the towers' settings in older files.
TRAINING = words("initializer_factor initializer_range logit_scale_init_value projection_dim")
COPIES = words("text_config_dict vision_config_dict")


def read_tower(
    settings: Settings, key: str, model_type: str, table: Fields, patch: int = 0
) -> tuple[Settings, Found]:
    """A tower's settings, which the caller reads to the end, and ours made from them; `patch` is
    the default patch size of an image tower, 0 for a text tower."""
    values = settings.raw(key, {})
    if not isinstance(values, dict):
        raise settings.error(key, "it must be an object")
    own = Settings(values, f"{settings.file}: {key}", settings.tensors)
    own.ignore([*IRRELEVANT, *GENERATION_KEYS, *TRAINING])
    own.fix(FIXED | {"model_type": (model_type,), "is_encoder_decoder": (False,)})
    found = read_table(own, table, ACTIVATIONS)
    found["head_dim"] = head_dim(own, table, found)
    found |= {"norm_place": "pre", "kernel_init": "normal", "dropout": 0.0}
    return own, found | (read_sizes(own, patch) if patch else {})


def write_towers(
    config: TwoTowersConfig, model_type: str, image: Fields, text: Fields
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The Hugging Face settings of the image tower and of the text tower."""
    types = f"{model_type}_vision_model", f"{model_type}_text_model"
    first = write_table(config.image, image, ACTIVATIONS, types[0]) | write_sizes(config.image)
    second = write_table(config.text, text, ACTIVATIONS, types[1])
    return {"model_type": types[0], **first}, {"model_type": types[1], **second}


def name_map(config: TwoTowersConfig, *more: Rule) -> NameMap:
    """The name map of both towers without the image tower's first norm and pooling."""
    text, image = "text_model.embeddings", "vision_model.embeddings"
    patches = Rule(
        "image/patch_embedding/kernel", f"{image}.patch_embedding.weight", convolution(config.image)
    )
    rules = [
        Rule("text/embedding/embedding", f"{text}.token_embedding.weight"),
        Rule("text/positions/embedding", f"{text}.position_embedding.weight"),
        *layers(config.text, "text/decoder", "text_model.encoder.layers", LAYER),
        *norm("text/decoder/final_norm", "text_model.final_layer_norm"),
        patches,
        Rule("image/positions/embedding", f"{image}.position_embedding.weight"),
        *layers(config.image, "image/encoder", "vision_model.encoder.layers", LAYER),
        *norm("image/encoder/final_norm", "vision_model.post_layernorm"),
        *more,
    ]
    unused = frozenset([f"{text}.position_ids", f"{image}.position_ids"])
    return NameMap(tuple(rules), unused=unused)


def idle(config: TwoTowersConfig) -> set[str]:
    """Settings that change no output: the initial scale, image settings and an unread end token."""
    return {"scale", "cnn", "image.classes", "image.max_length"} | (
        {"eos_id"} if config.text_pool != "eos" else set()
    )


def _read(settings: Settings, found: Found, tensors: Tensors) -> Found:
    vision, image = read_tower(settings, "vision_config", "clip_vision_model", IMAGE, 32)
    written, text = read_tower(settings, "text_config", "clip_text_model", TEXT)
    eos = written.values.get("eos_token_id", text["vocab_size"] - 1)
    for part in (vision, written):
        part.finish()
    if type(eos) is not int or not 0 <= eos < text["vocab_size"]:
        raise written.error("eos_token_id", "only one of the vocabulary is")
    return {
        "image": VisionConfig(head="none", patch_bias=False, embedding_norm=True, **image),
        "text": DecoderConfig(**text),
        "projection": settings.integer("projection_dim", 512),
        "text_pool": "highest" if eos == LEGACY_EOS else "eos",
        "eos_id": eos,
    }


def _write(config: TwoTowersConfig, pad: int) -> dict[str, Any]:
    image, text = write_towers(config, "clip", IMAGE, TEXT)
    width = {"projection_dim": config.common_width}
    text["eos_token_id"] = LEGACY_EOS if config.text_pool == "highest" else config.eos_id
    towers = {"vision_config": image | width, "text_config": text | width}
    return {**width, **towers, "logit_scale_init_value": config.scale}


def _names(config: TwoTowersConfig, pad: int) -> NameMap:
    return name_map(
        config,
        Rule("image/class_token", "vision_model.embeddings.class_embedding"),
        *norm("image/embedding_norm", "vision_model.pre_layrnorm"),
        *dense("image_projection", "visual_projection", bias=False),
        *dense("text_projection", "text_projection", bias=False),
        Rule("scale", "logit_scale"),
    )


FAMILY = Family(
    "clip",
    "two_towers",
    ("CLIPModel",),
    {},
    _names,
    ignored=TRAINING | COPIES | {"tie_word_embeddings"},
    read=_read,
    write=_write,
    idle=idle,
)
