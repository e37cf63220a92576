"""The bound of any q(u) under any likelihood, from minibatches, at B M²."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax

from ..data import Dataset
from ..likelihoods import AbstractLikelihood
from ..linalg import Scalar
from ..posteriors import Model, Predictor, Predictors, ShrunkResidual

__all__ = ["elbo", "energies", "energy", "expected_log_likelihood", "majorises", "shrunk"]


def expected_log_likelihood(model: Model, batch: Dataset, num_data: int, tight: bool = True):
    """(N/B) Σ_batch E_q[log p(yᵢ | fᵢ)], and the projection it used.

    Tight: q(f | u) may shrink the residual variance dᵢ by vᵢ at a cost of ½(vᵢ − 1 − log vᵢ); at the best vᵢ a Gaussian
    likelihood pays ½ log(1 + λᵢdᵢ) instead of ½ λᵢdᵢ (methods a.2). vᵢ = 1 is the standard bound (Kobe 2.25).
    """
    projection, likelihood = model.posterior.project(model.kernel), model.likelihood.at(batch.noise)
    if tight and likelihood.shrinks:
        mean, explained, d = projection.marginals(batch.X)
        v = likelihood.shrinkage(d, batch.weight)
        variance, cost = explained + v * d, 0.5 * jnp.sum(v - 1 - jnp.log(v))
    else:
        (mean, variance), cost = projection.moments(batch.X), 0.0
    fit = jnp.sum(batch.weight * likelihood.expectation(mean, variance, batch.y))
    return (num_data / len(batch)) * (fit - cost), projection


def energy(model: Model, batch: Dataset, num_data: int, tight: bool = True) -> Scalar:
    """E_q[log p(y | f)] + E_q[log p(u)]: the bound without the entropy of q.

    It never factorises S. The entropy's natural gradient is −θ, known without differentiation, so this is all that a
    natural step differentiates.
    """
    expected, projection = expected_log_likelihood(model, batch, num_data, tight)
    return expected + projection.log_prior


def energies(model: Model, batch: Dataset, num_data: int, tight: bool = True) -> tuple[Scalar, Scalar]:
    """The `energy`, and from the same pass −½ (N/B) Σ ωᵢ V fᵢ + E_q[log p(u)] with constant ωᵢ: −2 ∂/∂S of that is a
    precision P_ω with which a step of the mean of size 1 goes up, whatever the curvature of log p(y | f) (methods d.3).
    Where the likelihood needs none (`majorises`) the second is the energy again, with P* for P_ω. Not for second
    derivatives.
    """
    if not majorises(model.likelihood):
        value = energy(model, batch, num_data, tight)
        return value, value
    projection, scale = model.posterior.project(model.kernel), num_data / len(batch)
    numbers, rest = eqx.partition(model.likelihood.at(batch.noise), eqx.is_inexact_array)
    at = numbers, *projection.moments(batch.X)
    # Slopes are computed with the value, at constants, for both: E + (slopes)ᵀ(x − constants) has E's value and its
    # first derivatives. By themselves they would run the quadrature again, and ω's own derivatives would be traced.
    constants = lax.stop_gradient(at)
    given = lambda numbers, mean, variance: eqx.combine(numbers, rest).expectation(mean, variance, batch.y)
    expected, pull = jax.vjp(given, *constants)
    along = jax.tree.map(lambda slope, x, c: jnp.sum(slope * (x - c)), pull(batch.weight), at, constants)
    fit = jnp.sum(batch.weight * expected) + sum(jax.tree.leaves(along))
    (numbers, mean, variance), (_, *slopes) = constants, pull(jnp.ones_like(expected))
    omega = eqx.combine(numbers, rest).majoriser(mean, variance, batch.y, tuple(slopes))
    below = -0.5 * jnp.sum(batch.weight * omega * at[2])
    return scale * fit + projection.log_prior, scale * below + projection.log_prior


def majorises(likelihood: AbstractLikelihood) -> bool:
    """Whether the mean moves with the curvature of a majoriser, and not with that of log p(y | f)."""
    return likelihood.majorised or not likelihood.concave


@jax.jit
def shrunk(model: Model, data: Dataset, iterations: int = 30) -> Model:
    """The model with the posterior `ShrunkResidual` and its v at the top of the bound of all rows, for the model's q:
    v = 1/(1 + Σ wᵢβᵢdᵢ/CN), βᵢ = −2 ∂E[log p(yᵢ | f)]/∂variance at explained + v dᵢ  (methods a.3), a fixed point.
    """
    each = model.posterior.base if isinstance(model.posterior, ShrunkResidual) else model.posterior
    mean, explained, d = each.project(model.kernel).marginals(data.X)
    likelihood = model.likelihood.at(data.noise)

    def better(_, v):
        fit = lambda v: jnp.sum(data.weight * likelihood.expectation(mean, explained + v * d, data.y))
        # Where the log density is not concave β may be negative, and v above 1: no more than twice the prior's.
        return 1 / (1 + jnp.maximum(-2 * jax.grad(fit)(v) / d.size, -0.5))

    v = lax.fori_loop(0, iterations, better, jnp.ones((), data.X.dtype))
    posterior = ShrunkResidual(base=each, num_data=len(data), v=v)  # pyright: ignore[reportCallIssue]
    return Model(model.kernel, model.likelihood, posterior)


def elbo(model: Model, batch: Dataset, num_data: int, tight: bool = True) -> tuple[Scalar, Predictor | Predictors]:
    """E_q[log p(y | f)] − KL[q(u) ‖ p(u)], unbiased from a batch of `num_data` rows  (Kobe 2.25, with its erratum)."""
    expected, projection = expected_log_likelihood(model, batch, num_data, tight)
    return expected - projection.divergence, projection.predictor()
