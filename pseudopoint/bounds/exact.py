"""The exact evidence of a Gaussian likelihood, at N³."""

import jax
import jax.numpy as jnp

from ..data import Dataset
from ..likelihoods import Gaussian
from ..linalg import Scalar, factorise, min_noise_ratio
from ..posteriors import Model, Predictor

__all__ = ["marginal", "row_noise"]


@jax.jit
def marginal(model: Model, data: Dataset) -> tuple[Scalar, Predictor]:
    """log p(y) = log N(y; 0, K + Σ) of a Gaussian likelihood, Σ = diag((σ² + noiseᵢ)/wᵢ)  (Izmailov (4)).

    Weights must be positive. With weights, p(y) is that of the data with row i seen wᵢ times.
    """
    noise = row_noise(model, data)
    K = model.kernel(data.X, data.X) + jnp.diag(noise / data.weight)
    factor = factorise(K, refine=True)
    # Seen w times instead of once with variance σ²/w:  Σ [(w − 1) log 2πσ² + log w] more in −2 log p.
    constants = jnp.sum(data.weight * jnp.log(2 * jnp.pi * noise) - jnp.log(noise / data.weight))
    value = -0.5 * (factor.quadratic(data.y) + constants) - factor.half_logdet()
    alpha = factor.solve(data.y)
    predictor = Predictor(
        model.kernel, data.X, alpha, data.X, factor.inverse, jnp.zeros_like(alpha), factor.jitter, True
    )
    return value, predictor


def row_noise(model, data):
    """σ² + noiseᵢ, no less than the share of kᵢᵢ that the arithmetic resolves: beneath it a variance is rounding error.

    Without noise in the target, σ²/kᵢᵢ → 0 climbs the evidence for ever, and past the resolution everything computed is
    nonsense: a lower bound above the upper one, errors of many standard deviations.
    """
    likelihood = model.likelihood.at(data.noise)
    if not isinstance(likelihood, Gaussian):
        raise TypeError(f"{likelihood.name} has no bound in closed form: use elbo")
    return jnp.maximum(likelihood.variance, min_noise_ratio(data.X.dtype) * model.kernel.diag(data.X))
