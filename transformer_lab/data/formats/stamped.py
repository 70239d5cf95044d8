"""Series in the user's tables: wide, a column for each series, or long, a row for each value.

    date,berlin,paris            series,date,value
    2024-01,3.5,7.1              berlin,2024-01,3.5
    2024-02,,6.9                 paris,2024-01,7.1

A table is long if it has the column of the series' names. An empty cell, NA or NaN is missing."""

import math
import re
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from transformer_lab.data.formats import tables
from transformer_lab.data.series import Series
from transformer_lab.data.splits import Report
from transformer_lab.errors import LabError

MISSING = ("", "na", "nan", "null", "none")
SHOWN = 5  # gaps that are named, of each file
Point = tuple[int, str, float]  # minutes since 1970 or a number of the row, location, value


def read(file: Path, config: Any, report: Report) -> list[Series]:
    """The series of a .csv, .tsv or .jsonl file, in the order of their first rows.

    The step between stamps is the file's most frequent one. Steps that are not there become missing
    values, which the report counts and names by line. With `data.date_column = ""` the rows are the
    steps. Raises: LabError that names the file and line of what is no date or number, of a stamp
    that is there twice, or of one that is no whole number of steps from the first."""
    points: dict[str, list[Point]] = {}
    date, long = config.date_column, None
    for where, row in tables.rows(file):
        if long is None:
            long = config.series_column in row
        name = tables.cell(row, config.series_column, "series", where) if long else ""
        names = [config.value_column] if long else [key for key in row if key != date]
        at = _minutes(tables.cell(row, date, "date", where), where) if date else -1
        for column in names:
            mine = points.setdefault(name if long else column, [])
            value = _number(row.get(column), column, where)
            mine.append((at if date else len(mine), where, value))
    if not points:
        raise LabError(f"{file}: it holds no row of a series")
    if not date:
        return [
            Series(name, np.array([value for *_, value in mine]), config.period or 1)
            for name, mine in points.items()
        ]
    for name, mine in points.items():
        _check_twice(name, mine)
    size, unit = _step([[at for at, _, _ in mine] for mine in points.values()])
    period = config.period or _period(size, unit)
    return [_series(name, mine, size, unit, period, report) for name, mine in points.items()]


def _minutes(text: str, where: str) -> int:
    """The minutes from 1970 to a stamp in ISO format, to a quarter (2024-Q1), month or year."""
    text = text.strip()
    if match := re.fullmatch(r"(\d{4})(?:-?Q([1-4])|-(\d\d))?", text):
        year, quarter, month = match.groups()
        text = f"{year}-{int(month or 3 * int(quarter or 1) - 2):02d}-01"
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise LabError(
            f'{where}: "{text[:40]}" is no date: write 2024-01-31, 2024-01-31 13:00, 2024-01, '
            "2024-Q1 or 2024"
        ) from None
    found = found.replace(tzinfo=UTC) if found.tzinfo is None else found
    return int(found.timestamp()) // 60


def _number(cell: Any, column: str, where: str) -> float:
    if cell is None or isinstance(cell, str) and cell.strip().lower() in MISSING:
        return math.nan
    try:
        value = float(cell)
    except (TypeError, ValueError):
        value = math.inf
    if math.isinf(value):
        raise LabError(f'{where}: its "{column}" is {str(cell)[:40]!r}, which is no finite number')
    return value


def _check_twice(name: str, mine: list[Point]) -> None:
    """Sorts the points of a series by time. Raises: LabError if two have the same."""
    mine.sort(key=lambda point: point[0])
    for (before, first, _), (at, second, _) in zip(mine, mine[1:], strict=False):
        if before == at:
            raise LabError(
                f'{second}: "{name}" has a value for {_text(at)} already, at {first}: keep one'
            )


def _text(minutes: int) -> str:
    return str(np.datetime64(int(minutes), "m")).replace("T00:00", "")


def _months(at: Any) -> np.ndarray | None:
    """Months since 1970, if all stamps are the first, or all the last, day of a month."""
    days = np.array(at, "M8[m]").astype("M8[D]")
    months = days.astype("M8[M]")
    ends = (months + 1).astype("M8[D]") - 1
    if (days == months.astype("M8[D]")).all() or (days == ends).all():
        return months.astype(int)
    return None


def _step(stamps: list[list[int]]) -> tuple[int, str]:
    """The most frequent step between stamps, as a number of a unit: months, days or minutes."""
    monthly = _months(sum(stamps, [])) is not None
    each = [np.diff(_months(at) if monthly else at).tolist() for at in stamps]
    steps = Counter(sum(each, [])).most_common(1)
    size = steps[0][0] if steps else 1
    if monthly and size:
        return size, "M"
    return (size // 1440, "D") if size % 1440 == 0 else (size, "m")


def _period(size: int, unit: str) -> int:
    """The steps in a year of months or weeks, in a week of days, in a day of minutes; else 1."""
    whole = {"M": 12, "D": 7 if size < 7 else 364, "m": 1440}[unit]
    return max(whole // size, 1) if whole % size == 0 else 1


def _series(
    name: str, mine: list[Point], size: int, unit: str, period: int, report: Report
) -> Series:
    """The series on its grid of steps, missing values where there is no row."""
    at = np.array([point[0] for point in mine])
    places = _months(at) if unit == "M" else at / {"D": 1440, "m": 1}[unit]
    places = (places - places[0]) / size
    values = np.full(int(places[-1]) + 1, math.nan)
    for i, (place, (_, where, value)) in enumerate(zip(places.tolist(), mine, strict=True)):
        if place != int(place):
            raise LabError(
                f'{where}: "{name}" has a value for {_text(at[i])}, which is no whole number of '
                f"steps of {size}{unit} after {_text(at[0])}"
            )
        if i and (gap := int(place - places[i - 1]) - 1):
            named = sum(key.startswith("steps missing before") for key in report) < SHOWN
            report[f"steps missing before {where}" if named else "steps missing elsewhere"] += gap
        values[int(place)] = value
    start = str(np.datetime64(int(at[0]), "m").astype(f"M8[{unit}]"))
    return Series(name, values, period, 0, start, f"{size}{unit}")
