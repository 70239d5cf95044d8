"""Emoji drawn by two artists and named in two languages: pictures with captions or categories."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from transformer_lab.data.drawings import read_pictures
from transformer_lab.data.emoji import ARTISTS, Captioned, Concept, Drawing
from transformer_lab.data.fetch import fetch
from transformer_lab.data.images.sources import FoundImages
from transformer_lab.data.sources.folders import with_classes
from transformer_lab.errors import LabError

WORDS = "emojibase-data"
LICENCE = "words: MIT; pictures: Apache-2.0 (google), CC-BY-4.0 (twitter)"
SIDE = 64  # pixels of a picture


def captioned(config: Any) -> Captioned:
    """The emoji that both artists drew, identified by their code points."""
    words = {language: _read_words(config, language) for language in config.languages}
    (other,) = (name for name in ARTISTS if name != config.artist)
    mine, others = (_files(config, artist) for artist in (config.artist, other))
    english, categories = _read_words(config, "en"), _categories(config)
    drawn: list[Path] = []  # the file of each picture, by index
    drawn_by_other: list[Path] = []

    def concept(code: str, tones: bool) -> Concept:
        entries = {language: found[code] for language, found in words.items()}
        names = {language: _names(entry) for language, entry in entries.items()}
        codes = [c for c in _names(english[code]) if c in mine] if tones else [code]
        first = len(drawn)
        drawn.extend(mine[c] for c in codes)
        drawn_by_other.append(others[code])
        drawings = tuple(
            Drawing(row, {language: found[c] for language, found in names.items()})
            for row, c in enumerate(codes, first)
        )
        tags = {language: tuple(entry.get("tags", ())) for language, entry in entries.items()}
        category = categories[english[code]["group"]]
        return Concept(code, category, tags, drawings, len(drawn_by_other) - 1)

    def pictures() -> tuple[np.ndarray, np.ndarray]:
        return read_pictures(drawn, SIDE), read_pictures(drawn_by_other, SIDE)

    codes = [code for code in english if code in mine and code in others]
    return Captioned(codes, concept, pictures, LICENCE)


def images(config: Any) -> FoundImages:
    """1,900 neutral drawings of one artist, in one split: the class of each is its category, such
    as "food & drink", and its text the English name."""
    mine, words, categories = (
        _files(config, ARTISTS[0]),
        _read_words(config, "en"),
        _categories(config),
    )
    kept = [(code, entry) for code, entry in words.items() if code in mine]
    labelled = [(mine[code], categories[entry["group"]]) for code, entry in kept]
    folder = _package(config, f"emoji-datasource-{ARTISTS[0]}")
    found = with_classes({"train": labelled}, folder)
    part, texts = found.parts["train"], [entry["label"] for _, entry in kept]
    part = part._replace(texts=texts, content="\n".join([part.content, *texts]))
    return found._replace(parts={"train": part}, licence=LICENCE)


def _package(config: Any, package: str) -> Path:
    if not config.path:
        return fetch(package) / "package"
    folder = Path(config.path).expanduser() / package
    if not folder.is_dir():
        raise LabError(f"config.data.path: there is no folder {folder}")
    return folder


def _bare(code: str) -> str:
    """A sequence of code points without the selector of the coloured presentation (FE0F)."""
    return "-".join(part for part in code.upper().split("-") if part != "FE0F")


def _files(config: Any, artist: str) -> dict[str, Path]:
    """The picture files of one artist, by the code points that they show."""
    folder = _package(config, f"emoji-datasource-{artist}") / "img" / artist / str(SIDE)
    return {_bare(file.stem): file for file in sorted(folder.glob("*.png"))}


def _read_words(config: Any, language: str) -> dict[str, dict[str, Any]]:
    """A language's entry for each concept, by code; entries without a category are skipped."""
    entries = _json(_package(config, WORDS) / language / "data.json")
    return {_bare(entry["hexcode"]): entry for entry in entries if "group" in entry}


def _categories(config: Any) -> dict[int, str]:
    groups = _json(_package(config, WORDS) / "en" / "messages.json")["groups"]
    return {group["order"]: group["message"] for group in groups}


def _names(entry: dict[str, Any]) -> dict[str, str]:
    """The name of the concept and of each of its tones of skin, by code."""
    return {_bare(one["hexcode"]): one["label"] for one in (entry, *entry.get("skins", ()))}


def _json(file: Path) -> Any:
    try:
        return json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise LabError(f"{file} cannot be read ({error})") from error
