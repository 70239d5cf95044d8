"""What is captured is what the model computes, between the tokens that it reads."""

import math
from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.tasks.test_language_modeling import tiny_model
from tests.tasks.test_reading import ROWS, trainer_of
from tests.tiny import make_trainer, tiny_config
from transformer_lab import text
from transformer_lab.errors import LabError
from transformer_lab.models import cnn, decoder, two_towers, vision
from transformer_lab.training.config import default_config
from transformer_lab.viewing import heads
from transformer_lab.viewing.capture import (
    Inputs,
    capture,
    decoder_weights,
    image_map,
    stacked,
    text_map,
)


@pytest.fixture(scope="module")
def translator():
    trainer = make_trainer(tiny_config(model__layers=2), 1)
    return trainer, trainer.init().params


@pytest.fixture(scope="module")
def speaker():
    config = tiny_model(model__layers=2, tokenizer__kind="byte", decode__max_new_tokens=5)
    trainer = make_trainer(config, 1)
    return trainer.task, trainer.init().params


def test_layers_come_in_the_order_of_their_numbers():
    layer = lambda i: {"attention": {"weights": (jnp.full((1, 2, 3, 3), float(i)),)}}  # noqa: E731
    found = stacked({f"layer_{i}": layer(i) for i in (11, 2, 0, 10, 1, *range(3, 10))})
    assert found.shape == (1, 12, 2, 3, 3)
    np.testing.assert_array_equal(found[0, :, 1, 2, 0], np.arange(12.0))


def test_a_translator_shows_three_attentions_of_source_and_target(translator):
    trainer, params = translator
    task = trainer.task
    maps = capture(task, params, Inputs("big moon", "moon big river"))
    cross, encoder, decoder = maps.values()
    assert cross.rows == ["moon", "big", "river", "</s>"]
    assert decoder.rows == decoder.columns == ["<s>", "moon", "big", "river"]
    assert cross.columns == encoder.rows == encoder.columns == ["big", "moon", "</s>"]
    shapes = [found.weights.shape for found in maps.values()]
    assert shapes == [(2, 2, 4, 3), (2, 2, 3, 3), (2, 2, 4, 4)]
    for found in maps.values():
        np.testing.assert_allclose(found.weights.sum(axis=-1), 1.0, rtol=1e-5)
    assert not np.triu(decoder.weights, 1).any() and encoder.weights.all()


def test_cross_attention_is_softmax_of_the_scaled_products(translator):
    """The first layer of a post-norm decoder, from its parameters."""
    trainer, params = translator
    task, model = trainer.task, trainer.task.model
    source, read = jnp.array([task.encode("big moon")]), jnp.array([[2, *task.encode("moon")[:-1]]])
    maps = capture(task, params, Inputs("big moon", "moon"))
    mask = jnp.ones(source.shape, bool)
    variables = {"params": params}

    @jax.jit
    def run():
        memory = model.apply(variables, source, mask, method="encode")
        _, state = model.apply(
            variables, read, memory, mask, method="decode",
            capture_intermediates=lambda module, _: module.name == "attention_norm",
            mutable=["intermediates"],
        )  # fmt: skip
        return memory, state

    memory, state = run()
    x = state["intermediates"]["decoder"]["layer_0"]["attention_norm"]["__call__"][0]
    attention = params["decoder"]["layer_0"]["cross_attention"]
    project = lambda x, name: x[0] @ attention[name]["kernel"] + attention[name].get("bias", 0.0)  # noqa: E731
    query, key = project(x, "query").reshape(-1, 2, 8), project(memory, "key").reshape(-1, 2, 8)
    want = jax.nn.softmax(jnp.einsum("tnh,snh->nts", query, key) / np.sqrt(8), axis=-1)
    np.testing.assert_allclose(maps["cross-attention"].weights[0], want, atol=1e-5)


def test_without_a_target_it_is_the_models_own_translation(translator):
    trainer, params = translator
    task = trainer.task
    own = task.translate(task.decoder(trainer.place, rows=1), params, ["big moon"])[0][0]
    rows = capture(task, params, Inputs("big moon"), trainer.place)["cross-attention"].rows
    assert [row for row in rows if row not in ("<pad>", "<s>", "</s>")] == own.split()
    assert "</s>" in rows or len(rows) == 16  # the model's limit


def test_a_language_model_reads_the_text_or_continues_it_first(speaker):
    task, params = speaker
    found = capture(task, params, Inputs("né!"))["self-attention"]
    assert found.rows == found.columns and len(found.rows) == 1 + 4
    assert not np.triu(found.weights, 1).any()
    longer = capture(task, params, Inputs("né!", extend=True))["self-attention"]
    (made,) = task.generator()(params, [task.prompt_ids("né!")])[0]
    assert longer.rows == [*found.rows, *map(task.tokenizer.piece, made.ids)]
    np.testing.assert_allclose(longer.weights[:, :, :5, :5], found.weights, atol=1e-6)


def test_a_prefix_model_sees_its_prompt_both_ways():
    task = make_trainer(tiny_model(model__mask="prefix"), 1).task
    params = jax.jit(task.init)(jax.random.key(0))
    found = decoder_weights(task, params, jnp.array([[1, 2, 3, 4, 5, 6, 7]]), 4)
    assert found[..., :4, :4].all() and not np.triu(found, 1)[..., 4:].any()


def test_an_encoder_reads_two_texts_between_its_special_tokens():
    trainer = trainer_of("classification", data__source="generated", **ROWS)
    found = capture(trainer.task, trainer.init().params, Inputs("a b", "a"))["self-attention"]
    text = [[trainer.task.tokenizer.piece(i) for i in trainer.task.tokenizer.encode(t)]
            for t in ("a b", "a")]  # fmt: skip
    cls, sep = (trainer.task.tokenizer.piece(i) for i in (2, 1))
    assert found.rows == [cls, *text[0], sep, *text[1], sep]
    np.testing.assert_allclose(found.weights.sum(axis=-1), 1.0, rtol=1e-5)


def test_an_alignment_is_the_one_head_of_a_recurrent_translator():
    config = tiny_config()
    with config.unlocked():
        config.model = default_config(model="recurrent_seq2seq", task="translation").model
    config.model.update(width=16, encoder_width=8, max_length=16)
    trainer = make_trainer(config, 1)
    params = trainer.init().params
    (found,) = capture(trainer.task, params, Inputs("big moon", "moon big river")).values()
    assert found.rows == ["moon", "big", "river", "</s>"] and found.weights.shape == (1, 1, 4, 3)
    np.testing.assert_allclose(found.weights.sum(axis=-1), 1.0, rtol=1e-5)


def test_one_stack_in_an_encoder_decoders_place_shows_source_and_target_in_one_row():
    config = tiny_config()
    with config.unlocked():
        config.model = default_config(model="decoder_seq2seq", task="translation").model
    config.model.update(
        layers=1, width=16, heads=2, head_dim=8, feed_forward_width=8, max_length=16
    )
    trainer = make_trainer(config, 1)
    params = trainer.init().params
    (found,) = capture(trainer.task, params, Inputs("big moon", "moon big")).values()
    assert found.rows == found.columns == ["big", "moon", "</s>", "<s>", "moon", "big"]
    assert found.weights[..., :3, :3].all() and not found.weights[..., :3, 3:].any()
    np.testing.assert_allclose(found.weights.sum(axis=-1), 1.0, rtol=1e-5)


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece", "byte"])
def test_pieces_are_joined_to_the_words_they_spell(kind):
    """A word's row is the mean of its pieces', its column their sum; special tokens stay apart."""
    config = text.TokenizerConfig(kind, 40 if kind == "wordpiece" else 275)
    tok = text.train(config, ["the moon shines", "a river runs", "moonshine"] * 9)
    parts = [tok.encode(t) for t in ("moonshine runs the", "river ash")]
    ids = [*parts[0], tok.eos_id, *parts[1], tok.eos_id]
    words = ["moonshine", "runs", "the", tok.piece(tok.eos_id), "river", "ash"]
    words.append(words[3])
    weights = np.random.default_rng(0).dirichlet(np.ones(len(ids)), (2, 3, 2)).astype(np.float32)
    found = text_map(tok, weights, ids[:2], ids, words=True)
    assert found.columns == words and len(ids) > len(words)
    firsts = [len(tok.encode(t)) for t in ("moonshine", "moonshine runs", "moonshine runs the")]
    firsts += [firsts[2] + 1, firsts[2] + 1 + len(tok.encode("river")), len(ids) - 1]
    sums = np.add.reduceat(weights, [0, *firsts], axis=-1)
    assert firsts[0] >= 2, "the rows are of one word"
    np.testing.assert_allclose(found.weights, sums.mean(axis=2, keepdims=True), rtol=1e-5)


SMALL = {"layers": 1, "width": 8, "heads": 2, "head_dim": 4, "feed_forward_width": 8}
SEEING = vision.VisionConfig(**SMALL, image_size=(8, 12), patch_size=(4, 4), classes=3)
PICTURE = np.random.default_rng(0).integers(0, 255, (8, 12, 3), np.uint8)


def task_of(family, config, *inputs, **more):
    """What the readers ask of a task, and its parameters."""
    model = family.build(config)
    task = SimpleNamespace(family=family, model=model, model_config=config, **more)
    return task, jax.jit(model.init)(jax.random.key(0), *inputs)["params"]


def test_patches_are_named_behind_the_tokens_before_them():
    config, images = replace(SEEING, distillation="token"), jnp.asarray(PICTURE[None] / 255)
    task, params = task_of(
        vision, config, images, read={"a.png": PICTURE}.get, normalise=lambda x: x / 255
    )
    (found,) = capture(task, params, Inputs(image="a.png")).values()
    assert found.rows == found.columns and found.rows[:4] == [
        "[CLS]", "[1]", "patch 0,0", "patch 0,1",
    ]  # fmt: skip
    assert found.weights.shape == (1, 2, 8, 8) and found.rows[-1] == "patch 1,2"
    assert found.grid == (2, 3) and (found.picture == PICTURE).all()
    grey = image_map(
        {"layer_0": {"attention": {"weights": [found.weights]}}}, PICTURE[..., :1], (2, 3)
    )
    assert grey.picture.shape == (8, 12, 3)
    distance = heads.measure(found)["distance"][0, 1]  # among the patches alone, in patches
    patches = found.weights[0, 1, 2:, 2:]
    places = [(i, j) for i in range(2) for j in range(3)]
    want = sum(patches[a, b] * math.dist(places[a], places[b]) for a, b in np.ndindex(6, 6))
    assert distance == pytest.approx(want / patches.sum(), rel=1e-5)
    with pytest.raises(LabError, match="--image=FILE and no --text"):
        capture(task, params, Inputs("a text"))


def test_two_towers_show_an_image_a_text_or_both():
    text = decoder.DecoderConfig(**SMALL, vocab_size=9, max_length=6, dropout=0.0)
    config = two_towers.TwoTowersConfig(replace(SEEING, head="none"), text, projection=4)
    tokens = np.array([[2, 5, 6, 1, 0, 0]])
    task, params = task_of(
        two_towers, config, jnp.asarray(PICTURE[None] / 255), jnp.asarray(tokens),
        read_images=lambda paths: PICTURE[None], pixels=lambda x: x / 255,
        encode_texts=lambda texts: {"tokens": tokens, "tokens_mask": tokens > 0},
        tokenizer=SimpleNamespace(piece=lambda i: f"<{i}>"),
    )  # fmt: skip
    maps = capture(task, params, Inputs("a text", image="a.png"))
    assert maps["text tower"].rows == ["<2>", "<5>", "<6>", "<1>"]
    shapes = {name: found.weights.shape for name, found in maps.items()}
    assert shapes == {"image tower": (1, 2, 7, 7), "text tower": (1, 2, 4, 4)}
    assert list(capture(task, params, Inputs("a text"))) == ["text tower"]
    with pytest.raises(LabError, match="--image=FILE is missing"):
        capture(task, params, Inputs())


def test_a_family_without_attention_is_refused():
    task = SimpleNamespace(family=cnn)
    with pytest.raises(LabError, match='kind "cnn" has no attention to look at'):
        capture(task, {}, Inputs(image="a.png"))


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        (Inputs(), "--text=TEXT is missing"),
        (Inputs("a", image="a.png"), "no --image"),
        (Inputs("a", "b"), "write it all into --text"),
        (Inputs("a" * 999), "model.max_length"),
    ],
)
def test_what_a_language_model_does_not_read_is_refused(inputs, words, speaker):
    with pytest.raises(LabError, match=words):
        capture(*speaker, inputs)


def test_the_table_of_heads_holds_each_with_its_numbers(speaker):
    task, params = speaker
    maps = capture(task, params, Inputs("né!"))
    rows = list(heads.table(task, params, maps))
    assert [row[:3] for row in rows] == [
        ("self-attention", str(i), str(h)) for i in range(2) for h in range(2)
    ]
    weights = maps["self-attention"].weights[1, 0]
    nats = -np.mean([sum(w * np.log(w) for w in row if w) for row in weights])
    assert float(rows[2][3]) == pytest.approx(nats, abs=1e-3)
    assert float(rows[2][5]) == pytest.approx(np.mean(weights[range(1, 5), range(4)]), abs=1e-3)
    assert 0 < float(rows[2][6]) < 1  # untrained: about even


def test_random_tokens_are_repeated_for_the_induction_score(speaker, monkeypatch):
    task, params = speaker
    seen = []

    def perfect(task, params, tokens, prompt):
        seen.append(np.asarray(tokens))
        t = tokens.shape[1]
        copy = np.eye(t, dtype=np.float32)[np.maximum(np.arange(t) - 4, 0)]
        return np.broadcast_to(copy, (len(tokens), 2, 3, t, t))

    monkeypatch.setattr(heads, "decoder_weights", perfect)
    np.testing.assert_array_equal(heads.induction(task, params, period=5), np.ones((2, 3)))
    np.testing.assert_array_equal(seen[0][:, 1:6], seen[0][:, 6:])
    assert (seen[0][:, 0] == task.start_id).all() and not np.isin(seen[0][:, 1:], [0, 1, 2]).any()
