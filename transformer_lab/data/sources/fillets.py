"""The spoken dialogue of the game Fish Fillets in Czech and Dutch, with English translations."""

import re
from pathlib import Path
from typing import Any

from transformer_lab.data.fetch import folders
from transformer_lab.data.splits import Found, Item, Report, fold
from transformer_lab.data.spoken import Spoken, spoken_in
from transformer_lab.errors import LabError

LANGUAGES = "cs", "nl"
LICENCE = "GPL-2"
_TEXT = r'"((?:[^"\\]|\\.)*)"'  # a string of Lua, whose backslashes protect the next character
# A recording's name, its speaker's font and the English text; then the text in the language.
_LINE = re.compile(
    rf"dialogId\(\s*{_TEXT}\s*,\s*{_TEXT}\s*,\s*{_TEXT}\s*\)\s*dialogStr\(\s*{_TEXT}\s*\)"
)


def spoken(config: Any, report: Report) -> Found:
    """The lines of dialogue that have a recording; the lines of a level are a group.

    Lines that the scripts have, but nobody speaks, are counted as without a recording."""
    language = spoken_in(config, LANGUAGES, translates=True)
    places = folders(config.path, "fillets-ng-data", f"fillets-ng-data-{language}")
    scripts, sounds, items = {}, {}, []
    for place in places:
        scripts |= {(p.parent.name, p.name): p for p in place.rglob(f"*dialogs_{language}.lua")}
        sounds |= {(p.parent.parent.name, p.stem): p for p in place.rglob(f"{language}/*.ogg")}
    if not scripts or not sounds:
        raise LabError(f'no dialogue of Fish Fillets in "{language}" below {places[0]}')
    for (level, _), script in sorted(scripts.items()):
        for name, _, english, text in _LINE.findall(_read(script)):
            words = fold(re.sub(r"\\(.)", r"\1", english if config.translated else text))
            path = sounds.get((level, name))
            if path is None or not words:
                report["no_recording" if path is None else "no_text"] += 1
            else:
                items.append(Item(level, Spoken(str(path), words, f"{level}/{name}")))
    return Found({"train": items}, LICENCE)


def _read(script: Path) -> str:
    try:
        return script.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LabError(f"{script}: damaged: {error}") from error
