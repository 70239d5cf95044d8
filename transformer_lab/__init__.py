"""Train, change, compare and scale transformers in JAX and Flax."""

from typing import Any

__all__ = ["open_run"]


def __getattr__(name: str) -> Any:
    """Imports `open_run` at its first use, so that a plain import does not load JAX."""
    if name != "open_run":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from transformer_lab.opened import open_run

    return open_run
