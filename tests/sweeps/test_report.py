"""The report's numbers, recomputed here from the runs' files by other means."""

import csv
import dataclasses
import json
import math
import re

import numpy as np
import pytest

from tests.sweeps.sample import PLAN, make_sweep
from transformer_lab.errors import LabError, read_json
from transformer_lab.sweeps import display, experiment, plots
from transformer_lab.sweeps.experiment import Run
from transformer_lab.sweeps.report import comparison, numbers_grid, results_grid, write_report
from transformer_lab.sweeps.results import Row, read_table
from transformer_lab.sweeps.states import LOG, lock
from transformer_lab.training.places import write_json

SCORES = {
    "a": [(0.60, 0.70), (0.62, 0.75), (0.67, 0.71)],
    "b": [(0.70, 0.50), (0.72, 0.52), (0.74, 0.57)],
    "c": [(0.99, 0.99), "step 3: loss nan", None],
    "d": [(0.10, 0.20)],
}


def as_dicts(path):
    with open(path, encoding="utf-8", newline="") as file:
        return {row["variation"]: row for row in csv.DictReader(file)}


def test_numbers_equal_those_recomputed_from_the_jsonl(tmp_path):
    make_sweep(tmp_path, SCORES)
    write_report(tmp_path)
    found = as_dicts(tmp_path / "report.csv")
    for row, scores in SCORES.items():
        for key in ("validation/accuracy", "test/accuracy"):
            values = []
            for file in sorted(tmp_path.glob(f"{row},seed=*/metrics.jsonl")):
                lines = map(json.loads, file.read_text(encoding="utf-8").splitlines())
                values.append([line[key] for line in lines if key in line][-1])
            assert float(found[row][f"{key} mean"]) == pytest.approx(np.mean(values), rel=1e-12)
            if len(values) > 1:
                deviation = float(found[row][f"{key} deviation"])
                assert deviation == pytest.approx(np.std(values, ddof=1), rel=1e-12)
        assert found[row]["runs"] == str(len(scores))
    assert [found[row]["finished"] for row in "abcd"] == ["3", "3", "1", "1"]
    assert found["d"]["test/accuracy deviation"] == ""
    assert float(found["a"]["step_seconds mean"]) == pytest.approx(1 / 7.5)


def test_the_table_shows_seeds_and_sample_deviation(tmp_path):
    grid = results_grid(read_table(make_sweep(tmp_path, SCORES)))
    assert grid.header[:5] == [
        "", "seeds", "validation accuracy", "test accuracy", "paper: accuracy",
    ]  # fmt: skip
    assert grid.rows[0][:5] == ["a", "3", "0.63 ± 0.036", "0.72 ± 0.026", "0.9"]
    assert grid.rows[2][:5] == ["c", "1 of 3", "0.99", "0.99", ""]


@pytest.mark.parametrize(("higher", "best"), [(True, "b"), (False, "d")])
def test_the_best_is_chosen_on_validation_and_never_on_test(higher, best, tmp_path):
    """a has the better test score; c has the best one of all, of a third of its runs."""
    table = read_table(make_sweep(tmp_path, SCORES, higher_is_better=higher))
    assert table.best == best
    marked = [row[0] for row in results_grid(table).rows if row[0].endswith("*")]
    assert marked == [f"{best} *"]
    assert [row[0] for row in numbers_grid(table).rows if row[1] == "1"] == [best]


def test_a_score_that_is_no_number_is_not_best_and_has_no_deviation(tmp_path):
    table = read_table(make_sweep(tmp_path, {"a": [("nan", 0.1), (0.9, 0.1)], "b": [(0.2, 0.1)]}))
    row = table.rows[0]
    assert table.best == "b" and math.isnan(row.mean("validation/accuracy"))
    assert math.isnan(row.deviation("validation/accuracy"))


def test_the_report_says_how_many_programs_had_been_compiled_before(tmp_path):
    make_sweep(tmp_path, SCORES)
    for seed, counts in enumerate(({"programs": 900, "cached_programs": 100}, {"programs": 300})):
        file = tmp_path / f"a,seed={seed}" / "results.json"
        write_json(file, read_json(file) | counts)
    told = "Of 1,200 compiled programs that the runs needed 100 were there from earlier runs."
    assert told in write_report(tmp_path)


def test_failed_and_missing_runs_are_named(tmp_path):
    text = write_report(make_sweep(tmp_path, SCORES))
    assert "- failed: c,seed=1: step 3: loss nan" in text
    assert "- missing: c,seed=2: stopped" in text
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "failed: c,seed=1: step 3: loss nan" in page and "missing: c,seed=2: stopped" in page


def test_html_is_escaped_and_needs_no_other_file(tmp_path):
    evil = "<script>alert('x')</script>"
    paper = PLAN["paper"] | {"source": f'"{evil}&'}
    write_report(make_sweep(tmp_path, {"a": [(0.1, 0.2), evil]}, doc=evil, paper=paper))
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.count("<script>") == 1 and page.count("&lt;script&gt;") == 3
    assert not re.search(r"(src|href)=\"(?!data:)", page) and page.count("<svg") == 2
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_markdown_and_latex_are_escaped(tmp_path):
    paper = PLAN["paper"] | {"columns": ["100% of A|B & C_D"]}
    text = write_report(make_sweep(tmp_path, {"a_1": [(0.1, 0.2)]}, paper=paper))
    assert r"100% of A\|B & C\_D" in text and r"a\_1 \*" in text
    tex = (tmp_path / "report.tex").read_text(encoding="utf-8")
    assert r"100\% of A|B \& C\_D" in tex and r"a\_1 *" in tex
    assert {line.count(" & ") for line in tex.splitlines() if line.endswith(r"\\")} == {7}


def test_two_sweeps_differ_by_the_means_with_a_standard_error(tmp_path):
    here = make_sweep(tmp_path / "x", {"a": [(0, 0.5), (0, 0.7)], "b": [(0, 0.5)], "y": []})
    there = make_sweep(tmp_path / "y", {"a": [(0, 0.1), (0, 0.2), (0, 0.6)], "b": [(0, 0.75)]})
    grid = comparison(read_table(here), read_table(there))
    error = np.sqrt(np.var([0.5, 0.7], ddof=1) / 2 + np.var([0.1, 0.2, 0.6], ddof=1) / 3)
    assert grid.rows[0][-2:] == ["0.3", f"{error:.3g}"]
    assert grid.rows[1][-2:] == ["-0.25", ""]  # one seed has no deviation
    assert len(grid.rows) == 2
    assert grid.rows[0][4] in write_report(here, there)
    assert (tmp_path / "x" / "compare.csv").exists()


def test_the_experiments_own_plot_is_drawn_and_its_file_never_run_unless_given(tmp_path):
    """Whoever sends a directory of results must not run a program here."""
    ran, file = tmp_path / "ran", tmp_path / "mine.py"
    file.write_text(
        "from pathlib import Path\n"
        "from matplotlib.figure import Figure\n"
        "from transformer_lab.sweeps.experiment import Experiment\n"
        f"Path({str(ran)!r}).touch()\n"
        "def plot(table):\n    figure = Figure()\n"
        "    figure.subplots().plot([row.mean('test/accuracy') for row in table.rows])\n"
        "    return figure\n"
        "def get_experiment(scale): return Experiment('configs/smoke.py', [], plot=plot)\n",
        encoding="utf-8",
    )
    sweep = make_sweep(tmp_path / "s", SCORES, experiment=str(file))
    assert "![plot]" not in write_report(sweep) and not ran.exists()
    text = write_report(sweep, plot=experiment.load(str(file), "cpu").plot)
    assert "![plot](plot.png)" in text and (sweep / "plot.svg").exists() and ran.exists()


def test_a_directory_without_a_sweep_is_one_line(tmp_path):
    with pytest.raises(LabError, match="holds no sweep"):
        write_report(tmp_path)


@pytest.mark.parametrize("name", ["sweep.json", "a,seed=0/results.json", "a,seed=0/config.json"])
def test_a_file_that_is_no_json_is_named(name, tmp_path):
    file = make_sweep(tmp_path, SCORES) / name
    file.write_text('{"step": 3', encoding="utf-8")
    with pytest.raises(LabError, match=f"{name}: not valid JSON"):
        read_table(tmp_path)


def test_a_curve_leaves_out_lines_that_are_no_json(tmp_path):
    directory = make_sweep(tmp_path, SCORES) / "a,seed=0"
    with open(directory / "metrics.jsonl", "ab") as file:
        file.write(b'\x00\xff\n{"step": 11, "lo')
    assert read_table(tmp_path).rows[0].runs[0].curve("loss") == ([5, 10], [2.0, 1.0])


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("sweep.json", {"runs": None}, "sweep.json: runs = null"),
        ("sweep.json", {"columns": "loss"}, 'sweep.json: columns = "loss"'),
        ("sweep.json", {"higher_is_better": 1}, "sweep.json: higher_is_better = 1"),
        ("sweep.json", {"runs": [{"name": "../x", "row": "a"}]}, "no name for a directory"),
        ("sweep.json", {"runs": [{"name": "x"}]}, "has no row"),
        ("sweep.json", {"paper": {"source": "x"}}, "paper.columns = null"),
        ("a,seed=0/results.json", {"test/accuracy": [1]}, r"test/accuracy = \[1\]"),
        ("a,seed=0/results.json", {"parameters": 10**400}, "parameters = 1000"),
        ("a,seed=0/config.json", {"model": 3}, r"config\.json: config\.model = 3"),
    ],
)
def test_a_key_of_a_wrong_type_is_named_with_its_file(name, change, words, tmp_path):
    file = make_sweep(tmp_path, SCORES) / name
    write_json(file, read_json(file) | change)
    with pytest.raises(LabError, match=words):
        read_table(tmp_path)


def test_a_curve_leaves_out_values_that_are_no_numbers(tmp_path):
    directory = make_sweep(tmp_path, SCORES) / "a,seed=0"
    with open(directory / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write('{"step": 11, "loss": null}\n{"step": "x", "loss": 1}\n[[[]]]\n')
        file.write('{"step": 12, "loss": "text"}\n{"loss": 2}\n' + "[" * 50000 + "\n")
    assert read_table(tmp_path).rows[0].runs[0].curve("loss") == ([5, 10], [2.0, 1.0])


@pytest.mark.parametrize("name", ["$\\frac{", "_hidden", "x$^2$", "two\nlines", "w" * 5000])
def test_a_rows_name_is_drawn_as_it_stands(name, tmp_path):
    """Two "$" would be a formula, "_" would hide it from the legend."""
    table = read_table(make_sweep(tmp_path, {"a": [(0.1, 0.2)]}))
    figure = plots.curves(dataclasses.replace(table, rows=(Row(name, table.rows[0].runs),)))
    plots.save(figure, tmp_path / "curves")
    (text,) = figure.legends[0].get_texts()
    drawn, formula = text._preprocess_math(text.get_text())
    assert not formula
    assert drawn.strip() == (name.replace("\n", " ") if len(name) < 60 else "w" * 59 + "…")


def test_without_a_terminal_a_run_that_goes_on_is_told_of_every_so_often(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(display, "SELDOM", 0.0)
    made = [Run("a", "a", (), {}), Run("b", "b", (), {})]
    (tmp_path / "b").mkdir()
    board, held = display.Board(made, tmp_path), lock(tmp_path / "b")
    board.update()
    (tmp_path / "b" / LOG).write_text("step 5/20  loss 1.2500  9 steps/s  left 0:00:07\n")
    board.update()
    board.update()  # nothing new
    held.close()
    said = capsys.readouterr().err.splitlines()
    assert said == ["2/2 b running", "2/2 b: step 5/20, loss 1.2500, left 0:00:07"]
