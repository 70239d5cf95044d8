"""Model families by name: each module has `CONFIG` (a frozen dataclass) and `build(config)`."""

import importlib
from types import ModuleType

from transformer_lab.errors import LabError, nearest

MODELS = {
    "encoder_decoder": "transformer_lab.models.encoder_decoder",
}


def family(kind: str) -> ModuleType:
    """The module of a family."""
    if kind not in MODELS:
        raise LabError(f'model.kind = "{kind}" is unknown{nearest(kind, MODELS)}')
    return importlib.import_module(MODELS[kind])
