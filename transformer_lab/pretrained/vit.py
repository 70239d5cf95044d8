"""ViT (Dosovitskiy 2021), as in Hugging Face's `vit`; what DeiT shares with it."""

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict

from transformer_lab.errors import LabError
from transformer_lab.models import parameter_shapes
from transformer_lab.models.vision import VisionConfig, build
from transformer_lab.pretrained.decoder_settings import (
    FIXED,
    IRRELEVANT,
    head_dim,
    read_table,
    refuse_lost,
    write_fields,
)
from transformer_lab.pretrained.encoder_settings import BODY, POOLER, label_names, label_settings
from transformer_lab.pretrained.generation import GENERATION_KEYS, NO_TOKEN
from transformer_lab.pretrained.keys import ACTIVATIONS, Settings
from transformer_lab.pretrained.names import NameMap, Rule, Transform, dense, norm
from transformer_lab.pretrained.running import Output

KIND, PAD = "vision", NO_TOKEN
INPUTS = ("pixel_values",)
FIELDS = {
    "hidden_size": ("width", 768),
    "num_hidden_layers": ("layers", 12),
    "num_attention_heads": ("heads", 12),
    "intermediate_size": ("feed_forward_width", 3072),
    "hidden_act": ("activation", "gelu"),
    "layer_norm_eps": ("norm_epsilon", 1e-12),
    "num_channels": ("channels", 3),
    "qkv_bias": ("qkv_bias", True),
    "hidden_dropout_prob": ("dropout", 0.0),
    "attention_probs_dropout_prob": ("attention_dropout", 0.0),
    "initializer_range": ("init_std", 0.02),
}
SIZES = {"image_size": 224, "patch_size": 16}
LAYER = {  # ours -> theirs
    "attention/query": "attention.attention.query",
    "attention/key": "attention.attention.key",
    "attention/value": "attention.attention.value",
    "attention/out": "attention.output.dense",
    "attention_norm": "layernorm_before",
    "feed_forward/up": "intermediate.dense",
    "feed_forward/down": "output.dense",
    "feed_forward_norm": "layernorm_after",
}
ARCHITECTURES = {"Model": "none", "ForImageClassification": "classes"}
TEACHER = "ForImageClassificationWithTeacher"


def both_ways(model_type: str, title: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """`reading` and `writing` of ViT, or of DeiT, which has a second token, perhaps with a head."""
    deit = model_type == "deit"

    def whole(settings: Settings, tensors: Iterable[str]) -> VisionConfig:
        bare = {name.removeprefix(f"{model_type}.") for name in tensors}
        settings.ignore([*IRRELEVANT, *GENERATION_KEYS, "encoder_stride"])
        settings.fix(FIXED | {"model_type": (model_type,)})
        known = [title + end for end in (*ARCHITECTURES, *[TEACHER] * deit)]
        named = settings.values.get("architectures")
        if named and (not isinstance(named, list) or named[0] not in known):
            raise settings.error("architectures", f"only {', '.join(known)} are")
        found = read_table(settings, FIELDS) | read_sizes(settings)
        found |= {"head_dim": head_dim(settings, "num_attention_heads", found["width"],
                                       found["heads"])}  # fmt: skip
        pooler = settings.integer("pooler_output_size", None) or found["width"]
        found["pre_logits"] = pooler if POOLER in bare else 0
        found["pre_logits_activation"] = settings.choice("pooler_act", "tanh", ACTIVATIONS)
        teacher = "cls_classifier.weight" in bare
        if deit:
            found["distillation"] = "heads" if teacher else "token"
        found["head"] = "classes" if teacher or "classifier.weight" in bare else "none"
        if found["head"] == "classes":
            found["classes"] = len(label_names(settings.values, settings.file))
        settings.finish()
        return VisionConfig(kernel_init="normal", **found)

    def reading(
        settings: Settings, tensors: Mapping[str, np.ndarray]
    ) -> tuple[VisionConfig, NameMap]:
        """The model that their settings describe, and where its weights stand."""
        config = whole(settings, tensors)
        return config, _names(config, model_type)

    def writing(config: VisionConfig, pad: int = NO_TOKEN) -> tuple[dict[str, Any], NameMap]:
        """Their settings of our model, and where the weights go."""
        ends = {head: end for end, head in ARCHITECTURES.items()}
        end = TEACHER if config.distillation == "heads" else ends[config.head]
        written = write_fields(config, model_type, title + end, FIELDS)
        written |= write_sizes(config)
        theirs = {ours: name for name, ours in reversed(ACTIVATIONS.items())}
        written["pooler_act"] = theirs[config.pre_logits_activation]
        written["pooler_output_size"] = config.pre_logits or config.width
        if config.head == "classes":
            written |= label_settings(f"LABEL_{i}" for i in range(config.classes))
        heads = {"Model": [], TEACHER: ["cls_classifier.weight"]}.get(end, ["classifier.weight"])
        tensors = heads + [POOLER] * (config.pre_logits > 0 and config.head == "none")
        back = whole(Settings(written, model_type), tensors)
        refuse_lost(config, back, model_type, {"classes"} if config.head == "none" else ())
        return written, _names(config, model_type)

    return reading, writing


def read_sizes(settings: Settings, patch: int = 16) -> dict[str, tuple[int, int]]:
    """A number, or height and width."""
    found = {}
    for name, default in (SIZES | {"patch_size": patch}).items():
        value = settings.raw(name, default)
        pair = value if isinstance(value, list) else [value] * 2
        if len(pair) != 2 or not all(type(size) is int and 0 < size < 2**16 for size in pair):
            raise settings.error(name, "it must be a whole number, or height and width")
        found[name] = tuple(pair)
    return found


def write_sizes(config: VisionConfig) -> dict[str, int | list[int]]:
    """The same to theirs."""
    pairs = {name: getattr(config, name) for name in SIZES}
    return {name: size[0] if size[0] == size[1] else list(size) for name, size in pairs.items()}


def convolution(config: VisionConfig) -> Transform:
    """The kernel of patches [h w c, d] of ours as their convolution's [d, c, h, w]."""
    patch = (*config.patch_size, config.channels)
    return Transform(
        lambda x: x.reshape(*patch, -1).transpose(3, 2, 0, 1),
        lambda x: [x.transpose(2, 3, 1, 0).reshape(-1, len(x))],
    )


def _names(config: VisionConfig, model_type: str) -> NameMap:
    prefix = "" if config.head == "none" else f"{model_type}."
    tables = f"{prefix}embeddings."
    lead, first = Transform(lambda x: x[None], lambda x: [x[0]]), "patch_embeddings.projection"
    token = Transform(lambda x: x[None, None], lambda x: [x[0, 0]])
    rules = [
        Rule("patch_embedding/kernel", f"{tables}{first}.weight", convolution(config)),
        Rule("patch_embedding/bias", f"{tables}{first}.bias"),
        Rule("class_token", f"{tables}cls_token", token),
        Rule("positions/embedding", f"{tables}position_embeddings", lead),
        *norm("encoder/final_norm", f"{prefix}layernorm"),
    ]
    for ours, theirs in LAYER.items():
        names = "encoder/layer_{i}/" + ours, f"{prefix}encoder.layer." + "{i}." + theirs
        projection = ours.split("/")[-1] in ("query", "key", "value")
        rules += norm(*names) if "norm" in ours else dense(
            *names, bias=config.qkv_bias or not projection
        )  # fmt: skip
    if config.distillation != "none":
        rules.append(Rule("distillation_token", f"{tables}distillation_token", token))
    if config.pre_logits:
        rules += dense("pre_logits", f"{prefix}pooler.dense")
    if config.distillation == "heads":
        rules += dense("classifier", "cls_classifier")
        rules += dense("distilled_classifier", "distillation_classifier")
    elif config.head == "classes":
        rules += dense("classifier", "classifier")
    rename = lambda name: _rename(name.removeprefix(f"{model_type}."), prefix)  # noqa: E731
    return NameMap(tuple(rules), unused=frozenset([f"{tables}mask_token"]), rename=rename)


def _rename(name: str, prefix: str) -> str:
    return prefix + name if BODY.match(name) or name.startswith("layernorm.") else name


@cache
def shapes(config: VisionConfig) -> dict[str, tuple[int, ...]]:
    """The shape of each parameter by its path; nothing is computed."""
    flat = flatten_dict(parameter_shapes(KIND, config), sep="/")
    return {path: leaf.shape for path, leaf in flat.items()}


def outputs(
    config: VisionConfig, params: Any, inputs: Mapping[str, np.ndarray]
) -> dict[str, Output]:
    """States, the first layer's weights, and what pooler and heads make of them; images are
    [batch, channels, height, width]."""
    images = inputs.get("pixel_values")
    if images is None or images.ndim != 4:
        raise LabError("the inputs have no pixel_values [batch, channels, height, width]")
    run = _compiled(config)
    out, weights = run({"params": params}, jnp.asarray(images, jnp.float32).transpose(0, 2, 3, 1))
    found = {"last_hidden_state": out["hidden"], "attention_layer0": weights}
    if config.pre_logits:
        found["pooler_output"] = out["features"]
    if "logits" in out:
        found["logits"] = out["logits"]
    if "distilled" in out:
        found["distillation_logits"] = out["distilled"]
        found["cls_logits"] = 2 * out["logits"] - out["distilled"]
    return {name: (np.asarray(value), None) for name, value in found.items()}


@cache
def _compiled(config: VisionConfig) -> Callable[..., Any]:
    model = build(config)

    @jax.jit
    def run(variables, images):
        out, captured = model.apply(variables, images, mutable=["intermediates"])
        return out, captured["intermediates"]["encoder"]["layer_0"]["attention"]["weights"][0]

    return run


reading, writing = both_ways("vit", "ViT")
