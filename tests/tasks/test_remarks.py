"""What a run says of its splits at the start, by objectives that score no classes of texts."""

import re

import pytest

from tests.tasks import test_image_modeling as images
from tests.tasks import test_language_modeling as documents
from tests.tiny import make_trainer
from tests.tiny_emoji import towers_config, write_emoji
from transformer_lab.training.config import default_config

LARGE = {"data__test_share": 0.6, "data__validation_share": 0.1}


def word_vectors():
    config = default_config(model="word_vectors", task="word_vectors")
    config.update_from_flattened_dict(
        {"mesh.data": 1, "data.source": "patterns", "data.max_documents": 60}
        | {key.replace("__", "."): value for key, value in LARGE.items()}
        | {"tokenizer.kind": "word"}
    )
    return config


CONFIGS = {
    "language_modeling": lambda _: documents.tiny_model(**LARGE),
    "word_vectors": lambda _: word_vectors(),
    "image_modeling": lambda _: images.config_of(**LARGE),
    "contrastive": lambda folder: towers_config(write_emoji(folder), **LARGE),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_held_out_split_larger_than_the_training_set_is_said(name, tmp_path):
    first, *lines = make_trainer(CONFIGS[name](tmp_path), 1).task.report()
    counts = {split: int(n.replace(",", "")) for split, n in re.findall(r"(\w+) ([\d,]*\d)", first)}
    test, train = counts["test"], counts["train"]
    assert test > train and lines[0] == (
        f"the test split has {test:,} examples, more than the {train:,} to train on: lower "
        "config.data.test_share, unless the split is your own"
    )
