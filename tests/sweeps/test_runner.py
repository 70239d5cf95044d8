"""Sweeps of real processes: killed, failing, one element alone."""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.forked import started
from transformer_lab.errors import LabError
from transformer_lab.sweeps import runner
from transformer_lab.sweeps.cluster import Element
from transformer_lab.sweeps.experiment import Experiment, runs_of
from transformer_lab.sweeps.report import write_report
from transformer_lab.sweeps.runner import measure, write_plan
from transformer_lab.sweeps.states import lock, progress, state_of
from transformer_lab.sweeps.variations import seeds, vary

FILE = '''"""Small reversals."""
from transformer_lab.sweeps.experiment import Experiment
from transformer_lab.sweeps.variations import seeds, vary

CHANGES = {{
    "steps": {steps}, "eval_every": {steps}, "save_every": 5, "keep": 1, "log_every": 5,
    "model.width": 8, "model.heads": 1, "model.head_dim": 8, "model.feed_forward_width": 16,
    "data.max_pairs": 100, "data.validation_size": 8, "data.test_size": 8, "tensorboard": False,
    "task.score_examples": 0, "task.samples": 0, "batch.tokens_per_batch": 160, "mesh.data": 1,
    "decode.max_new_tokens": 1,
}}


def get_experiment(scale):
    variations = seeds(vary({key!r}, {values!r}), {seeds})
    return Experiment("configs/smoke.py", variations, changes=CHANGES)
'''


def experiment(directory, seeds, key="optimizer.learning_rate", steps=20, **values):
    path = directory / "mine.py"
    text = FILE.format(seeds=seeds, key=key, steps=steps, values=values)
    path.write_text(text, encoding="utf-8")
    return path


def start(file, workdir, *arguments):
    words = ["sweep", f"--experiment={file}", f"--workdir={workdir}", *arguments]
    return started(words, log=file.with_suffix(".log"))


def finish(file, workdir, *arguments, code=0):
    """A sweep to its end: what it says."""
    file.with_suffix(".log").unlink(missing_ok=True)
    process = start(file, workdir, *arguments)
    process.join(timeout=300)
    text = file.with_suffix(".log").read_text(encoding="utf-8")
    assert process.exitcode == code, text[-3000:]
    return text


def kill_somewhere(file, workdir, rng, orphan):
    """Kills the sweep once a run saves, and the run with it or not (then it goes on alone)."""
    saved = lambda: sorted(map(str, workdir.glob("*/checkpoints/*/manifest.json")))  # noqa: E731
    before, process = saved(), start(file, workdir)
    while process.is_alive() and saved() == before:
        time.sleep(0.01)
    time.sleep(rng.uniform(0, 0.5))
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.kill()
    for pid in [] if orphan else map(int, children):
        os.kill(pid, signal.SIGKILL)
    process.join()
    return process.exitcode == -signal.SIGKILL


def scores_of(workdir):
    write_report(workdir)
    return scores(workdir)


def scores(workdir):
    """report.csv without what time and the writer's headers decide."""
    lines = (workdir / "report.csv").read_text(encoding="utf-8").splitlines()
    header = lines[0].split(",")
    keep = [i for i, name in enumerate(header) if "seconds" not in name and "saved" not in name]
    return [[line.split(",")[i] for i in keep] for line in lines]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A sweep left alone, of a run that learns and one whose loss is soon no number."""
    directory = tmp_path_factory.mktemp("whole")
    file = experiment(directory, 1, fails=3e38, works=5e-3)
    return file, directory / "sweep", finish(file, directory / "sweep", code=1)


@pytest.mark.slow
def test_a_failed_run_shows_as_failed_and_the_others_go_on(whole):
    _, workdir, text = whole
    assert "1 of 2 runs failed: fails,seed=0" in text
    error = json.loads((workdir / "fails,seed=0" / "failed.json").read_text(encoding="utf-8"))
    assert "gradient norm" in error["error"]
    assert f"\nfailed: fails,seed=0: {error['error'][:20]}" in text
    assert state_of(workdir / "fails,seed=0") == "failed"
    assert state_of(workdir / "works,seed=0") == "finished"
    assert progress(workdir / "works,seed=0").step == "20/20"
    rows = scores(workdir)
    assert [row[:5] for row in rows[1:]] == [
        ["fails", "0", "0", "1", "1"],
        ["works", "1", "1", "1", "0"],
    ]


def test_results_are_those_of_the_runs_own_metrics(whole):
    _, workdir, _ = whole
    directory = workdir / "works,seed=0"
    found = json.loads((directory / "results.json").read_text(encoding="utf-8"))
    lines = [json.loads(x) for x in (directory / "metrics.jsonl").read_text("utf-8").splitlines()]
    merged = {k: v for line in lines for k, v in line.items()}
    for key in ("validation/loss", "test/loss", "test/bleu", "step"):
        assert found[key] == merged[key]
    assert found["parameters"] == found["trainable_parameters"]
    assert found["optimizer_bytes"] >= 2 * 4 * found["parameters"]  # Adam's two moments
    assert found["saved_bytes"] > 0 and found["steps_per_second"] > 0


def test_a_measurement_takes_the_place_of_training_and_has_the_same_states(tmp_path):
    calls = []

    def square(settings):
        calls.append(settings)
        return {"square": settings["side"] ** 2}

    variations = seeds(vary("side", {"three": 3, "none": "x"}), 1)
    experiment = Experiment("", variations, metric="square", changes={"u": 1}, measure=square)
    runs = runs_of(experiment)
    told = {"experiment": "gone.py", "scale": "cpu", "init_from": ""}
    write_plan(tmp_path, experiment, runs, told)
    assert measure(runs, tmp_path, square) == ["none,seed=0"]
    assert measure(runs, tmp_path, square) == ["none,seed=0"]
    assert calls == [{"u": 1, "side": s, "seed": 0} for s in (3, "x", "x")]
    text = write_report(tmp_path)
    assert "| three | 1 | 9 |\n" in text and "failed: none,seed=0: unsupported" in text
    assert "| validation" not in text and not (tmp_path / "curves.png").exists()


@pytest.mark.skipif(len(runner._shares(2)[0]) == 0, reason="cores cannot be shared out")
def test_runs_at_a_time_share_the_cores(tmp_path, monkeypatch):
    """Two runs see disjoint halves of them while both are there, and both halves get used."""
    code = (
        "import os, sys, time; time.sleep(0.2);"
        "open(sys.argv[1] + '/cores', 'w').write(str(sorted(os.sched_getaffinity(0))))"
    )
    told = lambda run, directory: [sys.executable, "-c", code, str(directory)]  # noqa: E731
    monkeypatch.setattr(runner, "command", told)
    runs = runs_of(Experiment("configs/smoke.py", seeds(vary("steps", [1, 2]), 1)))
    assert runner.sweep(runs, tmp_path, 2) == []
    first, second = (json.loads((tmp_path / run.name / "cores").read_text()) for run in runs)
    assert sorted(first + second) == sorted(os.sched_getaffinity(0))


def test_a_finished_run_is_skipped_and_a_changed_one_refused(whole, tmp_path):
    file, workdir, _ = whole
    before = (workdir / "works,seed=0" / "log.txt").read_bytes()
    finish(file, workdir, "--only=works")
    assert (workdir / "works,seed=0" / "log.txt").read_bytes() == before
    text = finish(experiment(tmp_path, 1, fails=3e38, works=4e-3), workdir, code=2)
    assert "optimizer.learning_rate = 0.005, the experiment now has 0.004" in text


@pytest.mark.slow
def test_a_sweep_killed_at_random_ends_with_the_same_table(whole, tmp_path):
    file, workdir, _ = whole
    assert kill_somewhere(file, tmp_path / "killed", random.Random(0), orphan=False)
    finish(file, tmp_path / "killed", code=1)
    assert scores(tmp_path / "killed") == scores(workdir)


@pytest.mark.slow
def test_twelve_runs_killed_three_times_end_with_the_same_table(tmp_path):
    file, rng = experiment(tmp_path, 3, low=1e-3, mid=5e-3, high=1e-2, fails=3e38), random.Random(1)
    finish(file, tmp_path / "whole", code=1)
    kills = [kill_somewhere(file, tmp_path / "killed", rng, i % 2) for i in range(3)]
    assert all(kills)
    finish(file, tmp_path / "killed", code=1)
    assert scores(tmp_path / "killed") == scores(tmp_path / "whole")
    assert len(scores(tmp_path / "whole")) == 5


def test_index_trains_one_element_and_the_report_names_the_others(whole, tmp_path):
    file, workdir, _ = whole
    finish(file, tmp_path, "--index=1")
    assert not (tmp_path / "fails,seed=0").exists()
    (theirs,) = [row for row in scores_of(tmp_path) if row[0] == "works"]
    (ours,) = [row for row in scores(workdir) if row[0] == "works"]
    assert theirs == ours
    assert "0 to 1" in finish(file, tmp_path, "--index=2", code=2)


def test_an_element_fails_with_its_run_and_is_queued_again_when_it_is_told_to_stop():
    pytest.importorskip("submitit")
    with pytest.raises(LabError, match="exit code 3"):
        Element()([sys.executable, "-c", "exit(3)"])
    element, command, queued = Element(), ["sleep", "60"], []
    old = signal.signal(
        signal.SIGALRM, lambda *_: queued.append(element.checkpoint(command))
    )  # as submitit does of SIGUSR2
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    with pytest.raises(LabError, match=f"exit code -{signal.SIGTERM.value}"):
        element(command)
    signal.signal(signal.SIGALRM, old)
    (again,) = queued
    assert isinstance(again.function, Element) and again.args == (command,)


def test_a_sweep_that_is_told_to_stop_lets_its_run_save_and_says_so_by_its_code(tmp_path):
    file = experiment(tmp_path, 1, steps=100_000, a=1e-3)
    process = start(file, tmp_path / "sweep", "--index=0")
    log = tmp_path / "sweep" / "a,seed=0" / "log.txt"
    while not (log.exists() and "step 5/" in log.read_text()):
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGUSR1)
    process.join(timeout=120)
    assert process.exitcode == 128 + signal.SIGUSR1
    assert "SIGTERM: saved at step" in log.read_text()
    assert state_of(log.parent) == "stopped"


@pytest.mark.slow
def test_submitit_runs_each_element(tmp_path):
    pytest.importorskip("submitit")
    file = experiment(tmp_path, 1, steps=5, works=5e-3)
    finish(file, tmp_path / "sweep", "--launcher=local")
    assert state_of(tmp_path / "sweep" / "works,seed=0") == "finished"


def test_a_dry_run_trains_nothing(whole, tmp_path):
    text = finish(whole[0], tmp_path / "none", "--dry_run")
    assert "1  works,seed=0  waiting" in text and "--config.optimizer.learning_rate=0.005" in text
    assert not (tmp_path / "none").exists()


def test_a_locked_directory_counts_as_running(tmp_path):
    held = lock(tmp_path)
    assert state_of(tmp_path) == "running" and lock(tmp_path) is None
    held.close()
    assert state_of(tmp_path) == "waiting"
