"""Windows of series: which values each split sees, and users' tables."""

import math
from collections import Counter

import numpy as np
import pytest

from transformer_lab.data.formats import stamped
from transformer_lab.data.series import Series, SeriesConfig, calendar, load_series
from transformer_lab.errors import LabError

CONFIG = SeriesConfig(source="files")


def table(tmp_path, *lines, header="date,a,b"):
    path = tmp_path / "own.csv"
    path.write_text("\n".join([header, *lines]), "utf-8")
    return path


def read(path, config=CONFIG):
    report = Counter()
    return stamped.read(path, config, report), report


def test_origins_roll_and_training_draws_none_whose_target_is_held_out(tmp_path):
    days = [f"2024-01-{day:02d},{day}" for day in range(1, 31)]
    path = str(table(tmp_path, *days, header="date,a"))
    config = SeriesConfig(source="files", path=path, horizon=3, period=2, test_origins=2, stride=4)
    splits = load_series(config, horizon=4)
    assert [origin for _, origin in splits.test] == [23, 27]
    assert [origin for _, origin in splits.validation] == [20]
    np.testing.assert_array_equal(splits.test.future()[1], [28, 29, 30, math.nan])
    assert splits.test.past(1).tolist() == list(range(1, 28))
    draws = np.stack([np.zeros(300, int), np.arange(300)], axis=1)
    batch = splits.train.load(draws, 5)
    assert batch["target_mask"].sum(axis=1).tolist() == [3] * 300
    assert (batch["target"].max(), batch["target"][:, 0].min()) == (20, 5)  # after 4 = 2 periods
    last = splits.test.load(np.array([1, -1]), 5)
    assert last["values"][0].tolist() == [23, 24, 25, 26, 27]
    assert last["target"][0].tolist() == [28, 29, 30, 0] and not last["seen"][1].any()
    assert splits.report == {"series": 1, "train": 1, "validation": 1, "test": 2}


def test_early_windows_and_missing_values_are_masked(tmp_path):
    path = table(tmp_path, "2024-01,1,", "2024-02,NA,5", "2024-04,4,6", "2024-05,9,7")
    splits = load_series(SeriesConfig(source="files", path=str(path), horizon=1))
    batch = splits.validation.load(np.arange(2), 5)
    np.testing.assert_array_equal(batch["values"], [[0, 0, 1, 0, 0], [0, 0, 0, 5, 0]])
    np.testing.assert_array_equal(batch["seen"], batch["values"] > 0)
    assert batch["target"].ravel().tolist() == [4, 6]
    assert (batch["covariates"][:, :2] == 0).all()  # before the series begins
    assert splits.report[f"steps missing before {path}:4"] == 2  # March, in each series


def test_calendar_counts_the_period_and_reads_stamps():
    hours = Series("a", np.zeros(3), 24, start="2024-04-01T06:00", step="360m")
    found = calendar(hours, 4)  # a Monday, four days after the week's Thursday
    week = 2 * math.pi * (np.arange(4) / 28 + 4.25 / 7)
    np.testing.assert_allclose(found[:, 2], [1, 0, -1, 0], atol=1e-6)
    np.testing.assert_allclose(found[:, 4:6].T, [np.sin(week), np.cos(week)], atol=1e-6)
    np.testing.assert_allclose(found[0, 6:], [1, 0], atol=1e-6)  # April: a quarter of the year
    np.testing.assert_allclose(found[3, :2], [math.sin(math.pi / 4), math.cos(math.pi / 4)])
    assert not calendar(Series("b", np.zeros(2), 1), 2).any()


def test_tables_are_wide_or_long_and_steps_are_the_most_frequent(tmp_path):
    wide, _ = read(table(tmp_path, "2024-Q1,1,2", "2024-Q2,3,", "2024-Q3,5,6"))
    assert [(x.name, x.period, x.step, x.start) for x in wide] == [
        ("a", 4, "3M", "2024-01"), ("b", 4, "3M", "2024-01"),
    ]  # fmt: skip
    np.testing.assert_array_equal(wide[1].values, [2, math.nan, 6])
    rows = "y,2024-01-31,1", "x,2024-02-29,7", "y,2024-03-31,3", "y,2024-02-29,2", "x,2024-03-31,8"
    long, _ = read(table(tmp_path, *rows, header="series,date,value"))
    assert [(x.name, x.values.tolist(), x.step) for x in long] == [
        ("y", [1, 2, 3], "1M"), ("x", [7, 8], "1M"),
    ]  # fmt: skip
    assert long[0].stamps(3, 2).astype(str).tolist() == ["2024-04", "2024-05"]
    rows = [f"2024-01-01 {hour:02d}:30,1" for hour in (0, 1, 2, 4)]
    (hourly,), report = read(table(tmp_path, *rows, header="date,a"))
    assert (hourly.step, hourly.period, len(hourly.values)) == ("60m", 24, 5)
    assert list(report.values()) == [1]
    (weekly,), _ = read(table(tmp_path, "2024-01-01,1", "2024-01-08,2", header="date,a"))
    assert (weekly.step, weekly.period) == ("7D", 52)
    assert weekly.stamps(2, 1).astype(str).tolist() == ["2024-01-15"]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["2024-01,1,2", "2024-01,3,4"], r'csv:3: "a" .* for 2024-01-01 already, at .*csv:2: keep'),
        (["2024-01-01,1,2", "2024-01-02,1,2", "2024-01-03,1,2", "2024-01-03 12:00,1,2"],
         r'csv:5: "a": 2024-01-03T12:00 is no whole number of steps of 1D after 2024-01-01$'),
        (["31/12/2024,1,2"], r'csv:2: "31/12/2024" is no date: write 2024-01-31'),
        (["2024-01,1,2", "2024-02,1,x"], r'csv:3: "b" is "x", which is no finite number'),
        (["2024-01,1,inf"], r'csv:2: "b" is "inf", which is no finite number'),
        (["2024-01,1"], r"csv:2: 2 fields, but the header has 3 columns"),
        ([], "own.csv:1: no row follows the names"),
    ],
)  # fmt: skip
def test_bad_tables_are_refused_by_file_and_line(tmp_path, lines, words):
    with pytest.raises(LabError, match=words):
        read(table(tmp_path, *lines))
    with pytest.raises(LabError, match='2: no column "day".*set config.data.date_column'):
        read(table(tmp_path, "2024-01,1,2"), SeriesConfig(source="files", date_column="day"))
