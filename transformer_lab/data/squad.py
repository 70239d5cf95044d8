"""Questions in the JSON format of SQuAD 1.1 and 2.0 (Rajpurkar 2016 and 2018)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformer_lab.data.labelled_rows import Item, Question
from transformer_lab.data.user_files import lines, parse_json
from transformer_lab.errors import LabError


def read(file: Path) -> list[Item]:
    """The questions in their order; an article, else a context, is a group.

    Repeated answers stay, as the official score takes the best of all. Raises LabError for what
    is not of this format, an answer that does not stand in its context where it says, and an id
    that comes twice.
    """
    content = parse_json("\n".join(line for _, line in lines(file)), str(file))
    if not isinstance(content, dict):
        raise LabError(
            f'{file}: a {type(content).__name__}, not the object with "data" of SQuAD\'s format; '
            "write rows as JSON lines, an object a line"
        )
    items, seen = [], set()
    try:
        for item in _items(content):
            _check(item.row, seen, file)
            items.append(item)
    except (KeyError, TypeError, AttributeError) as error:
        after = f" after question {items[-1].row.id}" if items else ""
        raise LabError(f"{file}: not in SQuAD's format{after} ({error!r})") from error
    return items


def _items(content: dict[str, Any]) -> Iterator[Item]:
    for article in content["data"]:
        for paragraph in article["paragraphs"]:
            context = paragraph["context"]
            for entry in paragraph["qas"]:
                yield Item(article.get("title") or context, _question(context, entry))


def _question(context: str, entry: dict[str, Any]) -> Question:
    impossible = bool(entry.get("is_impossible", False))
    answers = [] if impossible else [(a["text"], a["answer_start"]) for a in entry["answers"]]
    return Question(str(entry["id"]), context, entry["question"], answers, impossible)


def _check(question: Question, seen: set[str], file: Path) -> None:
    if question.id in seen:
        raise LabError(f"{file}: two questions have the id {question.id}")
    seen.add(question.id)
    for text, start in question.answers:
        if start < 0 or question.context[start : start + len(text)] != text:
            raise LabError(
                f"{file}: question {question.id}: {text!r} does not stand at character {start} of "
                "its context; answer_start counts characters from 0"
            )
