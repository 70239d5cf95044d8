"""Published figures that experiments are compared with, from the papers or stored copies of them.

A figure that could not be looked up is left out: `None` in a row, or no row.
"""

import dataclasses
from collections.abc import Mapping

from transformer_lab.errors import LabError, nearest


@dataclasses.dataclass(frozen=True)
class Published:
    """A paper's table: its rows by the paper's own labels, each with a figure for each column.

    Of a row the first figure that is not None is the one that is compared.
    """

    source: str  # the paper, the version that was read, and the table
    columns: tuple[str, ...]  # what was measured, with its unit
    higher_is_better: bool
    scale: str  # what the published runs had: model, steps or tokens, data
    rows: dict[str, tuple[float | None, ...]]

    def plan(self, names: Mapping[str, str]) -> dict:
        """The table as sweep.json holds it, with our row's name in place of each label in `names`.

        `names` maps our rows to the paper's; an empty one keeps the labels.
        """
        names = names or {label: label for label in self.rows}
        for label in names.values():
            if label not in self.rows:
                raise LabError(f'{self.source} has no row "{label}"{nearest(label, self.rows)}')
        rows = {ours: self.rows[label] for ours, label in names.items()}
        return {**dataclasses.asdict(self), "rows": rows, "labels": dict(names)}


# The web text of T5 (Raffel 2020, section 2.2), as tensorflow-datasets prepares it: the data of
# language models at scale paper, which would read a small corpus a hundred times.
C4 = {"data.source": "tfds", "data.tfds_name": "c4/en"}

# fmt: off
VASWANI_TABLE1 = Published(
    "Vaswani 2017 (arXiv 1706.03762), table 1",
    ("exponent of time by length", "of sequential operations", "of the path"), False,
    "by formula, the path of convolutions that are dilated",
    {"self_attention": (2, 0, 0), "recurrence": (1, 1, 1), "convolution": (1, 0, 0),
     "window": (1, 0, 1)},
)
VASWANI_TABLE3 = Published(
    "Vaswani 2017 (arXiv 1706.03762), table 3",
    ("BLEU, newstest2013", "perplexity, newstest2013", "parameters, millions"), True,
    "6 + 6 layers of width 512, 100,000 steps of 25,000 tokens a side, WMT 2014 English to German",
    {
        "base": (25.8, 4.92, 65),
        "A, 1 head": (24.9, 5.29, None), "A, 4 heads": (25.5, 5.00, None),
        "A, 16 heads": (25.8, 4.91, None), "A, 32 heads": (25.4, 5.01, None),
        "B, d_k = 16": (25.1, 5.16, 58), "B, d_k = 32": (25.4, 5.01, 60),
        "C, N = 2": (23.7, 6.11, 36), "C, N = 4": (25.3, 5.19, 50), "C, N = 8": (25.5, 4.88, 80),
        "C, d_model = 256": (24.5, 5.75, 28), "C, d_model = 1024": (26.0, 4.66, 168),
        "C, d_ff = 1024": (25.4, 5.12, 53), "C, d_ff = 4096": (26.2, 4.75, 90),
        "D, dropout 0.0": (24.6, 5.77, None), "D, dropout 0.2": (25.5, 4.95, None),
        "D, smoothing 0.0": (25.3, 4.67, None), "D, smoothing 0.2": (25.7, 5.47, None),
        "E, learned positions": (25.7, 4.92, None), "big": (26.4, 4.33, 213),
    },
)
SHAZEER_TABLE1 = Published(
    "Shazeer 2020 (arXiv 2002.05202), table 1", ("log-perplexity",), False,
    "T5 base, 12 + 12 layers of width 768, 524,288 steps, hidden spans of C4",
    {"ReLU": (1.677,), "GELU": (1.679,), "Swish": (1.683,), "GLU": (1.663,), "Bilinear": (1.648,),
     "ReGLU": (1.645,), "GEGLU": (1.633,), "SwiGLU": (1.636,)},
)
DEVLIN_TABLE6 = Published(
    "Devlin 2019 (arXiv 1810.04805), table 6",
    ("perplexity of hidden tokens", "MNLI, %", "MRPC, %", "SST-2, %"), False,
    "BERT's own steps and data for each size, 12 layers of width 768 have 110 M parameters",
    {"L = 3, H = 768, A = 12": (5.84, 77.9, 79.8, 88.4),
     "L = 6, H = 768, A = 3": (5.24, 80.6, 82.2, 90.7),
     "L = 6, H = 768, A = 12": (4.68, 81.9, 84.8, 91.3),
     "L = 12, H = 768, A = 12": (3.99, 84.4, 86.7, 92.9),
     "L = 12, H = 1024, A = 16": (3.54, 85.7, 86.9, 93.3),
     "L = 24, H = 1024, A = 16": (3.23, 86.6, 87.8, 93.7)},
)
DEVLIN_TABLE7 = Published(
    "Devlin 2019 (arXiv 1810.04805), table 7", ("named entities of CoNLL-2003, F1",), True,
    "BERT base, 110 M parameters, two LSTM layers of 768 on its states",
    {"Embeddings": (91.0,), "Second-to-Last Hidden": (95.6,), "Last Hidden": (94.9,),
     "Weighted Sum Last Four Hidden": (95.9,), "Concat Last Four Hidden": (96.1,),
     "Weighted Sum All 12 Layers": (95.5,)},
)
DEVLIN_TABLE8 = Published(
    "Devlin 2019 (arXiv 1810.04805), table 8",
    ("MNLI, fine-tuned, %", "NER, fine-tuned, %", "NER, features, %"), True,
    "BERT base, 110 M parameters, 1,000,000 steps of 128,000 tokens, BooksCorpus and Wikipedia",
    {"80/10/10": (84.2, 95.4, 94.9), "100/0/0": (84.3, 94.9, 94.0), "80/0/20": (84.1, 95.2, 94.6),
     "80/20/0": (84.4, 95.2, 94.7), "0/20/80": (83.7, 94.8, 94.6), "0/0/100": (83.6, 94.9, 94.6)},
)
DEVLIN_TABLE8_ENTITIES = dataclasses.replace(
    DEVLIN_TABLE8, columns=DEVLIN_TABLE8.columns[1:],
    rows={f"{row}, full": (full, None) for row, (_, full, _) in DEVLIN_TABLE8.rows.items()}
    | {f"{row}, head": (None, head) for row, (*_, head) in DEVLIN_TABLE8.rows.items()},
)
HU_TABLE2 = Published(
    "Hu 2021 (arXiv 2106.09685v2), table 2, RoBERTa base",
    ("SST-2, %", "mean of GLUE, %", "trained, millions"), True,
    "RoBERTa base, 125 M parameters; SST-2's 67,000 sentences to the end",
    {"FT": (94.8, 86.4, 125), "BitFit": (93.7, 85.2, 0.1), "Adapter^D, 0.3M": (94.2, 84.4, 0.3),
     "Adapter^D, 0.9M": (94.7, 85.4, 0.9), "LoRA, r = 8": (95.1, 87.2, 0.3)},
)
HU_TABLES = Published(
    "Hu 2021 (arXiv 2106.09685v2), table 5, and of rank r of W_q and W_v table 6",
    ("MultiNLI, %", "WikiSQL, %"), True,
    "GPT-3, 175 B parameters, 18 M of them trained in table 5",
    {"W_q": (91.0, 70.4), "W_k": (90.8, 70.0), "W_v": (91.0, 73.0), "W_o": (91.3, 73.2),
     "W_q, W_k": (91.3, 71.4), "W_q, W_v": (91.3, 73.7), "W_q, W_k, W_v, W_o": (91.7, 73.7),
     "r = 1": (91.3, 73.4), "r = 2": (91.4, 73.3), "r = 4": (91.3, 73.7), "r = 8": (91.6, 73.8),
     "r = 64": (91.4, 73.5)},
)
BAHDANAU_TABLE1 = Published(
    "Bahdanau 2015 (arXiv 1409.0473), table 1",
    ("BLEU, newstest2014", "BLEU, no unknown words"), True,
    "1,000 hidden units, about 5 days of a GPU, 348 M words of WMT 2014 English to French",
    {"RNNencdec-50": (17.82, 26.71), "RNNsearch-50": (26.75, 34.16)},
)
RADFORD_PROMPTS = Published(
    "Radford 2021 (arXiv 2103.00020), section 3.1.4", ("ImageNet, points above the label alone",),
    True, "ViT-L/14 on 400 M pairs of pictures and texts, 1,000 classes",
    {"label": (0.0,), "one sentence": (1.3,), "80 sentences": (4.8,)},
)
RAFFEL_TABLE2 = Published(
    "Raffel 2020 (arXiv 1910.10683), table 2, denoising",
    ("GLUE", "BLEU, English to French", "BLEU, English to German"), True,
    "12 + 12 layers of width 768, twice the parameters of one stack at its cost, pre-trained on 34 "
    "B tokens of C4",
    {"Encoder-decoder, GLUE": (83.28, None, None), "Prefix LM, GLUE": (81.82, None, None),
     "Language model, GLUE": (74.70, None, None),
     "Encoder-decoder, translation": (None, 39.82, 26.98),
     "Prefix LM, translation": (None, 37.98, 26.43),
     "Language model, translation": (None, 35.28, 25.09)},
)
RAFFEL_TABLE7 = Published(
    "Raffel 2020 (arXiv 1910.10683), table 7", ("GLUE", "CNN/DM, ROUGE-2", "SQuAD", "SuperGLUE"),
    True, "T5 base's size, 34 B tokens of C4, then fine-tuned on each task",
    {"i.i.d.": (83.28, 19.24, 80.88, 71.36), "3": (83.49, 19.62, 81.84, 72.53)},
)
NARANG_TABLE1 = Published(
    "Narang 2021 (arXiv 2102.11972), table 1",
    ("final loss, nats", "early loss, nats", "SuperGLUE", "XSum"), False,
    "T5 base, 223 M parameters, 524,288 steps, hidden spans of C4",
    {"Vanilla Transformer": (1.838, 2.182, 71.66, 17.78), "GeLU": (1.838, 2.179, 75.79, 17.86),
     "Swish": (1.847, 2.186, 73.77, 17.74), "GLU": (1.814, 2.174, 74.20, 17.42),
     "GeGLU": (1.792, 2.130, 75.96, 18.27), "ReGLU": (1.803, 2.145, 76.17, 18.36),
     "SwiGLU": (1.789, 2.127, 76.00, 18.20), "RMS Norm": (1.821, 2.167, 75.45, 17.94)},
)
ZHU_TABLE1 = Published(
    "Zhu 2025 (arXiv 2503.10622), table 1", ("ImageNet, top-1, %",), True,
    "ViT-B, 86 M parameters, ImageNet", {"LN": (82.3,), "DyT": (82.5,)},
)
GU_TABLE1 = Published(
    "Gu 2023 (arXiv 2312.00752), table 1", ("selective copying, %",), True,
    "two layers of width 64, 400,000 steps of 64 sequences of 4,096 tokens",
    {"S4, no gate": (18.3,), "Mamba": (99.8,)},
)
# fmt: on
