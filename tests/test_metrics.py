"""Metrics against hand-computed values, scikit-learn and draws from the model itself."""

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

from pseudopoint import metrics

y = np.array([1.0, 2.0, 4.0])
mean = np.array([1.0, 3.0, 2.0])


def test_errors_by_hand():
    assert metrics.rmse(y, mean) == pytest.approx(np.sqrt(5.0 / 3.0))
    assert metrics.mae(y, mean) == pytest.approx(1.0)
    assert metrics.r2(y, mean) == pytest.approx(1.0 - 5.0 / (14.0 / 3.0))


def test_errors_agree_with_scikit_learn():
    rng = np.random.default_rng(0)
    truth, guess = rng.normal(size=50), rng.normal(size=50)
    assert metrics.rmse(truth, guess) == pytest.approx(root_mean_squared_error(truth, guess))
    assert metrics.mae(truth, guess) == pytest.approx(mean_absolute_error(truth, guess))
    assert metrics.r2(truth, guess) == pytest.approx(r2_score(truth, guess))


@pytest.mark.parametrize("guess", [np.full(3, 2.0), np.array([2.0, 2.0, 2.5])])
def test_r2_of_a_constant_target_follows_scikit_learn(guess):
    constant = np.full(3, 2.0)
    assert metrics.r2(constant, guess) == r2_score(constant, guess)


def test_r2_of_one_row_is_a_number():
    assert metrics.r2(np.array([1.0]), np.array([1.0])) == 1.0
    assert metrics.r2(np.array([1.0]), np.array([2.0])) == 0.0


def test_coverage_counts_the_ends_of_the_interval():
    assert metrics.coverage(y, np.array([1.0, 0.0, 5.0]), np.array([2.0, 2.0, 6.0])) == pytest.approx(2.0 / 3.0)


def test_log_density_is_that_of_the_normal():
    std = np.array([0.5, 1.0, 2.0])
    assert metrics.mean_log_density(y, mean, std) == pytest.approx(np.mean(norm.logpdf(y, mean, std)))
    assert metrics.nlpd(y, mean, std) == -metrics.mean_log_density(y, mean, std)


def test_log_density_refuses_a_zero_std():
    with pytest.raises(ValueError, match="std > 0"):
        metrics.mean_log_density(y, mean, np.array([1.0, 0.0, 1.0]))


def test_calibration_by_hand():
    # |y − μ| / σ is 0, 1 and 2; the central 50 %, 90 % and 99 % intervals reach to 0.674, 1.645 and 2.576.
    observed = metrics.calibration(y, mean, np.ones(3), [0.5, 0.9, 0.99])
    np.testing.assert_allclose(observed, [1 / 3, 2 / 3, 1.0])


def test_predictions_that_are_true_are_calibrated():
    rng = np.random.default_rng(0)
    centre, std = rng.normal(size=20_000), rng.uniform(0.1, 3.0, size=20_000)
    levels = np.linspace(0.05, 0.95, 19)
    observed = metrics.calibration(rng.normal(centre, std), centre, std, levels)
    assert np.max(np.abs(observed - levels)) < 4 * np.sqrt(0.25 / 20_000)


@pytest.mark.parametrize("level", [0.0, 1.0, -0.5, np.nan])
def test_calibration_refuses_a_level_that_is_no_probability(level):
    with pytest.raises(ValueError, match="strictly between 0 and 1"):
        metrics.calibration(y, mean, np.ones(3), [level])


def test_integers_are_welcome():
    assert metrics.rmse(np.array([1, 3]), np.array([1, 1])) == pytest.approx(np.sqrt(2.0))


def test_a_column_against_a_row_is_an_error_not_a_broadcast():
    with pytest.raises(ValueError, match="vectors of one length"):
        metrics.rmse(y[:, None], mean)
    with pytest.raises(ValueError, match="vectors of one length"):
        metrics.rmse(y[:, None], mean[:, None])


def test_no_rows_is_an_error():
    with pytest.raises(ValueError, match="no rows"):
        metrics.mae(np.empty(0), np.empty(0))
