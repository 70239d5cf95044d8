"""Sizes of image models: Vision Transformers, DeiT, Swin, residual nets and DETR."""

from dataclasses import replace

from transformer_lab.layers.block_config import ExpertsConfig
from transformer_lab.models.cnn import CNNConfig
from transformer_lab.models.detr import DETRConfig
from transformer_lab.models.presets.row import Preset, presets
from transformer_lab.models.swin import SwinConfig
from transformer_lab.models.vision import VisionConfig

_SIZES = ("layers", "width", "heads", "head_dim", "feed_forward_width")
_MAP = "the stated count has no room for the attention pooling of section 3.2: none here"


def _vits(source: str, rows: dict[str, tuple], **common: str) -> dict[str, Preset]:
    """Presets of ViTs from lines of five sizes, patch side and parameters; images are 224 x 224."""
    rows = {name: (*sizes, (patch, patch), n) for name, (*sizes, patch, n) in rows.items()}
    names = *_SIZES, "patch_size"
    return presets("vision", VisionConfig(), names, source, rows, **common)


def _sparse(published: dict[str, float]) -> dict[str, Preset]:
    """V-MoE: ViTs of the sizes in `_SPARSE`, with 32 experts in some of their layers."""
    found = {}
    for name, count in published.items():
        size, _, where = name.removeprefix("v_moe_").partition("_")
        sizes, patch = _SPARSE[size]
        dense, sparse = "attention/dense", "attention/experts"
        kinds = (dense, sparse)
        if where != "every2":  # every second one of the last layers, the last included
            last = 2 * int(where.removeprefix("last"))
            kinds = (dense,) * (sizes[0] - last) + kinds * (last // 2)
        experts = ExpertsConfig(32, top_k=2, renormalize=False, capacity_factor=1.05)
        config = VisionConfig(
            **dict(zip(_SIZES, sizes, strict=True)), patch_size=(patch, patch), classes=18_291,
            layer_kinds=kinds, experts=experts,
        )  # fmt: skip
        source = "Riquelme 2021, appendix; counts from memory"
        found[name] = Preset("vision", config, count, source, "with a head of 18,291 classes")
    return found


_SPARSE = {
    "b16": ((12, 768, 12, 64, 3072), 16),
    "l16": ((24, 1024, 16, 64, 4096), 16),
    "h14": ((32, 1280, 16, 80, 5120), 14),
}


def _distilled(presets: dict[str, Preset], published: tuple[int, ...]) -> dict[str, Preset]:
    """The same models with a distillation token and its own head."""
    return {
        f"{name}_distilled": replace(
            preset,
            config=replace(preset.config, distillation="heads"),
            published=count,
            source="Touvron 2021, table 1; count of the released weights",
        )
        for (name, preset), count in zip(presets.items(), published, strict=True)
    }


# fmt: off
_DEIT = _vits("Touvron 2021, table 1; count of the released weights", {
    "deit_ti16": (12, 192, 3, 64, 768, 16, 5_717_416),
    "deit_s16": (12, 384, 6, 64, 1536, 16, 22_050_664),
    "deit_b16": (12, 768, 12, 64, 3072, 16, 86_567_656),
})
VISION = {
    **_vits("Steiner 2021, table 2; count of the released weights", {
        "vit_ti16": (12, 192, 3, 64, 768, 16, 5.72e6),
        "vit_s32": (12, 384, 6, 64, 1536, 32, 22.9e6),
        "vit_s16": (12, 384, 6, 64, 1536, 16, 22.1e6),
    }),
    **_vits("Dosovitskiy 2021, table 1; count of the released weights", {
        "vit_b32": (12, 768, 12, 64, 3072, 32, 88.2e6),
        "vit_l32": (24, 1024, 16, 64, 4096, 32, 306.5e6),
    }),
    **_vits("Dosovitskiy 2021, table 1", {
        "vit_b16": (12, 768, 12, 64, 3072, 16, 86e6),
        "vit_l16": (24, 1024, 16, 64, 4096, 16, 307e6),
        "vit_h14": (32, 1280, 16, 80, 5120, 14, 632e6),
    }),
    **_vits("Zhai 2022, table 2", {
        "vit_g14": (40, 1408, 16, 88, 6144, 14, 1011e6),
        "vit_gg14": (48, 1664, 16, 104, 8192, 14, 1843e6),
    }, note=_MAP),
    **presets(
        "vision", VisionConfig(image_size=(518, 518), patch_size=(14, 14), layer_scale=1.0,
                               head="none"),
        (*_SIZES, "activation"), "Oquab 2023, appendix; counts from memory", {
            "dinov2_s14": (12, 384, 6, 64, 1536, "gelu", 22.1e6),
            "dinov2_b14": (12, 768, 12, 64, 3072, "gelu", 86.6e6),
            "dinov2_l14": (24, 1024, 16, 64, 4096, "gelu", 304e6),
            "dinov2_g14": (40, 1536, 24, 64, 4096, "swiglu", 1136e6),
        },
    ),
    **_DEIT,
    **_distilled(_DEIT, (5_910_800, 22_436_432, 87_338_192)),
    **_sparse({
        "v_moe_b16_every2": 979e6,
        "v_moe_l16_last2": 843e6,
        "v_moe_l16_every2": 3.4e9,
        "v_moe_h14_last5": 2.7e9,
        "v_moe_h14_every2": 7.2e9,
    }),
    **presets(
        "swin", SwinConfig(), ("width", "stages", "stage_heads"),
        "Liu 2021, table 1; count: torchvision", {
            "swin_t": (96, (2, 2, 6, 2), (3, 6, 12, 24), 28_288_354),
            "swin_s": (96, (2, 2, 18, 2), (3, 6, 12, 24), 49_606_258),
            "swin_b": (128, (2, 2, 18, 2), (4, 8, 16, 32), 87_768_224),
        },
    ),
    **presets(
        "swin", SwinConfig(), ("width", "stages", "stage_heads"), "Liu 2021, table 1", {
            "swin_l": (192, (2, 2, 18, 2), (6, 12, 24, 48), 197e6),
        },
    ),
    "detr_r50": Preset(
        "detr", DETRConfig(), 41.6e6, "Carion 2020, table 1, 41M; count of the released weights"
    ),
    "resnet18": Preset("cnn", CNNConfig(), 11.7e6, "He 2016, table 1; count: torchvision"),
    "resnet50": Preset(
        "cnn", CNNConfig(block="bottleneck", stages=(3, 4, 6, 3)), 25.6e6,
        "He 2016, table 1; count: torchvision", "the step of a block is its 3x3's",
    ),
}
# fmt: on
