"""Asterisk's telephone prompts in English and French: one speaker each, 8,000 samples a second."""

import gzip
import re
import zlib
from typing import Any

from transformer_lab.data.fetch import folders
from transformer_lab.data.splits import Found, Item, Report, fold, key
from transformer_lab.data.spoken import Spoken, spoken_in
from transformer_lab.errors import LabError

LANGUAGES = "en", "fr"
LICENCE = "CC-BY-SA-3.0"
UNSAID = re.compile(r"\[[^]]*\]|<[^>]*>|\([^)]*\)")


def spoken(config: Any, report: Report) -> Found:
    """The prompts that are in the list of texts; prompts of equal text are a group.

    Prompts whose whole text is in brackets, such as "[ascending tones]", are not speech and
    dropped. Brackets within a text are removed, as they are not spoken."""
    package = f"asterisk-core-sounds-{spoken_in(config, LANGUAGES)}"
    places, name = folders(config.path, package, f"{package}-wav"), f"{package[9:]}.txt.gz"
    files = [path for place in places for path in sorted(place.rglob("*.wav"))]
    lists = [path for place in places for path in sorted(place.rglob(name))]
    if not lists or not files:
        raise LabError(f"no {name} with .wav files of Asterisk below {places[0]}")
    try:
        lines = gzip.decompress(lists[0].read_bytes()).decode().splitlines()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise LabError(f"{lists[0]}: damaged: {error}") from error
    root, found, items = min(files, key=lambda path: len(path.parts)).parent, set(files), []
    for line in lines:
        name, colon, text = map(str.strip, line.partition(":"))
        if not colon or line.startswith(";"):
            continue
        path, text = root / f"{name}.wav", fold(UNSAID.sub(" ", text))
        if path not in found:
            report["no_recording"] += 1
        elif not text:
            report["no_speech"] += 1
        else:
            items.append(Item(key(text), Spoken(str(path), text, name)))
    return Found({"train": items}, LICENCE)
