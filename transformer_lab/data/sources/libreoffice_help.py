"""The LibreOffice help: sentence pairs of its translations, its pages, and its index entries."""

import html
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformer_lab.data.fetch import folders, packages_of
from transformer_lab.data.formats.lines import lines
from transformer_lab.data.searches import Library
from transformer_lab.data.splits import Found, Item, Report, fold
from transformer_lab.errors import LabError

FOLDERS = {"en": "en-US", "fr": "fr", "de": "de"}
PACKAGES = {
    "en": "libreoffice-help-en-us",
    "fr": "libreoffice-help-fr",
    "de": "libreoffice-help-de",
}
LICENCE = "LibreOffice help: MPL-2.0"

_ENTRY = re.compile(r'\{url:"[^"/]*/text/([^"?#]*)[^"]*", app:"[^"]*", text:"([^"]*)"')
_TITLE = re.compile(r"<title>(.*?)</title>", re.DOTALL)
_BLOCK = re.compile(r'<(p|h[1-6])\b[^>]*?\bid="((?:par|hd)_[^"]*)"[^>]*>(.*?)</\1>', re.DOTALL)
_SPAN = re.compile(r"<span\b[^>]*>|</span>")
_VARIANT = re.compile(r'class="[A-Z]{3,}"')  # another wording for one program, such as Calc
_BREAK = re.compile(r"<(?:br|img|td|li)\b[^>]*>")
_TAG = re.compile(r"<[^>]*>")
# A sentence ends at . ! or ? and the next begins with a capital or a digit, maybe quoted.
_BETWEEN = re.compile(r'(?<=[.!?])\s+(?=["«„“(\[]?\s?[A-ZÀ-Þ0-9])')
_FULL = re.compile(r'[.!?][)"»“”]?$')


def pairs(config: Any, report: Report) -> Found:
    found = folders(config.path, *packages_of(config, PACKAGES))
    return Found({"train": read(found, *config.sides(), report)}, LICENCE)


def documents(config: Any, report: Report) -> Found:
    """The English pages as documents, with one paragraph on each line."""
    (folder,) = folders(config.path, PACKAGES["en"])
    files = sorted(folder.rglob("en-US/text/**/*.html"))
    if not files:
        raise LabError(f"no page below a folder en-US/text with LibreOffice's help in {folder}")
    pages = (blocks("\n".join(line for _, line in lines(file))).values() for file in files)
    texts = ["\n".join(" ".join(sentences(block)) for block in page) for page in pages]
    return Found({"train": [Item(text, text) for text in texts]}, LICENCE)


def searches(config: Any, report: Report) -> Library:
    """The entries of the help's index as queries, and the pages that they lead to as documents.

    An entry of one language leads to the page of the same name in another."""
    found = folders(config.path, *packages_of(config, PACKAGES))
    roots = [_root(found, language) for language in config.sides()]
    file = roots[0].parent / "bookmarks.js"
    entries: dict[str, dict[str, None]] = {}
    for page, entry in _ENTRY.findall(_text(file) if file.exists() else ""):
        entries.setdefault(fold(html.unescape(entry)), {})[page] = None
    if not entries:
        raise LabError(f"{file}: no entry of the help's index is there")
    pages = sorted({page for some in entries.values() for page in some})
    documents = {
        page: _page(_text(roots[1] / page)) for page in pages if (roots[1] / page).exists()
    }
    found = [(entry, [p for p in some if p in documents]) for entry, some in entries.items()]
    report["without_page"] += sum(not some for _, some in found)
    return Library(documents, {"train": [one for one in found if one[1]]}, LICENCE)


def _page(page: str) -> tuple[str, str]:
    """A page's title, and its text with one paragraph on each line."""
    title = _TITLE.search(page)
    text = "\n".join(" ".join(sentences(block)) for block in blocks(page).values())
    return fold(html.unescape(title.group(1))) if title else "", text


def read(folders: list[Path], source: str, target: str, report: Report) -> list[Item]:
    """Full sentences of paragraphs that both languages have, grouped by page; one pair for each.

    Paragraphs are matched by (page, id). A paragraph counts as unclear if its sides have different
    numbers of sentences, or variants for several programs; a fragment does not end like a sentence;
    an untranslated sentence is the same on both sides."""
    roots = {language: _root(folders, language) for language in (source, target)}
    rows = []
    for file in sorted(roots[source].rglob("*.html")):
        page = file.relative_to(roots[source])
        other = roots[target] / page
        if other.exists():
            sides = blocks(_text(file)), blocks(_text(other))
            rows += _page_rows(page.as_posix(), *sides, report)
    return rows


def _page_rows(
    page: str, source: dict[str, str], target: dict[str, str], report: Report
) -> list[Item]:
    rows = []
    for name in (name for name in source if name in target):
        sides = sentences(source[name]), sentences(target[name])
        if len(sides[0]) != len(sides[1]) or _VARIANT.search(source[name] + target[name]):
            report["unclear"] += len(sides[0])
            continue
        for pair in zip(*sides, strict=True):
            if not all(_FULL.search(side) for side in pair):
                report["fragment"] += 1
            elif pair[0] == pair[1]:
                report["untranslated"] += 1
            else:
                rows.append(Item(page, pair))
    return rows


def sections(folder: Path) -> Iterator[tuple[str, str, str]]:
    """Page, heading and text of English sections with at least two full sentences."""
    root = _root([folder], "en")
    for file in sorted(root.rglob("*.html")):
        heading, body = "", []
        for name, inside in [*blocks(_text(file)).items(), ("hd_end", "")]:
            found = sentences(inside)
            if not name.startswith("hd_"):
                body += [sentence for sentence in found if _FULL.search(sentence)]
                continue
            if heading and len(body) > 1:
                yield file.relative_to(root).as_posix(), heading, " ".join(body)
            heading, body = " ".join(found), []


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise LabError(f"{file}: not UTF-8 at byte {error.start}") from error


def _root(folders: list[Path], language: str) -> Path:
    """The folder text/ of a language, at or below one of the folders; LabError if none."""
    name = FOLDERS[language]
    for folder in folders:
        for root in sorted(folder.rglob(f"{name}/text")):
            return root
    where = ", ".join(map(str, folders))
    raise LabError(f"no folder {name}/text with LibreOffice's help in {where}")


def blocks(page: str) -> dict[str, str]:
    """The HTML of each paragraph and heading by its id, without variants for macOS."""
    found: dict[str, str] = {}
    for _, name, inside in _BLOCK.findall(_without_mac(page)):
        found.setdefault(name, inside)  # an embedded section repeats its ids
    return found


def _without_mac(page: str) -> str:
    """The page without <span class="MAC">, which repeats keys as macOS has them."""
    kept, position, depth = [], 0, 0
    for tag in _SPAN.finditer(page):
        if depth:
            depth += -1 if tag.group().startswith("</") else 1
            if not depth:
                position = tag.end()
        elif 'class="MAC"' in tag.group():
            kept.append(page[position : tag.start()])
            depth = 1
    return "".join(kept) + ("" if depth else page[position:])


def sentences(inside: str) -> list[str]:
    """Divides a paragraph's HTML into sentences of plain text."""
    text = fold(html.unescape(_TAG.sub("", _BREAK.sub(" ", inside))))
    return _BETWEEN.split(text) if text else []
