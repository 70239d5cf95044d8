"""Sizes of encoder-only models, without heads."""

from dataclasses import replace

from transformer_lab.models.encoder import EncoderConfig
from transformer_lab.models.presets.row import Preset

_BERT = EncoderConfig(vocab_size=30_522)
_ROBERTA = replace(_BERT, vocab_size=50_265, types=1, norm_epsilon=1e-5)
_DISTILBERT = replace(_BERT, types=0, pooler=False)
_SIZES = ("layers", "width", "heads", "feed_forward_width")


def _family(base: EncoderConfig, source: str, rows: dict[str, tuple]) -> dict[str, Preset]:
    """Rows: layers, width, heads of 64, and the published parameters."""
    found = {}
    for name, (*sizes, published) in rows.items():
        values = dict(zip(_SIZES, [*sizes, 4 * sizes[1]], strict=True))
        found[name] = Preset("encoder", replace(base, **values), published, source)
    return found


ENCODERS = {
    **_family(
        _BERT,
        "Devlin 2019, section 3",
        {"bert_base": (12, 768, 12, 110e6), "bert_large": (24, 1024, 16, 340e6)},
    ),
    **_family(
        _BERT,
        "Turc 2019, table 1",
        {
            "bert_tiny": (2, 128, 2, 4.4e6),
            "bert_mini": (4, 256, 4, 11.3e6),
            "bert_small": (4, 512, 8, 29.1e6),
            "bert_medium": (8, 512, 8, 41.7e6),
        },
    ),
    **_family(
        _ROBERTA,
        "Liu 2019, section 5; count of the released weights",
        {"roberta_base": (12, 768, 12, 125e6), "roberta_large": (24, 1024, 16, 355e6)},
    ),
    **_family(_DISTILBERT, "Sanh 2019, table 3", {"distilbert": (6, 768, 12, 66e6)}),
}
