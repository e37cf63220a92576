"""The exact evidence of a Gaussian likelihood, at N³."""

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from ..data import Dataset
from ..linalg import factorise, min_noise_ratio
from ..posteriors import Model, Predictor
from .bound import Solution

__all__ = ["marginal", "row_noise"]


@jax.jit
def marginal(model: Model, data: Dataset) -> Solution:
    """log p(y) = log N(y; 0, K + Σ) of a Gaussian likelihood, Σ = diag((σ² + noiseᵢ)/wᵢ)  (Izmailov (4)).

    Weights must be positive. With weights, p(y) is that of the data with row i seen wᵢ times. The upper bound is the
    value itself. Raises TypeError where the likelihood has no `gaussian_noise`.
    """
    noise = row_noise(model, data)
    K = model.kernel(data.X, data.X) + jnp.diag(noise / data.weight)
    factor = factorise(K, refine=True)
    # Seen w times instead of once with variance σ²/w:  Σ [(w − 1) log 2πσ² + log w] more in −2 log p.
    constants = jnp.sum(data.weight * jnp.log(2 * jnp.pi * noise) - jnp.log(noise / data.weight))
    value = -0.5 * (factor.quadratic(data.y) + constants) - factor.half_logdet()
    alpha = factor.solve(data.y)
    predictor = Partial(_predictor, model.kernel, data.X, alpha, factor.inverse, factor.jitter)
    return Solution(value, value, predictor, Partial(_same, value))


def _predictor(kernel, X, alpha, W, jitter) -> Predictor:
    """E f(x) = k(x, X)α and V f(x) = k(x, x) − ‖W k(X, x)‖²."""
    return Predictor(kernel, X, alpha, X, W, jnp.zeros_like(alpha), jitter, True)


def _same(value):
    return value


def row_noise(model, data):
    """σ² + noiseᵢ, at least the share of kᵢᵢ that the arithmetic resolves: a smaller variance is rounding error.

    Without noise in the target, the evidence grows for ever as σ²/kᵢᵢ → 0, and past that share all that is computed is
    wrong: a lower bound above the upper one, errors of many standard deviations.
    """
    noise = model.likelihood.at(data.noise).gaussian_noise
    if noise is None:
        raise TypeError(f"{model.likelihood.name} has no bound in closed form: use elbo")
    return jnp.maximum(noise, min_noise_ratio(data.X.dtype) * model.kernel.diag(data.X))
