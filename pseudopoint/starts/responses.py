"""The regression by which a search judges kernels and warps of a target that is no real number."""

import jax
import numpy as np
from jaxtyping import Float
from scipy.linalg import helmert

from ..likelihoods import AbstractLikelihood
from ..likelihoods.quadrature import in_blocks


def response(
    likelihood: AbstractLikelihood, y: Float[np.ndarray, " N"], weight: Float[np.ndarray, " N"]
) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, "C K"] | None]:
    """The target of a Gaussian regression in place of p(y | f), standardised; and for C classes their coordinates
    [C, K], K = C − 1, of which y says the row.

    A Gaussian likelihood has y itself. Classes have the corners of a simplex (for two, two numbers): the evidence of
    K functions of them is that of the C label columns, whose sum is constant, up to the scale. Others have the f that
    fits a row best (`peak_hint`), such as log(y + ½) of a count.
    """
    if likelihood.gaussian_noise is not None or likelihood.varying_noise or likelihood.ordered:
        return _standardised(y, weight), None
    if likelihood.classes:
        share = np.bincount(y.astype(int), weights=weight, minlength=likelihood.classes) / np.sum(weight)
        corners = (np.eye(likelihood.classes) - share) @ helmert(likelihood.classes).T
        size = np.sqrt(share @ np.sum(corners**2, axis=1))  # of the rows' coordinates, root mean square
        return y, corners / (size or 1.0)
    f = in_blocks(_best, likelihood, y)
    return _standardised(np.asarray(f, float).reshape(y.shape), weight), None


@jax.jit
def _best(likelihood, y):
    """The f at which p(y | f) is highest, or near it."""
    return likelihood.peak_hint(y)[0]


def _standardised(y, weight):
    y = y - np.average(y, weights=weight)
    return y / (np.sqrt(np.average(y**2, weights=weight)) or 1.0)
