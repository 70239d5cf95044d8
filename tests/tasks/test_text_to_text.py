"""Text to text: what batches hold, where spans are hidden, scores, a run that resumes."""

import jax
import numpy as np
import pytest

from tests.data.test_span_corruption import restore
from tests.tiny import STACK, config_of, first_batch, make_trainer, start
from transformer_lab.data import text_tasks
from transformer_lab.data.sources import libreoffice_help
from transformer_lab.errors import LabError
from transformer_lab.tasks.text_to_text import score_task

TASKS = ("translate", "sentiment", "question", "next_sentence", "spans")


def tiny(tasks=TASKS, **changes):
    values = {
        "steps": 4,
        "data.tasks": tasks,
        "data.pairs_source": "reverse",
        "data.sentiment_source": "generated",
        "data.question_source": "generated_spans",
        "data.documents_source": "patterns",
        "data.held_out": 20,
        "data.limit": 100,
        "tokenizer.kind": "word",
        "tokenizer.extra_ids": 12,
        "task.span_inputs": 56,
        "task.score_examples": 3,
        "batch.tokens_per_batch": 800,
        "batch.buckets": 2,
        "batch.max_length": 60,
        "model.max_length": 64,
        "model.positions": "t5",
        "decode.max_new_tokens": 4,
    }
    return config_of("encoder_decoder", "text_to_text", STACK, values, **changes)


@pytest.fixture(scope="module")
def trainer():
    return make_trainer(tiny(), 1)


def rows_of(batch, task):
    """(source ids, target ids) of the real rows of a task."""
    for row in np.flatnonzero((batch["task"] == task) & batch["target_mask"][:, 0]):
        yield tuple(batch[n][row][batch[f"{n}_mask"][row]] for n in ("source", "target"))


def test_inputs_carry_their_tasks_prefix_and_every_task_is_drawn(trainer):
    task = trainer.task
    with task.train_batches() as batches:
        drawn = [next(batches) for _ in range(30)]
    for number, name in enumerate(TASKS[:-1]):
        pairs = [pair for batch in drawn for pair in rows_of(batch, number)]
        found = {tuple(tuple(ids.tolist()) for ids in pair) for pair in pairs}
        columns = map(task.encode_all, zip(*task.parts[name].train, strict=True))
        assert found and found <= {tuple(map(tuple, pair)) for pair in zip(*columns, strict=True)}
        begin = task.tokenizer.decode(next(iter(found))[0])
        assert begin.startswith(text_tasks.PREFIXES[name][:-2])


def test_hidden_spans_restore_the_text_and_are_drawn_anew_each_epoch(trainer):
    task = trainer.task
    raw = {tuple(ids.tolist()) for ids in task.train_raw}
    with task.train_batches() as batches:
        epochs = [[next(batches) for _ in range(30)]]
        state = batches.get_state()
        batches.restore(state | {"next_index": task.steps_per_epoch()})
        epochs.append([next(batches) for _ in range(30)])
    seen = []
    for epoch in epochs:
        pairs = [pair for batch in epoch for pair in rows_of(batch, TASKS.index("spans"))]
        texts = [tuple(restore(*pair, task.tokenizer.sentinels)) for pair in pairs]
        assert set(texts) <= raw and max(len(ids) for pair in pairs for ids in pair) <= 56
        seen.append({text: pair[0].tolist() for text, pair in zip(texts, pairs, strict=True)})
    both = [text for text in seen[0].keys() & seen[1].keys() if len(text) > 40]
    other = [text for text in both if seen[0][text] != seen[1][text]]
    assert len(other) > len(both) / 2 > 1


@pytest.mark.slow
def test_each_tasks_loss_and_scores_are_reported(trainer):
    task, params = trainer.task, start(trainer).params
    pairs = trainer.eval_step(params, trainer.place(next(task.eval_batches("validation"))))
    parts = [pairs[f"{name}_loss"] for name in TASKS]
    np.testing.assert_allclose(sum(p[0] for p in parts), pairs["nll"][0], rtol=1e-5)
    assert sum(p[1] for p in parts) == pairs["nll"][1]
    scores = task.score(params, "test", trainer.place, False)
    want = {"translate_bleu", "translate_chrf", "sentiment_accuracy", "question_exact_match"}
    assert want | {"question_f1", "next_sentence_accuracy"} == scores.values.keys()


def test_sentinels_may_be_written_in_a_prompt_and_only_those_that_there_are(trainer):
    task = trainer.task
    ids = task.encode("ann has <extra_id_1> .")
    assert task.tokenizer.vocab_size - 2 in ids
    assert "<extra_id_1>" in task.tokenizer.decode(ids)
    with pytest.raises(LabError, match="<extra_id_12>: the tokenizer has 12"):
        task.encode("<extra_id_12>")


def test_a_single_task_has_the_same_model_and_unknown_tasks_are_refused():
    alone = make_trainer(tiny(("sentiment",)), 1).task
    assert list(alone.parts) == ["sentiment"]
    with pytest.raises(LabError, match='"sumarize" is unknown'):
        make_trainer(tiny(("sumarize",)), 1)


def test_no_next_sentence_called_wrong_is_really_the_next():
    config = text_tasks.TextTasksConfig(tasks=("next_sentence",), documents_source="patterns")
    part = text_tasks.load_tasks(config)["next_sentence"]
    follows = set()
    for document in text_tasks._documents(config).train:
        lines = text_tasks.split_sentences(document)
        follows |= {f"{a} then: {b}" for a, b in zip(lines, lines[1:], strict=False)}
    answers = {"yes": 0, "no": 0}
    for source, answer in part.train:
        assert answer == "no" or source.removeprefix("next sentence: ") in follows
        answers[answer] += 1
    assert abs(answers["yes"] / sum(answers.values()) - 0.5) < 0.05


def test_sections_of_a_help_page_are_headed_texts_of_two_sentences(tmp_path):
    page = tmp_path / "en-US" / "text" / "a.html"
    page.parent.mkdir(parents=True)
    page.write_text(
        '<h1 id="hd_1">Saving</h1><p id="par_1">Click Save. It is <b>kept</b>.</p>'
        '<p id="par_2">no sentence</p><h2 id="hd_2">Short</h2><p id="par_3">One only.</p>'
        '<h2 id="hd_3">Last</h2><p id="par_4">Go on.</p><p id="par_5">Then stop.</p>'
    )
    assert list(libreoffice_help.sections(tmp_path)) == [
        ("a.html", "Saving", "Click Save. It is kept."),
        ("a.html", "Last", "Go on. Then stop."),
    ]


def test_rouge_beside_that_of_the_first_sentence():
    pytest.importorskip("rouge_score")
    sources = ["The cat sat. A dog ran.", "Save the file. Close it."]
    outputs, references = ["the cat sat", "close"], ["The cat sat", "Close the file"]
    values, notes = score_task("summarize", sources, outputs, references)
    assert values["rouge1"] == pytest.approx(75.0)  # 1 and 2 * 1 * (1/3) / (4/3) = 1/2
    assert values["first_sentence_rouge1"] == pytest.approx(100 * (1 + 2 / 3) / 2)
    assert values["rouge2"] == pytest.approx(50.0) and not notes


def test_a_packed_batch_has_the_summed_loss_of_its_pairs_alone(trainer):
    packing = make_trainer(tiny(**{"batch.packed": (60, 60), "batch.tokens_per_batch": 960}), 1)
    task, params = packing.task, start(trainer).params
    batch = first_batch(task)
    assert batch["source"].shape == (8, 60) and "task" not in batch
    assert task.sizes(batch)["examples"] == batch["target_segments"].max(axis=1).sum() > 16
    rows = []
    for row in range(8):
        for n in range(1, batch["target_segments"][row].max() + 1):
            rows.append(
                tuple(
                    np.pad(ids, (0, 60 - len(ids)))
                    for ids in (
                        batch[name][row][batch[f"{name}_segments"][row] == n]
                        for name in ("source", "target")
                    )
                )
            )
    source, target = (np.stack(column) for column in zip(*rows, strict=True))
    masks = {name: ids > 0 for name, ids in (("source_mask", source), ("target_mask", target))}
    alone = {"source": source, "target": target} | masks
    loss = jax.jit(lambda batch: task.loss(params, batch, None)["loss"])
    (nll, weight), packed = loss(alone), loss(batch)
    np.testing.assert_allclose(packed[0], nll, rtol=1e-5)
    assert packed[1] == weight == batch["target_mask"].sum()


@pytest.mark.slow
def test_packed_training_is_the_same_on_eight_devices_and_its_evaluation_apart_by_task():
    packed = {"batch.packed": (60, 60), "batch.tokens_per_batch": 960}
    found = []
    for devices in (1, 8):
        packing = make_trainer(tiny(**packed | {"mesh.data": devices}), devices)
        state = start(packing)
        with packing.task.train_batches() as batches:
            for _ in range(2):
                state, _ = packing.train_step(state, packing.place(next(batches)))
        found.append(jax.tree.map(np.asarray, state.params))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), *found)
    batch = packing.place(next(packing.task.eval_batches("validation")))
    pairs = packing.eval_step(state.params, batch)
    assert sum(pairs[f"{name}_loss"][1] for name in TASKS) == pairs["nll"][1] > 0
