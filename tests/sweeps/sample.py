"""A sweep that nobody trained: directories as finished, failed and stopped runs leave them."""

import json
from pathlib import Path

from transformer_lab.sweeps.runner import SWEEP
from transformer_lab.sweeps.states import FAILURE, SETTINGS
from transformer_lab.training.config import default_config
from transformer_lab.training.places import write_json

PLAN = {
    "experiment": "experiments/gone.py",
    "scale": "cpu",
    "init_from": "",
    "metric": "accuracy",
    "higher_is_better": True,
    "columns": [],
    "compares": {},
    "paper": {
        "source": "Nobody 2020, table 1",
        "scale": "a large model",
        "columns": ["accuracy"],
        "higher_is_better": True,
        "rows": {"a": [0.9], "b": [None]},
        "labels": {"a": "theirs", "b": "other"},
    },
    "base": {},
    "also": [],
    "tuned": "",
    "doc": "Which is best?",
}


def make_sweep(workdir: Path, scores: dict[str, list], **plan) -> Path:
    """`scores` are by row, for each seed (validation, test) accuracy, an error or None."""
    runs = []
    for row, found in scores.items():
        for seed, score in enumerate(found):
            runs.append({"name": f"{row},seed={seed}", "row": row})
            _make_run(workdir / runs[-1]["name"], score)
    write_json(workdir / SWEEP, {**PLAN, **plan, "runs": runs})
    return workdir


def _make_run(directory: Path, score) -> None:
    directory.mkdir(parents=True)
    write_json(directory / SETTINGS, {})
    if isinstance(score, str):
        write_json(directory / FAILURE, {"error": score, "code": 2})
    if not isinstance(score, tuple):
        return
    config = default_config(model="encoder_decoder", task="translation").to_dict()
    write_json(directory / "config.json", config)
    validation, test = score
    lines = [
        {"step": 5, "loss": 2.0, "steps_per_second": 5.0},
        {"step": 10, "loss": 1.0, "steps_per_second": 10.0},
        {"step": 10, "validation/accuracy": validation},
        {"step": 10, "test/accuracy": test},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (directory / "metrics.jsonl").write_text(text, encoding="utf-8")
    values = {"step": 10, "validation/accuracy": validation, "test/accuracy": test}
    costs = {"parameters": 1000, "trainable_parameters": 10, "steps_per_second": 7.5}
    write_json(directory / "results.json", values | costs)
