"""Writes models as Hugging Face directories."""

from transformer_lab.pretrained import export

__all__ = ["export"]
