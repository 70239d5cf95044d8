"""Forecasts of one series from its own past alone, and the scores of any forecast.

A series is an array of floats [n], oldest first, without gaps; a forecast has `horizon` values.
"""

import numpy as np
from jaxtyping import Float

Values = Float[np.ndarray, "n"]
GRID = np.linspace(0.05, 0.95, 19)  # smoothing parameters that `theta` tries


def seasonal_naive(x: Values, horizon: int, period: int = 1) -> Float[np.ndarray, "h"]:
    """The last period again and again: 1, 2, 3, 4 with period 2 give 3, 4, 3. A series shorter
    than a period, or with period 1, repeats its last value."""
    return np.resize(x[-period:] if len(x) >= period else x[-1:], horizon)


def theta(x: Values, horizon: int, period: int = 1) -> Float[np.ndarray, "h"]:
    """The Theta method (Assimakopoulos 2000): the mean of a trend and of a smoothed steeper series.

    The trend, theta = 0, is the regression on time; 2 x minus it, theta = 2, goes on by simple
    exponential smoothing with the parameter of least squared error one step ahead. A season, if
    there is one, is divided out before and multiplied in again.
    """
    n, times = len(x), np.arange(len(x) + horizon)
    season = np.resize(season_of(x, period), n + horizon)
    flat = x / season[:n]
    slope, level = np.polyfit(times[:n], flat, 1) if n > 1 else (0.0, flat[0])
    line = level + slope * times
    steep = 2 * flat - line[:n]
    state, squares = np.full(len(GRID), steep[0]), np.zeros(len(GRID))
    for value in steep[1:]:
        squares += (value - state) ** 2
        state = state + GRID * (value - state)
    return (state[squares.argmin()] + line[n:]) / 2 * season[n:]


def season_of(x: Values, period: int) -> Float[np.ndarray, "p"]:
    """The mean ratio of values to their centred moving average by position in the period, from the
    first value on; their mean is 1 (classical decomposition).

    Ones for a series of fewer than three periods, with values not above 0, or whose autocorrelation
    at the period is not above 1.645 / sqrt(n), a test at 90 %.
    """
    centred, n = x - x.mean(), len(x)
    if period == 1 or n < 3 * period or x.min() <= 0 or not centred.any():
        return np.ones(period)
    if centred[period:] @ centred[:-period] <= 1.645 / np.sqrt(n) * (centred @ centred):
        return np.ones(period)
    weights = np.ones(period + 1 - period % 2)
    weights[[0, -1]] = 0.5 if period % 2 == 0 else 1.0
    trend, first = np.convolve(x, weights / period, mode="valid"), len(weights) // 2
    ratios, places = x[first : first + len(trend)] / trend, np.arange(first, first + len(trend))
    means = np.array([ratios[places % period == k].mean() for k in range(period)])
    return means / means.mean()


def fit_autoregression(x: Values, longest: int) -> Float[np.ndarray, "k"]:
    """The constant and the coefficients of lags 1, 2, ... by least squares, of least AIC.

    Every order up to `longest` is fitted to the same m = n - longest targets, so that their AIC,
    m ln(sum of squares / m) + 2 (order + 1), compare (Akaike 1974).
    """
    m = len(x) - longest
    lags = [x[longest - k : len(x) - k] for k in range(1, longest + 1)]
    design, target, found = np.stack([np.ones(m), *lags], axis=1), x[longest:], []
    for order in range(1, longest + 2):
        fit = np.linalg.lstsq(design[:, :order], target, rcond=None)[0]
        squares = np.square(target - design[:, :order] @ fit).sum()
        exact = 1e-24 * np.square(target).sum() + 1e-300  # ln of 0 for an exact fit
        found.append((m * np.log(max(squares, exact) / m) + 2 * order, fit))
    return min(found, key=lambda each: each[0])[1]


def autoregression(x: Values, horizon: int, period: int = 1) -> Float[np.ndarray, "h"]:
    """The autoregression of least AIC with up to period + 1 lags, at least 4, run onwards.

    A third of the values bounds the lags. As least squares may find an explosive root, no forecast
    is more than ten times the largest value.
    """
    longest = min(max(period + 1, 4), (len(x) - 1) // 3)
    constant, *lags = fit_autoregression(x, longest)
    known, bound = list(x), 10 * np.abs(x).max()
    for _ in range(horizon):
        value = constant + sum(a * b for a, b in zip(lags, reversed(known), strict=False))
        known.append(min(max(value, -bound), bound))
    return np.array(known[len(x) :])


METHODS = {"naive": seasonal_naive, "theta": theta, "ar": autoregression}


def smape(forecast: Float[np.ndarray, "*b h"], actual: Float[np.ndarray, "*b h"]):
    """The mean of 200 |a - f| / (|a| + |f|) over the steps whose value is known, in percent."""
    total = np.abs(actual) + np.abs(forecast)
    return np.nanmean(200 * np.abs(actual - forecast) / np.where(total == 0, 1, total), axis=-1)


def naive_error(x: Values, period: int = 1) -> float:
    """The mean absolute error of the seasonal naive forecast one period ahead, inside of a series:
    MASE's unit (Hyndman 2006). NaN where no two values are a period apart, or none differ."""
    apart, least = np.abs(x[period:] - x[:-period]), 1e-9 * np.abs(x[np.isfinite(x)]).max(initial=0)
    apart = apart[np.isfinite(apart)]
    return float(apart.mean()) if (apart > least).any() else float("nan")
