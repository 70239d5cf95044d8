"""CLIP (Radford 2021), as in Hugging Face's `clip`; what SigLIP shares with it."""

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict

from transformer_lab.errors import LabError
from transformer_lab.models import parameter_shapes
from transformer_lab.models.decoder import DecoderConfig
from transformer_lab.models.two_towers import TwoTowersConfig, build
from transformer_lab.models.vision import VisionConfig
from transformer_lab.pretrained.decoder_settings import (
    FIXED,
    IRRELEVANT,
    head_dim,
    read_table,
    refuse_lost,
    write_fields,
)
from transformer_lab.pretrained.generation import GENERATION_KEYS, NO_TOKEN
from transformer_lab.pretrained.keys import Settings, words
from transformer_lab.pretrained.names import NameMap, Rule, dense, norm
from transformer_lab.pretrained.running import Output, token_ids
from transformer_lab.pretrained.vit import convolution, read_sizes, write_sizes

KIND, PAD = "two_towers", NO_TOKEN
INPUTS = ("input_ids", "attention_mask", "pixel_values")
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
LAYER = {  # ours -> theirs, in both towers
    "attention/query": "self_attn.q_proj",
    "attention/key": "self_attn.k_proj",
    "attention/value": "self_attn.v_proj",
    "attention/out": "self_attn.out_proj",
    "attention_norm": "layer_norm1",
    "feed_forward/up": "mlp.fc1",
    "feed_forward/down": "mlp.fc2",
    "feed_forward_norm": "layer_norm2",
}
# Copies of the towers' settings that older files have, and what only training reads.
COPIES = ("text_config_dict", "vision_config_dict")
TRAINING = words("initializer_factor initializer_range logit_scale_init_value projection_dim")


def tower(
    settings: Settings, key: str, model_type: str, fields: Mapping[str, tuple[str, Any]], patch: int
) -> tuple[Settings, dict[str, Any]]:
    """A tower's own settings, to be finished by the caller, and our fields of it."""
    values = settings.raw(key, {})
    if not isinstance(values, dict):
        raise settings.error(key, "it must be an object")
    own = Settings(values, f"{settings.file}: {key}", settings.tensors)
    own.ignore([*IRRELEVANT, *GENERATION_KEYS, *TRAINING])
    own.fix(FIXED | {"model_type": (model_type,)})
    found = read_table(own, fields)
    found["head_dim"] = head_dim(own, "num_attention_heads", found["width"], found["heads"])
    found |= {"norm_place": "pre", "kernel_init": "normal", "dropout": 0.0}
    return own, found | (read_sizes(own, patch) if patch else {})


def _read(settings: Settings, tensors: Iterable[str]) -> TwoTowersConfig:
    settings.ignore([*IRRELEVANT, *GENERATION_KEYS, *TRAINING, *COPIES])
    settings.fix(FIXED | {"model_type": ("clip",), "tie_word_embeddings": (True, False)})
    known = settings.values.get("architectures")
    if known not in (None, ["CLIPModel"]):
        raise settings.error("architectures", "only CLIPModel is")
    vision, image = tower(settings, "vision_config", "clip_vision_model", IMAGE, 32)
    written, text = tower(settings, "text_config", "clip_text_model", TEXT, 0)
    eos = written.values.get("eos_token_id", text["vocab_size"] - 1)
    for part in (vision, written, settings):
        part.finish()
    if type(eos) is not int or not 0 <= eos < text["vocab_size"]:
        raise written.error("eos_token_id", "only one of the vocabulary is")
    return TwoTowersConfig(
        image=VisionConfig(head="none", patch_bias=False, embedding_norm=True, **image),
        text=DecoderConfig(**text),
        projection=settings.integer("projection_dim", 512),
        text_pool="highest" if eos == LEGACY_EOS else "eos",
        eos_id=eos,
    )


def _write(config: TwoTowersConfig) -> dict[str, Any]:
    image = write_fields(config.image, "clip_vision_model", "", IMAGE) | write_sizes(config.image)
    text = write_fields(config.text, "clip_text_model", "", TEXT)
    text["eos_token_id"] = LEGACY_EOS if config.text_pool == "highest" else config.eos_id
    return {
        "model_type": "clip",
        "architectures": ["CLIPModel"],
        "dtype": "float32",
        "projection_dim": config.common_width,
        "vision_config": image | {"projection_dim": config.common_width},
        "text_config": text | {"projection_dim": config.common_width},
        "logit_scale_init_value": config.scale,
    }


def layer_rules(ours: str, theirs: str) -> list[Rule]:
    """Of a tower's stack."""
    rules = []
    for part, name in LAYER.items():
        rule = norm if part.endswith("_norm") else dense
        rules += rule(f"{ours}/layer_{{i}}/{part}", f"{theirs}.encoder.layers.{{i}}.{name}")
    return rules


def text_rules() -> list[Rule]:
    """Of the text tower."""
    tables = "text_model.embeddings"
    return [
        Rule("text/embedding/embedding", f"{tables}.token_embedding.weight"),
        Rule("text/positions/embedding", f"{tables}.position_embedding.weight"),
        *layer_rules("text/decoder", "text_model"),
        *norm("text/decoder/final_norm", "text_model.final_layer_norm"),
    ]


def image_rules(config: VisionConfig) -> list[Rule]:
    """Of the image tower, but for its first norm and its pooling."""
    tables = "vision_model.embeddings"
    patches = Rule(
        "image/patch_embedding/kernel", f"{tables}.patch_embedding.weight", convolution(config)
    )
    return [
        patches,
        Rule("image/positions/embedding", f"{tables}.position_embedding.weight"),
        *layer_rules("image/encoder", "vision_model"),
        *norm("image/encoder/final_norm", "vision_model.post_layernorm"),
    ]


def name_map(rules: Iterable[Rule]) -> NameMap:
    """Buffers of old files hold nothing."""
    places = {f"{tower}_model.embeddings.position_ids" for tower in ("text", "vision")}
    return NameMap(tuple(rules), unused=frozenset(places))


def _names(config: TwoTowersConfig) -> NameMap:
    return name_map(
        [
            *text_rules(),
            *image_rules(config.image),
            Rule("image/class_token", "vision_model.embeddings.class_embedding"),
            *norm("image/embedding_norm", "vision_model.pre_layrnorm"),
            *dense("image_projection", "visual_projection", bias=False),
            *dense("text_projection", "text_projection", bias=False),
            Rule("scale", "logit_scale"),
        ]
    )


def both_ways(
    model_type: str,
    read: Callable[[Settings, Iterable[str]], TwoTowersConfig],
    write: Callable[[TwoTowersConfig], dict[str, Any]],
    names: Callable[[TwoTowersConfig], NameMap],
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """A family's `reading` and `writing`."""

    def reading(
        settings: Settings, tensors: Mapping[str, np.ndarray]
    ) -> tuple[TwoTowersConfig, NameMap]:
        """The model that their settings describe, and where its weights stand."""
        config = read(settings, tensors)
        return config, names(config)

    def writing(config: TwoTowersConfig, pad: int = NO_TOKEN) -> tuple[dict[str, Any], NameMap]:
        """Their settings of our model, and where the weights go."""
        written = write(config)
        back = read(Settings(written, model_type), ())
        refuse_lost(config.image, back.image, model_type, {"classes", "max_length"})
        refuse_lost(config.text, back.text, model_type, {"vocab_multiple"})
        for name in ("image_kind", "projection", "text_bias", "text_pool", "largest_scale", "bias"):
            value, needed = getattr(config, name), getattr(back, name)
            starts = name == "bias" and None not in (value, needed)
            if value != needed and not starts:
                raise LabError(
                    f"model.{name} = {value!r} has no place in a {model_type} model: "
                    f"it needs {needed!r}"
                )
        return written, names(config)

    return reading, writing


@cache
def shapes(config: TwoTowersConfig) -> dict[str, tuple[int, ...]]:
    """The shape of each parameter by its path; nothing is computed."""
    flat = flatten_dict(parameter_shapes(KIND, config), sep="/")
    return {path: leaf.shape for path, leaf in flat.items()}


def outputs(
    config: TwoTowersConfig, params: Any, inputs: Mapping[str, np.ndarray]
) -> dict[str, Output]:
    """Vectors of images [batch, channels, height, width] and of texts, and their logits."""
    ids = token_ids(inputs, "input_ids", config.vocab_size)
    images = inputs.get("pixel_values")
    if images is None or images.ndim != 4:
        raise LabError("the inputs have no pixel_values [batch, channels, height, width]")
    images = jnp.asarray(images, jnp.float32).transpose(0, 2, 3, 1)
    mask = jnp.asarray(inputs.get("attention_mask", np.ones(ids.shape))) != 0
    if mask.shape != ids.shape:
        raise LabError(f"attention_mask has the shape {mask.shape}, input_ids {ids.shape}")
    out = jax.device_get(_compiled(config)({"params": params}, images, ids, None, mask))
    per_image = out["scale"] * out["image"] @ out["text"].T + out["bias"]
    return {
        "image_embeds": (out["image"], None),
        "text_embeds": (out["text"], None),
        "logits_per_image": (per_image, None),
        "logits_per_text": (per_image.T, None),
    }


@cache
def _compiled(config: TwoTowersConfig) -> Callable[..., Any]:
    return jax.jit(build(config).apply)


reading, writing = both_ways("clip", _read, _write, _names)
