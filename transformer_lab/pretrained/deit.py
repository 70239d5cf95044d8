"""DeiT (Touvron 2021), as in Hugging Face's `deit`: ViT with a distillation token."""

from transformer_lab.pretrained.vit import family

FAMILY = family("deit", "DeiT")
