"""Whether float32, in which an iteration takes half the time, serves for climbing."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..data import Dataset, Standardiser
from ..kernels import AbstractKernel
from ..posteriors import Model

__all__ = ["ROUGH", "Serves", "leave_one_out_error", "serves", "serves_classes"]

ROUGH = "climbed in float32, which the noise allows; posterior and bounds are of float64"

RESOLUTION = float(np.finfo(np.float32).eps)
TINY = float(np.finfo(float).tiny)


@dataclass(frozen=True)
class Serves:
    """Whether float32 resolves a collapsed bound of so many rows with a model's noise.

    What is factorised is I + Σ λᵢaᵢaᵢᵀ, whose eigenvalues reach up to N k/σ²: beside them float32 is to see the 1 of
    the prior, so that ε N k ≤ σ².
    """

    rows: float | int

    def __call__(self, model: Any) -> bool:
        """By the noise that the model has now."""
        return self.resolves(model.kernel, model.posterior.Z, model.likelihood.gaussian_noise)

    def resolves(self, kernel: AbstractKernel, Z, noise: Any) -> bool:
        """By a noise variance."""
        return RESOLUTION * self.rows * float(_mean_variance(kernel, Z)) <= float(noise)


def serves(kernel: AbstractKernel, few: Dataset, rows: float) -> Serves | None:
    """The test for every round of a climb of so many rows, if it may begin in float32.

    Where the noise of a sparse model will end, its start does not say, and an exact fit of few rows may find none where
    the sparse model ends with much (kin40k, protein). The error of `few` rows, each foretold by the others, says it: of
    seventeen tables NAVAL has 3e-5 of the variance, and the others 0.03 and more.
    """
    test = Serves(rows)
    return test if test.resolves(kernel, few.X, leave_one_out_error(few)) else None


def leave_one_out_error(few: Dataset) -> float:
    """The mean squared error of every y by the Gaussian process of all other rows, in y's units, with one lengthscale
    and noise of the greatest evidence on a grid; 0 where a number is not finite.

    In NumPy, and from one eigendecomposition a lengthscale, so that no program is compiled. With G = K + σ²I the row
    that is left out errs by [G⁻¹y]ᵢ/[G⁻¹]ᵢᵢ  (Rasmussen and Williams 2006, 5.12).
    """
    X, y = (np.asarray(part, float) for part in (few.X, few.y))
    if not (np.isfinite(X).all() and np.isfinite(y).all()):
        return 0.0  # the climb will say what is wrong
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
            # 2/N log p(y) at the best variance, but for constants
            evidence = -np.log(np.mean(along**2 / g) + TINY) - np.mean(np.log(g))
            if evidence > best:
                best, error = evidence, np.mean((Q @ (along / g) / np.sum(Q**2 / g, axis=1)) ** 2)
    return float(error * scaling.target_scale**2)


def serves_classes(start: Model, rows: float | int) -> bool:
    """Whether minibatches may climb in float32, where a row's curvature is bounded: it is the noise's 1/σ²."""
    curvature = start.likelihood.curvature
    return curvature < np.inf and Serves(rows).resolves(start.kernel, start.posterior.Z, 1 / curvature)


@jax.jit
def _mean_variance(kernel: AbstractKernel, points: Float[Array, "N D"]):
    return jnp.mean(kernel.diag(points))
