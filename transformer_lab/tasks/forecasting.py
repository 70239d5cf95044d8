"""Forecasts of series by one model for all of them (Salinas 2020; Wen 2017): quantiles of steps."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy import stats

from transformer_lab.data.batching import RowCount, RowPlan
from transformer_lab.data.series import (
    COVARIATES,
    Series,
    SeriesConfig,
    SeriesSplits,
    Windows,
    load_series,
)
from transformer_lab.errors import LabError, at_least, chosen
from transformer_lab.models.base import Forecaster
from transformer_lab.ops.forecasts import METHODS, naive_error, smape
from transformer_lab.ops.losses import Pair, masked_sum
from transformer_lab.tasks.base import Batch, HostBatch, Params, Place, Scores, Task
from transformer_lab.tasks.building import Shapes, shapes_of

LEAST_FREEDOM = 2.0  # of Student's t: below it has no variance


@dataclass(frozen=True)
class ForecastingConfig:
    """Settings of forecasts, the config section `task`."""

    loss: str = "pinball"  # of quantiles (Koenker 1978); student_t: the likelihood
    quantiles: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    # mu of the mu-law sign(x) ln(1 + mu |x|) / ln(1 + mu) (van den Oord 2016, 2.2), applied to
    # series divided by their mean; 0: none. With it, errors count by their share of the level
    mu: float = 0.0
    samples: int = 0  # forecasts shown at the end

    def __post_init__(self):
        chosen(self, "task", {"loss": ("pinball", "student_t")})
        at_least(self, "task", 0, "mu", "samples")
        levels = self.quantiles
        if list(levels) != sorted(set(levels)) or 0.5 not in levels or not levels[0] > 0:
            raise LabError(f"task.quantiles = {levels}: rising shares, 0.5 among them")
        if levels[-1] >= 1:
            raise LabError(f"task.quantiles = {levels} must be below 1")


SECTIONS = {"task": ForecastingConfig, "data": SeriesConfig, "batch": RowCount}


class Forecasting(Task):
    """Predicts quantiles of the next steps of series.

    A batch holds `values` (float32 [rows, context], 0 where not `seen`), `covariates` of these
    steps and of those to come, `target` [rows, horizon] with its mask, and the series' `period`.
    """

    NEEDS, COUNTED = Forecaster, "windows"

    def check(self, model_kind: str, model_config: Any) -> None:
        super().check(model_kind, model_config)
        if model_config.covariates != COVARIATES:
            raise LabError(f"model.covariates must be {COVARIATES}, those of data.series.calendar")

    def fit(self, model_config: Any) -> Any:
        """Sets the outputs: a number for each quantile, or location, spread and freedom."""
        count = len(self.config.quantiles)
        if self.config.loss == "student_t":
            return replace(model_config, outputs=3, shifted=1)
        return replace(model_config, outputs=count, shifted=count)

    @cached_property
    def data(self) -> SeriesSplits:
        return load_series(self.sections["data"], self.model_config.horizon)

    # Scaling: each series by its own past.

    def scale(self, batch: Batch) -> dict[str, Array]:
        """Numbers [rows, 1] that scale each series: `size`, the mean absolute value that is seen;
        then, after the mu-law, `centre`, the mean of the last period, and `spread`, the mean
        absolute distance from it."""
        seen = batch["seen"]
        mean = lambda x, mask: (jnp.where(mask, x, 0).sum(1) / jnp.maximum(mask.sum(1), 1))[:, None]  # noqa: E731
        size = mean(jnp.abs(batch["values"]), seen)
        size = jnp.where(size > 0, size, 1.0)
        values = self._compress(batch["values"] / size)
        recent = seen & (jnp.cumsum(seen[:, ::-1], axis=1)[:, ::-1] <= batch["period"][:, None])
        centre = mean(values, recent)
        spread = mean(jnp.abs(values - centre), seen)
        return {"size": size, "centre": centre, "spread": jnp.maximum(spread, 1e-3)}

    def _compress(self, x):
        mu = self.config.mu
        return jnp.sign(x) * jnp.log1p(mu * jnp.abs(x)) / np.log1p(mu) if mu else x

    def _expand(self, x):
        mu = self.config.mu
        return jnp.sign(x) * jnp.expm1(jnp.abs(x) * np.log1p(mu)) / mu if mu else x

    def outputs(self, params: Params, batch: Batch, dropout_key=None):
        """The scales, and the model's outputs [rows, horizon, outputs] in units of the spread."""
        by = self.scale(batch)
        values = (self._compress(batch["values"] / by["size"]) - by["centre"]) / by["spread"]
        values = jnp.where(batch["seen"], values, 0)
        inputs = values, batch["seen"], batch["covariates"]
        return by, self.model.apply({"params": params}, *inputs, dropout_key)

    def sums(self, params: Params, batch: Batch, dropout_key, training: bool) -> dict[str, Pair]:
        """The loss of each predicted step: twice the mean pinball loss over quantiles, which is an
        estimate of the CRPS (Gneiting 2007, section 4.2), or -log of Student's density; of scaled
        values, after the mu-law."""
        by, out = self.outputs(params, batch, dropout_key)
        target = self._compress(batch["target"] / by["size"])
        if self.config.loss == "student_t":
            loss = student_t((target - by["centre"]) / by["spread"], out) + jnp.log(by["spread"])
        else:
            levels = jnp.array(self.config.quantiles)
            found = by["centre"][..., None] + by["spread"][..., None] * out
            miss = target[..., None] - found
            loss = 2 * jnp.maximum(levels * miss, (levels - 1) * miss).mean(axis=-1)
        return {"loss": masked_sum(loss, batch["target_mask"])}

    # Batches.

    @cached_property
    def train_plan(self) -> RowPlan:
        count, rows = len(self.examples("train")), self.sections["batch"].rows
        if not count:
            raise LabError("no series is left to train on: lower config.data.validation_origins")
        return RowPlan("windows", np.ones(count, np.int64), 1, rows, self.seed)

    def load_train(self, ids: np.ndarray, shape: tuple[int, ...]) -> HostBatch:
        return self.data.train.load(ids, self.model_config.context)

    def eval_batches(self, split: str) -> Iterator[HostBatch]:
        return self.batches(self.examples(split))

    def batches(self, windows: Windows) -> Iterator[HostBatch]:
        """Each window once; padding rows complete the last batch."""
        rows = self.sections["batch"].rows
        for first in range(0, len(windows), rows):
            ids = np.arange(first, first + rows)
            yield windows.load(np.where(ids < len(windows), ids, -1), self.model_config.context)

    def abstract_batch(self) -> Shapes:
        rows, model = self.sections["batch"].rows, self.model_config
        steps = model.context + model.horizon
        return {
            **shapes_of((rows, model.context), values=np.float32, seen=bool),
            **shapes_of((rows, steps, COVARIATES), covariates=np.float32),
            **shapes_of((rows, model.horizon), target=np.float32, target_mask=bool),
            **shapes_of((rows,), period=np.int32),
        }

    def sizes(self, batch: HostBatch) -> dict[str, int]:
        return {"examples": int(batch["target_mask"].any(axis=1).sum())}

    # Forecasts and scores.

    @cached_property
    def _quantiles(self) -> Callable[[Params, Batch], Array]:
        def quantiles(params, batch):
            by, out = self.outputs(params, batch)
            if self.config.loss == "student_t":
                place, spread, freedom = parts_of_student(out)
                units = stats.t.ppf(np.array(self.config.quantiles), FREEDOMS[:, None])
                units = jax.vmap(jnp.interp, (None, None, 1), -1)(freedom, FREEDOMS, units)
                out = place[..., None] + spread[..., None] * units
            found = by["centre"][..., None] + by["spread"][..., None] * jnp.sort(out, axis=-1)
            return self._expand(found) * by["size"][..., None]

        return jax.jit(quantiles)

    def quantiles(
        self, params: Params, windows: Windows, place: Place
    ) -> Float[np.ndarray, "n h q"]:
        """The quantiles of each window's steps to come, in the units of its series."""
        found = [np.asarray(self._quantiles(params, place(x))) for x in self.batches(windows)]
        return np.concatenate(found)[: len(windows)].astype(np.float64)

    def forecast(
        self, params: Params, series: Sequence[Series], place: Place
    ) -> Float[np.ndarray, "n h q"]:
        """The quantiles of the steps after the end of each series."""
        ends = np.array([len(one.values) for one in series])
        windows = Windows(list(series), np.arange(len(ends)), ends, self.model_config.horizon)
        return self.quantiles(params, windows, place)

    def score(self, params: Params, split: str, place: Place, final: bool) -> Scores:
        """sMAPE, MASE and others of the median and the quantiles, each the mean over windows; in
        the end also those of the methods of `ops.forecasts`, and OWA: the mean of sMAPE and MASE
        as shares of the seasonal naive forecast's."""
        windows = self.examples(split)
        if not len(windows):
            return Scores()
        values = self.scores_of(windows, self.quantiles(params, windows, place))
        if final:
            for name, method in METHODS.items():
                by = baseline(windows, method)
                values |= {f"{name}_{key}": by[key] for key in ("smape", "mase")}
            for name in ("", *(f"{name}_" for name in METHODS)):
                shares = [values[f"{name}{k}"] / values[f"naive_{k}"] for k in ("smape", "mase")]
                values[f"{name}owa"] = float(np.mean(shares))
        return Scores(values)

    def scores_of(self, windows: Windows, found: Float[np.ndarray, "n h q"]) -> dict[str, float]:
        """`smape`, `mase`; `crps`, twice the mean pinball loss as a share of the mean absolute
        value; and `inside`, the share of values between the lowest and the highest quantile."""
        levels = np.array(self.config.quantiles)
        values = accuracy(windows, found[..., list(levels).index(0.5)])
        losses, sizes, inside = [], [], []
        for i, quantiles in enumerate(found):
            actual = windows.future(i)
            known = np.isfinite(actual)
            actual, quantiles = actual[known], quantiles[: len(known)][known]
            miss = actual[:, None] - quantiles
            losses.append(2 * np.maximum(levels * miss, (levels - 1) * miss).mean(axis=1))
            sizes.append(np.abs(actual))
            inside.append((quantiles[:, 0] <= actual) & (actual <= quantiles[:, -1]))
        losses, sizes, inside = map(np.concatenate, (losses, sizes, inside))
        return values | {
            "crps": float(losses.sum() / sizes.sum()),
            "inside": float(inside.mean()),
            "num_examples": float(len(windows)),
        }

    def details(self) -> list[str]:
        model = self.model_config
        return [
            f"{model.horizon} steps from the {model.context} before, in batches of "
            f"{self.sections['batch'].rows} windows"
        ]


FREEDOMS = np.geomspace(LEAST_FREEDOM, 100, 64)  # degrees whose quantiles are tabulated


def parts_of_student(out: Float[Array, "b h 3"]) -> tuple[Array, Array, Array]:
    """Location, spread above 0 and degrees of freedom of Student's t, from a model's outputs."""
    place, spread, freedom = jnp.moveaxis(out, -1, 0)
    spread, freedom = jax.nn.softplus(spread) + 1e-4, LEAST_FREEDOM + jax.nn.softplus(freedom)
    return place, spread, jnp.minimum(freedom, FREEDOMS[-1])


def student_t(target: Float[Array, "b h"], out: Float[Array, "b h 3"]) -> Float[Array, "b h"]:
    """-log of Student's density at the targets, in nats."""
    place, spread, freedom = parts_of_student(out)
    return -jax.scipy.stats.t.logpdf(target, freedom, place, spread)


def baseline(windows: Windows, method: Callable[..., np.ndarray]) -> dict[str, float]:
    """The scores of a method that forecasts each window from its own past alone."""
    found = np.full((len(windows), windows.horizon), np.nan)
    for i in range(len(windows)):
        past = windows.past(i)
        past = without_gaps(past)
        h = len(windows.future(i))
        found[i, :h] = method(past, h, windows[i][0].period)
    return accuracy(windows, found)


def accuracy(windows: Windows, found: Float[np.ndarray, "n h"]) -> dict[str, float]:
    """The mean sMAPE (percent) and MASE over windows, of the values that are there."""
    rows = []
    for i, forecast in enumerate(found):
        actual = windows.future(i)
        known = np.isfinite(actual)
        actual, forecast = actual[known], forecast[: len(known)][known]
        unit = naive_error(windows.past(i), windows[i][0].period)
        rows.append((smape(forecast, actual), np.abs(forecast - actual).mean() / unit))
    smapes, mases = np.array(rows).T
    return {"smape": float(np.nanmean(smapes)), "mase": float(np.nanmean(mases))}


def without_gaps(x: Float[np.ndarray, "n"]) -> Float[np.ndarray, "m"]:
    """A series from its first value on, its gaps filled in along straight lines."""
    known = np.flatnonzero(np.isfinite(x))
    x = x[known[0] :] if len(known) else np.zeros(1)
    known = np.isfinite(x)
    places = np.arange(len(x))
    return np.interp(places, places[known], x[known])


build = Forecasting
