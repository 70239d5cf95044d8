"""Characters, bytes, words or pieces: which makes a language model best at equal computing?

python -m transformer_lab sweep --experiment=experiments/tokenizers.py --workdir=runs/tokenizers

The small GPT on the Brown corpus, 2,048 tokens a step; steps so many that each run makes the same
FLOPs, the head counted: the model of 16,000 pieces costs four times that of bytes. Compared in bits
per byte of text (Xue 2022, ByT5, compares at equal parameters), beside tokens a word and the share
that is unknown. An unknown token costs no bits for its spelling, words lose white space and stems
their endings: their bits and those of characters are too low by what is lost.

Scale cpu: 3 layers of width 128, one seed; nine runs of the FLOPs of 400 steps with 4,000 pieces,
at scale paper GPT-2's small sizes on C4, three seeds. Tokens a word in four languages: fertility.

2026-11-28, 14 minutes of training on 2 cores: of those that lose nothing 4,000 unigram (1.990) and
byte-pair pieces (2.004) are ahead of 1,000 (2.043), 16,000 (2.049) and bytes (2.229).
"""

from matplotlib.figure import Figure

from transformer_lab.models.decoder import DecoderConfig, training_flops
from transformer_lab.sweeps import papers
from transformer_lab.sweeps.experiment import Experiment
from transformer_lab.sweeps.variations import Variation, seeds

KINDS = {  # kind and size; characters are fewer
    "byte": ("byte", 260), "char": ("char", 100), "bpe_1k": ("bpe", 1000), "bpe_4k": ("bpe", 4000),
    "bpe_16k": ("bpe", 16_000), "unigram_4k": ("unigram", 4000), "word_4k": ("word", 4000),
    "word_16k": ("word", 16_000), "stem_4k": ("stem", 4000),
}  # fmt: skip
DECIDING = ("byte", "bpe_1k", "bpe_4k", "bpe_16k", "unigram_4k")  # which lose nothing: three seeds
CPU = {"layers": 3, "width": 128, "heads": 4, "head_dim": 32, "feed_forward_width": 512}
PAPER = {"layers": 12, "width": 768, "heads": 12, "head_dim": 64, "feed_forward_width": 3072}
LENGTH = {"cpu": 128, "paper": 1024}


def get_experiment(scale: str) -> Experiment:
    """Rows are kinds of tokenizer with their sizes."""
    sizes, steps = (CPU, 400) if scale == "cpu" else (PAPER, 20_000)
    length = LENGTH[scale]

    def flops(vocabulary: int) -> int:
        return training_flops(DecoderConfig(**sizes, vocab_size=vocabulary), length)

    rows = [
        Variation(
            name,
            {
                "tokenizer.kind": kind,
                "tokenizer.vocab_size": size,
                "tokenizer.lossless": kind not in ("char", "word", "stem"),
                "steps": round(steps * flops(4000) / flops(size)),
            },
        )
        for name, (kind, size) in KINDS.items()
    ]
    return Experiment(
        config="configs/gpt_positions.py:rope",
        variations=seeds(rows, 3, DECIDING if scale == "cpu" else None),
        metric="bits_per_byte",
        columns=("tokens_per_word", "unknown_rate", "loss"),
        changes=(papers.C4 | {"batch.rows": 512} if scale == "paper" else {})
        | {f"model.{name}": value for name, value in sizes.items()}
        | {"batch.length": length, "model.max_length": length, "task.other_lengths": ()}
        | {"eval_every": 100_000, "save_every": 500, "keep": 1, "tensorboard": False},
        base="bpe_4k",
        plot=plot,
    )


def plot(table) -> Figure:
    """Bits per byte by the tokens of a word."""
    figure = Figure((6, 4), layout="constrained")
    axes = figure.subplots()
    for row in table.rows:
        point = row.mean("test/tokens_per_word"), row.mean("test/bits_per_byte")
        axes.plot(*point, "ko")
        axes.annotate(row.name, point)
    axes.set(xscale="log", xlabel="tokens a word", ylabel="bits per byte")
    return figure
