"""Metrics against hand-computed values, scikit-learn and draws from the model itself."""

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.metrics import (
    accuracy_score,
    brier_score_loss,
    confusion_matrix,
    log_loss,
    mean_absolute_error,
    r2_score,
    root_mean_squared_error,
)

from pseudopoint import metrics

pytestmark = pytest.mark.edge

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
    with pytest.raises(ValueError, match="must lie between 0 and 1"):
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


# ---- Classes ---------------------------------------------------------------------------------------------------------

codes = np.array([0, 1, 2, 2])
P = np.array([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.5, 0.25, 0.25], [0.0, 0.1, 0.9]])
SCORES = [metrics.accuracy, metrics.mean_log_probability, metrics.brier, metrics.calibration_error]
SCORES += [metrics.reliability, metrics.confusion]


def honest(N: int, C: int) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities, and codes drawn from them."""
    rng = np.random.default_rng(0)
    P = rng.dirichlet(np.full(C, 0.3), size=N)
    return (rng.uniform(size=(N, 1)) > P.cumsum(axis=1)[:, :-1]).sum(axis=1), P


def test_classes_by_hand():
    assert metrics.accuracy(codes, P) == 0.75
    assert metrics.mean_log_probability(codes, P) == pytest.approx(np.log(0.7 * 0.6 * 0.25 * 0.9) / 4)
    assert metrics.brier(codes, P) == pytest.approx((0.14 + 0.26 + 0.875 + 0.02) / 4)
    assert metrics.confusion(codes, P).tolist() == [[1, 0, 0], [0, 1, 0], [1, 0, 1]]


@pytest.mark.parametrize("C", [2, 3, 10])
def test_classes_agree_with_scikit_learn(C):
    y, P = honest(200, C)
    labels = list(range(C))
    assert metrics.accuracy(y, P) == accuracy_score(y, P.argmax(axis=1))
    assert metrics.mean_log_probability(y, P) == pytest.approx(-log_loss(y, P, labels=labels))
    np.testing.assert_array_equal(metrics.confusion(y, P), confusion_matrix(y, P.argmax(axis=1), labels=labels))


def test_brier_of_two_classes_is_twice_the_score_of_the_second():
    y, P = honest(200, 2)
    assert metrics.brier(y, P) == pytest.approx(2 * brier_score_loss(y, P[:, 1]))


def test_the_log_probability_is_infinite_only_where_the_truth_was_ruled_out():
    assert metrics.mean_log_probability(np.array([0]), np.array([[0.0, 1.0]])) == -np.inf
    assert metrics.mean_log_probability(np.array([0]), np.array([[1e-300, 1.0]])) == pytest.approx(np.log(1e-300))


def test_reliability_by_hand():
    # Confidences 0.7, 0.6, 0.5 and 0.9; the third row is wrong. The upper end of a bin belongs to it.
    confidence, share, count = metrics.reliability(codes, P, 2)
    assert count.tolist() == [1, 3]
    np.testing.assert_allclose(confidence, [0.5, 2.2 / 3])
    np.testing.assert_allclose(share, [0.0, 1.0])
    assert metrics.calibration_error(codes, P, 2) == pytest.approx((0.5 + 3 * (1 - 2.2 / 3)) / 4)
    confidence, share, count = metrics.reliability(codes, P, 5)
    assert count.tolist() == [0, 0, 2, 1, 1] and np.isnan(confidence[:2]).all() and np.isnan(share[:2]).all()


def test_the_calibration_error_is_the_sum_over_a_loop_of_bins():
    y, P = honest(500, 4)
    confidence, right, expected = P.max(axis=1), P.argmax(axis=1) == y, 0.0
    for b in range(15):
        inside = (confidence > b / 15) & (confidence <= (b + 1) / 15)
        expected += abs(right[inside].sum() - confidence[inside].sum()) / 500
    assert metrics.calibration_error(y, P) == pytest.approx(expected)


def test_honest_probabilities_are_calibrated_and_overconfident_ones_are_not():
    y, P = honest(20_000, 3)
    assert metrics.calibration_error(y, P) < 0.4 * np.sqrt(15 / 20_000)
    sharper = P**3 / np.sum(P**3, axis=1, keepdims=True)
    assert metrics.calibration_error(y, sharper) > 0.1


def test_the_first_of_several_largest_probabilities_is_predicted():
    assert metrics.confusion(np.array([1]), np.full((1, 2), 0.5)).tolist() == [[0, 0], [1, 0]]


def test_a_certain_prediction_rounded_above_one_falls_into_the_last_bin():
    y, certain = np.array([0]), np.array([[1.0005, 0.0]], np.float32)
    assert metrics.reliability(y, certain, 3)[2].tolist() == [0, 0, 1]


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize(
    ("y", "P", "message"),
    [
        (codes[:3], P, r"the shapes are \(3,\), \(4, 3\)"),
        (codes[:, None], P, "need one class code a row"),
        (codes, P[:, 0], "need one class code a row"),
        (codes[:0], P[:0], "no rows, or no classes"),
        (codes, P[:, :0], "no rows, or no classes"),
        (codes.astype(float), P, "class codes are integers from 0 to C − 1, not float64"),
        (np.array([0, 1, 2, 3]), P, "row 4 has class code 3; 3 columns of probabilities allow 0 to 2"),
        (np.array([-1, 1, 2, 2]), P, "row 1 has class code -1"),
        (codes, P * [[1], [2], [1], [1]], "row 2 holds no probabilities: its least is 0.2, its sum 2"),
        (codes, P + [[0.5, 0, -0.5]], "row 1 holds no probabilities: its least is -0.4, its sum 1"),
        (codes, np.where(P == 0.9, np.nan, P), "row 4 holds no probabilities"),
    ],
)
def test_what_is_no_classification_is_one_sentence(score, y, P, message):
    with pytest.raises(ValueError, match=message) as error:
        score(y, P)
    assert "\n" not in str(error.value)


def test_reliability_needs_a_bin():
    with pytest.raises(ValueError, match="at least one bin, not 0"):
        metrics.reliability(codes, P, 0)
