"""Measures of predictions: errors of the mean, log density of the truth, coverage of intervals, scores of classes.

Everything is NumPy on arrays of shape [N], one entry a row, in the units of the target. Shapes are checked at run time,
since an [N, 1] array minus an [N] one is an N × N array, whose average is a wrong number.
Every function raises `ValueError` if its arrays are not all of one shape [N], or if N = 0. Where there are weights
wₙ ≥ 0 [N], not all zero, row n counts wₙ times: a mean 1/N Σ xₙ is then Σ wₙ xₙ / Σ wₙ.

Classes have codes 0, …, C − 1. Functions of codes y [N] and probabilities P [N, C], P[n, c] = P(yₙ = c), raise
`ValueError` if y holds other values, if N differs or is 0, or if a row of P has a negative entry or a sum that differs
from 1 by more than 0.001. The predicted class has the largest probability; of several, it is the first.
"""

from collections.abc import Iterable
from statistics import NormalDist
from typing import Any

import numpy as np
from jaxtyping import Float, Real

PerRow = Real[np.ndarray, "..."]
Table = Real[np.ndarray, "..."]  # [N, C]; checked when the code runs, as `PerRow` are

OFF_ONE = 1e-3  # probabilities in float32, or rounded to four digits in a file, sum to 1 within this


def average(values: PerRow, weight: PerRow | None = None) -> float:
    """The mean 1/N Σ xₙ."""
    if weight is None:
        return float(np.mean(_paired(values)[0]))
    values, weight = _paired(values, weight)
    if not (np.all(weight >= 0.0) and np.sum(weight) > 0.0):
        raise ValueError("weights are at least 0, and one of them is above 0")
    return float(np.average(values, weights=weight))


def median(values: PerRow, weight: PerRow | None = None) -> float:
    """The median; with weights the least value up to which half of the weight lies."""
    if weight is None:
        return float(np.median(_paired(values)[0]))
    values, weight = _paired(values, weight)
    return float(np.quantile(values, 0.5, weights=weight, method="inverted_cdf"))


def rmse(y: PerRow, mean: PerRow, weight: PerRow | None = None) -> float:
    """Root mean squared error √(1/N Σ (yₙ − μₙ)²), in the units of the target."""
    y, mean = _paired(y, mean)
    errors, exponent = _near_one(y - mean)
    return float(np.ldexp(np.sqrt(average(errors**2, weight)), exponent))


def mae(y: PerRow, mean: PerRow, weight: PerRow | None = None) -> float:
    """Mean absolute error 1/N Σ |yₙ − μₙ|, in the units of the target."""
    y, mean = _paired(y, mean)
    return average(np.abs(y - mean), weight)


def r2(y: PerRow, mean: PerRow, weight: PerRow | None = None) -> float:
    """Coefficient of determination R² = 1 − Σ (yₙ − μₙ)² / Σ (yₙ − ȳ)²: 1 is perfect, 0 is no better than the mean ȳ.

    A constant target makes this 0 / 0; by scikit-learn's convention it is then 1 if the prediction is perfect, else 0.
    """
    y, mean = _paired(y, mean)
    _, exponent = _near_one(y)  # both sums in one unit
    y, mean = np.ldexp(y, -exponent), np.ldexp(mean, -exponent)
    unexplained, total = average((y - mean) ** 2, weight), average((y - average(y, weight)) ** 2, weight)
    if total == 0.0:
        return 1.0 if unexplained == 0.0 else 0.0
    return float(1.0 - unexplained / total)


def _near_one(values: PerRow) -> tuple[PerRow, Any]:
    """Values divided by a power of two that makes the largest about 1, and its exponent: no square overflows."""
    _, exponent = np.frexp(np.max(np.abs(values), initial=0.0))
    return np.ldexp(values, -exponent), exponent


def interval(mean: PerRow, std: PerRow, level: float) -> tuple[np.ndarray, np.ndarray]:
    """Ends of the central Gaussian interval of probability `level`, mean ± Φ⁻¹((1 + level)/2) · std, each [N].

    Raises `ValueError` unless 0 < level < 1.
    """
    if not 0 < level < 1:
        raise ValueError(f"level={level!r} must lie between 0 and 1; 0.9 means 90 %")
    half = -NormalDist().inv_cdf(0.5 - level / 2) * std  # from the lower tail, as 0.5 + level/2 may round to 1
    return mean - half, mean + half


def coverage(y: PerRow, lower: PerRow, upper: PerRow, weight: PerRow | None = None) -> float:
    """Share of rows inside their interval, 1/N Σ 1[lowerₙ ≤ yₙ ≤ upperₙ], between 0 and 1."""
    y, lower, upper = _paired(y, lower, upper)
    return average(1.0 * ((lower <= y) & (y <= upper)), weight)


def mean_log_density(y: PerRow, mean: PerRow, std: PerRow, weight: PerRow | None = None) -> float:
    """Mean log density of the truth under Gaussian predictions, 1/N Σ log N(yₙ; μₙ, σₙ²), in nats a row.

    `std` is the standard deviation of the target, noise included. Raises `ValueError` unless it is positive.
    """
    y, mean, std = _paired(y, mean, std)
    if not np.all(std > 0.0):
        raise ValueError("a Gaussian density needs std > 0 in every row")
    return average(-0.5 * np.log(2.0 * np.pi) - np.log(std) - 0.5 * ((y - mean) / std) ** 2, weight)


def calibration(
    y: PerRow, mean: PerRow, std: PerRow, levels: Iterable[float], weight: PerRow | None = None
) -> Float[np.ndarray, "L"]:
    """Observed coverage of the central Gaussian intervals of each of L levels p, 0 < p < 1.

    observed(p) = 1/N Σ 1[|yₙ − μₙ| ≤ z σₙ] with z = Φ⁻¹((1 + p) / 2). Calibrated predictions give observed(p) ≈ p, with
    a standard error of √(p (1 − p) / N). Raises `ValueError` at any other level.
    """
    y, mean, std = _paired(y, mean, std)
    levels = np.array(list(levels), np.float64)
    if not np.all((0.0 < levels) & (levels < 1.0)):
        raise ValueError("every level must lie between 0 and 1; 0.9 means 90 %")
    distance = np.abs(y - mean)
    widths = [NormalDist().inv_cdf(0.5 * (1.0 + level)) for level in levels]
    return np.array([average(1.0 * (distance <= z * std), weight) for z in widths], np.float64)


# ---- Classes ---------------------------------------------------------------------------------------------------------


def accuracy(y: PerRow, P: Table, weight: PerRow | None = None) -> float:
    """Share of rows whose class is the predicted one, 1/N Σ 1[yₙ = argmax_c P[n, c]], between 0 and 1."""
    y, P = _classified(y, P)
    return average(1.0 * (P.argmax(axis=1) == y), weight)


def mean_log_probability(y: PerRow, P: Table, weight: PerRow | None = None) -> float:
    """Mean log probability of the truth, 1/N Σ log P[n, yₙ], in nats a row: ≤ 0, larger is better.

    −inf where a true class has probability 0; log(1/C) is the value of guessing.
    """
    y, P = _classified(y, P)
    with np.errstate(divide="ignore"):
        return average(np.log(P[np.arange(len(y)), y]), weight)


def brier(y: PerRow, P: Table, weight: PerRow | None = None) -> float:
    """Brier score 1/N Σₙ Σ_c (P[n, c] − 1[yₙ = c])², from 0 (certain and right) to 2 (certain and wrong).

    Brier's definition (1950) sums over all classes: for two classes it is twice (p − y)².
    """
    y, P = _classified(y, P)
    return average(np.sum((P - np.eye(P.shape[1])[y]) ** 2, axis=1), weight)


def calibration_error(y: PerRow, P: Table, bins: int = 15, weight: PerRow | None = None) -> float:
    """Expected calibration error of the predicted class, Σ_b N_b/N |accuracy_b − confidence_b|, between 0 and 1.

    Over the bins of `reliability` (Guo et al. 2017, equation 3). For calibrated predictions chance alone makes it up to
    0.4 √(bins / N) on average, so a small table cannot show that predictions are calibrated.
    """
    confidence, share, count = reliability(y, P, bins, weight)
    return float(np.nansum(count * np.abs(share - confidence)) / np.sum(count))


def reliability(
    y: PerRow, P: Table, bins: int = 15, weight: PerRow | None = None
) -> tuple[Float[np.ndarray, "B"], Float[np.ndarray, "B"], Real[np.ndarray, "B"]]:
    """Mean confidence, accuracy and number (or weight) of rows in each of B bins: the first two agree where P is
    calibrated.

    A row's confidence is the probability of its predicted class, max_c P[n, c]. Bins are of equal width, as in
    published numbers (Guo et al. 2017), so ties cannot matter: bin b = 0, …, B − 1 holds confidences
    in (b/B, (b + 1)/B]. An empty bin has count 0 and NaN for the means. Raises `ValueError` if `bins` < 1.
    """
    y, P = _classified(y, P)
    if bins < 1:
        raise ValueError(f"reliability needs at least one bin, not {bins}")
    confidence = P.max(axis=1)
    place = np.searchsorted(np.linspace(0.0, 1.0, bins + 1)[1:-1], confidence)
    each = np.ones(len(y)) if weight is None else _paired(y, weight)[1]
    count = np.bincount(place, weight, minlength=bins)
    sums = [np.bincount(place, each * values, minlength=bins) for values in (confidence, P.argmax(axis=1) == y)]
    means = [np.divide(total, count, out=np.full(bins, np.nan), where=count > 0) for total in sums]
    return means[0], means[1], count


def confusion(y: PerRow, P: Table, weight: PerRow | None = None) -> Real[np.ndarray, "C C"]:
    """Entry (i, j) counts (or weighs) the rows of class i whose predicted class is j."""
    y, P = _classified(y, P)
    C = P.shape[1]
    return np.bincount(C * y + P.argmax(axis=1), weight, minlength=C * C).reshape(C, C)


# ---- Checks ----------------------------------------------------------------------------------------------------------


def _classified(y: np.ndarray, P: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Codes as int64 [N] and probabilities as float64 [N, C], checked."""
    y, P = np.asarray(y), np.asarray(P, np.float64)
    if y.ndim != 1 or P.ndim != 2 or len(y) != len(P):
        raise ValueError(
            f"need one class code a row and one row [C] of probabilities; the shapes are {y.shape}, {P.shape}"
        )
    if P.size == 0:
        raise ValueError("there are no rows, or no classes, to score")
    if y.dtype.kind not in "iu":
        raise ValueError(f"class codes are integers from 0 to C − 1, not {y.dtype}; give the place of each row's class")
    outside = np.flatnonzero((y < 0) | (y >= P.shape[1]))
    if len(outside):
        n = outside[0]
        raise ValueError(
            f"row {n + 1} has class code {y[n]}; {P.shape[1]} columns of probabilities allow 0 to {P.shape[1] - 1}"
        )
    bad = np.flatnonzero(~((P >= 0.0).all(axis=1) & (np.abs(P.sum(axis=1) - 1.0) <= OFF_ONE)))
    if len(bad):
        n = bad[0]
        raise ValueError(f"row {n + 1} holds no probabilities: its least is {P[n].min():.4g}, its sum {P[n].sum():.4g}")
    return y.astype(np.int64), P


def _paired(*arrays: np.ndarray) -> list[np.ndarray]:
    """The arrays as float64, checked to be vectors of one length N ≥ 1."""
    shapes = [np.shape(array) for array in arrays]
    if len(shapes[0]) != 1 or any(shape != shapes[0] for shape in shapes):
        raise ValueError(f"need vectors of one length, one entry a row; the shapes are {shapes}")
    if shapes[0] == (0,):
        raise ValueError("there are no rows to score")
    return [np.asarray(array, np.float64) for array in arrays]
