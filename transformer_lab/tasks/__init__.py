"""Objectives by name: each module has `SECTIONS` (its config dataclasses) and `build(...)`.

What the trainer asks of a task stands in `transformer_lab.tasks.base`.
"""

import importlib
from types import ModuleType

from transformer_lab.errors import LabError, nearest

TASKS = {
    "classification": "transformer_lab.tasks.classification",
    "contrastive": "transformer_lab.tasks.contrastive",
    "image_classification": "transformer_lab.tasks.image_classification",
    "image_modeling": "transformer_lab.tasks.image_modeling",
    "language_modeling": "transformer_lab.tasks.language_modeling",
    "masked_language_modeling": "transformer_lab.tasks.masked_language_modeling",
    "parentheses": "transformer_lab.tasks.parentheses",
    "question_answering": "transformer_lab.tasks.question_answering",
    "sentence_embedding": "transformer_lab.tasks.sentence_embedding",
    "tagging": "transformer_lab.tasks.tagging",
    "text_to_text": "transformer_lab.tasks.text_to_text",
    "translation": "transformer_lab.tasks.translation",
    "word_vectors": "transformer_lab.tasks.word_vectors",
}


def objective(kind: str) -> ModuleType:
    """The module of an objective."""
    if kind not in TASKS:
        raise LabError(f'task.kind = "{kind}" is unknown{nearest(kind, TASKS)}')
    return importlib.import_module(TASKS[kind])
