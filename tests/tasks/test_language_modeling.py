"""Language modelling: what counts, once each; what is scored; runs that resume."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict
from ml_collections import ConfigDict

from tests.tiny import RUN, STACK, config_of, make_trainer, start, trained
from transformer_lab.decoding.config import DecodeConfig
from transformer_lab.decoding.generate import Generated, Generator
from transformer_lab.text.stream import TextStream
from transformer_lab.training.adapting import dequantize, pack


def tiny_model(**changes) -> ConfigDict:
    """Made-up documents in words; a double underscore in a key of `changes` is a dot."""
    values = {
        "data.source": "patterns",
        "data.max_documents": 60,
        "data.validation_share": 0.01,
        "data.test_share": 0.01,
        "tokenizer.kind": "word",
        "batch.rows": 8,
        "batch.length": 16,
        "model.max_length": 24,
        "optimizer.learning_rate": 1e-2,
        "optimizer.warmup_steps": 2,
        "task.samples": 0,
    }
    return config_of("decoder", "language_modeling", STACK, RUN, values, **changes)


@pytest.fixture(scope="module")
def trainer():
    return make_trainer(tiny_model(), 1)


@pytest.fixture(scope="module")
def params(trainer):
    return start(trainer).params


LAYOUTS = {
    "stream": {},
    "packed": {"task__layout": "packed"},
    "prefix": {"model__mask": "prefix"},
    "packed_prefix": {"task__layout": "packed", "model__mask": "prefix"},
}


@pytest.mark.each_run("stream", "packed_prefix")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_trains_with_falling_loss(layout):
    trainer = make_trainer(tiny_model(**LAYOUTS[layout]), 1)
    state, losses = start(trainer), []
    batches = trainer.task.train_batches()
    for _ in range(20):
        batch = next(batches)
        state, metrics = trainer.train_step(state, trainer.place(batch))
        assert metrics["weight"] == batch["mask"].sum() == trainer.task.sizes(batch)["tokens"]
        losses.append(float(metrics["loss"]))
    batches.close()
    assert abs(losses[0] - math.log(trainer.task.tokenizer.vocab_size)) < 0.3
    assert losses[-1] < 0.8 * losses[0]
    names = {"tokens", "targets", "mask"}
    names |= {"segments"} if "packed" in layout else set()
    assert batch.keys() == names | ({"prefix"} if "prefix" in layout else set())


def everything(task, split="validation"):
    """(input, target) of each document between its start and its end, and the bytes of all."""
    texts = getattr(task.data, split)
    ids = [[task.start_id, *task.tokenizer.encode(t), task.tokenizer.eos_id] for t in texts]
    pairs = [pair for row in ids for pair in zip(row[:-1], row[1:], strict=True)]
    return pairs, sum(len(t.encode()) for t in texts)


@pytest.mark.parametrize(
    ("length", "stride", "rows", "layout"),
    [(0, 0, 8, "stream"), (5, 1, 8, "packed"), (24, 7, 1, "stream"), (1, 0, 3, "packed")],
)
def test_evaluation_counts_each_target_once(length, stride, rows, layout):
    config = tiny_model(
        task__eval_length=length, task__eval_stride=stride, batch__rows=rows, task__layout=layout
    )
    task = make_trainer(config, 1).task
    pairs, size = everything(task)
    assert len(pairs) > 100
    batches = list(task.eval_batches("validation"))
    counted = [
        pair
        for b in batches
        for pair in zip(b["tokens"][b["mask"]], b["targets"][b["mask"]], strict=True)
    ]
    assert sorted(counted) == sorted(pairs)
    assert sum(b["bytes"].sum() for b in batches) == size
    assert {b["tokens"].shape for b in batches} == {(rows, length or 16)}


@pytest.mark.parametrize("devices", [1, 8])
def test_all_zero_logits_have_the_perplexity_of_the_vocabulary(devices):
    trainer = make_trainer(tiny_model(mesh__data=-1, task__other_lengths=(5,)), devices)
    task, size = trainer.task, trainer.task.tokenizer.vocab_size
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), trainer.param_shapes)
    others = task.score(zeros, "validation", trainer.place, True).values
    values = trainer.evaluate(zeros, "validation")
    pairs, bytes_of_all = everything(task)
    assert abs(values["perplexity"] - size) < 1e-3 * size
    bits = len(pairs) * math.log(size) / math.log(2) / bytes_of_all
    np.testing.assert_allclose(values["bits_per_byte"], bits, rtol=1e-5)
    np.testing.assert_allclose(others["bits_per_byte_5"], bits, rtol=1e-5)
    (nats, tokens), *_ = task.score_texts(zeros, ["ann has a cup ."], trainer.place)
    assert tokens == 5
    np.testing.assert_allclose(nats, 5 * math.log(size), rtol=1e-5)


def test_any_number_of_devices_evaluates_alike(trainer, params):
    eight = make_trainer(tiny_model(mesh__data=2, mesh__fsdp=2, mesh__tensor=2))
    laid = jax.device_put(params, eight.state_shardings.params)
    want, got = trainer.evaluate(params, "test"), eight.evaluate(laid, "test")
    assert want.keys() == got.keys() == {"loss", "perplexity", "accuracy", "bits_per_byte"}
    np.testing.assert_allclose([got[k] for k in want], list(want.values()), rtol=1e-5)


@pytest.fixture(scope="module")
def nats_of(trainer, params):
    """Of each of the ids after the first, in one pass; padding on the right is not seen."""
    run = jax.jit(
        lambda tokens: jax.nn.log_softmax(trainer.task.model.apply({"params": params}, tokens)[0])
    )

    def nats(ids):
        log_probs = np.asarray(run(jnp.asarray([ids + [0] * (24 - len(ids))])))
        return -log_probs[np.arange(len(ids) - 1), ids[1:]]

    return nats


@pytest.mark.parametrize("prompt_start", [True, False])
def test_texts_score_what_a_direct_pass_gives(trainer, params, nats_of, prompt_start):
    task = make_trainer(tiny_model(task__prompt_start=prompt_start), 1).task
    texts = ["ann has a red cup .", "", "mia", "what has tom ? a new hat . " * 2, "ben has"]
    found = task.score_texts(params, texts, trainer.place)
    for text, (nats, tokens) in zip(texts, found, strict=True):
        ids = task.prompt_ids(text)
        words = len(task.tokenizer.encode(text))
        assert tokens == len(ids) - 1 == (words if prompt_start else max(words - 1, 0))
        np.testing.assert_allclose(nats, nats_of(ids).sum(), atol=1e-4)
    # Windows of 16 targets, 8 apart: the last ones see at least 8 tokens before them.
    long = "ann has a red cup . ben has a blue hat . mia has a old map ."
    ids = task.prompt_ids(long)
    ((nats, tokens),) = task.score_texts(params, [long], trainer.place)
    assert 16 < tokens == len(ids) - 1 <= 24
    want = nats_of(ids[:17]).sum() + nats_of(ids[8:])[8:].sum()
    np.testing.assert_allclose(nats, want, atol=1e-4)


def test_a_text_ends_before_the_first_stop_string(params):
    task = make_trainer(tiny_model(decode__stop=("cup .", "hat")), 1).task
    encode = task.tokenizer.encode
    for text, shown in [
        ("ann has a red cup . ben", "ann has a red "),
        ("a hat . a cup .", "a "),
        ("a map .", "a map ."),
    ]:
        assert task.text_of(Generated(encode(text), [], False)) == shown
        assert task.stops([], encode(text)) == (shown != text)
    ((one,),) = task.generator()(params, [task.prompt_ids("ann has")], stops=task.stops)
    assert len(one.ids) <= 24 and "hat" not in task.text_of(one)


def test_prompt_and_continuation_are_one_text_whose_blanks_are_kept():
    """Words drop the blank before the first one; a stop may begin with it, and holds a comma."""
    task = make_trainer(tiny_model(decode__stop=(" a, b", " old")), 1).task
    assert task.sections["decode"].stop == (" a, b", " old")
    encode, prompt = task.tokenizer.encode, task.prompt_ids("ann has")
    made = Generated(encode("a new map"), [], False)
    assert task.text_of(made, prompt) == " a new map"
    stream = TextStream(task.tokenizer, task.without_start(prompt))
    assert "".join(map(stream.push, made.ids)) + stream.finish() == " a new map"
    old = encode("old map")
    assert task.stops(prompt, old[:1]) and not task.stops(prompt, made.ids)
    assert task.text_of(Generated(old, [], True), prompt) == ""


def test_rows_of_the_table_that_no_piece_has_are_never_drawn(params):
    config = tiny_model(decode__max_new_tokens=12, decode__temperature=9.0)
    pieces = make_trainer(config, 1).task.tokenizer.vocab_size
    config.model.vocab_size = pieces + 200
    trainer = make_trainer(config, 1)
    found = trainer.task.generator()(start(trainer).params, [trainer.task.prompt_ids("ann")], 16)
    ids = [i for one in found[0] for i in one.ids]
    assert len(ids) > 100 and max(ids) < pieces


def test_samples_of_the_finished_model_continue_held_out_documents(params):
    config = tiny_model(task__samples=2, task__sample_prompt=4, decode__max_new_tokens=3)
    trainer = make_trainer(config, 1)
    scores = trainer.task.score(params, "validation", trainer.place, True)
    texts = trainer.task.data.validation[:2]
    assert len(scores.samples) == 2
    assert scores.values == {"tokens_per_word": 1.0, "unknown_rate": 0.0}
    for text, (prompt, made, rest) in zip(texts, scores.samples, strict=True):
        words = trainer.task.tokenizer.decode(trainer.task.tokenizer.encode(text))
        assert words.startswith(prompt) and len(prompt.split()) == 4 and len(made.split()) <= 3
        assert rest and rest in words
    assert trainer.task.score(params, "validation", trainer.place, False).samples == []


@pytest.mark.each_run("int8")
@pytest.mark.parametrize("numbers", ["int8", "fp8"])
def test_a_model_learns_with_eight_bit_products_nearly_as_with_float(trainer, numbers):
    rounded = make_trainer(tiny_model(**{"model.products": numbers}), 1)
    exact, found = (trained(made, 30)[1] for made in (trainer, rounded))
    assert exact[-1] < exact[0] - 1  # it learns
    assert exact[-1] != found[-1]
    np.testing.assert_allclose(found, exact, rtol=0.05)


@pytest.mark.each_run("int8")
@pytest.mark.parametrize("base", ["bfloat16", "int8", "nf4"])
def test_packed_weights_generate_what_the_unpacked_ones_do(trainer, params, base):
    task = trainer.task
    model, packed = pack(task.model, params, base)
    size = lambda tree: sum(x.nbytes for x in jax.tree.leaves(tree))  # noqa: E731
    assert size(packed) < 0.8 * size(params)
    flat = flatten_dict(packed, is_leaf=lambda _, x: "absmax" in x)
    whole = unflatten_dict({
        path: dequantize(leaf) if isinstance(leaf, dict) else leaf.astype(jnp.float32)
        for path, leaf in flat.items()
    })  # fmt: skip
    config, prompts = DecodeConfig(max_new_tokens=8), [[5, 6, 7], [8, 9]]
    found, wanted = (
        Generator(some, config, eos_id=task.tokenizer.eos_id)(values, prompts)
        for some, values in ((model, packed), (task.model, whole))
    )
    for mine, other in zip(found, wanted, strict=True):
        assert mine[0].ids == other[0].ids
        np.testing.assert_allclose(mine[0].log_probs, other[0].log_probs, atol=1e-5)
