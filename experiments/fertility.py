"""How many tokens does a word take in English, French, German and Spanish, by each tokenizer?

python -m transformer_lab sweep --experiment=experiments/fertility.py --workdir=runs/fertility

Measured and not trained: every tokenizer learns from as many sentences of each language, and counts
on held-out ones. `english_` is the same, learnt from English alone: what other languages then pay.
English, French and German are the LibreOffice help, Spanish is the Bible of 1909.

2026-11-30, one of 2 cores (Intel Xeon), three seeds, two minutes: 4,000 byte pairs of all four take
1.75, 1.90, 2.14 and 1.80 tokens a word (English, French, German, Spanish); those of English alone
1.47, 3.03, 3.85 and 3.13. Words leave 18 to 22 % unknown by 4,000 and 9 to 13 % by 16,000, stems 9
to 18 % by 4,000.
"""

from functools import cache

from transformer_lab import text
from transformer_lab.data.parallel import PairsConfig, load_pairs
from transformer_lab.sweeps.experiment import Experiment
from transformer_lab.sweeps.variations import Variation, seeds

SETS = {"fr": ("libreoffice_help", "en-fr"), "de": ("libreoffice_help", "en-de"),
        "es": ("bible", "en-es")}  # fmt: skip
LANGUAGES = ("en", *SETS)
KINDS = {
    "byte": ("byte", 260), "char": ("char", 200), "bpe_1k": ("bpe", 1000), "bpe_4k": ("bpe", 4000),
    "bpe_16k": ("bpe", 16_000), "unigram_4k": ("unigram", 4000), "word_4k": ("word", 4000),
    "word_16k": ("word", 16_000), "stem_4k": ("stem", 4000),
}  # fmt: skip
SENTENCES = {"cpu": 3000, "paper": 10**9}  # of each language to learn from


def get_experiment(scale: str) -> Experiment:
    """Rows are tokenizers; a seed holds out other sentences."""
    rows = [
        Variation(before + name, {"kind": kind, "size": size, "languages": languages})
        for before, languages in (("", LANGUAGES), ("english_", ("en",)))
        for name, (kind, size) in KINDS.items()
    ]
    columns = [f"{what}_{x}" for what in ("tokens_per_word", "unknown_rate") for x in LANGUAGES]
    metric = "tokens_per_word_fr"
    return Experiment(
        config="",
        variations=seeds(rows, 3),
        metric=metric,
        higher_is_better=None,
        columns=tuple(column for column in columns if column != metric),
        changes={"sentences": SENTENCES[scale]},
        base=dict.fromkeys(KINDS, "bpe_4k") | {f"english_{kind}": kind for kind in KINDS},
        measure=measure,
    )


@cache
def sentences(split: str, seed: int) -> dict[str, list[str]]:
    """Of each language; English is the source of the French."""
    found = {}
    for language, (source, languages) in SETS.items():
        pairs = getattr(load_pairs(PairsConfig(source, languages, split_seed=seed)), split)
        found[language] = [target for _, target in pairs]
        found.setdefault("en", [english for english, _ in pairs])
    return found


def measure(settings: dict) -> dict[str, float]:
    """Tokens a word and the share that is unknown, of 500 held-out sentences of each language."""
    taught, held = (sentences(split, settings["seed"]) for split in ("train", "test"))
    learnt = [t for x in settings["languages"] for t in taught[x][: settings["sentences"]]]
    tokenizer = text.train(text.TokenizerConfig(settings["kind"], settings["size"]), learnt)
    return {
        f"{key}_{language}": value
        for language in LANGUAGES
        for key, value in text.statistics(tokenizer, held[language]).items()
    }
