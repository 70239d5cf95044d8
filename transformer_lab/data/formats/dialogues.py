"""Instructions and preferences as JSON lines, plain or as chats.

    {"prompt": "2+3=", "answer": "5"}
    {"messages": [{"role": "user", "content": "2+3?"}, {"role": "assistant", "content": "5"}]}
    {"prompt": "2+3=", "chosen": "5", "rejected": "6", "margin": 1.0}

In place of the texts of a preference there may be lists of messages."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformer_lab.data.dialogues import (
    ANSWER,
    PROMPT,
    ROLES,
    Instruction,
    Preference,
    Row,
    Turns,
    opening,
    plain,
)
from transformer_lab.data.formats.lines import lines, parse_json
from transformer_lab.data.splits import Item
from transformer_lab.errors import LabError


def read(file: Path, preferences: bool) -> list[Item]:
    """The rows of a file, grouped by prompt. Raises: LabError with the file and line of a row that
    has another form."""
    return [Item(opening(row), row) for row in _rows(file, preferences)]


def _rows(file: Path, preferences: bool) -> Iterator[Row]:
    for where, line in lines(file):
        if line.strip():
            record = parse_json(line, where)
            if not isinstance(record, dict):
                raise LabError(f"{where}: expected an object")
            yield (_preference if preferences else _instruction)(record, where)


def _instruction(record: dict[str, Any], where: str) -> Instruction:
    if "messages" in record:
        return Instruction(_chat(record["messages"], f'{where}: "messages"'))
    if all(isinstance(record.get(key), str) for key in ("prompt", "answer")):
        return plain(record["prompt"], record["answer"])
    raise LabError(f'{where}: expected strings "prompt" and "answer", or a list "messages"')


def _preference(record: dict[str, Any], where: str) -> Preference:
    margin = record.get("margin", 0.0)
    if isinstance(margin, bool) or not isinstance(margin, int | float) or not math.isfinite(margin):
        raise LabError(f'{where}: "margin" is {margin!r}, expected a number')
    names, parts = ("prompt", "chosen", "rejected"), []
    texts = all(isinstance(record.get(name), str) for name in names)
    lists = all(isinstance(record.get(name), list) for name in names)
    if not texts and not lists:
        raise LabError(
            f'{where}: expected "prompt", "chosen" and "rejected", all of them strings or all of '
            "them lists of messages"
        )
    for name in names:
        role = PROMPT if name == "prompt" else ANSWER
        of_chat = lambda n: _chat(record[n], f'{where}: "{n}"', n != "prompt")  # noqa: E731
        parts.append(((role, record[name]),) if texts else of_chat(name))
    return Preference(*parts, float(margin))


def _chat(messages: Any, where: str, answered: bool = True) -> Turns:
    """The turns of a list of messages, which ends with the assistant's if it is `answered`."""
    turns = []
    for message in messages if isinstance(messages, list) else [messages]:
        found = message if isinstance(message, dict) else {}
        role, text = found.get("role"), found.get("content")
        if role not in ROLES or not isinstance(text, str):
            raise LabError(
                f'{where}: a message is an object with a "role" of {", ".join(ROLES)} and a string '
                '"content"'
            )
        turns.append((role, text))
    if not turns or answered != (turns[-1][0] == "assistant"):
        raise LabError(f"{where}: the last message must {'' if answered else 'not '}be an answer")
    return tuple(turns)
