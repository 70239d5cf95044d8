"""Differences to a base, paired by seed, beside the published ones."""

import math
import re

import numpy as np
import pytest

from tests.entry import ROOT, command
from tests.sweeps.sample import PLAN, make_sweep
from transformer_lab.errors import LabError, read_json
from transformer_lab.sweeps import papers
from transformer_lab.sweeps.experiment import Experiment, load
from transformer_lab.sweeps.report import notes, results_grid, verdict_grid
from transformer_lab.sweeps.results import read_table, summary
from transformer_lab.sweeps.variations import Variation, grid, vary
from transformer_lab.sweeps.verdicts import verdicts
from transformer_lab.training.places import write_json

# Test scores of seeds 0, 1 and 2, all with the same score on the validation split
TEST = {
    "base": [0.50, 0.60, 0.70],
    "up": [0.53, 0.62, 0.74],  # by 0.03, 0.02 and 0.04: paired they say what they would not apart
    "down": [0.40, 0.52, 0.61],
    "wrong": [0.53, 0.63, 0.73],
    "noisy": [0.40, 0.70, 0.80],
    "once": [0.90],
    "equal": [0.40, 0.50, 0.59],
    "unknown": [0.40, 0.50, 0.59],
}
ROWS = {
    "base": [None, 25.0], "up": [9.0, 25.5], "down": [None, 24.0], "wrong": [None, 24.5],
    "noisy": [None, 26.0], "once": [None, 26.0], "equal": [None, 25.0],
}  # fmt: skip


@pytest.fixture
def sweep(tmp_path):
    scores = {row: [(0.5, x) for x in values] for row, values in TEST.items()}
    paper = PLAN["paper"] | {"columns": ["GLUE", "BLEU"], "rows": ROWS, "labels": {}}
    base = {row: "base" for row in TEST if row != "base"}
    return make_sweep(tmp_path / "s", scores, paper=paper, base=base)


def test_a_verdict_is_the_paired_difference_beside_the_published_one(sweep):
    found = {verdict.row: verdict for verdict in verdicts(read_table(sweep))}
    for row, verdict in found.items():
        apart = np.subtract(TEST[row], TEST["base"][: len(TEST[row])])
        assert verdict.difference == pytest.approx(apart.mean()) and verdict.seeds == len(apart)
        if len(apart) > 1:
            assert verdict.error == pytest.approx(apart.std(ddof=1) / 3**0.5)
    assert {row: verdict.says for row, verdict in found.items()} == {
        "up": "better, same direction",
        "down": "worse, same direction",
        "wrong": "better, other direction",
        "noisy": "within noise",
        "once": "not told by 1 seed",
        "equal": "worse, published as equal",
        "unknown": "worse",
    }
    assert math.isnan(found["once"].error)
    # The base has no GLUE: the first column that both rows have is compared.
    assert found["up"].column == "BLEU" and found["up"].published_difference == 0.5
    assert found["unknown"].column == "" and found["unknown"].published_difference is None


@pytest.mark.parametrize(("ours", "theirs", "says"), [
    (True, False, "better, other"), (False, True, "worse, other"), (False, False, "worse, same"),
    (None, False, "more, same"),
])  # fmt: skip
def test_a_direction_knows_of_which_score_less_is_better(ours, theirs, says, tmp_path):
    """The row is above its base by 0.1 in ours, and in the paper by 1."""
    scores = {"base": [(0, 0.1), (0, 0.2)], "x": [(0, 0.2), (0, 0.301)]}
    paper = PLAN["paper"] | {"rows": {"base": [1], "x": [2]}, "higher_is_better": theirs}
    plan = {"higher_is_better": ours, "paper": paper, "base": {"x": "base"}}
    (found,) = verdicts(read_table(make_sweep(tmp_path, scores, **plan)))
    assert found.says == f"{says} direction"


def test_other_scores_get_a_verdict_as_well(tmp_path):
    scores = {"base": [(0, 0.1), (0, 0.2)], "x": [(0, 0.2), (0, 0.301)]}
    plan = {"base": {"x": "base"}, "also": ["loss"], "higher_is_better": False}
    table = read_table(make_sweep(tmp_path, scores, **plan))
    for run, loss in zip(
        (run for row in table.rows for run in row.runs), (9, 9, 5, 6), strict=True
    ):
        run.values["test/loss"] = loss
    assert [(x.score, x.difference, x.says) for x in verdicts(table)][1] == (
        "loss", -3.5, "better",
    )  # fmt: skip
    for run in table.rows[1].runs:
        del run.values["test/accuracy"]
    assert [x.score for x in verdicts(table)] == ["loss"]  # a score that the row lacks has none


def test_a_score_of_which_less_is_better_has_its_own_column_of_the_paper(tmp_path):
    """Vaswani 2017, table 3: the row of higher BLEU has the lower perplexity, there as here."""
    scores = {"base": [(0, 20), (0, 22)], "x": [(0, 24), (0, 26.1)]}
    paper = PLAN["paper"] | {
        "columns": ["BLEU", "perplexity"], "rows": {"base": [25.0, 5.0], "x": [26.0, 4.5]},
    }  # fmt: skip
    plan = {"higher_is_better": True, "paper": paper, "base": {"x": "base"}, "also": ["loss"]}
    table = read_table(make_sweep(tmp_path, scores, **plan, compares={"perplexity": "loss"}))
    for run, loss in zip(
        (run for row in table.rows for run in row.runs), (9, 9, 5, 6), strict=True
    ):
        run.values["test/loss"] = loss
    assert [(x.score, x.difference, x.column, x.published_difference, x.says)
            for x in verdicts(table)] == [
        ("accuracy", pytest.approx(4.05), "BLEU", 1.0, "better, same direction"),
        ("loss", -3.5, "perplexity", -0.5, "better, same direction"),
    ]  # fmt: skip


def test_a_summary_makes_the_same_tables(sweep, tmp_path):
    table = read_table(sweep)
    write_json(tmp_path / "kept.json", summary(table))
    again = read_table(tmp_path / "kept.json")
    assert verdict_grid(again) == verdict_grid(table) and results_grid(again) == results_grid(table)
    assert notes(again) == notes(table)


def test_of_a_tuned_row_the_value_that_is_best_on_validation_is_shown(tmp_path):
    """b has another best value than a; c's best test score is not its best validation score."""
    rates = ("1", "2", "3")
    validation = {"a": [0.1, 0.3, 0.2], "b": [0.4, 0.1, 0.2], "c": [0.1, 0.2, 0.3]}
    test = {"a": [0.1, 0.5, 0.9], "b": [0.6, 0.1, 0.2], "c": [0.9, 0.8, 0.7]}
    scores = {
        f"{row},rate={rate}": [(validation[row][i], test[row][i])] * 2
        for row in "abc" for i, rate in enumerate(rates)
    }  # fmt: skip
    scores["c,rate=1"] = ["step 3: loss nan"] * 2
    table = read_table(make_sweep(tmp_path, scores, tuned="rate", base={"b": "a"}))
    assert [(row.name, row.mean("test/accuracy"), row.chosen) for row in table.rows] == [
        ("a", 0.5, "rate=2, of 3 values"), ("b", 0.6, "rate=1, of 3 values"),
        ("c", 0.7, "rate=3, of 2 values"),
    ]  # fmt: skip
    assert verdicts(table)[0].difference == pytest.approx(0.1)
    assert "a: rate=2, of 3 values, was best" in notes(table)
    waits = make_sweep(tmp_path / "b", {"a,rate=1": [None], "a,rate=2": [None]}, tuned="rate")
    assert not any("was best" in line for line in notes(read_table(waits)))


def test_a_base_or_a_label_that_is_no_row_is_named():
    rows = grid(vary("a", [1, 2]), vary("lr", [3, 4]))
    assert Experiment("", rows, tuned="lr", base="a=1").bases() == {"a=2": "a=1"}
    with pytest.raises(LabError, match='"a=3" is no row of the experiment'):
        Experiment("", rows, tuned="lr", base="a=3").bases()
    with pytest.raises(LabError, match='"b" is no row'):
        Experiment("", [Variation("a", {})], paper_rows={"b": "base"}).bases()
    with pytest.raises(LabError, match='table 3 has no row "bass".*"base"'):
        papers.VASWANI_TABLE3.plan({"x": "bass"})


def test_every_published_table_has_a_source_and_a_figure_for_each_column():
    tables = [x for x in vars(papers).values() if isinstance(x, papers.Published)]
    assert len(tables) > 10
    for table in tables:
        source = r"\w+ (19|20)\d\d \(arXiv \d{4}\.\d{4,5}(v\d)?\), (table|section) \d+"
        assert re.match(source, table.source)
        assert table.scale and table.rows
        for figures in table.rows.values():
            assert len(figures) == len(table.columns) and any(x is not None for x in figures)


@pytest.mark.parametrize("path", sorted(str(p) for p in (ROOT / "experiments").glob("*.py")))
def test_an_experiments_paper_is_one_of_the_published_tables(path):
    for scale in ("cpu", "paper"):
        experiment = load(path, scale)
        experiment.bases()
        if experiment.paper:
            assert experiment.paper in vars(papers).values()
            assert experiment.paper.plan(experiment.paper_rows)["rows"]
            assert experiment.compares.keys() <= set(experiment.paper.columns)


STORED = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "experiments/results").glob("*.json"))


@pytest.mark.parametrize("path", STORED)
def test_the_verdicts_in_the_docs_are_those_of_the_stored_runs(path):
    """Each line of the table of verdicts, made again from the summary, stands in the docs."""
    docs = "".join(p.read_text(encoding="utf-8") for p in sorted((ROOT / "docs").glob("*.md")))
    table = read_table(ROOT / path)
    for row in verdict_grid(table).rows:
        cells = [cell for cell, name in zip(row, verdict_grid(table).header, strict=True)
                 if name in ("", "against", "score", "difference", "error", "verdict")]  # fmt: skip
        assert "| {} |".format(" | ".join(cells)) in docs, " | ".join(cells)
    kept = read_json(ROOT / path)
    assert kept["runs"] and all(kept["settings"] | x["settings"] for x in kept["runs"].values())


def test_each_table_says_when_on_what_and_what_follows():
    """Each section of the page on experiments that has a table; one measurement has no verdict."""
    page = (ROOT / "docs/experiments.md").read_text(encoding="utf-8")
    sections = [part for part in page.split("\n## ")[1:] if "| --- |" in part]
    assert len(sections) > 20 and sections[-1].startswith("Findings of before, and now")
    for section in sections[:-1]:
        name, _, text = section.partition("\n")
        text = " ".join(text.split())
        assert re.search(r"20\d\d-\d\d-\d\d", text), name
        assert "AMD" in text or "Intel" in text, name
        assert re.search(r"second|minute|hour", text), name
        assert re.search(r"seed|draws|divisions|questions|One measurement of each", text), name
        assert "| verdict |" in section or "One measurement of each" in text, name


def test_a_kept_figure_is_drawn_again_from_its_summary(tmp_path):
    """The words of the figures in the docs are those of a new one; the command refuses the rest."""
    words = lambda path: re.findall(r"<text[^>]*>([^<]+)</text>", path.read_text("utf-8"))  # noqa: E731
    kept = sorted((ROOT / "docs/figures").glob("*.svg"))
    assert [path.stem for path in kept] == [
        "attention_depth", "experts", "features_bert", "gradient_norms", "long_range", "positions",
        "scaling_law",
    ]  # fmt: skip
    assert all(path.stat().st_size < 40_000 for path in kept)
    stored = ROOT / "experiments/results/gradient_norms.json"
    drawn = tmp_path / "a.svg"
    flags = f"--workdir={stored}", f"--figure={drawn}"
    assert command("report", *flags, "--experiment=gradient_norms").returncode == 0
    assert words(drawn) == words(ROOT / "docs/figures/gradient_norms.svg") and {
        "post",
        "pre",
        "deep",
    } < set(words(drawn))
    refused = command("report", *flags)
    assert refused.returncode == 2 and b"--figure needs --experiment=FILE" in refused.stderr
