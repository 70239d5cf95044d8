"""Published sizes, each beside the number of parameters that its paper states."""

from transformer_lab.models.presets.decoders import DECODERS
from transformer_lab.models.presets.encoder_decoders import ENCODER_DECODERS
from transformer_lab.models.presets.row import Preset

__all__ = ["DECODERS", "ENCODER_DECODERS", "TABLES", "Preset"]

TABLES = {"encoder_decoders": ENCODER_DECODERS, "decoders": DECODERS}
