"""The tourism competition (Athanasopoulos 2011): 1,311 yearly, quarterly and monthly series."""

from typing import Any

from transformer_lab.data.sources.m3 import read
from transformer_lab.data.splits import Found, Report


def series(config: Any, report: Report) -> Found:
    return read(config, "tcomp")
