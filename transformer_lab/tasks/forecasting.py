"""Forecasts of series by one model for all of them (Salinas 2020): quantiles of the next steps."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
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
from transformer_lab.errors import LabError, at_least, known
from transformer_lab.models.base import Forecaster
from transformer_lab.ops.forecasts import METHODS, naive_error, smape
from transformer_lab.ops.losses import Pair, masked_sum
from transformer_lab.tasks.base import Batch, HostBatch, Params, Place, Scores, Task
from transformer_lab.tasks.building import Shapes, shapes_of

OUTPUTS = ("quantiles", "student_t")


@dataclass(frozen=True)
class ForecastingConfig:
    """Settings of forecasts, the config section `task`."""

    # The levels whose values are forecast for each step; 0.5 is the median, the forecast itself
    quantiles: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    # mu of the mu-law sign(x) ln(1 + mu |x|) / ln(1 + mu) (van den Oord 2016, 2.2) of values
    # divided by the series' mean; errors then count as shares of the level. 0: no such law
    mu: float = 0.0
    # quantiles: the model gives each; student_t: the place, scale and degrees of freedom of a
    # Student's t (Salinas 2020 has a Gaussian), whose likelihood it is trained by
    output: str = "quantiles"

    def __post_init__(self):
        at_least(self, "task", 0, "mu")
        known("task.output = ", self.output, OUTPUTS)
        levels = self.quantiles
        if 0.5 not in levels or levels != tuple(sorted({x for x in levels if 0 < x < 1})):
            raise LabError(f"task.quantiles = {levels} must rise within 0 and 1 and hold 0.5")


SECTIONS = {"task": ForecastingConfig, "data": SeriesConfig, "batch": RowCount}
BASELINE = "forecasts"


class Forecasting(Task):
    """Predicts quantiles of the next steps of series, all at once.

    A batch is one of `data.series.Windows`. Of 1, 2, 4 in the years 2001 to 2003, where one value
    is read and one predicted:

        values       [[2.0]]
        seen         [[1]]
        covariates   [[[0, 0, 0, 0, 0, 0, 0, 1], [0, 0, 0, 0, 0, 0, 0, 1]]]
        target       [[4.0]]
        target_mask  [[1]]
        period       [1]
    """

    NEEDS, COUNTED = Forecaster, "windows"

    def check(self, model_kind: str, model_config: Any) -> None:
        super().check(model_kind, model_config)
        if model_config.covariates != COVARIATES:
            raise LabError(f"model.covariates must be {COVARIATES}, as data.series.calendar gives")

    def fit(self, model_config: Any) -> Any:
        """Sets an output for each quantile, or for each number of a distribution."""
        count = 3 if self.config.output == "student_t" else len(self.config.quantiles)
        return replace(model_config, outputs=count)

    @cached_property
    def data(self) -> SeriesSplits:
        return load_series(self.sections["data"], self.model_config.horizon)

    # What the trainer compiles.

    def outputs(
        self, params: Params, batch: Batch, dropout_key: Any = None
    ) -> tuple[Float[Array, "b 1"], Float[Array, "b h q"]]:
        """The unit of each series and its quantiles, in that unit and after the mu-law; or place,
        scale and degrees of freedom of Student's t.

        The unit is the mean absolute value that is seen. The model reads and gives distances from
        the mean of the last period, as multiples of the mean absolute distance from it.
        """
        seen = batch["seen"]
        unit = jnp.maximum(_mean(jnp.abs(batch["values"]), seen), 1e-12)
        values = self._compress(batch["values"] / unit)
        later = jnp.cumsum(seen[:, ::-1], axis=1)[:, ::-1]  # values seen from a step on
        centre = _mean(values, seen & (later <= batch["period"][:, None]))
        spread = jnp.maximum(_mean(jnp.abs(values - centre), seen), 1e-3)
        values = jnp.where(seen, (values - centre) / spread, 0)
        out = self.model.apply({"params": params}, values, seen, batch["covariates"], dropout_key)
        centre, spread = centre[..., None], spread[..., None]
        if self.config.output == "quantiles":
            return unit, centre + spread * out
        place, scale, freedom = jnp.split(out, 3, axis=-1)
        scale, freedom = 1e-3 + jax.nn.softplus(scale), 2 + jax.nn.softplus(freedom)
        return unit, jnp.concatenate([centre + spread * place, spread * scale, freedom], axis=-1)

    def _compress(self, x):
        mu = self.config.mu
        return jnp.sign(x) * jnp.log1p(mu * jnp.abs(x)) / np.log1p(mu) if mu else x

    def _expand(self, x):
        mu = self.config.mu
        return jnp.sign(x) * jnp.expm1(jnp.abs(x) * np.log1p(mu)) / mu if mu else x

    def sums(self, params: Params, batch: Batch, dropout_key, training: bool) -> dict[str, Pair]:
        """The CRPS of each step as far as the quantiles tell it, in the series' unit after the
        mu-law: twice their mean pinball loss (Gneiting 2011, equation 14); of Student's t the
        negative logarithm of the density there."""
        unit, quantiles = self.outputs(params, batch, dropout_key)
        target = self._compress(batch["target"] / unit)
        if self.config.output == "student_t":
            return {"loss": masked_sum(t_loss(target, quantiles), batch["target_mask"])}
        loss = pinball(target[..., None], quantiles, jnp.array(self.config.quantiles))
        return {"loss": masked_sum(2 * loss.mean(axis=-1), batch["target_mask"])}

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
        rows, past, steps = (
            self.sections["batch"].rows, self.model_config.context, self.model_config.horizon
        )  # fmt: skip
        return {
            **shapes_of((rows, past), values=np.float32, seen=bool),
            **shapes_of((rows, past + steps, COVARIATES), covariates=np.float32),
            **shapes_of((rows, steps), target=np.float32, target_mask=bool),
            **shapes_of((rows,), period=np.int32),
        }

    def sizes(self, batch: HostBatch) -> dict[str, int]:
        return {"examples": int(batch["target_mask"].any(axis=1).sum())}

    # Forecasts and scores.

    @cached_property
    def _outputs(self) -> Callable[[Params, Batch], tuple[Array, Array]]:
        return jax.jit(self.outputs)

    def quantiles(
        self, params: Params, windows: Windows, place: Place
    ) -> Float[np.ndarray, "n h q"]:
        """The quantiles of each window's steps to come, in the units of its series."""
        parts = []
        for batch in self.batches(windows):
            unit, found = map(np.asarray, self._outputs(params, place(batch)))
            if self.config.output == "student_t":
                where, scale, freedom = np.split(found, 3, axis=-1)
                found = stats.t.ppf(self.config.quantiles, freedom, where, scale)
            parts.append(np.asarray(self._expand(np.sort(found, axis=-1))) * unit[..., None])
        return np.concatenate(parts)[: len(windows)].astype(np.float64)

    def forecast(
        self, params: Params, series: Sequence[Series], place: Place
    ) -> Float[np.ndarray, "n h q"]:
        """The quantiles of the steps after the end of each series."""
        ends = np.array([len(one.values) for one in series])
        windows = Windows(list(series), np.arange(len(ends)), ends, self.model_config.horizon)
        return self.quantiles(params, windows, place)

    def score(self, params: Params, split: str, place: Place, final: bool) -> Scores:
        """`smape` and `mase` of the median; `crps`, twice the pinball loss as a share of the mean
        absolute value; `inside`, the share of values from the lowest to the highest quantile.

        In the end also those of the methods of `ops.forecasts`, and `owa`: the mean of sMAPE and
        MASE as shares of the seasonal naive forecast's (as Makridakis 2020 does with Naive 2).
        """
        windows = self.examples(split)
        if not len(windows):
            return Scores()
        found, levels = self.quantiles(params, windows, place), np.array(self.config.quantiles)
        actual = windows.future()
        values = accuracy(windows, found[..., list(levels).index(0.5)])
        losses = 2 * np.nanmean(pinball(actual[..., None], found, levels, np))
        inside = (found[..., 0] <= actual) & (actual <= found[..., -1])
        values["crps"] = float(losses / np.nanmean(np.abs(actual)))
        values["inside"] = float(inside[np.isfinite(actual)].mean())
        for name, method in METHODS.items() if final else ():
            by = baseline(windows, method)
            values |= {f"{name}_{key}": value for key, value in by.items()}
        for name in ("", *(f"{name}_" for name in METHODS)) if final else ():
            shares = [values[f"{name}{k}"] / values[f"naive_{k}"] for k in ("smape", "mase")]
            values[f"{name}owa"] = float(np.mean(shares))
        return Scores({**values, "num_examples": float(len(windows))})

    def details(self) -> list[str]:
        model, rows = self.model_config, self.sections["batch"].rows
        steps = f"{model.horizon} steps from the {model.context} before"
        return [f"{steps}; {self.steps_per_epoch():,} batches of {rows} windows an epoch"]


def _mean(x: Float[Array, "b t"], mask: Bool[Array, "b t"]) -> Float[Array, "b 1"]:
    """The mean of each row under the mask; 0 where it is empty."""
    count = jnp.maximum(mask.sum(axis=1, keepdims=True), 1)
    return jnp.where(mask, x, 0).sum(axis=1, keepdims=True) / count


def t_loss(actual: Float[Array, "*n"], numbers: Float[Array, "*n 3"]) -> Float[Array, "*n"]:
    """The negative logarithm of the density of Student's t with this place, scale and freedom."""
    place, scale, freedom = (numbers[..., i] for i in range(3))
    return -jax.scipy.stats.t.logpdf(actual, freedom, place, scale)


def pinball(actual: Any, quantiles: Any, levels: Any, xp: Any = jnp) -> Any:
    """The loss whose least mean is the quantile of a level q (Koenker 1978): q times what is above
    it, 1 - q times what is below. `xp` is the module of the arrays, jax.numpy or numpy."""
    miss = actual - quantiles
    return xp.maximum(levels * miss, (levels - 1) * miss)


def baseline(windows: Windows, method: Callable[..., np.ndarray]) -> dict[str, float]:
    """The scores of a method that forecasts each window from its own past, whose gaps are filled in
    along straight lines."""
    found = []
    for i in range(len(windows)):
        past = windows.past(i)
        known = np.flatnonzero(np.isfinite(past))
        past = np.interp(np.arange(known[0], len(past)), known, past[known])
        found.append(method(past, windows.horizon, windows[i][0].period))
    return accuracy(windows, np.array(found))


def accuracy(windows: Windows, found: Float[np.ndarray, "n h"]) -> dict[str, float]:
    """The mean sMAPE and MASE over windows; of MASE without those that have no unit."""
    actual = windows.future()
    units = [naive_error(windows.past(i), windows[i][0].period) for i in range(len(windows))]
    mase = np.nanmean(np.abs(found - actual), axis=1) / units
    return {"smape": float(smape(found, actual).mean()), "mase": float(np.nanmean(mase))}


build = Forecasting
