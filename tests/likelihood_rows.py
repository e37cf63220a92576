"""What a likelihood says of some rows, in a few compilations of fixed shapes, and the rows where it is asked."""

# Fields take floats and NumPy arrays and become JAX arrays in `cast` or under jit; a type checker knows the last alone.
# pyright: reportArgumentType=false

import inspect
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pseudopoint.likelihoods import AbstractLikelihood, quantile
from pseudopoint.params import cast

Array = np.ndarray

# --- what it says ----------------------------------------------------------------------------------------------------

ROWS, MANY = 32, 1024


class Rows(NamedTuple):
    """What a likelihood says of some rows, and the slopes of the summed expectation."""

    log_prob: Any
    expectation: Any
    in_mean: Any
    in_variance: Any
    log_density: Any
    mean: Any
    variance: Any
    majoriser: Any
    shrinkage: Any


@jax.jit
def all_rows(likelihood: Any, mean: Array, variance: Array, y: Array) -> Rows:
    """All of a likelihood in one compilation; `log_prob` is at f = mean, and `shrinkage` at (d, w) = (variance, y)."""
    in_mean, in_variance = likelihood.expectation_gradients(mean, variance, y)
    predicted = likelihood.predict(mean, variance)
    return Rows(
        likelihood.log_prob(mean, y),
        likelihood.expectation(mean, variance, y),
        in_mean,
        in_variance,
        likelihood.log_density(mean, variance, y),
        predicted.mean,
        predicted.variance,
        likelihood.majoriser(mean, variance, y, (in_mean, in_variance)),
        likelihood.shrinkage(variance, y),
    )


def resized(x: Any, size: int) -> Array:
    """[..., N] with the last rows repeated from the first."""
    x = np.atleast_1d(np.asarray(x))
    return x[..., np.resize(np.arange(x.shape[-1]), size)]


def say(likelihood: AbstractLikelihood, mean: Any, variance: Any, y: Any, dtype: Any = float) -> Rows:
    """`all_rows` of numbers or of up to 32 rows; mean and variance are [C, N] for C latent functions."""
    given = [np.atleast_1d(np.asarray(x, dtype)) for x in (mean, variance, y)]
    N = max(x.shape[-1] for x in given)
    rows = all_rows(cast(likelihood, dtype), *(jnp.asarray(resized(x, ROWS)) for x in given))
    return Rows(*(np.asarray(a)[..., :N] for a in rows))


@jax.jit
def many_log_probs(likelihood: Any, f: Array, y: Array) -> Any:
    return likelihood.log_prob(f, y)


def log_probs(likelihood: AbstractLikelihood, f: Array, y: Array) -> Array:
    """log p(y | f) of any number of rows, 1024 at a time."""
    N = max(np.shape(f)[-1], np.shape(y)[-1])
    f, y = resized(f, N), resized(y, N)
    out = []
    for i in range(0, N, MANY):
        part = [jnp.asarray(resized(x[..., i : i + MANY], MANY), float) for x in (f, y)]
        out.append(np.asarray(many_log_probs(likelihood, *part)))
    return np.concatenate(out)[:N]


# Distribution functions are NumPy.
host = lambda arrays: [np.asarray(a) for a in arrays]
cdfs = lambda likelihood, *rows: np.asarray(likelihood.cdf(*host(rows)))
predictive_cdfs = lambda likelihood, *rows: np.asarray(likelihood.predictive_cdf(*host(rows)))
log_probabilities = jax.jit(lambda likelihood, mean, variance: likelihood.log_probabilities(mean, variance))
# One compilation for all p: the annotation says float, which a traced number is not.
quantiles = inspect.unwrap(quantile)

# --- where it is asked -----------------------------------------------------------------------------------------------

TARGETS = {
    "real": [-1.1, 0.3, 3.0],
    "positive": [0.03, 0.8, 12.0],
    "unit": [0.02, 0.45, 0.9],
    "counts": [0.0, 2.0, 11.0],
}


def targets(likelihood: Any) -> list[float]:
    """Three possible values of y: the first, the last and one between, of classes."""
    if likelihood.support == "classes":
        return [0.0, float(likelihood.classes // 2), likelihood.classes - 1.0]
    return TARGETS[likelihood.support]


class Points(NamedTuple):
    """mean and variance, [N] or [C, N], and y [N]."""

    mean: Array
    variance: Array
    y: Array

    def rows(self):
        """One after another."""
        return [(self.mean[..., i], self.variance[..., i], self.y[i]) for i in range(len(self.y))]


def points(likelihood: AbstractLikelihood, variances: tuple, size: float = 1.0) -> Points:
    """Three means of about `size`, with each of the variances and each of the targets.

    Of several latent functions three have a variance, of the order given: the grid that is the truth has no room for
    more. (Two rows a variance, with targets in turn, as it is slow.)
    """
    ys, C = targets(likelihood), likelihood.latents
    if C == 1:
        grid = np.meshgrid(size * np.array([-1.0, 0.15, 1.0]), variances, ys, indexing="ij")
        return Points(*(a.ravel() for a in grid))
    rng = np.random.default_rng(5)
    N = 2 * len(variances)
    mean = size * np.clip(rng.normal(size=(C, N)), -1, 1)
    variance = rng.uniform(0.5, 1.0, (C, N)) * np.repeat(variances, 2)
    if likelihood.name == "Softmax":
        variance[3:] = 0.0
    return Points(mean, variance, np.resize(ys, N))


def ordinary(likelihood: AbstractLikelihood) -> Points:
    """Variances to 0.5."""
    return points(likelihood, (0.02, 0.5), 1.5)


def wide(likelihood: AbstractLikelihood) -> Points:
    """Variance 5."""
    return points(likelihood, (5.0,), 1.5)
