"""A tokenizer of every kind, made once for all tests that hold for each."""

from functools import cache

from tests.text.test_byte_bpe import gpt2, llama
from tests.text.test_model_files import marian_files, spiece
from tests.text.test_word_piece import bert
from transformer_lab.text import Tokenizer, TokenizerConfig, load, train
from transformer_lab.text.tokenizer import KINDS

TEXTS = ["hello world, this is  a text", "the cat sat on the mat", "naïve café …"] * 4
TRAINED = ("bpe", "unigram", "char", "word", "byte", "byte_bpe", "plain_bpe")  # with our ids


def config(name: str, **settings) -> TokenizerConfig:
    """Of a kind, or of a "lossless" one, that is trained here."""
    lossless, kind = name.startswith("lossless"), name.split()[-1]
    return TokenizerConfig(kind, **{"vocab_size": 290, "lossless": lossless, **settings})


@cache
def tokenizers() -> dict[str, Tokenizer]:
    names = [kind for kind in KINDS if kind not in ("hf", "marian", "t5")]
    names += ["lossless bpe", "lossless unigram"]
    made = {name: train(config(name), TEXTS) for name in names}
    return made | {
        "marian": load(marian_files(">>fr<<")),
        "t5": load({"spiece.model": spiece()}),
        "hf": load(gpt2(made["byte_bpe"])),
        "hf with byte pieces": load(llama()),
        "bert": load(bert("the", "cat", "##s", "sat", do_lower_case=True)),
    }


NAMES = [*KINDS, "lossless bpe", "lossless unigram", "hf with byte pieces", "bert"]
