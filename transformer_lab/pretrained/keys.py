"""JSON settings of which every key must be read, be known not to matter, or be refused."""

import json
import math
from collections.abc import Collection, Mapping
from typing import Any

from transformer_lab.errors import LabError, shown

ACTIVATIONS = {  # theirs -> ours; of several names of one function the first is written
    "relu": "relu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "quick_gelu": "gelu_quick",
    "swish": "silu",
    "silu": "silu",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
    "linear": "identity",
}
# Tools write them into config.json beside the settings of the model.
BOOKKEEPING = frozenset(
    ["auto_map", "unsloth_fixed", "model_name", "pretrained_model_name_or_path"]
)
# Only null, which means absent, is supported.
UNSET = (None,)
SIZE = 2**21  # the limit of sizes that no tensor shows, such as the length of a text
# Limits of numbers of which each step costs a name or loop; experts may share a tensor.
COUNTS = {"num_experts": 1024, "num_local_experts": 1024, "conv_kernel": 64, "mamba_d_conv": 64}


class Settings:
    """The settings of one file; `finish` refuses keys that nothing has read.

    `notes` are lines for the user about keys that were passed over."""

    def __init__(
        self, values: Mapping[str, Any], file: str, tensors: Mapping[str, Any] | None = None
    ):
        """`tensors` are the file's; they limit how large a size in its settings may be."""
        self.values, self.file, self.tensors = dict(values), file, tensors
        self.left, self.notes = set(values), list[str]()

    def ignore(self, names: Collection[str]) -> None:
        """Accepts keys that are known not to affect the outputs, whatever their values."""
        self.left -= set(names)

    def fix(self, allowed: Mapping[str, Collection[Any]]) -> None:
        """Accepts keys that are absent or have an allowed value, and refuses any other."""
        for name, valid in allowed.items():
            value = self.raw(name)
            if name in self.values and value not in valid:
                raise self.error(name, f"only {' or '.join(map(json.dumps, valid))} is")

    def integer(self, name: str, default: int | None, least: int = 1) -> int | None:
        """A whole number of at least `least`; null only where the default is None."""
        value = self.raw(name, default)
        if value is None and default is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self.error(name, f"it must be a whole number of at least {least}")
        if self.tensors is not None:
            elements = sum(math.prod(tensor.shape) for tensor in self.tensors.values())
            most = len(self.tensors) if "layer" in name else max(elements, SIZE)
            if name in COUNTS:
                most = COUNTS[name] + len(self.tensors)
            if value > most:
                raise self.error(name, f"the file's tensors have room for {most:,} at most")
        return value

    def number(self, name: str, default: float) -> float:
        """The value as a float; LabError if it is not a finite number."""
        value = self.raw(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= 1e30:
            raise self.error(name, "it must be a number")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """The value as a bool; LabError if it is not true or false."""
        value = self.raw(name, default)
        if not isinstance(value, bool):
            raise self.error(name, "it must be true or false")
        return value

    def choice(self, name: str, default: str | bool, valid: Mapping[Any, Any]) -> Any:
        """The entry of the table `valid` for the value; LabError if it has none."""
        value = self.raw(name, default)
        if not isinstance(value, str | bool) or value not in valid:
            raise self.error(name, f"only {', '.join(map(json.dumps, valid))} are")
        return valid[value]

    def raw(self, name: str, default: Any = None) -> Any:
        """The unchecked value, which the caller has to check; marks the key as read."""
        self.left.discard(name)
        return self.values.get(name, default)

    def finish(self) -> None:
        """Raises LabError for unread keys, unless they are null or name versions and tools."""
        passed = {
            name
            for name in self.left
            if self.values[name] is None
            or name in BOOKKEEPING
            or name.startswith("_")
            or name.endswith("_version")
        }
        if passed:
            self.notes.append(
                f"{self.file}: passed over, for no number changes: {self.show(passed)}"
            )
        if unknown := self.left - passed:
            raise LabError(
                f"{self.file}: not understood, and it may change the numbers: {self.show(unknown)} "
                "(remove what does not)"
            )

    def show(self, names: Collection[str]) -> str:
        """A list of keys with their values for messages, such as "a = 1, b = true"."""
        return ", ".join(f"{name} = {shown(self.values[name])}" for name in sorted(names))

    def error(self, name: str, why: str) -> LabError:
        """The error for an unsupported value of a key, with the reason, to be raised."""
        value = shown(self.values.get(name))
        return LabError(f"{self.file}: {name} = {value} is not supported: {why}")


def words(text: str) -> frozenset[str]:
    """The set of the words in a text, separated by white space."""
    return frozenset(text.split())
