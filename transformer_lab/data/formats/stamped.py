"""Series in the user's tables: wide, a column for each series, or long, a row for each value.

    date,berlin,paris            series,date,value
    2024-01,3.5,7.1              berlin,2024-01,3.5
    2024-02,,6.9                 paris,2024-01,7.1

A table with a column of the series' names is long. An empty cell, NA or NaN is missing."""

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
UNITS = {"D": 1440, "m": 1}  # minutes
NAMED = 5  # gaps that the report names; it only counts the others
Point = tuple[int, str, float]  # minutes since 1970, location, value


def read(file: Path, config: Any, report: Report) -> list[Series]:
    """The series of a .csv or .tsv file, in the order of their first rows.

    The step between stamps is the file's most frequent one. Steps that are not there become missing
    values, which the report names by line. Raises: LabError with the file and line of what is no
    date or number, a stamp that is there twice, or one that is no whole number of steps from the
    first."""
    points: dict[str, list[Point]] = {}
    for where, row in tables.rows(file):
        at = _minutes(tables.cell(row, config.date_column, "date", where), where)
        cells = {name: cell for name, cell in row.items() if name != config.date_column}
        if config.series_column in row:
            name = tables.cell(row, config.series_column, "series", where)
            cells = {name: tables.cell(row, config.value_column, "value", where)}
        for name, cell in cells.items():
            points.setdefault(name, []).append((at, where, _number(cell, name, where)))
    if not points:
        raise LabError(f"{file} holds no series: it needs a header and rows")
    for name, mine in points.items():
        mine.sort(key=lambda point: point[0])
        for (before, first, _), (at, second, _) in zip(mine, mine[1:], strict=False):
            if before == at:
                twice = f'"{name}" has a value for {_text(at)} already, at {first}'
                raise LabError(f"{second}: {twice}: keep one")
    step = _step([[at for at, *_ in mine] for mine in points.values()])
    return [_series(name, mine, *step, config.period, report) for name, mine in points.items()]


def _minutes(text: str, where: str) -> int:
    """The minutes from 1970 to a stamp in ISO format, or to a quarter, month or year."""
    text = text.strip()
    if match := re.fullmatch(r"(\d{4})(?:-?Q([1-4])|-(\d\d))?", text):
        year, quarter, month = match.groups()
        text = f"{year}-{int(month or 3 * int(quarter or 1) - 2):02d}-01"
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        ways = "2024-01-31, 2024-01-31 13:00, 2024-01, 2024-Q1 or 2024"
        raise LabError(f'{where}: "{text[:40]}" is no date: write {ways}') from None
    return int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()) // 60


def _number(cell: Any, name: str, where: str) -> float:
    text = "" if cell is None else str(cell).strip()
    try:
        value = math.nan if text.lower() in MISSING else float(text)
    except ValueError:
        value = math.inf
    if math.isinf(value):
        raise LabError(f'{where}: "{name}" is "{text[:40]}", which is no finite number')
    return value


def _text(minutes: int) -> str:
    return str(np.datetime64(int(minutes), "m")).replace("T00:00", "")


def _in(unit: str, minutes: list[int]) -> np.ndarray:
    """Stamps as months (M), days (D) or minutes (m) since 1970."""
    at = np.array(minutes, "M8[m]")
    return at.astype("M8[M]").astype(int) if unit == "M" else at.astype(int) / UNITS[unit]


def _step(stamps: list[list[int]]) -> tuple[int, str]:
    """The most frequent step between stamps, as a number of the largest unit that fits: months if
    all stamps are first days of a month, or all last days."""
    at = np.array(sum(stamps, []), "M8[m]")
    days = at.astype("M8[D]")
    next_days = days + np.timedelta64(1, "D")
    firsts, lasts = (x - x.astype("M8[M]").astype("M8[D]") for x in (days, next_days))
    whole = not (at - days).astype(int).any()
    monthly = whole and not (firsts.astype(int).any() and lasts.astype(int).any())
    steps = Counter(x for at in stamps for x in np.diff(_in("M" if monthly else "m", at)).tolist())
    size = int(steps.most_common(1)[0][0]) if steps else 1
    if monthly:
        return size, "M"
    return (size // 1440, "D") if size % 1440 == 0 else (size, "m")


def _series(
    name: str, mine: list[Point], size: int, unit: str, period: int, report: Report
) -> Series:
    """The series on its grid of steps, missing values where there is no row."""
    places = _in(unit, [at for at, *_ in mine])
    places = (places - places[0]) / size
    values, before = np.full(int(places[-1]) + 1, math.nan), 0
    for place, (at, where, value) in zip(places.tolist(), mine, strict=True):
        if place != int(place):
            steps = f"steps of {size}{unit} after {_text(mine[0][0])}"
            raise LabError(f'{where}: "{name}": {_text(at)} is no whole number of {steps}')
        if place > before + 1:
            named = sum(key.startswith("steps missing before") for key in report) < NAMED
            what = f"steps missing before {where}" if named else "steps missing elsewhere"
            report[what] += int(place) - before - 1
        before = int(place)
        values[before] = value
    whole = {"M": 12, "D": 7 if size < 7 else 364, "m": 1440}[unit]  # a year, a week, a day
    period = period or (whole // size if whole % size == 0 else 1)
    start = str(np.datetime64(mine[0][0], "m").astype(f"M8[{unit}]"))
    return Series(name, values, period, 0, start, f"{size}{unit}")
