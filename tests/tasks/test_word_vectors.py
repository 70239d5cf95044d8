"""Word vectors: the loss by hand, what training finds, and sums of words."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.tiny import config_of, make_trainer, trained
from transformer_lab.errors import LabError
from transformer_lab.ops.word_vectors import nearest, negative_sampling
from transformer_lab.tasks.word_vectors import parse


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Days stand beside hours, animals beside food, whatever the rest."""
    draw, lines = np.random.default_rng(0), []
    for _ in range(300):
        kind = draw.integers(2)
        a, b = (("Monday Tuesday Friday", "noon night dawn"), ("cat dog hen", "milk meat corn"))[
            kind
        ]
        lines.append(" ".join(draw.choice(f"{a} {b}".split(), size=6)))
    path = tmp_path_factory.mktemp("texts")
    (path / "texts.txt").write_text("\n\n".join(lines), encoding="utf-8")
    return path / "texts.txt"


def trainer_of(folder, **changes):
    values = {
        "mesh.data": 8, "model.width": 12, "data.source": "files", "data.path": str(folder),
        "windows.subsample": 0.0, "tokenizer.kind": "word", "batch.rows": 64,
        "optimizer.schedule": "constant", "optimizer.warmup_steps": 1,
        "optimizer.learning_rate": 0.03,
    }  # fmt: skip
    return make_trainer(config_of("word_vectors", "word_vectors", values, **changes))


@pytest.mark.parametrize("cbow", [False, True])
def test_words_in_like_places_get_near_vectors(folder, cbow):
    trainer = trainer_of(folder, task__cbow=cbow)
    params, losses = trained(trainer, 60)
    # The outputs start at zero: each of 1 + 5 words is a coin, but for drawn true ones.
    assert 4 * np.log(2) < losses[0] < 6 * np.log(2) and losses[-1] < 0.8 * losses[0]
    days = {"monday", "tuesday", "friday", "noon", "night", "dawn"}
    found = trainer.task.nearest(params, "Monday", 5)
    assert {word for word, _ in found} == days - {"monday"}
    assert trainer.evaluate(params, "test")["loss"] == pytest.approx(losses[-1], rel=0.3)
    rows = trainer.task.score(params, "test", trainer.place, True).samples
    assert all(len(near.split(", ")) == 6 for _, near in rows)


def test_the_loss_is_the_papers_formula_over_the_mean_of_the_inputs(folder):
    task = trainer_of(folder, task__cbow=True).task
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(task.init, jax.random.key(0))
    params = jax.tree.map(lambda s: jnp.asarray(rng.normal(size=s.shape), jnp.float32), shapes)
    batch = {
        "inputs": np.array([[5, 6, 7], [8, 9, 4]]),
        "inputs_mask": np.array([[True, False, True], [False, False, False]]),
        "outputs": np.array([[[4, 5, 4]], [[6, 7, 8]]]),
        "outputs_mask": np.array([[[True, True, False]], [[True, True, True]]]),
        "counted": np.array([[True], [False]]),
    }
    vectors, beside = (np.asarray(params[name]["embedding"]) for name in ("embedding", "output"))
    mean = (vectors[5] + vectors[7]) / 2
    sigmoid = lambda x: 1 / (1 + np.exp(-x))  # noqa: E731
    want = -np.log(sigmoid(mean @ beside[4])) - np.log(sigmoid(-mean @ beside[5]))
    total, weight = task.metrics(params, jax.tree.map(jnp.asarray, batch))["loss"]
    assert (float(total), float(weight)) == (pytest.approx(want, rel=1e-5), 1.0)
    assert float(negative_sampling(jnp.zeros((6,)), jnp.ones(6, bool))) == pytest.approx(
        6 * np.log(2)
    )


def test_sums_of_words_are_taken_at_length_1_and_never_find_their_own_words(folder):
    task = trainer_of(folder).task
    table = np.zeros((task.tokenizer.vocab_size, 12), np.float32)
    (cat,), (dog,), (hen,), (milk,) = (
        task.tokenizer.encode(w) for w in ("cat", "dog", "hen", "milk")
    )
    table[cat, :2] = 3, 0
    table[dog, :2] = 0, 5
    table[hen, :3] = 1, 1, 0.5
    table[milk, :2] = 1, -2
    params = {"embedding": {"embedding": jnp.asarray(table)}}
    (word, cosine), (second, _) = task.nearest(params, "cat + Dog", 2)
    assert word == "hen" and cosine == pytest.approx(2 / np.sqrt(2 * 2.25))
    assert second != "cat"
    assert task.nearest(params, "cat - dog", 1)[0] == ("milk", pytest.approx(3 / np.sqrt(2 * 5)))
    with pytest.raises(LabError, match='^"whale" is not among the'):
        task.nearest(params, "cat - whale")


def test_queries_are_parsed_by_signs_that_stand_apart():
    assert parse("a - b + c") == [(1.0, "a"), (-1.0, "b"), (1.0, "c")]
    assert parse(" well-known ") == [(1.0, "well-known")]
    with pytest.raises(LabError, match="give a word"):
        parse(" ")
    best, cosines = nearest(np.eye(3), np.array([0.0, 3.0, 4.0]), 2)
    assert best.tolist() == [2, 1] and cosines == pytest.approx([0.8, 0.6])
