"""Where activations lie: what a compiled step keeps and moves does not grow with all devices' rows.

A step with twice the devices and twice the rows does the same on each device. Compiled for
simulated devices; nothing is allocated and no step is run.
"""

import functools

import jax
import pytest

from transformer_lab.training import hlo
from transformer_lab.training.compiling import abstract_trainer, memory_of
from transformer_lab.training.config import default_config, resolve
from transformer_lab.training.mesh import make_mesh

# The residual stream is among a device's largest arrays: one of all devices' rows would stand out.
STACK = {"width": 64, "heads": 8, "head_dim": 8, "feed_forward_width": 128, "layers": 3}
TASKS = {
    "decoder": "language_modeling",
    "encoder_decoder": "translation",
    "encoder": "masked_language_modeling",
    "vision": "image_classification",
    "two_towers": "contrastive",
}
LENGTH = 16


def config_of(kind, rows, **changes):
    """Activations are many times the weights; each stack has three layers."""
    config = default_config(kind, TASKS[kind])
    config.mesh.data = 1
    towers = [config.model.image, config.model.text] if kind == "two_towers" else [config.model]
    for tower in towers:
        tower.update(STACK)
        for name, value in (("attention_implementation", "own"), *changes.items()):
            tower[name] = value
    if "tokenizer" in config:
        config.tokenizer.update(kind="wordpiece" if kind == "encoder" else "bpe", vocab_size=128)
    config.batch.unlock()
    if kind == "encoder_decoder":
        config.batch.update(
            tokens_per_batch=2 * LENGTH * rows, max_length=LENGTH, rows_multiple=rows
        )
    else:
        config.batch.rows = rows
    if "length" in config.batch:
        config.batch.length = LENGTH
    if kind == "vision":
        config.model.update(image_size=(16, 16), patch_size=(4, 4), classes=10)
    if kind == "two_towers":
        config.model.image.update(image_size=(16, 16), patch_size=(4, 4))
        config.model.text.max_length = LENGTH
        config.task.loss = "chunked_softmax"
        config.model.projection = 8  # the loss compares the vectors of all rows, and keeps them
    elif "max_length" in config.model:
        config.model.max_length = LENGTH
    return config


@functools.cache
def compiled(kind, mesh, rows, **changes):
    """Bytes of a device and the program of a step; `mesh` is (data, fsdp, tensor)."""
    config = config_of(kind, rows, **changes)
    config.mesh.update(dict(zip(("data", "fsdp", "tensor"), mesh, strict=True)))
    resolved = resolve(config)
    count = mesh[0] * mesh[1] * mesh[2]
    trainer = abstract_trainer(resolved, make_mesh(resolved.run.mesh, jax.devices()[:count]))
    step = trainer.train_step.trace(trainer.step_state, trainer.task.abstract_batch())
    step = step.lower().compile()
    return memory_of(step), hlo.parse(step.as_text())


def grown(kind, small, large, rows, **changes):
    """The arrays of the larger mesh's step that no array of the smaller's is as large as, and the
    growth of temporaries beyond a tenth; `rows` is of a device that holds rows."""
    found = []
    for mesh in (small, large):
        memory, program = compiled(kind, mesh, rows * mesh[0] * mesh[1], **changes)
        arrays = [x for x in program.largest(40) if "[3," not in x["array"]]  # of all layers
        found.append((arrays, memory["temporary_bytes"]))
    (before, less), (after, more) = found
    arrays = [x for x in after if x["bytes"] > 1.1 * before[0]["bytes"]]
    return arrays + [f"temporaries x {more / less:.2f}"] * (more > 1.1 * less)


MESHES = [((1, 4, 1), (1, 8, 1)), ((1, 2, 2), (2, 2, 2)), ((1, 1, 4), (1, 2, 4))]


@pytest.mark.slow
@pytest.mark.parametrize(("small", "large"), MESHES)
def test_nothing_grows_with_the_rows_of_all_devices(small, large):
    assert not grown("decoder", small, large, 16, scan_layers=True, remat="nothing")


@pytest.mark.slow
@pytest.mark.parametrize(("small", "large"), MESHES)
@pytest.mark.parametrize("kind", [kind for kind in TASKS if kind != "decoder"])
def test_nothing_grows_in_other_families(kind, small, large):
    assert not grown(kind, small, large, 16)


@pytest.mark.slow
@pytest.mark.parametrize("kind", TASKS)
def test_temporaries_shrink_with_the_devices(kind):
    """At least 0.8 of ideal, at one number of rows in all."""
    one = compiled(kind, (1, 1, 1), 64)[0]["temporary_bytes"]
    for count in (2, 4, 8):
        share = compiled(kind, (1, count, 1), 64)[0]["temporary_bytes"] / one
        assert share < 1 / count / 0.8, (count, share * count)
