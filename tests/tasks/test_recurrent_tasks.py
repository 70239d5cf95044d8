"""Recurrent nets over the one loop: every task that takes them learns, and others refuse them."""

import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from tests.tiny import FAST, config_of, make_trainer, tiny_config, trained
from transformer_lab.models import parameter_shapes
from transformer_lab.models.recurrent_seq2seq import RecurrentSeq2SeqConfig
from transformer_lab.tasks.scores import bleu_by_length, corpus_scores
from transformer_lab.training.config import MeshConfig, default_config
from transformer_lab.training.mesh import make_mesh, shardings

TINY = FAST | {"model.width": 24, "model.embedding_width": 12, "model.max_length": 48}
ROWS = {"batch.tokens_per_batch": 1024, "batch.buckets": 1, "batch.max_length": 48}


def trainer_of(task, model="recurrent", **changes):
    return make_trainer(config_of(model, task, TINY, ROWS, **changes), 1)


@pytest.mark.slow
def test_parentheses_are_learnt_and_scored_at_each_length_with_baselines():
    data = {
        "data.min_length": 8, "data.max_length": 10, "data.train_size": 600, "data.test_size": 20,
        "data.validation_size": 10, "data.other_lengths": (12, 24), "data.other_size": 100,
        "tokenizer.kind": "char",
    }  # fmt: skip
    trainer = trainer_of("parentheses", **data)
    params, _ = trained(trainer, 150)
    task = trainer.task
    values = task.score(params, "test", trainer.place, True).values
    assert values["majority_baseline"] == values["length_baseline"] == 0.5
    assert trainer.evaluate(params, "test")["accuracy"] > 0.9 and values["accuracy_12"] > 0.8
    assert "accuracy_24" in values
    assert "majority_baseline" not in task.score(params, "test", trainer.place, False).values
    wrong, right = task.predict(params, ["-++--+-+", "+-++--+-"], trainer.place)
    assert (wrong["label"], right["label"]) == ("unbalanced", "balanced")


@pytest.mark.slow
def test_words_are_tagged():
    settings = {"data.source": "generated_tags", "tokenizer.kind": "word", "model.layers": 1}
    trainer = trainer_of("tagging", **settings, **{"model.bidirectional": True})
    params, losses = trained(trainer, 40)
    assert losses[-1] < 0.2 * losses[0]
    assert trainer.evaluate(params, "test")["accuracy"] > 0.9


@pytest.mark.slow
def test_a_translator_learns_to_reverse_and_is_scored():
    changes = {"decode.batch_size": 8, "optimizer.learning_rate": 2e-2}
    trainer = make_trainer(seq2seq_config(**changes), 1)
    params, losses = trained(trainer, 40)
    assert losses[-1] < 0.9 * losses[0]
    values = trainer.task.score(params, "test", trainer.place, True).values
    assert {"bleu", "bleu_words_to_4", "bleu_words_to_8"} <= set(values)


def seq2seq_config(**changes):
    config = tiny_config(**changes)
    with config.unlocked():
        config.model = default_config(model="recurrent_seq2seq", task="translation").model
    config.model.update(width=16, encoder_width=8, max_length=16)
    return config


@pytest.mark.slow
def test_a_language_model_learns(tmp_path):
    text = "\n\n".join("the cat sat on the mat . " * n for n in range(3, 33))
    (tmp_path / "t.txt").write_text(text, encoding="utf-8")
    trainer = trainer_lm(tmp_path)
    params, losses = trained(trainer, 60)
    assert losses[-1] < 0.5 * losses[0]
    prompt = [trainer.task.prompt_ids("the cat")]
    (found,) = trainer.task.generator(trainer.place)(params, prompt)[0]
    assert trainer.task.text_of(found).split()[:4] == ["sat", "on", "the", "mat"]


def trainer_lm(folder):
    values = {
        "data.source": "files", "data.path": str(folder / "t.txt"), "task.samples": 0,
        "tokenizer.kind": "word", "batch.rows": 8, "batch.length": 16, "model.truncate": 8,
        "decode.max_new_tokens": 4,
    }  # fmt: skip
    return make_trainer(config_of("recurrent", "language_modeling", TINY, values), 1)


def test_bleu_by_length_is_the_bleu_of_each_part():
    sources = ["a b", "a b c d e", "a b c d", "w " * 20]
    outputs = ["the cat is on the mat", "a dog runs home", "the big cat sat down", "x y z w v"]
    references = ["the cat sat on the mat", "a dog runs home", "the big cat sat", "x y z w u"]
    found = bleu_by_length(sources, outputs, references)
    assert list(found) == ["bleu_words_over_16", "bleu_words_to_4", "bleu_words_to_8"]
    short = corpus_scores([outputs[0], outputs[2]], [references[0], references[2]])[0]["bleu"]
    assert found["bleu_words_to_4"] == short
    np.testing.assert_allclose(found["bleu_words_to_8"], 100.0)


@pytest.mark.parametrize("cell", ["gru", "lstm_peephole"])
def test_every_recurrent_parameter_has_a_place_on_a_mesh(cell):
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    config = RecurrentSeq2SeqConfig(cell=cell, width=16, encoder_width=8, vocab_size=9)
    placed = shardings(parameter_shapes("recurrent_seq2seq", config), mesh)
    own = placed["decoder"]["layer_0"]["forward"]
    assert own["recurrent_kernel"].spec[0] == "fsdp" and own["bias"].spec in (P(), P(None))
