"""Whether a fit may start in float32, in which an iteration takes half the time."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..data import Dataset, Standardiser
from ..kernels import AbstractKernel, by_equality
from ..posteriors import Model

FLOAT32_NOTE = "optimised in float32 first, which the noise allows; posterior and bounds are of float64"

EPSILON = float(np.finfo(np.float32).eps)
TINY = float(np.finfo(float).tiny)


@dataclass(frozen=True)
class Float32Start:
    """Whether float32 resolves a collapsed bound or the evidence of so many rows, at the noise variance of a model.

    The bound factorises I + Σ λᵢaᵢaᵢᵀ, whose eigenvalues reach up to N k/σ². Float32 must resolve the 1 of the prior
    beside them, which it does while ε N k ≤ σ². The evidence factorises K + σ²I, for which the same holds.
    """

    rows: float | int
    points: Any = None  # of the mean k, where the model has none

    def __call__(self, model: Any) -> bool:
        """At the model's noise variance."""
        points = model.posterior.Z if self.points is None else self.points
        return self.resolves(model.kernel, points, model.likelihood.gaussian_noise)

    def resolves(self, kernel: AbstractKernel, Z, noise: Any) -> bool:
        """At a noise variance σ², with the mean of k(z, z) over the points as k."""
        return EPSILON * self.rows * float(_mean_variance(kernel, Z)) <= float(np.min(noise))


def float32_start_of(kernel: AbstractKernel, few: Dataset, rows: float, points: Any = None) -> Float32Start | None:
    """The test for each round of a fit of so many rows, or None if no round should be in float32.

    It needs the noise variance at the end of the fit. The starting value does not tell that, nor does an exact fit of
    few rows, which may find no noise where the sparse model ends with much. The leave-one-out error of `few` rows does.
    """
    if by_equality(kernel):  # codes of float32 are no codes of float64
        return None
    test = Float32Start(rows, points)
    return test if test.resolves(kernel, few.X, leave_one_out_error(few)) else None


def leave_one_out_error(few: Dataset) -> float:
    """The mean squared error of predicting each y from all other rows; 0 if a number is not finite.

    The Gaussian process has one lengthscale, which with its noise has the highest evidence on a grid. With G = K + σ²I
    the error of row i is [G⁻¹y]ᵢ/[G⁻¹]ᵢᵢ  (Rasmussen and Williams 2006, 5.12). It is computed in NumPy, by one
    eigendecomposition per lengthscale, so that nothing has to be compiled.
    """
    X, y = (np.asarray(part, float) for part in (few.X, few.y))
    if y.ndim > 1:
        return min(leave_one_out_error(replace(few, y=column)) for column in y.T)
    if not (np.isfinite(X).all() and np.isfinite(y).all()):
        return 0.0  # the fit will report what is wrong
    scaling = Standardiser.learn(X, y, np.ones(len(y)), True, True)
    X, y = scaling.inputs(X), scaling.target(y)
    norms = np.sum(X**2, axis=1)
    squares = np.maximum(norms[:, None] + norms - 2 * X @ X.T, 0)
    best, error = -np.inf, 0.0
    for lengthscale in np.sqrt(X.shape[1]) * 2.0 ** np.arange(-2, 3):
        values, Q = np.linalg.eigh(np.exp(-squares / (2 * lengthscale**2)))
        along = Q.T @ y
        for noise in 10.0 ** np.arange(-8, 2):
            g = np.maximum(values, 0) + noise
            # 2/N log p(y) at the best variance, up to a constant
            evidence = -np.log(np.mean(along**2 / g) + TINY) - np.mean(np.log(g))
            if evidence > best:
                best, error = evidence, np.mean((Q @ (along / g) / np.sum(Q**2 / g, axis=1)) ** 2)
    return float(error * scaling.target_scale**2)


def resolved_in_float32(start: Model, rows: float | int) -> bool:
    """Whether float32 resolves the bound of a likelihood without a closed form: only if a row's curvature, the noise's
    1/σ² of others, is bounded."""
    curvature = start.likelihood.curvature
    if by_equality(start.kernel):  # as above
        return False
    return curvature < np.inf and Float32Start(rows).resolves(start.kernel, start.posterior.Z, 1 / curvature)


@jax.jit
def _mean_variance(kernel: AbstractKernel, points: Float[Array, "N D"]):
    return jnp.mean(kernel.diag(points))
