"""Published sizes of encoder-only models, without heads."""

from dataclasses import replace

from transformer_lab.models.encoder import EncoderConfig
from transformer_lab.models.presets.row import presets

_BERT = EncoderConfig(vocab_size=30_522)
_ROBERTA = replace(_BERT, vocab_size=50_265, types=1, norm_epsilon=1e-5)
_DISTILBERT = replace(_BERT, types=0, pooler=False)
_SIZES = ("layers", "width", "heads", "feed_forward_width")

# fmt: off
ENCODERS = {
    **presets("encoder", _BERT, _SIZES, "Devlin 2019, section 3", {
        "bert_base": (12, 768, 12, 3072, 110e6),
        "bert_large": (24, 1024, 16, 4096, 340e6),
    }),
    **presets("encoder", _BERT, _SIZES, "Turc 2019, table 1", {
        "bert_tiny": (2, 128, 2, 512, 4.4e6),
        "bert_mini": (4, 256, 4, 1024, 11.3e6),
        "bert_small": (4, 512, 8, 2048, 29.1e6),
        "bert_medium": (8, 512, 8, 2048, 41.7e6),
    }),
    **presets("encoder", _ROBERTA, _SIZES, "Liu 2019, section 5; count of the released weights", {
        "roberta_base": (12, 768, 12, 3072, 125e6),
        "roberta_large": (24, 1024, 16, 4096, 355e6),
    }),
    **presets("encoder", _DISTILBERT, _SIZES, "Sanh 2019, table 3", {
        "distilbert": (6, 768, 12, 3072, 66e6),
    }),
}
# fmt: on
