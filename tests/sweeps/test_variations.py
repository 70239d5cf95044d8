"""Combinators, and experiment files read as lists of runs."""

import functools
import json
import sys

import pytest

from tests.entry import ROOT, command
from transformer_lab import cli
from transformer_lab.commands import train
from transformer_lab.errors import LabError
from transformer_lab.sweeps import experiment
from transformer_lab.sweeps.cluster import submit
from transformer_lab.sweeps.experiment import Experiment, load, runs_of
from transformer_lab.sweeps.results import read_plan
from transformer_lab.sweeps.runner import write_plan
from transformer_lab.sweeps.states import refuse_changes
from transformer_lab.sweeps.variations import Variation, chain, grid, pair, seeds, vary
from transformer_lab.training.config import flatten
from transformer_lab.training.places import write_json

SMOKE = "configs/smoke.py"


def test_vary_names_by_values_or_by_keys():
    assert vary("model.dropout", [0.0, 0.1]) == [
        ("dropout=0.0", {"model.dropout": 0.0}),
        ("dropout=0.1", {"model.dropout": 0.1}),
    ]
    assert vary("seed", {"one": 1}) == [("one", {"seed": 1})]


def test_combinators_make_exactly_these_lists():
    a, b = vary("a", [1, 2]), vary("b", [3, 4])
    names = [
        ("a=1,b=3", {"a": 1, "b": 3}),
        ("a=1,b=4", {"a": 1, "b": 4}),
        ("a=2,b=3", {"a": 2, "b": 3}),
        ("a=2,b=4", {"a": 2, "b": 4}),
    ]
    assert grid(a, b) == names
    assert pair(a, b) == [names[0], names[3]]
    assert chain(a, b) == a + b
    assert grid() == [("", {})]
    with_seeds = seeds(a, 2)
    assert [v.name for v in with_seeds] == ["a=1,seed=0", "a=1,seed=1", "a=2,seed=0", "a=2,seed=1"]
    assert [v.row for v in with_seeds] == ["a=1", "a=1", "a=2", "a=2"]
    assert with_seeds[3].changes == {"a": 2, "seed": 1}
    some = [v.name for v in seeds(a, 3, ("a=2",))]
    assert some == ["a=1,seed=0", "a=2,seed=0", "a=2,seed=1", "a=2,seed=2"]


def test_unequal_lengths_and_a_key_varied_twice_are_errors():
    with pytest.raises(LabError, match="2, 1"):
        pair(vary("a", [1, 2]), vary("b", [3]))
    with pytest.raises(LabError, match="a is varied twice"):
        grid(vary("a", [1]), vary("a", [2]))


@pytest.mark.parametrize("names", [("x", "x"), ("x", "X")])
def test_equal_names_never_share_a_directory(names):
    variations = [Variation(name, {"steps": i}) for i, name in enumerate(names)]
    with pytest.raises(LabError, match=f'"{names[0]}" .steps = 0. and "{names[1]}" .steps = 1.'):
        runs_of(Experiment(SMOKE, variations))


@pytest.mark.parametrize(
    ("variation", "words"),
    [
        (Variation("a", {"stepz": 1}), 'run a: config.stepz is not a key .did you mean "steps"'),
        (Variation("a", {"steps": "many"}), "run a: config.steps = 'many'"),
        (Variation("a", {"model.heads": 0}), "run a: model.heads = 0"),
        (Variation("a", {"epochs": None}), "run a: config.epochs = None"),
        (Variation("a/b", {}), '"a/b" is no name'),
        (Variation("..", {}), "is no name"),
        (Variation("a", {"config": "configs/none.py"}), "run a: configs/none.py: no such file"),
    ],
)
def test_a_mistake_is_refused_before_anything_runs(variation, words):
    with pytest.raises(LabError, match=words):
        runs_of(Experiment(SMOKE, [variation]))


def test_nothing_to_run_is_said():
    with pytest.raises(LabError, match="no variations"):
        runs_of(Experiment(SMOKE, []))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("def get_experiment(", r"mine.py:1: SyntaxError: '\(' was never closed"),
        ("\nimport nowhere", "mine.py:2: ModuleNotFoundError: No module named 'nowhere'"),
        ("x = 1", "has no get_experiment"),
        ("def get_experiment(scale):\n    return help_(1)", "mine.py:2: NameError: .*help_"),
    ],
)
def test_a_mistake_in_an_experiment_names_file_and_line(content, words, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(LabError, match=words):
        load(str(file), "cpu")


def test_a_directory_keeps_the_sweep_of_one_experiment(tmp_path):
    experiment = Experiment(SMOKE, vary("steps", [1]))
    told = {"experiment": "a/dropout.py", "scale": "cpu", "init_from": ""}
    write_plan(tmp_path, experiment, runs_of(experiment), told)
    write_plan(tmp_path, experiment, runs_of(experiment), told | {"experiment": "b/dropout.py"})
    before = (tmp_path / "sweep.json").read_text(encoding="utf-8")
    with pytest.raises(LabError, match="holds the sweep of b/dropout.py: use another --workdir"):
        write_plan(tmp_path, experiment, runs_of(experiment), told | {"experiment": "heads.py"})
    assert (tmp_path / "sweep.json").read_text(encoding="utf-8") == before


@pytest.mark.parametrize(
    ("config", "given", "shown"),
    [
        (SMOKE, {}, ["bleu"]),
        (SMOKE, {"columns": ("chrf",)}, ["chrf"]),
        (SMOKE, {"metric": "bleu"}, []),
        ("configs/cnn_fashion_mnist.py", {}, ["accuracy"]),
        ("configs/gpt_brown.py", {}, []),
    ],
)
def test_a_table_shows_the_score_of_the_runs_task_unless_others_are_named(
    config, given, shown, tmp_path
):
    experiment = Experiment(config, vary("steps", [1]), **given)
    told = {"experiment": "mine.py", "scale": "cpu", "init_from": ""}
    write_plan(tmp_path, experiment, runs_of(experiment), told)
    assert read_plan(tmp_path / "sweep.json")["columns"] == shown


def test_config_file_argument_and_init_from_vary():
    other = {"config": "configs/gpt_positions.py:alibi", "init_from": "hf:X", "batch.rows": 8}
    experiment = Experiment(SMOKE, [Variation("a", {}), Variation("b", other)])
    measured = Experiment("", [Variation("", {"u": 1})], measure=dict)
    assert runs_of(measured, init_from="runs/x")[0].settings == {"init_from": "runs/x", "u": 1}
    assert runs_of(measured)[0].settings == {"u": 1}
    first, second = runs_of(experiment, init_from="runs/x")
    assert first.arguments == (f"--config={SMOKE}", "--init_from=runs/x")
    assert second.arguments == (
        "--config=configs/gpt_positions.py:alibi",
        "--init_from=hf:X",
        "--config.batch.rows=8",
    )
    assert second.settings["model.positions"] == "alibi" and second.settings["batch.rows"] == 8


def test_train_reads_every_kind_of_value_as_it_was_meant(monkeypatch):
    """The command's config equals the settings."""
    changes = {
        "steps": 1, "optimizer.learning_rate": 1, "tensorboard": False, "mesh.data": -1,
        "task.other_lengths": (16, 24), "batch.length": 8, "batch.rows": 8, "model.layers": 1,
        "optimizer.multipliers": "a b=0.5;c'd=2", "task.samples": 0,
    }  # fmt: skip
    (run,) = runs_of(Experiment("configs/gpt_positions.py", [Variation("a", changes)]))
    monkeypatch.setattr(train, "main", lambda _: print(json.dumps(flatten(cli.get_config()))))
    done = command("train", *run.arguments)
    asked = {k: v for k, v in run.settings.items() if not k.startswith(("init_", "config"))}
    assert json.loads(done.stdout) == asked


def test_a_run_that_has_a_result_refuses_other_settings_and_names_the_key(tmp_path):
    (run,) = runs_of(Experiment(SMOKE, [Variation("a", {"steps": 5})]))
    (other,) = runs_of(Experiment(SMOKE, [Variation("a", {"steps": 6, "log_every": 1})]))
    write_json(tmp_path / "settings.json", run.settings)
    refuse_changes(other, tmp_path)  # nothing was trained there yet
    write_json(tmp_path / "results.json", {})
    refuse_changes(run, tmp_path)
    with pytest.raises(LabError, match="steps = 5, the experiment now has 6"):
        refuse_changes(other, tmp_path)


def test_an_ablation_takes_one_file_of_at_most_20_lines():
    path = "experiments/dropout.py"
    runs = runs_of(load(path, "cpu"))
    assert len((ROOT / path).read_text(encoding="utf-8").splitlines()) <= 20
    assert [run.name for run in runs[:4]] == [
        "dropout=0.0,seed=0", "dropout=0.0,seed=1", "dropout=0.0,seed=2", "dropout=0.1,seed=0",
    ]  # fmt: skip
    assert len(runs) == 15 and len({run.row for run in runs}) == 5


@pytest.fixture(scope="module")
def read_once():
    """Some config files count the parameters of models; both scales share what they found."""
    with pytest.MonkeyPatch.context() as patch:
        read = functools.cache(experiment._load_config)
        patch.setattr(experiment, "_load_config", read)
        yield


@pytest.mark.parametrize("path", sorted(str(p) for p in (ROOT / "experiments").glob("*.py")))
@pytest.mark.parametrize("scale", ["cpu", "paper"])
def test_every_experiment_is_a_list_of_possible_runs(path, scale, read_once):
    assert len(runs_of(load(path, scale), init_from="hf:DIR")) >= 2


def test_submitit_may_be_missing(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(LabError, match="pip install submitit.*--index=I"):
        submit("slurm", tmp_path, [], [0], 1, {})


@pytest.mark.parametrize(
    ("returned", "config", "words"),
    [
        ("None", SMOKE, "get_experiment returns None: it must be an Experiment"),
        ("Experiment({config!r}, [Variation('a', {{}})])", "none.py", "get_config returns None"),
        ("Experiment({config!r}, [Variation('a', {{}})])", "lacks.py", "no attribute 'get_config'"),
    ],
)
def test_a_file_that_returns_another_thing_is_named(returned, config, words, tmp_path):
    (tmp_path / "none.py").write_text("def get_config(): pass\n")
    (tmp_path / "lacks.py").write_text("")
    file = tmp_path / "mine.py"
    file.write_text(
        "from transformer_lab.sweeps.experiment import Experiment\n"
        "from transformer_lab.sweeps.variations import Variation\n"
        f"def get_experiment(scale): return {returned.format(config=str(tmp_path / config))}\n"
    )
    with pytest.raises(LabError, match=words):
        runs_of(load(str(file), "cpu"))


def test_a_sweep_and_a_run_keep_out_of_each_others_directories(tmp_path):
    """A run's directory holds the run alone, and a sweep's the runs that the sweep makes."""
    run, sweep = tmp_path / "run", tmp_path / "sweep"
    (run / "checkpoints").mkdir(parents=True)
    (run / "config.json").write_text("{}")
    sweep.mkdir()
    (sweep / "sweep.json").write_text("{}")
    (file := tmp_path / "mine.py").write_text(
        "from transformer_lab.sweeps.experiment import Experiment\n"
        "from transformer_lab.sweeps.variations import vary\n"
        "get_experiment = lambda scale: Experiment('smoke', vary('seed', [0, 1]))\n"
    )
    for name, flag, workdir, words in (
        ("sweep", f"--experiment={file}", run, "holds a run already"),
        ("sweep", f"--experiment={file}", run / "a" / "b", f"lies in the run {run}"),
        ("train", "--config=smoke", run / "a", f"lies in the run {run}"),
        ("train", "--config=smoke", sweep, "holds a sweep"),
    ):
        done = command(name, flag, f"--workdir={workdir}")
        (line,) = done.stderr.decode().splitlines()
        assert done.returncode == 2 and words in line and str(workdir) in line
    assert sorted(path.name for path in run.iterdir()) == ["checkpoints", "config.json"]
