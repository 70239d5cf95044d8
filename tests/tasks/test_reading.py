"""Tasks of an encoder: what they learn on generated data, and what they read."""

import math

import jax
import numpy as np
import pytest

from tests.tiny import FAST, STACK, config_of, first_batch, make_trainer, start, trained
from transformer_lab.tasks.scores import squad
from transformer_lab.training.state import loss_and_gradient

TINY = STACK | FAST | {
    "steps": 40, "model.width": 32, "model.head_dim": 16, "model.feed_forward_width": 48,
    "model.max_length": 48, "model.dropout": 0.0, "model.attention_dropout": 0.0,
    "model.head_dropout": 0.0, "optimizer.learning_rate": 5e-3, "tokenizer.kind": "wordpiece",
    "tokenizer.vocab_size": 300,
}  # fmt: skip
ROWS = {"batch.tokens_per_batch": 1024, "batch.buckets": 1, "batch.max_length": 48}


def trainer_of(task, devices=1, **changes):
    return make_trainer(config_of("encoder", task, TINY, **changes), devices)


@pytest.fixture(scope="module")
def classifier():
    trainer = trainer_of("classification", data__source="generated", **ROWS)
    return trainer, trained(trainer, 60)[0]


def test_a_classifier_learns_and_scores_each_example_once(classifier):
    trainer, params = classifier
    values = trainer.evaluate(params, "test")
    scores = trainer.task.score(params, "test", trainer.place, True)
    assert values["accuracy"] > 0.9
    assert scores.values["num_examples"] == len(trainer.task.data.test)
    rows = trainer.task.data.test
    found = trainer.task.predict(params, [row.text for row in rows], trainer.place)
    right = np.mean([f["label"] == row.label for f, row in zip(found, rows, strict=True)])
    assert right == pytest.approx(values["accuracy"])
    assert sum(found[0]["probabilities"].values()) == pytest.approx(1.0, abs=1e-5)


def test_a_text_is_classified_alike_alone_and_among_others(classifier):
    trainer, params = classifier
    texts = [row.text for row in trainer.task.data.test[:7]] + ["a", ""]
    together = trainer.task.predict(params, texts, trainer.place)
    for text, found in zip(texts, together, strict=True):
        alone = trainer.task.predict(params, [text], trainer.place)[0]
        assert alone["probabilities"] == pytest.approx(found["probabilities"], abs=1e-5)


def test_the_longer_of_a_pair_is_cut_and_both_end_in_a_separator(classifier):
    task = classifier[0].task
    first, second = list(range(10, 70)), list(range(70, 80))
    ids = task.encode(first, second)
    end = task.tokenizer.eos_id
    assert len(ids) == task.limit == 48
    assert ids == [task.tokenizer.bos_id, *first[:35], end, *second, end]
    even = task.encode(first, first)
    assert [even.index(end), len(even)] == [24, 48]
    assert task.encode([9] * 60) == [task.tokenizer.bos_id, *[9] * 46, end]


@pytest.mark.slow
def test_a_tagger_learns_and_labels_stand_at_first_pieces():
    trainer = trainer_of("tagging", data__source="generated_tags", **ROWS)
    params, losses = trained(trainer, 60)
    assert trainer.evaluate(params, "test")["accuracy"] > 0.8 > losses[-1] / losses[0]
    task = trainer.task
    words = list(task.data.train[0].words)
    ids, firsts = task.encode_words(words)
    pieces = task.tokenizer.encode_words(words)
    assert [ids[i] for i in firsts] == [p[0] if p else task.tokenizer.unk_id for p in pieces]
    assert ids[1:-1] == [i for p in pieces for i in p]
    found = task.predict(params, [" ".join(words)], trainer.place)[0]
    assert len(found["tags"]) == len(words)


def test_answers_are_spans_of_the_original_text_and_windows_cover_it():
    trainer = trainer_of(
        "question_answering", data__source="generated_spans", task__stride=8,
        task__question_length=10, **ROWS,
    )  # fmt: skip
    params, losses = trained(trainer, 60)
    assert losses[-1] < losses[0]
    task, rows = trainer.task, trainer.task.data.test
    answers = task.answers(params, rows, trainer.place)
    assert all(a.text in row.context for a, row in zip(answers, rows, strict=True))
    golds = [[text for text, _ in row.answers] for row in rows]
    scores = task.score(params, "test", trainer.place, True).values
    may_lack = any(row.impossible for row in rows)
    exact, f1 = squad(golds, ["" if may_lack and a.gain < 0 else a.text for a in answers])
    assert (scores["exact_match"], scores["f1"]) == pytest.approx((exact, f1))
    seen = set()
    for window in task.windows(0, "who?", list(range(100, 200))):
        part = window.tokens[window.begin : window.begin + window.count]
        assert part == list(range(100 + window.first, 100 + window.first + window.count))
        assert len(window.tokens) <= task.limit
        seen |= set(part)
    assert seen == set(range(100, 200))


def test_masked_tokens_and_next_sentences_are_one_loss_of_two_means():
    trainer = trainer_of(
        "masked_language_modeling", data__source="patterns", batch__rows=16, batch__length=32
    )
    params, losses = trained(trainer, 40)
    assert losses[-1] < losses[0]
    task = trainer.task
    batch = trainer.place(first_batch(task))
    pairs = jax.jit(task.metrics)(params, batch)
    mean = {name: float(total / weight) for name, (total, weight) in pairs.items()}
    assert mean["loss"] == pytest.approx(mean["mlm_loss"] + mean["nsp_loss"], rel=1e-5)
    whole, parts = (
        jax.jit(
            lambda p, b, n=n: loss_and_gradient(task.loss, p, b, jax.random.key(0), n, trainer.mesh)
        )(params, batch)
        for n in (1, 4)
    )
    for a, b in zip(jax.tree.leaves(whole[1]), jax.tree.leaves(parts[1]), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6)
    train, held_out = (
        [t for text in getattr(task.data, split) for t in task.tokenizer.encode(text)]
        for split in ("train", "validation")
    )
    pieces = task.tokenizer.vocab_size - 1  # all but the end token
    nats = [-math.log((train.count(t) + 1) / (len(train) + pieces)) for t in held_out]
    assert task.unigram_loss() == pytest.approx(sum(nats) / len(nats), rel=1e-6)
    found = task.predict(params, ["the [MASK] is"], trainer.place)[0]["fills"]
    assert len(found) == 5 and found[0][1] >= found[4][1]


def test_held_out_inputs_may_be_hidden_alike_however_a_model_trains():
    """Every chosen token behind [MASK], at the places that training's own shares choose there."""
    ways, found = {"task__score_masked": True, "masking__mask_share": 0.0}, []
    for random in (1.0, 0.0):
        task = trainer_of(
            "masked_language_modeling", data__source="patterns", batch__rows=8, batch__length=32,
            masking__random_share=random, **ways,
        ).task  # fmt: skip
        batch = next(task.eval_batches("validation"))
        hidden = np.take_along_axis(batch["tokens"], batch["places"], axis=1)[batch["chosen"]]
        assert len(hidden) and (hidden == task.tokenizer.mask_id).all()
        found.append(batch)
        assert not (first_batch(task)["tokens"] == task.tokenizer.mask_id).any()
    jax.tree.map(np.testing.assert_array_equal, *found)


def test_padding_gets_no_attention_and_moves_no_state():
    trainer = trainer_of(
        "masked_language_modeling", data__source="patterns", batch__rows=8, batch__length=32
    )
    params, task = start(trainer).params, trainer.task
    batch = trainer.place(first_batch(task))
    tokens, mask = batch["tokens"], batch["tokens_mask"].at[:, 20:].set(False)
    run = jax.jit(lambda *x: task.model.apply({"params": params}, *x, mutable=["intermediates"]))
    out, captured = run(tokens, mask)
    weights = captured["intermediates"]["encoder"]["layer_0"]["attention"]["weights"][0]
    assert (np.asarray(weights)[..., 20:] == 0).all()
    alone, _ = run(tokens[:, :20], mask[:, :20])
    np.testing.assert_allclose(out["states"][:, :20], alone["states"], atol=1e-5)


def test_too_long_sentences_are_counted_and_samples_keep_their_own_tags(tmp_path):
    long = "".join(f"w{i % 7} B-X\n" for i in range(60))
    rows = [long, "ann B-PER\n", long.replace("w1", "w8"), "ben O\nmet O\n"]
    for split in ("train", "validation", "test"):
        text = "\n".join(row.replace("ann", f"ann{split}") for row in rows)
        (tmp_path / f"{split}.conll").write_text(text)
    task = trainer_of("tagging", data__source="files", data__path=str(tmp_path), **ROWS).task
    logits = [np.eye(len(task.labels))[[0] * 40]] * 2
    task.outputs = lambda params, fields, *_: [
        x[:n] for x, n in zip(logits, fields["tokens"].lengths(), strict=True)
    ]
    samples = task.score({}, "test", lambda batch: batch, True).samples
    assert [(words, gold) for words, _, gold in samples] == [
        ("anntest", "B-PER"), ("ben met", "O O"),
    ]  # fmt: skip
    lines = task.report()
    assert "tags mark entities in the scheme IOB2" in lines
    assert lines[-1] == (
        "sentences that are left out, longer than a batch takes: 0 of train, 2 of validation, "
        "2 of test"
    )


def test_texts_that_are_cut_are_counted(tmp_path):
    rows = [f"{'good ' * n}{i},{'no' if n > 50 else 'yes'}" for i, n in enumerate((3, 100, 200, 4))]
    (tmp_path / "a.csv").write_text("text,label\n" + "\n".join(rows))
    keep = {"data__validation_share": 0.0, "data__test_share": 0.0, **ROWS}
    task = trainer_of(
        "classification", data__source="files", data__path=f"{tmp_path}/a.csv", **keep
    ).task
    assert task.report()[-1] == "texts of the training set that were cut to fit: 2"


def test_held_out_splits_larger_than_the_training_set_and_missing_classes_are_said(tmp_path):
    for split, labels in {"train": "xy", "validation": "xyx", "test": "zx"}.items():
        rows = "".join(f"{split} {i},{label}\n" for i, label in enumerate(labels))
        (tmp_path / f"{split}.csv").write_text("text,label\n" + rows)
    task = trainer_of("classification", data__source="files", data__path=str(tmp_path), **ROWS).task
    assert task.report()[1:5] == [
        "the validation split has 3 examples, more than the 2 to train on: lower "
        "config.data.validation_share, unless the split is your own",
        "the train split has no example of 1 of 3 classes: z; the model cannot learn what it never "
        "sees",
        "the validation split has no example of 1 of 3 classes: z",
        "the test split has no example of 1 of 3 classes: y",
    ]
