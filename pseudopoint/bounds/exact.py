"""The exact evidence of a Gaussian likelihood, at N³."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from jaxtyping import Array, Float

from ..data import Dataset
from ..linalg import Scalar, factorise, min_noise_ratio
from ..posteriors import Model, Predictor
from .bound import Solution

__all__ = ["constants_of", "marginal", "num_targets", "residuals", "row_noise"]


@jax.jit
def marginal(model: Model, data: Dataset) -> Solution:
    """log p(y) = log N(y; 0, K + Σ) of a Gaussian likelihood, Σ = diag((σ² + noiseᵢ)/wᵢ)  (Izmailov (4)).

    With weights, p(y) is that of the data with row i seen wᵢ times; rows of weight zero do not count. Of a target
    [N, C] the evidence is that of C independent functions of one prior, and the predictor has the mean of each. The
    upper bound is the value itself. Raises TypeError where the likelihood has no `gaussian_noise`.
    """
    data = residuals(model, data)
    noise, counts = row_noise(model, data), data.weight > 0
    weight, y = jnp.where(counts, data.weight, 1), jnp.where(counts, data.y.T, 0).T
    # A row that does not count is independent of all others, with variance 1 and y = 0: it adds nothing below.
    both = counts & counts[:, None]
    K = jnp.where(both, model.kernel(data.X, data.X), 0) + jnp.diag(jnp.where(counts, noise / weight, 1))
    factor = factorise(K, refine=True)
    value = -0.5 * factor.quadratic(y) - num_targets(y) * (0.5 * constants_of(noise, data) + factor.half_logdet())
    alpha = factor.solve(y).T
    predictor = Partial(_predictor, model.kernel, data.X, alpha, factor.inverse * counts, factor.jitter)
    return Solution(value, value, predictor, Partial(same, value))


def constants_of(noise: Float[Array, " N"], data: Dataset) -> Scalar:
    """What −2 log p(y) has beside yᵀ(K + Σ)⁻¹y + log |K + Σ|, of the rows' noise variances σ² + noiseᵢ."""
    # Seen w times instead of once with variance σ²/w:  Σ [(w − 1) log 2πσ² + log w] more in −2 log p.
    counts = data.weight > 0
    weight = jnp.where(counts, data.weight, 1)
    return jnp.sum(jnp.where(counts, weight * jnp.log(2 * jnp.pi * noise) - jnp.log(noise / weight), 0))


def _predictor(kernel, X, alpha, W, jitter) -> Predictor:
    """E f(x) = k(x, X)α and V f(x) = k(x, x) − ‖W k(X, x)‖²."""
    return Predictor(kernel, X, alpha, X, W, jnp.zeros_like(W[0]), jitter, True)


def num_targets(y: Any) -> int:
    """The number C of columns of a target [N, C], or 1."""
    return y.shape[1] if y.ndim > 1 else 1


def same(value: Any) -> Any:
    """The value."""
    return value


def residuals(model: Model, data: Dataset) -> Dataset:
    """The rows with y − m(x) for y, where the likelihood has a mean function m: what closed forms describe."""
    mean = model.likelihood.latent_mean(data.X)
    return data if mean is None else replace(data, y=data.y - mean)


def row_noise(model, data):
    """σ² + noiseᵢ, or the smallest multiple of kᵢᵢ that the arithmetic resolves if that is larger.

    If the target has no noise, the evidence grows without limit as σ²/kᵢᵢ → 0. With a smaller variance all results
    would be rounding errors: lower bounds above upper ones, predictions wrong by many standard deviations.
    """
    noise = model.likelihood.at(data).gaussian_noise
    if noise is None:
        raise TypeError(f"{model.likelihood.name} has no bound in closed form: use elbo")
    return jnp.maximum(noise, min_noise_ratio(data.X.dtype) * model.kernel.diag(data.X))
