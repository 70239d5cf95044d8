"""Emoji as two artists drew them and as two languages call them: pictures with captions."""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from transformer_lab.data.fetch import fetch
from transformer_lab.data.splits import check_shares, shuffled
from transformer_lab.errors import LabError, nearest

WORDS = "emojibase-data"
ARTISTS = ("google", "twitter")
LICENCE = "words: MIT; pictures: Apache-2.0 (google), CC-BY-4.0 (twitter)"
TEMPLATES = {
    "en": ("{}", "an emoji of {}", "a picture of {}", "a drawing of {}"),
    "fr": ("{}", "un émoji : {}", "une image : {}", "un dessin : {}"),
}
SIDE = 64  # pixels of a picture
# Pictures that stay true when they are mirrored.
_MIRRORED = re.compile(r"animals & nature|food & drink|smileys & emotion.* face\b")
_SIDED = re.compile(r"\b(left|right)")


@dataclass(frozen=True)
class EmojiConfig:
    """Whose drawings to train on, in which languages, and which concepts to hold out."""

    source: str = "emoji"
    path: str = ""  # a folder with the three packages unpacked under their names
    artist: str = "google"  # google | twitter: whose drawings are trained on; the other's are not
    languages: tuple[str, ...] = ("en", "fr")  # of the captions
    test_share: float = 0.2  # of the concepts
    validation_share: float = 0.0  # 0: all others are trained on, and no validation is made
    max_concepts: int = 0  # to train on at most (0 = all); held-out ones stay the same
    tones: bool = True  # drawings in the tones of skin are trained on too
    split_seed: int = 0

    def __post_init__(self):
        for name, value, valid in (
            ("source", self.source, ("emoji",)),
            ("artist", self.artist, ARTISTS),
            *(("languages", language, TEMPLATES) for language in self.languages),
        ):
            if value not in valid:
                raise LabError(f'config.data.{name} = "{value}" is unknown{nearest(value, valid)}')
        if not self.languages or self.max_concepts < 0:
            raise LabError("config.data.languages needs one, max_concepts must not be negative")
        check_shares(self.validation_share, self.test_share)


@dataclass(frozen=True)
class Drawing:
    """A row of the pictures, and its name by language."""

    row: int
    names: dict[str, str]


@dataclass(frozen=True)
class Concept:
    """What one emoji means: the first drawing is the plain one, the others have tones of skin."""

    code: str
    category: str
    tags: dict[str, tuple[str, ...]]
    drawings: tuple[Drawing, ...]
    other: int  # the row of the other artist's drawing

    @property
    def name(self) -> str:
        """In English, if it is among the languages."""
        return next(iter(self.drawings[0].names.values()))

    @property
    def mirrored(self) -> bool:
        """Whether a mirrored drawing means the same."""
        seen = f"{self.category} {self.name}"
        return bool(_MIRRORED.search(seen)) and not _SIDED.search(seen)


@dataclass(frozen=True)
class Emoji:
    """Concepts by split, and premultiplied RGBA pictures [n, 64, 64, 4] of both artists."""

    train: list[Concept]
    validation: list[Concept]
    test: list[Concept]
    pictures: UInt8[np.ndarray, "n h w 4"]
    others: UInt8[np.ndarray, "m h w 4"]
    report: dict[str, int]
    licence: str = LICENCE

    @property
    def categories(self) -> list[str]:
        """Of all concepts, sorted."""
        concepts = (*self.train, *self.validation, *self.test)
        return sorted({concept.category for concept in concepts})

    def fingerprint(self) -> str:
        """SHA-256 of all of it."""
        splits = [[astuple(c) for c in part] for part in (self.train, self.validation, self.test)]
        digest = hashlib.sha256(json.dumps(splits).encode())
        for pixels in (self.pictures, self.others):
            digest.update(pixels.tobytes())
        return digest.hexdigest()


def load_emoji(config: EmojiConfig) -> Emoji:
    """The emoji that both artists drew, fetched at first use; a concept is in one split."""
    words = {language: _read_words(config, language) for language in config.languages}
    folders = [_pictures(config, artist) for artist in (config.artist, _other(config.artist))]
    english = _read_words(config, "en")
    categories = _categories(config)
    rows: list[list[Path]] = [[], []]

    def add(artist: int, code: str) -> int:
        rows[artist].append(folders[artist][code])
        return len(rows[artist]) - 1

    def concept(code: str, drawings: Sequence[str]) -> Concept:
        entries = {language: words[language][code] for language in words}
        names = lambda code: {lang: _names(e)[code] for lang, e in entries.items()}  # noqa: E731
        tags = {language: tuple(entry.get("tags", ())) for language, entry in entries.items()}
        return Concept(
            code,
            categories[english[code]["group"]],
            tags,
            tuple(Drawing(add(0, drawing), names(drawing)) for drawing in drawings),
            add(1, code),
        )

    known = [code for code in english if all(code in folder for folder in folders)]
    parts = _split(known, config)
    splits = {}
    for split, codes in parts.items():
        splits[split] = []
        for code in codes:
            toned = config.tones and split == "train"
            tones = [c for c in _names(english[code]) if c in folders[0]] if toned else [code]
            splits[split].append(concept(code, tones))
    if not splits["train"]:
        raise LabError(f"config.data: {len(known)} emoji leave none to train on")
    report = {split: len(concepts) for split, concepts in splits.items()}
    report["pictures"] = len(rows[0])
    pictures, others = map(_read_pictures, rows)
    return Emoji(**splits, pictures=pictures, others=others, report=report)


def caption(concept: Concept, drawing: Drawing, rng: np.random.Generator) -> str:
    """A text about a drawing: its name, some of its tags, both; or now and then its category."""
    language = str(rng.choice(list(drawing.names)))
    tags, name = concept.tags[language], drawing.names[language]
    chosen = rng.permutation(len(tags))[: rng.integers(1, 5)]
    parts = [tags[i] for i in chosen]
    kind = rng.random()
    if kind < 0.75 or not parts:
        parts = [name, *(parts if kind < 0.4 else ())]
    if language == "en" and rng.random() < 0.1:
        parts.append(str(rng.choice(concept.category.split(" & "))))
    template = TEMPLATES[language][rng.integers(len(TEMPLATES[language]))]
    return template.format(", ".join(parts))


def prompts(text: str, language: str = "en") -> list[str]:
    """The text in every template of a language."""
    return [template.format(text) for template in TEMPLATES[language]]


def descriptions(concept: Concept) -> list[str]:
    """Names alone and with all tags, in every language and template."""
    found = []
    for language, name in concept.drawings[0].names.items():
        whole = ", ".join([name, *concept.tags[language]])
        found += [*prompts(name, language), *prompts(whole, language)]
    return found


def _split(codes: list[str], config: EmojiConfig) -> dict[str, list[str]]:
    order = shuffled(codes, config.split_seed)
    test = round(config.test_share * len(order))
    end = test + round(config.validation_share * len(order))
    train = order[end:]
    if config.max_concepts:
        train = train[: config.max_concepts]
    return {"train": train, "validation": order[test:end], "test": order[:test]}


def _folder(config: EmojiConfig, package: str) -> Path:
    if not config.path:
        return fetch(package) / "package"
    folder = Path(config.path).expanduser() / package
    if not folder.is_dir():
        raise LabError(f"config.data.path: there is no folder {folder}")
    return folder


def _other(artist: str) -> str:
    return next(name for name in ARTISTS if name != artist)


def _bare(code: str) -> str:
    """A sequence of code points without the selector of coloured presentation."""
    return "-".join(part for part in code.upper().split("-") if part != "FE0F")


def _pictures(config: EmojiConfig, artist: str) -> dict[str, Path]:
    """An artist's files by code."""
    folder = _folder(config, f"emoji-datasource-{artist}") / "img" / artist / str(SIDE)
    return {_bare(file.stem): file for file in sorted(folder.glob("*.png"))}


def _read_words(config: EmojiConfig, language: str) -> dict[str, dict[str, Any]]:
    """What a language says of each concept, by code; what has no category is part of others."""
    entries = _json(_folder(config, WORDS) / language / "data.json")
    return {_bare(entry["hexcode"]): entry for entry in entries if "group" in entry}


def _categories(config: EmojiConfig) -> dict[int, str]:
    groups = _json(_folder(config, WORDS) / "en" / "messages.json")["groups"]
    return {group["order"]: group["message"] for group in groups}


def _names(entry: dict[str, Any]) -> dict[str, str]:
    """The concept's name and those of its tones of skin, by code."""
    return {_bare(one["hexcode"]): one["label"] for one in (entry, *entry.get("skins", ()))}


def _json(file: Path) -> Any:
    try:
        return json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise LabError(f"{file} cannot be read ({error})") from error


def _read_pictures(files: list[Path]) -> np.ndarray:
    """Colours times their opacity, so that they may be scaled."""
    found = np.zeros((len(files), SIDE, SIDE, 4), np.uint8)
    for row, file in zip(found, files, strict=True):
        with Image.open(file) as image:
            pixels = np.asarray(image.convert("RGBA").resize((SIDE, SIDE)), np.uint16)
        row[..., :3] = (pixels[..., :3] * pixels[..., 3:] + 127) // 255
        row[..., 3] = pixels[..., 3]
    return found
