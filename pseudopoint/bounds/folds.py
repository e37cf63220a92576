"""What a Gaussian fit would be without a fold of its rows, for every fold: no refit (methods h.3).

With rows F left out, kernel and pseudo-points held, and Λ = diag(wᵢ/σᵢ²) of these rows,
    exact    mean  y_F − G⁻¹α_F,  covariance  G⁻¹ − Λ⁻¹,  where K = Kff + Λ⁻¹ of all rows, α = K⁻¹y and G = [K⁻¹]_FF;
    sparse   mean  μ_F − RΛ^½H⁻¹Λ^½(y_F − μ_F),  covariance  R + RΛ^½H⁻¹Λ^½R + D,  where H = I − Λ^½RΛ^½, R = AᵀSA of
             the features A of these rows, and D is what the pseudo-points do not explain of them.
A fold of one row has the formulas of `leave_one_out`.
"""

from collections.abc import Iterator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped

from ..data import Dataset, take
from ..linalg import factorise
from ..posteriors import Model, Predictor
from .leave_one_out import LeftOut, by_rows, noise_of_rows

__all__ = ["folds_left_out"]


def folds_left_out(
    predictor: Predictor, model: Model, data: Dataset, folds: Shaped[np.ndarray, " N"], exact: bool = False
) -> LeftOut:
    """Mean and variance of fᵢ given the rows of all folds but that of row i, each [N].

    `predictor` is that of `marginal` (`exact`) or of `collapsed` for these rows, all of positive weight, and `folds`
    [N] names the fold of each. N² for the exact fit beyond its predictor, N M² for a sparse one; and a fold of n rows
    takes n³ more, on top of the n²M of its covariance.
    """
    noise = by_rows(noise_of_rows, model, data) / np.asarray(data.weight)
    mean, variance = np.empty(len(data)), np.empty(len(data))
    without = _exactly if exact else partial(_sparsely, predictor)
    for rows, places, counts in _padded(folds):
        part = take(data, places)
        if exact:
            at = np.asarray(predictor.W)[:, places], np.asarray(predictor.alpha)[places]
        else:
            at = (part.X,)
        found = without(*at, part.y, noise[places], counts)
        mean[rows], variance[rows] = (np.asarray(each)[: len(rows)] for each in found)
    return LeftOut(mean, np.maximum(variance, 0))


def _padded(folds: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """The rows of each fold, the same padded to the longest so that one program serves all, and which of them count."""
    names, codes = np.unique(folds, return_inverse=True)
    longest = int(np.bincount(codes.ravel()).max())
    for code in range(len(names)):
        rows = np.flatnonzero(codes.ravel() == code)
        counts = np.arange(longest) < len(rows)
        yield rows, np.where(counts, np.pad(rows, (0, longest - len(rows))), rows[0]), counts


@jax.jit
def _exactly(W, alpha, y, noise, counts) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    W = jnp.where(counts, W, 0)
    G = factorise(W.T @ W + jnp.diag(jnp.where(counts, 0.0, 1.0)), refine=True)
    return y - G.solve(alpha * counts), jnp.sum(G.inverse**2, axis=0) - noise


@jax.jit
def _sparsely(predictor, X, y, noise, counts) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    mean, variance = predictor(X)
    root = jnp.where(counts, noise**-0.5, 0)
    features = jnp.sqrt(predictor.s)[:, None] * (predictor.W @ predictor.kernel(predictor.Zv, X))
    R = features.T @ features * root
    H = factorise(jnp.eye(len(y), dtype=y.dtype) - root[:, None] * R, refine=True)
    return mean - R @ H.solve(root * (y - mean)), variance + jnp.sum((H.inverse @ R.T) ** 2, axis=0)
