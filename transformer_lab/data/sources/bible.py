"""Verse pairs from Bible translations in the public domain, read from SWORD modules."""

import functools
import html
import math
import re
import statistics
from itertools import groupby
from pathlib import Path
from typing import Any

from transformer_lab.data.fetch import folders, packages_of
from transformer_lab.data.splits import Found, Item, Report, fold
from transformer_lab.errors import LabError

MODULES = {"en": "engWEB", "es": "spaRV", "kjv": "engKJV"}  # prefixes; a year follows
PACKAGES = {"en": "sword-text-web", "es": "sword-text-sparv", "kjv": "sword-text-kjv"}
LICENCE = "World English Bible, Reina-Valera 1909, King James Version: public domain"

_SPANISH_NUMBERS = {"es"}
_FARTHEST = 6  # the most verses by which numbers may be shifted
_EVIDENCE = 7.0  # nats that a shift must gain to count
# Footnotes and headings are not text, but a psalm's own title is: other editions have it in verse 1
_ASIDE = re.compile(r'<(note|title)\b(?![^>]*canonical="true")[^>]*(?<!/)>.*?</\1>', re.DOTALL)
_TAG = re.compile(r"<[^>]*>")

Chapters = dict[str, list[str]]  # "Gen 1" -> verses, "" where the edition has none


def pairs(config: Any, report: Report) -> Found:
    sides = config.sides()
    found = folders(config.path, *packages_of(config, PACKAGES))
    return Found({"train": read(found, *sides, report)}, LICENCE)


def documents(config: Any, report: Report) -> Found:
    """The chapters of the World English Bible, with one verse on each line."""
    verses = read(folders(config.path, PACKAGES["en"]), "en", "en", Report())
    chapters = groupby(verses, key=lambda item: item.group)
    texts = ["\n".join(item.row[0] for item in chapter) for _, chapter in chapters]
    items = [Item(text, text) for text in texts]
    return Found({"train": items}, "World English Bible: public domain")


def read(folders: list[Path], source: str, target: str, report: Report) -> list[Item]:
    """Verses that both editions have, grouped by chapter.

    Chapters whose verse numbers are shifted between the editions are dropped (see `shifted`), and
    verses with one side over four times as long as the other count as unclear."""
    sides = [_chapters(folders, language) for language in (source, target)]
    common = [name for name in sides[0] if name in sides[1]]
    pairs = {
        name: [pair for pair in zip(sides[0][name], sides[1][name], strict=False) if all(pair)]
        for name in common
    }
    if len(_SPANISH_NUMBERS & {source, target}) == 1:
        for name in shifted({name: (sides[0][name], sides[1][name]) for name in common}):
            report["shifted_chapter"] += len(pairs.pop(name))
    items = [Item(name, pair) for name, verses in pairs.items() for pair in verses]
    clear = [item for item in items if 0.25 < len(item.row[0]) / len(item.row[1]) < 4]
    report["unclear"] += len(items) - len(clear)
    return clear


def shifted(chapters: dict[str, tuple[list[str], list[str]]]) -> list[str]:
    """Chapters in which a run of verses fits other verse numbers better, judged by lengths.

    The log of a pair's length ratio is assumed normal, with centre and spread from all chapters; a
    chapter is named if moving a run by up to six verses gains more than seven nats. That finds all
    chapters that are really shifted, and a few dozen with short lines that are not."""
    ratios = [
        math.log(len(a) / len(b))
        for sides in chapters.values()
        for a, b in zip(*sides, strict=False)
        if a and b
    ]
    centre = statistics.median(ratios or [0.0])
    spread = max(1e-3, 1.4826 * statistics.median([abs(r - centre) for r in ratios] or [0.0]))
    moves = [move for move in range(-_FARTHEST, _FARTHEST + 1) if move]
    found = []
    for name, (a, b) in chapters.items():
        sizes = _sizes(a, centre, spread), _sizes(b, 0.0, spread)
        if max(_gain(*sizes, move) for move in moves) > _EVIDENCE:
            found.append(name)
    return found


def _sizes(verses: list[str], centre: float, spread: float) -> list[float | None]:
    """Log lengths scaled so that a pair's difference is standard normal; None for no verse.

    Ten characters are added to each, as the ratio of short verses tells little."""
    return [(math.log(len(v) + 10) - centre) / spread if v else None for v in verses]


def _gain(a: list[float | None], b: list[float | None], move: int) -> float:
    """The most nats that a run of verses of `a` gains if verse i is paired with i + move of `b`."""
    best = run = 0.0
    for i in range(max(0, -move), min(len(a), len(b), len(b) - move)):
        if None not in (a[i], b[i], b[i + move]):
            # Capped, so that one odd verse cannot decide.
            here, there = (min((a[i] - b[j]) ** 2 / 2, 8.0) for j in (i, i + move))
            run = max(0.0, run + here - there)
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
    where = ", ".join(map(str, folders))
    raise LabError(f"no SWORD module mods.d/{MODULES[language]}*.conf in {where}")


def _verses(bible) -> Chapters:
    # pysword inflates a whole book for each of its verses; kept once, it takes a second, not 60.
    if hasattr(bible, "_decompressed_text"):
        bible._decompressed_text = functools.lru_cache(maxsize=2)(bible._decompressed_text)
    return {
        f"{book.osis_name} {chapter}": [
            verse and _plain(verse) for verse in bible.get_iter(book.name, [chapter], clean=False)
        ]
        for books in bible.get_structure().get_books().values()
        for book in books
        for chapter in range(1, book.num_chapters + 1)
    }


def _plain(osis: str) -> str:
    return fold(html.unescape(_TAG.sub("", _ASIDE.sub(" ", osis))))
