"""Damaged directories of sweeps: read, or refused with one line, within 20 seconds and 1 GiB."""

import pytest

from tests import fuzz
from tests.sweeps.sample import make_sweep
from transformer_lab.sweeps import plots
from transformer_lab.sweeps.report import comparison, results_grid, write_report
from transformer_lab.sweeps.results import read_table

FILES = (
    "sweep.json", "a,seed=0/results.json", "a,seed=0/metrics.jsonl", "a,seed=0/config.json",
    "b,seed=0/failed.json",
)  # fmt: skip


def cases(file, count):
    content, lines = file.read_bytes(), count // 2
    return fuzz.of_json(content, 0, count - lines) + fuzz.of_bytes(content, 0, lines)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("count", [8, pytest.param(150, marks=pytest.mark.slow)])
def test_a_damaged_sweep_is_read_or_refused_with_one_line(name, count, tmp_path):
    workdir = make_sweep(tmp_path, {"a": [(0.1, 0.2), (0.2, 0.3)], "b": ["gone", None]})

    def read():
        table = read_table(workdir)
        results_grid(table)
        comparison(table, table)
        plots.curves(table)
        if name == "sweep.json":  # the only one whose texts are drawn
            write_report(workdir)

    found = fuzz.check(cases(workdir / name, count), workdir / name, read)
    assert len(found["read"]) + len(found["refused"]) == count
