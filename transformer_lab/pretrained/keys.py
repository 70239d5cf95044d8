"""JSON settings that must all be accounted for: a key is read, known not to matter, or refused."""

import json
from collections.abc import Collection, Mapping
from typing import Any

from transformer_lab.errors import LabError


class Settings:
    """The keys of one file; `finish` refuses those that nobody has asked for."""

    def __init__(self, values: Mapping[str, Any], file: str):
        self.values, self.file = dict(values), file
        self.left = set(values)

    def ignore(self, names: Collection[str]) -> None:
        """Keys that are known to change no number."""
        self.left -= set(names)

    def fix(self, allowed: Mapping[str, Collection[Any]]) -> None:
        """Keys that may be absent or have one of the values under which they change nothing."""
        for name in allowed:
            value = self._take(name, None)
            if name in self.values and not any(value == ok for ok in allowed[name]):
                raise self.error(name, f"only {' or '.join(map(json.dumps, allowed[name]))} is")

    def integer(self, name: str, default: int | None, least: int = 1) -> int | None:
        """A whole number; null only where the default is None."""
        value = self._take(name, default)
        if value is default:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self.error(name, f"it must be a whole number of at least {least}")
        return value

    def number(self, name: str, default: float) -> float:
        value = self._take(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.error(name, "it must be a number")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self._take(name, default)
        if not isinstance(value, bool):
            raise self.error(name, "it must be true or false")
        return value

    def choice(self, name: str, default: str, valid: Mapping[str, Any]) -> Any:
        """What the table says of the value."""
        value = self._take(name, default)
        if not isinstance(value, str) or value not in valid:
            raise self.error(name, f"only {', '.join(sorted(valid))} are")
        return valid[value]

    def raw(self, name: str, default: Any = None) -> Any:
        """The value, to be judged by the caller."""
        return self._take(name, default)

    def finish(self) -> None:
        """Refuse the keys that are left."""
        if self.left:
            unknown = ", ".join(
                f"{name} = {_show(self.values[name])}" for name in sorted(self.left)
            )
            raise LabError(
                f"{self.file}: not understood, and it may change the numbers: {unknown} "
                "(remove what does not)"
            )

    def error(self, name: str, why: str) -> LabError:
        """The refusal of a value."""
        shown = _show(self.values.get(name))
        return LabError(f"{self.file}: {name} = {shown} is not supported: {why}")

    def _take(self, name: str, default: Any) -> Any:
        self.left.discard(name)
        return self.values.get(name, default)


def _show(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
