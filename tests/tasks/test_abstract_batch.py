"""What a task says of its batches without data holds for those that it makes of data."""

import jax
import numpy as np
import pytest

from tests.tasks.test_image_classification import config_of as images
from tests.tasks.test_language_modeling import tiny_model
from tests.tasks.test_reading import ROWS, TINY
from tests.tasks.test_text_to_text import tiny as text_to_text
from tests.tiny import make_trainer, tiny_config
from tests.tiny_emoji import towers_config, write_emoji
from transformer_lab import text
from transformer_lab.errors import LabError
from transformer_lab.tasks.base import stand_in
from transformer_lab.text.tokenizer import TokenizerConfig
from transformer_lab.training import runs
from transformer_lab.training.config import default_config, resolve
from transformer_lab.training.mesh import make_mesh


def encoder(task, **changes):
    config = default_config(model="encoder", task=task)
    config.update_from_flattened_dict(TINY | changes)
    return config


CONFIGS = {
    "stream": tiny_model(),
    "packed prefix": tiny_model(task__layout="packed", model__mask="prefix"),
    "translation": tiny_config(),
    "mixture": text_to_text(),
    "packed mixture": text_to_text(**{"batch.packed": (60, 40), "batch.buckets": 1}),
    "classes": encoder("classification", **{"data.source": "generated"}, **ROWS),
    "masked": encoder("masked_language_modeling", **{"data.source": "patterns", "batch.rows": 8,
                                                     "batch.length": 32}),
    "images": images(),
    "mixed images": images(augment__mixup=0.2),
}  # fmt: skip


def compared(config):
    """The shapes and types that a task states, and those of its first batch."""
    resolved = resolve(config)
    mesh = make_mesh(resolved.run.mesh, 1)
    stated = runs.build_task(resolved, stand_in(resolved.model, resolved.sections), mesh)
    task = make_trainer(config, 1).task
    batches = task.train_batches()
    real = next(batches)
    batches.close()
    return stated.abstract_batch(), real, task


@pytest.mark.parametrize("name", CONFIGS)
def test_the_stated_batch_is_that_of_the_data(name):
    stated, real, _ = compared(CONFIGS[name])
    assert stated.keys() == real.keys()
    for key, array in real.items():
        assert stated[key].dtype == array.dtype, key
        assert len(stated[key].shape) == array.ndim, key
    if "tokens_per_batch" not in CONFIGS[name].batch:  # there shapes follow the data's lengths
        of_data = {"image", "label"}  # the images' own size, the classes' own number
        assert all(stated[key].shape == real[key].shape for key in real.keys() - of_data)


def test_the_batch_of_two_towers(tmp_path):
    stated, real, _ = compared(towers_config(write_emoji(tmp_path)))
    assert {k: (v.shape, v.dtype) for k, v in stated.items()} == {
        k: (v.shape, v.dtype) for k, v in real.items()
    }


def test_buckets_state_the_longest_examples():
    stated, _, task = compared(tiny_config(batch__max_length=12))
    assert stated["source"].shape == stated["target"].shape == (8, 12)
    assert task.slots() == (320, 8)  # 320 // (12 + 12) // 8 * 8


def test_a_tokenizer_that_stands_in_has_pieces_and_no_text():
    found = text.StandIn.train(TokenizerConfig(kind="unigram", vocab_size=500, extra_ids=7))
    assert found.vocab_size == 507 and len(found.sentinels) == 7 and found.mask_id is None
    again = text.load(found.to_files())
    assert (type(again), again.vocab_size, again.config) == (text.StandIn, 507, found.config)
    with pytest.raises(LabError, match="stands for one that is not trained yet"):
        again.encode("a")
    assert text.StandIn.train(TokenizerConfig(kind="byte")).vocab_size == 260


def test_the_models_own_table_bounds_the_stand_ins_pieces():
    config = tiny_model()
    config.tokenizer.vocab_size, config.model.vocab_size = 4000, 300
    resolved = resolve(config)
    files = stand_in(resolved.model, resolved.sections)
    task = runs.build_task(resolved, files, make_mesh(resolved.run.mesh, 1))
    assert task.tokenizer.vocab_size == task.model_config.vocab_size == 300
    shapes = jax.eval_shape(task.init, jax.random.key(0))
    assert shapes["embedding"]["embedding"].shape == (300, 16)
    assert np.dtype(task.abstract_batch()["tokens"].dtype) == np.int32
