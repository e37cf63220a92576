"""What a fitted posterior would be without one of its rows, for every row: no refit, N M² in blocks of rows.

At the best q, the data's term of row i is that of a Gaussian site in f's explained part: with the slope αᵢ and the
curvature βᵢ of E log p(yᵢ | fᵢ), the precision wᵢβᵢ. Without it (Vehtari et al. 2016, whose cavity this is; methods h)
    mean  μᵢ − wᵢαᵢrᵢ/(1 − tᵢ),    variance  rᵢ/(1 − tᵢ) + dᵢ,    tᵢ = wᵢβᵢrᵢ,
where N(μᵢ, rᵢ + dᵢ) is q(fᵢ), rᵢ = aᵢᵀSaᵢ. For a Gaussian likelihood this is exact, tᵢ is the leverage of the row, and
the residual is (yᵢ − μᵢ)/(1 − tᵢ). Kernel and pseudo-points stay as they are. One observation is left out: of a row of
weight w > 1, seen w times, one of its w copies, so that wᵢ above is min(wᵢ, 1). New rows may repeat old ones as often
as those repeat each other.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..compilation import bucket, program
from ..data import Dataset, padded, take
from ..likelihoods import AbstractLikelihood, Gaussian
from ..posteriors import Marginals, Model
from .exact import row_noise

__all__ = ["LeftOut", "by_rows", "expected_squares", "leave_one_out", "loo_log_density", "marginals_of_rows"]

BLOCK = 2**20  # numbers of the features of a block of rows


class LeftOut(NamedTuple):
    """Mean and variance of fᵢ given all rows but i, each [N]."""

    mean: Float[np.ndarray, " N"]
    variance: Float[np.ndarray, " N"]


def leave_one_out(predictor: Any, likelihood: AbstractLikelihood, data: Dataset, exact: bool = False) -> LeftOut:
    """The posterior of fᵢ without row i, for the rows of the fit and the `Predictor` of its best q, of one latent
    function whose mean and variance have the same points. For a row of weight zero, q(fᵢ) itself.

    `exact` says that the predictor is that of `marginal`: then, with K⁻¹ of K = Kff + Σ, α = K⁻¹y and c = diag K⁻¹,
        mean  yᵢ − αᵢ/cᵢ,    variance  1/cᵢ − Σᵢᵢ    (Rasmussen and Williams 2006, 5.12)
    without all copies of a row, to which all but one are added again; from the predictor's own numbers α and W,
    K⁻¹ = WᵀW: without a difference that a small noise variance would magnify.
    """
    counts = np.flatnonzero(np.asarray(data.weight) > 0)
    if exact and len(counts) == len(data):
        return LeftOut(*_of_evidence(predictor, likelihood, data, counts))
    left = by_rows(_left_out, (predictor, likelihood), data)
    if exact:
        left[:, counts] = _of_evidence(predictor, likelihood, data, counts)
    return LeftOut(*left)


def loo_log_density(likelihood: AbstractLikelihood, data: Dataset, *left: LeftOut) -> Float[np.ndarray, " N"]:
    """log p(yᵢ | all rows but i) = log E p(yᵢ | f) under N(meanᵢ, varianceᵢ) of `left`, one for each latent function;
    of one copy of the row."""
    return by_rows(_log_density, likelihood, data, *(column for each in left for column in each))


def marginals_of_rows(predictor: Any, data: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of f at the rows by a `Predictor`, each [N]."""
    mean, variance = by_rows(_moments, predictor, data)
    return mean, variance


def expected_squares(predictor: Any, data: Dataset) -> Float[np.ndarray, " N"]:
    """E (yᵢ − f(xᵢ))² at the rows by a `Predictor`."""
    mean, variance = marginals_of_rows(predictor, data)
    return (np.asarray(data.y, float) - mean) ** 2 + np.maximum(variance, 0)


def by_rows(function: Callable[..., Any], at: Any, data: Dataset, *columns: np.ndarray) -> Float[np.ndarray, "... N"]:
    """`function(at, rows, *columns)`, [..., N], of a named function, in blocks of rows whose size depends on that of
    `at` alone: it is compiled once for all large tables, and once for small tables of like size."""
    widest = max((np.shape(leaf)[0] for leaf in jax.tree.leaves(at) if np.ndim(leaf)), default=1024)
    size = min(bucket(len(data)), max(256, BLOCK // widest))
    run, parts = program(function, "brief"), []
    for start in range(0, len(data), size):
        rows = take(data, np.arange(start, min(start + size, len(data))))
        more = size - len(rows)
        block = [np.pad(np.asarray(column)[start : start + size], (0, more), mode="edge") for column in columns]
        parts.append(np.asarray(run(at, padded(rows, size), *block))[..., : len(rows)])
    return np.concatenate(parts, axis=-1)


def _of_rows(kernel, likelihood, rows: Dataset) -> AbstractLikelihood:
    """The likelihood of the rows; a Gaussian one with the noise that the bounds compute with."""
    if likelihood.gaussian_noise is None:
        return likelihood.at(rows)
    return Gaussian(row_noise(Model(kernel, likelihood), rows))


def _left_out(at, rows: Dataset):
    """`LeftOut` of each row, [2, B]."""
    predictor, likelihood = at
    q = predictor.marginals(rows.X)
    mean, variance = q.moments
    slopes = _of_rows(predictor.kernel, likelihood, rows).expectation_gradients(mean, variance, rows.y)
    return jnp.stack(_without(q, predictor.kernel.diag(rows.X), rows.weight, *slopes))


def _without(q: Marginals, prior: Float[Array, " B"], weight, slope, in_variance):
    """Mean and variance without each row. Where 1 − t is lost in rounding, the row alone tells of f: what is left is no
    more than the prior's variance ‖a‖² = k − d, so that 1 − t ≥ r/‖a‖²."""
    r = q.explained
    one = jnp.minimum(weight, 1)
    t = -2 * one * in_variance * r
    tiny = float(jnp.finfo(r.dtype).tiny)
    left = jnp.maximum(1 - t, r / jnp.maximum(prior - q.residual, tiny))
    left = jnp.maximum(left, tiny)
    return q.mean - one * slope * r / left, r / left + q.residual


def _of_evidence(predictor, likelihood, data, counts) -> Float[np.ndarray, "2 N"]:
    """Mean and variance of the rows that count, which are all points of the predictor, or its only ones."""
    own = counts if len(predictor.alpha) == len(data) else slice(None)
    data = take(data, counts)
    noise = by_rows(noise_of_rows, Model(predictor.kernel, likelihood), data)
    weight, y = np.asarray(data.weight), np.asarray(data.y)
    c = np.sum(np.asarray(predictor.W)[:, own] ** 2, axis=0)
    variance = np.maximum(1 / c - noise / weight, 0)
    gain = variance * np.maximum(weight - 1, 0) / noise  # precision of the other copies, in units of that without them
    return np.stack([y - np.asarray(predictor.alpha)[own] / c / (1 + gain), variance / (1 + gain)])


def noise_of_rows(model: Model, rows: Dataset):
    """σᵢ² of each row, as `by_rows` takes it."""
    return row_noise(model, rows) + jnp.zeros_like(rows.y)


def _log_density(likelihood, rows: Dataset, *moments):
    mean, variance = moments if len(moments) == 2 else (jnp.stack(moments[::2]), jnp.stack(moments[1::2]))
    return likelihood.at(rows).log_density(mean, variance, rows.y)


def _moments(predictor, rows: Dataset):
    return jnp.stack(predictor(rows.X))
