"""Classes: their weights in the losses of texts, words and images, F1 of one, wrong labels."""

import json
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.tasks.test_image_classification import trainer_of as images
from tests.tasks.test_reading import ROWS, trainer_of
from tests.tiny import first_batch, start
from transformer_lab.errors import LabError
from transformer_lab.ops.losses import ratio
from transformer_lab.tasks.labels import class_weights

KEY = jax.random.key(0)


def test_f1_is_that_of_the_positive_label_or_the_mean_of_both(monkeypatch):
    def score(label):
        trainer = trainer_of(
            "classification", data__source="generated", task__positive_label=label, **ROWS
        )
        task = trainer.task
        gold = task.fitting("test")[1]["label"]
        # Three quarters of the guesses are class 1, whatever is right.
        guess = (np.arange(len(gold)) % 4 > 0).astype(int)
        monkeypatch.setattr(task, "outputs", lambda *_: list(np.eye(2)[guess]))
        both = [
            2 * (gold == c)[guess == c].sum() / ((gold == c).sum() + (guess == c).sum())
            for c in (0, 1)
        ]
        values = task.score({}, "test", lambda batch: batch, False).values
        return values["f1"], both, task.labels

    mean, both, labels = score("")
    assert both[0] != both[1] and mean == pytest.approx(sum(both) / 2)
    for label, own in zip(labels, both, strict=True):
        assert score(label)[0] == pytest.approx(own)


@pytest.mark.parametrize(
    "labels, regression, message",
    [
        (["good", "bad"], True, r'has the label "\w+": task.regression = True needs a finite'),
        (
            ["1.5", "nan"],
            True,
            'row "b" has the label "nan": task.regression = True needs a finite',
        ),
        (["1", "0.5"], False, 'row "a" has the label 1.0: for numbers .* task.regression = True'),
        (["1.0", "0.0"], False, "has the label [01].0: for numbers .* set task.regression = True"),
        (None, True, "has the label null: name the column .* in config.data.label_column"),
        (None, False, "has the label null: name the column .* in config.data.label_column"),
    ],
)
def test_labels_that_do_not_go_with_the_objective_are_named(tmp_path, labels, regression, message):
    file = tmp_path / "a.csv"
    rows = zip("ab", labels or "xy", strict=True)
    file.write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in rows))
    changes = {"data__validation_share": 0.0, "data__test_share": 0.0, **ROWS}
    task = trainer_of(
        "classification", data__source="files", data__path=str(file), task__regression=regression,
        data__label_column="label" if labels else "", **changes,
    ).task  # fmt: skip
    line = 3 if 'row "b"' in message else 2
    with pytest.raises(LabError, match=rf"^{file}:{line}: the train .*{message}"):
        task.steps_per_epoch()


def test_weights_are_balanced_by_count_or_named():
    train = lambda: ["ham"] * 6 + ["spam"] * 2  # noqa: E731
    balanced = class_weights("balanced", ["ham", "spam"], train)
    assert balanced.tolist() == pytest.approx([8 / 2 / 6, 8 / 2 / 2])
    assert class_weights("spam=4", ["ham", "spam"], train).tolist() == [1, 4]
    assert class_weights("", ["ham", "spam"], train) is None
    for wrong, message in (("spma=4", r'"spma" is unknown \('), ("4", '"4" is neither')):
        with pytest.raises(LabError, match=f"^task.class_weights: {message}"):
            class_weights(wrong, ["ham", "spam"], train)


def weighted_mean(nats, labels, weights):
    each = np.asarray([weights[label] for label in labels])
    return (each * nats).sum() / each.sum()


@pytest.mark.parametrize(
    "task, source", [("classification", "generated"), ("tagging", "generated_tags")]
)
def test_a_loss_of_texts_or_words_is_the_mean_weighted_by_class(task, source):
    trainer = trainer_of(task, data__source=source, task__class_weights="balanced", **ROWS)
    built, params = trainer.task, trainer.whole(start(trainer))
    rows = built.data.train
    found = (
        [r.label for r in rows] if task == "classification" else [t for r in rows for t in r.tags]
    )
    count = Counter(map(str, found))
    batch = jax.device_put(first_batch(built))
    logits = jax.jit(lambda p, b: jax.nn.log_softmax(built.apply(p, b)["logits"]))(params, batch)
    labels = (
        np.asarray(batch["label"]) if task == "classification" else np.asarray(batch["tag"]) - 1
    )
    real = np.asarray(batch["tokens_mask"])[:, 0] if task == "classification" else labels >= 0
    nats = -np.take_along_axis(np.asarray(logits)[real], labels[real][:, None], -1)[:, 0]
    names = [built.labels[i] for i in labels[real]]
    want = weighted_mean(nats, names, {x: len(found) / len(count) / n for x, n in count.items()})
    assert len(set(names)) > 1
    loss = jax.jit(lambda p, b: ratio(built.loss(p, b, jax.random.key(0))["loss"]))
    assert float(loss(params, batch)) == pytest.approx(want, rel=1e-5)
    if task == "classification":  # an evaluation counts all alike
        found = jax.jit(built.metrics)(params, batch)["loss"]
        assert float(ratio(found)) == pytest.approx(nats.mean(), rel=1e-5)


def test_an_image_mixed_of_two_classes_weighs_as_they_do():
    task = images(task__class_weights="3=5,7=0.5").task
    logits = jax.random.normal(jax.random.key(0), (4, 10))
    task.apply = lambda *_: {"logits": logits}
    label = np.asarray([3, 7, 0, 3])
    nats = -np.asarray(jax.nn.log_softmax(logits))[np.arange(4), label]
    batch = {"image": jnp.zeros((4, 8, 8, 1), jnp.uint8), "mask": jnp.asarray([1, 1, 1, 0], bool)}
    want = (5 * nats[0] + 0.5 * nats[1] + nats[2]) / 6.5
    plain = task.loss({}, batch | {"label": jnp.asarray(label)}, KEY)["loss"]
    shares = task.loss({}, batch | {"label": jax.nn.one_hot(label, 10)}, KEY)["loss"]
    assert float(ratio(plain)) == pytest.approx(want, rel=1e-5)
    assert float(ratio(shares)) == pytest.approx(want, rel=1e-5)


def test_data_of_one_class_is_refused_before_training(tmp_path):
    (tmp_path / "one.csv").write_text("text,label\n" + "".join(f"t{i},yes\n" for i in range(40)))
    own = {"data__source": "files", "data__path": str(tmp_path / "one.csv")}
    with pytest.raises(LabError, match='all examples have the class "yes": a classifier needs two'):
        trainer_of("classification", **own, **ROWS)


def test_a_run_keeps_its_sources_classes_if_they_hold_those_of_its_data():
    """Other texts may lack a class; others than the source's are the outputs of a new head."""
    task = trainer_of("classification", data__source="generated", **ROWS).task

    def kept(*labels):
        task.assets_given = {"labels.json": json.dumps(labels).encode(), "a": b"b"}
        return task.kept_files().keys() - {"a"}

    assert kept(*task.labels) == kept("third", *task.labels) == {"labels.json"}
    assert kept(task.labels[0]) == kept("x", "y") == set()
