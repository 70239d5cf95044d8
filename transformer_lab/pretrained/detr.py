"""DETR (Carion 2020), Hugging Face's `detr`, with its ResNet backbone."""

from typing import Any

from transformer_lab.models.cnn import EXPANSION, CNNConfig
from transformer_lab.models.detr import DETRConfig
from transformer_lab.pretrained.core import Family, Found, Settings, Tensors, label_names
from transformer_lab.pretrained.keys import words
from transformer_lab.pretrained.names import NameMap, Rule, Transform, dense, norm, within

FIELDS = {
    "d_model": ("width", 256),
    "encoder_layers": ("layers", 6),
    "encoder_attention_heads": ("heads", 8),
    "encoder_ffn_dim": ("feed_forward_width", 2048),
    "decoder_layers": ("decoder_layers", 6),
    "decoder_attention_heads": ("decoder_heads", 8),
    "decoder_ffn_dim": ("decoder_feed_forward_width", 2048),
    "activation_function": ("activation", "relu"),
    "num_queries": ("queries", 100),
    "dropout": ("dropout", 0.1),
    "attention_dropout": ("attention_dropout", 0.0),
    "activation_dropout": ("feed_forward_dropout", 0.0),
    "init_std": ("init_std", 0.02),
}
NET = {"layer_type": "block", "depths": "stages", "num_channels": "channels"}
# Keys of the ResNet that do not change its feature map, or are fixed here.
IGNORED = words("""
    architectures chunk_size_feed_forward dtype id2label is_encoder_decoder label2id model_type
    num_labels out_features out_indices output_attentions output_hidden_states problem_type
    return_dict stage_names transformers_version _name_or_path embedding_size hidden_sizes
""")
ONE_VALUE = {
    "hidden_act": "relu", "downsample_in_first_stage": False, "downsample_in_bottleneck": False,
    "model_type": "resnet",
}  # fmt: skip
KERNEL = Transform(lambda x: x.transpose(3, 2, 0, 1), lambda x: [x.transpose(2, 3, 1, 0)])
POINT = Transform(lambda x: x.T[..., None, None], lambda x: [x[..., 0, 0].T])
ATTENTION = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "out_proj"}


def _read(settings: Settings, found: Found, tensors: Tensors) -> Found:
    net = settings.raw("backbone_config")
    wrong = lambda why: settings.error("backbone_config", why)  # noqa: E731
    if not isinstance(net, dict) or net.get("model_type") != "resnet":
        raise wrong("only a residual net of theirs (model_type resnet) is")
    for key, value in ONE_VALUE.items():
        if net.get(key, value) != value:
            raise wrong(f"its {key} must be {value}")
    if left := net.keys() - IGNORED - NET.keys() - ONE_VALUE.keys():
        raise wrong(f"its {', '.join(sorted(left))} may change the numbers")
    block, depths = net.get("layer_type", "bottleneck"), net.get("depths", [3, 4, 6, 3])
    sizes = net.get("hidden_sizes", [256, 512, 1024, 2048])
    numbers = lambda x: isinstance(x, list) and x and all(type(n) is int and n > 0 for n in x)  # noqa: E731
    if block not in EXPANSION or not numbers(depths) or not numbers(sizes):
        raise wrong("layer_type must be basic or bottleneck, depths and hidden_sizes lists")
    if len(depths) != len(sizes) or sum(depths) > len(tensors) or sizes[0] % EXPANSION[block]:
        raise wrong("hidden_sizes must be as many as depths, bottlenecks' multiples of 4")
    width, stem = sizes[0] // EXPANSION[block], net.get("embedding_size", 64)
    if sizes != [sizes[0] << i for i in range(len(sizes))] or type(stem) is not int or stem < 1:
        raise wrong("each of hidden_sizes must be twice the one before")
    if net.get("out_indices") not in (None, [len(sizes)], (len(sizes),)):
        raise wrong("the last stage's map alone is read")
    settings.fix({"num_channels": (net.get("num_channels", 3),), "dilation": (False, None)})
    settings.fix({"use_timm_backbone": (False,), "auxiliary_loss": (False,)})
    own = CNNConfig(
        block=block, stages=tuple(depths), width=width, head="none",
        stem_width=0 if stem == width else stem, channels=net.get("num_channels", 3),
    )  # fmt: skip
    kinds = {"sine": "sine", "learned": "learned"}
    positions = settings.choice("position_embedding_type", "sine", kinds)
    return {
        "backbone": own, "grid_positions": positions, "labels": len(label_names(settings)),
        "head_dim": found["width"] // max(found["heads"], 1),
    }  # fmt: skip


def _write(config: DETRConfig, pad: int) -> dict[str, Any]:
    net = config.backbone
    sizes = [EXPANSION[net.block] * net.width << i for i in range(len(net.stages))]
    return {
        "use_timm_backbone": False,
        "is_encoder_decoder": True,
        "position_embedding_type": config.grid_positions,
        "num_channels": net.channels,
        "id2label": {str(i): f"LABEL_{i}" for i in range(config.labels)},
        "label2id": {f"LABEL_{i}": i for i in range(config.labels)},
        "backbone_config": {
            "model_type": "resnet",
            "embedding_size": net.stem_width or net.width,
            "hidden_sizes": sizes,
            "depths": list(net.stages),
            "layer_type": net.block,
            "num_channels": net.channels,
            "out_features": [f"stage{len(sizes)}"],
        },
    }


def _convolution(ours: str, theirs: str) -> list[Rule]:
    """Rules of a convolution and its norm, whose running moments we keep as statistics."""
    place, moments = f"{ours}/norm", f"batch_stats/{ours}/norm"
    return [
        Rule(f"{ours}/conv/kernel", f"{theirs}.convolution.weight", KERNEL),
        *norm(place, f"{theirs}.normalization"),
        Rule(f"{moments}/mean", f"{theirs}.normalization.running_mean"),
        Rule(f"{moments}/var", f"{theirs}.normalization.running_var"),
    ]


def _names(config: DETRConfig, pad: int) -> NameMap:
    net, prefix = config.backbone, "model.backbone.conv_encoder.model"
    rules = _convolution("backbone/stem", f"{prefix}.embedder.embedder")
    inner, unused = config.backbone.stem_width or net.width, set()
    number = 0
    for stage, blocks in enumerate(net.stages):
        out = EXPANSION[net.block] * net.width << stage
        for i in range(blocks):
            ours = f"backbone/layer_{number}"
            theirs = f"{prefix}.encoder.stages.{stage}.layers.{i}"
            for part in range(3 if net.block == "bottleneck" else 2):
                rules += _convolution(f"{ours}/part_{part}", f"{theirs}.layer.{part}")
            if inner != out or (stage and not i):
                rules += _convolution(f"{ours}/shortcut", f"{theirs}.shortcut")
            inner, number = out, number + 1
    rules += [
        Rule("projection/kernel", "model.input_projection.weight", POINT),
        Rule("projection/bias", "model.input_projection.bias"),
        Rule("query_places", "model.query_position_embeddings.weight"),
        *norm("decoder_norm", "model.decoder.layernorm"),
        *dense("classifier", "class_labels_classifier"),
    ]
    for i in range(3):
        rules += dense(f"box_{i}", f"bbox_predictor.layers.{i}")
    if config.grid_positions == "learned":
        table = "model.position_embedding"
        rules.append(Rule("row_places", f"{table}.row_embeddings.weight"))
        rules.append(Rule("column_places", f"{table}.column_embeddings.weight"))
    for side in ("encoder", "decoder"):
        ours, theirs = f"{side}_{{i}}", f"model.{side}.layers.{{i}}"
        parts = within("attention", "self_attn", **ATTENTION)
        norms = {"attention_norm": "self_attn_layer_norm", "feed_forward_norm": "final_layer_norm"}
        if side == "decoder":
            parts |= within("cross_attention", "encoder_attn", **ATTENTION)
            norms["cross_attention_norm"] = "encoder_attn_layer_norm"
        for part, name in (parts | {"feed_forward/up": "fc1", "feed_forward/down": "fc2"}).items():
            rules += dense(f"{ours}/{part}", f"{theirs}.{name}")
        for part, name in norms.items():
            rules += norm(f"{ours}/{part}", f"{theirs}.{name}")
    return NameMap(tuple(rules), unused=frozenset(unused))


FAMILY = Family(
    "detr",
    "detr",
    ("DetrForObjectDetection",),
    FIELDS,
    _names,
    constants={"kernel_init": "xavier_uniform"},
    # Settings of losses and masks, which change no output in evaluation.
    ignored=words("""
        bbox_cost bbox_loss_coefficient class_cost dice_loss_coefficient eos_coefficient giou_cost
        giou_loss_coefficient init_xavier_std mask_loss_coefficient backbone backbone_kwargs
        use_pretrained_backbone
    """),
    fixed={"is_encoder_decoder": (True,), "scale_embedding": (False,)},
    read=_read,
    write=_write,
    idle=lambda config: {"max_length", "frozen_norms", "backbone"},
)
