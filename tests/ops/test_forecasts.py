"""Forecasts of one series and their scores, by closed forms and by values worked out by hand."""

import math

import numpy as np
import pytest

from transformer_lab.ops.forecasts import (
    autoregression,
    fit_autoregression,
    naive_error,
    seasonal_naive,
    smape,
    theta,
)

LINE = 3.0 + 0.5 * np.arange(40)
WAVE = np.resize([8.0, 12.0, 11.0, 9.0], 40)  # its mean is 10


def test_the_seasonal_naive_forecast_repeats_the_last_period():
    assert seasonal_naive(np.arange(1.0, 5), 3, 2).tolist() == [3, 4, 3]
    assert seasonal_naive(np.array([7.0]), 2, 12).tolist() == [7, 7]


def test_theta_continues_a_season_and_half_of_a_trend():
    np.testing.assert_allclose(theta(WAVE, 6, 4), [8, 12, 11, 9, 8, 12])
    # 2 x minus the line is the line itself: the largest parameter, 0.95, lags by 0.5 * 0.05 / 0.95.
    smooth = LINE[-1] - 0.5 * 0.05 / 0.95
    np.testing.assert_allclose(theta(LINE, 3, 1), (smooth + LINE[-1] + 0.5 * np.arange(1, 4)) / 2)
    assert theta(np.array([5.0]), 2).tolist() == [5, 5]


def test_the_order_of_least_aic_is_that_of_the_series_and_its_forecast_continues_it():
    rng, x = np.random.default_rng(0), [1.0, 2.0]
    for noise in rng.normal(size=2000):
        x.append(0.5 + 1.2 * x[-1] - 0.5 * x[-2] + noise)
    found = fit_autoregression(np.array(x), 6)
    assert 3 <= len(found) <= 5
    np.testing.assert_allclose(found[:3], [0.5, 1.2, -0.5], atol=0.1)
    np.testing.assert_allclose(autoregression(WAVE, 5, 4), [8, 12, 11, 9, 8], rtol=1e-6)
    assert np.abs(autoregression(1.5 ** np.arange(30), 40)).max() <= 10 * 1.5**29


def test_scores_are_those_of_their_definitions():
    assert smape(np.array([50.0, 0.0]), np.array([100.0, 0.0])) == pytest.approx(100 / 3)
    assert smape(np.array([3.0, 1.0]), np.array([1.0, math.nan])) == pytest.approx(100)
    assert naive_error(np.array([1.0, 5, 2, 8]), 2) == 2.0
    assert naive_error(np.array([1.0, math.nan, 2, 4])) == 2.0
    assert math.isnan(naive_error(np.ones(5)))
