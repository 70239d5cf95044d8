"""mT5 (Xue 2021): T5's version 1.1 under a name of its own."""

from transformer_lab.pretrained import t5

FAMILY = t5.FAMILY
