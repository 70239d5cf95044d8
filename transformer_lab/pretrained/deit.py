"""DeiT (Touvron 2021), Hugging Face's `deit`: ViT with a distillation token."""

from transformer_lab.pretrained.vit import family

FAMILY = family("deit", "DeiT")
