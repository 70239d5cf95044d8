"""Verse pairs from Bible translations in the public domain, read from SWORD modules."""

import functools
import html
import math
import re
import statistics
from pathlib import Path

from transformer_lab.data.pairs import Report, Row, fold
from transformer_lab.errors import LabError

MODULES = {"en": "engWEB", "es": "spaRV", "kjv": "engKJV"}  # prefixes; a year follows
PACKAGES = {"en": "sword-text-web", "es": "sword-text-sparv", "kjv": "sword-text-kjv"}
LICENCE = "World English Bible, Reina-Valera 1909, King James Version: public domain"

_SPANISH_NUMBERS = {"es"}
_FARTHEST = 6  # verses
_EVIDENCE = 7.0  # nats
# Footnotes and headings are not text, but a psalm's own title is: other editions have it in verse 1
_ASIDE = re.compile(r'<(note|title)\b(?![^>]*canonical="true")[^>]*(?<!/)>.*?</\1>', re.DOTALL)
_TAG = re.compile(r"<[^>]*>")

Chapters = dict[str, list[str]]  # "Gen 1" -> verses, "" where the edition has none


def read(folders: list[Path], source: str, target: str, report: Report) -> list[Row]:
    """Verses that both editions have, grouped by chapter.

    Chapters whose verse numbers are shifted between the editions are dropped (see `shifted`), and
    verses one of whose sides is over four times the other's length count as unclear.
    """
    sides = [_chapters(folders, language) for language in (source, target)]
    common = [name for name in sides[0] if name in sides[1]]
    pairs = {
        name: [pair for pair in zip(sides[0][name], sides[1][name], strict=False) if all(pair)]
        for name in common
    }
    report["read"] += sum(map(len, pairs.values()))
    if len(_SPANISH_NUMBERS & {source, target}) == 1:
        for name in shifted({name: (sides[0][name], sides[1][name]) for name in common}):
            report["shifted_chapter"] += len(pairs.pop(name))
    rows = [Row(name, *pair) for name, verses in pairs.items() for pair in verses]
    clear = [row for row in rows if 0.25 < len(row.source) / len(row.target) < 4]
    report["unclear"] += len(rows) - len(clear)
    return clear


def shifted(chapters: dict[str, tuple[list[str], list[str]]]) -> list[str]:
    """Chapters in which some run of verses fits other verse numbers better, by their lengths.

    The log of a pair's length ratio is taken as normal (centre and spread over all chapters); a
    chapter is named when moving a run by up to six verses gains more than seven nats. That names
    all chapters which really are shifted and a few dozen short-lined ones which are not.
    """
    ratios = [
        math.log(len(a) / len(b))
        for sides in chapters.values()
        for a, b in zip(*sides, strict=False)
        if a and b
    ]
    centre = statistics.median(ratios or [0.0])
    spread = 1.4826 * statistics.median([abs(r - centre) for r in ratios] or [0.0])
    spread = max(spread, 1e-3)
    moves = [move for move in range(-_FARTHEST, _FARTHEST + 1) if move]
    sizes = {name: [_sizes(verses) for verses in sides] for name, sides in chapters.items()}
    return [
        name
        for name, pair in sizes.items()
        if max(_gain(*pair, move, centre, spread) for move in moves) > _EVIDENCE
    ]


def _sizes(verses: list[str]) -> list[float]:
    """Log lengths; ten characters more, since a short verse's ratio says little. 0 if empty."""
    return [math.log(len(verse) + 10) if verse else 0.0 for verse in verses]


def _gain(a: list[float], b: list[float], move: int, centre: float, spread: float) -> float:
    """The most that a run of verses of `a` gains by facing verse i + move of `b`, in nats."""

    def misfit(difference: float) -> float:
        return min(((difference - centre) / spread) ** 2 / 2, 8.0)  # one odd verse can't decide

    best = run = 0.0
    for i in range(max(0, -move), min(len(a), len(b), len(b) - move)):
        if a[i] and b[i] and b[i + move]:
            run = max(0.0, run + misfit(a[i] - b[i]) - misfit(a[i] - b[i + move]))
            best = max(best, run)
    return best


def _chapters(folders: list[Path], language: str) -> Chapters:
    try:
        from pysword.modules import SwordModules
    except ImportError as error:
        raise LabError(
            "config.data.source = \"bible\" needs pysword: pip install 'transformer_lab[bible]'"
        ) from error
    for folder in folders:
        for settings in sorted(folder.rglob(f"mods.d/{MODULES[language]}*.conf")):
            root = settings.parent.parent
            modules = SwordModules(str(root))
            name = next(n for n in modules.parse_modules() if n.startswith(MODULES[language]))
            return _verses(modules.get_bible_from_module(name))
    places = ", ".join(map(str, folders))
    raise LabError(f"no SWORD module mods.d/{MODULES[language]}*.conf in {places}")


def _verses(bible) -> Chapters:
    # pysword inflates a whole book for each of its verses; kept once, it takes a second, not 60.
    if hasattr(bible, "_decompressed_text"):
        bible._decompressed_text = functools.lru_cache(maxsize=2)(bible._decompressed_text)
    return {
        f"{book.osis_name} {chapter}": [
            _plain(verse) for verse in bible.get_iter(book.name, [chapter], clean=False)
        ]
        for testament, books in bible.get_structure().get_books().items()
        if testament in bible._testaments
        for book in books
        for chapter in range(1, book.num_chapters + 1)
    }


def _plain(osis: str) -> str:
    return fold(html.unescape(_TAG.sub("", _ASIDE.sub(" ", osis))))
