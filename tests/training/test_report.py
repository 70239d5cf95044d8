"""The report of a single run: what its files say is on the page, and nothing else."""

import json
import re
from html.parser import HTMLParser

import pytest

from tests.entry import command
from transformer_lab.commands import watch
from transformer_lab.errors import LabError
from transformer_lab.training import report
from transformer_lab.training.config import default_config
from transformer_lab.training.places import write_json
from transformer_lab.viewing import document

EVIL = "</table><script>alert(1)</script>"


class Tables(HTMLParser):
    """All tables of a page, as rows of texts, and the names of all elements."""

    def __init__(self, text):
        super().__init__()
        self.tables, self.tags, self._cell = [], [], None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
            self._cell = True

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self._cell = None

    def handle_data(self, data):
        if self._cell:
            self.tables[-1][-1][-1] += data


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run of a classifier, as its files say."""
    path = tmp_path_factory.mktemp("runs") / "mine"
    path.mkdir()
    config = default_config("encoder", "classification")
    config.optimizer.learning_rate = 0.25
    write_json(path / "config.json", config.to_dict())
    lines = [{"step": n, "time": 1e9 + n, "loss": 4.0 - n / 100, "examples_per_second": 50.0}
             for n in range(100, 301, 100)]  # fmt: skip
    lines += [{"step": n, "time": 1e9 + n, "validation/loss": x, "validation/accuracy": right}
              for n, x, right in ((100, 2.5, 0.5), (200, 2.0, 0.9), (300, 2.2, 0.8))]  # fmt: skip
    lines.append({"step": 300, "time": 1e9 + 3761, "test/accuracy": 0.75})
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (path / "metrics.jsonl").write_text(text, encoding="utf-8")
    confusion = {"labels": ["cat", EVIL], "counts": [[3, 1], [0, 4]]}
    samples = [["a text", "cat", EVIL]]
    values = {"step": 300, "test/accuracy": 0.875123, "parameters": 12345}
    write_json(path / "results.json", values | {"confusion": confusion, "samples": samples})
    return path


def test_a_runs_report_holds_scores_classes_samples_and_changed_settings(run):
    done = command("report", f"--workdir={run}")
    assert done.returncode == 0 and b"report.html shows the run" in done.stderr, done.stderr
    text = (run / "report.html").read_text(encoding="utf-8")
    page = Tables(text)
    scores, per_class, counts, samples, settings = page.tables
    assert ["test accuracy", "0.8751"] in scores and ["parameters", "12,345"] in scores
    assert per_class[1] == ["cat", "4", "1.0000", "0.7500", "0.8571"]
    assert per_class[2] == [EVIL, "4", "0.8000", "1.0000", "0.8889"]
    assert counts[1:] == [["cat", "3", "1"], [EVIL, "0", "4"]]
    assert samples[1] == ["a text", "cat", EVIL]
    assert settings == [["key", "value", "default"], ["optimizer.learning_rate", "0.25", "0.001"]]
    assert "300 steps, 1:01:01 with scoring, 50 examples a second, finished" in text
    assert page.tags.count("script") == 1 and len(text) < 30_000
    assert not re.search(r"https?://|src=", text)


def test_a_directory_of_another_library_shows_what_there_is(tmp_path):
    write_json(tmp_path / "config.json", {"model_type": "gpt2"})
    assert report.parts(tmp_path) == [document.note("0 steps, not finished")]


def test_the_best_step_of_each_score_is_marked(run):
    lines = report.read_metrics(run)
    loss, accuracy = report.curves(lines)
    assert report.best(*report.curve(lines, "validation/loss"), "loss") == [(200, 2.0)]
    assert "accuracy, best at step 200" in accuracy and accuracy.count("<circle") == 1
    assert loss.count("<polyline") == 2 and loss.count("<circle") == 1


def test_a_chart_puts_points_where_their_values_are():
    text = document.chart("x", {"a": ([0, 10], [1.0, 3.0])}, [(10, 3.0)])
    points = re.search(r'points="([^"]*)"', text)[1]
    right, bottom = document.WIDTH - document.RIGHT, document.HEIGHT - document.BOTTOM
    assert points == f"{document.LEFT:.1f},{bottom:.1f} {right:.1f},{document.TOP:.1f}"
    assert f'cx="{right:.1f}" cy="{document.TOP:.1f}"' in text
    assert document.chart("x", {"a": ([], [])}) == ""
    many = document.chart("x", {"a": (range(10_001), [1.0] * 10_000 + [float("nan")])})
    assert len(re.search(r'points="([^"]*)"', many)[1].split()) <= document.MOST


def test_watch_shows_each_runs_newest_and_best_values(run, tmp_path):
    done = command("watch", str(run.parent))
    assert done.returncode == 0, done.stderr
    (row,) = [line for line in done.stdout.decode().splitlines() if "mine" in line]
    cells = [cell.strip() for cell in row.strip("│").split("│")]
    assert cells == ["mine", "300", "1", "accuracy 0.8", "0.9", "-", "█▅▁"]
    target = tmp_path / "live.html"
    done = command("watch", str(run), f"--output={target}", "--looks=1", "--seconds=7")
    page = target.read_text(encoding="utf-8")
    assert done.returncode == 0 and 'http-equiv="refresh" content="7"' in page
    assert page.count("<figure>") == 3  # loss, and two of validation
    for directories, words in (([str(tmp_path)], "holds no run"), ([], "no run is named")):
        with pytest.raises(LabError, match=words):
            watch.runs_in(directories)
