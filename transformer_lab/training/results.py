"""The end of a run: its test scores, and results.json for the tables that compare runs."""

import statistics
from pathlib import Path
from typing import Any

import jax

from transformer_lab.models import Vocabulary
from transformer_lab.tasks.base import Scores, count_parameters
from transformer_lab.training.checkpoint import Checkpoints
from transformer_lab.training.loop import final_scores
from transformer_lab.training.places import write_atomically, write_json
from transformer_lab.training.programs import programs
from transformer_lab.training.report import RESULTS, write_report
from transformer_lab.training.state import TrainState
from transformer_lab.training.trainer import Trainer
from transformer_lab.training.writers import MetricWriter, log, plain, read_metrics, show_samples


def finish(trainer: Trainer, state: TrainState, workdir: Path, checkpoints: Checkpoints) -> None:
    """Scores the test split with the checkpoints that represent the run, and writes results.json.
    These are the best one, the mean of the last `average`, or the newest, as the config says."""
    count = trainer.config.average
    steps = checkpoints.scored(count)
    if steps and (count > 1 or steps[-1] != int(state.step)):
        what = "mean of the checkpoints of steps" if count > 1 else "best checkpoint, of step"
        log(f"scores the {what} {', '.join(map(str, steps))}")
        mean = checkpoints.average_params(steps, trainer.state_shardings.params)
        state = state.replace(params=mean, average={})
    values, scores = final_scores(trainer, trainer.whole(state), "test")
    step = int(state.step)
    writer = MetricWriter(workdir, step, trainer.config, "test/")
    found = {**values, **scores.notes}
    writer.write(step, {f"test/{name}": value for name, value in found.items()})
    writer.close()
    write_results(trainer, state, workdir, checkpoints, values, scores)
    write_files(scores, workdir)
    show_samples(scores.samples)
    shown = "  ".join(f"{name} {value:.4g}" for name, value in values.items())
    log(f"step {step} test: {shown}  {' '.join(scores.notes.values())}")
    if jax.process_index() == 0:
        log(f"{write_report(workdir)} shows curves, scores and settings")


def write_files(scores: Scores, workdir: Path) -> None:
    """Writes the files that belong to the scores, such as pictures, into the run's directory."""
    for name, content in scores.files.items() if jax.process_index() == 0 else ():
        write_atomically(workdir / name, content)
        log(f"wrote {workdir / name}")


def write_results(
    trainer: Trainer,
    state: TrainState,
    workdir: Path,
    checkpoints: Checkpoints,
    test: dict[str, Any],
    scores: Scores,
) -> None:
    """Writes results.json: final scores, numbers of parameters, bytes, times, samples, classes.

    `saved_bytes` are those of the newest checkpoint's arrays on disk: the trained parameters and
    the optimizer's moments. `seconds` are those of all training steps, without evaluation and
    start. `programs` are those that this process needed, `cached_programs` those of them that an
    earlier one had compiled.
    """
    lines, scored = read_metrics(workdir), (checkpoints.scored(1) or [int(state.step)])[-1]
    values = {
        "step": int(state.step),
        **{f"validation/{k}": v for k, v in _validation(trainer, state, lines, scored).items()},
        **{f"test/{k}": v for k, v in test.items()},
        "vocab_size": _vocab_size(trainer.task),
        "parameters": count_parameters(trainer.param_shapes),
        "trainable_parameters": count_parameters(state.params),
        "optimizer_bytes": sum(x.nbytes for x in jax.tree.leaves(state.opt_state)),
        "saved_bytes": checkpoints.array_bytes(),
        **_pace(lines),
        **programs(),
        "samples": scores.samples,
        "confusion": scores.confusion,
    }
    if jax.process_index() == 0:
        write_json(workdir / RESULTS, {k: plain(v) for k, v in values.items() if v not in ({}, [])})


def _vocab_size(task: Any) -> int | None:
    """The vocabulary's size, also if the tokenizer decided it; None for a model without one."""
    return task.model_config.vocab_size if isinstance(task.model_config, Vocabulary) else None


def _validation(
    trainer: Trainer, state: TrainState, lines: list[dict[str, Any]], step: int
) -> dict[str, float]:
    """The logged validation scores of the run's step; of a mean of checkpoints, computed anew."""
    prefix = "validation/"
    for line in reversed(lines if trainer.config.average == 1 else []):
        if line["step"] == step and any(key.startswith(prefix) for key in line):
            return {k.removeprefix(prefix): v for k, v in line.items() if k.startswith(prefix)}
    return final_scores(trainer, trainer.whole(state), "validation")[0]


def _pace(lines: list[dict[str, Any]]) -> dict[str, float]:
    """Seconds of all logged steps, and the median rate, as the first ones include compilation."""
    timed = [(x["step"], x["steps_per_second"]) for x in lines if "steps_per_second" in x]
    if not timed:
        return {}
    starts = [0, *(step for step, _ in timed)]
    seconds = sum((step - start) / rate for start, (step, rate) in zip(starts, timed, strict=False))
    return {
        "seconds": seconds,
        "steps_per_second": statistics.median(rate for _, rate in timed),
    }
