"""Time series, and the windows of them that a forecaster learns from and is scored on.

A split is a set of origins, the steps after which a forecast begins (Tashman 2000). The last ones
of each series are the test's, those before them validation's, and training sees what lies before.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float32, Int

from transformer_lab.data.splits import SPLITS, Found, Report, SourceConfig, Splits, read
from transformer_lab.errors import LabError, at_least, known

PERIODS = {"yearly": 1, "quarterly": 4, "monthly": 12, "weekly": 52, "daily": 7, "hourly": 24}
PERIODS |= {"half-hourly": 48, "other": 1}
COVARIATES = 8  # sine and cosine of the place in the period, the hour, the weekday, the year's day


@dataclass(frozen=True)
class SeriesConfig(SourceConfig):
    """Settings of series: the source, which series, and the origins that are held out."""

    source: str = "competitions"  # competitions | files
    path: str = ""  # local copy of the set, or the user's file
    competition: str = "m3"  # m1, m3 or tourism
    frequency: str = ""  # of these series alone: monthly, hourly, ...; "": all
    period: int = 0  # steps after which a season returns; 0: that of the frequency
    horizon: int = 0  # steps of a forecast; 0: the set's own, or 0.1 of the series
    validation_origins: int = 1  # of each series; 0: train up to the test, with no validation
    test_origins: int = 1  # of each series
    stride: int = 0  # steps from an origin to the next; 0: the horizon
    date_column: str = "date"  # of users' files, by their header
    series_column: str = "series"  # with the series' names; a file without it is wide
    value_column: str = "value"  # of a long file

    KIND = "series"

    def __post_init__(self):
        super().__post_init__()
        if self.frequency:
            known("config.data.frequency = ", self.frequency, PERIODS)
        at_least(
            self, "config.data", 0, "period", "horizon", "validation_origins", "test_origins",
            "stride",
        )  # fmt: skip


class Series(NamedTuple):
    """One series, oldest value first."""

    name: str
    values: Float[np.ndarray, "n"]  # NaN where a value is missing
    period: int  # steps after which a season returns; 1: none is known
    horizon: int = 0  # steps that the set asks for; 0: it does not say
    start: str = ""  # the first stamp in ISO format, such as 2020-01; "": not known
    step: str = ""  # between two stamps: a number and a unit of numpy, such as 1M, 7D or 30m

    def stamps(self, first: int, count: int) -> np.ndarray | None:
        """The stamps of `count` steps from number `first`; None for a series without dates."""
        if not self.start:
            return None
        size, unit = int(self.step[:-1]), self.step[-1]
        return np.datetime64(self.start, unit) + size * np.arange(first, first + count)


def calendar(series: Series, count: int) -> Float32[np.ndarray, "count 8"]:
    """Sine and cosine of where each of the first `count` steps stands: in the period, counted from
    the series' start, and by its stamp in the day, the week and the year (0 without a stamp)."""
    shares = np.full((count, COVARIATES // 2), np.nan)
    if series.period > 1:
        shares[:, 0] = np.arange(count) / series.period
    if (stamps := series.stamps(0, count)) is not None:
        days = stamps.astype("M8[D]")
        hours = (stamps.astype("M8[m]") - days).astype(int) / 1440
        month = days.astype("M8[M]")
        weekdays = (days.astype(int) + hours) / 7
        year = month.astype(int) % 12 + (days - month.astype("M8[D]")).astype(int) / 31
        shares[:, 1:] = np.stack([hours, weekdays, year / 12], axis=1)
        if series.step[-1] not in "hms":
            shares[:, 1] = np.nan
    angles = 2 * np.pi * shares
    both = np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(count, COVARIATES)
    return np.nan_to_num(both).astype(np.float32)


class Windows(Sequence):
    """The windows of a split: a series and an origin each, `len` of them.

    With `drawn`, for training, a window's origin is any step of its series that leaves values to
    predict before `origins`, and a random number chooses it.
    """

    def __init__(
        self,
        series: list[Series],
        ids: Int[np.ndarray, "n"],
        origins: Int[np.ndarray, "n"],
        horizon: int,
        drawn: bool = False,
    ):
        self.series, self.ids, self.origins, self.drawn = series, ids, origins, drawn
        self.horizon = horizon
        sizes = [len(one.values) + horizon for one in series]
        self._starts = np.cumsum([0, *sizes])
        after = np.full(horizon, np.nan)
        parts = [np.concatenate([one.values, after]) for one in series]
        self._values = np.concatenate(parts) if parts else np.zeros(0)
        self._calendar = np.concatenate([calendar(*x) for x in zip(series, sizes, strict=True)])
        self._periods = np.array([one.period for one in series], np.int32)
        self._horizons = np.array([min(one.horizon or horizon, horizon) for one in series])

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> tuple[Series, int]:
        return self.series[self.ids[index]], int(self.origins[index])

    def load(self, rows: Int[np.ndarray, "b *draw"], context: int) -> dict[str, np.ndarray]:
        """The windows of these rows (-1: padding), with random numbers beside them if `drawn`.

        `values` [b, context] and `target` [b, horizon] are 0 where `seen` and `target_mask` are
        False; `covariates` [b, context + horizon, 8]; `period` [b].
        """
        rows = rows.reshape(len(rows), -1)
        real, row = rows[:, 0] >= 0, np.maximum(rows[:, 0], 0)
        ids, ends = self.ids[row], self.origins[row]
        lengths, asked = (
            self._starts[ids + 1] - self._starts[ids] - self.horizon,
            self._horizons[ids],
        )
        origins = ends
        if self.drawn:
            lengths = ends
            last = np.maximum(ends - asked, 1)
            first = np.minimum(np.maximum(2 * self._periods[ids], 3), last)
            origins = first + rows[:, 1] % (last - first + 1)
        places = origins[:, None] + np.arange(-context, self.horizon)
        inside = (places >= 0) & (places < lengths[:, None]) & real[:, None]
        at = self._starts[ids][:, None] + np.maximum(places, 0)
        values = self._values[at]
        mask = inside & np.isfinite(values)
        values = np.where(mask, values, 0).astype(np.float32)
        due = np.arange(self.horizon) < asked[:, None]
        covariates = np.where((places >= 0)[..., None], self._calendar[at], 0)
        return {
            "values": values[:, :context],
            "seen": mask[:, :context],
            "covariates": covariates,
            "target": np.where(due, values[:, context:], 0),
            "target_mask": due & mask[:, context:],
            "period": self._periods[ids],
        }

    def past(self, index: int) -> Float[np.ndarray, "n"]:
        """All values before a window's origin."""
        series, origin = self[index]
        return series.values[:origin]

    def future(self) -> Float[np.ndarray, "n h"]:
        """What each window's forecast is compared with; NaN where nothing is asked or known."""
        steps = np.arange(self.horizon)
        values = self._values[(self._starts[self.ids] + self.origins)[:, None] + steps]
        return np.where(steps < self._horizons[self.ids][:, None], values, np.nan)


@dataclass(frozen=True)
class SeriesSplits(Splits):
    """The windows of each split, and the counts for a report."""

    content: str = ""  # SHA-256 of all series and origins

    def fingerprint(self) -> str:
        return self.content


def load_series(config: SeriesConfig, horizon: int = 0) -> SeriesSplits:
    """The windows of a config's series for forecasts of up to `horizon` steps (0: the longest).

    Raises: LabError if no series is long enough.
    """
    report = Report()
    found: Found = read(config, report)
    series = [adapted(one, config) for one in found.parts["train"]]
    series = [one for one in series if one.horizon]
    report["too_short"] = len(found.parts["train"]) - len(series)
    if not series:
        raise LabError(
            f"no series of {config.source} has a value to predict: is config.data.frequency = "
            f'"{config.frequency}" one of its frequencies, and data.horizon less than its length?'
        )
    horizon = horizon or max(one.horizon for one in series)
    held = {split: [] for split in SPLITS}
    for i, one in enumerate(series):
        end = len(one.values)
        for split in ("test", "validation"):
            count, stride = getattr(config, f"{split}_origins"), config.stride or one.horizon
            if count:
                last = end - one.horizon
                origins = list(range(last, 0, -stride))[:count]
                held[split] += [(i, x) for x in reversed(origins) if _scored(one, x)]
                end = min([end, *origins]) if origins else 0
        if end > 1:
            held["train"].append((i, end))
    parts = {
        split: Windows(series, *np.array(rows, int).reshape(-1, 2).T, horizon, split == "train")
        for split, rows in held.items()
    }
    digest = hashlib.sha256(repr((held, horizon)).encode())
    for one in series:
        digest.update(repr((one.name, *one[2:])).encode() + one.values.tobytes())
    report |= {"series": len(series)} | {split: len(rows) for split, rows in held.items()}
    counts = {name: count for name, count in report.items() if count or name in SPLITS}
    return SeriesSplits(**parts, report=counts, licence=found.licence, content=digest.hexdigest())


def _scored(one: Series, origin: int) -> bool:
    """Whether a series has a value before and after an origin."""
    known = np.isfinite(one.values)
    return bool(known[:origin].any() and known[origin : origin + one.horizon].any())


def adapted(one: Series, config: SeriesConfig) -> Series:
    """The series with the config's period and horizon; horizon 0 if it is too short for one."""
    horizon = config.horizon or one.horizon or max(len(one.values) // 10, 1)
    fits = 0 < horizon < len(one.values)
    return one._replace(period=config.period or one.period, horizon=horizon if fits else 0)
