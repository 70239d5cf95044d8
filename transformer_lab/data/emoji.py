"""Captioned pictures of concepts: drawings with names and tags in several languages."""

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import astuple, dataclass

import numpy as np
from jaxtyping import UInt8

from transformer_lab.data.splits import SourceConfig, Splits, read, shuffled
from transformer_lab.errors import LabError, known

ARTISTS = ("google", "twitter")
TEMPLATES = {
    "en": ("{}", "an emoji of {}", "a picture of {}", "a drawing of {}"),
    "fr": ("{}", "un émoji : {}", "une image : {}", "un dessin : {}"),
}
# Categories whose pictures keep their meaning when mirrored.
_MIRRORED = re.compile(r"animals & nature|food & drink|smileys & emotion.* face\b")
_SIDED = re.compile(r"\b(left|right)")


@dataclass(frozen=True)
class EmojiConfig(SourceConfig):
    """Settings of emoji: the artist, the languages, and which concepts are held out."""

    source: str = "emoji"  # where the pictures come from: emoji
    path: str = ""  # a folder with the three packages unpacked under their names
    artist: str = "google"  # google | twitter: whose drawings are trained on
    languages: tuple[str, ...] = ("en", "fr")  # of the captions
    test_share: float = 0.2  # of the concepts
    validation_share: float = 0.0  # 0: all others are trained on, and no validation is made
    max_concepts: int = 0  # to train on at most (0 = all); held-out ones stay the same
    tones: bool = True  # train on drawings in all tones of skin
    split_seed: int = 0  # another number holds out others

    KIND = "captioned"

    def __post_init__(self):
        super().__post_init__()
        known("config.data.artist = ", self.artist, ARTISTS)
        for language in self.languages:
            known("config.data.languages = ", language, TEMPLATES)
        if not self.languages:
            raise LabError("config.data.languages needs one")


@dataclass(frozen=True)
class Drawing:
    """The index of a drawing in the array of pictures, and its name in each language."""

    row: int
    names: dict[str, str]


@dataclass(frozen=True)
class Concept:
    """The meaning of one emoji; the first drawing is neutral, the others have tones of skin."""

    code: str
    category: str
    tags: dict[str, tuple[str, ...]]
    drawings: tuple[Drawing, ...]
    other: int  # the row of the other artist's drawing

    @property
    def name(self) -> str:
        """The name of the neutral drawing in the first language, such as English."""
        return next(iter(self.drawings[0].names.values()))

    @property
    def mirrored(self) -> bool:
        """Whether a mirrored drawing still means the same, as with animals."""
        seen = f"{self.category} {self.name}"
        return bool(_MIRRORED.search(seen)) and not _SIDED.search(seen)


@dataclass(frozen=True)
class Captioned:
    """A source's result: concepts by code, and a function that reads the pictures of those made."""

    codes: list[str]
    concept: Callable[[str, bool], Concept]  # (code, whether with all tones of skin)
    pictures: Callable[[], tuple[np.ndarray, np.ndarray]]
    licence: str


@dataclass(frozen=True)
class Emoji(Splits):
    """The concepts of each split, and both artists' pictures, premultiplied RGBA [n, 64, 64, 4]."""

    pictures: UInt8[np.ndarray, "n h w 4"] | None = None
    others: UInt8[np.ndarray, "m h w 4"] | None = None

    @property
    def categories(self) -> list[str]:
        """The categories of all concepts, sorted by name."""
        concepts = (*self.train, *self.validation, *self.test)
        return sorted({concept.category for concept in concepts})

    def fingerprint(self) -> str:
        splits = [[astuple(c) for c in part] for part in (self.train, self.validation, self.test)]
        digest = hashlib.sha256(json.dumps(splits).encode())
        for pixels in (self.pictures, self.others):
            digest.update(pixels.tobytes())
        return digest.hexdigest()


def load_emoji(config: EmojiConfig) -> Emoji:
    """The emoji that both artists drew, fetched when first used; each is in one split."""
    found: Captioned = read(config)
    order = shuffled(found.codes, config.split_seed)
    test = round(config.test_share * len(order))
    end = test + round(config.validation_share * len(order))
    train = order[end:][: config.max_concepts or None]
    if not train:
        raise LabError(f"config.data: {len(order)} emoji leave none to train on")
    parts = {"train": train, "validation": order[test:end], "test": order[:test]}
    splits = {
        split: [found.concept(code, config.tones and split == "train") for code in codes]
        for split, codes in parts.items()
    }
    pictures, others = found.pictures()
    report = {split: len(concepts) for split, concepts in splits.items()}
    report["pictures"] = len(pictures)
    return Emoji(**splits, report=report, licence=found.licence, pictures=pictures, others=others)


def caption(concept: Concept, drawing: Drawing, rng: np.random.Generator) -> str:
    """A random caption of a drawing: its name, tags or both, at times with the category."""
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
    """The text inserted into each template of a language."""
    return [template.format(text) for template in TEMPLATES[language]]


def descriptions(concept: Concept) -> list[str]:
    """The name alone, and with all tags, in every language and template."""
    found = []
    for language, name in concept.drawings[0].names.items():
        whole = ", ".join([name, *concept.tags[language]])
        found += [*prompts(name, language), *prompts(whole, language)]
    return found
