"""Pictures with captions: concepts, each with drawings and names in several languages."""

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
# Pictures that stay true when they are mirrored.
_MIRRORED = re.compile(r"animals & nature|food & drink|smileys & emotion.* face\b")
_SIDED = re.compile(r"\b(left|right)")


@dataclass(frozen=True)
class EmojiConfig(SourceConfig):
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
class Captioned:
    """What a source gives: concepts, and a maker of their pictures, which are read at last."""

    codes: list[str]
    concept: Callable[[str, bool], Concept]  # of a code; whether with its tones of skin
    pictures: Callable[[], tuple[np.ndarray, np.ndarray]]
    licence: str


@dataclass(frozen=True)
class Emoji(Splits):
    """Concepts by split, and premultiplied RGBA pictures [n, 64, 64, 4] of both artists."""

    pictures: UInt8[np.ndarray, "n h w 4"] | None = None
    others: UInt8[np.ndarray, "m h w 4"] | None = None

    @property
    def categories(self) -> list[str]:
        """Of all concepts, sorted."""
        concepts = (*self.train, *self.validation, *self.test)
        return sorted({concept.category for concept in concepts})

    def fingerprint(self) -> str:
        splits = [[astuple(c) for c in part] for part in (self.train, self.validation, self.test)]
        digest = hashlib.sha256(json.dumps(splits).encode())
        for pixels in (self.pictures, self.others):
            digest.update(pixels.tobytes())
        return digest.hexdigest()


def load_emoji(config: EmojiConfig) -> Emoji:
    """The emoji that both artists drew, fetched at first use; a concept is in one split."""
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
