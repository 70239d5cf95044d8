"""Shows the merges of byte-pair encoding one by one.

    transformer_lab merges --merges=20 "low lower newest widest"

Each merge is a line: its number, the pair, how often it occurs in the text, and how some words are
split after it. With --file=TEXT.txt the text is the file's, and words on the command line are the
ones shown.
"""

from collections import Counter
from itertools import islice
from pathlib import Path

from absl import flags

from transformer_lab.errors import LabError, check_file
from transformer_lab.text import plain_bpe
from transformer_lab.text.tokenizer import clean

SHOWN = 4  # words


def _read(file: Path) -> str:
    try:
        return check_file(file).read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise LabError(f"{file}: byte {error.start} is not UTF-8: save the file as UTF-8") from None


WORDS = True  # arguments that are no flags


def define() -> None:
    flags.DEFINE_string("file", None, "A text file to learn from, in UTF-8.")
    flags.DEFINE_integer("merges", 20, "How many merges to learn at most.", lower_bound=1)


def main(arguments: list[str]) -> None:
    file, given = flags.FLAGS.file, clean(" ".join(arguments)).split()
    words = Counter(_read(Path(file)).split() if file else given)
    if not words:
        raise LabError("no words to learn from: give --file=TEXT.txt, or words")
    # The most frequent long words: short ones such as "the" are soon one symbol.
    frequent = sorted(words, key=lambda word: (len(word) < 6, -words[word], word))
    splits = [plain_bpe.split(w) for w in list(dict.fromkeys(given))[:SHOWN] or frequent[:SHOWN]]
    steps = islice(plain_bpe.learn(words), flags.FLAGS.merges)
    for number, (pair, count) in enumerate(steps, 1):
        splits = [plain_bpe.merge(symbols, pair) for symbols in splits]
        shown = "   ".join(" ".join(map(plain_bpe.show, symbols)) for symbols in splits)
        left, right = map(plain_bpe.show, pair)
        print(f"{number:>5}  {f'{left} + {right}':<20} {count:>8}  {shown}")
