"""ViT (Dosovitskiy 2021), Hugging Face's `vit`, and what DeiT shares with it."""

from typing import Any

from transformer_lab.models.vision import VisionConfig
from transformer_lab.pretrained.core import (
    Family,
    Found,
    Settings,
    Tensors,
    activation_name,
    label_names,
    label_settings,
)
from transformer_lab.pretrained.encoders import BODY, POOLER, SIZES
from transformer_lab.pretrained.keys import ACTIVATIONS
from transformer_lab.pretrained.names import (
    ROW,
    NameMap,
    Rule,
    Transform,
    dense,
    layers,
    norm,
    within,
)

FIELDS = {
    **SIZES,
    "hidden_act": ("activation", "gelu"),
    "layer_norm_eps": ("norm_epsilon", 1e-12),
    "num_channels": ("channels", 3),
    "qkv_bias": ("qkv_bias", True),
    "hidden_dropout_prob": ("dropout", 0.0),
    "attention_probs_dropout_prob": ("attention_dropout", 0.0),
    "initializer_range": ("init_std", 0.02),
}
IMAGE_SIZES = {"image_size": 224, "patch_size": 16}
LAYER = {
    **within("attention", "attention.attention", query="query", key="key", value="value"),
    "attention/out": "attention.output.dense",
    "attention_norm": "layernorm_before",
    "feed_forward/up": "intermediate.dense",
    "feed_forward/down": "output.dense",
    "feed_forward_norm": "layernorm_after",
}
TOKEN = Transform(lambda x: x[None, None], lambda x: [x[0, 0]])


def family(model_type: str, title: str) -> Family:
    """The record of ViT, or of DeiT, which has a second token and perhaps a head for it."""
    deit = model_type == "deit"
    ends = {"none": "Model", "classes": "ForImageClassification"}
    ends |= {"heads": "ForImageClassificationWithTeacher"} if deit else {}

    def read(settings: Settings, found: Found, tensors: Tensors) -> Found:
        bare = {name.removeprefix(f"{model_type}.") for name in tensors}
        own, teacher = read_sizes(settings), "cls_classifier.weight" in bare
        pooler = settings.integer("pooler_output_size", None) or found["width"]
        own["pre_logits"] = pooler if POOLER in bare else 0
        own["pre_logits_activation"] = settings.choice("pooler_act", "tanh", ACTIVATIONS)
        if deit:
            own["distillation"] = "heads" if teacher else "token"
        own["head"] = "classes" if teacher or "classifier.weight" in bare else "none"
        if own["head"] == "classes":
            own["classes"] = len(label_names(settings))
        return own

    def write(config: VisionConfig, pad: int) -> dict[str, Any]:
        head = "heads" if config.distillation == "heads" else config.head
        if head not in ends:
            head = config.head
        act = config.pre_logits_activation, ACTIVATIONS, "pre_logits_activation", model_type
        written = write_sizes(config) | {
            "architectures": [title + ends[head]],
            "pooler_act": activation_name(*act),
            "pooler_output_size": config.pre_logits or config.width,
        }
        return written | label_settings(config.classes if config.head == "classes" else 0)

    return Family(
        model_type,
        "vision",
        tuple(title + end for end in ends.values()),
        FIELDS,
        lambda config, pad: _names(config, model_type),
        constants={"kernel_init": "normal"},
        ignored=("encoder_stride",),
        read=read,
        write=write,
        idle=lambda config: {"classes"} if config.head == "none" else set(),
    )


def read_sizes(settings: Settings, patch: int = 16) -> dict[str, tuple[int, int]]:
    """Height and width of images and of patches; files give two numbers, or one for both."""
    found = {}
    for name, default in (IMAGE_SIZES | {"patch_size": patch}).items():
        value = settings.raw(name, default)
        pair = value if isinstance(value, list) else [value] * 2
        if len(pair) != 2 or not all(type(size) is int and 0 < size < 2**16 for size in pair):
            raise settings.error(name, "it must be a whole number, or height and width")
        found[name] = tuple(pair)
    return found


def write_sizes(config: Any) -> dict[str, int | list[int]]:
    """Hugging Face's settings of the image and patch sizes, one number for a square."""
    pairs = {name: getattr(config, name) for name in IMAGE_SIZES}
    return {name: size[0] if size[0] == size[1] else list(size) for name, size in pairs.items()}


def convolution(config: Any) -> Transform:
    """Converts our patch kernel [h w c, d] to the kernel [d, c, h, w] of a convolution."""
    patch = (*config.patch_size, config.channels)
    return Transform(
        lambda x: x.reshape(*patch, -1).transpose(3, 2, 0, 1),
        lambda x: [x.transpose(2, 3, 1, 0).reshape(-1, len(x))],
    )


def _names(config: VisionConfig, model_type: str) -> NameMap:
    prefix = "" if config.head == "none" else f"{model_type}."
    tables = f"{prefix}embeddings."
    patches = f"{tables}patch_embeddings.projection"
    rules = [
        Rule("patch_embedding/kernel", f"{patches}.weight", convolution(config)),
        Rule("patch_embedding/bias", f"{patches}.bias"),
        Rule("class_token", f"{tables}cls_token", TOKEN),
        Rule("positions/embedding", f"{tables}position_embeddings", ROW),
        *norm("encoder/final_norm", f"{prefix}layernorm"),
        *layers(config, "encoder", f"{prefix}encoder.layer", LAYER),
    ]
    if config.distillation != "none":
        rules.append(Rule("distillation_token", f"{tables}distillation_token", TOKEN))
    if config.pre_logits and config.head == "none":
        rules += dense("pre_logits", f"{prefix}pooler.dense")
    if config.distillation == "heads":
        rules += dense("classifier", "cls_classifier")
        rules += dense("distilled_classifier", "distillation_classifier")
    elif config.head == "classes":
        rules += dense("classifier", "classifier")

    def rename(name: str) -> str:
        bare = name.removeprefix(f"{model_type}.")
        return prefix + bare if BODY.match(bare) or bare.startswith("layernorm.") else bare

    return NameMap(tuple(rules), unused=frozenset([f"{tables}mask_token"]), rename=rename)


FAMILY = family("vit", "ViT")
