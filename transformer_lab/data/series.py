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

from transformer_lab.data.splits import SPLITS, Report, SourceConfig, Splits, read
from transformer_lab.errors import LabError, at_least, known

PERIODS = {"yearly": 1, "quarterly": 4, "monthly": 12, "other": 1}  # steps of a season
COVARIATES = 8  # sine and cosine of four places, see `calendar`


@dataclass(frozen=True)
class SeriesConfig(SourceConfig):
    """Settings of series: the source, which series, and the origins that are held out."""

    source: str = "competitions"  # competitions | files
    path: str = ""  # local copy of the set, or the user's file
    competition: str = "m3"  # m1 | m3 | tourism
    frequency: str = ""  # yearly, quarterly, monthly or other series alone; "": all
    period: int = 0  # steps after which a season returns; 0: that of the series' frequency
    horizon: int = 0  # steps that are predicted; 0: the set's own, or a tenth of a user's series
    validation_origins: int = 1  # of each series; 0: train up to the test, without validation
    test_origins: int = 1  # of each series
    stride: int = 0  # steps from an origin to the next; 0: the horizon
    date_column: str = "date"  # of users' files, by their header
    series_column: str = "series"  # with the series' names; a file without it is wide
    value_column: str = "value"  # of a file that is not wide

    KIND = "series"

    def __post_init__(self):
        super().__post_init__()
        known("config.data.frequency = ", self.frequency, ("", *PERIODS))
        counts = "period", "horizon", "validation_origins", "test_origins", "stride"
        at_least(self, "config.data", 0, *counts)


class Series(NamedTuple):
    """The values of a series at equal steps of time, the oldest first, and what is known of it."""

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
    the series' start; in the day, the week and the year. They are 0 where that is not known, and
    for a day or a week where a step is longer."""
    shares = np.full((count, 4), np.nan)
    if series.period > 1:
        shares[:, 0] = np.arange(count) % series.period / series.period
    if (stamps := series.stamps(0, count)) is not None:
        minutes, months = stamps.astype("M8[m]").astype(int), stamps.astype("M8[M]")
        days = (stamps.astype("M8[D]") - months.astype("M8[D]")).astype(int)
        shares[:, 1] = minutes % 1440 / 1440 if series.step[-1] == "m" else np.nan
        shares[:, 2] = minutes % 10080 / 10080 if series.step[-1] != "M" else np.nan
        shares[:, 3] = months.astype(int) % 12 / 12 + days / 372
    both = np.stack([np.sin(2 * np.pi * shares), np.cos(2 * np.pi * shares)], axis=-1)
    return np.nan_to_num(both).reshape(count, COVARIATES).astype(np.float32)


class Windows(Sequence):
    """The windows of a split, each a series and an origin.

    If the origins are `drawn`, in training, a random number chooses that of a window among those
    whose steps to come end before `origins`.
    """

    def __init__(
        self,
        series: list[Series],
        ids: Int[np.ndarray, "n"],
        origins: Int[np.ndarray, "n"],
        horizon: int,
        drawn: bool = False,
    ):
        self.series, self.ids, self.origins = series, ids, origins
        self.horizon, self.drawn = horizon, drawn
        sizes = [len(one.values) + horizon for one in series]  # with the steps after its end
        self._starts = np.cumsum([0, *sizes[:-1]])
        nothing = np.full(horizon, np.nan)
        self._values = np.concatenate([x for one in series for x in (one.values, nothing)])
        self._calendar = np.concatenate([calendar(*x) for x in zip(series, sizes, strict=True)])
        self._periods = np.array([one.period for one in series], np.int32)
        self._horizons = np.array([min(one.horizon or horizon, horizon) for one in series])

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> tuple[Series, int]:
        return self.series[self.ids[index]], int(self.origins[index])

    def load(self, rows: Int[np.ndarray, "b *draw"], context: int) -> dict[str, np.ndarray]:
        """A batch of these windows (-1: padding), with random numbers beside them if `drawn`.

        `values` [b, context] and `target` [b, horizon] are 0 where `seen` and `target_mask` are
        False; `covariates` [b, context + horizon, 8] are those of `calendar`; `period` [b].
        """
        rows = rows.reshape(len(rows), -1)
        real, row = rows[:, :1] >= 0, np.maximum(rows[:, 0], 0)
        ids, origins = self.ids[row], self.origins[row]
        periods, asked = self._periods[ids], self._horizons[ids]
        mask = real & (np.arange(-context, self.horizon) < asked[:, None])
        if self.drawn:
            last = np.maximum(origins - asked, 1)
            first = np.minimum(np.maximum(2 * periods, 3), last)
            ends, origins = origins, first + rows[:, 1] % (last - first + 1)
            mask &= np.arange(-context, self.horizon) < (ends - origins)[:, None]
        places = origins[:, None] + np.arange(-context, self.horizon)
        at = self._starts[ids][:, None] + np.maximum(places, 0)
        values, inside = self._values[at], places >= 0
        mask &= inside & np.isfinite(values)
        values = np.where(mask, values, 0).astype(np.float32)
        return {
            "values": values[:, :context],
            "seen": mask[:, :context],
            "covariates": np.where(inside[..., None], self._calendar[at], 0),
            "target": values[:, context:],
            "target_mask": mask[:, context:],
            "period": periods,
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

    An origin has known values before and after it. Raises: LabError if no series is long enough.
    """
    report = Report()
    found = read(config, report)
    series, held = [], {split: [] for split in SPLITS}
    for one in found.parts["train"]:
        own = config.horizon or one.horizon or max(len(one.values) // 10, 1)
        if own >= len(one.values):
            report["too_short"] += 1
            continue
        end, known_values = len(one.values), np.isfinite(one.values)
        for split in ("test", "validation"):
            count = getattr(config, f"{split}_origins")
            origins = list(range(end - own, 0, -(config.stride or own)))[:count]
            for x in reversed(origins):
                if known_values[:x].any() and known_values[x : x + own].any():
                    held[split].append((len(series), x))
            end = min([end, *origins])
        if end > 1:
            held["train"].append((len(series), end))
        series.append(one._replace(period=config.period or one.period, horizon=own))
    if not series:
        raise LabError(f"{config.source} has no series longer than its horizon: see config.data")
    horizon = horizon or max(one.horizon for one in series)
    digest = hashlib.sha256(repr((held, horizon)).encode())
    for one in series:
        digest.update(repr((one.name, *one[2:])).encode() + one.values.tobytes())
    parts = {
        split: Windows(series, *np.array(rows, int).reshape(-1, 2).T, horizon, split == "train")
        for split, rows in held.items()
    }
    counts = {"series": len(series), **report, **{split: len(rows) for split, rows in held.items()}}
    return SeriesSplits(**parts, report=counts, licence=found.licence, content=digest.hexdigest())
