"""Where hyperparameters start, and kernels by name."""

from collections.abc import Callable
from math import comb

import numpy as np
from jaxtyping import Float

from .. import kernels as k
from ..data import near_rows

ORDERS = 3  # columns that a function of the orthogonal additive kernel has at most


def _orthogonal_additive(lengthscale: Float[np.ndarray, " D"], variance: float) -> k.AbstractKernel:
    """The kernel of functions of up to `ORDERS` columns, and Matérn 5/2 of all; each order has an equal variance."""
    D = len(lengthscale)
    orders = range(1, min(ORDERS, D) + 1)
    share = variance / (len(orders) + 1)
    weights = [share / (comb(D, order) * (share / D) ** order) for order in orders]
    left = 1 - np.sqrt(3 / 8)  # share of a column's variance without its mean: 1 − E g(x)² at ℓ = s = 1 (methods n)
    parts = k.OrthogonalAdditive(np.ones(D), np.full(D, share / D / left), np.array(weights[1:]))
    return parts + k.Matern52(lengthscale, share)


# Kernels by the names of `names.KERNELS`, made from a lengthscale for each column and a variance.
KERNELS: dict[str, Callable[[Float[np.ndarray, " D"], float], k.AbstractKernel]] = {
    "matern52": k.Matern52,
    "matern32": k.Matern32,
    "matern12": k.Matern12,
    "rbf": k.RBF,
    "rational_quadratic": k.RationalQuadratic,
    "periodic": k.Periodic,
    "linear": lambda lengthscale, variance: (
        k.Linear(np.full(len(lengthscale), variance / len(lengthscale))) + k.Constant(variance)
    ),
    "additive": lambda lengthscale, variance: (
        k.Additive(np.ones(len(lengthscale)), np.full(len(lengthscale), variance / 2 / len(lengthscale)))
        + k.Matern52(lengthscale, variance / 2)
    ),
    "orthogonal_additive": _orthogonal_additive,
    "matern52_linear": lambda lengthscale, variance: (
        k.Linear(np.full(len(lengthscale), variance / 2 / len(lengthscale))) + k.Matern52(lengthscale, variance / 2)
    ),
}


def named_kernel(name: str, lengthscale: float, variance: float, D: int) -> k.AbstractKernel:
    """The kernel of that name with one lengthscale for each of D columns. Raises ValueError on an unknown name."""
    if name not in KERNELS:
        raise ValueError(f"kernel {name!r} is unknown: use one of {', '.join(KERNELS)}, or a kernel object")
    return KERNELS[name](np.full(D, lengthscale), variance)


def robust(X: Float[np.ndarray, "N D"], y: Float[np.ndarray, " N"]) -> tuple[float, float]:
    """ℓ = √D · (root mean square deviation of the columns), variance = mean square of y.

    For standardised columns two random rows are √(2D) apart: at ℓ = √D they are neither strangers nor the same.
    """
    spread = float(np.sqrt(np.mean(X[near_rows(X)].var(axis=0)))) or 1.0
    return float(np.sqrt(X.shape[1])) * spread, float(np.mean(y**2)) or 1.0


def ulapane(X: Float[np.ndarray, "N D"], y: Float[np.ndarray, " N"]) -> tuple[float, float]:
    """Ulapane et al. 2020 (Kobe 4.1.3): ℓ is the mean step between neighbours along a column, σ the mean step of y
    there.

    Sort each column j; d_xj = mean of its non-zero gaps, d_yj = mean of the non-zero |gaps| of y in that order. ℓ is
    the mean of d_x over columns that vary, and the variance is σ² with σ the mean of d_y. Raises ValueError where no
    gap is non-zero.
    """
    near = near_rows(X)
    X, y = X[near][:, np.ptp(X[near], axis=0) > 0], y[near]

    def mean_gap(v):
        gaps = np.abs(np.diff(v))
        return gaps[gaps > 0].mean() if (gaps > 0).any() else 0.0

    orders = np.argsort(X, axis=0, kind="stable")
    lengthscale = np.mean([mean_gap(np.sort(column)) for column in X.T] or [0.0])
    sigma = np.mean([mean_gap(y[order]) for order in orders.T] or [0.0])
    if not (lengthscale > 0 and sigma > 0):
        raise ValueError("the Ulapane start needs inputs and targets that vary; use initial='robust' or more rows")
    return float(lengthscale), float(sigma**2)


# Lengthscale and variance by the names of `names.INITIALS`; an exact fit to a few rows follows a warm start.
STARTS: dict[str, Callable[..., tuple[float, float]]] = {"warm": robust, "robust": robust, "ulapane": ulapane}
