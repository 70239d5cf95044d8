"""Tux Paint's stamps, described aloud in several languages, with the English descriptions."""

from pathlib import Path
from typing import Any

from transformer_lab.data.described import Described
from transformer_lab.data.fetch import folders
from transformer_lab.data.splits import Found, Item, Report, fold, key
from transformer_lab.data.spoken import Spoken, SpokenConfig, spoken_in
from transformer_lab.errors import LabError

LANGUAGES = "be", "bg", "ca", "da", "el", "en", "es", "fr", "lt", "nl", "ro", "ru"
LICENCE = "GPL-2"


def spoken(config: Any, report: Report) -> Found:
    """The descriptions in a language that have a recording; equal texts are a group.

    NAME.txt holds the English text, then lines such as `fr.utf8=Un chat.`; NAME_desc_fr.ogg is the
    recording, NAME_desc.ogg the English one."""
    language = spoken_in(config, LANGUAGES, translates=True)
    place = folders(config.path, "tuxpaint-stamps-default")[0]
    ending = _ending(language)
    items = []
    for path in sorted(place.rglob(f"*{ending}")):
        stem = str(path).removesuffix(ending)
        try:
            with open(f"{stem}.txt", encoding="utf-8") as file:
                english, *lines = [fold(line) for line in file if line.strip()] or [""]
        except FileNotFoundError:
            report["no_text"] += 1
            continue
        except (OSError, UnicodeDecodeError) as error:
            raise LabError(f"{stem}.txt: damaged: {error}") from error
        texts = {"en.utf8": english} | dict(line.split("=", 1) for line in lines if "=" in line)
        text = english if config.translated else texts.get(f"{language}.utf8", "")
        if not text:
            report["no_text"] += 1
        else:
            name = path.relative_to(place).as_posix()
            items.append(Item(key(text), Spoken(str(path), text, name)))
    if not items:
        raise LabError(f'no description of a stamp in "{language}" below {place}')
    return Found({"train": items}, LICENCE)


def described(config: Any, report: Report) -> Found:
    """The stamps whose picture is described aloud in each of the config's languages; those with
    the same words in the first language are a group."""
    found: dict[str, dict[str, Spoken]] = {}
    for language in config.languages:
        one = SpokenConfig(source="described_stamps", language=language, path=config.path)
        for item in spoken(one, report).parts["train"]:
            found.setdefault(item.row.path.removesuffix(_ending(language)), {})[language] = item.row
    items = []
    for stem, said in sorted(found.items()):
        if len(said) < len(config.languages) or not Path(f"{stem}.png").is_file():
            report["no_picture_or_not_in_all_languages"] += 1
            continue
        texts = {language: row.text for language, row in said.items()}
        sounds = {language: row.path for language, row in said.items()}
        first = said[config.languages[0]]
        items.append(Item(key(first.text), Described(first.name, f"{stem}.png", texts, sounds)))
    return Found({"train": items}, LICENCE)


def _ending(language: str) -> str:
    """What the names of a language's recordings have after the stamp's name."""
    return "_desc.ogg" if language == "en" else f"_desc_{language}.ogg"
