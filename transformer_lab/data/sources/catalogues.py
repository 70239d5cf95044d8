"""Sentence pairs from the translation catalogues (gettext .po and .mo) of free software."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polib

from transformer_lab.data.fetch import folders
from transformer_lab.data.splits import Found, Item, Report, fold, key
from transformer_lab.errors import LabError

PACKAGES = ("indico", "jupyterlab-language-pack-fr-FR", "wagtail", "Django")
LICENCE = "indico: MIT; JupyterLab, Wagtail and Django: BSD-3-Clause"


def pairs(config: Any, report: Report) -> Found:
    if not config.path and set(config.sides()) != {"en", "fr"}:
        raise LabError(
            f'config.data.languages = "{config.languages}": the catalogues are en-fr or fr-en; '
            "set config.data.path for catalogues of your own"
        )
    items = read(folders(config.path, *PACKAGES), *config.sides(), report)
    return Found({"train": items}, LICENCE)


def read(folders: list[Path], source: str, target: str, report: Report) -> list[Item]:
    """One pair for each source string, sorted by it; strings that differ in case only are a group.

    The catalogues are written in English: one of the two languages must be English, and the other
    names their folders. Of several targets the most frequent is taken, then the first in order."""
    if "en" not in (source, target):
        raise LabError(
            f"config.data.languages: catalogues are from or to en, not {source}-{target}"
        )
    other = target if source == "en" else source
    targets: dict[str, Counter[str]] = defaultdict(Counter)
    for file in _files(folders, other):
        for english, foreign in _entries(file, report):
            pair = (fold(english), fold(foreign))
            if not all(pair):
                report["empty"] += 1
                continue
            text, translation = pair if source == "en" else pair[::-1]
            targets[text][translation] += 1
    report["duplicate"] += sum(c.total() - 1 for c in targets.values())
    best = {text: min(c, key=lambda t: (-c[t], t)) for text, c in targets.items()}
    return [Item(key(text), (text, best[text])) for text in sorted(best)]


def _files(folders: list[Path], language: str) -> list[Path]:
    """The .po files, and the .mo files without one, below folders named fr, fr_FR or fr-FR."""
    name = re.compile(rf"{re.escape(language)}([_-]{re.escape(language)})?", re.IGNORECASE)
    files = [
        file
        for folder in folders
        for suffix in (".po", ".mo")
        for file in folder.rglob(f"*{suffix}")
        if any(name.fullmatch(part) for part in file.relative_to(folder).parts[:-1])
        and (suffix == ".po" or not file.with_suffix(".po").exists())
    ]
    if not files:
        where = ", ".join(map(str, folders))
        raise LabError(f"no .po or .mo file below a folder {language} of {where}")
    return files


def _entries(file: Path, report: Report) -> Iterator[tuple[str, str]]:
    """English and foreign strings; of a plural the first and the last form."""
    try:
        if file.suffix == ".po":
            catalogue = polib.pofile(str(file), encoding="utf-8")
        else:
            catalogue = polib.mofile(str(file), encoding="utf-8")
    except (OSError, ValueError) as error:
        raise LabError(f"{file}: not a UTF-8 gettext catalogue ({error})") from error
    for entry in catalogue:
        if entry.obsolete or "fuzzy" in entry.flags:
            report["unclear"] += 1
        elif entry.msgid_plural:
            forms = [entry.msgstr_plural[i] for i in sorted(entry.msgstr_plural)] or [""]
            yield entry.msgid, forms[0]
            yield entry.msgid_plural, forms[-1]
        else:
            yield entry.msgid, entry.msgstr
