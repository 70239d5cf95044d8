"""LabError, the one exception meant for users to read, and checks that raise it or word it."""

import difflib
import json
import math
import stat
import traceback
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


class LabError(Exception):
    """An error in the user's input; its text is one line that names what is wrong and the way out.

    Entry points print it without a traceback and exit with code 2. Line breaks, which a name in it
    may hold, become blanks.
    """

    def __init__(self, text: object = ""):
        super().__init__(" ".join(str(text).splitlines()))


LESS_MEMORY = (
    "lower batch.tokens_per_batch or batch.rows, raise micro_batches, set model.remat to nothing, "
    "split the model over devices with mesh.fsdp, or make it smaller"
)


def nearest(name: str, valid: Iterable[str]) -> str:
    """' (did you mean "x"?)' for the closest valid name, else the list of all of them."""
    valid = sorted(valid)
    close = difflib.get_close_matches(name, valid, n=1, cutoff=0.6)
    if close:
        return f' (did you mean "{close[0]}"?)'
    return f" (valid: {', '.join(filter(None, valid)) or 'none'})"


def known(what: str, value: str, valid: Iterable[str]) -> str:
    """Returns a valid value. Raises: LabError that starts with `what` and names the nearest one."""
    if value not in (valid := list(valid)):
        raise LabError(f'{what}"{value}" is unknown{nearest(str(value), valid)}')
    return value


def within(name: str, value: int | float, low: int | float, high: int | float = math.inf) -> None:
    """Raises: LabError for a setting whose number is not finite, or not from `low` to `high`."""
    if not (math.isfinite(value) and low <= value <= high):
        bounds = f"at least {low:g}" if high == math.inf else f"from {low:g} to {high:g}"
        raise LabError(f"{name} = {value} must be {bounds}")


def at_least(settings: Any, section: str, least: int | float, *names: str) -> None:
    """Raises: LabError for the first named setting of a dataclass that is less than `least`."""
    for name in names:
        within(f"{section}.{name}", getattr(settings, name), least)


def fractions(settings: Any, section: str, *names: str) -> None:
    """Raises: LabError for the first named setting of a dataclass that is not in [0, 1)."""
    for name in names:
        if not 0 <= (value := getattr(settings, name)) < 1:
            raise LabError(f"{section}.{name} = {value} is not in [0, 1)")


def chosen(settings: Any, section: str, choices: Mapping[str, Iterable[str]]) -> None:
    """Raises: LabError for the first setting of a dataclass that is none of its valid names."""
    for name, valid in choices.items():
        known(f"{section}.{name} = ", getattr(settings, name), valid)


def fits(value: Any, hint: Any) -> bool:
    """Whether a JSON value is of a type such as `list[str]` or `dict[str, float | str]`.

    A whole number is a float too, and true is no number. Numbers above 1e100 are refused: their
    squares and sums may be too large for a float.
    """
    origin, arguments = typing.get_origin(hint) or hint, typing.get_args(hint)
    if origin is types.UnionType:
        return any(fits(value, each) for each in arguments)
    if origin is list:
        return isinstance(value, list) and all(fits(x, arguments[0]) for x in value)
    if origin is dict:
        inner = arguments[1:]  # a plain dict may hold anything
        return isinstance(value, dict) and all(fits(x, *inner) for x in value.values() if inner)
    if origin not in (int, float) or isinstance(value, bool):
        return isinstance(value, origin) and (origin is bool or not isinstance(value, bool))
    if origin is float and isinstance(value, float):
        return abs(value) <= 1e100 or not math.isfinite(value)
    return isinstance(value, int) and abs(value) <= 1e100


def shown(value: Any) -> str:
    """A JSON value as a message shows it: in one line, cut after 57 characters with "..."."""
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def line_of(error: BaseException, file: str) -> str:
    """'FILE:LINE: ' of the innermost line of a user's Python file in a traceback; '' if none."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}: "
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).resolve() == Path(file).resolve()
    ]
    return f"{file}:{lines[-1]}: " if lines else ""


def check_file(path: str | Path) -> Path:
    """The path, if it is a file that can be read.

    Raises: LabError that says whether it is missing, a directory, a pipe or a device, or not
    readable.
    """
    if isinstance(path, Path) and "://" in str(path):  # in a bucket: no directory has this name
        if path.is_file():
            return path
        raise LabError(f"{path}: no such file")
    path = Path(path)
    try:
        mode = path.stat().st_mode
        if stat.S_ISREG(mode):
            path.open("rb").close()
            return path
    except FileNotFoundError:
        raise LabError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:  # a name that is too long, or holds a zero byte
        raise LabError(f"{path}: cannot be read: {getattr(error, 'strerror', error)}") from error
    kind = "a directory" if stat.S_ISDIR(mode) else "a pipe or a device"
    raise LabError(f"{path} is {kind}, and a file is needed")


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises: LabError if the file holds no such object."""
    try:
        text = check_file(path).read_bytes().decode()
        value = json.loads(text)
        if "\\ud" in text.lower():  # half a character, which no other file could hold
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:  # bad JSON, and bytes that are not UTF-8
        raise LabError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise LabError(f"{path}: holds a JSON {type(value).__name__}, needs an object")
    return value
