"""What a fit has to say that is no error: one sentence each, for `notes_` and the command line."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from ..data import FAR, Standardiser
from ..kernels import AbstractKernel

FEW_DIGITS = 1e-4  # of a column's spread: what rounding in float32 may take
TRIED_ROWS = 300
UNRELATED, ALIKE = 1e-3, 1e-6
MANY = 10  # rows a value of the target has on average, where it is discrete


def unusual_weights(weight: np.ndarray) -> list[str]:
    """Weights are counts of observations: a sum of 1 makes N rows one observation."""
    total, N = float(weight.sum()), int(np.count_nonzero(weight))
    if N / 3 <= total <= 3 * N:
        return []
    return [
        f"sample_weight sums to {total:.4g} for {N:,} rows: a weight says how often its row was seen, so the fit has "
        f"{total:.4g} rows to learn from; multiply the weights by {N / total:.4g} if they only say which rows matter"
    ]


def merged_rows(rows: int, distinct: int) -> list[str]:
    """Rows that were merged, as equal rows are."""
    if rows == distinct:
        return []
    return [
        f"{rows:,} rows, of which {distinct:,} differ: equal rows are computed once and count as often as they occur"
    ]


def updated(rows: int) -> list[str]:
    """Rows that came after the fit."""
    return [f"updated with {rows:,} rows; hyperparameters are those of the fit"]


def far_rows(X: np.ndarray, scaling: Standardiser, names: Any) -> list[str]:
    """Columns that were scaled by their middle half, because few rows are far from all others, and those that are
    left out without being constant; `names` may be None."""
    notes = []
    for j in np.flatnonzero(~scaling.varies):
        notes += lost_digits(f"column {_name(names, j)}", X[:, j], scaling.mean[j], np.inf)
    for j in np.flatnonzero(scaling.varies & (scaling.scale != 1)):
        with np.errstate(over="ignore"):
            far = np.abs(X[:, j] - scaling.mean[j]) > max(FAR, len(X) ** 0.5) * scaling.scale[j]
        if far.any():
            notes.append(
                f"column {_name(names, j)}: {far.sum():,} of {len(X):,} rows are far from all others (such as "
                f"{X[far, j][0]:g}); it is scaled by its other rows. If that value stands for a missing one, drop or "
                "impute it"
            )
    return notes


def _name(names: Any, j: Any) -> str:
    return repr(str(names[j])) if names is not None else str(j)


def left_unwarped(word: str, scaling: Standardiser, names: Any) -> list[str]:
    """Columns that do not have the warp of inputs that was asked for by name; `names` may be None."""
    warps = scaling.warps
    if word in ("auto", "none") or not any(warp is not None for warp in warps):
        return []
    left = [j for j in np.flatnonzero(scaling.varies) if warps[j] is None]
    said = ", ".join(_name(names, j) for j in left)
    return [f"input_warp={word!r} is not for these columns, which stay as they are: {said}"] if left else []


_covariance = jax.jit(lambda kernel, X: kernel(X, X))


def start_of_kernel(kernel: AbstractKernel, scaled: AbstractKernel, X: np.ndarray) -> list[str]:
    """A kernel object with whose numbers rows are strangers, or all alike; and one lengthscale for many columns. What X
    holds is for `scaled`, the same kernel of scaled inputs."""
    notes, name, D = [], type(kernel).__name__, X.shape[1]
    if kernel.scales is not None and np.size(kernel.scales[0]) == 1 and D > 1:
        notes.append(f"the kernel {name} has one lengthscale for all {D} columns; {name}(…).ard({D}) has one for each")
    rows = X[np.linspace(0, len(X) - 1, min(len(X), TRIED_ROWS)).astype(int)]
    K = np.asarray(_covariance(scaled, rows))
    std = np.sqrt(np.diagonal(K))
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        correlation = K / std[:, None] / std
    others = np.abs(correlation[~np.eye(len(rows), dtype=bool)])
    if len(others) and np.nanmax(others) < UNRELATED:
        what = "no two rows are related: its lengthscales are far below the distances between rows"
    elif len(others) and np.nanmin(others) > 1 - ALIKE:
        what = "all rows are alike: its lengthscales are far above the distances between rows"
    else:
        return notes
    return [
        *notes,
        f"at the start of the kernel {name} {what}, and the fit may not find away from there; start it near those "
        "distances, in the units of X, or give scale_inputs=True, and lengthscales about 1",
    ]


def single_precision(X: np.ndarray) -> list[str]:
    """Columns, as the model sees them, whose spread float32 does not resolve."""
    with np.errstate(over="ignore"):
        spread, size = np.ptp(X, axis=0), np.max(np.abs(X), axis=0)
    lost = np.flatnonzero((spread > 0) & (size * np.finfo(np.float32).eps > FEW_DIGITS * spread))
    return [
        f"column {j}: float32 does not tell its values apart, which are about {size[j]:.4g} and differ by at most "
        f"{spread[j]:.4g}; subtract a constant, or compute in float64"
        for j in lost
    ]


def iteration_limit(converged: bool, iterations: int, limit: int) -> list[str]:
    """A fit that ended before it converged."""
    if converged:
        return []
    if iterations < limit:
        return [f"the fit ended after {iterations:,} iterations, where no step went up any more, before it converged"]
    return [f"the fit ended at its limit of {limit:,} iterations, before it converged; max_iter gives it more"]


def constant_target(y: float) -> list[str]:
    """A target of one value."""
    return [f"the target is {y:g} in every row: that is what is predicted, and nothing is learned of the inputs"]


def lost_digits(what: str, values: Any, mean: float, scale: float) -> list[str]:
    """Values that differ by so little of their size that their scaling, mean and scale, takes them for constant."""
    spread = np.max(values) - np.min(values)
    if not 0 < spread < FEW_DIGITS * min(scale, abs(mean)):  # a standard deviation is no more than the spread
        return []
    return [
        f"{what} counts as constant, for its values differ by {spread:.2g}, of {abs(mean):.4g}: subtract a constant "
        "from them, where they are made"
    ]


def constant_outputs(names: Sequence[Any], Y: np.ndarray) -> list[str]:
    """Outputs of one value, in the rows where they are there."""
    there = [values[~np.isnan(values)] for values in Y.T]
    return [
        f"the output {name} is {values[0]:g} in every row that has it: that is what is predicted of it"
        for name, values in zip(names, there, strict=True)
        if np.ptp(values) == 0
    ]


def many_classes(classes: int, rows: int) -> list[str]:
    """Hardly more rows than classes, of which each has then nearly none to learn from."""
    if 2 * classes <= rows or classes < 3:
        return []
    return [
        f"the target has {classes:,} classes in {rows:,} rows: if it is a number, regression may fit better; if it "
        "names the rows, it cannot be predicted"
    ]


def discrete_target(y: np.ndarray, noise: float) -> list[str]:
    """A target of few values, with noise (its standard deviation) less than the step from one of them to the next.

    A normal density between two values is mass where no row can be, so an interval holds more rows than it says.
    """
    values = np.unique(y)
    if len(values) * MANY > len(y) or len(values) < 2 or noise > np.median(np.diff(values)):
        return []
    return [
        f"the target has {len(values)} different values in {len(y):,} rows: intervals, which take it for a real "
        "number, hold more rows than they say; a likelihood for counts or ordered levels, or classes, may fit better"
    ]
