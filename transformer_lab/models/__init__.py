"""Model families by name: each module has `CONFIG` (a frozen dataclass), `build(config)` and
`example_inputs()`, the arguments of a smallest call.
"""

import importlib
from types import ModuleType
from typing import Any

import jax

from transformer_lab.errors import LabError, nearest

MODELS = {
    "cnn": "transformer_lab.models.cnn",
    "decoder": "transformer_lab.models.decoder",
    "decoder_seq2seq": "transformer_lab.models.decoder_seq2seq",
    "encoder": "transformer_lab.models.encoder",
    "encoder_decoder": "transformer_lab.models.encoder_decoder",
    "two_towers": "transformer_lab.models.two_towers",
    "vision": "transformer_lab.models.vision",
    "recurrent": "transformer_lab.models.recurrent",
    "recurrent_seq2seq": "transformer_lab.models.recurrent_seq2seq",
    "word_vectors": "transformer_lab.models.word_vectors",
}


def parameter_shapes(kind: str, config: Any) -> Any:
    """The tree of a model's parameters as shapes; nothing is allocated."""
    module = family(kind)
    inputs = module.example_inputs()
    return jax.eval_shape(module.build(config).init, jax.random.key(0), *inputs)["params"]


def need_vocabulary(size: int | None, key: str = "model.vocab_size") -> None:
    """Refuses to build a model whose number of tokens is not known by now."""
    if size is None:
        raise LabError(f"{key} is not set and there is no tokenizer to take it from")


def family(kind: str) -> ModuleType:
    """The module of a family."""
    if kind not in MODELS:
        raise LabError(f'model.kind = "{kind}" is unknown{nearest(kind, MODELS)}')
    return importlib.import_module(MODELS[kind])


def flops_a_token(config: Any, shapes: Any) -> float:
    """FLOPs a token of a training step; see `costs.flops_a_token`."""
    return importlib.import_module("transformer_lab.models.costs").flops_a_token(config, shapes)
