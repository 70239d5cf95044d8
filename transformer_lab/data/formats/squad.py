"""Questions in the JSON format of SQuAD 1.1 and 2.0 (Rajpurkar 2016 and 2018)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformer_lab.data.formats.lines import lines, parse_json
from transformer_lab.data.labelled import Question
from transformer_lab.data.splits import Item
from transformer_lab.errors import LabError


def read(file: Path) -> list[Item]:
    """The questions in order; their group is the article, or the context if it has no title.

    Repeated answers are kept, as the official score takes the best of all. A question without
    answers counts as impossible, whatever `is_impossible` says. Raises: LabError for other formats,
    for an answer that is not in the context at its start, and for a repeated id."""
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
        title = _typed(article, "title") if article.get("title") is not None else ""
        for paragraph in article["paragraphs"]:
            context = _typed(paragraph, "context")
            for entry in paragraph["qas"]:
                yield Item(title or context, _question(context, entry))


def _question(context: str, entry: dict[str, Any]) -> Question:
    impossible = "is_impossible" in entry and _typed(entry, "is_impossible", bool)
    answers = [] if impossible else [_answer(answer) for answer in entry["answers"]]
    name = str(_typed(entry, "id", str | int))
    return Question(name, context, _typed(entry, "question"), answers, not answers)


def _answer(answer: dict[str, Any]) -> tuple[str, int]:
    return _typed(answer, "text"), _typed(answer, "answer_start", int)


def _typed(entry: dict[str, Any], name: str, kind: Any = str) -> Any:
    value = entry[name]
    if not isinstance(value, kind):
        known = getattr(kind, "__name__", kind)
        raise TypeError(f'"{name}" is of type {type(value).__name__}, not {known}')
    return value


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
