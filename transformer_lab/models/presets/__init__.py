"""Published sizes, each beside the number of parameters that its paper states."""

from transformer_lab.models.presets.clip import CLIP
from transformer_lab.models.presets.decoders import DECODERS
from transformer_lab.models.presets.encoder_decoders import ENCODER_DECODERS
from transformer_lab.models.presets.encoders import ENCODERS
from transformer_lab.models.presets.row import Preset
from transformer_lab.models.presets.vision import VISION

__all__ = ["CLIP", "DECODERS", "ENCODERS", "ENCODER_DECODERS", "TABLES", "VISION", "Preset"]

TABLES = {
    "encoder_decoders": ENCODER_DECODERS,
    "decoders": DECODERS,
    "encoders": ENCODERS,
    "vision": VISION,
    "clip": CLIP,
}
