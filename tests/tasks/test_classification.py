"""F1 of one class, where a config names it."""

import numpy as np
import pytest

from tests.tasks.test_reading import ROWS, trainer_of
from transformer_lab.errors import LabError


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


def test_a_positive_label_that_is_no_label_is_refused():
    with pytest.raises(LabError, match=r'^task.positive_label = "fersh" is unknown \('):
        trainer_of("classification", data__source="generated", task__positive_label="fersh", **ROWS)


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
