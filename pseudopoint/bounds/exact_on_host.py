"""The exact evidence and its gradient on the host's cores, by LAPACK's functions in tiles.

XLA calls LAPACK for a Cholesky factor, but not for the inverse of a positive definite matrix, of which a compiled
program has to make products that cost several times as much. So programs compute the kernel in tiles and take its
derivative, and between them the host factorises and inverts (decision 0054).
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.tree_util import Partial
from jaxtyping import Array, Float

from ..compilation import program
from ..data import Dataset
from ..linalg import Scalar, workers
from ..posteriors import Model, Predictor
from ..processes import one_blas_thread
from .bound import Bound, Solution
from .covariance_on_host import Covariance
from .exact import constants_of, num_targets, residuals, row_noise, same

__all__ = ["Given", "evidence_on_host", "given_evidence", "marginal_on_host"]


class Given(eqx.Module):
    """What the host tells of a model: −½ yᵀα − ½ log |K + Σ|, and its derivatives in Σ, in the kernel's numbers, and
    in the value of a mean function at each row, α."""

    value: Scalar
    noise: Float[Array, " N"]
    kernel: Any
    alpha: Any = None


def given_evidence(model: Model, rows: tuple[Dataset, Given]) -> Bound:
    """`marginal` with its gradient, for `rows` = (data, `evidence_on_host(model, data)`) of the same model."""
    data, given = rows
    counts, noise = data.weight > 0, row_noise(model, data)
    variance = jnp.where(counts, noise / jnp.where(counts, data.weight, 1), 0)
    numbers = jax.tree.leaves(eqx.filter(model.kernel, eqx.is_inexact_array))
    # A linear function with the derivatives that the host found; less its own value, which leaves `value` exact.
    linear = given.noise @ variance + sum(jnp.sum(x * g) for x, g in zip(numbers, given.kernel, strict=True))
    if given.alpha is not None:
        linear += given.alpha @ model.likelihood.latent_mean(data.X)
    value = given.value - 0.5 * num_targets(data.y) * constants_of(noise, data) + (linear - lax.stop_gradient(linear))
    return Bound(value, value)


def evidence_on_host(model: Model, data: Dataset, levels: Float[np.ndarray, "L C"] | None = None) -> Given:
    """What `given_evidence` reads, by K⁻¹ = (LLᵀ)⁻¹ and ∂/∂K = ½(ααᵀ − K⁻¹) with α = K⁻¹y  (Rasmussen and Williams
    2006, 5.9). N³ operations and N²/2 numbers; rows of weight zero cost nothing. NaN where K has no factor.

    Of a target [N, C] the sums over its columns. With `levels`, y holds numbers of its rows, and α = K⁻¹Y for
    Y = levels[y], [N, C]: the evidence of C columns less that of C − 1 columns of zeros.
    """
    rows, along = np.flatnonzero(np.asarray(data.weight) > 0), None
    noise, centred = np.zeros(len(data), data.X.dtype), residuals(model, data)
    if centred is not data:  # by a mean function
        data, along = centred, np.zeros_like(noise)
    with one_blas_thread():
        variances = np.asarray(program(_variances, "brief")(model, data))[rows]
        cov = Covariance(model.kernel, data, rows, variances)
        with workers(cov.tiles.count) as run:
            level, _ = cov.factorise(run)
            y = np.asarray(data.y)[rows]
            Y = y.reshape(len(y), -1) if levels is None else levels[y.astype(int)].astype(y.dtype)
            C = num_targets(y)
            Y = Y / np.sqrt(C).astype(y.dtype)  # all below is of the mean of the columns
            alpha = cov.tiles.solve(Y)
            value = C * (-0.5 * float(np.sum(Y * alpha)) - cov.tiles.half_logdet())
            if not np.isfinite(value):
                zeros = [np.zeros_like(x) for x in jax.tree.leaves(eqx.filter(model.kernel, eqx.is_inexact_array))]
                return Given(jnp.asarray(np.nan, noise.dtype), jnp.asarray(noise), zeros, along)
            cov.tiles.invert(run)
            slopes, kernel = cov.pulled(alpha, level, run)
            noise[rows], kernel = C * slopes, [C * part for part in kernel]
            if along is not None:
                along[rows] = alpha[:, 0]
    return Given(*jax.device_put((np.asarray(value, noise.dtype), noise, kernel, along)))


def marginal_on_host(model: Model, data: Dataset) -> Solution:
    """`marginal` without a gradient, in tiles: N³/3 operations, and as many for its predictor."""
    data, rows = residuals(model, data), np.flatnonzero(np.asarray(data.weight) > 0)
    with one_blas_thread():
        variances = np.asarray(program(_variances, "brief")(model, data))[rows]
        cov = Covariance(model.kernel, data, rows, variances)
        with workers(cov.tiles.count) as run:
            _, jitter = cov.factorise(run)
            y = np.asarray(data.y)[rows]
            alpha, W = cov.tiles.solve(y.reshape(len(y), -1)).T.reshape(y.T.shape), cov.tiles.inverse_factor(run)
    constants = 0.5 * float(program(_constants, "once")(model, data)) + cov.tiles.half_logdet()
    value = -0.5 * float(np.vdot(y.T, alpha)) - num_targets(y) * constants
    value = jax.device_put(np.asarray(value, data.X.dtype))
    host = np.asarray(data.X)[rows], alpha, W, np.zeros_like(W[0]), np.asarray(jitter, W.dtype)
    X, alpha, W, zeros, jitter = jax.device_put(host)
    predictor = Predictor(model.kernel, X, alpha, X, W, zeros, jitter, True)
    return Solution(value, value, Partial(same, predictor), Partial(same, value))


def _constants(model, data):
    return constants_of(row_noise(model, data), data)


def _variances(model, data):
    """Σ of all rows."""
    return row_noise(model, data) / data.weight
