"""Train, change, compare and scale transformers in JAX and Flax."""

from typing import Any

__all__ = ["load_config", "load_hf", "open_run", "train"]


def __getattr__(name: str) -> Any:
    """Imports what `__all__` names at its first use, so that a plain import does not load JAX."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from transformer_lab import in_python, opened

    return getattr(opened if name == "open_run" else in_python, name)
