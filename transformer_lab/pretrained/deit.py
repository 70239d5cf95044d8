"""DeiT (Touvron 2021), as in Hugging Face's `deit`: ViT with a distillation token."""

from transformer_lab.pretrained.vit import INPUTS, KIND, PAD, both_ways, outputs, shapes

__all__ = ["INPUTS", "KIND", "PAD", "outputs", "reading", "shapes", "writing"]

reading, writing = both_ways("deit", "DeiT")
