"""mT5 (Xue 2021): T5's version 1.1 under a name of its own."""

from transformer_lab.pretrained import t5
from transformer_lab.pretrained.t5 import INPUTS, KIND, generate, outputs, shapes

__all__ = ["INPUTS", "KIND", "generate", "outputs", "reading", "shapes", "writing"]

reading, writing = t5.reading, t5.writing
