"""The word error rate of transcripts, after both sides are normalised alike."""

import re
import unicodedata
from collections.abc import Sequence

from transformer_lab.errors import LabError

_WITHIN = re.compile(r"(?<=\w)[.'’](?=\w)|(?<=\w)[’'](?=\W|$)")  # a.m., don't, keys'
_OTHER = re.compile(r"[^\w\s]|_")
_UNSAID = re.compile(r"\[[^]]*\]|\([^)]*\)")
_DIGITS = re.compile(r"(\d+)(?:(st|nd|rd|th)\b)?")
_ONE = re.compile(r"\bone\s+(?=hundred|thousand|million|billion)")
_ORDINALS = {"one": "first", "two": "second", "three": "third", "five": "fifth"}
_ORDINALS |= {"eight": "eighth", "nine": "ninth", "twelve": "twelfth"}
_SMALL = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
    "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen",
    "nineteen",
)  # fmt: skip
_TENS = (
    "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety",
)  # fmt: skip
# What English contracts, written out; 's after a noun may be a possessive, which stays.
_CONTRACTED = (
    (r"\bwon't\b", "will not"),
    (r"\b(can't|cannot)\b", "can not"),
    (r"\bshan't\b", "shall not"),
    (r"\blet's\b", "let us"),
    (r"n't\b", " not"),
    (r"'m\b", " am"),
    (r"'re\b", " are"),
    (r"'ve\b", " have"),
    (r"'ll\b", " will"),
    (r"'d\b", " would"),
    (r"\b(it|that|he|she|what|who|there|here|where|how)'s\b", r"\1 is"),
    (r"\b(hmm|mm+|mhm|uh+|um+)\b", " "),  # fillers
)
_LARGE = ((10**9, "billion"), (10**6, "million"), (1000, "thousand"), (100, "hundred"))


def word_error_rate(
    references: Sequence[str], transcripts: Sequence[str], english: bool = False
) -> float:
    """Substitutions, insertions and deletions in all texts, divided by the references' words.

    Raises: LabError if the lists differ in length, or no reference has a word."""
    words = lambda texts: [normalised(text, english) for text in texts]  # noqa: E731
    return _rate(words(references), words(transcripts), "word")


def character_error_rate(references: Sequence[str], transcripts: Sequence[str]) -> float:
    """The same of characters: of the normalised words with one blank between them."""
    spelt_out = lambda texts: [" ".join(normalised(text)) for text in texts]  # noqa: E731
    return _rate(spelt_out(references), spelt_out(transcripts), "character")


def _rate(wanted: Sequence[Sequence], found: Sequence[Sequence], unit: str) -> float:
    """The distances of all pairs of sequences, divided by the wanted ones' lengths."""
    if len(wanted) != len(found):
        raise LabError(f"{len(wanted)} references for {len(found)} transcripts")
    if not (total := sum(map(len, wanted))):
        raise LabError(f"a {unit} error rate needs at least one {unit} of reference")
    return sum(map(distance, wanted, found)) / total


def normalised(text: str, english: bool = False) -> list[str]:
    """The words of a text: lower case, Unicode form NFKC, text in brackets removed.

    Apostrophes, and full stops within a word, are removed; other characters that are no letters or
    digits separate words. With `english`, 17 and 17th are spelt as words ("one hundred" counts as
    "hundred"), contractions are written out and fillers removed, much as Radford 2023 (appendix C)
    does; other spellings stay as they are."""
    text = _UNSAID.sub(" ", unicodedata.normalize("NFKC", text)).casefold()
    for short, long in _CONTRACTED if english else ():
        text = re.sub(short, long, text.replace("’", "'"))
    text = _OTHER.sub(" ", _WITHIN.sub("", text))
    if english:
        text = _ONE.sub("", digits_spelt(text))
    return text.split()


def digits_spelt(text: str) -> str:
    """The text with its numbers in English words: "room 17" gives "room  seventeen "."""
    return _DIGITS.sub(lambda m: f" {(ordinal if m[2] else str)(spelt(int(m[1])))} ", text)


def spelt(number: int) -> str:
    """A whole number in English words, without "and": 162 is "one hundred sixty two"."""
    for size, name in _LARGE:
        if number >= size:
            more = number % size
            rest = f" {spelt(more)}" if more else ""
            return f"{spelt(number // size)} {name}{rest}"
    if number < len(_SMALL):
        return _SMALL[number]
    tens, ones = divmod(number, 10)
    return _TENS[tens - 2] + (f" {_SMALL[ones]}" if ones else "")


def ordinal(words: str) -> str:
    """The ordinal of a number in words: "twenty one" gives "twenty first"."""
    before, blank, last = words.rpartition(" ")
    regular = f"{last[:-1]}ieth" if last.endswith("y") else f"{last}th"
    return before + blank + _ORDINALS.get(last, regular)


def distance(wanted: Sequence[str], found: Sequence[str]) -> int:
    """The least number of substituted, inserted and deleted elements (Levenshtein 1966)."""
    row = list(range(len(found) + 1))
    for i, word in enumerate(wanted, 1):
        above, row = row, [i]
        for j, other in enumerate(found, 1):
            row.append(min(above[j] + 1, row[-1] + 1, above[j - 1] + (word != other)))
    return row[-1]
