"""Forecasts of one series without learning from others, and the scores of any forecast.

A series is an array of floats [n], oldest first, without gaps; a forecast has `horizon` values.
"""

import numpy as np
from jaxtyping import Float

Values = Float[np.ndarray, "n"]
GRID = np.linspace(0.05, 0.95, 19)  # smoothing parameters that `theta` tries


def seasonal_naive(x: Values, horizon: int, period: int = 1) -> Float[np.ndarray, "h"]:
    """The values of the last period once more, as often as needed; period 1 repeats the last one.

    Values 1, 2, 3, 4 with period 2 give 3, 4, 3, ...
    """
    last = x[-period:] if len(x) >= period else x[-1:]
    return np.resize(last, horizon)


def theta(x: Values, horizon: int, period: int = 1) -> Float[np.ndarray, "h"]:
    """The Theta method (Assimakopoulos 2000): the mean of a trend line and a smoothed steep line.

    The line of theta = 0 is the regression on time, that of theta = 2 is 2 x minus it and goes on
    by simple exponential smoothing, whose parameter has the least squared error one step ahead. A
    season that the autocorrelation shows (see `seasonal`) is divided out before and multiplied in
    again.
    """
    season = np.ones(period)
    if seasonal(x, period):
        season = multiplicative_season(x, period)
    n = len(x)
    flat = x / np.resize(season, n)
    times = np.arange(n + horizon)
    slope, level = np.polyfit(times[:n], flat, 1) if n > 1 else (0.0, flat[0])
    line = level + slope * times
    steep = 2 * flat - line[:n]
    state = np.full(len(GRID), steep[0])
    errors = np.zeros(len(GRID))
    for value in steep[1:]:
        miss = value - state
        errors += miss**2
        state = state + GRID * miss
    smooth = state[errors.argmin()]
    return (smooth + line[n:]) / 2 * np.resize(season, n + horizon)[n:]


def seasonal(x: Values, period: int) -> bool:
    """Whether the autocorrelation at the period is above 1.645 / sqrt(n), a test at 90 %.

    A series of fewer than three periods counts as without season.
    """
    if period == 1 or len(x) < 3 * period:
        return False
    centred = x - x.mean()
    total = centred @ centred
    return bool(total and centred[period:] @ centred[:-period] / total > 1.645 / np.sqrt(len(x)))


def multiplicative_season(x: Values, period: int) -> Float[np.ndarray, "p"]:
    """The mean ratio of the values to their centred moving average, for each position from 0.

    The ratios have mean 1 (classical decomposition). Ones for a series that is not above 0.
    """
    if x.min() <= 0:
        return np.ones(period)
    weights = np.ones(period + 1 - period % 2)
    if period % 2 == 0:
        weights[[0, -1]] = 0.5
    trend = np.convolve(x, weights / period, mode="valid")
    first = len(weights) // 2
    ratios = x[first : first + len(trend)] / trend
    places = (first + np.arange(len(trend))) % period
    means = np.array([ratios[places == k].mean() for k in range(period)])
    return means / means.mean()


def fit_autoregression(x: Values, longest: int) -> tuple[Float[np.ndarray, "k"], float]:
    """Coefficients (constant, lag 1, lag 2, ...) by least squares, with the order of least AIC.

    All orders up to `longest` are fitted to the same n - longest targets, so that their AIC
    n ln(sum of squares / n) + 2 (order + 1) compare. Also gives the deviation of the errors.
    """
    longest = max(min(longest, (len(x) - 1) // 3), 0)
    lags = [x[longest - k : len(x) - k] for k in range(1, longest + 1)]
    design, target = np.stack([np.ones(len(x) - longest), *lags], axis=1), x[longest:]
    best = None
    for order in range(longest + 1):
        found = np.linalg.lstsq(design[:, : order + 1], target, rcond=None)[0]
        squares = float(np.square(target - design[:, : order + 1] @ found).sum())
        floor = 1e-12 * float(np.square(target).sum()) + 1e-300  # an exact fit has no error
        score = len(target) * np.log(max(squares, floor) / len(target)) + 2 * (order + 1)
        if best is None or score < best[0]:
            best = score, found, np.sqrt(squares / max(len(target) - order - 1, 1))
    return best[1], float(best[2])


def autoregression(x: Values, horizon: int, period: int = 1) -> Float[np.ndarray, "h"]:
    """The autoregression of least AIC with up to period + 1 lags (at least 4), run onwards.

    It is fitted to the series divided by its mean absolute value. What it predicts is bounded by
    ten times the largest value, as least squares may find an explosive root.
    """
    scale = np.abs(x).mean() or 1.0
    coefficients, _ = fit_autoregression(x / scale, max(period + 1, 4))
    known, bound = list(x / scale), 10 * np.abs(x).max() / scale
    for _ in range(horizon):
        lags = known[: -len(coefficients) : -1] if len(coefficients) > 1 else []
        value = coefficients[0] + coefficients[1:] @ np.array(lags)
        known.append(float(np.clip(value, -bound, bound)))
    return np.array(known[len(x) :]) * scale


METHODS = {"naive": seasonal_naive, "theta": theta, "ar": autoregression}


def smape(forecast: Values, actual: Values) -> float:
    """The mean of 200 |a - f| / (|a| + |f|), in percent; 0 where both are 0."""
    total = np.abs(actual) + np.abs(forecast)
    return float(np.mean(200 * np.abs(actual - forecast) / np.where(total > 0, total, 1.0)))


def naive_error(x: Values, period: int = 1) -> float:
    """The mean absolute error of the seasonal naive forecast one period ahead, inside of a series.

    It is MASE's unit (Hyndman 2006). NaN where no two values are a period apart, or none differ.
    """
    apart = np.abs(x[period:] - x[:-period])
    apart = apart[np.isfinite(apart)]
    return float(apart.mean()) if len(apart) and apart.any() else float("nan")
