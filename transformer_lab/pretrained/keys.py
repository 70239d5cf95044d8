"""JSON settings that must all be accounted for: a key is read, known not to matter, or refused."""

import json
import math
from collections.abc import Collection, Mapping
from typing import Any

from transformer_lab.errors import LabError, shown

ACTIVATIONS = {  # theirs -> ours; of several names for one function the first is written
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
# Null everywhere: an absent value, or one under which nothing changes.
UNSET = (None,)
SIZE = 2**21  # of what no tensor shows, such as how long a text may be
# Of what a name or a step of a loop stands for each; experts may share a tensor.
COUNTS = {"num_experts": 1024, "num_local_experts": 1024, "conv_kernel": 64, "mamba_d_conv": 64}


class Settings:
    """The keys of one file; `finish` refuses those that nobody has asked for.

    `notes` are lines for the reader about what was passed over.
    """

    def __init__(
        self, values: Mapping[str, Any], file: str, tensors: Mapping[str, Any] | None = None
    ):
        """`tensors` are those of the file, which bound the sizes that it can have."""
        self.values, self.file, self.tensors = dict(values), file, tensors
        self.left, self.notes = set(values), list[str]()

    def ignore(self, names: Collection[str]) -> None:
        """Keys that are known to change no number."""
        self.left -= set(names)

    def fix(self, allowed: Mapping[str, Collection[Any]]) -> None:
        """Keys that may be absent or have one of the values under which they change nothing."""
        for name, valid in allowed.items():
            value = self.raw(name)
            if name in self.values and value not in valid:
                raise self.error(name, f"only {' or '.join(map(json.dumps, valid))} is")

    def integer(self, name: str, default: int | None, least: int = 1) -> int | None:
        """A whole number; null only where the default is None."""
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
        """A finite number."""
        value = self.raw(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= 1e30:
            raise self.error(name, "it must be a number")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self.raw(name, default)
        if not isinstance(value, bool):
            raise self.error(name, "it must be true or false")
        return value

    def choice(self, name: str, default: str | bool, valid: Mapping[Any, Any]) -> Any:
        """What the table says of the value."""
        value = self.raw(name, default)
        if not isinstance(value, str | bool) or value not in valid:
            raise self.error(name, f"only {', '.join(map(json.dumps, valid))} are")
        return valid[value]

    def raw(self, name: str, default: Any = None) -> Any:
        """The value as it is, to be judged by the caller."""
        self.left.discard(name)
        return self.values.get(name, default)

    def finish(self) -> None:
        """Refuse the keys that are left, unless they are null or tell of versions and tools."""
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
        """Keys and their values, as a message lists them."""
        return ", ".join(f"{name} = {shown(self.values[name])}" for name in sorted(names))

    def error(self, name: str, why: str) -> LabError:
        """The refusal of a value."""
        value = shown(self.values.get(name))
        return LabError(f"{self.file}: {name} = {value} is not supported: {why}")


def words(text: str) -> frozenset[str]:
    """A set of names, written as running text."""
    return frozenset(text.split())
