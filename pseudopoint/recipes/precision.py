"""Whether float32, in which an iteration takes half the time, serves for climbing."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..data import Dataset
from ..kernels import AbstractKernel
from ..posteriors import Latents, Model

__all__ = ["ROUGH", "Serves", "serves", "serves_classes"]

ROUGH = "climbed in float32, which the noise allows; posterior and bounds are of float64"

RESOLUTION = float(np.finfo(np.float32).eps)


@dataclass(frozen=True)
class Serves:
    """Whether float32 resolves a collapsed bound of so many rows with a model's noise.

    What is factorised is I + Σ λᵢaᵢaᵢᵀ, whose eigenvalues reach up to N k/σ²: beside them float32 is to see the 1 of
    the prior, so that ε N k ≤ σ².
    """

    rows: float | int

    def __call__(self, model: Any) -> bool:
        """By the noise that the model has now."""
        return self.resolves(model.kernel, model.posterior.Z, model.likelihood.variance)

    def resolves(self, kernel: AbstractKernel, Z, noise: Any) -> bool:
        """By a noise variance."""
        return RESOLUTION * self.rows * float(_mean_variance(kernel, Z)) <= float(noise)


def serves(start: Model, few: Dataset, noise: float, rows: float) -> Serves | None:
    """The test for every round of a climb of so many rows, if it may begin in float32.

    Where the noise of a sparse model will end, its start does not say, and an exact fit of few rows may find none where
    the sparse model ends with much (kin40k, protein): to the noise of that fit is added what the pseudo-points leave of
    those rows. Of eight tables NAVAL then has 4e-7 of the variance, and the others 0.02 and more.
    """
    test = Serves(rows)
    unexplained = noise + _residual(start, few)
    return test if test.resolves(start.kernel, start.posterior.Z, unexplained) else None


def serves_classes(start: Model, rows: float | int) -> bool:
    """Whether minibatches may climb in float32, where a row's curvature is bounded: it is the noise's 1/σ²."""
    curvature, posterior = start.likelihood.curvature, start.posterior
    Z = posterior.each.Z if isinstance(posterior, Latents) else posterior.Z
    return curvature < np.inf and Serves(rows).resolves(start.kernel, Z, 1 / curvature)


def _residual(model: Model, few: Dataset) -> float:
    """Mean of kᵢᵢ − ‖aᵢ‖². In NumPy, for a program would take most of a second to compile."""
    Z = np.asarray(model.posterior.Z)
    M, K = len(Z), np.asarray(_covariance(model.kernel, np.concatenate([Z, few.X])))
    if not np.isfinite(K).all():
        return 0.0  # the climb will say what is wrong
    A = np.linalg.solve(np.linalg.cholesky(K[:M, :M] + 1e-6 * np.mean(np.diagonal(K)) * np.eye(M)), K[:M, M:])
    return float(np.mean(np.diagonal(K)[M:] - np.sum(A**2, axis=0)))


@jax.jit
def _mean_variance(kernel: AbstractKernel, points: Float[Array, "N D"]):
    return jnp.mean(kernel.diag(points))


@jax.jit
def _covariance(kernel: AbstractKernel, points: Float[Array, "N D"]):
    return kernel(points, points)
