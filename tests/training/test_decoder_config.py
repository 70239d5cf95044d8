"""configs/decoder.py builds each published size, for a mesh that its rows and heads divide over."""

import dataclasses
import importlib.util
from pathlib import Path

import jax
import numpy as np
import pytest

from transformer_lab import tasks
from transformer_lab.models.presets import DECODERS
from transformer_lab.tasks.base import stand_in
from transformer_lab.training.config import resolve

PATH = Path(__file__).parents[2] / "configs" / "decoder.py"
SPEC = importlib.util.spec_from_file_location("decoder_config", PATH)
DECODER = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(DECODER)


def resolved(name):
    return resolve(DECODER.get_config(name))


@pytest.mark.parametrize("name", DECODERS)
def test_a_preset_builds_and_its_loss_is_a_number(name):
    """Of two of its layers; depth is a matter of the mesh's memory, not of shapes."""
    config = resolved(name)
    mesh, rows = config.run.mesh, config.sections["batch"].rows
    assert config.model.heads % mesh.tensor == 0
    split = 1 if mesh.fsdp == 1 else 4 * mesh.fsdp  # what divides rows, on the stated topology
    assert mesh.fsdp == {1: 1, 64: 16, 128: 32}[split]
    if mesh.expert > 1:  # in the place of copies and of heads
        split *= {16: 1, 32: 4}[mesh.fsdp]
        assert config.model.experts.count % mesh.expert == 0 and mesh.tensor == 1
    else:
        assert (mesh.tensor == 4) == (split == 128)
    parts = split * config.run.micro_batches
    assets = stand_in(config.model, config.sections)
    model = dataclasses.replace(config.model, layers=2)
    task = tasks.objective("language_modeling").build(
        "decoder", model, config.sections, assets=assets, rows_multiple=parts
    )
    batch = task.abstract_batch()
    assert batch["tokens"].shape == (rows, min(config.model.max_length, DECODER.TOKENS))
    # As many tokens a step as the paper, within the rounding to the mesh.
    if stated := DECODERS[name].batch_tokens:
        assert rows * config.model.max_length == pytest.approx(stated, rel=0.35)
    key = jax.eval_shape(lambda: jax.random.key(0))
    params = jax.eval_shape(task.init, key)
    assert params["embedding"]["embedding"].shape[0] % (1 if split == 1 else 128) == 0
    loss = jax.eval_shape(task.loss, params, batch, key)["loss"]
    assert [(x.shape, x.dtype) for x in loss] == [((), np.float32)] * 2


def test_deep_presets_compile_one_layer_and_recompute():
    deep, flat = resolved("llama_7b").model, resolved("gpt3_125m").model
    assert (deep.scan_layers, deep.remat) == (True, "nothing")
    assert (flat.scan_layers, flat.remat) == (False, "off")
