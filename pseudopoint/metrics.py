"""How good predictions are: error of the mean, density of the truth, honesty of the intervals.

Everything here is NumPy on arrays of shape [N], one entry a row, in the units of the target. Shapes are checked when
the code runs, not only in the tests: a [N, 1] array against a [N] one would broadcast to a silent N × N average.
Every function raises `ValueError` if its arrays are not all of one shape [N], or if N = 0.
"""

from collections.abc import Iterable
from statistics import NormalDist

import numpy as np
from jaxtyping import Float, Real

__all__ = ["calibration", "coverage", "interval", "mae", "mean_log_density", "nlpd", "r2", "rmse"]

Rows = Real[np.ndarray, "..."]


def rmse(y: Rows, mean: Rows) -> float:
    """Root mean squared error √(1/N Σ (yₙ − μₙ)²), in the units of the target."""
    y, mean = _paired(y, mean)
    return float(np.sqrt(np.mean((y - mean) ** 2)))


def mae(y: Rows, mean: Rows) -> float:
    """Mean absolute error 1/N Σ |yₙ − μₙ|, in the units of the target."""
    y, mean = _paired(y, mean)
    return float(np.mean(np.abs(y - mean)))


def r2(y: Rows, mean: Rows) -> float:
    """Coefficient of determination R² = 1 − Σ (yₙ − μₙ)² / Σ (yₙ − ȳ)²: 1 is perfect, 0 is no better than the mean ȳ.

    A constant target makes this 0 / 0; by scikit-learn's convention it is then 1 if the prediction is perfect, else 0.
    """
    y, mean = _paired(y, mean)
    unexplained, total = np.sum((y - mean) ** 2), np.sum((y - np.mean(y)) ** 2)
    if total == 0.0:
        return 1.0 if unexplained == 0.0 else 0.0
    return float(1.0 - unexplained / total)


def interval(mean: Rows, std: Rows, level: float) -> tuple[np.ndarray, np.ndarray]:
    """Ends of the central Gaussian interval of probability `level`, mean ± Φ⁻¹((1 + level)/2) · std, each [N].

    Raises `ValueError` unless 0 < level < 1.
    """
    if not 0 < level < 1:
        raise ValueError(f"the interval's probability must lie between 0 and 1, not {level!r}; 0.9 means 90 %")
    half = NormalDist().inv_cdf(0.5 + level / 2) * std
    return mean - half, mean + half


def coverage(y: Rows, lower: Rows, upper: Rows) -> float:
    """Share of rows inside their interval, 1/N Σ 1[lowerₙ ≤ yₙ ≤ upperₙ], between 0 and 1."""
    y, lower, upper = _paired(y, lower, upper)
    return float(np.mean((lower <= y) & (y <= upper)))


def mean_log_density(y: Rows, mean: Rows, std: Rows) -> float:
    """Mean log density of the truth under Gaussian predictions, 1/N Σ log N(yₙ; μₙ, σₙ²), in nats a row.

    `std` is the standard deviation of the target (noise included), > 0; otherwise `ValueError`.
    """
    y, mean, std = _paired(y, mean, std)
    if not np.all(std > 0.0):
        raise ValueError("a Gaussian density needs std > 0 in every row")
    return float(np.mean(-0.5 * np.log(2.0 * np.pi) - np.log(std) - 0.5 * ((y - mean) / std) ** 2))


def nlpd(y: Rows, mean: Rows, std: Rows) -> float:
    """Mean negative log predictive density, −1/N Σ log N(yₙ; μₙ, σₙ²), in nats a row: smaller is better."""
    return -mean_log_density(y, mean, std)


def calibration(y: Rows, mean: Rows, std: Rows, levels: Iterable[float]) -> Float[np.ndarray, "L"]:
    """Observed coverage of the central Gaussian intervals at each of L nominal levels p, 0 < p < 1.

    observed(p) = 1/N Σ 1[|yₙ − μₙ| ≤ z σₙ] with z = Φ⁻¹((1 + p) / 2). Honest predictions give observed(p) ≈ p; the
    standard error of each entry is √(p (1 − p) / N). Raises `ValueError` at any other level.
    """
    y, mean, std = _paired(y, mean, std)
    levels = np.array(list(levels), np.float64)
    if not np.all((0.0 < levels) & (levels < 1.0)):
        raise ValueError("a nominal level lies strictly between 0 and 1")
    distance = np.abs(y - mean)
    widths = [NormalDist().inv_cdf(0.5 * (1.0 + level)) for level in levels]
    return np.array([np.mean(distance <= z * std) for z in widths], np.float64)


def _paired(*arrays: np.ndarray) -> list[np.ndarray]:
    """The arrays in float64, after checking that they are vectors of one length N ≥ 1."""
    shapes = [np.shape(array) for array in arrays]
    if len(shapes[0]) != 1 or any(shape != shapes[0] for shape in shapes):
        raise ValueError(f"need vectors of one length, one entry a row; the shapes are {shapes}")
    if shapes[0] == (0,):
        raise ValueError("there are no rows to score")
    return [np.asarray(array, np.float64) for array in arrays]
