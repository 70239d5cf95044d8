"""mT5 (Xue 2021): T5's version 1.1 under a name of its own."""

from transformer_lab.pretrained.t5 import INPUTS, generate, outputs, reading, shapes, writing

__all__ = ["INPUTS", "KIND", "generate", "outputs", "reading", "shapes", "writing"]

KIND = "encoder_decoder"
