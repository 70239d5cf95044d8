"""Published sizes of CLIP's image and text towers."""

from dataclasses import replace

from transformer_lab.models.presets.row import Preset
from transformer_lab.models.two_towers import TwoTowersConfig

_SOURCE = "Radford 2021, tables 19 and 20; count of the released weights"
_SIZES = ("layers", "width", "heads", "feed_forward_width")
_BASE = TwoTowersConfig()


def _preset(image: tuple, text: tuple, side: int, patch: int, published: int) -> Preset:
    """A preset from the four sizes of each tower; the common space is as wide as the text tower."""
    towers = [dict(zip(_SIZES, sizes, strict=True)) for sizes in (image, text)]
    config = replace(
        _BASE,
        image=replace(_BASE.image, image_size=(side, side), patch_size=(patch, patch), **towers[0]),
        text=replace(_BASE.text, vocab_size=49_408, **towers[1]),
        projection=text[1],
    )
    return Preset("two_towers", config, published, _SOURCE)


_B, _L = (12, 768, 12, 3072), (24, 1024, 16, 4096)
_B_TEXT, _L_TEXT = (12, 512, 8, 2048), (12, 768, 12, 3072)
CLIP = {
    "clip_b32": _preset(_B, _B_TEXT, 224, 32, 151_277_313),
    "clip_b16": _preset(_B, _B_TEXT, 224, 16, 149_620_737),
    "clip_l14": _preset(_L, _L_TEXT, 224, 14, 427_616_513),
    "clip_rn50": Preset(
        "two_towers",
        replace(_preset(_B, _B_TEXT, 224, 32, 0).config, image_kind="cnn", projection=None),
        102_007_137,
        _SOURCE,
    ),
    "clip_l14_336": _preset(_L, _L_TEXT, 336, 14, 427_944_193),
}
